//! Chat as a stream.

use reqwest::Response;
use serde_json::{Value, json};
use testkit::until;
use upstream::{Behaviour, LineEnd, Raw, ReportUsage, ScriptedError, Wait};

use crate::world::{World, answer_tokens, error_of, header, turn_tokens};

/// The data of every event, and whether the stream ended with `[DONE]`.
pub(crate) fn events(text: &str) -> (Vec<Value>, bool) {
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let done = data.last() == Some(&"[DONE]");
    if done {
        data.pop();
    }
    (data.iter().map(|data| serde_json::from_str(data).unwrap()).collect(), done)
}

pub(crate) fn content(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

async fn first_chunk(answer: &mut Response) -> String {
    let chunk = tokio::time::timeout(testkit::DEADLINE, answer.chunk()).await.unwrap().unwrap().unwrap();
    String::from_utf8(chunk.to_vec()).unwrap()
}

#[tokio::test]
async fn a_stream_goes_its_whole_way() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.every_chat(Behaviour { content: Some("one ".to_owned()), chunks: Some(5), ..Behaviour::default() });
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!(answer.status(), 200);
    for (name, value) in [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
        ("x-ragmux-model", "real-chat"),
    ] {
        assert_eq!(header(&answer, name), Some(value));
    }
    let (chunks, done) = events(&answer.text().await?);
    assert!(done);
    assert_eq!(content(&chunks), "one ".repeat(5));
    assert!(chunks.iter().all(|chunk| chunk["model"] == "fast" && chunk.get("usage").is_none()), "{chunks:?}");
    // The provider was asked for usage all the same, and reported it.
    assert_eq!(world.upstream.log(0).calls[0].body["stream_options"], json!({ "include_usage": true }));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str(), logged.streamed), (200, "final", true));
    assert_eq!(logged.completion_tokens, Some(5));

    let asked = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let (chunks, _) = events(&edge.chat(asked).send().await?.text().await?);
    let last = chunks.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
    edge.stop().await
}

#[tokio::test]
async fn a_stream_is_the_providers_bytes_however_they_are_cut() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let transcript = concat!(
        ": hello\n\n",
        "id: 1\nevent: message\ndata: {\"id\":\"a\",\"model\":\"fast\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\u{e9} \u{1f319}\"},\"finish_reason\":null}]}\n\n",
        "data: {\"id\":\"a\", \"model\":\"fast\",\n",
        "data:  \"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );
    for split_bytes in [None, Some(1), Some(7)] {
        for (line_end, end) in [(LineEnd::Lf, "\n"), (LineEnd::CrLf, "\r\n"), (LineEnd::Cr, "\r")] {
            for start in ["", "\u{feff}"] {
                let body = format!("{start}{transcript}");
                let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body: body.clone() };
                world.next_chat(Behaviour { raw: Some(raw), line_end, split_bytes, ..Behaviour::default() });
                let asked = json!({ "stream": true, "stream_options": { "include_usage": true } });
                let got = edge.chat(asked).header("accept-encoding", "gzip, br").send().await?;
                assert_eq!(header(&got, "content-encoding"), None);
                assert_eq!(got.text().await?, body.replace('\n', end), "{split_bytes:?} {line_end:?}");
            }
        }
    }
    edge.stop().await
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_upstream_call_and_pays_what_it_got() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour {
        content: Some("word ".to_owned()),
        chunks: Some(100),
        hold_after_events: Some(40),
        ..Behaviour::default()
    });
    let mut answer = edge.chat(json!({ "stream": true })).send().await?;
    let (mut got, thirty) = (String::new(), "word ".repeat(30));
    while content(&events(&got).0).len() < thirty.len() {
        got.push_str(&first_chunk(&mut answer).await);
    }
    drop(answer);
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str(), logged.streamed), (499, "estimated", true));
    let (least, most) = (answer_tokens(&thirty), answer_tokens(&"word ".repeat(40)));
    assert!((least..=most).contains(&(logged.charged_tokens - turn_tokens())), "{logged:?}");
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_and_without_done() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let three = Behaviour { content: Some("w ".to_owned()), chunks: Some(9), ..Behaviour::default() };
    for behaviour in
        [Behaviour { cut_after_events: Some(3), ..three.clone() }, Behaviour { cut_after_bytes: Some(700), ..three }]
    {
        world.next_chat(behaviour);
        let answer = edge.chat(json!({ "stream": true })).send().await?;
        assert_eq!(answer.status(), 200);
        let (chunks, done) = events(&answer.text().await?);
        assert!(!done);
        let last = chunks.last().unwrap();
        assert_eq!(
            (&last["error"]["type"], &last["error"]["code"]),
            (&json!("upstream_error"), &json!("upstream_truncated"))
        );
        assert!(chunks.len() > 1 && content(&chunks).starts_with("w "));
    }
    for logged in world.logged(2).await? {
        assert_eq!((logged.status, logged.error_code.as_deref()), (502, Some("upstream_truncated")));
        assert_eq!((logged.state.as_str(), logged.charged_requests), ("estimated", 1));
    }
    edge.stop().await
}

#[tokio::test]
async fn a_silent_provider_does_not_leave_the_client_in_doubt() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", "50ms")]).await?;
    world.next_chat(Behaviour { hold: true, content: Some("late".to_owned()), ..Behaviour::default() });
    let mut answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!(answer.status(), 200);
    assert_eq!(first_chunk(&mut answer).await, ": ping\n\n");
    world.upstream.release(None);
    let (chunks, done) = events(&answer.text().await?);
    assert_eq!((content(&chunks).as_str(), done), ("late", true));

    // A refusal that comes after the status is told in the stream.
    let error = ScriptedError { code: Some("bad_thing".to_owned()), ..ScriptedError::status(400) };
    world.next_chat(Behaviour { hold: true, error: Some(error), ..Behaviour::default() });
    let mut answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!(first_chunk(&mut answer).await, ": ping\n\n");
    world.upstream.release(None);
    let (chunks, done) = events(&answer.text().await?);
    assert_eq!((chunks.len(), done), (1, false));
    assert_eq!(chunks[0]["error"]["code"], "bad_thing");
    let logged = world.logged(2).await?;
    assert_eq!((logged[0].status, logged[0].charged_requests), (200, 1));
    assert_eq!((logged[1].status, logged[1].error_code.as_deref()), (400, Some("bad_thing")));
    edge.stop().await
}

#[tokio::test]
async fn without_reported_usage_the_delivered_text_is_counted() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let text = "seven words of an answer to count";
    world.next_chat(Behaviour { content: Some(text.to_owned()), usage: ReportUsage::Never, ..Behaviour::default() });
    edge.chat(json!({ "stream": true })).send().await?.text().await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (200, "estimated"));
    assert_eq!(logged.charged_tokens, turn_tokens() + answer_tokens(text));
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_ends_in_order_without_done_is_whole() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    for (calls, usage, state) in [(1, ReportUsage::AsAsked, "final"), (2, ReportUsage::Never, "estimated")] {
        world.next_chat(Behaviour {
            content: Some("all of it".to_owned()),
            omit_done: true,
            usage,
            ..Behaviour::default()
        });
        let (chunks, done) = events(&edge.chat(json!({ "stream": true })).send().await?.text().await?);
        assert!(!done, "nothing is added that the provider did not send");
        assert_eq!(content(&chunks), "all of it");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
        let logged = world.logged(calls).await?.remove(calls - 1);
        assert_eq!((logged.status, logged.error_code.as_deref(), logged.state.as_str()), (200, None, state));
    }
    edge.stop().await
}

#[tokio::test]
async fn a_provider_that_answers_json_to_a_stream_is_at_fault() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let raw = Raw {
        status: 200,
        content_type: "application/json".to_owned(),
        body: r#"{"choices":[{"index":0,"message":{"content":"a"}}]}"#.to_owned(),
    };
    world.next_chat(Behaviour { raw: Some(raw), ..Behaviour::default() });
    let told = error_of(edge.chat(json!({ "stream": true })).send().await?).await;
    assert_eq!(told, (502, "upstream_error".to_owned(), json!("upstream_bad_answer")));
    edge.stop().await
}

#[tokio::test]
async fn many_streams_at_once_leave_nothing_held() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000").await?;
    let edge = world.edge().await?;
    world.every_chat(Behaviour { content: Some("w ".to_owned()), chunks: Some(20), ..Behaviour::default() });
    let calls = (0..32).map(|number| {
        let request = edge.chat(json!({ "stream": true, "max_tokens": 100 }));
        async move {
            let mut answer = request.send().await?;
            // Every third client reads one piece and leaves.
            if number % 3 == 0 {
                answer.chunk().await?;
                return anyhow::Ok(());
            }
            assert!(events(&answer.text().await?).1);
            Ok(())
        }
    });
    futures::future::try_join_all(calls).await?;
    until("all is settled", async || {
        let totals = world.database.tier_totals(world.project).await?;
        Ok(totals.log_rows == 32 && totals.open_rows == 0)
    })
    .await?;
    edge.stop().await?;
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.day_tokens_held), (0, 0));
    assert_eq!((totals.day_tokens, totals.logged_requests), (totals.logged_tokens, 32));
    Ok(())
}
