-- Admission beside a snapshot that is kept open for long. The tables of the ledger then are a few live rows among hundreds
-- of thousands of dead ones, and statistics taken of them say that one row costs as much to find as all of them: the
-- rows of admit_v2's update were then looked for by reading the whole index of tier_state, dead entries included, 16 ms a
-- call after ten minutes. They are written where they were read now, which leaves nothing to choose. Costs estimated from
-- such statistics are beyond where expressions are compiled, too, which takes longer than any of these statements.

-- As before, but for that.
CREATE OR REPLACE FUNCTION admit_v2(
    p_instance uuid, p_epoch uuid, p_again boolean, p_request_ids uuid[], p_project_ids bigint[], p_key_ids bigint[],
    p_prompt_tokens bigint[], p_output_tokens bigint[], p_min_output bigint[], p_input_prices bigint[],
    p_output_prices bigint[], p_fixed_costs bigint[], p_costs bigint[], p_details jsonb
) RETURNS SETOF admission_v2
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
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
            -- As find_refusals. A project's own key has no owner; if one had, it is looked at one by one.
            IF v_call.kind = 'project' AND v_call.project_id = v_project AND v_call.owner_user_id IS NULL THEN
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
        -- else changes it meanwhile, which would take the locks, so the rows are written where they were read.
        WITH room AS MATERIALIZED (
            SELECT s.place, s.tier, s.minute_start, s.day_start, s.month_start,
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
                   -- The newest generation first: behind it lie those that an old snapshot still keeps.
                   CROSS JOIN LATERAL (SELECT ctid AS place, * FROM tier_state WHERE tier = d.tier AND id = d.id
                                        ORDER BY generation DESC LIMIT 1) s
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
             WHERE s.ctid = r.place AND EXISTS (SELECT FROM hold)
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

ALTER FUNCTION settle_v2(uuid, uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], jsonb)
    SET jit = off;
ALTER FUNCTION reassert_v1(uuid, uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], jsonb) SET jit = off;
