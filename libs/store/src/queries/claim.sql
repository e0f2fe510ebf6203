WITH RECURSIVE walk (store_id, position) AS (
    -- A loose index scan: the next stores with something waiting, after the cursor, one index probe each.
    (SELECT d.store_id, 1 FROM documents d WHERE d.status = 'pending' AND d.store_id > $1 ORDER BY d.store_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.store_id FROM documents d
             WHERE d.status = 'pending' AND d.store_id > w.store_id ORDER BY d.store_id LIMIT 1), w.position + 1
      FROM walk w WHERE w.store_id IS NOT NULL AND w.position < $2
),
lanes AS MATERIALIZED (
    -- How many documents each may have now: none while its provider is left alone, one to try that provider with, and
    -- never more than the store lets run at one time.
    SELECT w.store_id, w.position, store.room
      FROM walk w
           CROSS JOIN LATERAL (
               SELECT CASE WHEN s.embedding_connection_id = ANY ($8::bigint[]) THEN 0
                           ELSE least(CASE WHEN s.embedding_connection_id = ANY ($9::bigint[]) THEN 1 ELSE $3::bigint END,
                                      CASE WHEN s.max_running = 0 THEN $3 ELSE greatest(0, s.max_running -
                                          (SELECT count(*) FROM documents r
                                            WHERE r.status = 'processing' AND r.store_id = s.id)) END)
                      END AS room
                 FROM document_stores s WHERE s.id = w.store_id LIMIT 1
           ) store
),
lapsed AS MATERIALIZED (
    SELECT id, attempts, attempts - parser_deaths >= $10 AS is_suspect FROM documents
     WHERE status = 'processing' AND lease_until < clock_timestamp()
     ORDER BY id LIMIT $3 + 100 FOR UPDATE SKIP LOCKED
),
exhausted AS (
    UPDATE documents d SET status = 'failed', error_code = 'gave_up_after_attempts', error_text = $6, claimed_by = NULL,
                           claimed_at = NULL, lease_until = NULL, stage = NULL, claim_token = d.claim_token + 1,
                           updated_at = clock_timestamp()
      FROM lapsed WHERE d.id = lapsed.id AND lapsed.attempts >= $5
),
due AS MATERIALIZED (
    SELECT l.position, waiting.priority, waiting.run_at, waiting.id
      FROM lanes l
           CROSS JOIN LATERAL (
               SELECT d.priority, d.run_at, d.id FROM documents d
                WHERE d.status = 'pending' AND d.store_id = l.store_id AND d.run_at <= clock_timestamp()
                ORDER BY d.priority, d.run_at, d.id LIMIT l.room FOR UPDATE SKIP LOCKED
           ) waiting
),
chosen AS MATERIALIZED (
    -- Lapsed leases first; then one document of each store, then the second of each, and so on.
    SELECT id, position FROM (
        SELECT 0 AS class, 0::bigint AS turn, 0 AS position, id
          FROM (SELECT id, is_suspect, row_number() OVER (PARTITION BY is_suspect ORDER BY id) AS number
                  FROM lapsed WHERE attempts < $5) old
         WHERE NOT is_suspect OR number <= $11
        UNION ALL
        SELECT 1, row_number() OVER (PARTITION BY position ORDER BY priority, run_at, id), position, id FROM due
    ) candidates
    ORDER BY class, turn, position LIMIT $3
),
claimed AS (
    UPDATE documents d
       SET status = 'processing', claim_token = d.claim_token + 1, attempts = d.attempts + 1, claimed_by = $4,
           claimed_at = clock_timestamp(), lease_until = clock_timestamp() + $7::bigint * interval '1 millisecond',
           stage = 'claimed', progress_done = 0, progress_total = 0, error_code = NULL, error_text = NULL,
           updated_at = clock_timestamp()
      FROM chosen WHERE d.id = chosen.id
    RETURNING d.id, d.store_id, d.content_version, d.claim_token, d.attempts, d.retries, d.parser_deaths, d.blob_id, d.size,
              d.file_name, d.media_type
),
seen AS (
    -- Fewer than a store has and may have: somebody else was at them.
    SELECT bool_or((SELECT count(*) FROM due WHERE due.position = l.position) <
                   (SELECT count(*) FROM (SELECT FROM documents d
                                           WHERE d.status = 'pending' AND d.store_id = l.store_id
                                             AND d.run_at <= clock_timestamp() LIMIT l.room) there)) AS contended
      FROM lanes l
)
-- The last store that was looked at; but where not all had their turn, the last that had it, and the next turn is that
-- of the one after it.
SELECT CASE WHEN EXISTS (SELECT FROM due WHERE position > (SELECT coalesce(max(position), 0) FROM chosen))
            THEN coalesce((SELECT l.store_id FROM lanes l JOIN chosen USING (position) ORDER BY position DESC LIMIT 1), $1)
            ELSE (SELECT l.store_id FROM lanes l ORDER BY l.position DESC LIMIT 1) END AS next_cursor,
       coalesce(seen.contended, false) AS "contended!",
       claimed.id AS "id?", claimed.store_id AS "store_id?", claimed.content_version AS "content_version?",
       claimed.claim_token AS "claim_token?", claimed.attempts AS "attempts?", claimed.retries AS "retries?",
       claimed.parser_deaths AS "parser_deaths?",
       claimed.blob_id AS "blob_id?", claimed.size AS "size?", claimed.file_name AS "file_name?",
       claimed.media_type AS "media_type?",
       (SELECT s.embedding_connection_id FROM document_stores s WHERE s.id = claimed.store_id) AS "connection_id?"
  FROM seen LEFT JOIN claimed ON true
