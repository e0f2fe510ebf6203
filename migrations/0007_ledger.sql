-- The ledger: one running row a tier, one open row a call in flight, one log row a settled call. No foreign keys to
-- projects and keys: history outlives what it is about.

-- tier 1 is a project, tier 2 a key. Versions of a hot row cannot be pruned while any snapshot is older, so after 500
-- updates the writer inserts the next generation and deletes this one: the row stays a short chain whatever else is
-- open in the database. Tokens are prompt and completion together; cost is nano-USD.
CREATE TABLE tier_state (
    tier                  smallint NOT NULL,
    id                    bigint NOT NULL,
    generation            bigint NOT NULL,
    updates               integer NOT NULL DEFAULT 0,
    open_calls            bigint NOT NULL DEFAULT 0,
    minute_start          timestamptz NOT NULL,
    minute_requests_used  bigint NOT NULL DEFAULT 0,
    minute_requests_held  bigint NOT NULL DEFAULT 0,
    minute_tokens_used    bigint NOT NULL DEFAULT 0,
    minute_tokens_held    bigint NOT NULL DEFAULT 0,
    minute_tokens_excess  bigint NOT NULL DEFAULT 0,
    minute_cost_used      bigint NOT NULL DEFAULT 0,
    minute_cost_held      bigint NOT NULL DEFAULT 0,
    minute_cost_excess    bigint NOT NULL DEFAULT 0,
    day_start             timestamptz NOT NULL,
    day_requests_used     bigint NOT NULL DEFAULT 0,
    day_requests_held     bigint NOT NULL DEFAULT 0,
    day_tokens_used       bigint NOT NULL DEFAULT 0,
    day_tokens_held       bigint NOT NULL DEFAULT 0,
    day_tokens_excess     bigint NOT NULL DEFAULT 0,
    day_cost_used         bigint NOT NULL DEFAULT 0,
    day_cost_held         bigint NOT NULL DEFAULT 0,
    day_cost_excess       bigint NOT NULL DEFAULT 0,
    month_start           timestamptz NOT NULL,
    month_requests_used   bigint NOT NULL DEFAULT 0,
    month_requests_held   bigint NOT NULL DEFAULT 0,
    month_tokens_used     bigint NOT NULL DEFAULT 0,
    month_tokens_held     bigint NOT NULL DEFAULT 0,
    month_tokens_excess   bigint NOT NULL DEFAULT 0,
    month_cost_used       bigint NOT NULL DEFAULT 0,
    month_cost_held       bigint NOT NULL DEFAULT 0,
    month_cost_excess     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tier, id, generation)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Windows that have closed. Calls that settle later than their window add themselves here. A call has no request
-- beyond the one it held, so only tokens and cost can exceed.
CREATE TABLE usage_counters (
    tier            smallint NOT NULL,
    id              bigint NOT NULL,
    window_kind     text NOT NULL CHECK (window_kind IN ('minute', 'day', 'month')),
    window_start    timestamptz NOT NULL,
    requests_used   bigint NOT NULL DEFAULT 0,
    tokens_used     bigint NOT NULL DEFAULT 0,
    tokens_excess   bigint NOT NULL DEFAULT 0,
    cost_used       bigint NOT NULL DEFAULT 0,
    cost_excess     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tier, id, window_kind, window_start)
);
CREATE INDEX usage_counters_window ON usage_counters (window_kind, window_start);

-- Work of our own (ingestion) is not a client's request: it has no key and no minute, counts against the budgets of days
-- and months only, and takes no slot of concurrency.
CREATE TABLE requests_open (
    request_id    uuid PRIMARY KEY,
    admitted_at   timestamptz NOT NULL,
    instance_id   uuid NOT NULL,
    project_id    bigint NOT NULL,
    api_key_id    bigint,
    key_tier      boolean NOT NULL,
    minute_start  timestamptz,
    project_day   timestamptz NOT NULL,
    project_month timestamptz NOT NULL,
    key_day       timestamptz,
    key_month     timestamptz,
    held_tokens   bigint NOT NULL,
    held_cost     bigint NOT NULL,
    output_tokens bigint NOT NULL,
    details       jsonb NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX requests_open_instance ON requests_open (instance_id);

CREATE TABLE request_logs (
    request_id          uuid NOT NULL,
    admitted_at         timestamptz NOT NULL,
    settled_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    instance_id         uuid NOT NULL,
    project_id          bigint NOT NULL,
    project_name        text,
    api_key_id          bigint,
    api_key_name        text,
    user_id             bigint,
    operation           text NOT NULL,
    route               text,
    model               text,
    provider_type       text,
    connection_id       bigint,
    status              integer NOT NULL,
    error_code          text,
    state               text NOT NULL CHECK (state IN ('final', 'estimated')),
    streamed            boolean NOT NULL DEFAULT false,
    prompt_tokens       bigint,
    completion_tokens   bigint,
    cached_tokens       bigint,
    cache_write_tokens  bigint,
    reasoning_tokens    bigint,
    reported_cost       bigint,
    charged_requests    bigint NOT NULL,
    charged_tokens      bigint NOT NULL,
    charged_cost        bigint NOT NULL,
    cost_source         text NOT NULL DEFAULT 'none',
    saved_tokens        bigint NOT NULL DEFAULT 0,
    latency_ms          bigint NOT NULL DEFAULT 0,
    first_byte_ms       bigint,
    attempts            integer NOT NULL DEFAULT 0,
    rag_hits            integer,
    document_id         bigint,
    tags                jsonb,
    PRIMARY KEY (admitted_at, request_id)
) PARTITION BY RANGE (admitted_at);
CREATE INDEX request_logs_project ON request_logs (project_id, admitted_at);
CREATE INDEX request_logs_request ON request_logs (request_id);

-- Exists only so that nothing is ever refused; a pass moves its rows to their day.
CREATE TABLE request_logs_default PARTITION OF request_logs DEFAULT;

-- Makes the partition of one UTC day, once, whoever asks first. Rows of that day that went to the default partition
-- move in the same transaction.
CREATE FUNCTION ensure_log_day(p_day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_table text := 'request_logs_' || to_char(p_day, 'YYYYMMDD');
    v_from  timestamptz := p_day::timestamp AT TIME ZONE 'UTC';
    v_to    timestamptz := (p_day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF p_day NOT BETWEEN CURRENT_DATE - 400 AND CURRENT_DATE + 31 THEN
        RAISE EXCEPTION 'a log day must lie within the last 400 and the next 31 days, not %', p_day
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF table_exists(v_table) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(advisory_class(), 2);
    IF table_exists(v_table) THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE request_logs INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_table);
    EXECUTE format('WITH moved AS (DELETE FROM request_logs_default WHERE admitted_at >= %L AND admitted_at < %L RETURNING *)
                    INSERT INTO %I SELECT * FROM moved', v_from, v_to, v_table);
    EXECUTE format('ALTER TABLE request_logs ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_table, v_from, v_to);
END $$;
