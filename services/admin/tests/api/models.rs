//! Connections over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::lab::{Admin, model, upstream};

const SECRET: &str = "sk-upstream-0123456789abcdef";

#[tokio::test]
async fn a_credential_goes_in_and_never_comes_out() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let mut body = model("main", "https://api.example.com/v1/");
    body["api_key"] = json!(SECRET);
    let made = admin.make("/models", body.clone()).await?;
    assert_eq!(
        (&made["api_key_masked"], &made["base_url"]),
        (&json!("sk-****cdef"), &json!("https://api.example.com/v1"))
    );
    let path = format!("/models/{}", made["id"]);
    for path in [path.as_str(), "/models"] {
        assert!(!admin.get(path).await?.1.to_string().contains("0123456789"), "{path}");
    }
    let stored: Vec<u8> = sqlx::query_scalar("SELECT credential_sealed FROM model_connections")
        .fetch_one(&database.superuser_pool().await?)
        .await?;
    assert!(!stored.windows(8).any(|part| part == &SECRET.as_bytes()[..8]));
    assert_eq!(admin.post("/models", body).await?.0, StatusCode::CONFLICT, "the name is taken");

    let put = async |change: Value| admin.call(Method::PUT, &path, Some(change)).await;
    let (status, kept) = put(json!({ "api_key": "", "base_url": "https://api.example.com/v2" })).await?;
    assert_eq!(
        (status, &kept["api_key_masked"]),
        (StatusCode::OK, &json!("sk-****cdef")),
        "another path, the same host"
    );
    let (_, cleared) = put(json!({ "base_url": "https://evil.example.com/v2" })).await?;
    assert_eq!(cleared["api_key_masked"], Value::Null, "it does not follow to another host");
    let (_, replaced) = put(json!({ "base_url": "https://c.example.com/v2", "api_key": "sk-new-0123456789" })).await?;
    assert_eq!(replaced["api_key_masked"], "sk-****6789");
    assert_eq!(replaced["revision"], 4);

    let details: Vec<Value> =
        sqlx::query_scalar("SELECT details FROM audit_logs WHERE action = 'model.update' ORDER BY id")
            .fetch_all(&database.superuser_pool().await?)
            .await?;
    let credentials: Vec<&Value> = details.iter().map(|details| &details["credential"]).collect();
    assert_eq!(credentials, ["kept", "cleared", "replaced"]);
    assert_eq!(details[1]["from"]["base_url"], "https://api.example.com/v2");
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(admin.get(&path).await?.0, StatusCode::NOT_FOUND);
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn addresses_that_cannot_be_called_are_refused_when_they_are_typed() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = crate::lab::environment(&database);
    environment.remove("ALLOW_PRIVATE_UPSTREAMS");
    let admin = Admin::start_with(&environment).await?;
    for (base_url, reason) in [
        ("http://127.0.0.1:8000/v1", "private or reserved"),
        ("http://169.254.169.254/", "private or reserved"),
        ("http://[::1]/v1", "private or reserved"),
        ("ftp://host.example/", "https:// or http://"),
        ("https://u:p@host.example/", "user name or password"),
        ("https://host.example/?a=b", "query"),
        ("", "needs one"),
    ] {
        let (status, body) = admin.post("/models", model("m", base_url)).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{base_url}");
        assert!(body["error"]["message"].as_str().unwrap().contains(reason), "{base_url}: {body}");
    }
    let openai = json!({ "name": "o", "provider_type": "openai", "model_name": "gpt-4o" });
    assert_eq!(admin.make("/models", openai).await?["base_url"], "https://api.openai.com/v1");
    for (member, value) in
        [("name", json!(" ")), ("provider_type", json!("x")), ("model_name", json!("a b")), ("api_key", json!("a\nb"))]
    {
        let mut bad = model("n", "https://host.example/v1");
        bad[member] = value;
        let (status, body) = admin.post("/models", bad).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{member}");
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    Ok(())
}

#[tokio::test]
async fn a_connection_that_a_store_embeds_with_keeps_its_model() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let store = admin.make_store(&upstream).await?;
    let id = admin.get("/models").await?.1["models"][0]["id"].clone();
    let path = format!("/models/{id}");
    let patch = async |change: Value| admin.call(Method::PATCH, &path, Some(change)).await;
    for change in [json!({ "model_name": "other" }), json!({ "provider_type": "openai" })] {
        let (status, body) = patch(change.clone()).await?;
        assert_eq!((status, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("connection_in_use")), "{change}");
    }
    let (_, same) = admin.get(&path).await?;
    assert_eq!((&same["model_name"], &same["revision"]), (&json!("demo-embed"), &json!(1)));
    let moved = json!({ "name": "renamed", "model_name": "demo-embed", "base_url": "http://127.0.0.1:1/v1" });
    assert_eq!(patch(moved).await?.0, StatusCode::OK, "its address may change");
    assert_eq!(admin.call(Method::DELETE, &format!("/rag-stores/{store}"), None).await?.0, StatusCode::NO_CONTENT);
    let (status, changed) = patch(json!({ "model_name": "other" })).await?;
    assert_eq!((status, &changed["model_name"]), (StatusCode::OK, &json!("other")), "{changed}");
    Ok(())
}
