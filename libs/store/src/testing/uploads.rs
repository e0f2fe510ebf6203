//! What tests ask of documents and uploads.

use super::TestDatabase;

/// What is stored of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFacts {
    /// Chunks, of whatever version.
    pub chunks: i64,
    /// Vectors, of whatever width.
    pub vectors: i64,
    /// Content versions that have chunks.
    pub versions: i64,
}

/// What is stored of all uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadFacts {
    /// Documents.
    pub documents: i64,
    /// Blobs, unnamed ones included.
    pub blobs: i64,
    /// Parts of blobs.
    pub parts: i64,
}

impl TestDatabase {
    /// Counts what is stored of a document whose vectors have 384 dimensions.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn chunk_facts(&self, document: i64) -> anyhow::Result<ChunkFacts> {
        let pool = self.superuser_pool().await?;
        let (chunks, vectors, versions) = sqlx::query_as(
            "SELECT count(*), count(e.chunk_id), count(DISTINCT c.content_version)
               FROM chunks c LEFT JOIN chunk_embeddings_384 e ON e.chunk_id = c.id WHERE c.document_id = $1",
        )
        .bind(document)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(ChunkFacts { chunks, vectors, versions })
    }

    /// Counts what is stored of uploads.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn upload_facts(&self) -> anyhow::Result<UploadFacts> {
        let pool = self.superuser_pool().await?;
        let (documents, blobs, parts) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM blobs), (SELECT count(*) FROM blob_parts)",
        )
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(UploadFacts { documents, blobs, parts })
    }
}
