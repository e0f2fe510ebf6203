//! Writers that meet: who waits for whom, and for how long.

use domain::{BlobId, ProjectId, StoreId};
use sqlx::PgPool;
use store::document_stores::{NewDocumentStore, StoreSettings};
use store::projects::ProjectDeletion;
use store::testing::RoleName;
use store::uploads::{Upload, UploadOutcome};
use store::{Reach, Store, StoreError};

use crate::entities::{connection, entry, project, vault};

async fn waiting_for_locks(pool: &PgPool) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .fetch_one(pool)
    .await?)
}

async fn add_store(store: &Store, project: ProjectId, name: &str, model: &str) -> anyhow::Result<StoreId> {
    let connections = store.list_connections().await?;
    let settings = StoreSettings {
        name: name.to_owned(),
        chunk_tokens: 400,
        chunk_overlap: 60,
        contextual: true,
        language: None,
        max_running: 0,
        max_documents: 0,
        max_bytes: 0,
        max_age_days: 0,
        search: domain::SearchTuning::default(),
    };
    let new = NewDocumentStore {
        project,
        connection: connections[0].id,
        base_url: connections[0].settings.base_url.clone(),
        model_name: model.to_owned(),
        width: 3,
        settings,
    };
    Ok(store.create_document_store(Reach::All, &new, &entry("rag_store.create")).await?)
}

async fn upload(store: &Store, to: StoreId, content: u8) -> Result<UploadOutcome, StoreError> {
    let blob: BlobId = store.begin_blob().await?;
    store.append_blob_part(blob, 0, &[content]).await?;
    let upload = Upload {
        store: to,
        blob,
        sha256: [content; 32],
        size: 1,
        file_name: "a.txt".to_owned(),
        media_type: "text/plain".to_owned(),
        external_key: Some("k".to_owned()),
        metadata: serde_json::json!({}),
        allow_duplicate: false,
    };
    store.finish_upload(Reach::All, &upload, &entry("document.upload")).await
}

#[tokio::test]
async fn locked_projects_and_keys_are_told_from_those_that_are_only_busy() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut projects = Vec::new();
    for name in ["row", "key", "free", "none"] {
        let project = database.insert_project(name, "").await?;
        projects.push((project, Some(database.insert_project_key(project).await?.0)));
    }
    let mut holder = database.superuser_pool().await?.begin().await?;
    sqlx::query("SELECT FROM projects WHERE id = $1 FOR UPDATE").bind(projects[0].0.0).execute(&mut *holder).await?;
    sqlx::query("SELECT FROM api_keys WHERE id = $1 FOR UPDATE")
        .bind(projects[1].1.map(|key| key.0))
        .execute(&mut *holder)
        .await?;
    projects[3].1 = None;
    let mut link = database.store(RoleName::Edge)?.ledger_link();
    let locked = link.list_locked_projects(projects.iter().copied().chain([(ProjectId(-1), None)])).await?;
    assert_eq!(locked, [projects[0].0, projects[1].0].into());
    holder.rollback().await?;
    assert!(link.list_locked_projects(projects.iter().copied()).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn admission_does_not_wait_while_a_deletion_searches_the_log() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (store, pool) = (database.store(RoleName::Backend)?, database.superuser_pool().await?);
    let (id, _) = project(&database, "p").await?;
    let mut busy = pool.begin().await?;
    sqlx::query("LOCK TABLE request_logs IN ACCESS EXCLUSIVE MODE").execute(&mut *busy).await?;
    let deletion = tokio::spawn(async move { store.delete_project(Reach::All, id, &entry("project.delete")).await });
    testkit::until("the deletion waits for the log", async || Ok(waiting_for_locks(&pool).await? == 1)).await?;
    // What admission does with the row, without its patience.
    sqlx::query("SELECT FROM projects WHERE id = $1 FOR NO KEY UPDATE NOWAIT").bind(id.0).fetch_one(&pool).await?;
    busy.commit().await?;
    assert_eq!(deletion.await??, ProjectDeletion::Deleted);
    Ok(())
}

#[tokio::test]
async fn stores_that_swap_their_contents_at_once_do_not_deadlock() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (store, pool) = (database.store(RoleName::Backend)?, database.superuser_pool().await?);
    let (id, _) = project(&database, "p").await?;
    store.create_connection(&connection("c"), None, &vault()?, &entry("model.create")).await?;
    store.ensure_vector_table(3).await?;
    let (a, b) = (add_store(&store, id, "a", "m").await?, add_store(&store, id, "b", "m").await?);
    upload(&store, a, 1).await?;
    upload(&store, b, 2).await?;
    // Holds both uploads where they have the new content and not yet the old one.
    sqlx::raw_sql(
        "CREATE FUNCTION wait_at_blob() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
         CREATE TRIGGER wait_at_blob AFTER UPDATE OF touched_at ON blobs FOR EACH ROW
             WHEN (old.sha256 IS NOT NULL) EXECUTE FUNCTION wait_at_blob();",
    )
    .execute(&pool)
    .await?;
    let mut gate = pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *gate).await?;
    let swap = |to: StoreId, content: u8| {
        let store = store.clone();
        tokio::spawn(async move { upload(&store, to, content).await })
    };
    let swaps = [swap(a, 2), swap(b, 1)];
    testkit::until("both have begun", async || Ok(waiting_for_locks(&pool).await? == 2)).await?;
    gate.commit().await?;
    for swap in swaps {
        assert!(matches!(swap.await??, UploadOutcome::Replaced(_)));
    }
    let contents: Vec<Vec<u8>> =
        sqlx::query_scalar("SELECT b.sha256 FROM documents d JOIN blobs b ON b.id = d.blob_id ORDER BY d.id")
            .fetch_all(&pool)
            .await?;
    assert_eq!(contents, [vec![2; 32], vec![1; 32]]);
    Ok(())
}

#[tokio::test]
async fn a_store_is_not_made_for_a_model_that_its_connection_no_longer_has() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    let (id, _) = project(&database, "p").await?;
    store.create_connection(&connection("c"), None, &vault()?, &entry("model.create")).await?;
    store.ensure_vector_table(3).await?;
    let refused = add_store(&store, id, "s", "the model before").await.unwrap_err();
    assert!(matches!(refused.downcast_ref(), Some(StoreError::Conflict)), "{refused:?}");
    add_store(&store, id, "s", "m").await?;
    Ok(())
}
