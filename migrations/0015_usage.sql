-- What the ledger is summed up to: usage by day and denials by minute, and what a caller may read of its own usage.

-- One row for a project, key and model of a UTC day with an empty tag, and one beside it for each tag of its calls (so
-- rows of different tags must not be added up). Names are copies, for these rows outlive the log, projects and keys.
-- "number" only tells rows of one project and day apart.
CREATE TABLE usage_rollups (
    day               date NOT NULL,
    project_id        bigint NOT NULL,
    number            bigint NOT NULL,
    project_name      text,
    api_key_id        bigint,
    api_key_name      text,
    user_id           bigint,
    model             text,
    tag_key           text NOT NULL,
    tag_value         text NOT NULL,
    requests          bigint NOT NULL,
    errors            bigint NOT NULL,
    estimated         bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    saved_tokens      bigint NOT NULL,
    reported_cost     bigint NOT NULL,
    charged_requests  bigint NOT NULL,
    charged_tokens    bigint NOT NULL,
    charged_cost      bigint NOT NULL,
    PRIMARY KEY (day, project_id, number)
);
CREATE INDEX usage_rollups_tag ON usage_rollups (project_id, tag_key, day);

-- Until when settled calls are in the rollups.
CREATE TABLE usage_rollup_state (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    settled_until timestamptz NOT NULL
);
INSERT INTO usage_rollup_state (settled_until) VALUES ('-infinity');

-- Finds the days that were settled into. Calls are settled in the order of their rows, near enough, so a few bytes a
-- range of pages do, and a settlement pays next to nothing for them.
CREATE INDEX request_logs_settled ON request_logs USING brin (settled_at) WITH (pages_per_range = 32, autosummarize = on);

-- The days (UTC) with calls that were settled since the rollups were last brought up to date, and up to when they will
-- be once all of them are rolled up. The overlap is far more than a settlement's transaction can last, so what was not
-- yet committed then is found the next time.
CREATE FUNCTION due_usage_days_v1(OUT settled_until timestamptz, OUT days date[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_since     timestamptz;
    v_partition record;
    v_found     boolean;
BEGIN
    settled_until := clock_timestamp();
    SELECT s.settled_until - interval '5 minutes' INTO v_since FROM usage_rollup_state s;
    SELECT coalesce(array_agg(DISTINCT (d.admitted_at AT TIME ZONE 'UTC')::date), '{}') INTO days
      FROM ONLY request_logs_default d WHERE d.settled_at >= v_since;
    FOR v_partition IN
        SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') AS day
          FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'request_logs'::regclass AND c.relname ~ '^request_logs_[0-9]{8}$'
         ORDER BY 1
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE settled_at >= $1)', v_partition.relname)
           INTO v_found USING v_since;
        IF v_found THEN
            days := array_append(days, v_partition.day);
        END IF;
    END LOOP;
END $$;

-- Computes the rollups of one day anew from its log rows. False, and nothing is changed, when another process is
-- computing any day now. A day older than the log is left as it is: its rows are gone, and those that come late to it
-- would replace all that it had. Of a project's day the 100 most used tag keys are kept, and of a key the 1,000 most used
-- values; calls with other values count under the value "(other)".
CREATE FUNCTION roll_up_usage_day_v1(p_day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_table text := 'request_logs_' || to_char(p_day, 'YYYYMMDD');
    v_first text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(advisory_class(), 4) THEN
        RETURN false;
    END IF;
    IF NOT table_exists(v_table) THEN
        SELECT min(c.relname) INTO v_first
          FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'request_logs'::regclass AND c.relname ~ '^request_logs_[0-9]{8}$';
        IF v_table < v_first IS NOT FALSE OR p_day NOT BETWEEN CURRENT_DATE - 400 AND CURRENT_DATE + 31 THEN
            RETURN true;
        END IF;
        PERFORM ensure_log_day(p_day);
    END IF;
    DELETE FROM usage_rollups WHERE day = p_day;
    EXECUTE format($sql$
        WITH groups AS (
            SELECT l.project_id, l.api_key_id, l.model, t.tag_key, t.tag_value,
                   max(l.project_name) AS project_name, max(l.api_key_name) AS api_key_name, max(l.user_id) AS user_id,
                   count(*) AS requests, count(*) FILTER (WHERE l.status >= 400) AS errors,
                   count(*) FILTER (WHERE l.state = 'estimated') AS estimated,
                   sum(l.prompt_tokens) AS prompt_tokens, sum(l.completion_tokens) AS completion_tokens,
                   sum(l.cached_tokens) AS cached_tokens, sum(l.saved_tokens) AS saved_tokens,
                   sum(l.reported_cost) AS reported_cost, sum(l.charged_requests) AS charged_requests,
                   sum(l.charged_tokens) AS charged_tokens, sum(l.charged_cost) AS charged_cost
              FROM %I l CROSS JOIN LATERAL (
                   SELECT '' AS tag_key, '' AS tag_value
                    UNION ALL
                   SELECT e.key, coalesce(e.value, '')
                     FROM jsonb_each_text(CASE jsonb_typeof(l.tags) WHEN 'object' THEN l.tags ELSE '{}' END) e
                    WHERE e.key <> '') t
             GROUP BY 1, 2, 3, 4, 5
        ), used AS (
            SELECT project_id, tag_key, tag_value, sum(requests) AS requests FROM groups GROUP BY 1, 2, 3
        ), keys AS (
            SELECT project_id, tag_key,
                   row_number() OVER (PARTITION BY project_id
                                      ORDER BY tag_key <> '', sum(requests) DESC, tag_key) - 1 AS place
              FROM used GROUP BY 1, 2
        ), tags AS (
            SELECT u.project_id, u.tag_key, u.tag_value,
                   row_number() OVER (PARTITION BY u.project_id, u.tag_key
                                      ORDER BY u.requests DESC, u.tag_value) AS place
              FROM used u JOIN keys k ON k.project_id = u.project_id AND k.tag_key = u.tag_key AND k.place <= 100
        )
        INSERT INTO usage_rollups (
            day, project_id, number, project_name, api_key_id, api_key_name, user_id, model, tag_key, tag_value,
            requests, errors, estimated, prompt_tokens, completion_tokens, cached_tokens, saved_tokens, reported_cost,
            charged_requests, charged_tokens, charged_cost
        )
        SELECT $1, g.project_id, row_number() OVER (PARTITION BY g.project_id), max(g.project_name), g.api_key_id,
               max(g.api_key_name), max(g.user_id), g.model, g.tag_key, v.tag_value, sum(g.requests), sum(g.errors),
               sum(g.estimated), coalesce(sum(g.prompt_tokens), 0), coalesce(sum(g.completion_tokens), 0),
               coalesce(sum(g.cached_tokens), 0), sum(g.saved_tokens), coalesce(sum(g.reported_cost), 0),
               sum(g.charged_requests), sum(g.charged_tokens), sum(g.charged_cost)
          FROM groups g
               JOIN tags t ON t.project_id = g.project_id AND t.tag_key = g.tag_key AND t.tag_value = g.tag_value
               CROSS JOIN LATERAL (SELECT CASE WHEN t.place <= 1000 THEN g.tag_value ELSE '(other)' END AS tag_value) v
         GROUP BY g.project_id, g.api_key_id, g.model, g.tag_key, v.tag_value
    $sql$, v_table) USING p_day;
    RETURN true;
END $$;

-- Says that all days of due_usage_days_v1 are rolled up.
CREATE FUNCTION finish_usage_rollup_v1(p_settled_until timestamptz) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    UPDATE usage_rollup_state SET settled_until = greatest(settled_until, p_settled_until)
$$;

-- Denials are counted here and leave no other trace. tier 1 is a project, tier 2 a key; id 0 stands for those that were
-- too many to be told apart. A key that is refused (revoked, expired, not granted) counts as a denial of the key.
CREATE TABLE denial_rollups (
    minute  timestamptz NOT NULL,
    tier    smallint NOT NULL,
    id      bigint NOT NULL,
    code    text NOT NULL,
    denials bigint NOT NULL,
    PRIMARY KEY (minute, tier, id, code)
);
CREATE INDEX denial_rollups_tier ON denial_rollups (tier, id, minute);

-- Adds denials to the minutes of p_ages_ms milliseconds ago, for the clock of a service says nothing here.
CREATE FUNCTION add_denials_v1(
    p_tiers smallint[], p_ids bigint[], p_codes text[], p_denials bigint[], p_ages_ms bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO denial_rollups AS d (minute, tier, id, code, denials)
    SELECT date_trunc('minute', v_now - least(greatest(c.age, 0), 86400000) * interval '1 millisecond', 'UTC'),
           c.tier, c.id, c.code, sum(c.denials)
      FROM unnest(p_tiers, p_ids, p_codes, p_denials, p_ages_ms) c (tier, id, code, denials, age)
     GROUP BY 1, 2, 3, 4
     -- Several processes add to the same rows: in one order, so that none waits for one that waits for it.
     ORDER BY 1, 2, 3, 4
    ON CONFLICT (minute, tier, id, code) DO UPDATE SET denials = d.denials + excluded.denials;
END $$;

-- The running windows of a project and, for a person's key, of the key: a row a window. One that has ended since the
-- last call shows nothing used and nothing held, as admission would find it.
CREATE FUNCTION usage_windows_v1(p_project_id bigint, p_api_key_id bigint) RETURNS TABLE (
    tier smallint, id bigint, name text, time_zone text, open_calls bigint, concurrent_requests bigint, window_kind text,
    starts_at timestamptz, ends_at timestamptz, request_limit bigint, requests_used bigint, requests_held bigint,
    token_limit bigint, tokens_used bigint, tokens_excess bigint, tokens_held bigint, cost_limit bigint, cost_used bigint,
    cost_excess bigint, cost_held bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
    caps AS (
        SELECT 1::smallint AS tier, id, name, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
               tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
          FROM projects WHERE id = p_project_id
        UNION ALL
        SELECT 2::smallint, id, name, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
               tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
          FROM api_keys
         WHERE id = p_api_key_id AND kind = 'gateway' AND EXISTS (SELECT FROM projects WHERE id = p_project_id)
    )
    SELECT c.tier, c.id, c.name, c.time_zone, coalesce(s.open_calls, 0), c.concurrent_requests, w.kind, r.starts_at,
           window_end(w.kind, r.starts_at, c.time_zone),
           w.request_limit, r.n * coalesce(w.requests_used, 0), r.n * coalesce(w.requests_held, 0),
           w.token_limit, r.n * coalesce(w.tokens_used, 0), r.n * coalesce(w.tokens_excess, 0), r.n * coalesce(w.tokens_held, 0),
           w.cost_limit, r.n * coalesce(w.cost_used, 0), r.n * coalesce(w.cost_excess, 0), r.n * coalesce(w.cost_held, 0)
      FROM moment m
           CROSS JOIN caps c
           LEFT JOIN LATERAL (
               SELECT * FROM tier_state t WHERE t.tier = c.tier AND t.id = c.id ORDER BY t.generation DESC LIMIT 1
           ) s ON true
           CROSS JOIN LATERAL (VALUES
               (1, 'minute', date_trunc('minute', m.now, 'UTC'), s.minute_start,
                c.requests_per_minute, s.minute_requests_used, s.minute_requests_held,
                c.tokens_per_minute, s.minute_tokens_used, s.minute_tokens_excess, s.minute_tokens_held,
                0::bigint, s.minute_cost_used, s.minute_cost_excess, s.minute_cost_held),
               (2, 'day', date_trunc('day', m.now, c.time_zone), s.day_start,
                0, s.day_requests_used, s.day_requests_held,
                c.tokens_per_day, s.day_tokens_used, s.day_tokens_excess, s.day_tokens_held,
                c.cost_per_day, s.day_cost_used, s.day_cost_excess, s.day_cost_held),
               (3, 'month', date_trunc('month', m.now, c.time_zone), s.month_start,
                0, s.month_requests_used, s.month_requests_held,
                c.tokens_per_month, s.month_tokens_used, s.month_tokens_excess, s.month_tokens_held,
                c.cost_per_month, s.month_cost_used, s.month_cost_excess, s.month_cost_held)
           ) w (place, kind, running, stored, request_limit, requests_used, requests_held, token_limit, tokens_used,
                tokens_excess, tokens_held, cost_limit, cost_used, cost_excess, cost_held)
           -- Windows only go forward, also where the clock stepped back.
           CROSS JOIN LATERAL (SELECT greatest(w.running, w.stored) AS starts_at,
                                      CASE WHEN w.stored >= w.running THEN 1 ELSE 0 END AS n) r
     ORDER BY c.tier, w.place
$$;

-- What the ledger says of one call of a project; p_api_key_id is null for whoever may see the calls of all keys. State
-- "open" is a call in flight: what it holds, and what was known of it when it was admitted. Ids carry the time they were
-- made at (RFC 9562, 5.7), which is near the admission's, so the days around it are searched first; all days only if
-- there is nothing. An id of another version is none of the ledger's.
CREATE FUNCTION find_ledger_entry_v1(p_request_id uuid, p_project_id bigint, p_api_key_id bigint) RETURNS TABLE (
    state text, admitted_at timestamptz, settled_at timestamptz, operation text, route text, model text,
    status integer, error_code text, streamed boolean, held_tokens bigint, held_cost bigint, prompt_tokens bigint,
    completion_tokens bigint, cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint,
    reported_cost bigint, charged_requests bigint, charged_tokens bigint, charged_cost bigint, cost_source text,
    saved_tokens bigint, latency_ms bigint, first_byte_ms bigint, attempts integer, rag_hits integer, tags jsonb
)
-- Planned with the times at hand, so that only the days between them are looked at and locked.
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_hex    text := replace(p_request_id::text, '-', '');
    v_made   timestamptz;
    v_from   timestamptz;
    v_to     timestamptz;
    v_margin interval;
BEGIN
    IF substr(v_hex, 13, 1) <> '7' THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'open', o.admitted_at, NULL::timestamptz, d.operation, d.route, d.model, NULL::integer, NULL::text,
           coalesce(d.streamed, false), o.held_tokens, o.held_cost, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
           NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint,
           NULL::bigint, NULL::integer, NULL::integer, d.tags
      FROM requests_open o
           CROSS JOIN LATERAL jsonb_to_record(o.details)
                AS d (operation text, route text, model text, streamed boolean, tags jsonb)
     WHERE o.request_id = p_request_id AND o.project_id = p_project_id
       AND (p_api_key_id IS NULL OR o.api_key_id = p_api_key_id);
    IF FOUND THEN
        RETURN;
    END IF;
    v_made := to_timestamp(('x' || left(v_hex, 12))::bit(48)::bigint / 1000.0);
    FOREACH v_margin IN ARRAY ARRAY[interval '2 days', NULL] LOOP
        v_from := coalesce(v_made - v_margin, '-infinity');
        v_to := coalesce(v_made + v_margin, 'infinity');
        RETURN QUERY
        SELECT l.state, l.admitted_at, l.settled_at, l.operation, l.route, l.model, l.status, l.error_code, l.streamed,
               NULL::bigint, NULL::bigint, l.prompt_tokens, l.completion_tokens, l.cached_tokens, l.cache_write_tokens,
               l.reasoning_tokens, l.reported_cost, l.charged_requests, l.charged_tokens, l.charged_cost, l.cost_source,
               l.saved_tokens, l.latency_ms, l.first_byte_ms, l.attempts, l.rag_hits, l.tags
          FROM request_logs l
         WHERE l.request_id = p_request_id AND l.admitted_at BETWEEN v_from AND v_to AND l.project_id = p_project_id
           AND (p_api_key_id IS NULL OR l.api_key_id = p_api_key_id);
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END $$;
