//! Two edges, one key, one of them severed in the middle of its stream.

use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Response, StatusCode};
use serde_json::json;
use testkit::{ProjectId, Role, Stack};
use upstream::{Behaviour, Script, Wait};

use crate::client;

/// The text of such a stream.
const WHOLE: &str = "word word word word ";

/// For how long an edge is stopped in a long run; else only until it is given up.
const LONG_STOP: Duration = Duration::from_secs(90);

/// A stream that stands still after its second event.
fn standing_still() -> Behaviour {
    let content = Some("word ".to_owned());
    Behaviour { hold_after_events: Some(2), content, chunks: Some(4), ..Behaviour::default() }
}

/// Reads a stream until this much of its text is there.
async fn read_until(answer: &mut Response, word: &str) -> anyhow::Result<String> {
    let mut read = String::new();
    while !read.contains(word) {
        let bytes = answer.chunk().await?;
        read.push_str(std::str::from_utf8(&bytes.ok_or_else(|| anyhow::anyhow!("it ended: {read}"))?)?);
    }
    Ok(read)
}

#[tokio::test]
async fn streaming_replicas() -> anyhow::Result<()> {
    let mut stack = Stack::builder().edges(2).set("LEDGER_ORPHAN_AFTER", "20s").start().await?;
    let project = stack.project("p", json!({ "limits": { "requests_per_minute": 3 } })).await?;
    stack.upstream.script(Script {
        path: "/v1/chat/completions".to_owned(),
        queue: vec![standing_still(), standing_still()],
        ..Script::default()
    });
    testkit::early_in_a_minute().await?;
    let mut kept = client::chat(&stack, 0, &project, client::ask_streamed("first")).await?;
    let mut severed = client::chat(&stack, 1, &project, client::ask_streamed("second")).await?;
    let ids: Vec<String> =
        [&kept, &severed].iter().map(|answer| answer.headers()["x-request-id"].to_str().unwrap().to_owned()).collect();
    let mut first = read_until(&mut kept, "word").await?;
    read_until(&mut severed, "word").await?;

    stack.nth_mut(Role::Edge, 1)?.kill().await?;
    let rest: Vec<_> = severed.bytes_stream().collect().await;
    assert!(rest.iter().any(Result::is_err), "the client sees that the stream was severed");
    let seen = stack.upstream.wait(Wait { aborted: Some(1), ..Wait::default() }).await;
    assert_eq!(seen.aborted, 1, "its upstream call is cancelled");

    // Nothing of it is resumed: the retry is a completion of its own, and counts.
    let retried = client::chat(&stack, 0, &project, client::ask_streamed("second")).await?;
    assert_eq!(retried.status(), 200);
    assert!(!ids.contains(&retried.headers()["x-request-id"].to_str()?.to_owned()));
    let (_, is_whole) = client::stream_text(&retried.text().await?);
    assert!(is_whole);
    let fourth = client::chat(&stack, 0, &project, client::ask("fourth")).await?;
    let (status, _, body) = client::read(fourth, "retry-after").await?;
    assert_eq!((status, body["error"]["code"].as_str()), (StatusCode::TOO_MANY_REQUESTS, Some("rate_limit_rpm")));

    // The other stream of the key never noticed.
    stack.upstream.release(None);
    first.push_str(&kept.text().await?);
    assert_eq!(client::stream_text(&first), (WHOLE.to_owned(), true));

    let project = ProjectId(project.id);
    let rows = testkit::eventually("the severed call is settled", || async {
        let rows = stack.database.logged_calls(project).await?;
        Ok((rows.len() == 3).then_some(rows))
    })
    .await?;
    let told: Vec<_> = rows.iter().map(|row| (row.status, row.error_code.as_deref(), row.charged_requests)).collect();
    assert_eq!(told, [(200, None, 1), (499, Some("edge_lost"), 1), (200, None, 1)]);
    assert_eq!((rows[1].request_id.as_str(), rows[1].state.as_str()), (ids[1].as_str(), "estimated"));
    let totals = stack.database.tier_totals(project).await?;
    assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens_held, totals.day_requests), (0, 0, 0, 3));
    assert_eq!((totals.day_tokens, totals.day_cost), (totals.logged_tokens, totals.logged_cost));
    Ok(())
}

#[tokio::test]
async fn an_edge_that_was_stopped_and_comes_back_corrects_what_was_estimated_for_it() -> anyhow::Result<()> {
    use rustix::process::Signal;

    let stack = Stack::builder().edges(2).set("LEDGER_ORPHAN_AFTER", "20s").start().await?;
    let project = stack.project("p", json!({ "limits": { "tokens_per_day": 100_000 } })).await?;
    let id = ProjectId(project.id);
    stack.upstream.script(Script {
        path: "/v1/chat/completions".to_owned(),
        queue: vec![standing_still()],
        ..Script::default()
    });
    let mut stream = client::chat(&stack, 1, &project, client::ask_streamed("first")).await?;
    let mut text = read_until(&mut stream, "word").await?;
    stack.nth(Role::Edge, 1)?.signal(Signal::STOP)?;
    let stopped = Instant::now();
    let estimated =
        testkit::eventually("the others give it up", || async { Ok(stack.database.logged_calls(id).await?.pop()) })
            .await?;
    assert_eq!((estimated.status, estimated.error_code.as_deref()), (499, Some("edge_lost")));
    let held = stack.database.tier_totals(id).await?;
    assert_eq!((held.day_tokens, held.day_tokens_held, held.open_calls), (estimated.charged_tokens, 0, 0));

    if crate::is_long_run() {
        // Longer than the deadline of one wait, so it is looked at in halves.
        for half in 1..=2 {
            testkit::until("the edge has stood still for long", || async {
                assert_eq!(stack.database.logged_calls(id).await?, std::slice::from_ref(&estimated));
                Ok(stopped.elapsed() >= half * LONG_STOP / 2)
            })
            .await?;
        }
    }
    stack.nth(Role::Edge, 1)?.signal(Signal::CONT)?;
    stack.upstream.release(None);
    text.push_str(&stream.text().await?);
    assert_eq!(client::stream_text(&text), (WHOLE.to_owned(), true));
    let row = testkit::eventually("the estimate is replaced", || async {
        Ok(stack.database.logged_calls(id).await?.pop().filter(|row| row.state == "final"))
    })
    .await?;
    assert_eq!((row.status, row.error_code.as_deref(), &row.request_id), (200, None, &estimated.request_id));
    assert!(row.charged_tokens < estimated.charged_tokens, "{row:?}");
    // And it goes on, under another id.
    let next = client::chat(&stack, 1, &project, client::ask("second")).await?;
    assert_eq!(next.status(), 200);
    testkit::until("all is settled", || async { Ok(stack.database.tier_totals(id).await?.log_rows == 2) }).await?;
    let totals = stack.database.tier_totals(id).await?;
    assert_eq!((totals.day_tokens, totals.day_requests), (totals.logged_tokens, 2));
    assert_eq!((totals.day_tokens_held, totals.open_calls, totals.open_rows), (0, 0, 0));
    assert!(stack.database.ledger_faults().await?.is_empty());
    stack.shut_down().await
}
