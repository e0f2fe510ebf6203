WITH RECURSIVE walk (store_id, position) AS (
    -- A loose index scan: the next stores with something waiting, after the cursor, one index probe each.
    (SELECT d.store_id, 1 FROM documents d WHERE d.status = 'pending' AND d.store_id > $1 ORDER BY d.store_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.store_id FROM documents d
             WHERE d.status = 'pending' AND d.store_id > w.store_id ORDER BY d.store_id LIMIT 1), w.position + 1
      FROM walk w WHERE w.store_id IS NOT NULL AND w.position < $2
),
looked_at AS MATERIALIZED (SELECT store_id, position FROM walk WHERE store_id IS NOT NULL),
exhausted AS (
    UPDATE documents SET status = 'failed', error_code = 'gave_up_after_attempts', error_text = $6, claimed_by = NULL,
                         claimed_at = NULL, lease_until = NULL, stage = NULL, claim_token = claim_token + 1,
                         updated_at = clock_timestamp()
     WHERE id IN (SELECT id FROM documents
                   WHERE status = 'processing' AND lease_until < clock_timestamp() AND attempts >= $5
                   ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED)
),
lapsed AS MATERIALIZED (
    SELECT id FROM documents
     WHERE status = 'processing' AND lease_until < clock_timestamp() AND attempts < $5
     ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED
),
due AS MATERIALIZED (
    SELECT l.position, waiting.priority, waiting.run_at, waiting.id
      FROM looked_at l
           JOIN document_stores s ON s.id = l.store_id
           CROSS JOIN LATERAL (
               SELECT d.priority, d.run_at, d.id FROM documents d
                WHERE d.status = 'pending' AND d.store_id = l.store_id AND d.run_at <= clock_timestamp()
                ORDER BY d.priority, d.run_at, d.id
                LIMIT least($3, CASE WHEN s.max_running = 0 THEN $3 ELSE greatest(0, s.max_running -
                    (SELECT count(*) FROM documents r WHERE r.status = 'processing' AND r.store_id = l.store_id)) END)
                FOR UPDATE SKIP LOCKED
           ) waiting
),
chosen AS MATERIALIZED (
    -- Lapsed leases first; then one document of each store, then the second of each, and so on.
    SELECT id FROM (
        SELECT 0 AS class, 0::bigint AS turn, 0 AS position, id FROM lapsed
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
)
SELECT (SELECT store_id FROM looked_at ORDER BY position DESC LIMIT 1) AS window_end, claimed.id AS "id?",
       claimed.store_id AS "store_id?", claimed.content_version AS "content_version?",
       claimed.claim_token AS "claim_token?", claimed.attempts AS "attempts?", claimed.retries AS "retries?",
       claimed.parser_deaths AS "parser_deaths?",
       claimed.blob_id AS "blob_id?", claimed.size AS "size?", claimed.file_name AS "file_name?",
       claimed.media_type AS "media_type?"
  FROM (SELECT 1) AS one LEFT JOIN claimed ON true
