-- Giving a process up waits for nobody: what is locked is left for the next time, and nothing else waits for it.

-- Settles those of these calls that have an open row; arguments as in settle_v2. The caller holds the tiers' definition
-- rows. Returns the ids of those that had one.
CREATE FUNCTION settle_open_calls(
    p_request_ids uuid[], p_charged_requests bigint[], p_charged_tokens bigint[], p_charged_costs bigint[],
    p_entries jsonb
) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    v_share record;
    v_done  uuid[] := '{}';
BEGIN
    FOR v_share IN
        WITH gone AS (
            DELETE FROM requests_open o WHERE o.request_id = ANY (p_request_ids) RETURNING o AS call
        ), settled AS (
            SELECT (g.call).*, g.call, r.requests, r.tokens, r.cost, r.ordinality
              FROM gone g
                   JOIN unnest(p_request_ids, p_charged_requests, p_charged_tokens, p_charged_costs) WITH ORDINALITY
                        r (request_id, requests, tokens, cost, ordinality) ON r.request_id = (g.call).request_id
        ), logged AS (
            SELECT log_calls(array_agg(ROW(s.request_id, s.admitted_at, s.instance_id, s.project_id, s.api_key_id,
                       s.requests, s.tokens, s.cost, p_entries -> (s.ordinality - 1)::integer)::logged_call)) AS rows
              FROM settled s
        )
        SELECT t.tier, t.id, s.minute_start, t.day_start, t.month_start, count(s.minute_start) AS calls,
               sum(s.held_tokens)::bigint AS held_tokens, sum(s.held_cost)::bigint AS held_cost,
               sum(s.requests)::bigint AS requests, sum(least(s.tokens, s.held_tokens))::bigint AS tokens,
               sum(least(s.cost, s.held_cost))::bigint AS cost,
               sum(greatest(s.tokens - s.held_tokens, 0))::bigint AS excess_tokens,
               sum(greatest(s.cost - s.held_cost, 0))::bigint AS excess_cost,
               array_agg(s.request_id) AS request_ids
          FROM settled s
               CROSS JOIN LATERAL tiers_of_call(s.call) t
               -- Read, so that it is done.
               CROSS JOIN logged l
         GROUP BY 1, 2, 3, 4, 5, l.rows
         ORDER BY 1, 2
    LOOP
        PERFORM add_to_tier(v_share.tier, v_share.id, v_share.minute_start, v_share.day_start, v_share.month_start,
            -v_share.calls, -v_share.calls, -v_share.held_tokens, -v_share.held_cost, v_share.requests, v_share.tokens,
            v_share.cost, v_share.excess_tokens, v_share.excess_cost);
        IF v_share.tier = 1 THEN
            v_done := v_done || v_share.request_ids;
        END IF;
    END LOOP;
    RETURN v_done;
END $$;

-- As before, with what it does to open rows in a function of its own.
CREATE OR REPLACE FUNCTION settle_v2(
    p_instance uuid, p_request_ids uuid[], p_admitted_us bigint[], p_project_ids bigint[], p_key_ids bigint[],
    p_held_tokens bigint[], p_held_costs bigint[], p_charged_requests bigint[], p_charged_tokens bigint[],
    p_charged_costs bigint[], p_entries jsonb
) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_done uuid[];
BEGIN
    PERFORM begin_ledger_call();
    PERFORM lock_tiers(p_project_ids, p_key_ids);
    v_done := settle_open_calls(p_request_ids, p_charged_requests, p_charged_tokens, p_charged_costs, p_entries);
    IF cardinality(v_done) < cardinality(p_request_ids) THEN
        FOR i IN 1 .. cardinality(p_request_ids) LOOP
            IF p_request_ids[i] <> ALL (v_done) AND settle_without_open_row(
                p_request_ids[i], timestamptz 'epoch' + p_admitted_us[i] * interval '1 microsecond', p_instance,
                p_project_ids[i], p_key_ids[i], p_held_tokens[i], p_held_costs[i], p_charged_requests[i],
                p_charged_tokens[i], p_charged_costs[i], p_entries -> (i - 1)
            ) THEN
                v_done := v_done || p_request_ids[i];
            END IF;
        END LOOP;
    END IF;
    RETURN QUERY SELECT unnest(v_done);
END $$;

-- Settles open calls of an instance that was given up, at most p_limit and all of one project and key: used is what they
-- held, and the log says that it is an estimate. Refuses instances that may still be running. p_after_ms is how long an
-- instance that left must be gone. Returns how many; calls that somebody holds, or whose project or key, are left, and if
-- it comes upon no others it fails for the lock.
CREATE OR REPLACE FUNCTION give_up_v1(p_instance uuid, p_after_ms bigint, p_limit integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_owner record;
    v_lost  record;
    v_held  boolean := false;
BEGIN
    PERFORM begin_ledger_call();
    IF EXISTS (SELECT FROM instances WHERE id = p_instance AND state <> 'lost' AND NOT (
        state = 'left' AND heartbeat_at < clock_timestamp() - p_after_ms * interval '1 millisecond')) THEN
        RETURN 0;
    END IF;
    -- Admissions hold these rows for a millisecond or two; who holds them for longer is not waited for.
    PERFORM set_config('lock_timeout', '100ms', true);
    -- In another order each time, so that locked ones are not all that is ever tried.
    FOR v_owner IN
        SELECT project_id, api_key_id FROM requests_open WHERE instance_id = p_instance
         GROUP BY 1, 2 ORDER BY random() LIMIT 10
    LOOP
        BEGIN
            -- Tiers first, as everybody does, and those of one owner only: with two of them in one transaction a project
            -- would be locked after another one's key.
            PERFORM lock_tiers(ARRAY[v_owner.project_id], ARRAY[v_owner.api_key_id]);
            SELECT array_agg(c.request_id) AS request_ids,
                   array_agg(CASE WHEN c.minute_start IS NULL THEN 0 ELSE 1 END::bigint) AS requests,
                   array_agg(c.held_tokens) AS tokens, array_agg(c.held_cost) AS costs,
                   jsonb_agg(c.details || '{"status": 499, "error_code": "edge_lost", "state": "estimated"}'::jsonb) AS entries
              INTO v_lost
              FROM (SELECT * FROM requests_open
                     WHERE instance_id = p_instance AND project_id = v_owner.project_id
                       AND api_key_id IS NOT DISTINCT FROM v_owner.api_key_id
                     LIMIT p_limit FOR UPDATE SKIP LOCKED) c;
            IF v_lost.request_ids IS NOT NULL THEN
                RETURN cardinality(settle_open_calls(v_lost.request_ids, v_lost.requests, v_lost.tokens, v_lost.costs,
                                                     v_lost.entries));
            END IF;
            -- Undone with it: the locks of the tiers.
            RAISE lock_not_available;
        EXCEPTION WHEN lock_not_available THEN
            -- Unless they were settled meanwhile.
            v_held := v_held OR EXISTS (
                SELECT FROM requests_open WHERE instance_id = p_instance AND project_id = v_owner.project_id
                   AND api_key_id IS NOT DISTINCT FROM v_owner.api_key_id);
        END;
    END LOOP;
    IF v_held THEN
        RAISE EXCEPTION 'calls of a lost instance are locked' USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN 0;
END $$;

-- As before, and it locks the open rows by id: a project and one of its keys that change their zones at once meet at the
-- same rows, and would meet them in whatever order they lie in.
CREATE OR REPLACE FUNCTION carry_windows() RETURNS trigger
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
        PERFORM FROM requests_open WHERE project_id = NEW.id ORDER BY request_id FOR NO KEY UPDATE;
        UPDATE requests_open SET
            project_day = CASE WHEN project_day = v_day THEN v_row.day_start ELSE project_day END,
            project_month = CASE WHEN project_month = v_month THEN v_row.month_start ELSE project_month END
         WHERE project_id = NEW.id;
    ELSE
        PERFORM FROM requests_open WHERE api_key_id = NEW.id AND key_tier ORDER BY request_id FOR NO KEY UPDATE;
        UPDATE requests_open SET
            key_day = CASE WHEN key_day = v_day THEN v_row.day_start ELSE key_day END,
            key_month = CASE WHEN key_month = v_month THEN v_row.month_start ELSE key_month END
         WHERE api_key_id = NEW.id AND key_tier;
    END IF;
    RETURN NULL;
END $$;
