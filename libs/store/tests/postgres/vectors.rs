//! The tables of large stores: every step of a move, cut off and done again, and what searches see meanwhile.

use std::time::Duration;

use domain::{ChunkId, DocumentId, StoreId};
use sqlx::PgPool;
use store::audit::{Actor, AuditEntry};
use store::ingest::{NewChunk, NewSegment};
use store::testing::{RoleName, TestDatabase, work};
use store::vectors::OwnTable;
use store::vectors::nearest::{Nearest, Neighbours, VectorPlan};
use store::vectors::tables::Step;
use store::{Reach, Store, StoreError};
use testkit::until;

const LEASE: Duration = Duration::from_secs(120);
const DAY: Duration = Duration::from_secs(86_400);

struct Fixture {
    database: TestDatabase,
    pool: PgPool,
    backend: Store,
    edge: Store,
    store: StoreId,
    width: i32,
}

async fn fixture(width: i32) -> anyhow::Result<Fixture> {
    let database = testkit::database().await?;
    let project = database.insert_project("p", "").await?;
    let connection = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await?;
    let store = database.insert_document_store(project, connection, width).await?;
    let (backend, edge) = (database.store(RoleName::Backend)?, database.store(RoleName::Edge)?);
    Ok(Fixture { pool: database.superuser_pool().await?, backend, edge, store, width, database })
}

impl Fixture {
    /// A document whose chunks point in directions that grow with their numbers.
    async fn add(&self, chunks: std::ops::Range<i32>) -> anyhow::Result<DocumentId> {
        let document = self.database.insert_document(self.store, "a.txt").await?;
        let request = work::claim_request("host/1/aaaaaaaa", StoreId(0), 1);
        let claim = self.backend.claim_documents(&request).await?.documents.remove(0);
        let rows: Vec<NewChunk> = (0..).zip(chunks).map(|(ordinal, number)| self.chunk(ordinal, number)).collect();
        let segment = NewSegment { lengths: vec![1; rows.len()], postings: Vec::new() };
        work::complete(&self.backend, claim.key, &rows, &segment).await?;
        Ok(document)
    }

    fn chunk(&self, ordinal: i32, number: i32) -> NewChunk {
        work::plain_chunk(ordinal, &format!("passage {number}"), self.vector(number))
    }

    fn vector(&self, number: i32) -> Vec<f32> {
        let mut vector = vec![0.0; usize::try_from(self.width).unwrap()];
        vector[0] = 1.0;
        vector[1] = number as f32 / 100.0;
        vector
    }

    async fn search(&self, limit: i64, exact_rows: Option<i64>) -> Result<Neighbours, StoreError> {
        let settings = self.edge.find_search_settings(self.store).await?.ok_or(StoreError::NotFound)?;
        let request = Nearest {
            settings: &settings,
            vector: &self.vector(0),
            limit,
            within: None,
            deadline: Duration::from_secs(5),
            exact_rows,
        };
        self.edge.nearest_chunks(&request).await
    }

    /// The numbers of the chunks that a search finds, nearest first.
    async fn found(&self, limit: i64, exact_rows: Option<i64>) -> anyhow::Result<Vec<i32>> {
        let hits = self.search(limit, exact_rows).await?.hits;
        let ids: Vec<ChunkId> = hits.iter().map(|hit| hit.chunk).collect();
        let passages = self.edge.list_passages(self.store, &ids).await?;
        let number = |id: &ChunkId| {
            let passage = passages.iter().find(|passage| passage.chunk == *id).unwrap();
            passage.content.trim_start_matches("passage ").parse().unwrap()
        };
        Ok(ids.iter().map(number).collect())
    }

    async fn own(&self) -> anyhow::Result<Option<OwnTable>> {
        let stores = self.backend.list_vector_stores(DAY).await?;
        Ok(stores.iter().find(|store| store.store == self.store).and_then(|store| store.own))
    }

    async fn count(&self, table: &str) -> anyhow::Result<i64> {
        let statement = format!("SELECT count(*) FROM {table}");
        Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_one(&self.pool).await?)
    }

    async fn has_table(&self, name: &str) -> anyhow::Result<bool> {
        Ok(sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(name).fetch_one(&self.pool).await?)
    }

    /// Has a step wait for a lock that somebody else holds, and ends its session there.
    async fn cut_off<T: std::fmt::Debug>(
        &self,
        lock: &str,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> anyhow::Result<()> {
        let mut holder = self.pool.begin().await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock.to_owned())).execute(&mut *holder).await?;
        let end = async {
            until("the step waits", || async {
                let ended: Vec<bool> = sqlx::query_scalar(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                      WHERE datname = current_database() AND usename = 'ragmux_backend' AND wait_event_type = 'Lock'",
                )
                .fetch_all(&self.pool)
                .await?;
                Ok(!ended.is_empty())
            })
            .await
        };
        let (step, end) = tokio::join!(step, end);
        end?;
        assert!(step.unwrap_err().is_transient());
        holder.rollback().await?;
        Ok(())
    }
}

#[tokio::test]
async fn each_step_of_a_move_can_be_cut_off_and_done_again() -> anyhow::Result<()> {
    let fixture = fixture(4).await?;
    let (backend, store) = (&fixture.backend, fixture.store);
    let first = fixture.add(0..30).await?;
    fixture.add(30..60).await?;
    let all: Vec<i32> = (0..60).collect();
    let own = format!("chunk_embeddings_4_s{}", store.0);
    assert_eq!(fixture.found(100, Some(10)).await?, all);
    assert_eq!(backend.count_shared_vectors(store, 4, 11).await?, 11);

    fixture.cut_off("SELECT pg_advisory_xact_lock(advisory_class(), 100004)", backend.open_vector_table(store)).await?;
    assert!(fixture.own().await?.is_none() && !fixture.has_table(&own).await?);
    assert!(backend.open_vector_table(store).await?);
    assert!(!backend.open_vector_table(store).await?, "it is there");
    let table = fixture.own().await?.unwrap();
    assert_eq!(fixture.found(100, Some(10)).await?, all);

    assert_eq!(backend.move_vectors(&table, 20).await?, Step::Done(20));
    let hold = format!("LOCK TABLE {own} IN SHARE MODE");
    fixture.cut_off(&hold, backend.move_vectors(&table, 20)).await?;
    assert_eq!((fixture.count(&own).await?, fixture.count("chunk_embeddings_4").await?), (20, 40));
    assert_eq!(fixture.found(100, Some(10)).await?, all, "of two tables each vector is seen once");
    assert_eq!(backend.move_vectors(&table, 100).await?, Step::Done(40));
    assert_eq!(backend.move_vectors(&table, 100).await?, Step::Done(0));

    let hold = format!("LOCK TABLE {own} IN ROW EXCLUSIVE MODE");
    fixture.cut_off(&hold, backend.index_vector_table(&table, 16)).await?;
    assert!(!fixture.own().await?.unwrap().indexed && !fixture.has_table(&format!("{own}_hnsw")).await?);
    assert_eq!(fixture.search(100, Some(10)).await?.plan, VectorPlan::Exact);
    assert!(backend.index_vector_table(&table, 16).await?);
    assert!(!backend.index_vector_table(&table, 16).await?, "it is there");
    let table = fixture.own().await?.unwrap();
    assert_eq!((table.indexed, table.vectors), (true, 60));
    assert!(!fixture.search(100, Some(10)).await?.plan.is_exhaustive());
    assert!(fixture.search(100, Some(60)).await?.plan.is_exhaustive());
    assert_eq!(fixture.found(25, Some(10)).await?, all[..25]);

    // What is written and deleted from now on is found and not found at once, wherever it lies.
    fixture.add(60..70).await?;
    let entry = AuditEntry::new(Actor::named("test"), "document.delete");
    delete(backend, first, &entry).await?;
    let left: Vec<i32> = (30..70).collect();
    assert_eq!(fixture.found(100, Some(10)).await?, left);
    assert_eq!(fixture.found(100, None).await?, left);
    assert_eq!(backend.move_vectors(&table, 100).await?, Step::Done(10));
    assert_eq!(fixture.found(100, Some(10)).await?, left);

    let hold = format!("LOCK TABLE {own} IN SHARE MODE");
    fixture.cut_off(&hold, backend.sweep_vectors(&table, 9, ChunkId(0), 50)).await?;
    let mut after = Some(ChunkId(0));
    let mut removed = 0;
    while let Some(chunk) = after {
        let swept = backend.sweep_vectors(&table, 9, chunk, 50).await?.unwrap();
        (after, removed) = (swept.looked_at, removed + swept.removed);
    }
    assert_eq!((removed, fixture.own().await?.unwrap().vectors), (30, 40));
    assert_eq!(fixture.found(100, Some(10)).await?, left);
    Ok(())
}

#[tokio::test]
async fn one_works_at_a_table_at_a_time_and_nobody_waits() -> anyhow::Result<()> {
    let fixture = fixture(4).await?;
    let backend = &fixture.backend;
    fixture.add(0..10).await?;
    assert!(backend.open_vector_table(fixture.store).await?);
    let table = fixture.own().await?.unwrap();
    let mut other = fixture.pool.begin().await?;
    sqlx::query("SELECT FROM vector_tables FOR UPDATE").execute(&mut *other).await?;
    assert_eq!(backend.move_vectors(&table, 10).await?, Step::NotOurs);
    assert!(!backend.index_vector_table(&table, 16).await?);
    assert_eq!(backend.sweep_vectors(&table, 1, ChunkId(0), 10).await?, None);
    assert!(!backend.drop_vector_table(table.store, table.width).await?);
    assert_eq!(fixture.found(10, Some(1)).await?.len(), 10, "searches do not wait either");
    other.rollback().await?;
    assert_eq!(backend.move_vectors(&table, 10).await?, Step::Done(10));
    Ok(())
}

#[tokio::test]
async fn a_table_goes_with_its_store_and_with_its_model() -> anyhow::Result<()> {
    let fixture = fixture(4).await?;
    let backend = &fixture.backend;
    let document = fixture.add(0..10).await?;
    assert!(backend.open_vector_table(fixture.store).await?);
    let table = fixture.own().await?.unwrap();
    backend.move_vectors(&table, 10).await?;
    assert!(!backend.drop_vector_table(table.store, table.width).await?, "it is read");

    let old = fixture.edge.find_search_settings(fixture.store).await?.unwrap();
    sqlx::raw_sql(
        "INSERT INTO embedding_revisions (connection_id, base_url, model_name, width)
         SELECT connection_id, base_url, 'other', width FROM embedding_revisions;
         UPDATE document_stores SET embedding_revision_id = (SELECT max(id) FROM embedding_revisions)",
    )
    .execute(&fixture.pool)
    .await?;
    let request = Nearest {
        settings: &old,
        vector: &fixture.vector(0),
        limit: 10,
        within: None,
        deadline: LEASE,
        exact_rows: None,
    };
    let refused = fixture.edge.nearest_chunks(&request).await;
    assert!(matches!(refused, Err(StoreError::Conflict)), "a query of the old model is not compared: {refused:?}");
    assert!(fixture.found(10, None).await?.is_empty());
    let obsolete = [(fixture.store, 4)];
    assert_eq!(backend.list_obsolete_vector_tables().await?, obsolete);
    let mut reader = fixture.pool.begin().await?;
    let read = format!("SELECT FROM chunk_embeddings_4_s{}", fixture.store.0);
    sqlx::query(sqlx::AssertSqlSafe(read)).execute(&mut *reader).await?;
    let busy = backend.drop_vector_table(fixture.store, 4).await;
    assert!(matches!(busy, Err(StoreError::Conflict)), "somebody is still reading: {busy:?}");
    reader.rollback().await?;
    assert!(backend.drop_vector_table(fixture.store, 4).await?);
    assert!(fixture.own().await?.is_none());

    assert!(backend.open_vector_table(fixture.store).await?, "the new model gets one of its own");
    let entry = AuditEntry::new(Actor::named("test"), "store.delete");
    delete(backend, document, &entry).await?;
    backend.delete_document_store(Reach::All, fixture.store, &entry).await?;
    assert_eq!(backend.list_obsolete_vector_tables().await?, obsolete);
    assert!(backend.drop_vector_table(fixture.store, 4).await?);
    assert!(!fixture.has_table(&format!("chunk_embeddings_4_s{}", fixture.store.0)).await?);
    assert_eq!(fixture.count("vector_tables").await?, 0);
    Ok(())
}

#[tokio::test]
async fn wide_vectors_are_indexed_too_and_wider_ones_refused() -> anyhow::Result<()> {
    for width in [1_950, 2_000, 2_001, 4_000] {
        let fixture = fixture(width).await?;
        fixture.add(0..20).await?;
        assert!(fixture.backend.open_vector_table(fixture.store).await?);
        let table = fixture.own().await?.unwrap();
        assert_eq!(fixture.backend.move_vectors(&table, 10).await?, Step::Done(10));
        assert!(fixture.backend.index_vector_table(&table, 16).await?);
        assert_eq!(fixture.backend.move_vectors(&table, 10).await?, Step::Done(10));
        assert_eq!(fixture.found(20, Some(1)).await?, (0..20).collect::<Vec<_>>());
    }
    let database = testkit::database().await?;
    let refused = database.store(RoleName::Backend)?.ensure_vector_table(4_001).await;
    assert!(matches!(refused, Err(StoreError::Invalid { .. })), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_search_that_is_kept_waiting_ends_at_its_deadline() -> anyhow::Result<()> {
    let fixture = fixture(4).await?;
    fixture.add(0..10).await?;
    assert!(fixture.backend.open_vector_table(fixture.store).await?);
    let table = fixture.own().await?.unwrap();
    fixture.backend.move_vectors(&table, 10).await?;
    let mut holder = fixture.pool.begin().await?;
    let hold = format!("LOCK TABLE chunk_embeddings_4_s{}", fixture.store.0);
    sqlx::raw_sql(sqlx::AssertSqlSafe(hold)).execute(&mut *holder).await?;
    let settings = fixture.edge.find_search_settings(fixture.store).await?.unwrap();
    let request = Nearest {
        settings: &settings,
        vector: &fixture.vector(0),
        limit: 10,
        within: None,
        deadline: Duration::from_millis(200),
        exact_rows: None,
    };
    let late = fixture.edge.nearest_chunks(&request).await;
    assert!(matches!(late, Err(StoreError::Timeout { .. })), "{late:?}");
    holder.rollback().await?;
    assert_eq!(fixture.found(10, None).await?.len(), 10);
    Ok(())
}

/// Deletes a document with its rows.
async fn delete(backend: &Store, document: DocumentId, entry: &AuditEntry) -> anyhow::Result<()> {
    backend.delete_document(Reach::All, document, entry).await?;
    while backend.delete_old_versions(document).await? {}
    Ok(backend.remove_document(document).await?)
}
