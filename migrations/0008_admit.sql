-- Admission: reserve before the call. One call of admit_v1 is one round trip and one implicit transaction.

CREATE TYPE admission_v1 AS (
    request_id             uuid,
    admitted_at            timestamptz,
    output_tokens          bigint,
    denial_code            text,
    denial_tier            smallint,
    denial_cap             bigint,
    denial_used            bigint,
    denial_held            bigint,
    resets_at              timestamptz,
    retry_after_seconds    bigint,
    minute_resets_in_ms    bigint,
    limit_requests         bigint,
    remaining_requests     bigint,
    limit_tokens           bigint,
    remaining_tokens       bigint,
    remaining_day_tokens   bigint,
    remaining_month_tokens bigint
);

-- The start of the window that follows the one that starts at p_start, in the zone's calendar: days of 23 and 25 hours
-- and months of any length come out right.
CREATE FUNCTION window_end(p_window text, p_start timestamptz, p_zone text) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE p_window
        WHEN 'minute' THEN p_start + interval '1 minute'
        WHEN 'day' THEN (p_start AT TIME ZONE p_zone + interval '1 day') AT TIME ZONE p_zone
        ELSE (p_start AT TIME ZONE p_zone + interval '1 month') AT TIME ZONE p_zone
    END
$$;

-- Adds to a window that has ended. Its held part is dropped by whoever closes it: a call that settles later adds what
-- it used here.
CREATE FUNCTION close_window(
    p_tier smallint, p_id bigint, p_window text, p_start timestamptz, p_requests bigint,
    p_tokens bigint, p_tokens_excess bigint, p_cost bigint, p_cost_excess bigint
) RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO usage_counters AS c (tier, id, window_kind, window_start, requests_used, tokens_used, tokens_excess,
                                     cost_used, cost_excess)
    VALUES (p_tier, p_id, p_window, p_start, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess)
    ON CONFLICT (tier, id, window_kind, window_start) DO UPDATE SET
        requests_used = c.requests_used + excluded.requests_used,
        tokens_used   = c.tokens_used + excluded.tokens_used,
        tokens_excess = c.tokens_excess + excluded.tokens_excess,
        cost_used     = c.cost_used + excluded.cost_used,
        cost_excess   = c.cost_excess + excluded.cost_excess
$$;

-- Stores a running row that the caller has changed, every 500th time as the next generation, and returns it as stored.
CREATE FUNCTION store_tier(p_row tier_state) RETURNS tier_state
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF p_row.updates >= 500 THEN
        DELETE FROM tier_state
         WHERE tier = p_row.tier AND id = p_row.id AND generation = p_row.generation;
        p_row.generation := p_row.generation + 1;
        p_row.updates := 0;
        INSERT INTO tier_state SELECT (p_row).*;
    ELSE
        p_row.updates := p_row.updates + 1;
        UPDATE tier_state SET
            updates = p_row.updates,
            open_calls = p_row.open_calls,
            minute_start = p_row.minute_start,
            minute_requests_used = p_row.minute_requests_used, minute_requests_held = p_row.minute_requests_held,
            minute_tokens_used = p_row.minute_tokens_used, minute_tokens_held = p_row.minute_tokens_held,
            minute_tokens_excess = p_row.minute_tokens_excess, minute_cost_used = p_row.minute_cost_used,
            minute_cost_held = p_row.minute_cost_held, minute_cost_excess = p_row.minute_cost_excess,
            day_start = p_row.day_start,
            day_requests_used = p_row.day_requests_used, day_requests_held = p_row.day_requests_held,
            day_tokens_used = p_row.day_tokens_used, day_tokens_held = p_row.day_tokens_held,
            day_tokens_excess = p_row.day_tokens_excess, day_cost_used = p_row.day_cost_used,
            day_cost_held = p_row.day_cost_held, day_cost_excess = p_row.day_cost_excess,
            month_start = p_row.month_start,
            month_requests_used = p_row.month_requests_used, month_requests_held = p_row.month_requests_held,
            month_tokens_used = p_row.month_tokens_used, month_tokens_held = p_row.month_tokens_held,
            month_tokens_excess = p_row.month_tokens_excess, month_cost_used = p_row.month_cost_used,
            month_cost_held = p_row.month_cost_held, month_cost_excess = p_row.month_cost_excess
         WHERE tier = p_row.tier AND id = p_row.id AND generation = p_row.generation;
    END IF;
    RETURN p_row;
END $$;

-- The running row of a tier at p_now: the stored one, with windows that have ended since written to usage_counters and
-- started anew. The caller holds the tier's definition row. A row with a new window is stored here, together with the
-- closed one, so that a batch that admits nothing cannot close the same window twice.
CREATE FUNCTION tier_at(p_tier smallint, p_id bigint, p_zone text, p_now timestamptz) RETURNS tier_state
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    v_row    tier_state;
    v_minute timestamptz := date_trunc('minute', p_now, 'UTC');
    v_day    timestamptz := date_trunc('day', p_now, p_zone);
    v_month  timestamptz := date_trunc('month', p_now, p_zone);
    v_rolled boolean := false;
BEGIN
    SELECT * INTO v_row FROM tier_state WHERE tier = p_tier AND id = p_id ORDER BY generation DESC LIMIT 1;
    IF NOT FOUND THEN
        INSERT INTO tier_state (tier, id, generation, minute_start, day_start, month_start)
        VALUES (p_tier, p_id, 1, v_minute, v_day, v_month) RETURNING * INTO v_row;
        RETURN v_row;
    END IF;
    -- Only forward: a clock that steps back must not open a window that was closed, with nothing used in it.
    IF v_row.minute_start < v_minute THEN
        PERFORM close_window(p_tier, p_id, 'minute', v_row.minute_start, v_row.minute_requests_used,
            v_row.minute_tokens_used, v_row.minute_tokens_excess, v_row.minute_cost_used, v_row.minute_cost_excess);
        v_row.minute_start := v_minute;
        v_row.minute_requests_used := 0; v_row.minute_requests_held := 0;
        v_row.minute_tokens_used := 0; v_row.minute_tokens_held := 0; v_row.minute_tokens_excess := 0;
        v_row.minute_cost_used := 0; v_row.minute_cost_held := 0; v_row.minute_cost_excess := 0;
        v_rolled := true;
    END IF;
    IF v_row.day_start < v_day THEN
        PERFORM close_window(p_tier, p_id, 'day', v_row.day_start, v_row.day_requests_used,
            v_row.day_tokens_used, v_row.day_tokens_excess, v_row.day_cost_used, v_row.day_cost_excess);
        v_row.day_start := v_day;
        v_row.day_requests_used := 0; v_row.day_requests_held := 0;
        v_row.day_tokens_used := 0; v_row.day_tokens_held := 0; v_row.day_tokens_excess := 0;
        v_row.day_cost_used := 0; v_row.day_cost_held := 0; v_row.day_cost_excess := 0;
        v_rolled := true;
    END IF;
    IF v_row.month_start < v_month THEN
        PERFORM close_window(p_tier, p_id, 'month', v_row.month_start, v_row.month_requests_used,
            v_row.month_tokens_used, v_row.month_tokens_excess, v_row.month_cost_used, v_row.month_cost_excess);
        v_row.month_start := v_month;
        v_row.month_requests_used := 0; v_row.month_requests_held := 0;
        v_row.month_tokens_used := 0; v_row.month_tokens_held := 0; v_row.month_tokens_excess := 0;
        v_row.month_cost_used := 0; v_row.month_cost_held := 0; v_row.month_cost_excess := 0;
        v_rolled := true;
    END IF;
    IF v_rolled THEN
        v_row := store_tier(v_row);
    END IF;
    RETURN v_row;
END $$;

-- Carries what is used and held today and this month into the windows of another time zone, in the transaction that
-- changes the zone: moving a project or key does not empty its budgets. A trigger, so that no writer can forget it.
CREATE FUNCTION carry_windows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_tier  smallint := CASE TG_TABLE_NAME WHEN 'projects' THEN 1 ELSE 2 END;
    v_now   timestamptz := clock_timestamp();
    v_row   tier_state;
    v_day   timestamptz;
    v_month timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM tier_state WHERE tier = v_tier AND id = NEW.id) THEN
        RETURN NULL;
    END IF;
    v_row := tier_at(v_tier, NEW.id, OLD.time_zone, v_now);
    v_day := v_row.day_start;
    v_month := v_row.month_start;
    v_row.day_start := date_trunc('day', v_now, NEW.time_zone);
    v_row.month_start := date_trunc('month', v_now, NEW.time_zone);
    PERFORM store_tier(v_row);
    IF v_tier = 1 THEN
        UPDATE requests_open SET
            project_day = CASE WHEN project_day = v_day THEN v_row.day_start ELSE project_day END,
            project_month = CASE WHEN project_month = v_month THEN v_row.month_start ELSE project_month END
         WHERE project_id = NEW.id;
    ELSE
        UPDATE requests_open SET
            key_day = CASE WHEN key_day = v_day THEN v_row.day_start ELSE key_day END,
            key_month = CASE WHEN key_month = v_month THEN v_row.month_start ELSE key_month END
         WHERE api_key_id = NEW.id AND key_tier;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER projects_time_zone AFTER UPDATE OF time_zone ON projects
    FOR EACH ROW WHEN (OLD.time_zone IS DISTINCT FROM NEW.time_zone) EXECUTE FUNCTION carry_windows();
CREATE TRIGGER api_keys_time_zone AFTER UPDATE OF time_zone ON api_keys
    FOR EACH ROW WHEN (OLD.time_zone IS DISTINCT FROM NEW.time_zone) EXECUTE FUNCTION carry_windows();

-- Why a key may not be used for a project now, or null. Read after the locks, so that a revocation counts from its
-- commit on.
CREATE FUNCTION key_refusal(p_key_id bigint, p_project_id bigint, p_now timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT CASE
        WHEN k.revoked_at IS NOT NULL THEN 'key_revoked'
        WHEN k.expires_at <= p_now THEN 'key_expired'
        WHEN k.owner_user_id IS NOT NULL AND NOT u.active THEN 'key_owner_inactive'
        WHEN k.kind = 'management' THEN 'project_not_granted'
        WHEN k.kind = 'project' AND k.project_id <> p_project_id THEN 'project_not_granted'
        WHEN k.kind = 'gateway' AND NOT EXISTS (
            SELECT FROM api_key_projects g WHERE g.api_key_id = k.id AND g.project_id = p_project_id
        ) THEN 'project_not_granted'
    END
    FROM api_keys k LEFT JOIN users u ON u.id = k.owner_user_id
    WHERE k.id = p_key_id
$$;

-- Admits or denies a batch, in arrival order: each request is measured against what the admitted ones before it left,
-- and a denied one takes nothing from those after it. All arrays have one element a request:
--   p_key_ids       the API key, null for work of our own (ingestion), which only budgets of days and months limit
--   p_prompt_tokens what is certain to be charged as prompt
--   p_output_tokens the output wanted at most (times n); it is clipped to the tightest window's room
--   p_min_output    less room than this many output tokens is a denial
--   p_input_prices, p_output_prices  nano-USD per million tokens, the dearest of the route
--   p_fixed_costs   nano-USD that do not depend on tokens
--   p_details       what the log row needs if this process never settles the call (JSON)
CREATE FUNCTION admit_v1(
    p_instance uuid, p_request_ids uuid[], p_project_ids bigint[], p_key_ids bigint[], p_prompt_tokens bigint[],
    p_output_tokens bigint[], p_min_output bigint[], p_input_prices bigint[], p_output_prices bigint[],
    p_fixed_costs bigint[], p_details text[]
) RETURNS SETOF admission_v1
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    c_unlimited constant bigint := 9000000000000000000;
    -- Positions of a tier's caps and rooms in the flat arrays below.
    c_caps constant integer := 7;
    c_codes constant text[] := ARRAY['budget_monthly', 'cost_monthly', 'budget_daily', 'cost_daily',
                                     'rate_limit_tpm', 'rate_limit_rpm', 'concurrency_limit'];
    c_windows constant text[] := ARRAY['month', 'month', 'day', 'day', 'minute', 'minute', NULL];
    v_now        timestamptz;
    v_projects   bigint[];
    v_keys       bigint[];
    v_kinds      smallint[] := '{}';
    v_ids        bigint[] := '{}';
    v_zones      text[] := '{}';
    v_rows       tier_state[] := '{}';
    v_caps       bigint[] := '{}';
    v_rooms      bigint[] := '{}';
    v_used       bigint[] := '{}';
    v_added      bigint[] := '{}';  -- of each tier: calls, their tokens and cost; tokens and cost with our own work
    v_limits     integer;           -- how many of the caps apply to a request
    v_definition record;
    v_row        tier_state;
    v_tiers      integer := 0;
    v_mine       integer[];
    v_answer     admission_v1;
    v_refusal    text;
    v_tier       integer;
    v_base       integer;
    v_cap        integer;
    v_room       bigint;
    v_prompt     bigint;
    v_output     bigint;
    v_minimum    bigint;
    v_cost       bigint;
    v_window     text;
    v_start      timestamptz;
    v_project_at integer;
    v_key_at     integer;
    v_changed    boolean[] := '{}';
BEGIN
    -- No row lock here waits for a disk. What makes it durable is the flush that follows a settlement.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- Who holds a definition row for longer makes this batch unavailable, not late.
    PERFORM set_config('lock_timeout', '1s', true);

    -- Always projects first, then keys, each by id: everything that locks tiers does it in this order.
    SELECT array_agg(DISTINCT p ORDER BY p) INTO v_projects FROM unnest(p_project_ids) p;
    SELECT array_agg(DISTINCT k ORDER BY k) INTO v_keys FROM unnest(p_key_ids) k WHERE k IS NOT NULL;
    PERFORM FROM projects WHERE id = ANY (v_projects) ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM api_keys WHERE id = ANY (v_keys) AND kind = 'gateway' ORDER BY id FOR NO KEY UPDATE;
    v_now := clock_timestamp();

    FOR v_definition IN
        SELECT 1::smallint AS tier, id, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
               tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
          FROM projects WHERE id = ANY (v_projects)
        UNION ALL
        SELECT 2::smallint, id, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
               tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
          FROM api_keys WHERE id = ANY (v_keys) AND kind = 'gateway'
        ORDER BY 1, 2
    LOOP
        v_row := tier_at(v_definition.tier, v_definition.id, v_definition.time_zone, v_now);
        v_tiers := v_tiers + 1;
        v_kinds[v_tiers] := v_definition.tier;
        v_ids[v_tiers] := v_definition.id;
        v_zones[v_tiers] := v_definition.time_zone;
        v_rows[v_tiers] := v_row;
        v_changed[v_tiers] := false;
        v_added := v_added || ARRAY[0, 0, 0, 0, 0]::bigint[];
        v_caps := v_caps || ARRAY[
            v_definition.tokens_per_month, v_definition.cost_per_month, v_definition.tokens_per_day,
            v_definition.cost_per_day, v_definition.tokens_per_minute, v_definition.requests_per_minute,
            v_definition.concurrent_requests];
        v_used := v_used || ARRAY[
            v_row.month_tokens_used + v_row.month_tokens_excess, v_row.month_cost_used + v_row.month_cost_excess,
            v_row.day_tokens_used + v_row.day_tokens_excess, v_row.day_cost_used + v_row.day_cost_excess,
            v_row.minute_tokens_used + v_row.minute_tokens_excess, v_row.minute_requests_used, 0];
        v_rooms := v_rooms || ARRAY[
            v_row.month_tokens_held, v_row.month_cost_held, v_row.day_tokens_held, v_row.day_cost_held,
            v_row.minute_tokens_held, v_row.minute_requests_held, v_row.open_calls];
    END LOOP;
    -- Until here v_rooms has what is held; from here on what is left.
    FOR v_cap IN 1 .. v_tiers * c_caps LOOP
        v_rooms[v_cap] := CASE WHEN v_caps[v_cap] = 0 THEN c_unlimited
                               ELSE v_caps[v_cap] - v_used[v_cap] - v_rooms[v_cap] END;
    END LOOP;

    FOR i IN 1 .. cardinality(p_request_ids) LOOP
        v_answer := NULL;
        v_answer.request_id := p_request_ids[i];
        v_project_at := NULL;
        v_key_at := NULL;
        FOR t IN 1 .. v_tiers LOOP
            IF v_kinds[t] = 1 AND v_ids[t] = p_project_ids[i] THEN v_project_at := t; END IF;
            IF v_kinds[t] = 2 AND v_ids[t] = p_key_ids[i] THEN v_key_at := t; END IF;
        END LOOP;
        v_mine := array_remove(ARRAY[v_project_at, v_key_at], NULL);
        v_refusal := NULL;
        IF v_project_at IS NULL THEN
            v_refusal := 'project_not_granted';
        ELSIF p_key_ids[i] IS NOT NULL THEN
            v_refusal := coalesce(key_refusal(p_key_ids[i], p_project_ids[i], v_now),
                CASE WHEN NOT EXISTS (SELECT FROM api_keys WHERE id = p_key_ids[i]) THEN 'key_revoked' END);
        END IF;
        IF v_refusal IS NOT NULL THEN
            v_answer.denial_code := v_refusal;
            RETURN NEXT v_answer;
            CONTINUE;
        END IF;

        v_prompt := greatest(p_prompt_tokens[i], 0);
        v_output := greatest(p_output_tokens[i], 0);
        v_minimum := least(greatest(p_min_output[i], 0), v_output);
        v_limits := CASE WHEN p_key_ids[i] IS NULL THEN 4 ELSE c_caps END;
        FOREACH v_tier IN ARRAY v_mine LOOP
            v_base := (v_tier - 1) * c_caps;
            FOR v_cap IN 1 .. v_limits LOOP
                v_room := v_rooms[v_base + v_cap];
                CONTINUE WHEN v_room = c_unlimited;
                IF v_cap IN (2, 4) THEN
                    -- The largest output whose cost, rounded up, still fits.
                    v_room := v_room - p_fixed_costs[i];
                    IF v_room < 0 OR ceil((v_prompt::numeric * p_input_prices[i]
                                      + v_minimum::numeric * p_output_prices[i]) / 1000000) > v_room THEN
                        v_answer.denial_code := c_codes[v_cap];
                    ELSIF p_output_prices[i] > 0 THEN
                        v_output := least(v_output, floor(
                            (v_room::numeric * 1000000 - v_prompt::numeric * p_input_prices[i]) / p_output_prices[i]
                        ));
                    END IF;
                ELSIF v_cap IN (1, 3, 5) THEN
                    IF v_room - v_prompt < greatest(v_minimum, 0) OR v_room <= 0 THEN
                        v_answer.denial_code := c_codes[v_cap];
                    ELSE
                        v_output := least(v_output, v_room - v_prompt);
                    END IF;
                ELSIF v_room < 1 THEN
                    v_answer.denial_code := c_codes[v_cap];
                END IF;
                IF v_answer.denial_code IS NOT NULL THEN
                    v_window := c_windows[v_cap];
                    v_start := CASE v_window WHEN 'month' THEN v_rows[v_tier].month_start
                                             WHEN 'day' THEN v_rows[v_tier].day_start
                                             ELSE v_rows[v_tier].minute_start END;
                    v_answer.denial_tier := v_kinds[v_tier];
                    v_answer.denial_cap := v_caps[v_base + v_cap];
                    v_answer.denial_used := v_used[v_base + v_cap];
                    v_answer.denial_held := v_caps[v_base + v_cap] - v_used[v_base + v_cap] - v_rooms[v_base + v_cap];
                    -- A slot of concurrency has no window: it is free when a call ends.
                    IF v_window IS NULL THEN
                        v_answer.retry_after_seconds := 1;
                    ELSE
                        v_answer.resets_at := window_end(v_window, v_start, v_zones[v_tier]);
                        v_answer.retry_after_seconds :=
                            greatest(1, ceil(extract(epoch FROM v_answer.resets_at - v_now)));
                    END IF;
                    EXIT;
                END IF;
            END LOOP;
            EXIT WHEN v_answer.denial_code IS NOT NULL;
        END LOOP;

        IF v_answer.denial_code IS NULL THEN
            v_cost := p_fixed_costs[i] + ceil((v_prompt::numeric * p_input_prices[i]
                                               + v_output::numeric * p_output_prices[i]) / 1000000);
            v_answer.admitted_at := v_now;
            v_answer.output_tokens := v_output;
            FOREACH v_tier IN ARRAY v_mine LOOP
                v_base := (v_tier - 1) * c_caps;
                FOR v_cap IN 1 .. v_limits LOOP
                    CONTINUE WHEN v_rooms[v_base + v_cap] = c_unlimited;
                    v_rooms[v_base + v_cap] := v_rooms[v_base + v_cap] - CASE
                        WHEN v_cap IN (1, 3, 5) THEN v_prompt + v_output
                        WHEN v_cap IN (2, 4) THEN v_cost
                        ELSE 1 END;
                END LOOP;
                v_base := (v_tier - 1) * 5;
                IF v_limits = c_caps THEN
                    v_added[v_base + 1] := v_added[v_base + 1] + 1;
                    v_added[v_base + 2] := v_added[v_base + 2] + v_prompt + v_output;
                    v_added[v_base + 3] := v_added[v_base + 3] + v_cost;
                END IF;
                v_added[v_base + 4] := v_added[v_base + 4] + v_prompt + v_output;
                v_added[v_base + 5] := v_added[v_base + 5] + v_cost;
                v_changed[v_tier] := true;
            END LOOP;
            INSERT INTO requests_open (
                request_id, admitted_at, instance_id, project_id, api_key_id, key_tier, minute_start, project_day,
                project_month, key_day, key_month, held_tokens, held_cost, output_tokens, details
            ) VALUES (
                p_request_ids[i], v_now, p_instance, p_project_ids[i], p_key_ids[i], v_key_at IS NOT NULL,
                CASE WHEN v_limits = c_caps THEN v_rows[v_project_at].minute_start END, v_rows[v_project_at].day_start, v_rows[v_project_at].month_start,
                v_rows[v_key_at].day_start, v_rows[v_key_at].month_start,
                v_prompt + v_output, v_cost, v_output, p_details[i]::jsonb
            );
        END IF;

        v_answer.minute_resets_in_ms := greatest(0, ceil(extract(epoch FROM
            v_rows[v_project_at].minute_start + interval '1 minute' - v_now) * 1000));
        FOREACH v_tier IN ARRAY v_mine LOOP
            v_base := (v_tier - 1) * c_caps;
            IF v_caps[v_base + 6] > 0 AND (v_answer.remaining_requests IS NULL
                                           OR v_rooms[v_base + 6] < v_answer.remaining_requests) THEN
                v_answer.limit_requests := v_caps[v_base + 6];
                v_answer.remaining_requests := greatest(v_rooms[v_base + 6], 0);
            END IF;
            IF v_caps[v_base + 5] > 0 AND (v_answer.remaining_tokens IS NULL
                                           OR v_rooms[v_base + 5] < v_answer.remaining_tokens) THEN
                v_answer.limit_tokens := v_caps[v_base + 5];
                v_answer.remaining_tokens := greatest(v_rooms[v_base + 5], 0);
            END IF;
            IF v_caps[v_base + 3] > 0 THEN
                v_answer.remaining_day_tokens := least(v_answer.remaining_day_tokens, greatest(v_rooms[v_base + 3], 0));
            END IF;
            IF v_caps[v_base + 1] > 0 THEN
                v_answer.remaining_month_tokens :=
                    least(v_answer.remaining_month_tokens, greatest(v_rooms[v_base + 1], 0));
            END IF;
        END LOOP;
        RETURN NEXT v_answer;
    END LOOP;

    FOR t IN 1 .. v_tiers LOOP
        CONTINUE WHEN NOT v_changed[t];
        v_row := v_rows[t];
        v_base := (t - 1) * 5;
        v_row.open_calls := v_row.open_calls + v_added[v_base + 1];
        v_row.minute_requests_held := v_row.minute_requests_held + v_added[v_base + 1];
        v_row.minute_tokens_held := v_row.minute_tokens_held + v_added[v_base + 2];
        v_row.minute_cost_held := v_row.minute_cost_held + v_added[v_base + 3];
        v_row.day_requests_held := v_row.day_requests_held + v_added[v_base + 1];
        v_row.day_tokens_held := v_row.day_tokens_held + v_added[v_base + 4];
        v_row.day_cost_held := v_row.day_cost_held + v_added[v_base + 5];
        v_row.month_requests_held := v_row.month_requests_held + v_added[v_base + 1];
        v_row.month_tokens_held := v_row.month_tokens_held + v_added[v_base + 4];
        v_row.month_cost_held := v_row.month_cost_held + v_added[v_base + 5];
        PERFORM store_tier(v_row);
    END LOOP;
END $$;
