//! Chat with a whole answer.

use reqwest::Method;
use serde_json::{Value, json};
use testkit::until;
use upstream::{Behaviour, Raw, ScriptedError, Wait};

use crate::script::failing;
use crate::world::{CHAT, World, answer_tokens, body_of, error_of, header, turn_tokens};

#[tokio::test]
async fn a_chat_goes_its_whole_way() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.change_project(world.project, "system_prompt = 'Be brief.'").await?;
    // 2 and 10 US dollars per million tokens.
    world.database.insert_price("real-*", 2_000_000_000, 10_000_000_000).await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { content: Some("The moon is round.".to_owned()), ..Behaviour::default() });
    let request = edge.chat(json!({ "temperature": 0.5, "unknown": [1], "ragmux": { "include_context": false } }));
    let answer = request.header("cookie", "a=b").header("x-request-id", "mine").send().await?;
    assert_eq!(header(&answer, "x-ragmux-model"), Some("real-chat"));
    assert_eq!(header(&answer, "x-ragmux-attempts"), Some("1"));
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    assert_eq!(header(&answer, "x-ratelimit-limit-requests"), None, "there is no such limit");
    assert_eq!(header(&answer, "x-ragmux-rag-hits"), None, "there is no store");
    let id = header(&answer, "x-request-id").unwrap().to_owned();
    let body = body_of(answer, 200).await;
    assert_eq!(
        (&body["model"], &body["choices"][0]["message"]["content"]),
        (&json!("fast"), &json!("The moon is round."))
    );

    let seen = world.upstream.log(0).calls.remove(0);
    assert_eq!((seen.body["model"].as_str(), &seen.body["temperature"]), (Some("real-chat"), &json!(0.5)));
    assert_eq!((&seen.body["unknown"], seen.body.get("ragmux")), (&json!([1]), None));
    assert_eq!(seen.body["messages"][0], json!({ "role": "system", "content": "Be brief." }));
    for name in ["cookie", "authorization", "x-request-id", "x-ragmux-project"] {
        assert!(!seen.headers.contains_key(name), "{name} went upstream");
    }

    let logged = world.the_logged_call().await?;
    let usage = |name: &str| body["usage"][name].as_i64().unwrap();
    let (prompt, completion) = (usage("prompt_tokens"), usage("completion_tokens"));
    assert_eq!((logged.request_id.as_str(), logged.operation.as_str()), (id.as_str(), "chat"));
    assert_eq!((logged.route.as_deref(), logged.model.as_deref()), (Some("fast"), Some("real-chat")));
    assert_eq!((logged.status, logged.state.as_str(), logged.streamed, logged.attempts), (200, "final", false, 1));
    assert_eq!((logged.prompt_tokens, logged.completion_tokens), (Some(prompt), Some(completion)));
    assert_eq!((logged.charged_requests, logged.charged_tokens), (1, prompt + completion));
    assert_eq!(logged.charged_cost, prompt * 2000 + completion * 10_000);
    edge.stop().await?;
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens_held), (0, 0, 0));
    assert_eq!(totals.day_tokens, totals.logged_tokens);
    Ok(())
}

#[tokio::test]
async fn an_answer_is_the_providers_bytes_but_for_the_models_name() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let answer = "{ \"id\" : \"x\",\"choices\": [ {\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\\u0061\"},\"finish_reason\":\"stop\"}],\n\"model\":\"real-chat\", \"extra\":1.50e1}\n";
    world.next_chat(Behaviour {
        raw: Some(Raw { status: 200, content_type: "application/json".to_owned(), body: answer.to_owned() }),
        ..Behaviour::default()
    });
    let got = edge.chat(json!({})).send().await?.text().await?;
    assert_eq!(got, answer.replace("real-chat", "fast"));
    // No usage was reported: what is charged rests on our own count.
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.state.as_str(), logged.prompt_tokens), ("estimated", None));
    assert_eq!(logged.charged_tokens, turn_tokens() + answer_tokens("a"));
    edge.stop().await
}

#[tokio::test]
async fn other_model_names_go_the_default_route_unless_the_project_is_strict() -> anyhow::Result<()> {
    let world = World::new().await?;
    let other = world.database.insert_connection("other", &world.upstream.base_url(), "real-other").await?;
    world.database.insert_route(world.project, "other", other).await?;
    let edge = world.edge().await?;
    for (asked, real) in [("fast", "real-chat"), ("other", "real-other"), ("gpt-unheard-of", "real-chat")] {
        let answer = edge.chat(json!({ "model": asked })).send().await?;
        assert_eq!(header(&answer, "x-ragmux-model"), Some(real));
        assert_eq!(body_of(answer, 200).await["model"], asked);
    }
    world.database.change_project(world.project, "strict_models = true").await?;
    until("unknown names are refused", async || {
        Ok(edge.chat(json!({ "model": "gpt-unheard-of" })).send().await?.status() == 404)
    })
    .await?;
    let refused = error_of(edge.chat(json!({ "model": "gpt-unheard-of" })).send().await?).await;
    assert_eq!(refused, (404, "invalid_request_error".to_owned(), json!("model_not_found")));
    assert_eq!(body_of(edge.chat(json!({ "model": "other" })).send().await?, 200).await["model"], "other");
    edge.stop().await
}

#[tokio::test]
async fn a_bad_request_is_told_what_is_wrong_and_costs_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let send = async |body: &str| {
        let request = edge.get(CHAT).build().unwrap();
        let key = request.headers()["authorization"].clone();
        edge.bare(Method::POST, CHAT).header("authorization", key).body(body.to_owned()).send().await
    };
    for (body, message, param) in [
        ("{", "malformed JSON body: EOF while parsing an object at line 1 column 1", json!(null)),
        ("{}", "messages is required", json!("messages")),
        (r#"{"messages":[{"role":"user","content":"a"}],"n":0}"#, "n must be a whole number from 1 to 128", json!("n")),
        (r#"{"messages":[],"messages":[]}"#, "messages occurs more than once", json!("messages")),
    ] {
        let answer = body_of(send(body).await?, 400).await;
        assert_eq!((answer["error"]["message"].as_str(), &answer["error"]["param"]), (Some(message), &param), "{body}");
    }
    let encoded = edge.chat(json!({})).header("content-encoding", "gzip").send().await?;
    assert_eq!(error_of(encoded).await, (415, "invalid_request_error".to_owned(), json!("unsupported_encoding")));
    let unknown = edge.get("/v1/unknown").send().await?;
    assert_eq!(error_of(unknown).await, (404, "invalid_request_error".to_owned(), json!("unknown_url")));
    let wrong = edge.get(CHAT).send().await?;
    assert_eq!(header(&wrong, "allow"), Some("POST"));
    assert_eq!(error_of(wrong).await, (405, "invalid_request_error".to_owned(), json!("method_not_allowed")));
    assert_eq!(world.upstream.counters().requests, 0);
    edge.stop().await?;
    assert!(world.database.logged_calls(world.project).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn failures_of_the_provider_are_told_as_what_they_are() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let error = |status: u16, message: &str, kind: Option<&str>, code: Option<&str>| Behaviour {
        error: Some(ScriptedError {
            status,
            message: message.to_owned(),
            r#type: kind.map(str::to_owned),
            code: code.map(str::to_owned),
            ..ScriptedError::default()
        }),
        ..Behaviour::default()
    };
    // (what the provider does, what the client is told, what is charged)
    let cases: [(Behaviour, u16, &str, Value, i64); 4] = [
        (error(500, "broken", None, None), 502, "upstream_error", json!("upstream_failed"), 0),
        (error(401, "Incorrect API key", None, None), 502, "upstream_error", json!("upstream_auth"), 0),
        (
            error(400, "too long", Some("invalid_request_error"), Some("context_length_exceeded")),
            400,
            "invalid_request_error",
            json!("context_length_exceeded"),
            1,
        ),
        (Behaviour { close: true, ..Behaviour::default() }, 502, "upstream_error", json!("upstream_unreachable"), 0),
    ];
    for (number, (behaviour, status, kind, code, requests)) in (1..).zip(cases) {
        for stream in [false, true] {
            world.next_chat(behaviour.clone());
            let answer = edge.chat(json!({ "stream": stream })).send().await?;
            assert_eq!(error_of(answer).await, (status, kind.to_owned(), code.clone()), "{behaviour:?}");
        }
        let logged = world.logged(number * 2).await?;
        let last = logged.last().unwrap();
        assert_eq!((last.status, last.error_code.as_deref()), (i32::from(status), code.as_str()));
        assert_eq!((last.charged_requests, last.charged_tokens), (requests, 0), "{behaviour:?}");
    }
    edge.stop().await
}

#[tokio::test]
async fn a_provider_that_is_busy_is_tried_again_and_its_wait_is_passed_on() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.next_chat(failing(503));
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-attempts")), (200, Some("2")));
    world.next_chat(Behaviour {
        error: Some(ScriptedError { retry_after: Some("40".to_owned()), ..ScriptedError::status(429) }),
        ..Behaviour::default()
    });
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!((answer.status().as_u16(), header(&answer, "retry-after")), (429, Some("40")));
    let logged = world.logged(2).await?;
    assert_eq!((logged[0].attempts, logged[1].attempts, logged[1].status), (2, 1, 429));
    edge.stop().await
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_upstream_call_and_pays_the_prompt() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let asking = tokio::spawn(edge.chat(json!({})).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    asking.abort();
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str(), logged.charged_requests), (499, "estimated", 1));
    assert_eq!(logged.charged_tokens, turn_tokens());
    edge.stop().await
}

#[tokio::test]
async fn a_credential_that_cannot_be_opened_is_an_error_of_its_own() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.set_credential(world.connection, b"not sealed").await?;
    let edge = world.edge().await?;
    let refused = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!(refused, (503, "server_error".to_owned(), json!("credential_unreadable")));
    let vault = vault::Vault::load(
        Some(&domain::Secret::new(crate::world::SECRET_KEY)),
        None,
        std::path::Path::new("/nowhere"),
    )?;
    let place = vault::Place::new("model_connections", world.connection, "credential_sealed");
    let sealed = vault.seal(&place, &domain::Secret::new("provider-key"))?;
    world.database.set_credential(world.connection, &sealed).await?;
    until("the new credential is used", async || Ok(edge.chat(json!({})).send().await?.status() == 200)).await?;
    assert_eq!(world.upstream.log(0).calls[0].headers["authorization"], "redacted");
    edge.stop().await
}
