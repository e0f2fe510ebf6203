-- Watches the ledger of a test's database: what every commit must keep true is checked at that commit.
--
-- Statement triggers take down what a transaction does to the tables of the ledger, in rows of its own. A constraint
-- trigger that is deferred to the commit then checks the sum of it, once a transaction. It never raises: a breach is
-- recorded by the transaction that commits it, so that the breach is on record exactly if its state is, and the services
-- under test meet no error that the product would not give.
--
-- What such a check reads is what holds after its commit. Everything that changes a tier's row, open calls or log rows
-- holds the tier's definition row until its own commit, so a transaction sees every change of its tiers that was committed
-- before, and no other can be under way. Used and held are compared by what a transaction *moves*: what was equal before
-- and moves by the same amount is equal after, at every commit, without reading the whole log each time. That the sums
-- themselves are equal is for watch.differences() to say, at any moment.
--
-- Nobody may lower a cap below what is used and held, change a time zone, or lose commits in a crash of the server while
-- this watches: each of them is allowed to break what is checked here.
CREATE SCHEMA watch;

-- Transactions that touched the ledger.
CREATE UNLOGGED TABLE watch.commits (xid xid8 PRIMARY KEY);

-- What they moved. Signs are such that all that belongs together adds up to zero: what tiers count is above zero, what log
-- rows charge (as used) and open rows hold (as held) below.
CREATE UNLOGGED TABLE watch.moves (
    xid xid8 NOT NULL, source text NOT NULL, tier smallint NOT NULL, id bigint NOT NULL, kind text NOT NULL,
    label timestamptz NOT NULL, requests bigint NOT NULL, tokens bigint NOT NULL, cost bigint NOT NULL,
    requests_held bigint NOT NULL, tokens_held bigint NOT NULL, cost_held bigint NOT NULL
);
CREATE INDEX ON watch.moves (xid);

-- The calls whose rows they wrote or removed.
CREATE UNLOGGED TABLE watch.touched (xid xid8 NOT NULL, request_id uuid NOT NULL);
CREATE INDEX ON watch.touched (xid);

-- Every call that was ever admitted, with what it held. The number is the one its client gave it by the tag `call`.
CREATE UNLOGGED TABLE watch.calls (
    request_id uuid PRIMARY KEY, place bigint GENERATED ALWAYS AS IDENTITY, number bigint, admitted_at timestamptz NOT NULL,
    instance_id uuid NOT NULL, project_id bigint NOT NULL, api_key_id bigint, held_tokens bigint NOT NULL,
    held_cost bigint NOT NULL
);
CREATE INDEX ON watch.calls (number);
CREATE INDEX ON watch.calls (place);

CREATE UNLOGGED TABLE watch.breaches (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid xid8, rule text NOT NULL, detail jsonb NOT NULL
);

-- A tier's row as windows. What is in flight at once is one that never ends. In PL/pgSQL, since the planner fails on such a
-- function of whole rows when it inlines it.
CREATE FUNCTION watch.windows(
    s tier_state, OUT kind text, OUT label timestamptz, OUT requests bigint, OUT tokens bigint, OUT tokens_excess bigint,
    OUT cost bigint, OUT cost_excess bigint, OUT requests_held bigint, OUT tokens_held bigint, OUT cost_held bigint
) RETURNS SETOF record
LANGUAGE plpgsql IMMUTABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    VALUES
    ('minute', s.minute_start, s.minute_requests_used, s.minute_tokens_used, s.minute_tokens_excess, s.minute_cost_used,
     s.minute_cost_excess, s.minute_requests_held, s.minute_tokens_held, s.minute_cost_held),
    ('day', s.day_start, s.day_requests_used, s.day_tokens_used, s.day_tokens_excess, s.day_cost_used,
     s.day_cost_excess, s.day_requests_held, s.day_tokens_held, s.day_cost_held),
    ('month', s.month_start, s.month_requests_used, s.month_tokens_used, s.month_tokens_excess, s.month_cost_used,
     s.month_cost_excess, s.month_requests_held, s.month_tokens_held, s.month_cost_held),
    ('flight', timestamptz 'epoch', 0, 0, 0, 0, 0, s.open_calls, 0, 0);
END $$;

-- The windows that a call of this moment counts in.
CREATE FUNCTION watch.windows_at(
    p_project_id bigint, p_key_id bigint, p_at timestamptz,
    OUT tier smallint, OUT id bigint, OUT kind text, OUT label timestamptz
) RETURNS SETOF record
LANGUAGE sql STABLE AS $$
    SELECT d.tier, d.id, w.kind, w.label
      FROM (SELECT 1::smallint AS tier, p.id, p.time_zone FROM public.projects p WHERE p.id = p_project_id
            UNION ALL
            SELECT 2::smallint, k.id, k.time_zone FROM public.api_keys k WHERE k.id = p_key_id AND k.kind = 'gateway') d
           CROSS JOIN LATERAL (VALUES ('minute', date_trunc('minute', p_at, 'UTC')),
                                      ('day', date_trunc('day', p_at, d.time_zone)),
                                      ('month', date_trunc('month', p_at, d.time_zone))) w (kind, label)
     WHERE w.kind <> 'minute' OR p_key_id IS NOT NULL
$$;

-- The windows that an open row says it counts in.
CREATE FUNCTION watch.windows_of(
    o requests_open, OUT tier smallint, OUT id bigint, OUT kind text, OUT label timestamptz
) RETURNS SETOF record
LANGUAGE plpgsql IMMUTABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.tier, t.id, w.kind, w.label
      FROM (SELECT 1::smallint AS tier, o.project_id AS id, o.project_day AS day, o.project_month AS month
            UNION ALL
            SELECT 2::smallint, o.api_key_id, o.key_day, o.key_month WHERE o.key_tier) t
           CROSS JOIN LATERAL (VALUES ('minute', o.minute_start), ('day', t.day), ('month', t.month),
                                      ('flight', CASE WHEN o.minute_start IS NOT NULL THEN timestamptz 'epoch' END))
                              w (kind, label)
     WHERE w.label IS NOT NULL;
END $$;

-- Caps as they are stored, each with what it is a cap of, and since when its window of now runs.
CREATE VIEW watch.caps AS
    SELECT d.tier, d.id, c.kind, c.measure, c.cap,
           CASE c.kind WHEN 'flight' THEN timestamptz 'epoch'
                       WHEN 'minute' THEN date_trunc('minute', clock_timestamp(), 'UTC')
                       ELSE date_trunc(c.kind, clock_timestamp(), d.time_zone) END AS running_since
      FROM (SELECT 1::smallint AS tier, id, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day,
                   tokens_per_month, cost_per_day, cost_per_month, concurrent_requests
              FROM projects
            UNION ALL
            SELECT 2::smallint, id, time_zone, requests_per_minute, tokens_per_minute, tokens_per_day, tokens_per_month,
                   cost_per_day, cost_per_month, concurrent_requests
              FROM api_keys WHERE kind = 'gateway') d
           CROSS JOIN LATERAL (VALUES
               ('minute', 'requests', d.requests_per_minute), ('minute', 'tokens', d.tokens_per_minute),
               ('day', 'tokens', d.tokens_per_day), ('month', 'tokens', d.tokens_per_month),
               ('day', 'cost', d.cost_per_day), ('month', 'cost', d.cost_per_month),
               ('flight', 'requests', d.concurrent_requests)) c (kind, measure, cap)
     WHERE c.cap > 0;

CREATE FUNCTION watch.note_tiers() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, watch, pg_temp AS $$
BEGIN
    INSERT INTO watch.commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'tier', o.tier, o.id, w.kind, w.label, -w.requests, -w.tokens - w.tokens_excess,
               -w.cost - w.cost_excess, -w.requests_held, -w.tokens_held, -w.cost_held
          FROM old_rows o CROSS JOIN LATERAL watch.windows(ROW(o.*)::tier_state) w;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'tier', n.tier, n.id, w.kind, w.label, w.requests, w.tokens + w.tokens_excess,
               w.cost + w.cost_excess, w.requests_held, w.tokens_held, w.cost_held
          FROM new_rows n CROSS JOIN LATERAL watch.windows(ROW(n.*)::tier_state) w;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO watch.breaches (xid, rule, detail)
        SELECT pg_current_xact_id(), 'a window runs backwards', jsonb_build_object('from', to_jsonb(o), 'to', to_jsonb(n))
          FROM old_rows o JOIN new_rows n USING (tier, id, generation)
         WHERE n.minute_start < o.minute_start OR n.day_start < o.day_start OR n.month_start < o.month_start;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION watch.note_counters() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, watch, pg_temp AS $$
BEGIN
    INSERT INTO watch.commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'counter', tier, id, window_kind, window_start, -requests_used,
               -tokens_used - tokens_excess, -cost_used - cost_excess, 0, 0, 0
          FROM old_rows;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'counter', tier, id, window_kind, window_start, requests_used,
               tokens_used + tokens_excess, cost_used + cost_excess, 0, 0, 0
          FROM new_rows;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION watch.note_logs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, watch, pg_temp AS $$
BEGIN
    INSERT INTO watch.commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'log', w.tier, w.id, w.kind, w.label, o.charged_requests, o.charged_tokens,
               o.charged_cost, 0, 0, 0
          FROM old_rows o CROSS JOIN LATERAL watch.windows_at(o.project_id, o.api_key_id, o.admitted_at) w;
        INSERT INTO watch.touched SELECT pg_current_xact_id(), request_id FROM old_rows;
        INSERT INTO watch.breaches (xid, rule, detail)
        SELECT pg_current_xact_id(), 'a log row that was no estimate of a lost edge was changed or removed', to_jsonb(o)
          FROM old_rows o WHERE o.state <> 'estimated' OR o.error_code IS DISTINCT FROM 'edge_lost';
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'log', w.tier, w.id, w.kind, w.label, -n.charged_requests, -n.charged_tokens,
               -n.charged_cost, 0, 0, 0
          FROM new_rows n CROSS JOIN LATERAL watch.windows_at(n.project_id, n.api_key_id, n.admitted_at) w;
        INSERT INTO watch.touched SELECT pg_current_xact_id(), request_id FROM new_rows;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION watch.note_open() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, watch, pg_temp AS $$
BEGIN
    INSERT INTO watch.commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'closed', w.tier, w.id, w.kind, w.label, 0, 0, 0,
               CASE WHEN o.minute_start IS NULL THEN 0 ELSE 1 END, CASE WHEN w.kind = 'flight' THEN 0 ELSE o.held_tokens END,
               CASE WHEN w.kind = 'flight' THEN 0 ELSE o.held_cost END
          FROM old_rows o CROSS JOIN LATERAL watch.windows_of(ROW(o.*)::requests_open) w;
        INSERT INTO watch.touched SELECT pg_current_xact_id(), request_id FROM old_rows;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO watch.moves
        SELECT pg_current_xact_id(), 'opened', w.tier, w.id, w.kind, w.label, 0, 0, 0,
               CASE WHEN n.minute_start IS NULL THEN 0 ELSE -1 END,
               CASE WHEN w.kind = 'flight' THEN 0 ELSE -n.held_tokens END,
               CASE WHEN w.kind = 'flight' THEN 0 ELSE -n.held_cost END
          FROM new_rows n CROSS JOIN LATERAL watch.windows_of(ROW(n.*)::requests_open) w;
        INSERT INTO watch.touched SELECT pg_current_xact_id(), request_id FROM new_rows;
        INSERT INTO watch.calls (request_id, number, admitted_at, instance_id, project_id, api_key_id, held_tokens, held_cost)
        SELECT request_id, (details #>> '{tags,call}')::bigint, admitted_at, instance_id, project_id, api_key_id,
               held_tokens, held_cost
          FROM new_rows
        -- An admission that was taken back and made again.
        ON CONFLICT (request_id) DO UPDATE SET admitted_at = excluded.admitted_at, instance_id = excluded.instance_id,
            project_id = excluded.project_id, api_key_id = excluded.api_key_id, held_tokens = excluded.held_tokens,
            held_cost = excluded.held_cost;
        INSERT INTO watch.breaches (xid, rule, detail)
        SELECT pg_current_xact_id(), 'an open call holds in other windows than those of its admission', to_jsonb(n)
          FROM new_rows n
         WHERE EXISTS (SELECT tier, id, kind, label FROM watch.windows_of(ROW(n.*)::requests_open) WHERE kind <> 'flight'
                       EXCEPT SELECT tier, id, kind, label FROM watch.windows_at(n.project_id, n.api_key_id, n.admitted_at))
            OR EXISTS (SELECT tier, id, kind, label FROM watch.windows_at(n.project_id, n.api_key_id, n.admitted_at)
                       EXCEPT SELECT tier, id, kind, label FROM watch.windows_of(ROW(n.*)::requests_open));
    END IF;
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO watch.breaches (xid, rule, detail)
        SELECT pg_current_xact_id(), 'an open call was changed', jsonb_build_object('from', to_jsonb(o), 'to', to_jsonb(n))
          FROM old_rows o JOIN new_rows n USING (request_id);
    END IF;
    RETURN NULL;
END $$;

-- Caps are checked as well when it is they that change.
CREATE FUNCTION watch.note_caps() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, watch, pg_temp AS $$
BEGIN
    INSERT INTO watch.commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    INSERT INTO watch.moves
    SELECT pg_current_xact_id(), 'caps', CASE TG_TABLE_NAME WHEN 'projects' THEN 1 ELSE 2 END, id, 'flight',
           timestamptz 'epoch', 0, 0, 0, 0, 0, 0
      FROM new_rows;
    RETURN NULL;
END $$;

CREATE FUNCTION watch.check_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, watch, pg_temp AS $$
DECLARE
    v_xid xid8 := NEW.xid;
BEGIN
    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, 'what is used does not move by what the log charges',
           jsonb_build_object('tier', tier, 'id', id, 'kind', kind, 'label', label, 'requests', sum(requests),
                              'tokens', sum(tokens), 'cost', sum(cost))
      FROM watch.moves WHERE xid = v_xid
     GROUP BY tier, id, kind, label
    HAVING sum(requests) <> 0 OR sum(tokens) <> 0 OR sum(cost) <> 0;

    -- What was held in a window that has closed is dropped with it.
    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, 'what is held does not move by what open calls hold',
           jsonb_build_object('tier', m.tier, 'id', m.id, 'kind', m.kind, 'label', m.label, 'requests', sum(m.requests_held),
                              'tokens', sum(m.tokens_held), 'cost', sum(m.cost_held))
      FROM watch.moves m
           JOIN tier_state s ON s.tier = m.tier AND s.id = m.id
           JOIN LATERAL watch.windows(s) w ON w.kind = m.kind AND w.label = m.label
     WHERE m.xid = v_xid
     GROUP BY m.tier, m.id, m.kind, m.label
    HAVING sum(m.requests_held) <> 0 OR sum(m.tokens_held) <> 0 OR sum(m.cost_held) <> 0;

    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, 'a tier has not one running row', jsonb_build_object('tier', m.tier, 'id', m.id, 'rows', count(s.tier))
      FROM (SELECT DISTINCT tier, id FROM watch.moves WHERE xid = v_xid AND source <> 'caps') m
           LEFT JOIN tier_state s ON s.tier = m.tier AND s.id = m.id
     GROUP BY m.tier, m.id
    HAVING count(s.tier) <> 1;

    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, 'a figure is below zero, or a generation too old', to_jsonb(s) || jsonb_build_object('kind', w.kind)
      FROM (SELECT DISTINCT tier, id FROM watch.moves WHERE xid = v_xid) m
           JOIN tier_state s ON s.tier = m.tier AND s.id = m.id
           CROSS JOIN LATERAL watch.windows(s) w
     WHERE least(w.requests, w.tokens, w.tokens_excess, w.cost, w.cost_excess, w.requests_held, w.tokens_held, w.cost_held) < 0
        OR s.updates > 500;

    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, CASE WHEN b.used + b.held > b.cap THEN 'used and held are over a cap' ELSE 'a call was admitted over a cap' END,
           to_jsonb(b)
      FROM (SELECT c.*, w.label,
                   CASE c.measure WHEN 'requests' THEN w.requests WHEN 'tokens' THEN w.tokens ELSE w.cost END AS used,
                   CASE c.measure WHEN 'requests' THEN 0 WHEN 'tokens' THEN w.tokens_excess ELSE w.cost_excess END AS excess,
                   CASE c.measure WHEN 'requests' THEN w.requests_held WHEN 'tokens' THEN w.tokens_held
                                  ELSE w.cost_held END AS held,
                   m.admits
              FROM (SELECT tier, id, bool_or(source = 'opened') AS admits
                      FROM watch.moves WHERE xid = v_xid GROUP BY tier, id) m
                   JOIN watch.caps c ON c.tier = m.tier AND c.id = m.id
                   JOIN tier_state s ON s.tier = m.tier AND s.id = m.id
                   JOIN LATERAL watch.windows(s) w ON w.kind = c.kind) b
     -- A window that has ended stays in the row until the next admission, whatever cap was set since.
     WHERE (b.admits OR b.label >= b.running_since) AND b.used + b.held > b.cap
        OR b.admits AND b.used + b.excess + b.held > b.cap;

    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, CASE WHEN t.known THEN 'a call is in the ledger more than once' ELSE 'a call is logged that was never admitted' END,
           to_jsonb(t)
      FROM (SELECT d.request_id,
                   (SELECT count(*) FROM requests_open o WHERE o.request_id = d.request_id) AS open,
                   (SELECT count(*) FROM request_logs l WHERE l.request_id = d.request_id) AS logged,
                   EXISTS (SELECT FROM watch.calls c WHERE c.request_id = d.request_id) AS known
              FROM (SELECT DISTINCT request_id FROM watch.touched WHERE xid = v_xid) d) t
     WHERE t.open + t.logged > 1 OR NOT t.known;

    INSERT INTO watch.breaches (xid, rule, detail)
    SELECT v_xid, 'a call is logged as another one', jsonb_build_object('admitted', to_jsonb(c), 'logged', to_jsonb(l))
      FROM (SELECT DISTINCT request_id FROM watch.touched WHERE xid = v_xid) d
           JOIN watch.calls c USING (request_id)
           JOIN request_logs l USING (request_id)
     WHERE l.project_id <> c.project_id OR l.api_key_id IS DISTINCT FROM c.api_key_id
        OR (l.tags ->> 'call')::bigint <> c.number;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER checked AFTER INSERT ON watch.commits
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION watch.check_commit();

DO $$
DECLARE
    v_watched record;
BEGIN
    FOR v_watched IN
        SELECT * FROM (VALUES ('tier_state', 'note_tiers'), ('usage_counters', 'note_counters'), ('request_logs', 'note_logs'),
                              ('requests_open', 'note_open')) t (name, note)
               CROSS JOIN (VALUES ('INSERT', 'NEW TABLE AS new_rows'), ('DELETE', 'OLD TABLE AS old_rows'),
                                  ('UPDATE', 'OLD TABLE AS old_rows NEW TABLE AS new_rows')) e (event, tables)
    LOOP
        EXECUTE format('CREATE TRIGGER watched_%s AFTER %s ON %I REFERENCING %s FOR EACH STATEMENT EXECUTE FUNCTION watch.%I()',
                       lower(v_watched.event), v_watched.event, v_watched.name, v_watched.tables, v_watched.note);
    END LOOP;
END $$;
CREATE TRIGGER watched_update AFTER UPDATE ON projects
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION watch.note_caps();
CREATE TRIGGER watched_update AFTER UPDATE ON api_keys
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION watch.note_caps();

-- What is used, with excess, and held of everything that a tier's caps limit, in the windows of now.
CREATE FUNCTION watch.meters(
    p_tier smallint, p_id bigint,
    OUT kind text, OUT measure text, OUT label timestamptz, OUT used bigint, OUT held bigint
) RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = public, watch, pg_temp AS $$
    SELECT m.kind, m.measure, m.label,
           CASE WHEN w.label IS NULL THEN 0 ELSE CASE m.measure
               WHEN 'requests' THEN w.requests WHEN 'tokens' THEN w.tokens + w.tokens_excess ELSE w.cost + w.cost_excess END END,
           CASE WHEN w.label IS NULL THEN 0 ELSE CASE m.measure
               WHEN 'requests' THEN w.requests_held WHEN 'tokens' THEN w.tokens_held ELSE w.cost_held END END
      FROM (SELECT time_zone, clock_timestamp() AS now FROM projects WHERE p_tier = 1 AND id = p_id
            UNION ALL
            SELECT time_zone, clock_timestamp() FROM api_keys WHERE p_tier = 2 AND id = p_id) d
           CROSS JOIN LATERAL (VALUES
               ('minute', 'requests', date_trunc('minute', d.now, 'UTC')),
               ('minute', 'tokens', date_trunc('minute', d.now, 'UTC')),
               ('day', 'tokens', date_trunc('day', d.now, d.time_zone)),
               ('day', 'cost', date_trunc('day', d.now, d.time_zone)),
               ('month', 'tokens', date_trunc('month', d.now, d.time_zone)),
               ('month', 'cost', date_trunc('month', d.now, d.time_zone)),
               ('flight', 'requests', timestamptz 'epoch')) m (kind, measure, label)
           LEFT JOIN tier_state s ON s.tier = p_tier AND s.id = p_id
           LEFT JOIN LATERAL watch.windows(s) w ON w.kind = m.kind AND w.label = m.label
$$;

-- What every window has used, held and charged altogether, where the sides differ; to be asked at any moment. Used and
-- excess are told apart by what each call held.
CREATE FUNCTION watch.differences() RETURNS SETOF jsonb
LANGUAGE sql STABLE SET search_path = public, watch, pg_temp AS $$
    WITH counted AS (
        SELECT tier, id, kind, label, sum(requests) AS requests, sum(tokens) AS tokens, sum(tokens_excess) AS tokens_excess,
               sum(cost) AS cost, sum(cost_excess) AS cost_excess
          FROM (SELECT s.tier, s.id, w.kind, w.label, w.requests, w.tokens, w.tokens_excess, w.cost, w.cost_excess
                  FROM tier_state s CROSS JOIN LATERAL watch.windows(s) w WHERE w.kind <> 'flight'
                UNION ALL
                SELECT tier, id, window_kind, window_start, requests_used, tokens_used, tokens_excess, cost_used, cost_excess
                  FROM usage_counters) u
         GROUP BY tier, id, kind, label
    ), charged AS (
        SELECT w.tier, w.id, w.kind, w.label, sum(l.charged_requests) AS requests,
               sum(least(l.charged_tokens, c.held_tokens)) AS tokens,
               sum(greatest(l.charged_tokens - c.held_tokens, 0)) AS tokens_excess,
               sum(least(l.charged_cost, c.held_cost)) AS cost,
               sum(greatest(l.charged_cost - c.held_cost, 0)) AS cost_excess
          FROM request_logs l
               LEFT JOIN watch.calls c USING (request_id)
               CROSS JOIN LATERAL watch.windows_at(l.project_id, l.api_key_id, l.admitted_at) w
         GROUP BY w.tier, w.id, w.kind, w.label
    ), holds AS (
        SELECT s.tier, s.id, w.kind, w.label, w.requests_held, w.tokens_held, w.cost_held
          FROM tier_state s CROSS JOIN LATERAL watch.windows(s) w
    ), held AS (
        SELECT w.tier, w.id, w.kind, w.label, count(o.minute_start) AS requests_held,
               sum(CASE WHEN w.kind = 'flight' THEN 0 ELSE o.held_tokens END) AS tokens_held,
               sum(CASE WHEN w.kind = 'flight' THEN 0 ELSE o.held_cost END) AS cost_held
          FROM requests_open o CROSS JOIN LATERAL watch.windows_of(o) w
         GROUP BY w.tier, w.id, w.kind, w.label
    )
    SELECT jsonb_build_object('counted', to_jsonb(a), 'charged', to_jsonb(b))
      FROM counted a FULL JOIN charged b USING (tier, id, kind, label)
     WHERE (coalesce(a.requests, 0), coalesce(a.tokens, 0), coalesce(a.tokens_excess, 0), coalesce(a.cost, 0),
            coalesce(a.cost_excess, 0))
        <> (coalesce(b.requests, 0), coalesce(b.tokens, 0), coalesce(b.tokens_excess, 0), coalesce(b.cost, 0),
            coalesce(b.cost_excess, 0))
    UNION ALL
    SELECT jsonb_build_object('holds', to_jsonb(a), 'held', to_jsonb(b))
      FROM holds a LEFT JOIN held b USING (tier, id, kind, label)
     WHERE (a.requests_held, a.tokens_held, a.cost_held)
        <> (coalesce(b.requests_held, 0), coalesce(b.tokens_held, 0), coalesce(b.cost_held, 0))
    UNION ALL
    SELECT jsonb_build_object('neither open nor logged', to_jsonb(c))
      FROM watch.calls c
     WHERE NOT EXISTS (SELECT FROM requests_open o WHERE o.request_id = c.request_id)
       AND NOT EXISTS (SELECT FROM request_logs l WHERE l.request_id = c.request_id AND l.admitted_at = c.admitted_at)
$$;

-- What an operator's pg_dump reads as the owner.
GRANT USAGE ON SCHEMA watch TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA watch TO PUBLIC;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA watch TO PUBLIC;
