//! Document stores over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::lab::{Admin, model, upstream};

#[tokio::test]
async fn a_store_asks_its_model_for_the_width_and_makes_room_for_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let id = admin.make_store(&upstream).await?;
    let (status, store) = admin.get(&format!("/rag-stores/{id}")).await?;
    assert_eq!(status, StatusCode::OK);
    let width = store["dimensions"].as_i64().unwrap();
    let expected = json!([400, 60, true, 0, 0]);
    let found: Vec<&Value> = ["chunk_tokens", "chunk_overlap", "contextual", "document_count", "bytes_used"]
        .iter()
        .map(|member| &store[*member])
        .collect();
    assert_eq!(json!(found), expected);
    let table: Option<String> = sqlx::query_scalar("SELECT to_regclass($1)::text")
        .bind(format!("chunk_embeddings_{width}"))
        .fetch_one(&database.superuser_pool().await?)
        .await?;
    assert!(width > 0 && table.is_some(), "{width}");

    let path = format!("/rag-stores/{id}");
    let put = async |change: Value| admin.call(Method::PUT, &path, Some(change)).await;
    let (status, changed) = put(json!({ "chunk_tokens": 200, "language": "en", "max_documents": 5 })).await?;
    assert_eq!(
        (status, &changed["chunk_tokens"], &changed["chunk_overlap"]),
        (StatusCode::OK, &json!(200), &json!(60))
    );
    assert_eq!((&changed["language"], &changed["reprocess_recommended"]), (&json!("en"), &json!(false)));
    let (_, changed) = put(json!({ "language": null })).await?;
    assert_eq!(changed["language"], Value::Null);
    for (member, value) in [
        ("chunk_tokens", json!(10)),
        ("chunk_overlap", json!(200)),
        ("language", json!("english")),
        ("max_bytes", json!(-1)),
        ("embedding_connection_id", json!(99)),
    ] {
        let (status, body) = put(json!({ member: value })).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{member}");
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(admin.get(&path).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn a_store_without_a_model_that_answers_is_not_made() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let project = admin.make("/projects", json!({ "name": "p" })).await?["project"]["id"].clone();
    let away = admin.make("/models", model("away", "http://127.0.0.1:1/v1")).await?["id"].clone();
    let store = |project: &Value, connection: &Value| json!({ "project_id": project, "embedding_connection_id": connection, "name": "s" });
    let (status, body) = admin.post("/rag-stores", store(&project, &away)).await?;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::BAD_GATEWAY, &json!("upstream_error")), "{body}");
    for (bad, member) in [
        (store(&json!(99), &away), "project_id"),
        (store(&project, &json!(99)), "embedding_connection_id"),
        (json!({ "name": "s" }), "project_id"),
    ] {
        let (status, body) = admin.post("/rag-stores", bad).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    assert_eq!(admin.get("/rag-stores").await?.1, json!({ "rag_stores": [] }));
    Ok(())
}
