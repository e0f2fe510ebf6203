WITH picked AS MATERIALIZED (
    -- Those that another process is folding are left to it.
    SELECT s.id, s.document_id, s.content_version, s.first_ordinal, s.lengths, s.chunk_count, s.chunk_ids
      FROM posting_segments s
     WHERE s.store_id = $1 AND s.id = ANY ($2)
       AND (s.document_id IS NULL
            OR EXISTS (SELECT FROM documents d WHERE d.id = s.document_id AND d.live_version = s.content_version))
     ORDER BY s.id
       FOR UPDATE OF s SKIP LOCKED
), live AS MATERIALIZED (
    SELECT p.id AS segment, c.ordinal, p.lengths[c.ordinal - p.first_ordinal + 1] AS length, c.id AS chunk
      FROM picked p
           JOIN chunks c ON c.document_id = p.document_id AND c.content_version = p.content_version
                AND c.ordinal >= p.first_ordinal AND c.ordinal < p.first_ordinal + p.chunk_count
    UNION ALL
    SELECT p.id, (n.place - 1)::integer, p.lengths[n.place], c.id
      FROM picked p
           CROSS JOIN LATERAL unnest(p.chunk_ids) WITH ORDINALITY n (chunk, place)
           JOIN chunks c ON c.id = n.chunk
           JOIN documents d ON d.id = c.document_id AND d.live_version = c.content_version
), numbered AS MATERIALIZED (
    SELECT segment, ordinal, length, chunk, (row_number() OVER (ORDER BY segment, ordinal) - 1)::integer AS place
      FROM live
), made AS (
    INSERT INTO posting_segments (store_id, first_ordinal, lengths, chunk_count, total_length, chunk_ids,
                                  checked_revision)
    SELECT $1, 0, array_agg(length ORDER BY place), count(*)::integer, sum(length)::bigint,
           array_agg(chunk ORDER BY place), $3
      FROM numbered HAVING count(*) > 0
    RETURNING id
), written AS (
    INSERT INTO postings (store_id, term, segment_id, ordinals, frequencies)
    SELECT $1, t.term, made.id, array_agg(n.place ORDER BY n.place), array_agg(u.frequency ORDER BY n.place)
      FROM made
           CROSS JOIN picked p
           JOIN postings t ON t.segment_id = p.id
           CROSS JOIN LATERAL unnest(t.ordinals, t.frequencies) u (ordinal, frequency)
           JOIN numbered n ON n.segment = p.id AND n.ordinal = u.ordinal
     GROUP BY t.term, made.id
), gone AS (
    DELETE FROM posting_segments s USING picked p WHERE s.id = p.id
)
SELECT (SELECT count(*) FROM picked) AS "folded!", (SELECT count(*) FROM numbered) AS "chunks!"
