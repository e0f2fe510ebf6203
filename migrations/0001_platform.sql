-- What every service needs before anything else: settings, who is alive, and the log of configuration changes.

CREATE TABLE instance_settings (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE instances (
    id             uuid PRIMARY KEY,
    service        text NOT NULL CHECK (service IN ('edge', 'ingestion-worker', 'admin')),
    owner          text NOT NULL,
    host           text NOT NULL,
    version        text NOT NULL,
    schema_version integer NOT NULL,
    addresses      jsonb NOT NULL DEFAULT '{}',
    key_ids        text[] NOT NULL DEFAULT '{}',
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    beats          bigint NOT NULL DEFAULT 0,
    state          text NOT NULL DEFAULT 'joining' CHECK (state IN ('joining', 'active', 'draining', 'left', 'lost'))
) WITH (fillfactor = 70);

-- Every change of configuration gets the next number of this row, which is locked while it is given out: a reader that
-- has seen number n has seen every smaller one.
CREATE TABLE config_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    sequence bigint NOT NULL
);
INSERT INTO config_head (sequence) VALUES (0);

CREATE TABLE config_changes (
    sequence   bigint PRIMARY KEY,
    kind       text NOT NULL,
    row_id     bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX config_changes_changed_at ON config_changes (changed_at);

-- Channel names carry a hash of the schema, so that two installations in one database do not wake each other.
CREATE FUNCTION notification_channel(p_topic text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT 'ragmux_' || left(md5(current_schema()::text), 8) || '_' || p_topic
$$;

-- First half of every advisory lock key of this schema.
CREATE FUNCTION advisory_class() RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT ('x' || left(md5('ragmux:' || current_schema()::text), 8))::bit(32)::integer
$$;

-- Whether a table of this schema exists, as of now. Unlike to_regclass it reads the catalog with a snapshot of its own:
-- the answer is right after waiting for an advisory lock, which does not refresh what a session has cached.
CREATE FUNCTION table_exists(p_table text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM pg_catalog.pg_class
                    WHERE relname = p_table AND relnamespace = current_schema()::regnamespace)
$$;

CREATE FUNCTION append_config_change(p_kind text, p_row_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    v_sequence bigint;
BEGIN
    UPDATE config_head SET sequence = sequence + 1 RETURNING sequence INTO v_sequence;
    INSERT INTO config_changes (sequence, kind, row_id) VALUES (v_sequence, p_kind, p_row_id);
    PERFORM pg_notify(notification_channel('config'), v_sequence::text);
    RETURN v_sequence;
END $$;
