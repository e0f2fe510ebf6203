-- Document stores, the bytes of uploads, and the document queue.

CREATE TABLE document_stores (
    id                      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id              bigint NOT NULL REFERENCES projects,
    name                    text NOT NULL CHECK (name <> ''),
    embedding_connection_id bigint NOT NULL REFERENCES model_connections,
    embedding_revision_id   bigint NOT NULL REFERENCES embedding_revisions,
    width                   integer NOT NULL CHECK (width BETWEEN 1 AND 4000),
    own_table               boolean NOT NULL DEFAULT false,
    chunk_tokens            integer NOT NULL DEFAULT 400 CHECK (chunk_tokens BETWEEN 32 AND 8000),
    chunk_overlap           integer NOT NULL DEFAULT 60 CHECK (chunk_overlap >= 0),
    contextual              boolean NOT NULL DEFAULT true,
    language                text,
    retrieval               jsonb NOT NULL DEFAULT '{}',
    max_running             integer NOT NULL DEFAULT 0 CHECK (max_running >= 0),
    max_documents           bigint NOT NULL DEFAULT 0 CHECK (max_documents >= 0),
    max_bytes               bigint NOT NULL DEFAULT 0 CHECK (max_bytes >= 0),
    revision                bigint NOT NULL DEFAULT 1,
    content_revision        bigint NOT NULL DEFAULT 0,
    created_at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (project_id, name),
    CHECK (chunk_overlap < chunk_tokens)
);
ALTER TABLE projects ADD CONSTRAINT projects_store
    FOREIGN KEY (store_id) REFERENCES document_stores ON DELETE SET NULL;

CREATE TABLE project_stores (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    store_id   bigint NOT NULL REFERENCES document_stores ON DELETE CASCADE,
    PRIMARY KEY (project_id, store_id)
);

-- An upload streams parts of a blob without a hash; the transaction at its end gives it one or removes it.
CREATE TABLE blobs (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha256     bytea UNIQUE,
    size       bigint NOT NULL DEFAULT 0,
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX blobs_unnamed ON blobs (touched_at) WHERE sha256 IS NULL;

CREATE TABLE blob_parts (
    blob_id bigint NOT NULL REFERENCES blobs ON DELETE CASCADE,
    ordinal integer NOT NULL,
    bytes   bytea NOT NULL CHECK (octet_length(bytes) <= 262144),
    PRIMARY KEY (blob_id, ordinal)
);
-- Uploads are mostly compressed already.
ALTER TABLE blob_parts ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE documents (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store_id        bigint NOT NULL REFERENCES document_stores,
    blob_id         bigint NOT NULL REFERENCES blobs ON DELETE RESTRICT,
    size            bigint NOT NULL,
    content_version integer NOT NULL DEFAULT 1,
    live_version    integer,
    status          text NOT NULL DEFAULT 'pending'
                    CHECK (status IN ('pending', 'delayed', 'processing', 'ready', 'failed')),
    priority        smallint NOT NULL DEFAULT 5,
    run_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_by      text,
    claim_token     bigint NOT NULL DEFAULT 0,
    claimed_at      timestamptz,
    lease_until     timestamptz,
    attempts        integer NOT NULL DEFAULT 0,
    parser_deaths   integer NOT NULL DEFAULT 0,
    retries         integer NOT NULL DEFAULT 0,
    retrying_since  timestamptz,
    stage           text,
    progress_done   integer NOT NULL DEFAULT 0,
    progress_total  integer NOT NULL DEFAULT 0,
    error_code      text,
    error_text      text,
    chunk_count     integer NOT NULL DEFAULT 0,
    page_count      integer,
    file_name       text NOT NULL,
    title           text,
    external_key    text,
    media_type      text NOT NULL,
    extraction      jsonb NOT NULL DEFAULT '{}',
    metadata        jsonb NOT NULL DEFAULT '{}',
    embedded_tokens bigint NOT NULL DEFAULT 0,
    embedding_cost  bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    ready_at        timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Neither the lease nor progress is in any index: renewals stay heap-only updates.
CREATE INDEX documents_pending ON documents (store_id, priority, run_at, id) WHERE status = 'pending';
CREATE INDEX documents_processing ON documents (store_id) WHERE status = 'processing';
CREATE INDEX documents_delayed ON documents (run_at) WHERE status = 'delayed';
CREATE INDEX documents_store ON documents (store_id, id);
CREATE INDEX documents_blob ON documents (blob_id);
CREATE INDEX documents_content ON documents (store_id, blob_id);
CREATE UNIQUE INDEX documents_external_key ON documents (store_id, external_key) WHERE external_key IS NOT NULL;
