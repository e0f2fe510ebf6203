//! Documents over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use testkit::RoleName;

use crate::lab::{Admin, environment, upstream};
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
    let path = format!("/documents/{}", made["id"]);
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(admin.get(&path).await?.0, StatusCode::NOT_FOUND);
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NOT_FOUND);

    let (backend, pool) = (database.store(RoleName::Backend)?, database.superuser_pool().await?);
    removed(&pool).await?;
    assert_eq!(backend.sweep_blobs(100).await?, 0, "somebody may still read them");
    sqlx::query("INSERT INTO blobs (touched_at) VALUES (now())").execute(&pool).await?;
    sqlx::query("UPDATE blobs SET touched_at = now() - interval '61 minutes'").execute(&pool).await?;
    let (_, kept) = upload(&admin, &format!("/rag-stores/{store}/documents"), form("b.txt", b"other".to_vec())).await?;
    sqlx::query("UPDATE blobs SET touched_at = now() - interval '61 minutes'").execute(&pool).await?;
    assert_eq!(backend.sweep_blobs(100).await?, 2, "what is referred to stays: {kept}");
    Ok(())
}

/// Waits until nothing is left of what was deleted.
async fn removed(pool: &PgPool) -> anyhow::Result<()> {
    testkit::until("rows of what was deleted are removed", async || {
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM documents WHERE deleted_at IS NOT NULL) +
                    (SELECT count(*) FROM document_stores WHERE deleted_at IS NOT NULL)",
        )
        .fetch_one(pool)
        .await?;
        Ok(left == 0)
    })
    .await
}

#[tokio::test]
async fn a_store_goes_with_its_documents_and_leaves_its_name_to_the_next() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let (_, seen) = admin.get(&format!("/rag-stores/{store}")).await?;
    let path = format!("/rag-stores/{store}/documents");
    for number in 0..3 {
        upload(&admin, &path, form("a.txt", format!("text {number}").into_bytes())).await?;
    }
    let project = format!("/projects/{}", seen["project_id"]);
    let (status, _) = admin.call(Method::PATCH, &project, Some(json!({ "store_id": store }))).await?;
    assert_eq!(status, StatusCode::OK);
    let gone = format!("/rag-stores/{store}");
    assert_eq!(admin.call(Method::DELETE, &gone, None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(admin.call(Method::DELETE, &gone, None).await?.0, StatusCode::NOT_FOUND);
    for path in [&gone, &path] {
        assert_eq!(admin.get(path).await?.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(upload(&admin, &path, form("b.txt", b"late".to_vec())).await?.0, StatusCode::NOT_FOUND);
    assert_eq!(admin.get("/rag-stores").await?.1, json!({ "rag_stores": [] }));
    assert_eq!(admin.get(&project).await?.1["store_id"], Value::Null);

    let again = json!({
        "project_id": seen["project_id"], "embedding_connection_id": seen["embedding_connection_id"], "name": seen["name"],
    });
    let next = admin.make("/rag-stores", again).await?["id"].clone();
    let (status, back) =
        upload(&admin, &format!("/rag-stores/{next}/documents"), form("a.txt", b"text 0".to_vec())).await?;
    assert_eq!((status, back.get("duplicate_of")), (StatusCode::ACCEPTED, None), "{back}");
    let pool = database.superuser_pool().await?;
    removed(&pool).await?;
    let left: Vec<i64> = sqlx::query_scalar("SELECT store_id FROM documents").fetch_all(&pool).await?;
    assert_eq!(json!(left), json!([next]));
    sqlx::query("UPDATE blobs SET touched_at = now() - interval '61 minutes'").execute(&pool).await?;
    let backend = database.store(RoleName::Backend)?;
    assert_eq!(backend.sweep_blobs(100).await?, 2, "the bytes that another store has stay");
    Ok(())
}

#[tokio::test]
async fn a_deleted_document_makes_room_for_the_same_bytes_and_key_at_once() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let limits = json!({ "max_documents": 1, "max_bytes": 4 });
    admin.call(Method::PATCH, &format!("/rag-stores/{store}"), Some(limits)).await?;
    let path = format!("/rag-stores/{store}/documents?external_key=k");
    let mut before = Value::Null;
    for _ in 0..3 {
        let (status, made) = upload(&admin, &path, form("a.txt", b"text".to_vec())).await?;
        assert_eq!((status, &made["external_key"]), (StatusCode::ACCEPTED, &json!("k")), "{made}");
        assert!(made["id"] != before && made.get("duplicate_of").is_none(), "{made}");
        before = made["id"].clone();
        assert_eq!(admin.call(Method::DELETE, &format!("/documents/{before}"), None).await?.0, StatusCode::NO_CONTENT);
        let path = format!("/documents/{before}/reprocess");
        assert_eq!(admin.call(Method::POST, &path, None).await?.0, StatusCode::NOT_FOUND);
        let (_, seen) = admin.get(&format!("/rag-stores/{store}")).await?;
        assert_eq!((&seen["document_count"], &seen["bytes_used"]), (&json!(0), &json!(0)));
    }
    Ok(())
}

#[tokio::test]
async fn all_documents_are_read_again_behind_uploads_and_once_however_often_it_is_asked_for() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = environment(&database);
    environment.insert("MAX_PENDING_DOCUMENTS".to_owned(), "1".to_owned());
    let (admin, upstream) = (Admin::start_with(&environment).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let path = format!("/rag-stores/{store}/documents");
    let pool = database.superuser_pool().await?;
    for number in 0..4 {
        upload(&admin, &path, form("a.txt", format!("text {number}").into_bytes())).await?;
        sqlx::query("UPDATE documents SET status = 'ready', live_version = 1").execute(&pool).await?;
    }
    sqlx::query(
        "UPDATE documents SET status = CASE id % 4 WHEN 0 THEN 'failed' WHEN 1 THEN 'processing' WHEN 2 THEN 'delayed'
                                                   ELSE 'ready' END, claim_token = 7, attempts = 2",
    )
    .execute(&pool)
    .await?;
    let again = format!("/rag-stores/{store}/reprocess");
    for _ in 0..2 {
        let (status, answer) = admin.call(Method::POST, &again, None).await?;
        assert_eq!((status, answer), (StatusCode::ACCEPTED, json!({ "documents": 4 })));
        let (_, listed) = admin.get(&path).await?;
        for document in listed["documents"].as_array().unwrap() {
            assert_eq!(
                (&document["status"], &document["content_version"], &document["live_version"], &document["attempts"]),
                (&json!("pending"), &json!(2), &json!(1), &json!(0)),
                "{document}"
            );
        }
    }
    // Uploads are taken although more documents wait than may, and go first.
    let (status, document) = upload(&admin, &path, form("b.txt", b"an upload".to_vec())).await?;
    assert_eq!((status, &document["queue"]["position"]), (StatusCode::ACCEPTED, &json!(1)), "{document}");
    assert_eq!(admin.call(Method::POST, "/rag-stores/999/reprocess", None).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}
