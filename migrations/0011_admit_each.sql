-- Who may call, and admission request by request: what decides where a batch is of several keys or does not fit as a whole.

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

-- Why each key may not be used for the project beside it now, or null; work of our own has no key. Read after the locks,
-- so that a revocation counts from its commit on.
CREATE FUNCTION find_refusals(p_project_ids bigint[], p_key_ids bigint[], p_now timestamptz)
RETURNS TABLE (request bigint, refusal text)
LANGUAGE sql STABLE AS $$
    SELECT r.ordinality, CASE
               WHEN p.id IS NULL THEN 'project_not_granted'
               WHEN r.key_id IS NULL THEN NULL
               WHEN k.id IS NULL OR k.revoked_at IS NOT NULL THEN 'key_revoked'
               WHEN k.expires_at <= p_now THEN 'key_expired'
               WHEN k.owner_user_id IS NOT NULL AND NOT u.active THEN 'key_owner_inactive'
               WHEN k.kind = 'management' OR (k.kind = 'project' AND k.project_id <> r.project_id)
                    OR (k.kind = 'gateway' AND g.project_id IS NULL) THEN 'project_not_granted'
           END
      FROM unnest(p_project_ids, p_key_ids) WITH ORDINALITY r (project_id, key_id, ordinality)
           LEFT JOIN projects p ON p.id = r.project_id
           LEFT JOIN api_keys k ON k.id = r.key_id
           LEFT JOIN users u ON u.id = k.owner_user_id
           LEFT JOIN api_key_projects g ON g.api_key_id = r.key_id AND g.project_id = r.project_id
$$;

-- For processes of the version before: the same of one key.
CREATE OR REPLACE FUNCTION key_refusal(p_key_id bigint, p_project_id bigint, p_now timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT refusal FROM find_refusals(ARRAY[p_project_id], ARRAY[p_key_id], p_now)
$$;

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

    SELECT jsonb_object_agg(r.request, r.refusal) INTO v_refusals
      FROM find_refusals(p_project_ids, p_key_ids, v_now) r WHERE r.refusal IS NOT NULL;

    -- What the whole batch asks of each tier. A tier with room for all of it need not be looked at request by request.
    -- Whole from the start: an array begins at the first element that it is given, and unnest would hand the rows of calls
    -- that are admitted to those before them that are not.
    v_held_tokens := array_fill(NULL::bigint, ARRAY[v_requests]);
    v_held_costs := v_held_tokens; v_outputs := v_held_tokens;
    v_project_at := array_fill(NULL::integer, ARRAY[v_requests]);
    v_key_at := v_project_at;
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
