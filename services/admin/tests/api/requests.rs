//! What holds for every request.

use reqwest::header::{CACHE_CONTROL, CONTENT_TYPE};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::lab::{Admin, answer};

#[tokio::test]
async fn bodies_that_cannot_be_taken_are_refused_with_the_reason() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let send = async |kind: &str, body: String| {
        let request = admin.request(Method::POST, "/projects").header(CONTENT_TYPE, kind).body(body);
        answer(request.send().await?).await
    };
    let (status, body) = send("application/json", "{\"name\":\n \"p\",,}".to_owned()).await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body["error"]["message"].as_str().unwrap().contains("line 2 column 6"), "{body}");
    assert_eq!(body["error"]["type"], "Bad Request");
    for broken in ["", "{", "[]", "\"p\"", "{\"name\":1}", "{\"name\":\"p\",\"nmae\":1}", "\u{feff}{}"] {
        assert_eq!(send("application/json", broken.to_owned()).await?.0, StatusCode::BAD_REQUEST, "{broken}");
    }
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(send("application/json", deep).await?.0, StatusCode::BAD_REQUEST);
    assert_eq!(send("text/plain", "{}".to_owned()).await?.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(1024 * 1024));
    let (status, body) = send("application/json; charset=utf-8", long).await?;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(body["error"]["message"].as_str().unwrap().contains("1 MiB"), "{body}");
    let encoded = admin.request(Method::POST, "/projects").header("content-encoding", "gzip").json(&json!({}));
    assert_eq!(encoded.send().await?.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(admin.get("/projects").await?.1["projects"], json!([]), "nothing was made");
    Ok(())
}

#[tokio::test]
async fn every_answer_has_an_id_and_stays_out_of_caches() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let mut ids = Vec::new();
    for (method, path, expected) in [
        (Method::GET, "/me", 200),
        (Method::GET, "/nothing", 404),
        (Method::GET, "/projects/1", 404),
        (Method::GET, "/projects/x", 404),
        (Method::GET, "/projects/99999999999999999999", 404),
        (Method::GET, "/projects/1/routes", 404),
        (Method::DELETE, "/documents/1", 404),
        (Method::PUT, "/me", 405),
    ] {
        let response = admin.request(method, path).header("x-request-id", "mine").send().await?;
        assert_eq!(response.status().as_u16(), expected, "{path}");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        ids.push(response.headers()["x-request-id"].to_str()?.to_owned());
        let body: Value = response.json().await?;
        assert!(expected == 200 || body["error"]["message"].is_string(), "{path}: {body}");
    }
    assert!(ids.iter().all(|id| id != "mine"), "ids are made here only");
    ids.dedup();
    assert_eq!(ids.len(), 8);
    let outside = admin.client.get(format!("{}/elsewhere", admin.base)).send().await?;
    assert_eq!(outside.status(), StatusCode::NOT_FOUND);
    assert!(outside.json::<Value>().await?["error"].is_object());
    Ok(())
}

#[tokio::test]
async fn prices_are_set_by_pattern_and_replace_their_like() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let price =
        |input: i64| json!({ "provider_type": "custom_openai", "model_pattern": "m-*", "input": input, "output": 2 });
    admin.make("/prices", price(1)).await?;
    admin.make("/prices", price(3)).await?;
    let (_, prices) = admin.get("/prices").await?;
    let own: Vec<&Value> =
        prices["prices"].as_array().unwrap().iter().filter(|price| price["model_pattern"] == "m-*").collect();
    assert_eq!(own.len(), 1);
    assert_eq!((&own[0]["input"], &own[0]["source"]), (&json!(3), &json!("user")));
    for (member, value) in [("input", json!(-1)), ("provider_type", json!("x")), ("model_pattern", json!("a b"))] {
        let mut bad = price(1);
        bad[member] = value;
        let (status, body) = admin.post("/prices", bad).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    Ok(())
}
