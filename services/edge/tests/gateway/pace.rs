//! How a stream flows: event by event, no faster than its client reads, never silent for long, and not for ever.

use std::cell::Cell;
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use testkit::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use upstream::{Behaviour, Raw, ScriptedError, Wait};

use crate::stream::{content, events};
use crate::world::{CHAT, World, error_of, header, turn};

const PING: &str = ": ping\n\n";
const MOON: &str =
    "data: {\"model\":\"fast\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{1f319} moon\"}}]}\n\n";
const STOP: &str = "data: {\"model\":\"fast\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str =
    "data: {\"model\":\"fast\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn transcript(events: &[&str]) -> Behaviour {
    let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body: events.concat() };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

/// Reads until the text so far is as wanted.
async fn read_until(answer: &mut Response, got: &mut Vec<u8>, enough: impl Fn(&str) -> bool) {
    let reading = async {
        while !std::str::from_utf8(got).is_ok_and(&enough) {
            let Some(chunk) = answer.chunk().await.unwrap() else { return false };
            got.extend_from_slice(&chunk);
        }
        true
    };
    let is_there = tokio::time::timeout(testkit::DEADLINE, reading).await;
    assert!(is_there == Ok(true), "{is_there:?}: {}", String::from_utf8_lossy(got));
}

#[tokio::test]
async fn an_event_reaches_the_client_before_the_next_is_made() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { hold_each_event: true, ..transcript(&[MOON, MOON, STOP, USAGE, DONE]) });
    let asking = tokio::spawn(edge.chat(json!({ "stream": true })).send());
    let next = async || {
        world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
        world.upstream.release(Some(1));
        anyhow::Ok(())
    };
    next().await?;
    let mut answer = asking.await??;
    let (mut got, mut whole, mut sent) = (Vec::new(), MOON.to_owned(), MOON.len());
    read_until(&mut answer, &mut got, |text| text == whole).await;
    for event in [MOON, STOP, USAGE, DONE] {
        next().await?;
        sent += event.len();
        until("it is sent", async || Ok(world.upstream.counters().bytes_sent == sent as u64)).await?;
        // That one is not for the client.
        whole.push_str(if event == USAGE { "" } else { event });
        read_until(&mut answer, &mut got, |text| text == whole).await;
    }
    edge.stop().await
}

#[tokio::test]
async fn pings_come_between_events_and_nowhere_else() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_tuned(&[], |settings| settings.ping_every = Duration::from_millis(10)).await?;
    let within_the_second = MOON.len() + MOON.find('\u{1f319}').unwrap() + 2;
    world.next_chat(Behaviour { hold_after_bytes: Some(within_the_second), ..transcript(&[MOON, MOON, STOP, DONE]) });
    let mut answer = edge.chat(json!({ "stream": true })).send().await?;
    let mut got = Vec::new();
    let before = format!("{MOON}{PING}{PING}{PING}");
    read_until(&mut answer, &mut got, |text| text.ends_with(&before)).await;
    world.upstream.release(None);
    read_until(&mut answer, &mut got, |text| text.ends_with(DONE)).await;
    let got = String::from_utf8(got)?;
    assert_eq!(got.replace(PING, ""), [MOON, MOON, STOP, DONE].concat());
    assert!(got.split(PING).all(|part| part.is_empty() || part.ends_with("\n\n")), "{got}");
    // They do not count as output, and leave the call as it is.
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (200, "estimated"));
    edge.stop().await
}

#[tokio::test]
async fn an_attempt_may_fail_after_the_status_was_sent() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", "20ms")]).await?;
    let busy = Behaviour { hold: true, error: Some(ScriptedError::status(503)), ..Behaviour::default() };
    world.next_chat(busy);
    world.next_chat(transcript(&[MOON, STOP, USAGE, DONE]));
    let mut answer = edge.chat(json!({ "stream": true })).send().await?;
    let mut got = Vec::new();
    read_until(&mut answer, &mut got, |text| text == PING).await;
    world.upstream.release(None);
    read_until(&mut answer, &mut got, |text| text.ends_with(DONE)).await;
    assert_eq!(String::from_utf8(got)?.replace(PING, ""), [MOON, STOP, DONE].concat());
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.attempts, logged.charged_tokens), (200, 2, 7));
    edge.stop().await
}

#[tokio::test]
async fn an_early_head_names_only_who_must_be_the_one_to_answer() -> anyhow::Result<()> {
    let world = World::new().await?;
    let early = async |names: [Option<&str>; 2]| -> anyhow::Result<()> {
        let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", "20ms")]).await?;
        world.next_chat(Behaviour { hold: true, ..transcript(&[MOON, STOP, USAGE, DONE]) });
        let mut answer = edge.chat(json!({ "stream": true })).send().await?;
        assert_eq!(["x-ragmux-model", "x-ragmux-connection"].map(|name| header(&answer, name)), names);
        assert_eq!(header(&answer, "x-ragmux-attempts"), None);
        let mut got = Vec::new();
        read_until(&mut answer, &mut got, |text| text == PING).await;
        world.upstream.release(None);
        read_until(&mut answer, &mut got, |text| text.ends_with(DONE)).await;
        edge.stop().await
    };
    early([Some("real-chat"), Some("provider")]).await?;
    // A second place to go: who answers is not known yet.
    let other = world.database.insert_connection("other", &world.upstream.base_url(), "real-other").await?;
    let target = format!(
        "INSERT INTO route_targets (route_id, group_number, connection_id) VALUES ({}, 1, {})",
        world.route.0, other.0
    );
    world.database.execute(target).await?;
    early([None, None]).await
}

#[tokio::test]
async fn a_status_that_is_never_sent_early_is_the_providers() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", "0")]).await?;
    world.next_chat(Behaviour { hold: true, error: Some(ScriptedError::status(404)), ..Behaviour::default() });
    let asking = tokio::spawn(edge.chat(json!({ "stream": true })).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    world.upstream.release(None);
    assert_eq!(error_of(asking.await??).await.0, 404);
    edge.stop().await
}

/// What a client that cannot go on is told, and what is logged of it.
async fn broken_off(world: &World, answer: Response, code: &str, status: i32) -> anyhow::Result<()> {
    let text = answer.text().await?;
    let (chunks, done) = events(&text);
    assert!(!done && text.ends_with("\n\n"), "{text}");
    let last = chunks.last().unwrap();
    assert_eq!(last["error"]["code"], code, "{last}");
    assert_eq!(chunks.iter().filter(|chunk| chunk.get("error").is_some()).count(), 1);
    assert_eq!(content(&chunks), "\u{1f319} moon");
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.error_code.as_deref()), (status, Some(code)));
    assert_eq!(logged.charged_requests, 1);
    Ok(())
}

#[tokio::test]
async fn a_provider_that_falls_silent_within_an_answer_is_given_up() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_tuned(&[], |settings| settings.upstream_idle = Duration::from_millis(100)).await?;
    world.next_chat(Behaviour { hold_after_events: Some(1), ..transcript(&[MOON, STOP, DONE]) });
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    broken_off(&world, answer, "upstream_timeout", 504).await?;
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_stream_has_a_longest_time() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_MAX_DURATION", "1s")]).await?;
    world.next_chat(Behaviour { hold_after_events: Some(1), ..transcript(&[MOON, STOP, DONE]) });
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    broken_off(&world, answer, "upstream_timeout", 504).await?;
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    edge.stop().await
}

#[tokio::test]
async fn an_error_within_a_stream_is_told_once_and_ends_it() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let error = "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":529}}\n\n";
    world.next_chat(transcript(&[MOON, error, MOON, STOP, DONE]));
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    broken_off(&world, answer, "upstream_failed", 503).await?;
    edge.stop().await
}

#[tokio::test]
async fn an_event_over_eight_mebibytes_ends_the_stream_and_one_below_does_not() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    const LARGEST: usize = 8 * 1024 * 1024;
    let event = |bytes: usize| {
        let frame = "data: {\"choices\":[],\"x\":\"\"}\n\n";
        frame.replace("\"x\":\"", &format!("\"x\":\"{}", "y".repeat(bytes - frame.len())))
    };
    world.next_chat(transcript(&[MOON, &event(LARGEST), STOP, DONE]));
    let text = edge.chat(json!({ "stream": true })).send().await?.text().await?;
    assert!(text == [MOON, &event(LARGEST), STOP, DONE].concat(), "an event was changed");
    world.next_chat(transcript(&[MOON, &event(LARGEST + 1), STOP, DONE]));
    let text = edge.chat(json!({ "stream": true })).send().await?.text().await?;
    let (chunks, done) = events(&text);
    assert!(!done && chunks.len() == 2, "{} events", chunks.len());
    assert_eq!(chunks[1]["error"]["code"], "upstream_too_large");
    edge.stop().await
}

#[tokio::test]
async fn usage_in_an_event_that_the_provider_did_not_end_is_charged() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let send = async |last: &str| {
        world.next_chat(transcript(&[MOON, STOP, last]));
        anyhow::Ok(edge.chat(json!({ "stream": true })).send().await?.text().await?)
    };
    // Whole but for its blank line: it counts, and there is nothing of it to pass on.
    assert_eq!(send(USAGE.trim_end()).await?, [MOON, STOP].concat());
    // Half an event is neither passed on nor taken for the end of an answer.
    let text = send(&USAGE[..USAGE.len() / 2]).await?;
    let told = text.strip_prefix(&[MOON, STOP].concat()).unwrap();
    let (told, done) = events(told);
    assert_eq!((told.len(), &told[0]["error"]["code"], done), (1, &json!("upstream_truncated"), false));
    let logged = world.logged(2).await?;
    assert_eq!((logged[0].status, logged[0].state.as_str(), logged[0].charged_tokens), (200, "final", 7));
    assert_eq!((logged[1].status, logged[1].state.as_str()), (502, "estimated"));
    edge.stop().await
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_its_provider() -> anyhow::Result<()> {
    const EVENT: usize = 64 * 1024;
    const EVENTS: usize = 1024;
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { content: Some("x".repeat(EVENT)), chunks: Some(EVENTS), ..Behaviour::default() });
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(64 * 1024)?;
    let mut client = socket.connect(edge.address).await?;
    let body = turn(json!({ "stream": true })).to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        world.key.secret().expose(),
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut first = [0; 15];
    client.read_exact(&mut first).await?;
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    // It has stopped when nothing more is sent for many looks in a row.
    let last = Cell::new((0, 0));
    until("the provider sends no more", async || {
        let now = world.upstream.counters().bytes_sent;
        let (sent, looks) = last.get();
        last.set((now, if now == sent && now > 0 { looks + 1 } else { 0 }));
        Ok(looks >= 25)
    })
    .await?;
    let (sent, _) = last.get();
    // What is on the way fits into the sockets' buffers; the answer does not.
    assert!(sent < (EVENT * EVENTS / 2) as u64, "{sent} bytes were sent to a client that reads nothing");
    assert_eq!(world.upstream.counters().open, 1);
    drop(client);
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (499, "estimated"));
    edge.stop().await
}

#[tokio::test]
async fn sources_come_before_the_end_of_an_answer_that_is_there_at_once() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let burst = Behaviour { split_bytes: Some(usize::MAX), ..transcript(&[MOON, STOP, USAGE, DONE]) };
    world.next_chat(burst);
    let asked = json!({ "stream": true, "ragmux": { "include_context": true } });
    let text = edge.chat(asked).send().await?.text().await?;
    let (chunks, done) = events(&text);
    assert!(done && text.ends_with(DONE), "{text}");
    let last: &Value = chunks.last().unwrap();
    assert_eq!((&last["choices"], last["ragmux"].is_object()), (&json!([]), true));
    edge.stop().await
}

#[tokio::test]
async fn a_connection_outlives_a_stream_that_broke_off() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let body = turn(json!({ "stream": true })).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        world.key.secret().expose(),
        body.len()
    );
    world.next_chat(transcript(&[MOON]));
    world.next_chat(transcript(&[MOON, STOP, DONE]));
    let mut socket = TcpStream::connect(edge.address).await?;
    for last in ["upstream_truncated", "[DONE]"] {
        socket.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n0\r\n\r\n") {
            answer.push(tokio::time::timeout(testkit::DEADLINE, socket.read_u8()).await??);
        }
        let answer = String::from_utf8(answer)?;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(last), "{answer}");
    }
    edge.stop().await
}
