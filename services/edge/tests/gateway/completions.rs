//! OpenAI's API from before chats, passed through.

use domain::ConnectionId;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use testkit::until;
use tokens::{Family, count_messages};
use upstream::{Behaviour, Figures, LineEnd, Raw, ReportUsage, Script, ScriptedError, Wait};

use crate::passages;
use crate::script::{next, says};
use crate::stream::events;
use crate::world::{Edge, World, answer_tokens, body_of, error_of, header};

const PATH: &str = "/v1/completions";
const PROMPT: &str = "Once upon a time";

fn prompt_tokens() -> i64 {
    i64::try_from(count_messages(Family::Estimated, [PROMPT])).unwrap()
}

fn ask(edge: &Edge, members: Value) -> RequestBuilder {
    let mut body = json!({ "model": "fast", "prompt": PROMPT });
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    edge.post(PATH, &body)
}

fn text(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
}

#[tokio::test]
async fn a_text_goes_on_whole_and_streamed_and_is_paid_like_a_chat() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 100000").await?;
    world.database.insert_price("real-chat", 1_000_000_000, 2_000_000_000).await?;
    let edge = world.edge().await?;
    let figures = Some(Figures { prompt_tokens: 20, completion_tokens: 6, ..Figures::default() });
    let there = Behaviour { figures, ..says(" there was a moon.") };
    next(&world.upstream, there.clone());
    let members = json!({ "suffix": " The end.", "logprobs": 2, "max_tokens": 50, "extra": 1.0 });
    let answer = ask(&edge, members.clone()).send().await?;
    assert_eq!(
        ["x-ragmux-model", "x-ragmux-attempts", "x-ragmux-connection"].map(|name| header(&answer, name)),
        [Some("real-chat"), Some("1"), Some("provider")]
    );
    assert!(header(&answer, "x-ragmux-budget-daily-remaining").is_some());
    let answer = body_of(answer, 200).await;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("fast")));
    assert_eq!(answer["choices"][0]["text"], " there was a moon.");
    let seen = world.upstream.log(0).calls.remove(0);
    let mut expected = json!({ "model": "real-chat", "prompt": PROMPT });
    expected.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    assert_eq!((seen.path.as_str(), seen.body), (PATH, expected));

    next(&world.upstream, there.clone());
    let answer = ask(&edge, json!({ "stream": true, "max_tokens": 50 })).send().await?;
    assert_eq!(header(&answer, "content-type"), Some("text/event-stream; charset=utf-8"));
    let (chunks, done) = events(&answer.text().await?);
    assert_eq!((text(&chunks).as_str(), done), (" there was a moon.", true));
    assert!(chunks.iter().all(|chunk| chunk["model"] == "fast" && chunk.get("usage").is_none()), "{chunks:?}");
    next(&world.upstream, there);
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let (chunks, _) = events(&ask(&edge, options).send().await?.text().await?);
    assert_eq!(chunks.last().unwrap()["usage"]["total_tokens"], 26);
    let logged = world.logged(3).await?;
    for (call, streamed) in logged.iter().zip([false, true, true]) {
        assert_eq!((call.operation.as_str(), call.status, call.state.as_str()), ("completions", 200, "final"));
        assert_eq!((call.charged_tokens, call.charged_cost, call.streamed), (26, 20 * 1000 + 6 * 2000, streamed));
    }
    edge.stop().await
}

/// What a call holds while its provider works, in tokens.
async fn held(world: &World, edge: &Edge, members: Value) -> anyhow::Result<i64> {
    next(&world.upstream, Behaviour { hold: true, ..says("a") });
    let running = tokio::spawn(ask(edge, members).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let id = world.database.open_ids(world.project).await?.remove(0);
    let call = body_of(edge.get(&format!("/v1/usage/{id}")).send().await?, 200).await;
    world.upstream.release(None);
    body_of(running.await??, 200).await;
    until("it is settled", async || Ok(world.database.open_ids(world.project).await?.is_empty())).await?;
    Ok(call["held"]["tokens"].as_i64().unwrap())
}

#[tokio::test]
async fn a_hold_covers_every_prompt_and_every_answer_that_is_written() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 10000000, system_prompt = 'Answer like a pirate.'").await?;
    world.database.change_route(world.route, "max_output = 70").await?;
    let edge = world.edge().await?;
    let of = |texts: &[&str]| i64::try_from(count_messages(Family::Estimated, texts.iter().copied())).unwrap();
    let none = of(&[]);
    for (members, tokens) in [
        (json!({ "max_tokens": 10 }), of(&[PROMPT]) + 10),
        (json!({ "max_tokens": 10, "suffix": "and they lived on" }), of(&[PROMPT, "and they lived on"]) + 10),
        (json!({ "prompt": ["one", "two words"], "max_tokens": 10, "n": 2 }), of(&["one", "two words"]) + 40),
        (json!({ "prompt": [1, 2, 3, 4, 5], "max_tokens": 10 }), none + 5 + 10),
        (json!({ "prompt": [[1, 2], [3]], "max_tokens": 10, "n": 2, "best_of": 3 }), none + 3 + 60),
        (json!({ "max_tokens": 0, "echo": true }), of(&[PROMPT]) + 1),
        (json!({}), of(&[PROMPT]) + 70),
        (json!({ "guided_json": { "a": "many words" } }), of(&[PROMPT, r#"{"a":"many words"}"#]) + 70),
    ] {
        assert_eq!(held(&world, &edge, members.clone()).await?, tokens, "{members}");
    }
    // OpenAI itself writes 16 tokens where nothing is said.
    world.database.change_connection(world.connection, "provider_type = 'openai'").await?;
    until("it is OpenAI's", async || Ok(held(&world, &edge, json!({ "best_of": 2 })).await? == of(&[PROMPT]) + 32))
        .await?;
    edge.stop().await
}

async fn other(world: &World, provider: &str, name: &str) -> anyhow::Result<ConnectionId> {
    let connection = world.database.insert_connection(name, &world.upstream.base_url(), "other").await?;
    world.database.change_connection(connection, &format!("provider_type = '{provider}'")).await?;
    Ok(connection)
}

#[tokio::test]
async fn a_text_goes_only_where_the_api_is_known() -> anyhow::Result<()> {
    let world = World::with("cost_per_day = 1000000000").await?;
    world.database.insert_price("real-chat", 1_000, 2_000).await?;
    for provider in ["anthropic", "gemini", "ollama", "mistral", "groq"] {
        let connection = other(&world, provider, provider).await?;
        world.database.insert_route(world.project, provider, connection).await?;
    }
    // One that could not serve it, and has no price, is passed by.
    let claude = other(&world, "anthropic", "fallback").await?;
    let route = world.route.0;
    let sql = "INSERT INTO route_targets (route_id, group_number, connection_id) VALUES";
    world.database.execute(format!("{sql} ({route}, 1, {})", claude.0)).await?;
    let edge = world.edge().await?;
    for provider in ["anthropic", "gemini", "ollama", "mistral", "groq"] {
        for stream in [false, true] {
            let answer = ask(&edge, json!({ "model": provider, "stream": stream })).send().await?;
            let told = body_of(answer, 400).await;
            assert_eq!(told["error"]["code"], "unsupported_for_model");
            assert!(told["error"]["message"].as_str().unwrap().contains(provider), "{told}");
        }
    }
    let error = ScriptedError::status(503);
    let failing = Behaviour { error: Some(error), ..Behaviour::default() };
    world.upstream.script(Script { path: PATH.to_owned(), queue: vec![failing.clone(), failing], ..Script::default() });
    next(&world.upstream, says(" it rained."));
    let answer = ask(&edge, json!({})).send().await?;
    assert_eq!(header(&answer, "x-ragmux-attempts"), Some("3"));
    body_of(answer, 200).await;
    assert!(world.upstream.log(0).calls.iter().all(|call| call.path == PATH));
    edge.stop().await
}

#[tokio::test]
async fn deepseek_has_it_beside_its_api() -> anyhow::Result<()> {
    let world = World::new().await?;
    let connection = other(&world, "deepseek", "deepseek").await?;
    world.database.insert_route(world.project, "deep", connection).await?;
    let edge = world.edge().await?;
    body_of(ask(&edge, json!({ "model": "deep" })).send().await?, 200).await;
    assert_eq!(world.upstream.log(0).calls[0].path, "/beta/completions");
    edge.stop().await
}

#[tokio::test]
async fn neither_rules_nor_passages_are_added() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    world.database.change_project(world.project, "system_prompt = 'Answer like a pirate.'").await?;
    let edge = world.edge().await?;
    let prompt = "How long does the warranty of it last?";
    let before = world.upstream.log(0).calls.len();
    let answer = ask(&edge, json!({ "prompt": prompt, "ragmux": { "include_context": true } })).send().await?;
    assert_eq!(header(&answer, "x-ragmux-rag-hits"), None);
    assert!(body_of(answer, 200).await.get("ragmux").is_none());
    let seen = world.upstream.log(0).calls.split_off(before);
    assert_eq!((seen.len(), &seen[0].body), (1, &json!({ "model": "real-chat", "prompt": prompt })));
    edge.stop().await
}

#[tokio::test]
async fn a_stream_is_the_providers_bytes_however_they_are_cut() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let transcript = concat!(
        ": hello\n\n",
        "data: {\"id\":\"c\",\"model\":\"fast\",\"choices\":[{\"text\":\"h\u{e9} \u{1f319}\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        "data: {\"id\":\"c\", \"model\":\"fast\",\n",
        "data:  \"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );
    for (split_bytes, line_end, end) in
        [(None, LineEnd::Lf, "\n"), (Some(1), LineEnd::CrLf, "\r\n"), (Some(7), LineEnd::Cr, "\r")]
    {
        let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body: transcript.to_owned() };
        next(&world.upstream, Behaviour { raw: Some(raw), line_end, split_bytes, ..Behaviour::default() });
        let got = ask(&edge, json!({ "stream": true })).send().await?.text().await?;
        assert_eq!(got, transcript.replace('\n', end), "{line_end:?}");
    }
    edge.stop().await
}

#[tokio::test]
async fn who_leaves_pays_for_what_was_delivered_and_a_broken_stream_says_so() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let words = Behaviour { content: Some("word ".to_owned()), chunks: Some(100), ..Behaviour::default() };
    next(&world.upstream, Behaviour { hold_after_events: Some(41), ..words.clone() });
    // What is repeated of the prompt is no output.
    let mut answer = ask(&edge, json!({ "stream": true, "echo": true })).send().await?;
    let mut got = String::new();
    while !got.contains("word ") || text(&events(&got).0).len() < PROMPT.len() + 5 * 30 {
        let chunk = tokio::time::timeout(testkit::DEADLINE, answer.chunk()).await??.unwrap();
        got.push_str(std::str::from_utf8(&chunk)?);
    }
    assert!(text(&events(&got).0).starts_with(PROMPT));
    drop(answer);
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (499, "estimated"));
    let (least, most) = (answer_tokens(&"word ".repeat(30)), answer_tokens(&"word ".repeat(40)));
    assert!((least..=most).contains(&(logged.charged_tokens - prompt_tokens())), "{logged:?}");

    next(&world.upstream, Behaviour { cut_after_events: Some(3), ..words });
    let (chunks, done) = events(&ask(&edge, json!({ "stream": true })).send().await?.text().await?);
    let last = chunks.last().unwrap();
    assert_eq!((&last["error"]["code"], done), (&json!("upstream_truncated"), false));
    edge.stop().await
}

#[tokio::test]
async fn bounds_are_kept_and_counted_without_the_prompt_that_is_repeated() -> anyhow::Result<()> {
    let world = World::with("enforcement = 'hard', tokens_per_day = 1000000").await?;
    let edge = world.edge().await?;
    let heedless = Behaviour {
        content: Some("word ".to_owned()),
        chunks: Some(60),
        usage: ReportUsage::Never,
        ..Behaviour::default()
    };
    next(&world.upstream, Behaviour { hold_after_events: Some(50), ..heedless.clone() });
    let members = json!({ "stream": true, "echo": true, "max_tokens": 10 });
    let (chunks, done) = events(&ask(&edge, members).send().await?.text().await?);
    let said = text(&chunks);
    let own = said.strip_prefix(PROMPT).unwrap();
    let tokens = answer_tokens(own);
    assert!(done && tokens <= 10 && answer_tokens(&format!("{own}word ")) > 10, "{said}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.charged_tokens), (200, prompt_tokens() + tokens));

    // Of two that are written one is shown, and both are paid.
    next(&world.upstream, heedless);
    let answer = body_of(ask(&edge, json!({ "best_of": 2, "max_tokens": 10 })).send().await?, 200).await;
    let said = answer["choices"][0]["text"].as_str().unwrap();
    assert_eq!((answer_tokens(said), &answer["choices"][0]["finish_reason"]), (10, &json!("length")));
    assert_eq!(world.logged(2).await?[1].charged_tokens, prompt_tokens() + 20);
    assert_eq!(world.upstream.log(0).calls[1].body["max_tokens"], 10);

    let answer = ask(&edge, json!({ "prompt": [1, 2, 3], "echo": true })).send().await?;
    assert_eq!(body_of(answer, 400).await["error"]["param"], "echo");
    assert_eq!(world.upstream.counters().requests, 2);
    edge.stop().await
}

#[tokio::test]
async fn what_is_wrong_is_told_as_openai_tells_it() -> anyhow::Result<()> {
    let world = World::with("cost_per_day = 1000000000").await?;
    world.database.insert_price("real-chat", 1_000, 2_000).await?;
    let edge = world.edge().await?;
    for (members, param) in
        [(json!({ "prompt": 7 }), "prompt"), (json!({ "n": 0 }), "n"), (json!({ "best_of": "many" }), "best_of")]
    {
        let told = body_of(ask(&edge, members).send().await?, 400).await;
        assert_eq!((&told["error"]["type"], &told["error"]["param"]), (&json!("invalid_request_error"), &json!(param)));
    }
    let twice = edge.post(PATH, &json!({})).body(r#"{"model":"fast","prompt":"a","max_tokens":1,"max_tokens":9}"#);
    let told = body_of(twice.send().await?, 400).await;
    assert_eq!(told["error"]["message"], "max_tokens occurs more than once");
    let costly = error_of(ask(&edge, json!({ "use_beam_search": true })).send().await?).await;
    assert_eq!((costly.0, costly.2), (400, json!("unpriced_feature")));
    let error = ScriptedError { message: "no such model".to_owned(), ..ScriptedError::status(404) };
    next(&world.upstream, Behaviour { error: Some(error), ..Behaviour::default() });
    assert_eq!(body_of(ask(&edge, json!({})).send().await?, 404).await["error"]["message"], "no such model");
    edge.stop().await
}
