-- Admission, settlement and the rules for crashes, as the services call them from here on. admit_v1 and settle_v1 stay for
-- processes of the version before.

-- A crash of PostgreSQL, and a promotion of a standby, empties this table and nothing else does: whoever finds another
-- epoch than the one it knew has lost up to 0.6 s of asynchronous commits and puts its live calls back.
CREATE UNLOGGED TABLE ledger_epoch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch    uuid NOT NULL DEFAULT gen_random_uuid()
);

CREATE FUNCTION current_ledger_epoch() RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    v_epoch uuid;
BEGIN
    SELECT epoch INTO v_epoch FROM ledger_epoch;
    IF NOT FOUND THEN
        INSERT INTO ledger_epoch DEFAULT VALUES ON CONFLICT DO NOTHING;
        SELECT epoch INTO STRICT v_epoch FROM ledger_epoch;
    END IF;
    RETURN v_epoch;
END $$;

-- The start of the window that follows the one that starts at p_start, in the zone's calendar, as before, and right too
-- where clocks change at midnight: a day that begins at one o'clock ends at midnight, and where midnight comes twice the
-- first one ends the day.
CREATE OR REPLACE FUNCTION window_end(p_window text, p_start timestamptz, p_zone text) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_window = 'minute' THEN p_start + interval '1 minute'
                WHEN f.first < e.ends_at AND f.first AT TIME ZONE p_zone = n.midnight THEN f.first
                ELSE e.ends_at END
      FROM (SELECT date_trunc(p_window, p_start AT TIME ZONE p_zone) + ('1 ' || p_window)::interval) n (midnight)
           CROSS JOIN LATERAL (SELECT n.midnight AT TIME ZONE p_zone) e (ends_at)
           CROSS JOIN LATERAL (SELECT e.ends_at - interval '3 hours') b (before)
           -- When it would be midnight had no clock been changed since.
           CROSS JOIN LATERAL (SELECT b.before + (n.midnight - b.before AT TIME ZONE p_zone)) f (first)
$$;

-- Adds to a tier's running row, or to usage_counters for windows that have closed since; every number is a difference.
-- The caller holds the tier's definition row. What was held in a closed window was dropped when it closed. Without a
-- minute (work of our own) nothing is added to the minute.
CREATE FUNCTION add_to_tier(
    p_tier smallint, p_id bigint, p_minute timestamptz, p_day timestamptz, p_month timestamptz,
    p_calls bigint, p_requests_held bigint, p_tokens_held bigint, p_cost_held bigint, p_requests bigint,
    p_tokens bigint, p_cost bigint, p_tokens_excess bigint, p_cost_excess bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_row        tier_state;
    v_updates    integer;
    v_generation bigint;
    v_minute     timestamptz;
    v_day        timestamptz;
    v_month      timestamptz;
BEGIN
    UPDATE tier_state s SET
        updates = s.updates + 1,
        open_calls = s.open_calls + p_calls,
        minute_requests_held = s.minute_requests_held + CASE WHEN s.minute_start = p_minute THEN p_requests_held ELSE 0 END,
        minute_requests_used = s.minute_requests_used + CASE WHEN s.minute_start = p_minute THEN p_requests ELSE 0 END,
        minute_tokens_held = s.minute_tokens_held + CASE WHEN s.minute_start = p_minute THEN p_tokens_held ELSE 0 END,
        minute_tokens_used = s.minute_tokens_used + CASE WHEN s.minute_start = p_minute THEN p_tokens ELSE 0 END,
        minute_tokens_excess = s.minute_tokens_excess + CASE WHEN s.minute_start = p_minute THEN p_tokens_excess ELSE 0 END,
        minute_cost_held = s.minute_cost_held + CASE WHEN s.minute_start = p_minute THEN p_cost_held ELSE 0 END,
        minute_cost_used = s.minute_cost_used + CASE WHEN s.minute_start = p_minute THEN p_cost ELSE 0 END,
        minute_cost_excess = s.minute_cost_excess + CASE WHEN s.minute_start = p_minute THEN p_cost_excess ELSE 0 END,
        day_requests_held = s.day_requests_held + CASE WHEN s.day_start = p_day THEN p_requests_held ELSE 0 END,
        day_requests_used = s.day_requests_used + CASE WHEN s.day_start = p_day THEN p_requests ELSE 0 END,
        day_tokens_held = s.day_tokens_held + CASE WHEN s.day_start = p_day THEN p_tokens_held ELSE 0 END,
        day_tokens_used = s.day_tokens_used + CASE WHEN s.day_start = p_day THEN p_tokens ELSE 0 END,
        day_tokens_excess = s.day_tokens_excess + CASE WHEN s.day_start = p_day THEN p_tokens_excess ELSE 0 END,
        day_cost_held = s.day_cost_held + CASE WHEN s.day_start = p_day THEN p_cost_held ELSE 0 END,
        day_cost_used = s.day_cost_used + CASE WHEN s.day_start = p_day THEN p_cost ELSE 0 END,
        day_cost_excess = s.day_cost_excess + CASE WHEN s.day_start = p_day THEN p_cost_excess ELSE 0 END,
        month_requests_held = s.month_requests_held + CASE WHEN s.month_start = p_month THEN p_requests_held ELSE 0 END,
        month_requests_used = s.month_requests_used + CASE WHEN s.month_start = p_month THEN p_requests ELSE 0 END,
        month_tokens_held = s.month_tokens_held + CASE WHEN s.month_start = p_month THEN p_tokens_held ELSE 0 END,
        month_tokens_used = s.month_tokens_used + CASE WHEN s.month_start = p_month THEN p_tokens ELSE 0 END,
        month_tokens_excess = s.month_tokens_excess + CASE WHEN s.month_start = p_month THEN p_tokens_excess ELSE 0 END,
        month_cost_held = s.month_cost_held + CASE WHEN s.month_start = p_month THEN p_cost_held ELSE 0 END,
        month_cost_used = s.month_cost_used + CASE WHEN s.month_start = p_month THEN p_cost ELSE 0 END,
        month_cost_excess = s.month_cost_excess + CASE WHEN s.month_start = p_month THEN p_cost_excess ELSE 0 END
     WHERE s.tier = p_tier AND s.id = p_id
       AND s.generation = (SELECT max(g.generation) FROM tier_state g WHERE g.tier = p_tier AND g.id = p_id)
    RETURNING s.updates, s.generation, s.minute_start, s.day_start, s.month_start
      INTO v_updates, v_generation, v_minute, v_day, v_month;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_updates >= 500 THEN
        DELETE FROM tier_state WHERE tier = p_tier AND id = p_id AND generation = v_generation RETURNING * INTO v_row;
        v_row.generation := v_generation + 1;
        v_row.updates := 0;
        INSERT INTO tier_state SELECT (v_row).*;
    END IF;
    IF v_minute <> p_minute THEN
        PERFORM close_window(p_tier, p_id, 'minute', p_minute, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess);
    END IF;
    IF v_day <> p_day THEN
        PERFORM close_window(p_tier, p_id, 'day', p_day, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess);
    END IF;
    IF v_month <> p_month THEN
        PERFORM close_window(p_tier, p_id, 'month', p_month, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess);
    END IF;
END $$;

-- What every ledger call begins with: no row lock here waits for a disk (what makes it durable is the flush that follows a
-- settlement), and who holds a definition row for longer than a second makes the call unavailable, not late.
CREATE FUNCTION begin_ledger_call() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
END $$;

-- Locks the definition rows of tiers. Always projects first, then keys, each by id: everything that locks tiers does it
-- in this order.
CREATE FUNCTION lock_tiers(p_project_ids bigint[], p_key_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM projects WHERE id = ANY (p_project_ids) ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM api_keys WHERE id = ANY (p_key_ids) AND kind = 'gateway' ORDER BY id FOR NO KEY UPDATE;
END $$;

-- The tiers an open call counts in, with the windows it was admitted in.
CREATE FUNCTION tiers_of_call(
    p_call requests_open, OUT tier smallint, OUT id bigint, OUT day_start timestamptz, OUT month_start timestamptz
) RETURNS SETOF record
LANGUAGE sql IMMUTABLE AS $$
    SELECT 1::smallint, p_call.project_id, p_call.project_day, p_call.project_month
    UNION ALL
    SELECT 2::smallint, p_call.api_key_id, p_call.key_day, p_call.key_month WHERE p_call.key_tier
$$;

-- Gives back what these open calls hold, without a trace: nothing was sent for them. The caller holds their tiers'
-- definition rows. Returns how many there were.
CREATE FUNCTION forget_open_calls(p_request_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_share record;
    v_calls bigint := 0;
BEGIN
    FOR v_share IN
        WITH gone AS (DELETE FROM requests_open o WHERE o.request_id = ANY (p_request_ids) RETURNING o AS call)
        SELECT t.tier, t.id, (g.call).minute_start, t.day_start, t.month_start, count((g.call).minute_start) AS calls,
               sum((g.call).held_tokens)::bigint AS held_tokens, sum((g.call).held_cost)::bigint AS held_cost,
               count(*) AS rows
          FROM gone g CROSS JOIN LATERAL tiers_of_call(g.call) t
         GROUP BY 1, 2, 3, 4, 5
         ORDER BY 1, 2
    LOOP
        PERFORM add_to_tier(v_share.tier, v_share.id, v_share.minute_start, v_share.day_start, v_share.month_start,
                            -v_share.calls, -v_share.calls, -v_share.held_tokens, -v_share.held_cost, 0, 0, 0, 0, 0);
        v_calls := v_calls + CASE v_share.tier WHEN 1 THEN v_share.rows ELSE 0 END;
    END LOOP;
    RETURN v_calls;
END $$;

CREATE TYPE admission_v2 AS (
    request_id             uuid,
    admitted_us            bigint,
    output_tokens          bigint,
    denial_code            text,
    denial_tier            smallint,
    denial_cap             bigint,
    denial_used            bigint,
    denial_held            bigint,
    resets_us              bigint,
    retry_after_seconds    bigint,
    minute_resets_in_ms    bigint,
    limit_requests         bigint,
    remaining_requests     bigint,
    limit_tokens           bigint,
    remaining_tokens       bigint,
    remaining_day_tokens   bigint,
    remaining_month_tokens bigint,
    remaining_day_cost     bigint,
    remaining_month_cost   bigint,
    remaining_calls        bigint
);

-- The part of admit_v2 for batches of several keys, and for those that do not fit as a whole: request by request, in
-- arrival order. What an answer says is left is what its tiers' part of the batch leaves, where that fits as a whole.
CREATE FUNCTION admit_each(
    p_instance uuid, p_request_ids uuid[], p_project_ids bigint[], p_key_ids bigint[],
    p_prompt_tokens bigint[], p_output_tokens bigint[], p_min_output bigint[], p_input_prices bigint[],
    p_output_prices bigint[], p_fixed_costs bigint[], p_costs bigint[], p_details jsonb
) RETURNS SETOF admission_v2
LANGUAGE plpgsql AS $$
DECLARE
    c_unlimited constant bigint := 9000000000000000000;
    -- Caps of a tier, in the order of denial: the one that lasts longest is the one the client needs to hear.
    c_caps constant integer := 7;
    c_budgets constant integer := 4;
    c_codes constant text[] := ARRAY['budget_monthly', 'cost_monthly', 'budget_daily', 'cost_daily',
                                     'rate_limit_tpm', 'rate_limit_rpm', 'concurrency_limit'];
    v_requests    integer := cardinality(p_request_ids);
    v_now         timestamptz;
    v_now_us      bigint;
    v_minute_left bigint;
    -- One element a tier.
    v_tiers       integer := 0;
    v_kinds       smallint[];
    v_ids         bigint[];
    v_zones       text[];
    v_minutes     timestamptz[];
    v_days        timestamptz[];
    v_months      timestamptz[];
    v_is_tight    boolean[];
    v_calls       bigint[];   -- asked for, then admitted
    v_tokens      bigint[];   -- of calls with a minute
    v_cost        bigint[];
    v_own_tokens  bigint[];   -- of our own work
    v_own_cost    bigint[];
    -- Seven elements a tier.
    v_caps        bigint[];
    v_used        bigint[];
    v_rooms       bigint[];
    -- One element a request.
    v_project_at  integer[];
    v_key_at      integer[];
    v_held_tokens bigint[];
    v_held_costs  bigint[];
    v_outputs     bigint[];
    v_refusals    jsonb;
    v_definition  record;
    v_row         tier_state;
    v_minute      timestamptz;
    v_answer      admission_v2;
    v_mine        integer[];
    v_any_tight   boolean := false;
    v_admitted    integer := 0;
    v_limits      integer;
    v_base        integer;
    v_prompt      bigint;
    v_output      bigint;
    v_minimum     bigint;
    v_room        bigint;
    v_end         timestamptz;
    t             integer;
BEGIN
    PERFORM lock_tiers(p_project_ids, p_key_ids);
    FOR v_definition IN
        SELECT 1::smallint AS tier, id, time_zone, tokens_per_month, cost_per_month, tokens_per_day, cost_per_day,
               tokens_per_minute, requests_per_minute, concurrent_requests
          FROM projects WHERE id = ANY (p_project_ids)
        UNION ALL
        SELECT 2::smallint, id, time_zone, tokens_per_month, cost_per_month, tokens_per_day, cost_per_day,
               tokens_per_minute, requests_per_minute, concurrent_requests
          FROM api_keys WHERE id = ANY (p_key_ids) AND kind = 'gateway'
        ORDER BY 1, 2
    LOOP
        v_tiers := v_tiers + 1;
        v_kinds[v_tiers] := v_definition.tier;
        v_ids[v_tiers] := v_definition.id;
        v_zones[v_tiers] := v_definition.time_zone;
        v_caps := v_caps || ARRAY[
            v_definition.tokens_per_month, v_definition.cost_per_month, v_definition.tokens_per_day,
            v_definition.cost_per_day, v_definition.tokens_per_minute, v_definition.requests_per_minute,
            v_definition.concurrent_requests];
    END LOOP;
    v_now := clock_timestamp();
    v_now_us := extract(epoch FROM v_now) * 1000000;
    v_minute := date_trunc('minute', v_now, 'UTC');

    FOR t IN 1 .. v_tiers LOOP
        SELECT * INTO v_row FROM tier_state WHERE tier = v_kinds[t] AND id = v_ids[t] ORDER BY generation DESC LIMIT 1;
        IF NOT FOUND OR v_row.minute_start < v_minute OR v_row.day_start < date_trunc('day', v_now, v_zones[t])
           OR v_row.month_start < date_trunc('month', v_now, v_zones[t]) THEN
            v_row := tier_at(v_kinds[t], v_ids[t], v_zones[t], v_now);
        END IF;
        v_minutes[t] := v_row.minute_start;
        v_days[t] := v_row.day_start;
        v_months[t] := v_row.month_start;
        v_base := (t - 1) * c_caps;
        v_used := v_used || ARRAY[
            v_row.month_tokens_used + v_row.month_tokens_excess, v_row.month_cost_used + v_row.month_cost_excess,
            v_row.day_tokens_used + v_row.day_tokens_excess, v_row.day_cost_used + v_row.day_cost_excess,
            v_row.minute_tokens_used + v_row.minute_tokens_excess, v_row.minute_requests_used, 0];
        v_rooms := v_rooms || ARRAY[
            CASE WHEN v_caps[v_base + 1] > 0 THEN v_caps[v_base + 1] - v_used[v_base + 1] - v_row.month_tokens_held
                 ELSE c_unlimited END,
            CASE WHEN v_caps[v_base + 2] > 0 THEN v_caps[v_base + 2] - v_used[v_base + 2] - v_row.month_cost_held
                 ELSE c_unlimited END,
            CASE WHEN v_caps[v_base + 3] > 0 THEN v_caps[v_base + 3] - v_used[v_base + 3] - v_row.day_tokens_held
                 ELSE c_unlimited END,
            CASE WHEN v_caps[v_base + 4] > 0 THEN v_caps[v_base + 4] - v_used[v_base + 4] - v_row.day_cost_held
                 ELSE c_unlimited END,
            CASE WHEN v_caps[v_base + 5] > 0 THEN v_caps[v_base + 5] - v_used[v_base + 5] - v_row.minute_tokens_held
                 ELSE c_unlimited END,
            CASE WHEN v_caps[v_base + 6] > 0 THEN v_caps[v_base + 6] - v_used[v_base + 6] - v_row.minute_requests_held
                 ELSE c_unlimited END,
            CASE WHEN v_caps[v_base + 7] > 0 THEN v_caps[v_base + 7] - v_row.open_calls ELSE c_unlimited END];
    END LOOP;
    v_minute_left := CASE WHEN v_tiers > 0 THEN
        greatest(0, ceil(extract(epoch FROM v_minutes[1] + interval '1 minute' - v_now) * 1000)) END;

    SELECT jsonb_object_agg(a.ordinality, a.refusal) INTO v_refusals FROM (
        SELECT r.ordinality, CASE
                   WHEN p.id IS NULL THEN 'project_not_granted'
                   WHEN r.key_id IS NULL THEN NULL
                   WHEN k.id IS NULL OR k.revoked_at IS NOT NULL THEN 'key_revoked'
                   WHEN k.expires_at <= v_now THEN 'key_expired'
                   WHEN k.owner_user_id IS NOT NULL AND NOT u.active THEN 'key_owner_inactive'
                   WHEN k.kind = 'management' OR (k.kind = 'project' AND k.project_id <> r.project_id)
                        OR (k.kind = 'gateway' AND g.project_id IS NULL) THEN 'project_not_granted'
               END AS refusal
          FROM unnest(p_project_ids, p_key_ids) WITH ORDINALITY r (project_id, key_id, ordinality)
               LEFT JOIN projects p ON p.id = r.project_id
               LEFT JOIN api_keys k ON k.id = r.key_id
               LEFT JOIN users u ON u.id = k.owner_user_id
               LEFT JOIN api_key_projects g ON g.api_key_id = r.key_id AND g.project_id = r.project_id
    ) a WHERE a.refusal IS NOT NULL;

    -- What the whole batch asks of each tier. A tier with room for all of it need not be looked at request by request.
    v_calls := array_fill(0::bigint, ARRAY[v_tiers]);
    v_tokens := v_calls; v_cost := v_calls; v_own_tokens := v_calls; v_own_cost := v_calls;
    FOR i IN 1 .. v_requests LOOP
        IF i > 1 AND p_project_ids[i] = p_project_ids[i - 1] AND p_key_ids[i] IS NOT DISTINCT FROM p_key_ids[i - 1] THEN
            v_project_at[i] := v_project_at[i - 1];
            v_key_at[i] := v_key_at[i - 1];
        ELSE
            v_project_at[i] := NULL;
            v_key_at[i] := NULL;
            FOR t IN 1 .. v_tiers LOOP
                IF v_kinds[t] = 1 AND v_ids[t] = p_project_ids[i] THEN v_project_at[i] := t; END IF;
                IF v_kinds[t] = 2 AND v_ids[t] = p_key_ids[i] THEN v_key_at[i] := t; END IF;
            END LOOP;
            v_mine := array_remove(ARRAY[v_project_at[i], v_key_at[i]], NULL);
        END IF;
        FOREACH t IN ARRAY v_mine LOOP
            v_calls[t] := v_calls[t] + CASE WHEN p_key_ids[i] IS NULL THEN 0 ELSE 1 END;
            v_tokens[t] := v_tokens[t] + p_prompt_tokens[i] + p_output_tokens[i];
            v_cost[t] := v_cost[t] + p_costs[i];
        END LOOP;
    END LOOP;
    FOR t IN 1 .. v_tiers LOOP
        v_base := (t - 1) * c_caps;
        v_is_tight[t] := v_tokens[t] > least(v_rooms[v_base + 1], v_rooms[v_base + 3], v_rooms[v_base + 5])
            OR v_cost[t] > least(v_rooms[v_base + 2], v_rooms[v_base + 4])
            OR v_calls[t] > least(v_rooms[v_base + 6], v_rooms[v_base + 7])
            -- A spent window is for the walk to tell, whatever is asked.
            OR 0 >= least(v_rooms[v_base + 1], v_rooms[v_base + 3], v_rooms[v_base + 5]);
        IF v_is_tight[t] THEN
            v_any_tight := true;
        ELSE
            FOR v_cap IN 1 .. c_caps LOOP
                CONTINUE WHEN v_rooms[v_base + v_cap] = c_unlimited;
                v_rooms[v_base + v_cap] := v_rooms[v_base + v_cap] - CASE
                    WHEN v_cap IN (1, 3, 5) THEN v_tokens[t] WHEN v_cap IN (2, 4) THEN v_cost[t] ELSE v_calls[t] END;
            END LOOP;
        END IF;
    END LOOP;

    v_calls := array_fill(0::bigint, ARRAY[v_tiers]);
    v_tokens := v_calls; v_cost := v_calls;
    FOR i IN 1 .. v_requests LOOP
        IF v_refusals ? i::text THEN
            v_answer := NULL;
            v_answer.request_id := p_request_ids[i];
            v_answer.denial_code := v_refusals ->> i::text;
            RETURN NEXT v_answer;
            v_mine := NULL;
            CONTINUE;
        END IF;
        -- Callers like the one before have the same tiers, and where nothing is tight the same answer.
        IF v_mine IS NULL OR i = 1 OR v_any_tight OR p_project_ids[i] <> p_project_ids[i - 1]
           OR p_key_ids[i] IS DISTINCT FROM p_key_ids[i - 1] THEN
            v_mine := array_remove(ARRAY[v_project_at[i], v_key_at[i]], NULL);
            v_answer := NULL;
        END IF;
        v_limits := CASE WHEN p_key_ids[i] IS NULL THEN c_budgets ELSE c_caps END;
        v_prompt := p_prompt_tokens[i];
        v_output := p_output_tokens[i];
        v_held_costs[i] := p_costs[i];
        v_answer.request_id := p_request_ids[i];
        IF v_any_tight THEN
            v_minimum := least(p_min_output[i], v_output);
            <<tiers>>
            FOREACH t IN ARRAY v_mine LOOP
                CONTINUE WHEN NOT v_is_tight[t];
                v_base := (t - 1) * c_caps;
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
                            v_output := least(v_output, floor((v_room::numeric * 1000000
                                - v_prompt::numeric * p_input_prices[i]) / p_output_prices[i]));
                        END IF;
                    ELSIF v_cap IN (1, 3, 5) THEN
                        IF v_room - v_prompt < v_minimum OR v_room <= 0 THEN
                            v_answer.denial_code := c_codes[v_cap];
                        ELSE
                            v_output := least(v_output, v_room - v_prompt);
                        END IF;
                    ELSIF v_room < 1 THEN
                        v_answer.denial_code := c_codes[v_cap];
                    END IF;
                    IF v_answer.denial_code IS NOT NULL THEN
                        v_answer.denial_tier := v_kinds[t];
                        v_answer.denial_cap := v_caps[v_base + v_cap];
                        v_answer.denial_used := v_used[v_base + v_cap];
                        v_answer.denial_held := v_caps[v_base + v_cap] - v_used[v_base + v_cap] - v_rooms[v_base + v_cap];
                        -- A slot of concurrency has no window: it is free when a call ends.
                        v_answer.retry_after_seconds := 1;
                        IF v_cap < c_caps THEN
                            v_end := CASE
                                WHEN v_cap <= 2 THEN window_end('month', v_months[t], v_zones[t])
                                WHEN v_cap <= 4 THEN window_end('day', v_days[t], v_zones[t])
                                ELSE window_end('minute', v_minutes[t], v_zones[t]) END;
                            v_answer.resets_us := extract(epoch FROM v_end) * 1000000;
                            v_answer.retry_after_seconds := greatest(1, ceil(extract(epoch FROM v_end - v_now)));
                        END IF;
                        EXIT tiers;
                    END IF;
                END LOOP;
            END LOOP;
            IF v_answer.denial_code IS NULL AND v_output < p_output_tokens[i] THEN
                v_held_costs[i] := p_fixed_costs[i] + ceil((v_prompt::numeric * p_input_prices[i]
                                                            + v_output::numeric * p_output_prices[i]) / 1000000);
            END IF;
        END IF;

        IF v_answer.denial_code IS NULL THEN
            v_admitted := v_admitted + 1;
            v_held_tokens[i] := v_prompt + v_output;
            v_outputs[i] := v_output;
            FOREACH t IN ARRAY v_mine LOOP
                IF v_limits = c_caps THEN
                    v_calls[t] := v_calls[t] + 1;
                    v_tokens[t] := v_tokens[t] + v_held_tokens[i];
                    v_cost[t] := v_cost[t] + v_held_costs[i];
                ELSE
                    v_own_tokens[t] := v_own_tokens[t] + v_held_tokens[i];
                    v_own_cost[t] := v_own_cost[t] + v_held_costs[i];
                END IF;
                IF v_is_tight[t] THEN
                    v_base := (t - 1) * c_caps;
                    FOR v_cap IN 1 .. v_limits LOOP
                        CONTINUE WHEN v_rooms[v_base + v_cap] = c_unlimited;
                        v_rooms[v_base + v_cap] := v_rooms[v_base + v_cap] - CASE
                            WHEN v_cap IN (1, 3, 5) THEN v_held_tokens[i]
                            WHEN v_cap IN (2, 4) THEN v_held_costs[i] ELSE 1 END;
                    END LOOP;
                END IF;
            END LOOP;
            v_answer.admitted_us := v_now_us;
            v_answer.output_tokens := v_output;
        END IF;
        IF v_answer.minute_resets_in_ms IS NULL THEN
            v_answer.minute_resets_in_ms := v_minute_left;
            FOREACH t IN ARRAY v_mine LOOP
                v_base := (t - 1) * c_caps;
                v_room := greatest(v_rooms[v_base + 6], 0);
                IF v_room < c_unlimited AND v_room < coalesce(v_answer.remaining_requests, c_unlimited) THEN
                    v_answer.limit_requests := v_caps[v_base + 6];
                    v_answer.remaining_requests := v_room;
                END IF;
                v_room := greatest(v_rooms[v_base + 5], 0);
                IF v_room < c_unlimited AND v_room < coalesce(v_answer.remaining_tokens, c_unlimited) THEN
                    v_answer.limit_tokens := v_caps[v_base + 5];
                    v_answer.remaining_tokens := v_room;
                END IF;
                v_answer.remaining_month_tokens := least(v_answer.remaining_month_tokens,
                    nullif(greatest(v_rooms[v_base + 1], 0), c_unlimited));
                v_answer.remaining_month_cost := least(v_answer.remaining_month_cost,
                    nullif(greatest(v_rooms[v_base + 2], 0), c_unlimited));
                v_answer.remaining_day_tokens := least(v_answer.remaining_day_tokens,
                    nullif(greatest(v_rooms[v_base + 3], 0), c_unlimited));
                v_answer.remaining_day_cost := least(v_answer.remaining_day_cost,
                    nullif(greatest(v_rooms[v_base + 4], 0), c_unlimited));
                v_answer.remaining_calls := least(v_answer.remaining_calls,
                    nullif(greatest(v_rooms[v_base + 7], 0), c_unlimited));
            END LOOP;
        END IF;
        RETURN NEXT v_answer;
    END LOOP;

    IF v_admitted = 0 THEN
        RETURN;
    END IF;
    INSERT INTO requests_open (
        request_id, admitted_at, instance_id, project_id, api_key_id, key_tier, minute_start, project_day,
        project_month, key_day, key_month, held_tokens, held_cost, output_tokens, details
    )
    SELECT r.request_id, v_now, p_instance, r.project_id, r.key_id, r.key_at IS NOT NULL,
           CASE WHEN r.key_id IS NOT NULL THEN v_minutes[r.project_at] END, v_days[r.project_at], v_months[r.project_at],
           v_days[r.key_at], v_months[r.key_at], r.held_tokens, r.held_cost, r.output_tokens,
           p_details -> (r.ordinality - 1)::integer
      FROM unnest(p_request_ids, p_project_ids, p_key_ids, v_project_at, v_key_at, v_held_tokens, v_held_costs, v_outputs)
           WITH ORDINALITY
           r (request_id, project_id, key_id, project_at, key_at, held_tokens, held_cost, output_tokens, ordinality)
     WHERE r.held_tokens IS NOT NULL;
    FOR t IN 1 .. v_tiers LOOP
        CONTINUE WHEN v_calls[t] = 0 AND v_own_tokens[t] = 0 AND v_own_cost[t] = 0;
        IF v_calls[t] > 0 THEN
            PERFORM add_to_tier(v_kinds[t], v_ids[t], v_minutes[t], v_days[t], v_months[t], v_calls[t], v_calls[t],
                                v_tokens[t], v_cost[t], 0, 0, 0, 0, 0);
        END IF;
        IF v_own_tokens[t] > 0 OR v_own_cost[t] > 0 THEN
            PERFORM add_to_tier(v_kinds[t], v_ids[t], NULL, v_days[t], v_months[t], 0, 0,
                                v_own_tokens[t], v_own_cost[t], 0, 0, 0, 0, 0);
        END IF;
    END LOOP;
END $$;

-- Admits or denies a batch, in arrival order: each request is measured against what the admitted ones before it left,
-- and a denied one takes nothing from those after it. All arrays have one element a request:
--   p_key_ids       the API key, null for work of our own (ingestion), which only budgets of days and months limit
--   p_prompt_tokens what is certain to be charged as prompt
--   p_output_tokens the output wanted at most (times n); it is clipped to the tightest window's room
--   p_min_output    less room than this many output tokens is a denial
--   p_input_prices, p_output_prices  nano-USD per million tokens, the dearest of the route
--   p_fixed_costs   nano-USD that do not depend on tokens
--   p_costs         nano-USD of the request with its whole output
--   p_details       what the log row needs if this process never settles the call (an array of JSON objects)
-- Times are microseconds since 1970. p_again says that an earlier try's outcome is unknown: what it took is given back
-- first. SQLSTATE RM001: p_epoch is not the running one; RM002: the instance was given up.
--
-- The plans are made once, for tables that are small then and full of dead rows later: only index scans stay short, and
-- only plain ones remember which entries are dead.
CREATE FUNCTION admit_v2(
    p_instance uuid, p_epoch uuid, p_again boolean, p_request_ids uuid[], p_project_ids bigint[], p_key_ids bigint[],
    p_prompt_tokens bigint[], p_output_tokens bigint[], p_min_output bigint[], p_input_prices bigint[],
    p_output_prices bigint[], p_fixed_costs bigint[], p_costs bigint[], p_details jsonb
) RETURNS SETOF admission_v2
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_call    record;
    v_calls   integer := cardinality(p_request_ids);
    v_project bigint := p_project_ids[1];
    v_key     bigint := p_key_ids[1];
    v_tokens  bigint := p_prompt_tokens[1] + p_output_tokens[1];
    v_cost    bigint := p_costs[1];
    v_now     timestamptz;
    v_tiers   integer;
    v_held    record;
    v_answer  admission_v2;
BEGIN
    -- As begin_ledger_call; each statement less is felt here.
    SELECT set_config('synchronous_commit', 'off', true) AS commits, set_config('lock_timeout', '1s', true) AS waits,
           EXISTS (SELECT FROM ledger_epoch WHERE epoch = p_epoch) AS same_epoch,
           EXISTS (SELECT FROM instances WHERE id = p_instance AND state = 'lost') AS instance_lost
      INTO v_call;
    IF NOT v_call.same_epoch THEN
        RAISE EXCEPTION 'the ledger may have lost commits since' USING ERRCODE = 'RM001';
    END IF;
    IF v_call.instance_lost THEN
        RAISE EXCEPTION 'the instance was given up' USING ERRCODE = 'RM002';
    END IF;
    IF p_again THEN
        PERFORM lock_tiers(p_project_ids, p_key_ids);
        PERFORM forget_open_calls(p_request_ids);
        PERFORM forget_estimates(p_request_ids);
    END IF;

    -- The calls of one key with room for all of them need not be looked at one by one.
    IF v_calls > 1 THEN
        SELECT CASE WHEN min(r.project_id) = max(r.project_id) AND min(r.key_id) = max(r.key_id)
                         AND count(r.key_id) = count(*) THEN min(r.key_id) END,
               sum(r.prompt + r.output), sum(r.cost)
          INTO v_key, v_tokens, v_cost
          FROM unnest(p_project_ids, p_key_ids, p_prompt_tokens, p_output_tokens, p_costs)
               r (project_id, key_id, prompt, output, cost);
    END IF;
    IF v_key IS NOT NULL THEN
        PERFORM FROM projects WHERE id = v_project FOR NO KEY UPDATE;
        SELECT kind, project_id, owner_user_id, revoked_at, expires_at INTO v_call
          FROM api_keys WHERE id = v_key FOR NO KEY UPDATE;
        v_now := clock_timestamp();
        IF v_call.revoked_at IS NULL AND (v_call.expires_at > v_now) IS NOT FALSE THEN
            IF v_call.kind = 'project' AND v_call.project_id = v_project THEN
                v_tiers := 1;
            ELSIF v_call.kind = 'gateway' THEN
                SELECT 2 INTO v_tiers FROM api_key_projects g
                 WHERE g.api_key_id = v_key AND g.project_id = v_project
                   AND NOT EXISTS (SELECT FROM users u WHERE u.id = v_call.owner_user_id AND NOT u.active);
            END IF;
        END IF;
    END IF;
    IF v_tiers IS NOT NULL THEN
        -- What the tiers have is read and written in one statement, which changes nothing unless both have room. Nobody
        -- else changes it meanwhile: that takes the locks.
        WITH room AS MATERIALIZED (
            SELECT s.tier, s.id, s.generation, s.minute_start, s.day_start, s.month_start,
                   CASE WHEN d.requests_per_minute > 0 THEN
                       ARRAY[d.requests_per_minute - s.minute_requests_used - s.minute_requests_held - v_calls,
                             d.requests_per_minute] END AS requests,
                   CASE WHEN d.tokens_per_minute > 0 THEN
                       ARRAY[d.tokens_per_minute - s.minute_tokens_used - s.minute_tokens_excess - s.minute_tokens_held
                             - v_tokens, d.tokens_per_minute] END AS minute_tokens,
                   nullif(d.tokens_per_day, 0) - s.day_tokens_used - s.day_tokens_excess - s.day_tokens_held - v_tokens
                       AS day_tokens,
                   nullif(d.tokens_per_month, 0) - s.month_tokens_used - s.month_tokens_excess - s.month_tokens_held
                       - v_tokens AS month_tokens,
                   nullif(d.cost_per_day, 0) - s.day_cost_used - s.day_cost_excess - s.day_cost_held - v_cost AS day_cost,
                   nullif(d.cost_per_month, 0) - s.month_cost_used - s.month_cost_excess - s.month_cost_held - v_cost
                       AS month_cost,
                   nullif(d.concurrent_requests, 0) - s.open_calls - v_calls AS calls
              FROM (SELECT 1::smallint AS tier, id, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
                           tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
                      FROM projects WHERE id = v_project
                    UNION ALL
                    SELECT 2::smallint, id, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
                           tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
                      FROM api_keys WHERE id = v_key AND kind = 'gateway') d
                   JOIN tier_state s ON s.tier = d.tier AND s.id = d.id
             WHERE s.updates < 500 AND s.minute_start >= date_trunc('minute', v_now, 'UTC')
               AND s.day_start >= date_trunc('day', v_now, d.time_zone)
               AND s.month_start >= date_trunc('month', v_now, d.time_zone)
        ), hold AS MATERIALIZED (
            -- Both tiers' windows, and the least that is left with the cap it is left of. A spent window has no room for
            -- calls that ask for nothing either.
            SELECT min(minute_start) FILTER (WHERE tier = 1) AS minute_start,
                   min(day_start) FILTER (WHERE tier = 1) AS project_day,
                   min(month_start) FILTER (WHERE tier = 1) AS project_month,
                   min(day_start) FILTER (WHERE tier = 2) AS key_day,
                   min(month_start) FILTER (WHERE tier = 2) AS key_month,
                   min(requests) AS requests, min(minute_tokens) AS minute_tokens, min(day_tokens) AS day_tokens,
                   min(month_tokens) AS month_tokens, min(day_cost) AS day_cost, min(month_cost) AS month_cost,
                   min(calls) AS calls
              FROM room
            HAVING count(*) = v_tiers AND coalesce((min(requests))[1], 0) >= 0 AND coalesce(min(calls), 0) >= 0
               AND coalesce(least((min(minute_tokens))[1], min(day_tokens), min(month_tokens)), 1)
                   >= CASE WHEN v_tokens > 0 THEN 0 ELSE 1 END
               AND coalesce(least(min(day_cost), min(month_cost)), 0) >= 0
        ), held AS (
            UPDATE tier_state s SET
                updates = s.updates + 1, open_calls = s.open_calls + v_calls,
                minute_requests_held = s.minute_requests_held + v_calls,
                minute_tokens_held = s.minute_tokens_held + v_tokens, minute_cost_held = s.minute_cost_held + v_cost,
                day_requests_held = s.day_requests_held + v_calls, day_tokens_held = s.day_tokens_held + v_tokens,
                day_cost_held = s.day_cost_held + v_cost,
                month_requests_held = s.month_requests_held + v_calls,
                month_tokens_held = s.month_tokens_held + v_tokens, month_cost_held = s.month_cost_held + v_cost
              FROM room r
             WHERE s.tier = r.tier AND s.id = r.id AND s.generation = r.generation AND EXISTS (SELECT FROM hold)
        ), opened AS (
            INSERT INTO requests_open (
                request_id, admitted_at, instance_id, project_id, api_key_id, key_tier, minute_start, project_day,
                project_month, key_day, key_month, held_tokens, held_cost, output_tokens, details
            )
            SELECT r.request_id, v_now, p_instance, v_project, v_key, v_tiers = 2, h.minute_start, h.project_day,
                   h.project_month, h.key_day, h.key_month, r.prompt + r.output, r.cost, r.output,
                   p_details -> (r.ordinality - 1)::integer
              FROM hold h, unnest(p_request_ids, p_prompt_tokens, p_output_tokens, p_costs)
                   WITH ORDINALITY r (request_id, prompt, output, cost, ordinality)
        )
        SELECT * INTO v_held FROM hold;
        IF FOUND THEN
            v_answer := ROW(NULL, extract(epoch FROM v_now) * 1000000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                greatest(0, ceil(extract(epoch FROM v_held.minute_start + interval '1 minute' - v_now) * 1000)),
                v_held.requests[2], v_held.requests[1], v_held.minute_tokens[2], v_held.minute_tokens[1],
                v_held.day_tokens, v_held.month_tokens, v_held.day_cost, v_held.month_cost, v_held.calls);
            FOR i IN 1 .. v_calls LOOP
                v_answer.request_id := p_request_ids[i];
                v_answer.output_tokens := p_output_tokens[i];
                RETURN NEXT v_answer;
            END LOOP;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM admit_each(p_instance, p_request_ids, p_project_ids, p_key_ids, p_prompt_tokens,
        p_output_tokens, p_min_output, p_input_prices, p_output_prices, p_fixed_costs, p_costs, p_details);
END $$;

-- Who a key is, as find_principal_v1, and whether it has limits and a budget of money of its own: a call that nothing
-- limits need not wait for its admission.
CREATE FUNCTION find_principal_v2(p_key_hash bytea) RETURNS TABLE (
    api_key_id bigint, kind text, name text, owner_user_id bigint, owner_role text, owner_active boolean,
    project_id bigint, default_project_id bigint, scopes text[], allowed_routes text[], revoked boolean,
    expired boolean, expires_in_seconds bigint, granted_projects bigint[], has_limits boolean, has_cost_budget boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT p.*, k.kind = 'gateway' AND greatest(k.requests_per_minute, k.tokens_per_minute, k.tokens_per_day,
               k.tokens_per_month, k.cost_per_day, k.cost_per_month, k.concurrent_requests) > 0,
           k.kind = 'gateway' AND greatest(k.cost_per_day, k.cost_per_month) > 0
      FROM find_principal_v1(p_key_hash) p JOIN api_keys k ON k.id = p.api_key_id
$$;
