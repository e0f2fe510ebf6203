//! Reranking, by Cohere's API and by Voyage AI's.

use domain::{ConnectionId, RouteId};
use serde_json::{Value, json};
use upstream::{Behaviour, Figures, ReportUsage, Script, ScriptedError};

use crate::script::failing;
use crate::world::{World, body_of, error_of, header};

const PATH: &str = "/v1/rerank";
const COHERE: &str = "/v2/rerank";

/// A world with the routes `cohere` and `voyage`.
struct Ranks {
    world: World,
    cohere: ConnectionId,
    voyage: ConnectionId,
    by_cohere: RouteId,
}

async fn ranks() -> anyhow::Result<Ranks> {
    let world = World::new().await?;
    let v1 = world.upstream.base_url();
    let v2 = v1.replace("/v1", "/v2");
    let cohere = world.database.insert_connection("cohere", &v2, "rerank-v3.5").await?;
    world.database.change_connection(cohere, "provider_type = 'cohere_rerank'").await?;
    let voyage = world.database.insert_connection("voyage", &v1, "rerank-2").await?;
    world.database.change_connection(voyage, "provider_type = 'voyage_rerank'").await?;
    let by_cohere = world.database.insert_route(world.project, "cohere", cohere).await?;
    world.database.insert_route(world.project, "voyage", voyage).await?;
    // 2 US dollars for a thousand search units, and 5 cents for a million tokens.
    world.database.insert_price_of("cohere_rerank", "rerank-*", 2_000_000_000_000, 0).await?;
    world.database.insert_price_of("voyage_rerank", "rerank-2", 50_000_000, 0).await?;
    Ok(Ranks { world, cohere, voyage, by_cohere })
}

fn asked(model: &str, more: Value) -> Value {
    let documents = ["A red door.", "The moon is round and far away.", "Bread is baked."];
    let mut body = json!({ "model": model, "query": "How far away is the moon?", "documents": documents });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn cohere_reranks_and_bills_search_units() -> anyhow::Result<()> {
    let Ranks { world, .. } = ranks().await?;
    let edge = world.edge().await?;
    let behaviour =
        Behaviour { figures: Some(Figures { prompt_tokens: 3, ..Figures::default() }), ..Behaviour::default() };
    world.upstream.script(Script { path: COHERE.to_owned(), queue: vec![behaviour], ..Script::default() });
    let more = json!({ "top_n": 2, "return_documents": true, "metadata": { "team": "a" } });
    let answer = edge.post(PATH, &asked("cohere", more)).send().await?;
    assert_eq!(header(&answer, "x-ragmux-model"), Some("rerank-v3.5"));
    assert_eq!(
        (header(&answer, "x-ragmux-connection"), header(&answer, "x-ragmux-attempts")),
        (Some("cohere"), Some("1"))
    );
    let body = body_of(answer, 200).await;
    assert_eq!((&body["results"][0]["index"], body["results"].as_array().unwrap().len()), (&json!(1), 2));
    assert_eq!(body["results"][0]["document"], json!({ "text": "The moon is round and far away." }));
    assert!(body["results"][0]["relevance_score"].as_f64() > body["results"][1]["relevance_score"].as_f64());
    assert_eq!(body["meta"]["billed_units"], json!({ "search_units": 3 }));
    let seen = world.upstream.log(0).calls.remove(0);
    assert_eq!(
        (seen.path.as_str(), &seen.body["model"], &seen.body["top_n"]),
        (COHERE, &json!("rerank-v3.5"), &json!(2))
    );
    assert_eq!(seen.body.get("return_documents").or(seen.body.get("metadata")), None);

    let logged = world.the_logged_call().await?;
    assert_eq!((logged.operation.as_str(), logged.route.as_deref()), ("rerank", Some("cohere")));
    // What is billed are searches; the tokens are by our count.
    assert_eq!((logged.charged_requests, logged.charged_cost, logged.state.as_str()), (1, 3 * 2_000_000, "estimated"));
    assert!(logged.charged_tokens > 20, "{}", logged.charged_tokens);
    assert_eq!(logged.tags, Some(json!({ "team": "a" })));
    edge.stop().await
}

#[tokio::test]
async fn voyage_reranks_and_bills_tokens() -> anyhow::Result<()> {
    let Ranks { world, .. } = ranks().await?;
    let edge = world.edge().await?;
    let more = json!({ "top_n": 9, "max_tokens_per_doc": 100 });
    let answer = edge.post(PATH, &asked("voyage", more)).send().await?;
    assert_eq!(header(&answer, "x-ragmux-dropped"), Some("max_tokens_per_doc"));
    let body = body_of(answer, 200).await;
    assert_eq!((&body["results"][0]["index"], body["results"].as_array().unwrap().len()), (&json!(1), 3));
    assert!(!body["id"].as_str().unwrap().is_empty());
    let tokens = body["meta"]["billed_units"]["input_tokens"].as_i64().unwrap();
    let seen = world.upstream.log(0).calls.remove(0);
    assert_eq!((seen.path.as_str(), &seen.body["top_k"], &seen.body["truncation"]), (PATH, &json!(3), &json!(true)));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_tokens, logged.charged_cost, logged.state.as_str()), (tokens, tokens * 50, "final"));
    edge.stop().await
}

#[tokio::test]
async fn another_providers_reranker_stands_in_at_its_own_price() -> anyhow::Result<()> {
    let Ranks { world, voyage, by_cohere, cohere } = ranks().await?;
    world.database.add_target(by_cohere, voyage, 1, 1).await?;
    assert_ne!(cohere, voyage);
    let edge = world.edge().await?;
    let failing = failing(401);
    world.upstream.script(Script { path: COHERE.to_owned(), default: Some(failing), ..Script::default() });
    let answer = edge.post(PATH, &asked("cohere", json!({}))).send().await?;
    assert_eq!(
        (header(&answer, "x-ragmux-attempts"), header(&answer, "x-ragmux-connection")),
        (Some("2"), Some("voyage"))
    );
    assert_eq!(header(&answer, "x-ragmux-model"), Some("rerank-2"));
    let tokens = body_of(answer, 200).await["meta"]["billed_units"]["input_tokens"].as_i64().unwrap();
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.model.as_deref(), logged.attempts), (Some("rerank-2"), 2));
    assert_eq!((logged.charged_tokens, logged.charged_cost), (tokens, tokens * 50));
    edge.stop().await
}

#[tokio::test]
async fn a_budget_of_money_holds_for_search_units() -> anyhow::Result<()> {
    let Ranks { world, .. } = ranks().await?;
    // Two search units and a half.
    world.database.change_project(world.project, "cost_per_day = 5000000").await?;
    let edge = world.edge().await?;
    let silent = Behaviour { usage: ReportUsage::Never, ..Behaviour::default() };
    world.upstream.script(Script { path: COHERE.to_owned(), default: Some(silent), ..Script::default() });
    for _ in 0..2 {
        // What is not reported is charged as it is held.
        assert_eq!(
            body_of(edge.post(PATH, &asked("cohere", json!({}))).send().await?, 200).await["meta"]["billed_units"],
            json!({})
        );
    }
    let denied = error_of(edge.post(PATH, &asked("cohere", json!({}))).send().await?).await;
    assert_eq!(denied, (429, "insufficient_quota".to_owned(), json!("cost_daily")));
    let many: Vec<String> = (0..201).map(|number| format!("text {number}")).collect();
    let denied = error_of(edge.post(PATH, &asked("cohere", json!({ "documents": many }))).send().await?).await;
    assert_eq!(denied.2, "cost_daily");
    edge.stop().await?;
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_rows, totals.day_tokens), (0, totals.logged_tokens));
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_a_rerank_call_is_told() -> anyhow::Result<()> {
    let Ranks { world, .. } = ranks().await?;
    let edge = world.edge().await?;
    let told = body_of(edge.post(PATH, &asked("cohere", json!({ "query": null }))).send().await?, 400).await;
    assert_eq!((&told["error"]["message"], &told["error"]["param"]), (&json!("query is required"), &json!("query")));
    // The model chats.
    let told = body_of(edge.post(PATH, &asked("fast", json!({}))).send().await?, 400).await;
    assert_eq!((&told["error"]["code"], &told["error"]["param"]), (&json!("unsupported_for_model"), &json!("model")));
    assert!(told["error"]["message"].as_str().unwrap().contains("fast"), "{told}");
    // And one that reranks does not chat, nor embed.
    let turn = json!({ "model": "cohere", "messages": [{ "role": "user", "content": "a" }] });
    let told = error_of(edge.post("/v1/chat/completions", &turn).send().await?).await;
    assert_eq!((told.0, told.2), (400, json!("unsupported_for_model")));
    let told = error_of(edge.post("/v1/embeddings", &json!({ "model": "cohere", "input": "a" })).send().await?).await;
    assert_eq!((told.0, told.2), (400, json!("unsupported_for_model")));
    assert!(world.upstream.log(0).calls.is_empty());

    let refused = ScriptedError { status: 422, message: "too long".to_owned(), ..ScriptedError::default() };
    let behaviour = Behaviour { error: Some(refused), ..Behaviour::default() };
    world.upstream.script(Script { path: COHERE.to_owned(), queue: vec![behaviour], ..Script::default() });
    let told = body_of(edge.post(PATH, &asked("cohere", json!({}))).send().await?, 422).await;
    assert_eq!(told["error"]["message"], "too long");
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_requests, logged.charged_tokens, logged.charged_cost), (1, 0, 0));
    edge.stop().await
}

#[tokio::test]
async fn a_key_needs_the_scope_and_a_budget_of_money_a_price() -> anyhow::Result<()> {
    let Ranks { world, cohere, .. } = ranks().await?;
    let user = world.database.insert_user("ann").await?;
    let (_, key) = world.database.insert_user_key(user, "k", &["chat"], &[world.project]).await?;
    world.database.change_connection(cohere, "model_name = 'unheard-of'").await?;
    let edge = world.edge().await?;
    let request = edge.bare(reqwest::Method::POST, PATH).bearer_auth(key.secret().expose());
    let told = error_of(request.json(&asked("voyage", json!({}))).send().await?).await;
    assert_eq!((told.0, told.1.as_str()), (403, "insufficient_scope"));
    assert_eq!(edge.post(PATH, &asked("cohere", json!({}))).send().await?.status(), 200);
    world.database.change_project(world.project, "cost_per_day = 1000000000").await?;
    testkit::until("the price is missed", async || {
        Ok(edge.post(PATH, &asked("cohere", json!({}))).send().await?.status() == 400)
    })
    .await?;
    let told = error_of(edge.post(PATH, &asked("cohere", json!({}))).send().await?).await;
    assert_eq!((told.0, told.2), (400, json!("model_unpriced")));
    edge.stop().await
}
