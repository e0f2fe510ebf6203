-- Projects (the tenants), their routes, and the API keys. Rows of projects and api_keys are what admission locks, so
-- nothing here holds such a lock for longer than one statement.

CREATE TABLE projects (
    id                    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                  text NOT NULL UNIQUE CHECK (name <> ''),
    default_route_id      bigint,
    store_id              bigint,
    system_prompt         text NOT NULL DEFAULT '',
    strict_models         boolean NOT NULL DEFAULT false,
    allow_unpriced        boolean NOT NULL DEFAULT false,
    enforcement           text NOT NULL DEFAULT 'soft' CHECK (enforcement IN ('soft', 'hard')),
    time_zone             text NOT NULL DEFAULT 'UTC',
    requests_per_minute   bigint NOT NULL DEFAULT 0 CHECK (requests_per_minute >= 0),
    tokens_per_minute     bigint NOT NULL DEFAULT 0 CHECK (tokens_per_minute >= 0),
    tokens_per_day        bigint NOT NULL DEFAULT 0 CHECK (tokens_per_day >= 0),
    tokens_per_month      bigint NOT NULL DEFAULT 0 CHECK (tokens_per_month >= 0),
    cost_per_day          bigint NOT NULL DEFAULT 0 CHECK (cost_per_day >= 0),
    cost_per_month        bigint NOT NULL DEFAULT 0 CHECK (cost_per_month >= 0),
    concurrent_requests   bigint NOT NULL DEFAULT 0 CHECK (concurrent_requests >= 0),
    cache_policy          text NOT NULL DEFAULT 'off' CHECK (cache_policy IN ('off', 'on_request', 'on')),
    cache_secret_sealed   bytea,
    webhook_url           text,
    webhook_secret_sealed bytea,
    retrieval             jsonb NOT NULL DEFAULT '{}',
    revision              bigint NOT NULL DEFAULT 1,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at            timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE project_members (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id    bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_members_user ON project_members (user_id);

-- Whether a person may see a project: its members may, and whoever is asked for without a user (administrators).
CREATE FUNCTION can_reach_project(p_project_id bigint, p_user_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT p_user_id IS NULL OR EXISTS (
        SELECT FROM project_members m WHERE m.project_id = p_project_id AND m.user_id = p_user_id)
$$;

CREATE TABLE routes (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id        bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name              text NOT NULL CHECK (name <> ''),
    max_output        bigint CHECK (max_output > 0),
    min_output        bigint NOT NULL DEFAULT 64 CHECK (min_output > 0),
    context_tokens    bigint NOT NULL DEFAULT 3000 CHECK (context_tokens >= 0),
    context_placement text CHECK (context_placement IN ('system', 'last_user')),
    revision          bigint NOT NULL DEFAULT 1,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (project_id, name)
);
ALTER TABLE projects ADD CONSTRAINT projects_default_route
    FOREIGN KEY (default_route_id) REFERENCES routes ON DELETE SET NULL;

-- Groups are tried in order; inside a group a target is chosen by weight.
CREATE TABLE route_targets (
    route_id      bigint NOT NULL REFERENCES routes ON DELETE CASCADE,
    group_number  smallint NOT NULL DEFAULT 0,
    connection_id bigint NOT NULL REFERENCES model_connections,
    weight        integer NOT NULL DEFAULT 1 CHECK (weight > 0),
    PRIMARY KEY (route_id, group_number, connection_id)
);
CREATE INDEX route_targets_connection ON route_targets (connection_id);

CREATE TABLE api_keys (
    id                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind                 text NOT NULL CHECK (kind IN ('project', 'gateway', 'management')),
    name                 text NOT NULL,
    key_hash             bytea NOT NULL UNIQUE,
    key_prefix           text NOT NULL,
    previous_hash        bytea,
    previous_valid_until timestamptz,
    owner_user_id        bigint REFERENCES users,
    project_id           bigint REFERENCES projects ON DELETE CASCADE,
    default_project_id   bigint REFERENCES projects ON DELETE SET NULL,
    scopes               text[] NOT NULL DEFAULT '{}',
    allowed_routes       text[],
    time_zone            text NOT NULL DEFAULT 'UTC',
    requests_per_minute  bigint NOT NULL DEFAULT 0 CHECK (requests_per_minute >= 0),
    tokens_per_minute    bigint NOT NULL DEFAULT 0 CHECK (tokens_per_minute >= 0),
    tokens_per_day       bigint NOT NULL DEFAULT 0 CHECK (tokens_per_day >= 0),
    tokens_per_month     bigint NOT NULL DEFAULT 0 CHECK (tokens_per_month >= 0),
    cost_per_day         bigint NOT NULL DEFAULT 0 CHECK (cost_per_day >= 0),
    cost_per_month       bigint NOT NULL DEFAULT 0 CHECK (cost_per_month >= 0),
    concurrent_requests  bigint NOT NULL DEFAULT 0 CHECK (concurrent_requests >= 0),
    expires_at           timestamptz,
    revoked_at           timestamptz,
    revision             bigint NOT NULL DEFAULT 1,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((kind = 'project') = (project_id IS NOT NULL)),
    CHECK (kind = 'project' OR owner_user_id IS NOT NULL)
);
CREATE UNIQUE INDEX api_keys_previous ON api_keys (previous_hash) WHERE previous_hash IS NOT NULL;
CREATE UNIQUE INDEX api_keys_owner_name ON api_keys (owner_user_id, name) WHERE owner_user_id IS NOT NULL;
CREATE UNIQUE INDEX api_keys_project ON api_keys (project_id) WHERE kind = 'project' AND revoked_at IS NULL;

CREATE TABLE api_key_projects (
    api_key_id bigint NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    PRIMARY KEY (api_key_id, project_id)
);
CREATE INDEX api_key_projects_project ON api_key_projects (project_id);

-- Apart from api_keys, so that using a key changes neither its etag nor the row that admission locks.
CREATE TABLE api_key_uses (
    api_key_id   bigint PRIMARY KEY REFERENCES api_keys ON DELETE CASCADE,
    last_used_at timestamptz NOT NULL
);

-- What makes creates and rotations idempotent. The secret is never here.
CREATE TABLE admin_requests (
    actor        text NOT NULL,
    request_id   text NOT NULL,
    kind         text NOT NULL,
    row_id       bigint NOT NULL,
    request_hash bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (actor, request_id)
);
CREATE INDEX admin_requests_created_at ON admin_requests (created_at);
