//! What people send by mistake or on purpose: a clear error, and nothing left behind.

use reqwest::StatusCode;
use serde_json::{Value, json};
use testkit::Stack;

use crate::client;

#[tokio::test]
async fn refused_uploads_leave_nothing() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let program = [b"MZ\x90\x00\x03\x00\x00\x00".as_slice(), &[0; 4096]].concat();
    let large = vec![b'a'; 60 * 1024 * 1024];
    for (name, bytes, status, code) in [
        ("setup.exe", program.clone(), StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("unsupported_type")),
        ("report.pdf", program, StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("type_mismatch")),
        ("empty.pdf", Vec::new(), StatusCode::BAD_REQUEST, Some("empty_file")),
        ("large.txt", large, StatusCode::PAYLOAD_TOO_LARGE, None),
    ] {
        let (answered, body) = admin.try_upload(project.store, name, bytes).await?;
        assert_eq!(answered, status, "{name}: {body}");
        assert!(body["error"]["message"].is_string(), "{name}: {body}");
        if let Some(code) = code {
            assert_eq!(body["error"]["code"], code, "{name}: {body}");
        }
    }
    let left = stack.database.upload_facts().await?;
    assert_eq!((left.documents, left.blobs, left.parts), (0, 0, 0));
    stack.shut_down().await
}

#[tokio::test]
async fn unreadable_documents_fail_with_a_code_and_the_next_one_is_read() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let broken = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\ntrailer\n<<>>\n%%EOF\n".to_vec();
    let broken = admin.upload(project.store, "broken.pdf", broken).await?;
    let blank = admin.upload(project.store, "blank.txt", b" \n\n \n".to_vec()).await?;
    let good = admin.upload(project.store, "good.md", b"# Good\n\nThis one can be read.\n".to_vec()).await?;
    let verdict = admin.verdict(broken).await?;
    let code = verdict["error"]["code"].as_str().unwrap_or_default();
    assert_eq!(verdict["status"], "failed", "{verdict}");
    assert!(["pdf_corrupt", "pdf_no_text", "pdf_unreadable"].contains(&code), "{verdict}");
    assert_eq!(admin.verdict(blank).await?["error"]["code"], "no_text");
    admin.ready(good).await?;
    stack.shut_down().await
}

#[tokio::test]
async fn wrong_calls_are_answered_in_the_words_of_the_api() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let url = format!("{}/chat/completions", stack.edge_url(0)?);
    let post = |key: Option<&str>, body: &str| {
        let mut request = stack.http.post(&url).header("content-type", "application/json").body(body.to_owned());
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        request.send()
    };
    let ask = client::ask("hello").to_string();
    let mistyped = format!("{}x", &project.key[..project.key.len() - 1]);
    for (key, body, status, kind) in [
        (None, ask.as_str(), 401, "invalid_request_error"),
        (Some("nonsense"), ask.as_str(), 401, "invalid_api_key"),
        (Some(mistyped.as_str()), ask.as_str(), 401, "invalid_api_key"),
        (Some(project.key.as_str()), "{\"model\": \"chat\", ", 400, "invalid_request_error"),
        (Some(project.key.as_str()), "[]", 400, "invalid_request_error"),
        (Some(project.key.as_str()), "{\"model\": \"chat\"}", 400, "invalid_request_error"),
        (Some(project.key.as_str()), "{\"model\": \"chat\", \"messages\": []}", 400, "invalid_request_error"),
    ] {
        let (answered, _, answer) = client::read(post(key, body).await?, "x-request-id").await?;
        assert_eq!((answered.as_u16(), answer["error"]["type"].as_str()), (status, Some(kind)), "{body}: {answer}");
    }
    let admin = stack.nth(testkit::Role::Admin, 0)?.url();
    let answer = stack.http.get(format!("{admin}/admin/api/projects")).send().await?;
    assert_eq!(client::read(answer, "cache-control").await?.0, StatusCode::UNAUTHORIZED);
    let login = stack.http.post(format!("{admin}/admin/api/login")).header("content-type", "application/json");
    let (status, _, body): (_, _, Value) = client::read(login.body("{\"username\":").send().await?, "x").await?;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    stack.shut_down().await
}
