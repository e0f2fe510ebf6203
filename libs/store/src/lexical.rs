//! The lexical index of a store: what a search reads of it, and the folding of its segments.
//!
//! A worker writes a segment for each batch of chunks, together with the chunks, and it is found while the version it is
//! of is live. The job folds segments of live versions into larger ones, in one statement: a search sees those before or
//! the one after, and a job that dies has changed nothing.

use std::time::Duration;

use domain::{ChunkId, StoreId};

use crate::{Store, StoreError};

/// What one fold may take: the largest has some thousand chunks.
const FOLDING: Duration = Duration::from_secs(120);

/// A store's lexical index, as far as some terms need it, at one moment.
#[derive(Clone, Debug, Default)]
pub struct LexicalRead {
    /// Chunks that are searched.
    pub chunks: i64,
    /// Indexed terms of all of them.
    pub terms: i64,
    /// Where the terms occur.
    pub postings: Vec<Posting>,
    /// The segments that they occur in.
    pub segments: Vec<Segment>,
}

/// One term in one segment.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The term.
    pub term: String,
    /// The segment.
    pub segment: i64,
    /// Chunks that have the term, by ordinal.
    pub ordinals: Vec<i32>,
    /// How often each has it.
    pub frequencies: Vec<i16>,
}

/// A segment's chunks.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Which segment.
    pub id: i64,
    /// Ordinal of its first chunk: in its document, or 0 in a folded segment, which counts its own chunks.
    pub first_ordinal: i32,
    /// Indexed terms of each chunk.
    pub lengths: Vec<i32>,
}

/// A segment that could be folded with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSize {
    /// Which segment.
    pub id: i64,
    /// Its chunks.
    pub chunks: i32,
}

/// What a fold did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Segments that are gone.
    pub segments: i64,
    /// Chunks of the one that was made of them.
    pub chunks: i64,
}

/// A folded segment of a store whose documents have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedSegment {
    /// Which segment.
    pub id: i64,
    /// Its store.
    pub store: StoreId,
    /// The revision that the store has now.
    pub content_revision: i64,
    /// Its chunks.
    pub chunks: i32,
    /// Those that are live.
    pub live: i64,
}

/// What became of a place in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This chunk is there.
    Chunk(ChunkId),
    /// Its chunk is not live any more.
    Gone,
    /// The segment is folded into another by now.
    Moved,
}

impl Store {
    /// What a store's index says of some terms, in one statement.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn read_lexical(&self, store: StoreId, terms: &[String]) -> Result<LexicalRead, StoreError> {
        let rows = sqlx::query_file!("src/queries/read_lexical.sql", store.0, terms).fetch_all(self.pool()).await?;
        let mut read = LexicalRead::default();
        for row in rows {
            match (row.segment, row.term, row.lengths) {
                (Some(segment), Some(term), _) => read.postings.push(Posting {
                    term,
                    segment,
                    ordinals: row.ordinals.unwrap_or_default(),
                    frequencies: row.frequencies.unwrap_or_default(),
                }),
                (Some(id), None, Some(lengths)) => {
                    read.segments.push(Segment { id, first_ordinal: row.first_ordinal.unwrap_or_default(), lengths });
                }
                _ => {
                    read.chunks = row.chunks.unwrap_or_default();
                    read.terms = row.terms.unwrap_or_default();
                }
            }
        }
        Ok(read)
    }

    /// What is at these places (segment, ordinal), in the same order.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn resolve_places(&self, store: StoreId, places: &[(i64, i32)]) -> Result<Vec<Place>, StoreError> {
        let (segments, ordinals): (Vec<i64>, Vec<i32>) = places.iter().copied().unzip();
        let rows = sqlx::query!(
            r#"SELECT s.id AS "segment?", c.id AS "chunk?"
                 FROM unnest($2::bigint[], $3::int[]) WITH ORDINALITY p (segment, ordinal, place)
                      LEFT JOIN posting_segments s ON s.id = p.segment AND s.store_id = $1
                      LEFT JOIN LATERAL (
                          SELECT c.id FROM chunks c JOIN documents d ON d.id = c.document_id
                           WHERE s.document_id IS NOT NULL AND c.document_id = s.document_id
                             AND c.content_version = s.content_version AND c.ordinal = p.ordinal
                             AND c.store_id = $1 AND d.live_version = c.content_version
                          UNION ALL
                          SELECT c.id FROM chunks c JOIN documents d ON d.id = c.document_id
                           WHERE s.document_id IS NULL AND c.id = s.chunk_ids[p.ordinal + 1] AND c.store_id = $1
                             AND d.live_version = c.content_version) c ON true
                ORDER BY p.place"#,
            store.0,
            &segments,
            &ordinals
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| match (row.segment, row.chunk) {
                (None, _) => Place::Moved,
                (Some(_), None) => Place::Gone,
                (Some(_), Some(chunk)) => Place::Chunk(ChunkId(chunk)),
            })
            .collect())
    }

    /// The stores with at least so many segments.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_stores_to_fold(&self, segments: i64) -> Result<Vec<StoreId>, StoreError> {
        let rows = sqlx::query_scalar!(
            "SELECT store_id FROM posting_segments GROUP BY store_id HAVING count(*) >= $1 ORDER BY store_id",
            segments
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(StoreId).collect())
    }

    /// A store's segments of live versions with less than so many chunks, oldest first, and of those so many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_small_segments(
        &self,
        store: StoreId,
        less_than: i32,
        limit: i64,
    ) -> Result<Vec<SegmentSize>, StoreError> {
        Ok(sqlx::query_as!(
            SegmentSize,
            "SELECT s.id, s.chunk_count AS chunks
               FROM posting_segments s LEFT JOIN documents d ON d.id = s.document_id
              WHERE s.store_id = $1 AND s.chunk_count < $2
                AND (s.document_id IS NULL OR d.live_version = s.content_version)
              ORDER BY s.id LIMIT $3",
            store.0,
            less_than,
            limit
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Folds segments of a store into one, of which chunks that are not live are left out. Segments that another process
    /// is folding, and such that are not live, stay as they are.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn fold_segments(
        &self,
        store: StoreId,
        segments: &[i64],
        content_revision: i64,
    ) -> Result<Fold, StoreError> {
        let mut transaction = self.begin_within(FOLDING).await?;
        let done = sqlx::query_file!("src/queries/fold_segments.sql", store.0, segments, content_revision)
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(Fold { segments: done.folded, chunks: done.chunks })
    }

    /// A count that grows with every document of a store that becomes live or goes; `None` when the store is gone.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_content_revision(&self, store: StoreId) -> Result<Option<i64>, StoreError> {
        Ok(sqlx::query_scalar!("SELECT content_revision FROM document_stores WHERE id = $1", store.0)
            .fetch_optional(self.pool())
            .await?)
    }

    /// The next folded segment after one, of a store whose documents have changed since it was looked at, and how many of
    /// its chunks are live.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_changed_segment(&self, after: i64) -> Result<Option<ChangedSegment>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT s.id, s.store_id, t.content_revision, s.chunk_count AS chunks,
                      (SELECT count(*) FROM unnest(s.chunk_ids) n (chunk)
                              JOIN chunks c ON c.id = n.chunk
                              JOIN documents d ON d.id = c.document_id AND d.live_version = c.content_version)
                      AS "live!"
                 FROM posting_segments s JOIN document_stores t ON t.id = s.store_id
                WHERE s.document_id IS NULL AND s.id > $1 AND s.checked_revision <> t.content_revision
                ORDER BY s.id LIMIT 1"#,
            after
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| ChangedSegment {
            id: row.id,
            store: StoreId(row.store_id),
            content_revision: row.content_revision,
            chunks: row.chunks,
            live: row.live,
        }))
    }

    /// Notes that a folded segment was looked at when its store had this revision.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn note_segment_checked(&self, segment: i64, content_revision: i64) -> Result<(), StoreError> {
        sqlx::query!("UPDATE posting_segments SET checked_revision = $2 WHERE id = $1", segment, content_revision)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Removes folded segments of stores that are gone, which no document takes along. Returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delete_orphaned_segments(&self) -> Result<u64, StoreError> {
        let result = sqlx::query!(
            "DELETE FROM posting_segments s
              WHERE s.document_id IS NULL AND NOT EXISTS (SELECT FROM document_stores t WHERE t.id = s.store_id)"
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected())
    }
}
