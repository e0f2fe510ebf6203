-- Segments of many documents. A batch of chunks makes a segment of its own, so a store of many small documents has as
-- many segments as documents; a job folds them into few large ones. A folded segment names its chunks, which may be of
-- any documents: whether one is live is asked of the chunk itself.
ALTER TABLE posting_segments
    ALTER COLUMN document_id DROP NOT NULL,
    ALTER COLUMN content_version DROP NOT NULL,
    ADD COLUMN chunk_ids bigint[],
    ADD COLUMN checked_revision bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT posting_segments_owner
        CHECK ((document_id IS NULL) = (chunk_ids IS NOT NULL) AND (document_id IS NULL) = (content_version IS NULL));

-- Folded segments, which are few, by store: the job looks through them for chunks that are gone.
CREATE INDEX posting_segments_folded ON posting_segments (store_id) WHERE document_id IS NULL;
