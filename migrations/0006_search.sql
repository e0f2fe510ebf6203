-- What a search reads. Nothing here is visible until documents.live_version names its content version.

CREATE TABLE chunks (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    document_id     bigint NOT NULL REFERENCES documents ON DELETE CASCADE,
    content_version integer NOT NULL,
    store_id        bigint NOT NULL,
    ordinal         integer NOT NULL,
    content         text NOT NULL,
    heading_path    text NOT NULL DEFAULT '',
    page_from       integer,
    page_to         integer,
    char_from       integer NOT NULL,
    char_to         integer NOT NULL,
    token_count     integer NOT NULL,
    content_hash    bytea NOT NULL,
    metadata        jsonb NOT NULL DEFAULT '{}',
    UNIQUE (document_id, content_version, ordinal)
);
CREATE INDEX chunks_store ON chunks (store_id);

-- A segment is the unit of the lexical index: one batch of chunks of one content version, until a job folds small ones.
-- lengths[i] is the number of indexed terms of chunk first_ordinal + i - 1.
CREATE TABLE posting_segments (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store_id        bigint NOT NULL,
    document_id     bigint NOT NULL REFERENCES documents ON DELETE CASCADE,
    content_version integer NOT NULL,
    first_ordinal   integer NOT NULL,
    lengths         integer[] NOT NULL,
    chunk_count     integer NOT NULL,
    total_length    bigint NOT NULL,
    UNIQUE (document_id, content_version, first_ordinal)
);
CREATE INDEX posting_segments_store ON posting_segments (store_id);

-- ordinals[i] is the ordinal of a chunk that has the term, frequencies[i] how often.
CREATE TABLE postings (
    store_id    bigint NOT NULL,
    term        text NOT NULL,
    segment_id  bigint NOT NULL REFERENCES posting_segments ON DELETE CASCADE,
    ordinals    integer[] NOT NULL,
    frequencies smallint[] NOT NULL,
    PRIMARY KEY (store_id, term, segment_id)
);
CREATE INDEX postings_segment ON postings (segment_id);

-- What makes a retry or a second upload not pay twice. Never shared between projects.
CREATE TABLE embedding_memo (
    project_id            bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    embedding_revision_id bigint NOT NULL REFERENCES embedding_revisions ON DELETE CASCADE,
    content_hash          bytea NOT NULL,
    embedding             real[] NOT NULL,
    last_used_on          date NOT NULL DEFAULT CURRENT_DATE,
    PRIMARY KEY (project_id, embedding_revision_id, content_hash)
);
CREATE INDEX embedding_memo_last_used ON embedding_memo (last_used_on);

-- Makes the table of one width, once, whoever asks first. Rows are found by store and compared exactly; pgvector
-- indexes up to 2,000 dimensions as vector and up to 4,000 as halfvec.
CREATE FUNCTION ensure_vector_table(p_width integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_table text := 'chunk_embeddings_' || p_width;
    v_type  text := CASE WHEN p_width <= 2000 THEN 'vector' ELSE 'halfvec' END;
    v_role  text;
BEGIN
    IF p_width IS NULL OR p_width NOT BETWEEN 1 AND 4000 THEN
        RAISE EXCEPTION 'a vector of % dimensions is not supported: the limit is 4000', p_width
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(advisory_class(), 100000 + p_width);
    IF table_exists(v_table) THEN
        RETURN;
    END IF;
    EXECUTE format(
        'CREATE TABLE %I (
             chunk_id bigint PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
             store_id bigint NOT NULL,
             embedding_revision_id bigint NOT NULL,
             embedding %s(%s) NOT NULL
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
