-- Which projects somebody keeps locked, and days whose log has lost rows since they were added up.

-- Those of these projects whose row, or whose key's row, cannot be had at once. Admissions hold these rows for a millisecond
-- or two, which is waited for. Nothing is locked when this returns, nor while it waits.
CREATE FUNCTION list_locked_projects_v1(p_project_ids bigint[], p_key_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_payer    record;
    v_patience integer := 50;
    v_locked   bigint[] := '{}';
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR v_payer IN
        SELECT DISTINCT project_id, key_id FROM unnest(p_project_ids, p_key_ids) r (project_id, key_id)
    LOOP
        CONTINUE WHEN v_payer.project_id = ANY (v_locked);
        PERFORM set_config('lock_timeout', v_patience || 'ms', true);
        BEGIN
            PERFORM FROM projects WHERE id = v_payer.project_id FOR NO KEY UPDATE;
            PERFORM FROM api_keys WHERE id = v_payer.key_id FOR NO KEY UPDATE;
            -- Undone with it: the locks.
            RAISE EXCEPTION 'not locked' USING ERRCODE = 'RM003';
        EXCEPTION
            WHEN SQLSTATE 'RM003' THEN NULL;
            WHEN lock_not_available THEN
                v_locked := v_locked || v_payer.project_id;
                -- All of them together are waited for for no longer than twice that.
                v_patience := greatest(v_patience / 2, 1);
        END;
    END LOOP;
    RETURN QUERY SELECT unnest(v_locked);
END $$;

-- Days (UTC) of which the log has lost rows. Those that gained or changed some are found by settled_at.
CREATE TABLE usage_days_changed (
    day        date NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- As before, and the days of what goes are added up again.
CREATE OR REPLACE FUNCTION forget_estimates(p_request_ids uuid[]) RETURNS void
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
        INSERT INTO usage_days_changed (day) VALUES ((v_log.admitted_at AT TIME ZONE 'UTC')::date);
    END LOOP;
END $$;

-- As before, and the days that have lost rows.
CREATE OR REPLACE FUNCTION due_usage_days_v1(OUT settled_until timestamptz, OUT days date[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_since     timestamptz;
    v_partition record;
    v_found     boolean;
BEGIN
    settled_until := clock_timestamp();
    SELECT s.settled_until - interval '5 minutes' INTO v_since FROM usage_rollup_state s;
    -- What is older has been rolled up.
    DELETE FROM usage_days_changed WHERE changed_at < v_since;
    SELECT coalesce(array_agg(DISTINCT d.day), '{}') INTO days
      FROM (SELECT (l.admitted_at AT TIME ZONE 'UTC')::date AS day FROM ONLY request_logs_default l
             WHERE l.settled_at >= v_since
            UNION ALL
            SELECT c.day FROM usage_days_changed c) d;
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
