-- Run once in the installation's database, as a superuser: the extension and the three roles.
--
--   ragmux_owner    owns the schema and runs migrations (MIGRATE_DATABASE_URL of the admin service)
--   ragmux_edge     the edge: no DDL, no people, no audit
--   ragmux_backend  admin and ingestion-worker
--
-- Give the roles passwords afterwards (ALTER ROLE … PASSWORD '…'). Running it again changes nothing.
CREATE EXTENSION IF NOT EXISTS vector;

DO $$
DECLARE
    v_role text;
BEGIN
    -- Roles belong to the whole server: two installations may run this at the same moment.
    PERFORM pg_advisory_xact_lock(hashtext('ragmux roles'));
    FOREACH v_role IN ARRAY ARRAY['ragmux_owner', 'ragmux_edge', 'ragmux_backend'] LOOP
        IF to_regrole(v_role) IS NULL THEN
            EXECUTE format('CREATE ROLE %I LOGIN', v_role);
            -- Set on the role and not by the client, so that a pooler cannot lose them.
            EXECUTE format('ALTER ROLE %I SET lock_timeout = %L', v_role, '5s');
            EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = %L', v_role, '10s');
            IF v_role <> 'ragmux_owner' THEN
                EXECUTE format('ALTER ROLE %I SET statement_timeout = %L', v_role, '30s');
            END IF;
        END IF;
    END LOOP;
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO ragmux_owner, ragmux_edge, ragmux_backend',
                   current_database());
    -- Functions of the owner run with this schema in their search path: nobody else may put anything into it.
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('GRANT CREATE, USAGE ON SCHEMA %I TO ragmux_owner', current_schema());
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO ragmux_edge, ragmux_backend', current_schema());
END $$;
