//! Signing in and out.

use reqwest::header::{COOKIE, RETRY_AFTER, SET_COOKIE};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::lab::{Admin, PASSWORD, USER};

#[tokio::test]
async fn a_session_begins_with_a_cookie_or_a_token_and_ends_everywhere() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut admin = Admin::start(&database).await?;
    let (status, me) = admin.get("/me").await?;
    assert_eq!((status, &me["user"]["username"], &me["user"]["role"]), (StatusCode::OK, &json!(USER), &json!("admin")));
    assert_eq!(me["session_bearer"], true);

    let token = admin.without_token();
    let login = json!({ "username": "ROOT", "password": PASSWORD });
    let response = admin.request(Method::POST, "/login").json(&login).send().await?;
    assert_eq!(response.status(), StatusCode::OK);
    let cookie = response.headers()[SET_COOKIE].to_str()?.to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && cookie.contains("Max-Age=86400"));
    let body: serde_json::Value = response.json().await?;
    assert_eq!(body.get("token"), None, "a browser has no use for it");
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    let me = async || anyhow::Ok(admin.request(Method::GET, "/me").header(COOKIE, &cookie).send().await?.status());
    assert_eq!(me().await?, StatusCode::OK);

    let out = admin.request(Method::POST, "/logout").header(COOKIE, &cookie);
    assert_eq!(out.send().await?.status(), StatusCode::FORBIDDEN, "a cookie alone does not write");
    let out = admin.request(Method::POST, "/logout").header(COOKIE, &cookie).header("sec-fetch-site", "same-origin");
    let out = out.send().await?;
    assert_eq!(out.status(), StatusCode::NO_CONTENT);
    assert!(out.headers()[SET_COOKIE].to_str()?.contains("Max-Age=0"));
    assert_eq!(me().await?, StatusCode::UNAUTHORIZED);
    admin.with_token(token);
    assert_eq!(admin.get("/me").await?.0, StatusCode::OK, "other sessions go on");

    let second = Admin::launch(&crate::lab::environment(&database)).await?;
    second.ready().await?;
    let elsewhere = admin.request(Method::GET, "/me").build()?;
    let header = elsewhere.headers()["authorization"].clone();
    let seen = second.request(Method::GET, "/me").header("authorization", header).send().await?;
    assert_eq!(seen.status(), StatusCode::OK, "a session is known to every replica");
    Ok(())
}

#[tokio::test]
async fn wrong_names_and_wrong_passwords_answer_the_same_and_are_throttled_together() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut admin = Admin::start(&database).await?;
    admin.without_token();
    let mut answers = Vec::new();
    for username in [USER, "nobody"] {
        for _ in 0..5 {
            answers.push(admin.post("/login", json!({ "username": username, "password": "wrong" })).await?);
        }
    }
    assert_eq!(answers[0].0, StatusCode::UNAUTHORIZED);
    assert_eq!(answers[0].1["error"]["type"], "unauthorized");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let refused = admin.request(Method::POST, "/login").json(&json!({ "username": USER, "password": PASSWORD }));
    let refused = refused.send().await?;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "ten failures of the address in a minute");
    assert_eq!(refused.headers()[RETRY_AFTER], "60");
    let body: serde_json::Value = refused.json().await?;
    assert_eq!(body["error"]["type"], "rate_limited");
    Ok(())
}

#[tokio::test]
async fn guesses_made_at_once_get_no_further_than_guesses_in_a_row() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = crate::lab::environment(&database);
    environment.insert("LOGIN_RATE_LIMIT_PER_MIN".to_owned(), "1000".to_owned());
    let admin = Admin::launch(&environment).await?;
    admin.ready().await?;
    let guess = || admin.post("/login", json!({ "username": USER, "password": "wrong" }));
    let answers = futures::future::try_join_all((0..20).map(|_| guess())).await?;
    let made = answers.iter().filter(|(status, _)| *status == StatusCode::UNAUTHORIZED).count();
    assert_eq!(made, 5, "the limit for a name that this address never signed in with");
    assert!(answers.iter().all(|(status, _)| matches!(status.as_u16(), 401 | 429)), "{answers:?}");
    Ok(())
}

#[tokio::test]
async fn a_known_name_cannot_be_locked_out_by_others() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let pool = database.superuser_pool().await?;
    sqlx::query("INSERT INTO login_attempts (username, address, success) SELECT 'root', '192.0.2.1', false FROM generate_series(1, 50)")
        .execute(&pool)
        .await?;
    let (status, _) = admin.post("/login", json!({ "username": USER, "password": PASSWORD })).await?;
    assert_eq!(status, StatusCode::OK, "this address has signed in as that name before");
    Ok(())
}

#[tokio::test]
async fn an_inactive_user_and_an_ended_session_are_nobody() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let pool = database.superuser_pool().await?;
    sqlx::query("UPDATE users SET active = false").execute(&pool).await?;
    assert_eq!(admin.get("/me").await?.0, StatusCode::UNAUTHORIZED);
    let (status, _) = admin.post("/login", json!({ "username": USER, "password": PASSWORD })).await?;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    sqlx::query("UPDATE users SET active = true").execute(&pool).await?;
    assert_eq!(admin.get("/me").await?.0, StatusCode::OK);
    sqlx::query("UPDATE sessions SET expires_at = now()").execute(&pool).await?;
    assert_eq!(admin.get("/me").await?.0, StatusCode::UNAUTHORIZED);
    let stored: Vec<Vec<u8>> = sqlx::query_scalar("SELECT token_hash FROM sessions").fetch_all(&pool).await?;
    assert!(stored.iter().all(|hash| hash.len() == 32), "only hashes are stored");
    Ok(())
}
