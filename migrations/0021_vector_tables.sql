-- Large stores have a table of their own for their vectors, chunk_embeddings_<width>_s<store>, with an index.
--
-- A row here says that the table is there and that searches read it beside the table of the width; both come and go in
-- one transaction. Workers always write to the table of the width. From there a batch of rows is taken and put into the
-- store's own table by one statement, so that every snapshot has each vector in exactly one of the two. Whoever works at
-- a table holds its row here until his transaction ends: a lock that any pooler keeps, and that goes with its session.
--
-- document_stores.own_table said the same for one table of a store and is not read any more.
CREATE TABLE vector_tables (
    store_id              bigint NOT NULL,
    width                 integer NOT NULL CHECK (width BETWEEN 1 AND 4000),
    embedding_revision_id bigint NOT NULL,
    indexed               boolean NOT NULL DEFAULT false,
    vectors               bigint NOT NULL DEFAULT 0,
    swept_revision        bigint NOT NULL DEFAULT 0,
    swept_at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store_id, width)
);

-- Makes the table of a store for the vectors that are live in it. Returns whether it was made now.
-- It has no foreign key: one would take locks on chunks that stop every writer, and would keep documents from being
-- deleted while the index is built. Searches join chunks, so a vector whose chunk is gone is not seen, and is swept.
CREATE FUNCTION open_vector_table_v1(p_store bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_width    integer;
    v_revision bigint;
    v_table    text;
BEGIN
    SELECT width, embedding_revision_id INTO v_width, v_revision FROM document_stores WHERE id = p_store FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(advisory_class(), 100000 + v_width);
    INSERT INTO vector_tables (store_id, width, embedding_revision_id) VALUES (p_store, v_width, v_revision)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_table := 'chunk_embeddings_' || v_width || '_s' || p_store;
    EXECUTE format(
        'CREATE TABLE %I (
             chunk_id bigint PRIMARY KEY,
             store_id bigint NOT NULL,
             embedding_revision_id bigint NOT NULL,
             embedding %s(%s) NOT NULL
         )', v_table, CASE WHEN v_width <= 2000 THEN 'vector' ELSE 'halfvec' END, v_width);
    IF v_width <= 1900 THEN
        EXECUTE format('ALTER TABLE %I ALTER COLUMN embedding SET STORAGE PLAIN', v_table);
    END IF;
    IF to_regrole('ragmux_edge') IS NOT NULL THEN
        EXECUTE format('GRANT SELECT ON %I TO ragmux_edge', v_table);
    END IF;
    IF to_regrole('ragmux_backend') IS NOT NULL THEN
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO ragmux_backend', v_table);
    END IF;
    RETURN true;
END $$;

-- Builds the index of a store's own table. Nobody writes to that table but who holds its row in vector_tables, so the
-- lock of the build keeps nobody waiting and it need not be concurrent: an index that is half built when the build ends
-- is gone with its transaction. (A concurrent build would need a role that may make things in this schema.)
CREATE FUNCTION index_vector_table_v1(p_store bigint, p_width integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_table text := 'chunk_embeddings_' || p_width || '_s' || p_store;
BEGIN
    PERFORM FROM vector_tables WHERE store_id = p_store AND width = p_width AND NOT indexed FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE INDEX %I ON %I USING hnsw (embedding %s)', v_table || '_hnsw', v_table,
                   CASE WHEN p_width <= 2000 THEN 'vector_cosine_ops' ELSE 'halfvec_cosine_ops' END);
    EXECUTE format('ANALYZE %I', v_table);
    UPDATE vector_tables SET indexed = true WHERE store_id = p_store AND width = p_width;
    RETURN true;
END $$;

-- Drops a table that no search reads: its store is gone or has vectors of another model by now. Returns whether it did.
CREATE FUNCTION drop_vector_table_v1(p_store bigint, p_width integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_revision bigint;
BEGIN
    SELECT embedding_revision_id INTO v_revision FROM vector_tables
     WHERE store_id = p_store AND width = p_width FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM document_stores WHERE id = p_store AND width = p_width AND embedding_revision_id = v_revision;
    IF FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', 'chunk_embeddings_' || p_width || '_s' || p_store);
    DELETE FROM vector_tables WHERE store_id = p_store AND width = p_width;
    RETURN true;
END $$;
