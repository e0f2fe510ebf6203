//! Documents over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::RoleName;

use crate::lab::{Admin, upstream};
use crate::uploads::{form, upload};

#[tokio::test]
async fn documents_are_listed_in_pages_newest_first() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let mut made = Vec::new();
    for number in 0..5 {
        let (_, document) = upload(&admin, &path, form("a.txt", format!("text {number}").into_bytes())).await?;
        made.insert(0, document["id"].as_i64().unwrap());
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for page in 0..3 {
        let (status, body) = admin.get(&format!("{path}?limit=2{cursor}")).await?;
        assert_eq!(status, StatusCode::OK);
        seen.extend(body["documents"].as_array().unwrap().iter().map(|document| document["id"].as_i64().unwrap()));
        cursor = format!("&cursor={}", body["next_cursor"]);
        assert_eq!(body["next_cursor"].is_null(), page == 2);
    }
    assert_eq!(seen, made);
    assert_eq!(admin.get(&format!("{path}?status=ready")).await?.1["documents"], json!([]));
    for bad in ["limit=0", "limit=201", "limit=x", "status=lost", "cursor=x", "page=1"] {
        assert_eq!(admin.get(&format!("{path}?{bad}")).await?.0, StatusCode::BAD_REQUEST, "{bad}");
    }
    assert_eq!(admin.get("/rag-stores/999/documents").await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn a_document_tells_how_far_it_is_and_why_it_failed() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let (_, made) = upload(&admin, &format!("/rag-stores/{store}/documents"), form("a.txt", b"text".to_vec())).await?;
    let path = format!("/documents/{}", made["id"]);
    let pool = database.superuser_pool().await?;
    sqlx::query(
        "UPDATE documents SET status = 'processing', stage = 'embedding', progress_done = 3, progress_total = 9",
    )
    .execute(&pool)
    .await?;
    let (_, document) = admin.get(&path).await?;
    assert_eq!((&document["stage"], &document["progress"]), (&json!("embedding"), &json!({ "done": 3, "total": 9 })));
    assert_eq!(document.get("queue"), None, "it does not wait");
    sqlx::query("UPDATE documents SET status = 'failed', error_code = 'pdf_encrypted', error_text = 'it needs a password', attempts = 2")
        .execute(&pool)
        .await?;
    let (_, document) = admin.get(&path).await?;
    assert_eq!(document["error"], json!({ "code": "pdf_encrypted", "message": "it needs a password" }));

    let (status, again) = admin.call(Method::POST, &format!("{path}/reprocess"), None).await?;
    assert_eq!((status, &again["status"]), (StatusCode::ACCEPTED, &json!("pending")));
    assert_eq!((&again["content_version"], &again["attempts"], &again["error"]), (&json!(2), &json!(0), &Value::Null));
    assert_eq!(again["queue"]["position"], 1);
    assert_eq!(admin.call(Method::POST, "/documents/999/reprocess", None).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn a_deleted_document_is_gone_at_once_and_its_bytes_with_the_next_sweep() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let (_, made) = upload(&admin, &format!("/rag-stores/{store}/documents"), form("a.txt", b"text".to_vec())).await?;
    let (full, _) = admin.call(Method::DELETE, &format!("/rag-stores/{store}"), None).await?;
    assert_eq!(full, StatusCode::CONFLICT, "a store with documents stays");
    let path = format!("/documents/{}", made["id"]);
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(admin.get(&path).await?.0, StatusCode::NOT_FOUND);
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NOT_FOUND);

    let (backend, pool) = (database.store(RoleName::Backend)?, database.superuser_pool().await?);
    assert_eq!(backend.sweep_blobs(100).await?, 0, "somebody may still read them");
    sqlx::query("INSERT INTO blobs (touched_at) VALUES (now())").execute(&pool).await?;
    sqlx::query("UPDATE blobs SET touched_at = now() - interval '61 minutes'").execute(&pool).await?;
    let (_, kept) = upload(&admin, &format!("/rag-stores/{store}/documents"), form("b.txt", b"other".to_vec())).await?;
    sqlx::query("UPDATE blobs SET touched_at = now() - interval '61 minutes'").execute(&pool).await?;
    assert_eq!(backend.sweep_blobs(100).await?, 2, "what is referred to stays: {kept}");
    Ok(())
}
