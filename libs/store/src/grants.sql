-- What the two service roles may do. Run after every migration, so that it holds however the roles came to be; where
-- one role stands for all three there is nothing to grant.
DO $$
DECLARE
    v_function regprocedure;
    v_table    regclass;
    v_role     text;
BEGIN
    -- Functions are open to everybody unless that is taken away.
    FOR v_function IN
        SELECT oid::regprocedure FROM pg_proc
         WHERE pronamespace = current_schema()::regnamespace AND proowner = current_user::regrole AND prosecdef
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', v_function);
    END LOOP;

    IF to_regrole('ragmux_edge') IS NOT NULL AND current_user <> 'ragmux_edge' THEN
        IF NOT has_schema_privilege('ragmux_edge', current_schema(), 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO ragmux_edge', current_schema());
        END IF;
        GRANT SELECT ON schema_migrations, config_head, config_changes, model_connections, model_prices,
            embedding_revisions, projects, routes, route_targets, document_stores, project_stores, documents, chunks,
            posting_segments, postings, vector_tables, usage_counters, requests_open, request_logs TO ragmux_edge;
        GRANT SELECT, INSERT ON instance_settings TO ragmux_edge;
        GRANT SELECT, INSERT, UPDATE ON instances TO ragmux_edge;
        FOR v_table IN
            SELECT oid::regclass FROM pg_class
             WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname LIKE 'chunk\_embeddings\_%'
        LOOP
            EXECUTE format('GRANT SELECT ON %s TO ragmux_edge', v_table);
        END LOOP;
        GRANT EXECUTE ON FUNCTION
            find_principal_v1(bytea), find_principal_v2(bytea), find_key_standings_v1(bigint[]),
            find_key_standings_v2(bigint[]),
            ensure_log_day(date), usage_windows_v1(bigint, bigint), find_ledger_entry_v1(uuid, bigint, bigint),
            add_denials_v1(smallint[], bigint[], text[], bigint[], bigint[]) TO ragmux_edge;
    END IF;

    IF to_regrole('ragmux_backend') IS NOT NULL AND current_user <> 'ragmux_backend' THEN
        IF NOT has_schema_privilege('ragmux_backend', current_schema(), 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO ragmux_backend', current_schema());
        END IF;
        GRANT SELECT, INSERT, UPDATE, DELETE ON
            instance_settings, instances, config_head, config_changes, users, sessions, login_attempts, model_connections,
            model_prices, embedding_revisions, projects, project_members, routes, route_targets, api_keys,
            api_key_projects, api_key_uses, admin_requests, document_stores, project_stores, blobs, blob_parts, documents,
            chunks, posting_segments, postings, embedding_memo, embedding_switches, retired_embeddings TO ragmux_backend;
        GRANT SELECT, UPDATE ON vector_tables TO ragmux_backend;
        -- Audit is append only, and what the ledger says is changed by its own functions alone.
        GRANT SELECT, INSERT ON audit_logs TO ragmux_backend;
        GRANT SELECT ON schema_migrations, tier_state, usage_counters, requests_open, request_logs, usage_rollups,
            usage_rollup_state, denial_rollups TO ragmux_backend;
        FOR v_table IN
            SELECT oid::regclass FROM pg_class
             WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname LIKE 'chunk\_embeddings\_%'
        LOOP
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO ragmux_backend', v_table);
        END LOOP;
        GRANT EXECUTE ON FUNCTION
            ensure_vector_table(integer), open_vector_table_v1(bigint), index_vector_table_v1(bigint, integer),
            drop_vector_table_v1(bigint, integer), ensure_log_day(date), due_usage_days_v1(), roll_up_usage_day_v1(date),
            finish_usage_rollup_v1(timestamptz) TO ragmux_backend;
    END IF;

    -- Both charge and settle, and put right what crashes leave.
    FOREACH v_role IN ARRAY ARRAY['ragmux_edge', 'ragmux_backend'] LOOP
        CONTINUE WHEN to_regrole(v_role) IS NULL OR current_user = v_role;
        EXECUTE format('GRANT EXECUTE ON FUNCTION
            admit_v1(uuid, uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], text[]),
            settle_v1(uuid[], bigint[], bigint[], bigint[], text[]),
            admit_v2(uuid, uuid, boolean, uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[],
                     bigint[], bigint[], jsonb),
            settle_v2(uuid, uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], jsonb),
            reassert_v1(uuid, uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], jsonb),
            list_open_calls_v1(uuid, bigint), forget_calls_v1(uuid[]), give_up_v1(uuid, bigint, integer),
            list_orphaned_instances_v1(bigint), flush_v1(), list_locked_projects_v1(bigint[], bigint[])
            TO %I', v_role);
    END LOOP;
END $$;
