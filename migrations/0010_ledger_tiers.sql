-- Admission, settlement and the rules for crashes, as the services call them from here on. admit_v1 and settle_v1 stay for
-- processes of the version before. This file is what all of them stand on.

-- A crash of PostgreSQL, and a promotion of a standby, empties this table and nothing else does: whoever finds another
-- epoch than the one it knew has lost up to 0.6 s of asynchronous commits and puts its live calls back.
CREATE UNLOGGED TABLE ledger_epoch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch    uuid NOT NULL DEFAULT gen_random_uuid()
);

CREATE FUNCTION current_ledger_epoch() RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    v_epoch uuid;
BEGIN
    SELECT epoch INTO v_epoch FROM ledger_epoch;
    IF NOT FOUND THEN
        INSERT INTO ledger_epoch DEFAULT VALUES ON CONFLICT DO NOTHING;
        SELECT epoch INTO STRICT v_epoch FROM ledger_epoch;
    END IF;
    RETURN v_epoch;
END $$;

-- The start of the window that follows the one that starts at p_start, in the zone's calendar, as before, and right too
-- where clocks change at midnight: a day that begins at one o'clock ends at midnight, and where midnight comes twice the
-- first one ends the day.
CREATE OR REPLACE FUNCTION window_end(p_window text, p_start timestamptz, p_zone text) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_window = 'minute' THEN p_start + interval '1 minute'
                WHEN f.first < e.ends_at AND f.first AT TIME ZONE p_zone = n.midnight THEN f.first
                ELSE e.ends_at END
      FROM (SELECT date_trunc(p_window, p_start AT TIME ZONE p_zone) + ('1 ' || p_window)::interval) n (midnight)
           CROSS JOIN LATERAL (SELECT n.midnight AT TIME ZONE p_zone) e (ends_at)
           CROSS JOIN LATERAL (SELECT e.ends_at - interval '3 hours') b (before)
           -- When it would be midnight had no clock been changed since.
           CROSS JOIN LATERAL (SELECT b.before + (n.midnight - b.before AT TIME ZONE p_zone)) f (first)
$$;

-- Adds to a tier's running row, or to usage_counters for windows that have closed since; every number is a difference.
-- The caller holds the tier's definition row. What was held in a closed window was dropped when it closed. Without a
-- minute (work of our own) nothing is added to the minute.
CREATE FUNCTION add_to_tier(
    p_tier smallint, p_id bigint, p_minute timestamptz, p_day timestamptz, p_month timestamptz,
    p_calls bigint, p_requests_held bigint, p_tokens_held bigint, p_cost_held bigint, p_requests bigint,
    p_tokens bigint, p_cost bigint, p_tokens_excess bigint, p_cost_excess bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_row        tier_state;
    v_updates    integer;
    v_generation bigint;
    v_minute     timestamptz;
    v_day        timestamptz;
    v_month      timestamptz;
BEGIN
    UPDATE tier_state s SET
        updates = s.updates + 1,
        open_calls = s.open_calls + p_calls,
        minute_requests_held = s.minute_requests_held + CASE WHEN s.minute_start = p_minute THEN p_requests_held ELSE 0 END,
        minute_requests_used = s.minute_requests_used + CASE WHEN s.minute_start = p_minute THEN p_requests ELSE 0 END,
        minute_tokens_held = s.minute_tokens_held + CASE WHEN s.minute_start = p_minute THEN p_tokens_held ELSE 0 END,
        minute_tokens_used = s.minute_tokens_used + CASE WHEN s.minute_start = p_minute THEN p_tokens ELSE 0 END,
        minute_tokens_excess = s.minute_tokens_excess + CASE WHEN s.minute_start = p_minute THEN p_tokens_excess ELSE 0 END,
        minute_cost_held = s.minute_cost_held + CASE WHEN s.minute_start = p_minute THEN p_cost_held ELSE 0 END,
        minute_cost_used = s.minute_cost_used + CASE WHEN s.minute_start = p_minute THEN p_cost ELSE 0 END,
        minute_cost_excess = s.minute_cost_excess + CASE WHEN s.minute_start = p_minute THEN p_cost_excess ELSE 0 END,
        day_requests_held = s.day_requests_held + CASE WHEN s.day_start = p_day THEN p_requests_held ELSE 0 END,
        day_requests_used = s.day_requests_used + CASE WHEN s.day_start = p_day THEN p_requests ELSE 0 END,
        day_tokens_held = s.day_tokens_held + CASE WHEN s.day_start = p_day THEN p_tokens_held ELSE 0 END,
        day_tokens_used = s.day_tokens_used + CASE WHEN s.day_start = p_day THEN p_tokens ELSE 0 END,
        day_tokens_excess = s.day_tokens_excess + CASE WHEN s.day_start = p_day THEN p_tokens_excess ELSE 0 END,
        day_cost_held = s.day_cost_held + CASE WHEN s.day_start = p_day THEN p_cost_held ELSE 0 END,
        day_cost_used = s.day_cost_used + CASE WHEN s.day_start = p_day THEN p_cost ELSE 0 END,
        day_cost_excess = s.day_cost_excess + CASE WHEN s.day_start = p_day THEN p_cost_excess ELSE 0 END,
        month_requests_held = s.month_requests_held + CASE WHEN s.month_start = p_month THEN p_requests_held ELSE 0 END,
        month_requests_used = s.month_requests_used + CASE WHEN s.month_start = p_month THEN p_requests ELSE 0 END,
        month_tokens_held = s.month_tokens_held + CASE WHEN s.month_start = p_month THEN p_tokens_held ELSE 0 END,
        month_tokens_used = s.month_tokens_used + CASE WHEN s.month_start = p_month THEN p_tokens ELSE 0 END,
        month_tokens_excess = s.month_tokens_excess + CASE WHEN s.month_start = p_month THEN p_tokens_excess ELSE 0 END,
        month_cost_held = s.month_cost_held + CASE WHEN s.month_start = p_month THEN p_cost_held ELSE 0 END,
        month_cost_used = s.month_cost_used + CASE WHEN s.month_start = p_month THEN p_cost ELSE 0 END,
        month_cost_excess = s.month_cost_excess + CASE WHEN s.month_start = p_month THEN p_cost_excess ELSE 0 END
     WHERE s.tier = p_tier AND s.id = p_id
       AND s.generation = (SELECT max(g.generation) FROM tier_state g WHERE g.tier = p_tier AND g.id = p_id)
    RETURNING s.updates, s.generation, s.minute_start, s.day_start, s.month_start
      INTO v_updates, v_generation, v_minute, v_day, v_month;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_updates >= 500 THEN
        DELETE FROM tier_state WHERE tier = p_tier AND id = p_id AND generation = v_generation RETURNING * INTO v_row;
        v_row.generation := v_generation + 1;
        v_row.updates := 0;
        INSERT INTO tier_state SELECT (v_row).*;
    END IF;
    IF v_minute <> p_minute THEN
        PERFORM close_window(p_tier, p_id, 'minute', p_minute, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess);
    END IF;
    IF v_day <> p_day THEN
        PERFORM close_window(p_tier, p_id, 'day', p_day, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess);
    END IF;
    IF v_month <> p_month THEN
        PERFORM close_window(p_tier, p_id, 'month', p_month, p_requests, p_tokens, p_tokens_excess, p_cost, p_cost_excess);
    END IF;
END $$;

-- What every ledger call begins with: no row lock here waits for a disk (what makes it durable is the flush that follows a
-- settlement), and who holds a definition row for longer than a second makes the call unavailable, not late.
CREATE FUNCTION begin_ledger_call() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
END $$;

-- Locks the definition rows of tiers. Always projects first, then keys, each by id: everything that locks tiers does it
-- in this order.
CREATE FUNCTION lock_tiers(p_project_ids bigint[], p_key_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM projects WHERE id = ANY (p_project_ids) ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM api_keys WHERE id = ANY (p_key_ids) AND kind = 'gateway' ORDER BY id FOR NO KEY UPDATE;
END $$;

-- The tiers an open call counts in, with the windows it was admitted in.
CREATE FUNCTION tiers_of_call(
    p_call requests_open, OUT tier smallint, OUT id bigint, OUT day_start timestamptz, OUT month_start timestamptz
) RETURNS SETOF record
LANGUAGE sql IMMUTABLE AS $$
    SELECT 1::smallint, p_call.project_id, p_call.project_day, p_call.project_month
    UNION ALL
    SELECT 2::smallint, p_call.api_key_id, p_call.key_day, p_call.key_month WHERE p_call.key_tier
$$;

-- Gives back what these open calls hold, without a trace: nothing was sent for them. The caller holds their tiers'
-- definition rows. Returns how many there were.
CREATE FUNCTION forget_open_calls(p_request_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_share record;
    v_calls bigint := 0;
BEGIN
    FOR v_share IN
        WITH gone AS (DELETE FROM requests_open o WHERE o.request_id = ANY (p_request_ids) RETURNING o AS call)
        SELECT t.tier, t.id, (g.call).minute_start, t.day_start, t.month_start, count((g.call).minute_start) AS calls,
               sum((g.call).held_tokens)::bigint AS held_tokens, sum((g.call).held_cost)::bigint AS held_cost,
               count(*) AS rows
          FROM gone g CROSS JOIN LATERAL tiers_of_call(g.call) t
         GROUP BY 1, 2, 3, 4, 5
         ORDER BY 1, 2
    LOOP
        PERFORM add_to_tier(v_share.tier, v_share.id, v_share.minute_start, v_share.day_start, v_share.month_start,
                            -v_share.calls, -v_share.calls, -v_share.held_tokens, -v_share.held_cost, 0, 0, 0, 0, 0);
        v_calls := v_calls + CASE v_share.tier WHEN 1 THEN v_share.rows ELSE 0 END;
    END LOOP;
    RETURN v_calls;
END $$;
