-- Stores that get another embedding model: its vectors are built beside those that searches use, and take their place
-- when they are complete.

-- One row for a store whose vectors are being built. Every claim of it has a name of its own, which fences its writes.
CREATE TABLE embedding_switches (
    store_id              bigint PRIMARY KEY REFERENCES document_stores ON DELETE CASCADE,
    connection_id         bigint NOT NULL REFERENCES model_connections,
    embedding_revision_id bigint NOT NULL REFERENCES embedding_revisions,
    width                 integer NOT NULL CHECK (width BETWEEN 1 AND 4000),
    status                text NOT NULL DEFAULT 'building' CHECK (status IN ('building', 'failed')),
    run_at                timestamptz NOT NULL DEFAULT clock_timestamp(),
    claim                 uuid,
    claimed_by            text,
    lease_until           timestamptz,
    retries               integer NOT NULL DEFAULT 0,
    retrying_since        timestamptz,
    chunks_done           bigint NOT NULL DEFAULT 0,
    chunks_total          bigint NOT NULL DEFAULT 0,
    error_code            text,
    error_text            text,
    embedded_tokens       bigint NOT NULL DEFAULT 0,
    embedding_cost        bigint NOT NULL DEFAULT 0,
    started_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at            timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Vectors that no search uses any more. They stay for a while, for searches that began with them, and go in batches.
CREATE TABLE retired_embeddings (
    store_id              bigint NOT NULL REFERENCES document_stores ON DELETE CASCADE,
    embedding_revision_id bigint NOT NULL REFERENCES embedding_revisions,
    width                 integer NOT NULL,
    retired_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store_id, embedding_revision_id)
);

-- A chunk may have a vector of each of two models of one width.
DO $$
DECLARE
    v_table text;
BEGIN
    FOR v_table IN
        SELECT relname FROM pg_class
         WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname LIKE 'chunk\_embeddings\_%'
    LOOP
        EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I, ADD PRIMARY KEY (chunk_id, embedding_revision_id)',
                       v_table, v_table || '_pkey');
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION ensure_vector_table(p_width integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_table text := 'chunk_embeddings_' || p_width;
    v_type  text := CASE WHEN p_width <= 2000 THEN 'vector' ELSE 'halfvec' END;
BEGIN
    IF p_width IS NULL OR p_width NOT BETWEEN 1 AND 4000 THEN
        RAISE EXCEPTION 'a vector of % dimensions is not supported: the limit is 4000', p_width
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Mostly it is there: nobody then waits for anybody.
    IF table_exists(v_table) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(advisory_class(), 100000 + p_width);
    IF table_exists(v_table) THEN
        RETURN;
    END IF;
    EXECUTE format(
        'CREATE TABLE %I (
             chunk_id bigint NOT NULL REFERENCES chunks ON DELETE CASCADE,
             store_id bigint NOT NULL,
             embedding_revision_id bigint NOT NULL,
             embedding %s(%s) NOT NULL,
             PRIMARY KEY (chunk_id, embedding_revision_id)
         )', v_table, v_type, p_width);
    EXECUTE format('CREATE INDEX ON %I (store_id)', v_table);
    IF p_width <= 1900 THEN
        EXECUTE format('ALTER TABLE %I ALTER COLUMN embedding SET STORAGE PLAIN', v_table);
    END IF;
    IF to_regrole('ragmux_edge') IS NOT NULL THEN
        EXECUTE format('GRANT SELECT ON %I TO ragmux_edge', v_table);
    END IF;
    IF to_regrole('ragmux_backend') IS NOT NULL THEN
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO ragmux_backend', v_table);
    END IF;
END $$;
