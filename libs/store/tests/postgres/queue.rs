//! Claims, fences and versions on a real server.

use std::collections::HashSet;
use std::time::Duration;

use domain::{DocumentFailure, DocumentId, StoreId};
use sqlx::PgPool;
use store::ingest::{Finish, IngestSettings, NewChunk, NewPosting, NewSegment, Paid};
use store::queue::{Claim, ClaimKey, ClaimRequest, Claimed};
use store::testing::{RoleName, TestDatabase};
use store::{Store, StoreError};

const LEASE: Duration = Duration::from_secs(120);

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
        let request = ClaimRequest { owner, cursor, window: 8, slots, lease: LEASE, max_attempts: 3 };
        Ok(self.store.claim_documents(&request).await?)
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
    Finish { chunks, pages: Some(chunks), title: None, extraction: serde_json::json!({}) }
}

#[tokio::test]
async fn racing_workers_claim_every_document_once() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 60).await?;
    let worker = |number: i32| {
        let fixture = &fixture;
        async move {
            let owner = format!("host/{number}/aaaaaaaa");
            let mut seen = Vec::new();
            loop {
                let claimed = fixture.claim(&owner, StoreId(0), 4).await?;
                if claimed.documents.is_empty() {
                    return anyhow::Ok(seen);
                }
                seen.extend(claimed.documents.iter().map(|claim| claim.key.document));
            }
        }
    };
    let (a, b, c) = tokio::try_join!(worker(1), worker(2), worker(3))?;
    let all: Vec<_> = a.into_iter().chain(b).chain(c).collect();
    assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (60, 60));
    Ok(())
}

#[tokio::test]
async fn a_claim_takes_from_each_store_in_turn_and_respects_running_caps() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let big = fixture.add_store("big", 0).await?;
    let capped = fixture.add_store("capped", 1).await?;
    let small = fixture.add_store("small", 0).await?;
    for (store, count) in [(big, 100), (capped, 5), (small, 1)] {
        fixture.add_documents(store, count).await?;
    }
    let claimed = fixture.claim("w", StoreId(0), 4).await?;
    let stores: Vec<_> = claimed.documents.iter().map(|claim| claim.store).collect();
    for (store, expected) in [(big, 2), (capped, 1), (small, 1)] {
        assert_eq!(stores.iter().filter(|found| **found == store).count(), expected, "{store} in {stores:?}");
    }
    assert_eq!(claimed.window_end, Some(small));
    let beyond = fixture.claim("w", small, 4).await?;
    assert!(beyond.documents.is_empty() && beyond.window_end.is_none(), "nothing waits after the last store");
    let again = fixture.claim("w", big, 4).await?;
    assert!(again.documents.is_empty(), "the capped store has one running");
    assert_eq!(again.window_end, Some(capped));
    Ok(())
}

#[tokio::test]
async fn within_a_store_priority_decides_and_then_age() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let (first, second) = (fixture.add_store("a", 0).await?, fixture.add_store("b", 0).await?);
    let documents = fixture.add_documents(first, 3).await?;
    fixture.add_documents(second, 1).await?;
    sqlx::query("UPDATE documents SET priority = 0 WHERE id = $1").bind(documents[2].0).execute(&fixture.pool).await?;
    let claimed = fixture.claim("w", StoreId(0), 2).await?;
    let of_first: Vec<_> = claimed.documents.iter().filter(|claim| claim.store == first).collect();
    assert_eq!((claimed.documents.len(), of_first.len()), (2, 1));
    assert_eq!(of_first[0].key.document, documents[2], "the urgent one, although others are older");
    Ok(())
}

#[tokio::test]
async fn a_lapsed_lease_is_claimed_again_and_the_old_claim_can_write_nothing() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let zombie = fixture.claim_one().await?.key;
    assert!(fixture.write(zombie, 0..2).await?);
    assert!(fixture.claim("other", StoreId(0), 1).await?.documents.is_empty(), "the lease holds");
    fixture.lapse(document).await?;
    let heir = fixture.claim_one().await?;
    assert_eq!((heir.key.token, heir.attempts), (zombie.token + 1, 2));

    assert!(!fixture.write(zombie, 2..3).await?);
    assert!(!fixture.store.finish_document(zombie, &finish(2), LEASE).await?);
    assert!(!fixture.store.fail_document(zombie, DocumentFailure::Internal).await?);
    assert!(!fixture.store.set_progress(zombie, "embedding", 1, 2).await?);
    assert!(fixture.store.renew_leases(&[zombie], LEASE).await?.is_empty());
    assert_eq!(fixture.store.hand_back_documents(&[zombie]).await?, 0);
    assert_eq!(fixture.store.count_parser_death(zombie).await?, None);

    // The heir finds what was paid for and writes the rest.
    let written = fixture.store.list_written_chunks(heir.key).await?;
    assert_eq!(written.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>(), [0, 1]);
    assert!(fixture.write(heir.key, 2..4).await?);
    assert!(!fixture.store.finish_document(heir.key, &finish(5), LEASE).await?, "a chunk is missing");
    assert!(fixture.store.finish_document(heir.key, &finish(4), LEASE).await?);
    assert_eq!(fixture.state(document).await?, ("ready".to_owned(), 0, None));
    Ok(())
}

#[tokio::test]
async fn a_document_that_never_ends_gets_its_verdict_at_the_claim_that_finds_it() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    for attempt in 1..=3 {
        assert_eq!(fixture.claim_one().await?.attempts, attempt);
        fixture.lapse(document).await?;
    }
    assert!(fixture.claim("w", StoreId(0), 1).await?.documents.is_empty());
    assert_eq!(fixture.state(document).await?, ("failed".to_owned(), 3, Some("gave_up_after_attempts".to_owned())));
    Ok(())
}

#[tokio::test]
async fn a_clean_stop_and_a_passing_error_cost_no_attempt() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let claim = fixture.claim_one().await?;
    assert_eq!(fixture.store.hand_back_documents(&[claim.key]).await?, 1);
    assert_eq!(fixture.state(document).await?, ("pending".to_owned(), 0, None));

    let claim = fixture.claim_one().await?;
    let day = Some(Duration::from_secs(86_400));
    let failure = DocumentFailure::EmbeddingUnavailable;
    assert!(fixture.store.delay_document(claim.key, failure, Duration::from_secs(60), day).await?);
    assert_eq!(fixture.state(document).await?, ("delayed".to_owned(), 0, Some("embedding_unavailable".to_owned())));
    assert!(fixture.claim("w", StoreId(0), 1).await?.documents.is_empty(), "it is not due yet");
    sqlx::query(
        "UPDATE documents SET run_at = clock_timestamp(), retrying_since = clock_timestamp() - interval '25 hours'",
    )
    .execute(&fixture.pool)
    .await?;
    assert_eq!(fixture.store.promote_delayed_documents().await?, 1);
    let claim = fixture.claim_one().await?;
    assert!(fixture.store.delay_document(claim.key, failure, Duration::from_secs(60), day).await?);
    assert_eq!(fixture.state(document).await?.0, "failed", "a day of retries is enough");
    Ok(())
}

#[tokio::test]
async fn a_new_version_becomes_searchable_in_one_step_and_replaces_the_old() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let edge = fixture.database.store(RoleName::Edge)?;
    let settings = edge.find_search_settings(store).await?.unwrap();
    let seen = || async {
        let hits = edge.nearest_chunks(&settings, &[1.0, 0.0, 0.0], 10, Duration::from_secs(5)).await?;
        let postings = edge.list_postings(store, &["every".to_owned()]).await?;
        let lexical: usize = postings.iter().map(|posting| posting.ordinals.len()).sum();
        anyhow::Ok((hits.len(), lexical, edge.lexical_corpus(store).await?.chunks))
    };
    let claim = fixture.claim_one().await?;
    fixture.write(claim.key, 0..3).await?;
    assert_eq!(seen().await?, (0, 0, 0), "nothing shows before the finish");
    assert!(fixture.store.finish_document(claim.key, &finish(3), LEASE).await?);
    assert_eq!(seen().await?, (3, 3, 3));

    sqlx::query("UPDATE documents SET content_version = content_version + 1, status = 'pending'")
        .execute(&fixture.pool)
        .await?;
    let claim = fixture.claim_one().await?;
    fixture.write(claim.key, 0..2).await?;
    fixture.write(claim.key, 2..5).await?;
    assert_eq!(seen().await?, (3, 3, 3), "the old version stays until the new one is complete");
    assert!(fixture.store.finish_document(claim.key, &finish(5), LEASE).await?);
    assert_eq!(seen().await?, (5, 5, 5));
    while fixture.store.delete_old_versions(document).await? {}
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM chunks").fetch_one(&fixture.pool).await?;
    let vectors: i64 = sqlx::query_scalar("SELECT count(*) FROM chunk_embeddings_3").fetch_one(&fixture.pool).await?;
    assert_eq!((left, vectors), (5, 5));

    let hits = edge.nearest_chunks(&settings, &[1.0, 4.0, 0.0], 2, Duration::from_secs(5)).await?;
    let passages = edge.list_passages(store, &[hits[0].chunk]).await?;
    assert_eq!((passages[0].content.as_str(), passages[0].page_from), ("passage 4", Some(5)));
    assert!(hits[0].distance < 1e-6 && hits[1].distance > hits[0].distance);
    let posting = &edge.list_postings(store, &["at2".to_owned()]).await?[0];
    let segment = &edge.list_segments(store, &[posting.segment]).await?[0];
    assert_eq!((posting.ordinals.as_slice(), segment.first_ordinal, segment.lengths.len()), ([2].as_slice(), 2, 3));
    let places = [(document, segment.content_version, 2), (document, segment.content_version, 99)];
    let chunks = edge.find_chunks_at(store, &places).await?;
    assert!(chunks[0].is_some() && chunks[1].is_none());
    Ok(())
}

#[tokio::test]
async fn what_was_written_under_other_settings_can_be_discarded() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 1).await?;
    let claim = fixture.claim_one().await?;
    fixture.write(claim.key, 0..3).await?;
    fixture.store.discard_written_chunks(ClaimKey { token: 99, ..claim.key }).await?;
    assert_eq!(fixture.store.list_written_chunks(claim.key).await?.len(), 3, "another claim may not");
    fixture.store.discard_written_chunks(claim.key).await?;
    assert!(fixture.store.list_written_chunks(claim.key).await?.is_empty());
    assert!(fixture.write(claim.key, 0..2).await?);
    assert!(fixture.store.finish_document(claim.key, &finish(2), LEASE).await?);
    Ok(())
}

#[tokio::test]
async fn vectors_are_remembered_by_project_and_model() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let settings = fixture.store.find_ingest_settings(document).await?.unwrap();
    let hashes = vec![vec![1; 32], vec![2; 32]];
    let vectors = vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
    let claim = fixture.claim_one().await?.key;
    let paid = Paid { tokens: 5, cost: 7 };
    for _ in 0..2 {
        assert!(fixture.store.memoise_embeddings(claim, &settings, &hashes, &vectors, paid).await?);
    }
    let mut found = fixture
        .store
        .find_memoised_embeddings(settings.project, settings.revision, &[vec![2; 32], vec![3; 32], vec![1; 32]])
        .await?;
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, hashes.into_iter().zip(vectors).collect::<Vec<_>>());

    // The document keeps what each claim has paid, also one that does not finish; a lost one adds nothing to it.
    fixture.lapse(document).await?;
    let heir = fixture.claim_one().await?.key;
    let late = [vec![9; 32]];
    assert!(!fixture.store.memoise_embeddings(claim, &settings, &late, &[vec![7.0, 8.0, 9.0]], paid).await?);
    let kept = fixture.store.find_memoised_embeddings(settings.project, settings.revision, &late).await?;
    assert_eq!(kept.len(), 1, "what was paid for is remembered all the same");
    assert!(fixture.store.memoise_embeddings(heir, &settings, &[], &[], paid).await?);
    let price = "SELECT embedded_tokens, embedding_cost FROM documents";
    let price: (i64, i64) = sqlx::query_as(price).fetch_one(&fixture.pool).await?;
    assert_eq!(price, (15, 21));
    Ok(())
}

#[tokio::test]
async fn dead_versions_are_found_and_go_a_bounded_number_at_a_time() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let documents = fixture.add_documents(store, 3).await?;
    let (replaced, writing) = (documents[0], documents[1]);
    let claims = fixture.claim("w", StoreId(0), 3).await?.documents;
    for claim in claims.iter().filter(|claim| claim.key.document != documents[2]) {
        for ordinal in 0..20 {
            assert!(fixture.write(claim.key, ordinal..ordinal + 1).await?);
        }
        assert!(fixture.store.finish_document(claim.key, &finish(20), LEASE).await?);
    }
    let none = fixture.store.list_old_versions(DocumentId(0), 10).await?;
    assert_eq!((none.documents.len(), none.looked_at), (0, Some(documents[2])), "all that is there is live");

    // A worker died after its finish, and beside it a document is being replaced whose live version is still needed.
    let replace = "UPDATE documents SET content_version = 2, live_version = CASE id WHEN $1 THEN 2 ELSE 1 END
                    WHERE id IN ($1, $2)";
    sqlx::query(replace).bind(replaced.0).bind(writing.0).execute(&fixture.pool).await?;
    let found = fixture.store.list_old_versions(DocumentId(0), 10).await?;
    assert_eq!(found.documents, [replaced]);
    let first = fixture.store.list_old_versions(DocumentId(0), 1).await?;
    assert_eq!((first.documents, first.looked_at), (vec![replaced], Some(replaced)));
    assert_eq!(fixture.store.list_old_versions(documents[2], 1).await?.looked_at, None);

    let left = async || -> anyhow::Result<(i64, i64)> {
        let left = "SELECT (SELECT count(*) FROM chunks WHERE document_id = $1),
                           (SELECT count(*) FROM posting_segments WHERE document_id = $1)";
        Ok(sqlx::query_as(left).bind(replaced.0).fetch_one(&fixture.pool).await?)
    };
    assert!(fixture.store.delete_old_versions(replaced).await?, "there is more");
    assert_eq!(left().await?, (0, 4), "one statement does not take every segment");
    assert_eq!(fixture.store.list_old_versions(DocumentId(0), 10).await?.documents, [replaced]);
    assert!(!fixture.store.delete_old_versions(replaced).await?);
    assert_eq!(left().await?, (0, 0));
    assert!(!fixture.store.delete_old_versions(writing).await?);
    assert!(fixture.store.list_old_versions(DocumentId(0), 10).await?.documents.is_empty());
    let live: i64 = sqlx::query_scalar("SELECT count(*) FROM chunks").fetch_one(&fixture.pool).await?;
    assert_eq!(live, 20);
    Ok(())
}

#[tokio::test]
async fn the_server_itself_ends_a_statement_of_the_queue_that_takes_too_long() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let held = fixture.add_documents(store, 1).await?[0];
    let key = fixture.claim_one().await?.key;
    fixture.write(key, 0..1).await?;
    let waiting = fixture.add_documents(store, 1).await?[0];
    let lease = Duration::from_secs(1);
    let request = ClaimRequest { owner: "w", cursor: StoreId(0), window: 8, slots: 1, lease, max_attempts: 3 };

    let mut blocker = fixture.pool.begin().await?;
    sqlx::query("LOCK TABLE documents IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await?;
    let claimed = fixture.store.claim_documents(&request).await.map(|_| ());
    let renewed = fixture.store.renew_leases(&[key], lease).await.map(|_| ());
    let finished = fixture.store.finish_document(key, &finish(1), lease / 4).await.map(|_| ());
    for ended in [claimed, renewed, finished] {
        assert!(matches!(ended, Err(StoreError::Timeout { .. })), "{ended:?}");
    }
    blocker.rollback().await?;
    assert_eq!(fixture.state(waiting).await?, ("pending".to_owned(), 0, None), "claimed for nobody");
    assert_eq!(fixture.state(held).await?.0, "processing");
    assert!(fixture.store.finish_document(key, &finish(1), LEASE).await?);
    Ok(())
}

#[tokio::test]
async fn the_claim_uses_its_indexes_among_200_000_rows() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let big = fixture.add_store("big", 0).await?;
    fixture.add_documents(big, 150_000).await?;
    sqlx::query("UPDATE documents SET status = 'ready' WHERE id % 3 = 0").execute(&fixture.pool).await?;
    for number in 0..50 {
        let store = fixture.add_store(&format!("small{number}"), 0).await?;
        fixture.add_documents(store, 1000).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE documents").execute(&fixture.pool).await?;
    let claim = include_str!("../../src/queries/claim.sql");
    let sql = format!(
        "PREPARE claim (bigint, int, bigint, text, int, text, bigint) AS {claim};
         EXPLAIN EXECUTE claim (0, 8, 4, 'w', 5, 'gave up', 120000)"
    );
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(&fixture.pool).await?;
    let plan: Vec<String> = rows.iter().filter_map(|row| sqlx::Row::try_get(row, 0).ok()).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("documents_pending") && plan.contains("documents_processing"), "{plan}");
    assert!(!plan.contains("Seq Scan on documents"), "{plan}");
    Ok(())
}
