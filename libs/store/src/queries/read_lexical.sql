-- One statement, so that postings and segments are of one moment: a fold that commits in between would hide from one
-- what the other still has.
WITH live AS MATERIALIZED (
    SELECT s.id, s.chunk_count, s.total_length
      FROM posting_segments s
           LEFT JOIN documents d ON d.id = s.document_id
     WHERE s.store_id = $1 AND (s.document_id IS NULL OR d.live_version = s.content_version)
), found AS MATERIALIZED (
    SELECT p.term, p.segment_id, p.ordinals, p.frequencies
      FROM postings p
     WHERE p.store_id = $1 AND p.term = ANY ($2) AND p.segment_id IN (SELECT id FROM live)
)
SELECT f.term, f.segment_id AS segment, f.ordinals, f.frequencies,
       NULL::bigint AS document, NULL::integer AS content_version, NULL::integer AS first_ordinal,
       NULL::integer[] AS lengths, NULL::bigint AS chunks, NULL::bigint AS terms
  FROM found f
UNION ALL
SELECT NULL, s.id, NULL, NULL, s.document_id, s.content_version, s.first_ordinal, s.lengths, NULL, NULL
  FROM posting_segments s
 WHERE s.id IN (SELECT segment_id FROM found)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, coalesce(sum(chunk_count), 0)::bigint,
       coalesce(sum(total_length), 0)::bigint
  FROM live
