//! Settings that other tests leave at their defaults: changing each has an effect.

use reqwest::header::{RETRY_AFTER, SET_COOKIE};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::lab::{Admin, PASSWORD, USER, environment, model};
use crate::uploads::{form, upload};

async fn start(changes: &[(&str, &str)], database: &testkit::TestDatabase) -> anyhow::Result<Admin> {
    let mut environment = environment(database);
    environment.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    Admin::start_with(&environment).await
}

#[tokio::test]
async fn a_session_lasts_as_long_as_it_is_told_to() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = start(&[("SESSION_TTL", "2m")], &database).await?;
    let login = admin.request(Method::POST, "/login").json(&json!({ "username": USER, "password": PASSWORD }));
    let answered = login.send().await?;
    assert!(answered.headers()[SET_COOKIE].to_str()?.contains("Max-Age=120;"));
    let seconds: Vec<f64> =
        sqlx::query_scalar("SELECT extract(epoch FROM expires_at - created_at)::float8 FROM sessions")
            .fetch_all(&database.superuser_pool().await?)
            .await?;
    assert!(seconds.iter().all(|lasts| (lasts - 120.0).abs() < 1.0), "{seconds:?}");
    Ok(())
}

#[tokio::test]
async fn failures_lock_a_name_and_an_address_out_for_a_while() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let limits = [("LOGIN_LOCKOUT_FAILURES", "2"), ("LOGIN_LOCKOUT_MINUTES", "7")];
    let admin = start(&limits, &database).await?;
    for _ in 0..2 {
        let (status, _) = admin.post("/login", json!({ "username": USER, "password": "wrong" })).await?;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    let right = admin.request(Method::POST, "/login").json(&json!({ "username": USER, "password": PASSWORD }));
    let locked = right.send().await?;
    assert_eq!(locked.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = locked.headers()[RETRY_AFTER].to_str()?.parse()?;
    assert!((60..=420).contains(&seconds), "{seconds}");
    assert_eq!(locked.json::<serde_json::Value>().await?["error"]["code"], "locked");
    Ok(())
}

#[tokio::test]
async fn a_name_may_fail_as_often_as_it_is_allowed_to() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = start(&[("LOGIN_USER_LIMIT_PER_MIN", "1")], &database).await?;
    let guess = || admin.post("/login", json!({ "username": "nobody", "password": "wrong" }));
    assert_eq!(guess().await?.0, StatusCode::UNAUTHORIZED);
    assert_eq!(guess().await?.0, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn a_host_on_the_list_may_be_private_and_others_may_not() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let lists = [("ALLOW_PRIVATE_UPSTREAMS", "false"), ("PRIVATE_UPSTREAM_ALLOWLIST", "127.0.0.2")];
    let admin = start(&lists, &database).await?;
    assert_eq!(admin.post("/models", model("a", "http://127.0.0.2:1/v1")).await?.0, StatusCode::CREATED);
    assert_eq!(admin.post("/models", model("b", "http://127.0.0.3:1/v1")).await?.0, StatusCode::BAD_REQUEST);
    Ok(())
}

#[tokio::test]
async fn a_file_may_be_as_large_as_it_is_allowed_to() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (start(&[("MAX_UPLOAD_MB", "1")], &database).await?, crate::lab::upstream().await?);
    let path = format!("/rag-stores/{}/documents", admin.make_store(&upstream).await?);
    let fits = vec![b'a'; 1024 * 1024];
    let (status, _) = upload(&admin, &path, form("a.txt", fits.clone())).await?;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (status, body) = upload(&admin, &path, form("b.txt", [fits, b"b".to_vec()].concat())).await?;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(body["error"]["message"].as_str().unwrap().contains("1 MiB"), "{body}");
    Ok(())
}
