-- Settlement, and what is done for calls whose process or whose commits were lost.

-- The windows an admission of that moment falls into, in the tier's calendar.
CREATE FUNCTION window_starts(p_at timestamptz, p_zone text, OUT minute_start timestamptz, OUT day_start timestamptz,
                              OUT month_start timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    minute_start := date_trunc('minute', p_at, 'UTC');
    day_start := date_trunc('day', p_at, p_zone);
    month_start := date_trunc('month', p_at, p_zone);
END $$;

-- Adds differences to the tiers of a call that has no open row, in the windows of its admission. The caller holds the
-- tiers' definition rows.
CREATE FUNCTION add_to_tiers_of_call(
    p_project_id bigint, p_key_id bigint, p_admitted_at timestamptz, p_calls bigint, p_tokens_held bigint,
    p_cost_held bigint, p_requests bigint, p_tokens bigint, p_cost bigint, p_tokens_excess bigint, p_cost_excess bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_tier   record;
    v_starts record;
    v_now    timestamptz := clock_timestamp();
BEGIN
    FOR v_tier IN
        SELECT 1::smallint AS tier, id, time_zone FROM projects WHERE id = p_project_id
        UNION ALL
        SELECT 2::smallint, id, time_zone FROM api_keys WHERE id = p_key_id AND kind = 'gateway'
        ORDER BY 1
    LOOP
        v_starts := window_starts(p_admitted_at, v_tier.time_zone);
        -- So that the running windows are the ones of now, and those of the admission running or closed.
        PERFORM tier_at(v_tier.tier, v_tier.id, v_tier.time_zone, v_now);
        PERFORM add_to_tier(v_tier.tier, v_tier.id, CASE WHEN p_key_id IS NOT NULL THEN v_starts.minute_start END,
                            v_starts.day_start, v_starts.month_start, p_calls, p_calls, p_tokens_held, p_cost_held,
                            p_requests, p_tokens, p_cost, p_tokens_excess, p_cost_excess);
    END LOOP;
END $$;

-- What a log row is made of beside ids, times and charges; see request_logs.
CREATE TYPE log_entry AS (
    operation text, route text, model text, provider_type text, connection_id bigint, status integer, error_code text,
    state text, streamed boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint,
    cache_write_tokens bigint, reasoning_tokens bigint, reported_cost bigint, cost_source text, saved_tokens bigint,
    latency_ms bigint, first_byte_ms bigint, attempts integer, rag_hits integer, document_id bigint, tags jsonb
);

-- A call as it goes to the log.
CREATE TYPE logged_call AS (
    request_id uuid, admitted_at timestamptz, instance_id uuid, project_id bigint, api_key_id bigint, requests bigint,
    tokens bigint, cost bigint, entry jsonb
);

-- Writes log rows; one that is there stays as it is. Returns how many were asked for.
CREATE FUNCTION log_calls(p_calls logged_call[]) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO request_logs (
        request_id, admitted_at, instance_id, project_id, project_name, api_key_id, api_key_name, user_id, operation,
        route, model, provider_type, connection_id, status, error_code, state, streamed, prompt_tokens,
        completion_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, reported_cost, charged_requests,
        charged_tokens, charged_cost, cost_source, saved_tokens, latency_ms, first_byte_ms, attempts, rag_hits,
        document_id, tags
    )
    SELECT c.request_id, c.admitted_at, c.instance_id, c.project_id, p.name, c.api_key_id, k.name, k.owner_user_id,
           coalesce(e.operation, 'unknown'), e.route, e.model, e.provider_type, e.connection_id, coalesce(e.status, 499),
           e.error_code, coalesce(e.state, 'final'), coalesce(e.streamed, false), e.prompt_tokens, e.completion_tokens,
           e.cached_tokens, e.cache_write_tokens, e.reasoning_tokens, e.reported_cost, c.requests, c.tokens, c.cost,
           coalesce(e.cost_source, 'none'), coalesce(e.saved_tokens, 0), coalesce(e.latency_ms, 0), e.first_byte_ms,
           coalesce(e.attempts, 0), e.rag_hits, e.document_id, e.tags
      FROM unnest(p_calls) c
           CROSS JOIN LATERAL jsonb_populate_record(NULL::log_entry, c.entry) e
           LEFT JOIN projects p ON p.id = c.project_id
           LEFT JOIN api_keys k ON k.id = c.api_key_id
    ON CONFLICT (admitted_at, request_id) DO NOTHING;
    RETURN cardinality(p_calls);
END $$;

-- From when on to look for the log row of a call. An admission that was not waited for may be unknown to its process, and
-- one that was tried again may have been logged by its first try, which a crash has left where it lost the second: then the
-- call is looked for in the days it can be of.
CREATE FUNCTION logged_since(p_admitted_at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT coalesce(p_admitted_at, clock_timestamp() - interval '1 day') - interval '1 day'
$$;

-- Settles one call that has no open row. An estimate made when its process was given up is replaced, once; with no row at
-- all, its admission or its settlement was lost in a crash, and it is charged directly; anything else was settled before.
-- The caller holds the tiers' definition rows. Returns whether anything changed.
CREATE FUNCTION settle_without_open_row(
    p_request_id uuid, p_admitted_at timestamptz, p_instance uuid, p_project_id bigint, p_key_id bigint,
    p_held_tokens bigint, p_held_cost bigint, p_requests bigint, p_tokens bigint, p_cost bigint, p_entry jsonb
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_log      record;
    v_admitted timestamptz := coalesce(p_admitted_at,
        clock_timestamp() - make_interval(secs => coalesce((p_entry ->> 'latency_ms')::numeric, 0) / 1000));
    v_used_tokens bigint;
    v_used_cost   bigint;
BEGIN
    SELECT admitted_at, error_code, charged_requests, charged_tokens, charged_cost INTO v_log FROM request_logs
     WHERE request_id = p_request_id AND admitted_at > logged_since(p_admitted_at);
    IF NOT FOUND THEN
        PERFORM add_to_tiers_of_call(p_project_id, p_key_id, v_admitted, 0, 0, 0, p_requests,
            least(p_tokens, p_held_tokens), least(p_cost, p_held_cost), greatest(p_tokens - p_held_tokens, 0),
            greatest(p_cost - p_held_cost, 0));
        PERFORM log_calls(ARRAY[ROW(p_request_id, v_admitted, p_instance, p_project_id, p_key_id, p_requests, p_tokens,
                                    p_cost, p_entry)::logged_call]);
        RETURN true;
    END IF;
    IF v_log.error_code IS DISTINCT FROM 'edge_lost' THEN
        RETURN false;
    END IF;
    -- The estimate charged exactly the hold.
    v_used_tokens := least(p_tokens, v_log.charged_tokens);
    v_used_cost := least(p_cost, v_log.charged_cost);
    PERFORM add_to_tiers_of_call(p_project_id, p_key_id, v_log.admitted_at, 0, 0, 0, p_requests - v_log.charged_requests,
        v_used_tokens - v_log.charged_tokens, v_used_cost - v_log.charged_cost, p_tokens - v_used_tokens,
        p_cost - v_used_cost);
    DELETE FROM request_logs WHERE request_id = p_request_id AND admitted_at = v_log.admitted_at;
    PERFORM log_calls(ARRAY[ROW(p_request_id, v_log.admitted_at, p_instance, p_project_id, p_key_id, p_requests, p_tokens,
                                p_cost, p_entry)::logged_call]);
    RETURN true;
END $$;

-- Takes back what was charged for calls when their process was given up: it is back and admits them anew. The caller holds
-- the tiers' definition rows.
CREATE FUNCTION forget_estimates(p_request_ids uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_log record;
BEGIN
    FOR v_log IN
        DELETE FROM request_logs
         WHERE request_id = ANY (p_request_ids) AND admitted_at > logged_since(NULL) AND error_code = 'edge_lost'
        RETURNING *
    LOOP
        PERFORM add_to_tiers_of_call(v_log.project_id, v_log.api_key_id, v_log.admitted_at, 0, 0, 0,
                                     -v_log.charged_requests, -v_log.charged_tokens, -v_log.charged_cost, 0, 0);
    END LOOP;
END $$;

-- Settles a batch; one array element a call:
--   p_admitted_us      when it was admitted, microseconds since 1970, or null when that is not known
--   p_held_tokens, p_held_costs  what it held
--   p_charged_requests 1, or 0 when the call is not to count (a fault of ours or the provider's before the first byte)
--   p_charged_tokens, p_charged_costs what is charged; what is above the hold goes to excess
--   p_entries          the log rows (an array of JSON objects, names as in request_logs)
-- Returns the ids that this changed: what was settled before stays as it is.
CREATE FUNCTION settle_v2(
    p_instance uuid, p_request_ids uuid[], p_admitted_us bigint[], p_project_ids bigint[], p_key_ids bigint[],
    p_held_tokens bigint[], p_held_costs bigint[], p_charged_requests bigint[], p_charged_tokens bigint[],
    p_charged_costs bigint[], p_entries jsonb
) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_share record;
    v_done  uuid[] := '{}';
BEGIN
    PERFORM begin_ledger_call();
    PERFORM lock_tiers(p_project_ids, p_key_ids);
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

-- Makes everything that was committed before it durable: the log is flushed in order. Returns the running epoch: if it is
-- another one than at the flush before, a crash may have lost what was committed in between. Where a database or a role is
-- set not to wait for its disk, this waits all the same; any other setting waits for it at least.
CREATE FUNCTION flush_v1() RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_logical_emit_message(true, 'ragmux', '');
    RETURN current_ledger_epoch();
END $$;

-- Puts calls back whose admission was lost in a crash: those that have neither an open row nor a log row. They run
-- already, so no cap refuses them. Arguments as in settle_v2 and admit_v2. Returns the running epoch: whoever has put its
-- calls back may admit under it.
CREATE FUNCTION reassert_v1(
    p_instance uuid, p_request_ids uuid[], p_admitted_us bigint[], p_project_ids bigint[], p_key_ids bigint[],
    p_held_tokens bigint[], p_held_costs bigint[], p_output_tokens bigint[], p_details jsonb
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_call record;
BEGIN
    PERFORM begin_ledger_call();
    PERFORM lock_tiers(p_project_ids, p_key_ids);
    FOR v_call IN
        SELECT r.*, p.time_zone AS project_zone, k.time_zone AS key_zone
          FROM (SELECT request_id, timestamptz 'epoch' + us * interval '1 microsecond' AS admitted_at, project_id, key_id,
                       held_tokens, held_cost, output_tokens, p_details -> (ordinality - 1)::integer AS details
                  FROM unnest(p_request_ids, p_admitted_us, p_project_ids, p_key_ids, p_held_tokens, p_held_costs,
                              p_output_tokens) WITH ORDINALITY
                       u (request_id, us, project_id, key_id, held_tokens, held_cost, output_tokens, ordinality)) r
               JOIN projects p ON p.id = r.project_id
               LEFT JOIN api_keys k ON k.id = r.key_id AND k.kind = 'gateway'
         WHERE NOT EXISTS (SELECT FROM requests_open o WHERE o.request_id = r.request_id)
           AND NOT EXISTS (SELECT FROM request_logs l
                            WHERE l.request_id = r.request_id AND l.admitted_at > logged_since(r.admitted_at))
    LOOP
        PERFORM add_to_tiers_of_call(v_call.project_id, v_call.key_id, v_call.admitted_at,
            CASE WHEN v_call.key_id IS NULL THEN 0 ELSE 1 END, v_call.held_tokens, v_call.held_cost, 0, 0, 0, 0, 0);
        INSERT INTO requests_open (
            request_id, admitted_at, instance_id, project_id, api_key_id, key_tier, minute_start, project_day,
            project_month, key_day, key_month, held_tokens, held_cost, output_tokens, details
        )
        SELECT v_call.request_id, v_call.admitted_at, p_instance, v_call.project_id, v_call.key_id,
               v_call.key_zone IS NOT NULL, CASE WHEN v_call.key_id IS NOT NULL THEN w.minute_start END, w.day_start,
               w.month_start, date_trunc('day', v_call.admitted_at, v_call.key_zone),
               date_trunc('month', v_call.admitted_at, v_call.key_zone), v_call.held_tokens, v_call.held_cost,
               v_call.output_tokens, v_call.details
          FROM window_starts(v_call.admitted_at, v_call.project_zone) w;
    END LOOP;
    RETURN current_ledger_epoch();
END $$;

-- The open calls of an instance that were admitted at least that long ago, by this clock.
CREATE FUNCTION list_open_calls_v1(p_instance uuid, p_age_ms bigint) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT request_id FROM requests_open
     WHERE instance_id = p_instance AND admitted_at < clock_timestamp() - p_age_ms * interval '1 millisecond'
$$;

-- Takes back admissions whose reply was lost: nothing was sent for them, so they leave no trace. Returns how many.
CREATE FUNCTION forget_calls_v1(p_request_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_projects bigint[];
    v_keys     bigint[];
BEGIN
    PERFORM begin_ledger_call();
    SELECT array_agg(project_id), array_agg(api_key_id) INTO v_projects, v_keys
      FROM requests_open WHERE request_id = ANY (p_request_ids);
    PERFORM lock_tiers(v_projects, v_keys);
    RETURN forget_open_calls(p_request_ids);
END $$;

-- Settles open calls of an instance that was given up, at most p_limit: used is what they held, and the log says that it
-- is an estimate. Refuses instances that may still be running. p_after_ms is how long an instance that left must be gone.
-- Returns how many.
CREATE FUNCTION give_up_v1(p_instance uuid, p_after_ms bigint, p_limit integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_ids      uuid[];
    v_projects bigint[];
    v_keys     bigint[];
    v_share    record;
    v_calls    bigint := 0;
BEGIN
    PERFORM begin_ledger_call();
    IF EXISTS (SELECT FROM instances WHERE id = p_instance AND state <> 'lost' AND NOT (
        state = 'left' AND heartbeat_at < clock_timestamp() - p_after_ms * interval '1 millisecond')) THEN
        RETURN 0;
    END IF;
    SELECT array_agg(o.request_id), array_agg(o.project_id), array_agg(o.api_key_id) INTO v_ids, v_projects, v_keys
      FROM (SELECT request_id, project_id, api_key_id FROM requests_open WHERE instance_id = p_instance LIMIT p_limit) o;
    PERFORM lock_tiers(v_projects, v_keys);
    FOR v_share IN
        WITH chosen AS (
            SELECT request_id FROM requests_open WHERE request_id = ANY (v_ids) FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM requests_open o USING chosen c WHERE o.request_id = c.request_id RETURNING o AS call
        ), logged AS (
            SELECT log_calls(array_agg(ROW((g.call).request_id, (g.call).admitted_at, (g.call).instance_id,
                       (g.call).project_id, (g.call).api_key_id, CASE WHEN (g.call).minute_start IS NULL THEN 0 ELSE 1 END,
                       (g.call).held_tokens, (g.call).held_cost, (g.call).details
                       || '{"status": 499, "error_code": "edge_lost", "state": "estimated"}'::jsonb)::logged_call)) AS rows
              FROM gone g
        )
        SELECT t.tier, t.id, (g.call).minute_start, t.day_start, t.month_start, count((g.call).minute_start) AS calls,
               sum((g.call).held_tokens)::bigint AS tokens, sum((g.call).held_cost)::bigint AS cost, count(*) AS rows
          FROM gone g
               CROSS JOIN LATERAL tiers_of_call(g.call) t
               CROSS JOIN logged l
         GROUP BY 1, 2, 3, 4, 5, l.rows
         ORDER BY 1, 2
    LOOP
        PERFORM add_to_tier(v_share.tier, v_share.id, v_share.minute_start, v_share.day_start, v_share.month_start,
            -v_share.calls, -v_share.calls, -v_share.tokens, -v_share.cost, v_share.calls, v_share.tokens, v_share.cost,
            0, 0);
        v_calls := v_calls + CASE v_share.tier WHEN 1 THEN v_share.rows ELSE 0 END;
    END LOOP;
    RETURN v_calls;
END $$;

-- Instances with open calls that were given up, or that left that long ago.
CREATE FUNCTION list_orphaned_instances_v1(p_after_ms bigint) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT o.instance_id FROM requests_open o LEFT JOIN instances i ON i.id = o.instance_id
     WHERE i.id IS NULL OR i.state = 'lost'
        OR (i.state = 'left' AND i.heartbeat_at < clock_timestamp() - p_after_ms * interval '1 millisecond')
$$;
