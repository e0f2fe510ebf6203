//! Bounds that are kept: under `enforcement = hard` no answer is longer than what is held for it, whatever the provider
//! does.

use serde_json::{Value, json};
use upstream::{Behaviour, Figures, Raw, ReportUsage, Wait};

use crate::stream::{content, events};
use crate::world::{World, answer_tokens, body_of, turn_tokens};

const HARD: &str = "enforcement = 'hard', tokens_per_day = 1000000";

/// A provider that pays no heed to bounds, and never ends.
fn heedless(text: &str) -> Behaviour {
    Behaviour {
        content: Some(text.to_owned()),
        chunks: Some(60),
        hold_after_events: Some(50),
        usage: ReportUsage::Never,
        ..Behaviour::default()
    }
}

#[tokio::test]
async fn the_bound_goes_upstream_for_each_choice() -> anyhow::Result<()> {
    let world = World::with("enforcement = 'hard', tokens_per_day = 1000").await?;
    let edge = world.edge().await?;
    edge.chat(json!({ "max_tokens": 5000 })).send().await?;
    // It held all there is until now.
    world.logged(1).await?;
    edge.chat(json!({ "max_tokens": 40, "max_completion_tokens": 60, "n": 2 })).send().await?;
    let calls = world.upstream.log(0).calls;
    let bound = calls[0].body["max_tokens"].as_i64().unwrap();
    assert!(bound > 0 && bound < 1000, "{bound}");
    assert_eq!((&calls[1].body["max_tokens"], &calls[1].body["max_completion_tokens"]), (&json!(40), &json!(60)));
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_passes_its_bound_is_cut_at_an_event() -> anyhow::Result<()> {
    let world = World::with(HARD).await?;
    let edge = world.edge().await?;
    for tells_usage in [false, true] {
        world.next_chat(heedless("word "));
        let members = json!({ "stream": true, "max_tokens": 10, "stream_options": { "include_usage": tells_usage } });
        let (mut chunks, done) = events(&edge.chat(members).send().await?.text().await?);
        assert!(done);
        let text = content(&chunks);
        let tokens = answer_tokens(&text);
        assert!(text.starts_with("word ") && tokens <= 10 && answer_tokens(&format!("{text}word ")) > 10, "{text}");
        if tells_usage {
            let last = chunks.pop().unwrap();
            let used = json!({
                "prompt_tokens": turn_tokens(), "completion_tokens": tokens, "total_tokens": turn_tokens() + tokens,
            });
            assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &used));
        }
        let last = chunks.pop().unwrap();
        assert_eq!((&last["choices"][0]["finish_reason"], &last["model"]), (&json!("length"), &json!("fast")));
        assert_eq!((&last["id"], last.get("usage").is_some()), (&chunks[0]["id"], tells_usage));
        let calls = 1 + u64::from(tells_usage);
        world.upstream_until(Wait { aborted: Some(calls), open: Some(0), ..Wait::default() }).await?;
        let logged = world.logged(usize::try_from(calls)?).await?;
        let logged = logged.last().unwrap();
        assert_eq!((logged.status, logged.state.as_str(), logged.error_code.as_deref()), (200, "estimated", None));
        assert_eq!(logged.charged_tokens, turn_tokens() + tokens);
    }
    edge.stop().await
}

#[tokio::test]
async fn arguments_reasoning_and_every_choice_count() -> anyhow::Result<()> {
    let world = World::with(HARD).await?;
    let edge = world.edge().await?;
    let arguments = |text: &str| json!({ "tool_calls": [{ "index": 0, "function": { "arguments": text } }] });
    for (delta, choices) in [
        (arguments("\"word\","), 1_u64),
        (json!({ "reasoning_content": "hmm " }), 1),
        (json!({ "reasoning": "hmm " }), 1),
        (json!({ "refusal": "no " }), 1),
        (json!({ "content": "word " }), 3),
    ] {
        let body: String = (0..90)
            .map(|number| json!({ "choices": [{ "index": number % choices, "delta": delta }] }))
            .map(|event| format!("data: {event}\n\n"))
            .collect();
        let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body };
        world.next_chat(Behaviour { raw: Some(raw), hold_after_events: Some(80), ..Behaviour::default() });
        let members = json!({ "stream": true, "max_tokens": 12, "n": choices });
        let (chunks, done) = events(&edge.chat(members).send().await?.text().await?);
        assert!(done);
        let cut = |chunk: &&Value| chunk["choices"][0]["finish_reason"] == "length";
        assert_eq!(chunks.iter().filter(cut).count() as u64, choices, "{delta}");
        let passed = chunks.len() as u64 - choices;
        assert!((choices..80).contains(&passed), "{passed} of {delta}");
    }
    for (logged, choices) in world.logged(5).await?.iter().zip([1, 1, 1, 1, 3]) {
        let output = logged.charged_tokens - turn_tokens();
        assert!((12 * choices - 4..=12 * choices).contains(&output), "{output} of {choices}");
    }
    edge.stop().await?;
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.day_tokens_held), (0, 0));
    assert_eq!(totals.day_tokens, totals.logged_tokens);
    Ok(())
}

#[tokio::test]
async fn a_whole_answer_over_its_bound_is_cut_and_what_the_provider_used_is_charged() -> anyhow::Result<()> {
    let world = World::with(HARD).await?;
    let edge = world.edge().await?;
    let long = "word ".repeat(50);
    let ask = json!({ "max_tokens": 10 });
    let figures = Figures { prompt_tokens: 12, completion_tokens: 50, ..Figures::default() };
    let unreported = Behaviour { content: Some(long.clone()), usage: ReportUsage::Never, ..Behaviour::default() };
    world.next_chat(Behaviour { content: Some(long.clone()), figures: Some(figures), ..Behaviour::default() });
    let told = body_of(edge.chat(ask.clone()).send().await?, 200).await;
    let choice = &told["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!((&choice["finish_reason"], &told["usage"]["completion_tokens"]), (&json!("length"), &json!(50)));
    assert!(long.starts_with(text) && answer_tokens(text) == 10, "{text}");
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_tokens, logged.state.as_str()), (62, "final"));

    world.next_chat(unreported.clone());
    edge.chat(ask.clone()).send().await?;
    let logged = world.logged(2).await?;
    assert_eq!((logged[1].charged_tokens, logged[1].state.as_str()), (turn_tokens() + 10, "estimated"));

    // A soft bound is only what is reserved.
    world.database.change_project(world.project, "enforcement = 'soft'").await?;
    testkit::until("bounds are soft", async || {
        world.next_chat(unreported.clone());
        Ok(body_of(edge.chat(ask.clone()).send().await?, 200).await["choices"][0]["message"]["content"]
            == long.as_str())
    })
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn a_target_that_cannot_bound_its_output_is_refused_where_bounds_are_kept() -> anyhow::Result<()> {
    let world = World::with(HARD).await?;
    let edge = world.edge().await?;
    for (field, members) in [("max_completion_tokens", json!({ "max_tokens": 7 })), ("max_tokens", json!({}))] {
        world.database.change_connection(world.connection, &format!("output_field = '{field}'")).await?;
        testkit::until("the field is sent", async || {
            edge.chat(members.clone()).send().await?;
            Ok(world.upstream.log(0).calls.last().is_some_and(|call| call.body.get(field).is_some()))
        })
        .await?;
    }
    world.database.change_connection(world.connection, "output_field = 'none'").await?;
    testkit::until("it is refused", async || Ok(edge.chat(json!({})).send().await?.status() == 400)).await?;
    let calls = world.upstream.counters().requests;
    for stream in [false, true] {
        let told = body_of(edge.chat(json!({ "stream": stream })).send().await?, 400).await;
        let error = &told["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("hard_limit_unsupported"), &json!("model")));
    }
    assert_eq!(world.upstream.counters().requests, calls);
    // Where a bound is only what is reserved, it does not matter.
    world.database.change_project(world.project, "enforcement = 'soft'").await?;
    testkit::until("it is served", async || Ok(edge.chat(json!({})).send().await?.status() == 200)).await?;
    edge.stop().await
}
