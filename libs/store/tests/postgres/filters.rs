//! Filters on a real server.

use std::time::Duration;

use domain::{DocumentFilter, StoreId};
use serde_json::{Value, json};
use store::testing::RoleName;

#[tokio::test]
async fn a_filter_leaves_the_documents_that_it_describes() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let project = database.insert_project("p", "").await?;
    let connection = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await?;
    let store = database.insert_document_store(project, connection, 3).await?;
    let documents = [
        json!({ "team": "a", "year": 2020, "tags": ["x", "y"], "path": "docs/a", "day": "2024-01-31" }),
        json!({ "team": "b", "year": 2021.5, "tags": ["y"], "path": "docs/b", "day": "2024-02-01" }),
        json!({ "team": ["a", "c"], "year": "2022", "tags": "x", "path": 7, "draft": true }),
        json!({ "team": { "a": 1 }, "year": 1e30, "é'\"$1": "z", "draft": null }),
    ];
    let mut ids = Vec::new();
    let pool = database.superuser_pool().await?;
    for metadata in &documents {
        let id = database.insert_document(store, "a.txt").await?;
        sqlx::query("UPDATE documents SET metadata = $2, live_version = 1, chunk_count = 5 WHERE id = $1")
            .bind(id.0)
            .bind(metadata)
            .execute(&pool)
            .await?;
        ids.push(id);
    }
    database.insert_document(store, "waiting.txt").await?;
    let edge = database.store(RoleName::Edge)?;
    let left = async |filter: Value| -> anyhow::Result<Vec<usize>> {
        let filter = DocumentFilter::parse(&filter, "filter")?;
        let within = edge.list_documents_within(store, &filter, Duration::from_secs(5)).await?;
        assert_eq!(within.chunks, 5 * i64::try_from(within.documents.len())?);
        Ok(within.documents.iter().map(|id| ids.iter().position(|of| of == id).unwrap()).collect())
    };
    for (filter, expected) in [
        (json!({}), vec![0, 1, 2, 3]),
        (json!({ "documents": [ids[1].0, ids[3].0, 999] }), vec![1, 3]),
        (json!({ "tags": ["x"] }), vec![0, 2]),
        (json!({ "tags": { "any": ["x", "y"] } }), vec![0, 1, 2]),
        (json!({ "tags": { "all": ["x", "y"] } }), vec![0]),
        (json!({ "tags": ["'; DROP TABLE documents; --"] }), vec![]),
        (json!({ "metadata": { "team": "a" } }), vec![0, 2]),
        (json!({ "metadata": { "team": { "in": ["b", "c"] } } }), vec![1, 2]),
        (json!({ "metadata": { "year": 2020.0 } }), vec![0]),
        (json!({ "metadata": { "year": { "gte": 2020, "lt": 2022 } } }), vec![0, 1]),
        (json!({ "metadata": { "year": { "gt": 2020 } } }), vec![1, 3]),
        (json!({ "metadata": { "year": { "lte": "2023" } } }), vec![2]),
        (json!({ "metadata": { "day": { "gte": "2024-02" } } }), vec![1]),
        (json!({ "metadata": { "path": { "prefix": "docs/" } } }), vec![0, 1]),
        (json!({ "metadata": { "path": { "prefix": "docs/%" } } }), vec![]),
        (json!({ "metadata": { "draft": true } }), vec![2]),
        (json!({ "metadata": { "draft": { "exists": true } } }), vec![2, 3]),
        (json!({ "metadata": { "draft": { "exists": false } } }), vec![0, 1]),
        (json!({ "metadata": { "é'\"$1": "z" } }), vec![3]),
        (json!({ "metadata": { "team": "a" }, "tags": ["y"], "documents": [ids[0].0] }), vec![0]),
    ] {
        assert_eq!(left(filter.clone()).await?, expected, "{filter}");
    }
    let every = DocumentFilter::default();
    let elsewhere = edge.list_documents_within(StoreId(store.0 + 1), &every, Duration::from_secs(5)).await?;
    assert!(elsewhere.documents.is_empty(), "another store's documents are not looked at");
    Ok(())
}
