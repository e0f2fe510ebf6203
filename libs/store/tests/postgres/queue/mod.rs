//! Claims, fences and versions on a real server.

mod claims;
mod ends;
mod folding;
mod plan;
mod switches;
mod versions;

use std::time::Duration;

use domain::{ConnectionId, DocumentFailure, DocumentId, EmbeddingRevisionId, ProjectId, StoreId};
use sqlx::PgPool;
use store::audit::{Actor, AuditEntry};
use store::ingest::{Finish, IngestSettings, NewChunk, NewPosting, NewSegment, Paid};
use store::queue::{Claim, ClaimKey, ClaimRequest, Claimed, ParserDeath, ParserTries};
use store::testing::work::{self, LEASE};
use store::testing::{RoleName, TestDatabase};
use store::{Reach, Store, StoreError};

struct Fixture {
    database: TestDatabase,
    pool: PgPool,
    store: Store,
}

async fn fixture() -> anyhow::Result<Fixture> {
    let database = testkit::database().await?;
    let pool = database.superuser_pool().await?;
    let store = database.store(RoleName::Backend)?;
    sqlx::raw_sql(
        "INSERT INTO projects (name) VALUES ('p');
         INSERT INTO model_connections (name, provider_type, base_url, model_name)
         VALUES ('embed', 'custom_openai', 'http://127.0.0.1:1/v1', 'demo-embed');
         INSERT INTO embedding_revisions (connection_id, base_url, model_name, width)
         SELECT id, base_url, model_name, 3 FROM model_connections;
         SELECT ensure_vector_table(3);",
    )
    .execute(&pool)
    .await?;
    Ok(Fixture { database, pool, store })
}

impl Fixture {
    async fn add_store(&self, name: &str, max_running: i32) -> anyhow::Result<StoreId> {
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO document_stores (project_id, name, embedding_connection_id, embedding_revision_id, width, max_running)
             SELECT p.id, $1, r.connection_id, r.id, r.width, $2 FROM projects p, embedding_revisions r RETURNING id",
        )
        .bind(name)
        .bind(max_running)
        .fetch_one(&self.pool)
        .await?;
        Ok(StoreId(id))
    }

    async fn add_documents(&self, store: StoreId, count: i64) -> anyhow::Result<Vec<DocumentId>> {
        let ids: Vec<i64> = sqlx::query_scalar(
            "WITH blob AS (INSERT INTO blobs (sha256, size) VALUES (sha256(gen_random_uuid()::text::bytea), 1) RETURNING id)
             INSERT INTO documents (store_id, blob_id, size, file_name, media_type)
             SELECT $1, blob.id, 1, 'file.txt', 'text/plain' FROM blob, generate_series(1, $2) RETURNING id",
        )
        .bind(store.0)
        .bind(count)
        .fetch_all(&self.pool)
        .await?;
        Ok(ids.into_iter().map(DocumentId).collect())
    }

    async fn claim(&self, owner: &str, cursor: StoreId, slots: i64) -> anyhow::Result<Claimed> {
        Ok(self.store.claim_documents(&request(owner, cursor, slots)).await?)
    }

    async fn claim_one(&self) -> anyhow::Result<Claim> {
        let claimed = self.claim("host/1/aaaaaaaa", StoreId(0), 1).await?;
        claimed.documents.into_iter().next().ok_or_else(|| anyhow::anyhow!("nothing to claim"))
    }

    async fn lapse(&self, document: DocumentId) -> anyhow::Result<()> {
        sqlx::query("UPDATE documents SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1")
            .bind(document.0)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn state(&self, document: DocumentId) -> anyhow::Result<(String, i32, Option<String>)> {
        Ok(sqlx::query_as("SELECT status, attempts, error_code FROM documents WHERE id = $1")
            .bind(document.0)
            .fetch_one(&self.pool)
            .await?)
    }

    async fn settings(&self, key: ClaimKey) -> anyhow::Result<IngestSettings> {
        self.store.find_ingest_settings(key.document).await?.ok_or_else(|| anyhow::anyhow!("no settings"))
    }

    async fn write(&self, key: ClaimKey, ordinals: std::ops::Range<i32>) -> anyhow::Result<bool> {
        let chunks: Vec<NewChunk> = ordinals.clone().map(chunk).collect();
        let segment = NewSegment {
            lengths: ordinals.clone().map(|_| 2).collect(),
            postings: vec![
                NewPosting {
                    term: "every".to_owned(),
                    ordinals: ordinals.clone().collect(),
                    frequencies: ordinals.clone().map(|_| 1).collect(),
                },
                NewPosting {
                    term: format!("at{}", ordinals.start),
                    ordinals: vec![ordinals.start],
                    frequencies: vec![1],
                },
            ],
        };
        Ok(self.store.write_chunks(key, &self.settings(key).await?, &chunks, &segment).await?)
    }
}

fn request(owner: &str, cursor: StoreId, slots: i64) -> ClaimRequest<'_> {
    ClaimRequest { window: 8, max_attempts: 3, ..work::claim_request(owner, cursor, slots) }
}

fn chunk(ordinal: i32) -> NewChunk {
    NewChunk {
        ordinal,
        content: format!("passage {ordinal}"),
        heading_path: "A > B".to_owned(),
        page_from: Some(ordinal + 1),
        page_to: Some(ordinal + 1),
        char_from: ordinal * 10,
        char_to: ordinal * 10 + 9,
        token_count: 2,
        content_hash: vec![u8::try_from(ordinal).unwrap(); 32],
        embedding: vec![1.0, ordinal as f32, 0.0],
    }
}

fn finish(chunks: i32) -> Finish {
    // A fresh database has one model.
    let revision = EmbeddingRevisionId(1);
    Finish { chunks, revision, pages: Some(chunks), title: None, extraction: serde_json::json!({}) }
}
