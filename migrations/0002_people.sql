-- People, their sessions and what they did.

CREATE TABLE users (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    username      text NOT NULL CHECK (username <> ''),
    password_hash text,
    role          text NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    oidc_issuer   text,
    oidc_subject  text,
    active        boolean NOT NULL DEFAULT true,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_login_at timestamptz
);
CREATE UNIQUE INDEX users_username ON users (lower(username));
CREATE UNIQUE INDEX users_oidc ON users (oidc_issuer, oidc_subject) WHERE oidc_issuer IS NOT NULL;

CREATE TABLE sessions (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id    bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    token_hash bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expires ON sessions (expires_at);

CREATE TABLE login_attempts (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    username     text NOT NULL,
    address      text NOT NULL,
    success      boolean NOT NULL,
    attempted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX login_attempts_username ON login_attempts (lower(username), attempted_at);
CREATE INDEX login_attempts_address ON login_attempts (address, attempted_at);

CREATE TABLE audit_logs (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor_user_id bigint,
    actor         text NOT NULL,
    action        text NOT NULL,
    target_kind   text,
    target_id     bigint,
    details       jsonb NOT NULL DEFAULT '{}',
    address       text
);
CREATE INDEX audit_logs_at ON audit_logs (at);
CREATE INDEX audit_logs_action ON audit_logs (action, id);

-- Appends to the audit log. The entry says who did what from where; the target is the row that was written. Statements
-- call this while they write, so that neither is there without the other.
CREATE FUNCTION record_audit(p_kind text, p_row_id bigint, p_entry jsonb) RETURNS bigint
LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO audit_logs (actor_user_id, actor, action, target_kind, target_id, details, address)
    VALUES ((p_entry ->> 'actor_user_id')::bigint, p_entry ->> 'actor', p_entry ->> 'action', p_kind, p_row_id,
            coalesce(p_entry -> 'details', '{}'), p_entry ->> 'address')
    RETURNING id
$$;

-- The same for a row that edges cache.
CREATE FUNCTION record_change(p_kind text, p_row_id bigint, p_entry jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM record_audit(p_kind, p_row_id, p_entry);
    RETURN append_config_change(p_kind, p_row_id);
END $$;
