//! Passages of the project's documents: in chats, and by themselves.

use std::time::Duration;

use domain::{ProviderType, StoreId};
use providers::{AddressPolicy, Attempts, Connection, HttpOptions, Providers};
use reqwest::Url;
use serde_json::{Value, json};
use store::ingest::NewChunk;
use testkit::{RoleName, eventually, until, work};
use upstream::{Behaviour, Raw, Script, Wait};

use crate::script::failing;
use crate::stream::{content, events};
use crate::world::{CHAT, World, answer_tokens, body_of, error_of, header};

const TEXTS: [&str; 3] = [
    "The descaling lamp of the Brewmaster lights up after two hundred cups. Use citric acid, never vinegar.",
    "The warranty of the Brewmaster lasts thirty months from the day of purchase.",
    "Store the machine in a dry place above five degrees.",
];
pub(crate) const QUESTION: &str = "How long does the warranty of the Brewmaster last?";

/// A world whose project has one indexed document of three passages, made the way a worker makes it.
pub(crate) async fn world() -> anyhow::Result<(World, StoreId)> {
    let world = World::new().await?;
    let embedding = world.database.insert_connection("embed", &world.upstream.base_url(), "demo-embed").await?;
    let policy = AddressPolicy::new(true, []);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let providers = Providers::new(HttpOptions { addresses: policy, ..HttpOptions::default() })?;
    let connection = Connection {
        id: embedding,
        provider: ProviderType::CustomOpenAi,
        base_url: Url::parse(&world.upstream.base_url())?,
        credential: None,
        model: "demo-embed".to_owned(),
    };
    let inputs = TEXTS.map(str::to_owned);
    let mut attempts = Attempts::until(tokio::time::Instant::now() + Duration::from_secs(60));
    let vectors = providers.embed(&connection, &inputs, None, &mut attempts).await?.vectors;
    let width = i32::try_from(vectors[0].len())?;
    let store = world.database.insert_document_store(world.project, embedding, width).await?;
    world.database.insert_document(store, "handbuch größe.pdf").await?;

    let worker = world.database.store(RoleName::Backend)?;
    let request = work::claim_request("h/1/aaaaaaaa", StoreId(0), 1);
    let key = worker.claim_documents(&request).await?.documents[0].key;
    let chunks: Vec<NewChunk> = (0..)
        .zip(TEXTS)
        .zip(vectors)
        .map(|((ordinal, text), embedding)| NewChunk {
            heading_path: "Care".to_owned(),
            page_from: Some(ordinal + 1),
            page_to: Some(ordinal + 1),
            ..work::plain_chunk(ordinal, text, embedding)
        })
        .collect();
    let segment = retrieval::index::segment((0..).zip(TEXTS), Some("en"));
    work::complete(&worker, key, &chunks, &segment).await?;
    world.upstream.clear();
    Ok((world, store))
}

fn question(members: Value) -> Value {
    let mut body = json!({ "model": "fast", "messages": [{ "role": "user", "content": QUESTION }] });
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn chats_seen(world: &World) -> Vec<Value> {
    world.upstream.log(0).calls.into_iter().filter(|call| call.path == CHAT).map(|call| call.body).collect()
}

#[tokio::test]
async fn a_chat_is_grounded_on_the_projects_documents() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    world.database.insert_price("real-chat", 0, 0).await?;
    let edge = world.edge().await?;
    let answer = edge.post(CHAT, &question(json!({ "ragmux": { "include_context": true } }))).send().await?;
    let hits: usize = header(&answer, "x-ragmux-rag-hits").unwrap().parse()?;
    assert_eq!(hits, 3);
    let sources: Value = serde_json::from_str(header(&answer, "x-ragmux-rag-sources").unwrap())?;
    assert_eq!((&sources[0]["filename"], &sources[0]["page"]), (&json!("handbuch größe.pdf"), &json!(2)));
    let body = body_of(answer, 200).await;
    assert_eq!(body["ragmux"]["sources"], sources);
    assert!(body["ragmux"]["context"].as_str().unwrap().contains("thirty months"));

    let sent = chats_seen(&world).remove(0);
    let system = sent["messages"][0]["content"].as_str().unwrap();
    assert!(system.contains("[1] (handbuch größe.pdf · Care · p.2)\nThe warranty"), "{system}");
    assert_eq!(sent["messages"][1]["content"], QUESTION);
    let logged = world.the_logged_call().await?;
    assert_eq!(logged.rag_hits, Some(3));
    // The query's embedding is charged with the chat.
    let reported = logged.prompt_tokens.unwrap() + logged.completion_tokens.unwrap();
    let embedded = logged.charged_tokens - reported;
    assert!(embedded > 0, "{logged:?}");
    assert_eq!(logged.charged_cost, embedded * 1000);
    edge.stop().await
}

#[tokio::test]
async fn a_stream_tells_its_sources_before_its_end() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let asked = question(json!({ "stream": true, "ragmux": { "include_context": true } }));
    let answer = edge.post(CHAT, &asked).send().await?;
    assert_eq!(header(&answer, "x-ragmux-rag-hits"), Some("3"));
    let (chunks, done) = events(&answer.text().await?);
    assert!(done && !content(&chunks).is_empty());
    let last = chunks.last().unwrap();
    assert_eq!((&last["object"], &last["choices"]), (&json!("chat.completion.chunk"), &json!([])));
    assert_eq!((&last["id"], &last["model"]), (&chunks[0]["id"], &json!("fast")));
    assert_eq!(last["ragmux"]["sources"].as_array().unwrap().len(), 3);

    let (chunks, _) = events(&edge.post(CHAT, &question(json!({ "stream": true }))).send().await?.text().await?);
    assert!(chunks.iter().all(|chunk| chunk.get("ragmux").is_none()));
    edge.stop().await
}

#[tokio::test]
async fn turns_that_ask_nothing_are_not_searched_for() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let turns = [
        json!([{ "role": "user", "content": "Thanks a lot!" }]),
        json!([{ "role": "user", "content": QUESTION }, { "role": "tool", "tool_call_id": "a", "content": "12" }]),
    ];
    for messages in &turns {
        let answer = edge.post(CHAT, &json!({ "model": "fast", "messages": messages })).send().await?;
        assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("0")));
        assert_eq!(header(&answer, "x-ragmux-rag-sources"), None);
    }
    assert!(world.upstream.log(0).calls.iter().all(|call| call.path == CHAT), "nothing was embedded");
    world.database.change_project(world.project, r#"retrieval = '{"when":"always","top_k":1}'"#).await?;
    until("every turn is searched for", async || {
        let answer = edge.post(CHAT, &json!({ "model": "fast", "messages": turns[1] })).send().await?;
        Ok(header(&answer, "x-ragmux-rag-hits") == Some("1"))
    })
    .await?;
    world.database.change_project(world.project, r#"retrieval = '{"when":"never"}'"#).await?;
    until("no turn is searched for", async || {
        let answer = edge.post(CHAT, &question(json!({}))).send().await?;
        Ok(header(&answer, "x-ragmux-rag-hits") == Some("0"))
    })
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn every_api_of_chats_is_grounded_alike_and_told_of_it() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let user = |content: Value| json!({ "role": "user", "content": content });
    let result = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": "12" });
    let used = json!({ "type": "tool_use", "id": "toolu_1", "name": "count", "input": {} });
    let called = json!({ "type": "function_call", "call_id": "call_1", "name": "count", "arguments": "{}" });
    let output = json!({ "type": "function_call_output", "call_id": "call_1", "output": "12" });
    let after_tool = [
        (
            "/v1/messages",
            "messages",
            json!([user(json!(QUESTION)), { "role": "assistant", "content": [used] }, user(json!([result]))]),
        ),
        ("/v1/responses", "input", json!([user(json!(QUESTION)), called, output])),
    ];
    let ask = async |path: &str, name: &str, said: &Value, stream: bool| {
        let mut body = json!({ "model": "fast", "stream": stream, "ragmux": { "include_context": true }, name: said });
        body[if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" }] = json!(60);
        edge.post(path, &body).send().await
    };
    for (path, name, tool_turn) in &after_tool {
        for stream in [false, true] {
            let answer = ask(path, name, &json!([user(json!(QUESTION))]), stream).await?;
            assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("3")), "{path}");
            let sources: Value = serde_json::from_str(header(&answer, "x-ragmux-rag-sources").unwrap())?;
            assert_eq!(sources.as_array().unwrap().len(), 3);
            let text = answer.text().await?;
            assert!(
                text.contains("\"ragmux\":{\"sources\":[{\"document_id\"") && text.contains("thirty months"),
                "{text}"
            );
            assert!(!stream || text.contains("event: ragmux"), "{text}");
            let sent = chats_seen(&world).pop().unwrap();
            assert!(sent["messages"][0]["content"].as_str().unwrap().contains("[1] (handbuch größe.pdf"), "{sent}");
        }
        for (said, hits) in [(tool_turn, "0"), (&json!([user(json!("Thanks a lot!"))]), "0")] {
            let answer = ask(path, name, said, false).await?;
            assert_eq!(
                (answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")),
                (200, Some(hits)),
                "{path} {said}"
            );
            assert_eq!(header(&answer, "x-ragmux-rag-sources"), None);
        }
    }
    // What the user asked before a tool was used is what is searched for, where every turn is.
    world.database.change_project(world.project, r#"retrieval = '{"when":"always"}'"#).await?;
    for (path, name, tool_turn) in &after_tool {
        until("every turn is searched for", async || {
            Ok(header(&ask(path, name, tool_turn, false).await?, "x-ragmux-rag-hits") == Some("3"))
        })
        .await?;
    }
    world.database.change_project(world.project, "store_id = NULL").await?;
    for (path, name, said) in &after_tool {
        until("nothing is told of passages", async || {
            let answer = ask(path, name, said, false).await?;
            Ok(answer.status() == 200 && header(&answer, "x-ragmux-rag-hits").is_none())
        })
        .await?;
    }
    edge.stop().await
}

#[tokio::test]
async fn what_is_said_to_results_of_tools_is_searched_for_in_every_api() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let user = |content: Value| json!({ "role": "user", "content": content });
    for (said, hits) in [(None, "0"), (Some("Thanks a lot!"), "0"), (Some(QUESTION), "3")] {
        let used = json!([{ "type": "tool_use", "id": "toolu_1", "name": "count", "input": {} }]);
        let mut results = vec![json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": "12" })];
        results.extend(said.map(|text| json!({ "type": "text", "text": text })));
        let messages = vec![
            user(json!("Please count them all")),
            json!({ "role": "assistant", "content": used }),
            user(json!(results)),
        ];
        let function = json!({ "name": "count", "arguments": "{}" });
        let calls = json!([{ "id": "call_1", "type": "function", "function": function }]);
        let mut chat = vec![
            user(json!("Please count them all")),
            json!({ "role": "assistant", "content": null, "tool_calls": calls }),
            json!({ "role": "tool", "tool_call_id": "call_1", "content": "12" }),
        ];
        let mut input = vec![
            user(json!("Please count them all")),
            json!({ "type": "function_call", "call_id": "call_1", "name": "count", "arguments": "{}" }),
            json!({ "type": "function_call_output", "call_id": "call_1", "output": "12" }),
        ];
        chat.extend(said.map(|text| user(json!(text))));
        input.extend(said.map(|text| user(json!(text))));
        for (path, body) in [
            (CHAT, json!({ "model": "fast", "messages": chat })),
            ("/v1/messages", json!({ "model": "fast", "max_tokens": 60, "messages": messages })),
            ("/v1/responses", json!({ "model": "fast", "input": input })),
        ] {
            let answer = edge.post(path, &body).send().await?;
            let told = (answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits"));
            assert_eq!(told, (200, Some(hits)), "{path} {said:?}");
        }
    }
    edge.stop().await
}

#[tokio::test]
async fn words_are_counted_in_every_script() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    for (said, is_searched) in [
        ("Warranty of the Brewmaster", true),
        ("Brewmaster warranty, please!", false),
        ("保修期是多久？", true),
        ("谢谢！", false),
        ("どうもありがとう", true),
        ("보증 기간은 얼마나 되나요?", true),
        ("감사합니다!", false),
        ("👍 👍 👍 👍", false),
        ("... --- ... !!!", false),
    ] {
        world.upstream.clear();
        let body = json!({ "model": "fast", "messages": [{ "role": "user", "content": said }] });
        assert_eq!(edge.post(CHAT, &body).send().await?.status(), 200);
        let embedded = world.upstream.log(0).calls.iter().any(|call| call.path.ends_with("/embeddings"));
        assert_eq!(embedded, is_searched, "{said}");
    }
    edge.stop().await
}

#[tokio::test]
async fn all_before_the_last_question_stays_as_it_was_for_providers_that_cache() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    world.database.change_project(world.project, "system_prompt = 'Be brief.'").await?;
    world.database.change_route(world.route, "context_placement = 'last_user'").await?;
    let edge = world.edge().await?;
    let mut messages =
        vec![json!({ "role": "system", "content": "own" }), json!({ "role": "user", "content": QUESTION })];
    let mut prefixes: Vec<Vec<Value>> = Vec::new();
    for follow_up in ["And where should the machine be stored?", "When does the descaling lamp light up?"] {
        let answer = edge.post(CHAT, &json!({ "model": "fast", "messages": messages })).send().await?;
        assert_eq!(header(&answer, "x-ragmux-rag-hits"), Some("3"));
        let mut sent = chats_seen(&world).pop().unwrap()["messages"].as_array().unwrap().clone();
        let last = sent.pop().unwrap();
        assert!(last["content"].as_str().unwrap().contains("[1] (handbuch"), "{last}");
        prefixes.push(sent);
        messages.push(json!({ "role": "assistant", "content": "It says so." }));
        messages.push(json!({ "role": "user", "content": follow_up }));
    }
    assert_eq!(prefixes[0][0]["content"], "Be brief.\n\nown");
    assert_eq!(prefixes[1][..1], prefixes[0][..]);
    assert_eq!(prefixes[1][1..], messages[1..3], "what was said before is as the client sent it");
    edge.stop().await
}

#[tokio::test]
async fn passages_can_be_asked_for_by_themselves() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let answer = edge.post("/v1/retrieve", &json!({ "query": QUESTION, "top_k": 2 })).send().await?;
    let body = body_of(answer, 200).await;
    assert_eq!(body["data"].as_array().unwrap().len(), 2);
    let best = &body["data"][0];
    assert_eq!((&best["content"], &best["page"], &best["section"]), (&json!(TEXTS[1]), &json!(2), &json!("Care")));
    assert!(best["score"].as_f64().unwrap() > body["data"][1]["score"].as_f64().unwrap());
    assert_eq!((&body["degraded"], &body["exhaustive"]), (&json!([]), &json!(true)));
    let tokens = body["usage"]["prompt_tokens"].as_i64().unwrap();
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.operation.as_str(), logged.status, logged.rag_hits), ("retrieve", 200, Some(2)));
    assert_eq!((logged.charged_requests, logged.charged_tokens, logged.charged_cost), (1, tokens, tokens * 1000));

    let told = error_of(edge.post("/v1/retrieve", &json!({ "query": "" })).send().await?).await;
    assert_eq!(told.0, 400);
    world.database.change_project(world.project, "store_id = NULL").await?;
    until("the store is gone", async || {
        Ok(edge.post("/v1/retrieve", &json!({ "query": QUESTION })).send().await?.status() == 404)
    })
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn an_embedding_provider_that_is_down_does_not_end_chats() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let down = failing(500);
    world.upstream.script(Script { path: "/v1/embeddings".to_owned(), default: Some(down), ..Script::default() });
    let answer = edge.post(CHAT, &question(json!({}))).send().await?;
    let hits: usize = header(&answer, "x-ragmux-rag-hits").unwrap().parse()?;
    assert!(answer.status() == 200 && hits > 0, "words still find something");
    let body = body_of(edge.post("/v1/retrieve", &json!({ "query": QUESTION })).send().await?, 200).await;
    assert_eq!(body["degraded"], json!(["vector"]));
    edge.stop().await
}

#[tokio::test]
async fn an_embedding_that_was_paid_is_charged_although_the_search_fails() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let narrow = json!({
        "object": "list",
        "data": [{ "object": "embedding", "index": 0, "embedding": [0.6, 0.8] }],
        "usage": { "prompt_tokens": 9, "total_tokens": 9 },
    });
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: narrow.to_string() };
    let narrow = Behaviour { raw: Some(raw), ..Behaviour::default() };
    world.upstream.script(Script { path: "/v1/embeddings".to_owned(), default: Some(narrow), ..Script::default() });
    let ask = json!({ "query": QUESTION });
    let body = body_of(edge.post("/v1/retrieve", &ask).send().await?, 200).await;
    assert_eq!((&body["degraded"], &body["usage"]["prompt_tokens"]), (&json!(["vector"]), &json!(9)));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_tokens, logged.charged_cost), (9, 9000), "one leg failed");

    world.database.hide_from_edges("postings").await?;
    let told = error_of(edge.post("/v1/retrieve", &ask).send().await?).await;
    assert!(told.0 >= 500, "{told:?}");
    let answer = edge.post(CHAT, &question(json!({}))).send().await?;
    assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("0")));
    let logged = world.logged(3).await?;
    let failed = logged.iter().find(|call| call.status >= 500).unwrap();
    assert_eq!((failed.charged_requests, failed.charged_tokens, failed.charged_cost), (0, 9, 9000), "both legs failed");
    let chat = logged.iter().find(|call| call.operation == "chat").unwrap();
    let reported = chat.prompt_tokens.unwrap() + chat.completion_tokens.unwrap();
    assert_eq!((chat.charged_tokens - reported, chat.charged_cost), (9, 9000));
    edge.stop().await
}

#[tokio::test]
async fn a_question_that_is_left_while_it_is_embedded_is_charged() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    // A dollar for a million tokens.
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let requests = [
        edge.post("/v1/retrieve", &json!({ "query": QUESTION })),
        edge.chat(json!({ "messages": [{ "role": "user", "content": QUESTION }] })),
    ];
    for (number, request) in (1..).zip(requests) {
        let held = Behaviour { hold: true, ..Behaviour::default() };
        world.upstream.script(Script { path: "/v1/embeddings".to_owned(), queue: vec![held], ..Script::default() });
        let asking = tokio::spawn(request.send());
        world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
        asking.abort();
        world.upstream_until(Wait { aborted: Some(number), open: Some(0), ..Wait::default() }).await?;
        let logged = world.logged(usize::try_from(number)?).await?;
        let logged = logged.last().unwrap();
        let tokens = answer_tokens(QUESTION);
        assert_eq!((logged.status, logged.charged_requests), (499, 1), "{logged:?}");
        assert_eq!((logged.charged_tokens, logged.charged_cost), (tokens, tokens * 1000), "{logged:?}");
        assert_eq!((logged.state.as_str(), logged.prompt_tokens), ("estimated", None), "{logged:?}");
    }
    edge.stop().await
}

#[tokio::test]
async fn an_embedding_whose_usage_is_not_reported_is_charged_by_estimate() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let tokens = answer_tokens(QUESTION);
    let ask = async |query: &str| {
        let answer = edge.post("/v1/retrieve", &json!({ "query": query })).send().await?;
        anyhow::Ok(body_of(answer, 200).await["usage"]["prompt_tokens"].as_i64().unwrap())
    };
    let reported = ask("Where is it stored?").await?;
    let silent = json!({ "object": "list", "data": [{ "object": "embedding", "index": 0, "embedding": [0.6, 0.8] }] });
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: silent.to_string() };
    let silent = Behaviour { raw: Some(raw), ..Behaviour::default() };
    world.upstream.script(Script { path: "/v1/embeddings".to_owned(), default: Some(silent), ..Script::default() });
    assert_eq!(ask(QUESTION).await?, tokens);
    assert_eq!(edge.post(CHAT, &question(json!({}))).send().await?.status(), 200);

    let logged = world.logged(3).await?;
    let said: Vec<_> =
        logged.iter().map(|call| (call.state.as_str(), call.prompt_tokens, call.charged_tokens)).collect();
    assert_eq!(said[..2], [("final", Some(reported), reported), ("estimated", None, tokens)]);
    // What the chat's model reports stays beside a charge that rests on an estimate in part.
    let of_chat = logged[2].prompt_tokens.unwrap() + logged[2].completion_tokens.unwrap();
    assert_eq!((said[2].0, said[2].2), ("estimated", of_chat + tokens));
    edge.stop().await
}

#[tokio::test]
async fn a_call_that_may_not_run_after_all_is_not_sent_once_its_question_is_embedded() -> anyhow::Result<()> {
    // One after the other: behind the ask of another call a lane may be too busy for calls that do not wait.
    overruled_while_embedding("/v1/retrieve", json!({ "query": QUESTION })).await?;
    overruled_while_embedding(CHAT, question(json!({}))).await?;
    overruled_while_embedding(CHAT, question(json!({ "stream": true }))).await
}

async fn overruled_while_embedding(path: &str, body: Value) -> anyhow::Result<()> {
    let (world, _) = world().await?;
    let edge = world.edge().await?;
    let greeting = json!({ "messages": [{ "role": "user", "content": "Hello!" }] });
    assert_eq!(edge.chat(greeting.clone()).send().await?.status(), 200);
    world.logged(1).await?;
    // Not announced: the call begins, and only the ledger knows.
    world.database.execute("UPDATE api_keys SET revoked_at = clock_timestamp()").await?;
    let held = || Behaviour { hold: true, ..Behaviour::default() };
    world.upstream.script(Script { path: "/v1/embeddings".to_owned(), queue: vec![held()], ..Script::default() });
    world.every_chat(held());
    let asked = tokio::spawn(edge.post(path, &body).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    // Admissions of a project are decided in their order.
    let revoked = (401, "invalid_api_key".to_owned(), json!("key_revoked"));
    assert_eq!(error_of(edge.chat(greeting).send().await?).await, revoked);
    world.upstream.release(None);
    let answer = asked.await??;
    let id = header(&answer, "x-request-id").unwrap().to_owned();
    assert_eq!(error_of(answer).await, revoked);
    assert!(!chats_seen(&world).iter().any(|body| body.to_string().contains(QUESTION)), "nothing was sent");
    let call = eventually("the call in the log", async || {
        Ok(world.logged(1).await?.into_iter().find(|call| call.request_id == id))
    })
    .await?;
    assert_eq!((call.status, call.attempts, call.charged_requests), (401, 0, 0), "{call:?}");
    // The question's embedding, which was paid.
    assert_eq!((call.charged_tokens, call.state.as_str()), (answer_tokens(QUESTION), "final"), "{call:?}");
    edge.stop().await
}
