//! The list of models.

use reqwest::Method;
use serde_json::json;
use testkit::until;

use crate::world::{World, body_of, error_of, header};

#[tokio::test]
async fn the_models_are_the_routes_that_the_key_may_call() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.insert_route(world.project, "vendor/large", world.connection).await?;
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["models", "chat"], &[world.project]).await?;
    let edge = world.edge().await?;
    let list = body_of(edge.get("/v1/models").send().await?, 200).await;
    assert_eq!(list["object"], "list");
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["fast", "vendor/large"]);
    assert_eq!((&list["data"][0]["object"], &list["data"][0]["owned_by"]), (&json!("model"), &json!("custom_openai")));
    assert!(list["data"][0]["created"].as_i64().unwrap() > 1_700_000_000);

    // What clients of Anthropic's API read.
    assert_eq!((&list["data"][0]["type"], &list["data"][0]["display_name"]), (&json!("model"), &json!("fast")));
    assert!(list["data"][0]["created_at"].as_str().unwrap().contains('T'));

    assert_eq!(body_of(edge.get("/v1/models/vendor/large").send().await?, 200).await["id"], "vendor/large");
    let missing = error_of(edge.get("/v1/models/real-chat").send().await?).await;
    assert_eq!(missing, (404, "invalid_request_error".to_owned(), json!("model_not_found")));

    let no_text = edge.get("/v1/models/%ff").send().await?;
    assert_eq!(header(&no_text, "content-type"), Some("application/json"));
    assert_eq!(body_of(no_text, 404).await["error"]["message"], "there is no model %ff");

    // Anthropic's libraries put `/v1` behind a base URL that ends with it already.
    assert_eq!(body_of(edge.get("/v1/v1/models").send().await?, 200).await, list);
    assert_eq!(body_of(edge.get("/v1/v1/models/vendor/large").send().await?, 200).await["id"], "vendor/large");
    let no_text = body_of(edge.get("/v1/v1/models/%ff").send().await?, 404).await;
    assert_eq!(no_text["error"]["message"], "there is no model %ff");
    let asked = json!({ "model": "fast", "messages": [{ "role": "user", "content": "How far is the moon?" }] });
    let plain = body_of(edge.post("/v1/messages/count_tokens", &asked).send().await?, 200).await;
    assert!(plain["input_tokens"].as_i64().unwrap() > 0);
    assert_eq!(body_of(edge.post("/v1/v1/messages/count_tokens", &asked).send().await?, 200).await, plain);

    world.database.change_key(id, "allowed_routes = '{vendor/large}'").await?;
    let limited = |path: &str| edge.bare(Method::GET, path).bearer_auth(key.secret().expose());
    until("the key sees one model", async || {
        let list = limited("/v1/models").send().await?.json::<serde_json::Value>().await?;
        Ok(list["data"].as_array().unwrap().len() == 1)
    })
    .await?;
    assert_eq!(error_of(limited("/v1/models/fast").send().await?).await.0, 404);
    edge.stop().await
}
