//! A client that hangs up after every byte there is: the provider's call ends with it, and the ledger has what the rules
//! say, to the token.

use std::collections::HashMap;

use serde_json::json;
use testkit::{LoggedCall, until};
use tokens::{Family, count, count_messages};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use upstream::{Behaviour, LineEnd, Raw, Script, Wait};

use crate::stream::{content, events};
use crate::world::{CHAT, Edge, TURN, World, answer_tokens, turn, turn_tokens};

const EMBEDDINGS: &str = "/v1/embeddings";

/// How many clients hang up at a time, each on a route and a provider's address of its own.
const LANES: usize = 8;

/// One event of a provider's answer.
struct Event {
    sent: &'static str,
    /// What the client gets for it; nothing for usage that only we asked for.
    got: &'static str,
    /// What it adds to the text that was delivered.
    text: &'static str,
    /// Prompt and completion tokens it reports.
    usage: Option<(i64, i64)>,
}

const fn plain(event: &'static str, text: &'static str) -> Event {
    Event { sent: event, got: event, text, usage: None }
}

const fn reporting(event: &'static str, got: &'static str, text: &'static str, usage: (i64, i64)) -> Event {
    Event { sent: event, got, text, usage: Some(usage) }
}

struct Transcript {
    model: &'static str,
    asks_for_usage: bool,
    line_end: LineEnd,
    split_bytes: Option<usize>,
    events: Vec<Event>,
}

impl Transcript {
    /// These events as a provider sends them that is asked for usage by us alone.
    fn of(events: Vec<Event>) -> Self {
        Self { model: "real-chat", asks_for_usage: false, line_end: LineEnd::Lf, split_bytes: None, events }
    }

    fn ended(&self, text: &str) -> String {
        let end = match self.line_end {
            LineEnd::Lf => "\n",
            LineEnd::CrLf => "\r\n",
            LineEnd::Cr => "\r",
        };
        text.replace('\n', end)
    }

    /// What the client of a lane has got after each event.
    fn got(&self, lane: &str) -> Vec<String> {
        let mut so_far = String::new();
        let mut all = Vec::new();
        for event in &self.events {
            so_far.push_str(&self.ended(&event.got.replace("real", lane)));
            all.push(so_far.clone());
        }
        all
    }

    /// What the provider does for a client that reads so many events.
    fn behaviour(&self, events: usize) -> Behaviour {
        let body: String = self.events.iter().map(|event| event.sent).collect();
        Behaviour {
            raw: Some(Raw { status: 200, content_type: "text/event-stream".to_owned(), body }),
            line_end: self.line_end,
            split_bytes: self.split_bytes,
            hold_after_events: Some(events),
            // Whoever leaves a whole answer leaves before the provider has closed it.
            stay_open: true,
            ..Behaviour::default()
        }
    }

    /// Status, state and tokens of the ledger's entry for a client that got so many events.
    fn expected(&self, events: usize) -> (i32, &'static str, i64) {
        let status = if events == self.events.len() { 200 } else { 499 };
        let seen = &self.events[..events];
        if let Some((prompt, completion)) = seen.iter().filter_map(|event| event.usage).next_back() {
            return (status, "final", prompt + completion);
        }
        let family = Family::of(self.model);
        let text: String = seen.iter().map(|event| event.text).collect();
        let tokens = count_messages(family, [TURN]) + count(family, &text);
        (status, "estimated", i64::try_from(tokens).unwrap())
    }
}

/// Sends a streamed chat, reads exactly so many bytes of its answer, and hangs up. Gives the call's id.
async fn hang_up(edge: &Edge, key: &str, lane: &str, asks_for_usage: bool, want: &[u8]) -> anyhow::Result<String> {
    let mut body = turn(json!({ "model": lane, "stream": true }));
    if asks_for_usage {
        body["stream_options"] = json!({ "include_usage": true });
    }
    let body = body.to_string();
    let mut socket = TcpStream::connect(edge.address).await?;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await?;
    let head = line(&mut socket, "\r\n\r\n").await?;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("transfer-encoding: chunked"), "{head}");
    let id = head.split_once("x-request-id: ").unwrap().1.split_once("\r\n").unwrap().0.to_owned();
    let mut got = Vec::new();
    while got.len() < want.len() {
        let size = line(&mut socket, "\r\n").await?;
        let size = usize::from_str_radix(size.trim_end(), 16)?;
        assert!(size > 0, "the answer ended after {} bytes", got.len());
        let mut piece = vec![0; size.min(want.len() - got.len())];
        socket.read_exact(&mut piece).await?;
        if piece.len() == size && got.len() + size < want.len() {
            line(&mut socket, "\r\n").await?;
        }
        got.extend_from_slice(&piece);
    }
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(want));
    Ok(id)
}

async fn line(socket: &mut TcpStream, end: &str) -> anyhow::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(end.as_bytes()) {
        line.push(tokio::time::timeout(testkit::DEADLINE, socket.read_u8()).await??);
    }
    Ok(String::from_utf8(line)?)
}

async fn hang_up_everywhere(transcript: Transcript) -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000000").await?;
    let lanes: Vec<String> = (0..LANES).map(|lane| format!("lane-{lane}")).collect();
    for lane in &lanes {
        let base_url = format!("http://{}/{lane}/v1", world.upstream.address());
        let connection = world.database.insert_connection(lane, &base_url, transcript.model).await?;
        world.database.insert_route(world.project, lane, connection).await?;
    }
    let edge = world.edge().await?;
    let in_lane = async |number: usize, lane: &str| {
        let after = transcript.got(lane);
        let whole = after.last().unwrap();
        let mut calls = Vec::new();
        for bytes in (number..=whole.len()).step_by(LANES) {
            let events = 1 + after.iter().position(|got| got.len() >= bytes).unwrap();
            let queue = vec![transcript.behaviour(events)];
            world.upstream.script(Script { path: format!("/{lane}{CHAT}"), queue, ..Script::default() });
            let want = &whole.as_bytes()[..bytes];
            let id = hang_up(&edge, world.key.secret().expose(), lane, transcript.asks_for_usage, want).await?;
            calls.push((id, bytes, events));
        }
        anyhow::Ok(calls)
    };
    let calls = futures::future::try_join_all(lanes.iter().enumerate().map(|(number, lane)| in_lane(number, lane)));
    let calls: Vec<_> = calls.await?.into_iter().flatten().collect();

    let aborted = Some(calls.len() as u64);
    world.upstream_until(Wait { aborted, open: Some(0), ..Wait::default() }).await?;
    until("all is settled", async || Ok(world.database.tier_totals(world.project).await?.open_rows == 0)).await?;
    edge.stop().await?;
    let logged = world.database.logged_calls(world.project).await?;
    assert_eq!(logged.len(), calls.len());
    let logged: HashMap<&str, &LoggedCall> = logged.iter().map(|call| (call.request_id.as_str(), call)).collect();
    let mut tokens = 0;
    for (id, bytes, events) in &calls {
        let call = logged[id.as_str()];
        let expected = transcript.expected(*events);
        assert_eq!((call.status, call.state.as_str(), call.charged_tokens), expected, "after {bytes} bytes: {call:?}");
        assert_eq!((call.charged_requests, call.streamed, call.attempts), (1, true, 1), "after {bytes} bytes");
        tokens += expected.2;
    }
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens_held), (0, 0, 0));
    assert_eq!((totals.day_tokens, totals.logged_tokens), (tokens, tokens));
    assert_eq!(totals.day_requests, i64::try_from(calls.len())?);
    Ok(())
}

const ROLE: Event = plain(
    "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    "",
);
const MOON: Event = plain(
    "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Der M\u{f6}nd \"}}]}\n\n",
    "Der M\u{f6}nd ",
);
const RISES: Event = plain(
    "id: 3\ndata: {\"model\":\"real\",\ndata: \"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{1f319} geht auf\"}}]}\n\n",
    "\u{1f319} geht auf",
);
const STOP: Event =
    plain("data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", "");
const USAGE: &str =
    "data: {\"model\":\"real\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}\n\n";
const BYE: Event = plain(": bye\n\n", "");
const DONE: Event = plain("data: [DONE]\n\n", "");

#[tokio::test]
async fn usage_in_the_last_chunk_that_only_we_asked_for() -> anyhow::Result<()> {
    let events = vec![ROLE, MOON, RISES, STOP, reporting(USAGE, "", "", (7, 9)), BYE, DONE];
    hang_up_everywhere(Transcript::of(events)).await
}

#[tokio::test]
async fn usage_that_the_client_asked_for_in_lines_that_end_with_crlf() -> anyhow::Result<()> {
    let events = vec![ROLE, MOON, STOP, reporting(USAGE, USAGE, "", (7, 9)), DONE];
    hang_up_everywhere(Transcript { asks_for_usage: true, line_end: LineEnd::CrLf, ..Transcript::of(events) }).await
}

#[tokio::test]
async fn no_usage_at_all_from_a_network_that_cuts_characters_in_two() -> anyhow::Result<()> {
    hang_up_everywhere(Transcript {
        line_end: LineEnd::Cr,
        split_bytes: Some(3),
        ..Transcript::of(vec![ROLE, MOON, BYE, RISES, STOP, DONE])
    })
    .await
}

#[tokio::test]
async fn tool_calls_of_a_model_whose_vocabulary_is_known() -> anyhow::Result<()> {
    let events = vec![
        ROLE,
        plain(
            "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"rise\",\"arguments\":\"\"}}]}}]}\n\n",
            "rise",
        ),
        plain(
            "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"what\\\":\\\"moon\\\"}\"}}]}}]}\n\n",
            "{\"what\":\"moon\"}",
        ),
        STOP,
        DONE,
    ];
    hang_up_everywhere(Transcript { model: "gpt-4o", ..Transcript::of(events) }).await
}

#[tokio::test]
async fn running_usage_beside_content_of_which_the_last_counts() -> anyhow::Result<()> {
    let events = vec![
        // A zero that a provider reports is its figure, not the lack of one.
        reporting(
            "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n",
            "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
            "a",
            (0, 0),
        ),
        reporting(
            "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2},\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"}}]}\n\n",
            "b",
            (7, 2),
        ),
        reporting(
            "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3},\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "",
            (7, 3),
        ),
        DONE,
    ];
    hang_up_everywhere(Transcript::of(events)).await
}

#[tokio::test]
async fn an_embeddings_call_that_is_left_pays_its_counted_inputs() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000").await?;
    let connection = world.database.insert_connection("embed", &world.upstream.base_url(), "demo-embed").await?;
    world.database.insert_route(world.project, "vectors", connection).await?;
    let edge = world.edge().await?;
    let held = Behaviour { hold: true, ..Behaviour::default() };
    world.upstream.script(Script { path: EMBEDDINGS.to_owned(), queue: vec![held], ..Script::default() });
    let input = "a text that is never embedded";
    let asking = tokio::spawn(edge.post(EMBEDDINGS, &json!({ "model": "vectors", "input": input })).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    asking.abort();
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str(), logged.charged_requests), (499, "estimated", 1));
    assert_eq!(logged.charged_tokens, answer_tokens(input));
    edge.stop().await?;
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.day_tokens_held, totals.day_tokens), (0, 0, logged.charged_tokens));
    Ok(())
}

/// A chat as it is on the wire, its client's half of the connection closed behind it.
async fn half_closed(
    edge: &Edge,
    key: &str,
    before_closing: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Vec<u8>> {
    let body = turn(json!({})).to_string();
    let mut socket = TcpStream::connect(edge.address).await?;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await?;
    before_closing.await?;
    socket.shutdown().await?;
    let mut got = Vec::new();
    tokio::time::timeout(testkit::DEADLINE, socket.read_to_end(&mut got)).await??;
    Ok(got)
}

#[tokio::test]
async fn a_client_that_closes_its_half_has_left() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000").await?;
    let edge = world.edge().await?;
    let key = world.key.secret().expose();
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let sent = world.upstream_until(Wait { held: Some(1), ..Wait::default() });
    assert!(half_closed(&edge, key, sent).await?.is_empty());
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str(), logged.charged_tokens), (499, "estimated", turn_tokens()));

    // Closed with the request, wherever the call is by then: whatever was sent upstream is in the log, and nothing is held.
    let calls = (0..32).map(|_| half_closed(&edge, key, std::future::ready(Ok(()))));
    futures::future::try_join_all(calls).await?;
    world.upstream_until(Wait { open: Some(0), ..Wait::default() }).await?;
    until("all is settled", async || {
        let totals = world.database.tier_totals(world.project).await?;
        let sent = i64::try_from(world.upstream.counters().requests)?;
        Ok((totals.open_rows, totals.open_calls, totals.day_tokens_held) == (0, 0, 0) && totals.log_rows >= sent)
    })
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn one_stream_of_a_shared_http2_connection_is_left_alone() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000").await?;
    let edge = world.edge().await?;
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build()?;
    let mut answers = Vec::new();
    for _ in 0..2 {
        world.next_chat(Behaviour {
            content: Some("word ".to_owned()),
            chunks: Some(4),
            hold_after_events: Some(3),
            ..Behaviour::default()
        });
        let request = client.post(edge.url(CHAT)).bearer_auth(world.key.secret().expose());
        answers.push(request.json(&turn(json!({ "stream": true }))).send().await?);
    }
    world.upstream_until(Wait { held: Some(2), ..Wait::default() }).await?;
    let left = answers.remove(0);
    assert_eq!(left.version(), reqwest::Version::HTTP_2);
    drop(left);
    world.upstream_until(Wait { aborted: Some(1), open: Some(1), ..Wait::default() }).await?;
    world.upstream.release(None);
    let (chunks, done) = events(&answers.remove(0).text().await?);
    assert_eq!((content(&chunks), done), ("word ".repeat(4), true));
    let mut ended: Vec<_> = world.logged(2).await?.iter().map(|call| (call.status, call.state.clone())).collect();
    ended.sort();
    assert_eq!(ended, [(200, "final".to_owned()), (499, "estimated".to_owned())]);
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_is_left_before_its_first_event_pays_the_prompt() -> anyhow::Result<()> {
    for commit_after in ["0", "20ms"] {
        let world = World::new().await?;
        let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", commit_after)]).await?;
        world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
        let asking = tokio::spawn(edge.chat(json!({ "stream": true })).send());
        world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
        if commit_after == "0" {
            asking.abort();
        } else {
            // The status is there, and a ping.
            let mut answer = asking.await??;
            answer.chunk().await?;
        }
        world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
        let logged = world.the_logged_call().await?;
        assert_eq!((logged.status, logged.state.as_str(), logged.charged_requests), (499, "estimated", 1));
        assert_eq!(logged.charged_tokens, turn_tokens(), "{commit_after}");
        edge.stop().await?;
    }
    Ok(())
}
