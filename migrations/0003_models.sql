-- Connections to model providers and what their models cost.

CREATE TABLE model_connections (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text NOT NULL UNIQUE CHECK (name <> ''),
    provider_type     text NOT NULL,
    base_url          text NOT NULL,
    model_name        text NOT NULL,
    credential_sealed bytea,
    revision          bigint NOT NULL DEFAULT 1,
    last_test         jsonb,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Nano-USD per million tokens. A missing cache price means the input price.
CREATE TABLE model_prices (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider_type text NOT NULL,
    model_pattern text NOT NULL,
    input         bigint NOT NULL CHECK (input >= 0),
    output        bigint NOT NULL CHECK (output >= 0),
    cache_read    bigint CHECK (cache_read >= 0),
    cache_write   bigint CHECK (cache_write >= 0),
    source        text NOT NULL DEFAULT 'user' CHECK (source IN ('builtin', 'user')),
    UNIQUE (provider_type, model_pattern)
);

-- One embedding model as reached at one address, at one width. Vectors and memo entries carry this id, so a vector is
-- never compared with one that another model made.
CREATE TABLE embedding_revisions (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    connection_id bigint NOT NULL REFERENCES model_connections,
    base_url      text NOT NULL,
    model_name    text NOT NULL,
    width         integer NOT NULL CHECK (width BETWEEN 1 AND 4000),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (connection_id, base_url, model_name, width)
);
