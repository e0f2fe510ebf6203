-- Documents and stores that are deleted are gone at once for everybody; their rows follow in batches. Stores may keep
-- their documents for a time only, which begins anew with new content.

ALTER TABLE document_stores ADD COLUMN deleted_at timestamptz;
ALTER TABLE document_stores ADD COLUMN max_age_days integer NOT NULL DEFAULT 0 CHECK (max_age_days >= 0);
ALTER TABLE documents ADD COLUMN deleted_at timestamptz;
ALTER TABLE documents ADD COLUMN replaced_at timestamptz;
CREATE INDEX documents_deleted ON documents (id) WHERE deleted_at IS NOT NULL;
