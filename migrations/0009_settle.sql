-- Settlement: move what was held to what was used, write the log row, drop the open row. Idempotent by request id:
-- what has no open row any more was settled before and changes nothing.

-- One settled call against one tier's running row or, for windows that have closed since, against usage_counters. Work of
-- our own has no minute and holds no request.
CREATE TYPE settlement_v1 AS (
    tier          smallint,
    id            bigint,
    minute_start  timestamptz,
    day_start     timestamptz,
    month_start   timestamptz,
    held_tokens   bigint,
    held_cost     bigint,
    used_requests bigint,
    used_tokens   bigint,
    used_cost     bigint,
    excess_tokens bigint,
    excess_cost   bigint
);

CREATE FUNCTION settle_tier(p_tier smallint, p_id bigint, p_calls settlement_v1[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    v_row tier_state;
    v_sum record;
BEGIN
    SELECT * INTO v_row FROM tier_state WHERE tier = p_tier AND id = p_id ORDER BY generation DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(c.minute_start) AS calls,
           count(c.minute_start) FILTER (WHERE c.minute_start = v_row.minute_start) AS minute_calls,
           coalesce(sum(used_requests) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_requests,
           coalesce(sum(held_tokens) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_held_tokens,
           coalesce(sum(used_tokens) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_tokens,
           coalesce(sum(excess_tokens) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_excess_tokens,
           coalesce(sum(held_cost) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_held_cost,
           coalesce(sum(used_cost) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_cost,
           coalesce(sum(excess_cost) FILTER (WHERE c.minute_start = v_row.minute_start), 0) AS minute_excess_cost,
           count(c.minute_start) FILTER (WHERE c.day_start = v_row.day_start) AS day_calls,
           coalesce(sum(used_requests) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_requests,
           coalesce(sum(held_tokens) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_held_tokens,
           coalesce(sum(used_tokens) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_tokens,
           coalesce(sum(excess_tokens) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_excess_tokens,
           coalesce(sum(held_cost) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_held_cost,
           coalesce(sum(used_cost) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_cost,
           coalesce(sum(excess_cost) FILTER (WHERE c.day_start = v_row.day_start), 0) AS day_excess_cost,
           count(c.minute_start) FILTER (WHERE c.month_start = v_row.month_start) AS month_calls,
           coalesce(sum(used_requests) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_requests,
           coalesce(sum(held_tokens) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_held_tokens,
           coalesce(sum(used_tokens) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_tokens,
           coalesce(sum(excess_tokens) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_excess_tokens,
           coalesce(sum(held_cost) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_held_cost,
           coalesce(sum(used_cost) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_cost,
           coalesce(sum(excess_cost) FILTER (WHERE c.month_start = v_row.month_start), 0) AS month_excess_cost
      INTO v_sum
      FROM unnest(p_calls) c WHERE c.tier = p_tier AND c.id = p_id;

    v_row.open_calls := v_row.open_calls - v_sum.calls;
    v_row.minute_requests_held := v_row.minute_requests_held - v_sum.minute_calls;
    v_row.minute_requests_used := v_row.minute_requests_used + v_sum.minute_requests;
    v_row.minute_tokens_held := v_row.minute_tokens_held - v_sum.minute_held_tokens;
    v_row.minute_tokens_used := v_row.minute_tokens_used + v_sum.minute_tokens;
    v_row.minute_tokens_excess := v_row.minute_tokens_excess + v_sum.minute_excess_tokens;
    v_row.minute_cost_held := v_row.minute_cost_held - v_sum.minute_held_cost;
    v_row.minute_cost_used := v_row.minute_cost_used + v_sum.minute_cost;
    v_row.minute_cost_excess := v_row.minute_cost_excess + v_sum.minute_excess_cost;
    v_row.day_requests_held := v_row.day_requests_held - v_sum.day_calls;
    v_row.day_requests_used := v_row.day_requests_used + v_sum.day_requests;
    v_row.day_tokens_held := v_row.day_tokens_held - v_sum.day_held_tokens;
    v_row.day_tokens_used := v_row.day_tokens_used + v_sum.day_tokens;
    v_row.day_tokens_excess := v_row.day_tokens_excess + v_sum.day_excess_tokens;
    v_row.day_cost_held := v_row.day_cost_held - v_sum.day_held_cost;
    v_row.day_cost_used := v_row.day_cost_used + v_sum.day_cost;
    v_row.day_cost_excess := v_row.day_cost_excess + v_sum.day_excess_cost;
    v_row.month_requests_held := v_row.month_requests_held - v_sum.month_calls;
    v_row.month_requests_used := v_row.month_requests_used + v_sum.month_requests;
    v_row.month_tokens_held := v_row.month_tokens_held - v_sum.month_held_tokens;
    v_row.month_tokens_used := v_row.month_tokens_used + v_sum.month_tokens;
    v_row.month_tokens_excess := v_row.month_tokens_excess + v_sum.month_excess_tokens;
    v_row.month_cost_held := v_row.month_cost_held - v_sum.month_held_cost;
    v_row.month_cost_used := v_row.month_cost_used + v_sum.month_cost;
    v_row.month_cost_excess := v_row.month_cost_excess + v_sum.month_excess_cost;
    PERFORM store_tier(v_row);

    PERFORM close_window(p_tier, p_id, w.kind, w.start, sum(c.used_requests)::bigint, sum(c.used_tokens)::bigint,
                         sum(c.excess_tokens)::bigint, sum(c.used_cost)::bigint, sum(c.excess_cost)::bigint)
       FROM unnest(p_calls) c
            CROSS JOIN LATERAL (VALUES ('minute', c.minute_start, v_row.minute_start),
                                       ('day', c.day_start, v_row.day_start),
                                       ('month', c.month_start, v_row.month_start)) w (kind, start, running)
      WHERE c.tier = p_tier AND c.id = p_id AND w.start <> w.running
      GROUP BY w.kind, w.start
      ORDER BY w.kind, w.start;
END $$;

-- Settles a batch; one array element a call:
--   p_charged_requests 1, or 0 when the call is not to count (a fault of ours or the provider's before the first byte)
--   p_charged_tokens, p_charged_costs what is charged; what is above the hold goes to excess
--   p_entries          the log row's other columns (JSON, names as in request_logs)
-- Returns the ids it settled now.
CREATE FUNCTION settle_v1(
    p_request_ids uuid[], p_charged_requests bigint[], p_charged_tokens bigint[], p_charged_costs bigint[],
    p_entries text[]
) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_projects bigint[];
    v_keys     bigint[];
    v_open     requests_open[];
    v_calls    settlement_v1[];
    v_tier     record;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM set_config('lock_timeout', '1s', true);
    SELECT array_agg(DISTINCT project_id), array_agg(DISTINCT api_key_id) FILTER (WHERE key_tier)
      INTO v_projects, v_keys
      FROM requests_open WHERE request_id = ANY (p_request_ids);
    PERFORM FROM projects WHERE id = ANY (v_projects) ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM api_keys WHERE id = ANY (v_keys) ORDER BY id FOR NO KEY UPDATE;

    WITH gone AS (DELETE FROM requests_open WHERE request_id = ANY (p_request_ids) RETURNING requests_open)
    SELECT array_agg(gone.requests_open) INTO v_open FROM gone;
    IF v_open IS NULL THEN
        RETURN;
    END IF;

    SELECT array_agg(ROW(t.tier, t.id, o.minute_start, t.day_start, t.month_start, o.held_tokens, o.held_cost,
                         s.requests, least(s.tokens, o.held_tokens), least(s.cost, o.held_cost),
                         greatest(s.tokens - o.held_tokens, 0), greatest(s.cost - o.held_cost, 0))::settlement_v1)
      INTO v_calls
      FROM unnest(v_open) o
           JOIN unnest(p_request_ids, p_charged_requests, p_charged_tokens, p_charged_costs)
                s (request_id, requests, tokens, cost) USING (request_id)
           CROSS JOIN LATERAL (VALUES (1::smallint, o.project_id, o.project_day, o.project_month, true),
                                      (2::smallint, o.api_key_id, o.key_day, o.key_month, o.key_tier))
                t (tier, id, day_start, month_start, counts)
     WHERE t.counts;

    FOR v_tier IN SELECT DISTINCT c.tier, c.id FROM unnest(v_calls) c ORDER BY 1, 2 LOOP
        PERFORM settle_tier(v_tier.tier, v_tier.id, v_calls);
    END LOOP;

    INSERT INTO request_logs (
        request_id, admitted_at, instance_id, project_id, project_name, api_key_id, api_key_name, user_id, operation,
        route, model, provider_type, connection_id, status, error_code, state, streamed, prompt_tokens,
        completion_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, reported_cost, charged_requests,
        charged_tokens, charged_cost, cost_source, saved_tokens, latency_ms, first_byte_ms, attempts, rag_hits,
        document_id, tags
    )
    SELECT o.request_id, o.admitted_at, o.instance_id, o.project_id, p.name, o.api_key_id, k.name, k.owner_user_id,
           e.operation, e.route, e.model, e.provider_type, e.connection_id, e.status, e.error_code,
           coalesce(e.state, 'final'), coalesce(e.streamed, false), e.prompt_tokens, e.completion_tokens,
           e.cached_tokens, e.cache_write_tokens, e.reasoning_tokens, e.reported_cost, s.requests, s.tokens, s.cost,
           coalesce(e.cost_source, 'none'), coalesce(e.saved_tokens, 0), coalesce(e.latency_ms, 0), e.first_byte_ms,
           coalesce(e.attempts, 0), e.rag_hits, e.document_id, e.tags
      FROM unnest(v_open) o
           JOIN unnest(p_request_ids, p_charged_requests, p_charged_tokens, p_charged_costs, p_entries)
                s (request_id, requests, tokens, cost, entry) USING (request_id)
           CROSS JOIN LATERAL jsonb_to_record(o.details || s.entry::jsonb) AS e (
                operation text, route text, model text, provider_type text, connection_id bigint, status integer,
                error_code text, state text, streamed boolean, prompt_tokens bigint, completion_tokens bigint,
                cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint, reported_cost bigint,
                cost_source text, saved_tokens bigint, latency_ms bigint, first_byte_ms bigint, attempts integer,
                rag_hits integer, document_id bigint, tags jsonb)
           LEFT JOIN projects p ON p.id = o.project_id
           LEFT JOIN api_keys k ON k.id = o.api_key_id
    ON CONFLICT (admitted_at, request_id) DO NOTHING;

    RETURN QUERY SELECT o.request_id FROM unnest(v_open) o;
END $$;

-- Who a key is, for the edge, which may not read people or keys itself. No row means the key does not exist. The
-- previous secret of a rotated key works until its grace ends.
CREATE FUNCTION find_principal_v1(p_key_hash bytea) RETURNS TABLE (
    api_key_id bigint, kind text, name text, owner_user_id bigint, owner_role text, owner_active boolean,
    project_id bigint, default_project_id bigint, scopes text[], allowed_routes text[], revoked boolean,
    expired boolean, expires_in_seconds bigint, granted_projects bigint[]
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT k.id, k.kind, k.name, k.owner_user_id, u.role, u.active, k.project_id, k.default_project_id, k.scopes,
           k.allowed_routes, k.revoked_at IS NOT NULL, coalesce(k.expires_at <= clock_timestamp(), false),
           ceil(extract(epoch FROM least(k.expires_at,
                CASE WHEN k.key_hash <> p_key_hash THEN k.previous_valid_until END) - clock_timestamp()))::bigint,
           ARRAY(SELECT g.project_id FROM api_key_projects g WHERE g.api_key_id = k.id ORDER BY g.project_id)
      FROM api_keys k LEFT JOIN users u ON u.id = k.owner_user_id
     WHERE k.key_hash = p_key_hash
        OR (k.previous_hash = p_key_hash AND k.previous_valid_until > clock_timestamp())
$$;

-- Deletes a project with its routes, members and key. Null when there is none within reach of p_user_id, false when calls
-- are open or logged under it. The row that admission locks too is locked only after the log was searched: the search
-- that is repeated then finds at most what came in between, and nothing is admitted from there on.
CREATE FUNCTION delete_project(p_project_id bigint, p_user_id bigint, p_entry jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM projects WHERE id = p_project_id AND can_reach_project(id, p_user_id)) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM request_logs WHERE project_id = p_project_id) THEN
        RETURN false;
    END IF;
    PERFORM FROM projects WHERE id = p_project_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM requests_open WHERE project_id = p_project_id)
       OR EXISTS (SELECT FROM request_logs WHERE project_id = p_project_id) THEN
        RETURN false;
    END IF;
    DELETE FROM projects WHERE id = p_project_id;
    PERFORM record_change('project', p_project_id, p_entry);
    RETURN true;
END $$;
