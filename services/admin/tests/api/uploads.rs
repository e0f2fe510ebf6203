//! Uploads over HTTP: what becomes of the bytes, and that nothing is left of those that are refused.

use reqwest::header::RETRY_AFTER;
use reqwest::multipart::{Form, Part};
use reqwest::{Body, Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::lab::{Admin, answer, environment, upstream};

const PDF: &[u8] = b"%PDF-1.7\n%\xE2\xE3\xCF\xD3\n";

pub(crate) fn form(name: &str, bytes: Vec<u8>) -> Form {
    Form::new().part("file", Part::bytes(bytes).file_name(name.to_owned()))
}

pub(crate) async fn upload(admin: &Admin, path: &str, form: Form) -> anyhow::Result<(StatusCode, Value)> {
    answer(admin.request(Method::POST, path).multipart(form).send().await?).await
}

async fn count(pool: &PgPool, table: &str) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"))).fetch_one(pool).await?)
}

fn large(megabytes: usize) -> Vec<u8> {
    let mut bytes = PDF.to_vec();
    bytes.resize(megabytes * 1024 * 1024, 0xA5);
    bytes
}

#[tokio::test]
async fn an_upload_is_a_document_that_waits_and_its_bytes_are_all_there() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let bytes: Vec<u8> = [PDF, &(0..3_000_000_u32).map(|n| (n % 251) as u8).collect::<Vec<u8>>()].concat();
    let sent = Form::new()
        .text("metadata", r#"{"year":2026}"#)
        .text("external_key", "contract-1")
        .part("file", Part::bytes(bytes.clone()).file_name("C:\\docs\\Contract 1.pdf"));
    let (status, document) = upload(&admin, &path, sent).await?;
    assert_eq!(status, StatusCode::ACCEPTED, "{document}");
    let expected = json!({
        "file_name": "Contract 1.pdf", "media_type": "application/pdf", "external_key": "contract-1",
        "metadata": { "year": 2026 }, "status": "pending", "size": bytes.len(), "content_version": 1, "error": null,
    });
    for (member, value) in expected.as_object().unwrap() {
        assert_eq!(document[member], *value, "{member}");
    }
    assert_eq!((&document["queue"]["position"], &document["queue"]["waiting"]), (&json!(1), &json!(1)));

    let pool = database.superuser_pool().await?;
    let parts: Vec<Vec<u8>> =
        sqlx::query_scalar("SELECT bytes FROM blob_parts ORDER BY ordinal").fetch_all(&pool).await?;
    assert_eq!(parts.concat(), bytes);
    assert!(parts.len() > 10 && parts.iter().all(|part| part.len() <= 256 * 1024));

    let several = Form::new()
        .part("files", Part::text("one").file_name("a.txt"))
        .part("files", Part::text("# two").file_name("b.md"));
    let (status, documents) = upload(&admin, &path, several).await?;
    assert_eq!((status, documents.as_array().map(Vec::len)), (StatusCode::ACCEPTED, Some(2)));
    assert_eq!(documents[1]["media_type"], "text/markdown");
    assert_eq!(documents[1]["queue"]["position"], 3);
    Ok(())
}

#[tokio::test]
async fn the_same_bytes_are_one_document_even_when_sent_at_once() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let sends = (0..6).map(|_| upload(&admin, &path, form("a.pdf", large(1))));
    let answers = futures::future::try_join_all(sends).await?;
    assert!(answers.iter().all(|(status, _)| *status == StatusCode::ACCEPTED), "{answers:?}");
    let id = &answers[0].1["id"];
    assert!(answers.iter().all(|(_, document)| document["id"] == *id), "{answers:?}");
    let duplicates = answers.iter().filter(|(_, document)| document["duplicate_of"] == *id).count();
    assert_eq!(duplicates, 5);
    let pool = database.superuser_pool().await?;
    assert_eq!((count(&pool, "documents").await?, count(&pool, "blobs").await?), (1, 1));

    let (_, again) = upload(&admin, &format!("{path}?allow_duplicate=true"), form("b.pdf", large(1))).await?;
    assert!(again["id"] != *id && again.get("duplicate_of").is_none());
    assert_eq!((count(&pool, "documents").await?, count(&pool, "blobs").await?), (2, 1), "the bytes are there once");
    Ok(())
}

#[tokio::test]
async fn new_content_under_the_same_key_replaces_the_document_and_keeps_the_old_one_searchable() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let path = format!("/rag-stores/{store}/documents?external_key=k");
    let (_, first) = upload(&admin, &path, form("a.txt", b"first".to_vec())).await?;
    let pool = database.superuser_pool().await?;
    sqlx::query(
        "UPDATE documents SET status = 'processing', live_version = 1, attempts = 3, claimed_by = 'w', claim_token = 7",
    )
    .execute(&pool)
    .await?;
    let (status, second) = upload(&admin, &path, form("b.txt", b"second".to_vec())).await?;
    assert_eq!((status, &second["id"]), (StatusCode::ACCEPTED, &first["id"]));
    assert_eq!((&second["content_version"], &second["live_version"]), (&json!(2), &json!(1)));
    assert_eq!(
        (&second["status"], &second["attempts"], &second["file_name"]),
        (&json!("pending"), &json!(0), &json!("b.txt"))
    );
    let (claimed, token): (Option<String>, i64) =
        sqlx::query_as("SELECT claimed_by, claim_token FROM documents").fetch_one(&pool).await?;
    assert_eq!((claimed, token), (None, 8), "the worker that was at it has lost its claim");
    let (_, same) = upload(&admin, &path, form("b.txt", b"second".to_vec())).await?;
    assert_eq!((&same["duplicate_of"], &same["content_version"]), (&first["id"], &json!(2)));
    assert_eq!(count(&pool, "documents").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_key_sent_with_bytes_that_are_there_is_kept() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let send = async |key: &str, text: &str| {
        let path = if key.is_empty() { path.clone() } else { format!("{path}?external_key={key}") };
        anyhow::Ok(upload(&admin, &path, form("a.txt", text.as_bytes().to_vec())).await?.1)
    };
    let first = send("", "first").await?;
    let named = send("k", "first").await?;
    assert_eq!((&named["duplicate_of"], &named["external_key"]), (&first["id"], &json!("k")));
    let other = send("l", "first").await?;
    assert!(other["id"] != first["id"] && other["external_key"] == "l", "another key is another document: {other}");
    let next = send("k", "second").await?;
    assert_eq!((&next["id"], &next["content_version"]), (&first["id"], &json!(2)), "the key leads to the document");
    let pool = database.superuser_pool().await?;
    assert_eq!((count(&pool, "documents").await?, count(&pool, "blobs").await?), (2, 2));
    Ok(())
}

#[tokio::test]
async fn files_that_are_not_documents_are_refused_by_code_and_leave_nothing() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let exe = b"MZ\x90\x00\x03\x00\x00\x00\x04\x00\x00\x00\xff\xff\x00\x00\xb8\x00".to_vec();
    for (name, bytes, status, code) in [
        ("setup.exe", exe.clone(), 415, "unsupported_type"),
        ("report.pdf", exe.clone(), 415, "type_mismatch"),
        ("notes.txt", exe, 415, "binary_content"),
        ("empty.pdf", Vec::new(), 400, "empty_file"),
    ] {
        let (found, body) = upload(&admin, &path, form(name, bytes)).await?;
        assert_eq!((found.as_u16(), body["error"]["code"].as_str()), (status, Some(code)), "{name}: {body}");
    }
    for (request, status) in [
        (admin.request(Method::POST, &path).json(&json!({})), 415),
        (admin.request(Method::POST, &path).header("content-type", "multipart/form-data").body("x"), 415),
        (admin.request(Method::POST, &path).multipart(Form::new().text("metadata", "{}")), 400),
        (admin.request(Method::POST, &path).multipart(Form::new().text("other", "x")), 400),
        (admin.request(Method::POST, &path).multipart(Form::new().text("metadata", "[]")), 400),
        (
            admin
                .request(Method::POST, &path)
                .header("content-type", "multipart/form-data; boundary=b")
                .body("--b\r\n"),
            400,
        ),
        (admin.request(Method::POST, &path).multipart(Form::new().part("file", Part::text("no name"))), 400),
        (admin.request(Method::POST, "/rag-stores/999/documents").multipart(form("a.txt", b"x".to_vec())), 404),
    ] {
        let (found, body) = answer(request.send().await?).await?;
        assert_eq!(found.as_u16(), status, "{body}");
        assert!(body["error"]["message"].is_string());
    }
    let pool = database.superuser_pool().await?;
    assert_eq!((count(&pool, "documents").await?, count(&pool, "blobs").await?), (0, 0));
    let encrypted = [PDF, b"1 0 obj << /Encrypt 2 0 R >> endobj"].concat();
    let (status, _) = upload(&admin, &path, form("secret.pdf", encrypted)).await?;
    assert_eq!(status, StatusCode::ACCEPTED, "what is inside a PDF is for the worker to find out");
    Ok(())
}

#[tokio::test]
async fn a_file_over_the_limit_is_refused_whether_it_says_its_length_or_not() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let told = form("big.pdf", large(60));
    let pieces = futures::stream::iter(large(52).chunks(65_536).map(<[u8]>::to_vec).collect::<Vec<_>>());
    let untold = Body::wrap_stream(futures::StreamExt::map(pieces, Ok::<_, std::io::Error>));
    let untold = Form::new().part("file", Part::stream(untold).file_name("big.pdf"));
    for form in [told, untold] {
        let (status, body) = upload(&admin, &path, form).await?;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("50 MiB") && message.contains("MAX_UPLOAD_MB"), "{message}");
        let pool = database.superuser_pool().await?;
        assert_eq!((count(&pool, "blobs").await?, count(&pool, "blob_parts").await?), (0, 0));
    }
    let (status, _) = upload(&admin, &path, form("fits.pdf", large(50))).await?;
    assert_eq!(status, StatusCode::ACCEPTED, "exactly the limit is within it");
    Ok(())
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_leaves_nothing() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let request = admin.request(Method::POST, &path).build()?;
    let bearer = request.headers()["authorization"].to_str()?.to_owned();
    let address = admin.base.strip_prefix("http://").unwrap();
    let mut client = TcpStream::connect(address).await?;
    let head = format!(
        "POST /admin/api{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {bearer}\r\nContent-Length: 10000000\r\n\
         Content-Type: multipart/form-data; boundary=b\r\n\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.pdf\"\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(&large(1)).await?;
    let pool = database.superuser_pool().await?;
    testkit::until("parts are stored", async || Ok(count(&pool, "blob_parts").await? > 0)).await?;
    drop(client);
    testkit::until("all of it is removed", async || Ok(count(&pool, "blobs").await? == 0)).await?;
    assert_eq!((count(&pool, "documents").await?, count(&pool, "blob_parts").await?), (0, 0));
    Ok(())
}

#[tokio::test]
async fn too_many_waiting_documents_refuse_the_next_and_store_nothing_of_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = environment(&database);
    environment.insert("MAX_PENDING_DOCUMENTS".to_owned(), "2".to_owned());
    let (admin, upstream) = (Admin::start_with(&environment).await?, upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let pool = database.superuser_pool().await?;
    let send = async |number: i64| {
        let form = form("a.txt", format!("text {number}").into_bytes());
        anyhow::Ok(admin.request(Method::POST, &path).multipart(form).send().await?)
    };
    // Within a second an older count may let some through.
    let refused = testkit::eventually("an upload is refused", async || {
        let response = send(count(&pool, "documents").await?).await?;
        Ok((response.status() != StatusCode::ACCEPTED).then_some(response))
    })
    .await?;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key(RETRY_AFTER));
    let (_, body) = answer(refused).await?;
    assert_eq!(body["error"]["code"], "ingestion_backlog");
    let documents = count(&pool, "documents").await?;
    assert!(documents >= 2);
    assert_eq!(count(&pool, "blobs").await?, documents);

    sqlx::query("UPDATE documents SET status = 'ready'").execute(&pool).await?;
    testkit::until("uploads are taken again", async || Ok(send(1_000).await?.status() == StatusCode::ACCEPTED)).await
}

#[tokio::test]
async fn quotas_hold_when_uploads_race_for_the_last_place() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let (status, _) = admin
        .call(Method::PUT, &format!("/rag-stores/{store}"), Some(json!({ "max_documents": 2, "max_bytes": 100 })))
        .await?;
    assert_eq!(status, StatusCode::OK);
    let path = format!("/rag-stores/{store}/documents");
    let (status, body) = upload(&admin, &path, form("long.txt", vec![b'x'; 101])).await?;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("store_quota")));
    let sends = (0..5).map(|number| upload(&admin, &path, form("a.txt", format!("text {number}").into_bytes())));
    let answers = futures::future::try_join_all(sends).await?;
    let taken = answers.iter().filter(|(status, _)| *status == StatusCode::ACCEPTED).count();
    assert_eq!(taken, 2, "{answers:?}");
    assert!(answers.iter().all(|(status, _)| matches!(status.as_u16(), 202 | 422)), "{answers:?}");
    let pool = database.superuser_pool().await?;
    assert_eq!((count(&pool, "documents").await?, count(&pool, "blobs").await?), (2, 2));
    Ok(())
}
