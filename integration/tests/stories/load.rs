//! Calls that go on whatever happens to the installation, and what the ledger must say of them afterwards.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use testkit::{ApiKey, LoggedCall, ProjectId, Stack};
use tokio::sync::watch;
use tokio::task::JoinSet;
use upstream::{Behaviour, Figures, Raw, Script};

use crate::client;

/// The route, and the model behind it: one name, so that nothing in an answer has to be changed.
const MODEL: &str = "demo-chat";
const PATH: &str = "/v1/chat/completions";

/// Every kind of limit and budget, with more room than a story can use.
const LIMITS: &str = "requests_per_minute = 1000000, tokens_per_minute = 1000000000, tokens_per_day = 1000000000000, \
                      tokens_per_month = 1000000000000, cost_per_day = 1000000000000000, \
                      cost_per_month = 1000000000000000, concurrent_requests = 100000";

/// What each provider call reports, so that each final row is charged the same.
const FIGURES: Figures = Figures { prompt_tokens: 11, completion_tokens: 5, cached_tokens: 0, reasoning_tokens: 0 };
const CHARGED: i64 = 16;

/// The text of a call of the load, whole or streamed.
const TEXT: &str = "word word word word word ";

/// After a failure a caller does not ask again at once.
const PAUSE: Duration = Duration::from_millis(20);

/// Long enough for every story.
const PATIENCE: Duration = Duration::from_secs(300);

/// Who calls: a person whose key and project have every limit, and a project that has none.
pub(crate) struct Payers {
    pub(crate) projects: [ProjectId; 2],
    keys: [ApiKey; 2],
}

impl Payers {
    pub(crate) async fn furnish(stack: &Stack) -> anyhow::Result<Self> {
        let database = &stack.database;
        let connection = database.insert_connection("c", &stack.upstream.base_url(), MODEL).await?;
        database.insert_price(MODEL, 150_000_000, 600_000_000).await?;
        let governed = database.insert_project("governed", LIMITS).await?;
        database.insert_route(governed, MODEL, connection).await?;
        let user = database.insert_user("caller").await?;
        let (id, hot) = database.insert_user_key(user, "hot", &["chat"], &[governed]).await?;
        database.change_key(id, LIMITS).await?;
        let open = database.insert_project("open", "").await?;
        database.insert_route(open, MODEL, connection).await?;
        let (_, free) = database.insert_project_key(open).await?;
        stack.upstream.script(Script { path: PATH.to_owned(), default: Some(short()), ..Script::default() });
        Ok(Self { projects: [governed, open], keys: [hot, free] })
    }

    /// Without the project that has no limits: a call of it does not wait for its row, so an edge that is killed may take
    /// the last of them with it.
    pub(crate) fn only_governed(self) -> Self {
        let [hot, _] = self.keys;
        Self { keys: [hot.clone(), hot], ..self }
    }

    /// The key of every second call is that of the governed person.
    pub(crate) fn key(&self, number: u64) -> &str {
        let [hot, free] = &self.keys;
        if number.is_multiple_of(2) { hot } else { free }.secret().expose()
    }
}

/// An answer of five pieces over some time.
fn short() -> Behaviour {
    Behaviour {
        content: Some("word ".to_owned()),
        chunks: Some(5),
        between_events_ms: 10,
        figures: Some(FIGURES),
        ..Behaviour::default()
    }
}

/// Calls have numbers, by which the provider's and the ledger's view of them are compared.
fn call(http: &reqwest::Client, edge: &str, key: &str, number: u64, streamed: bool) -> RequestBuilder {
    let mut body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": format!("call {number}") }] });
    if streamed {
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
    }
    let request = http.post(format!("{edge}/chat/completions")).bearer_auth(key).timeout(PATIENCE);
    request.header("x-ragmux-tags", format!("call={number}")).json(&body)
}

/// One call with any key, not streamed.
pub(crate) async fn try_once(stack: &Stack, edge: usize, key: &str, number: u64) -> anyhow::Result<End> {
    Ok(made(call(&stack.http, &stack.edge_url(edge)?, key, number, false), false).await)
}

/// Streams that stand still after their second event until the upstream is told to go on.
pub(crate) struct Streams {
    /// The edge, the number, and all that arrives.
    reading: JoinSet<(usize, u64, reqwest::Result<Vec<u8>>)>,
}

/// What such a stream is, byte by byte.
fn transcript() -> String {
    let chunk = |choices: Value, usage: Value| {
        let chunk = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
                            "choices": choices, "usage": usage });
        format!("data: {chunk}\n\n")
    };
    let piece = |delta: Value, reason: Value| {
        chunk(json!([{ "index": 0, "delta": delta, "finish_reason": reason }]), Value::Null)
    };
    let mut body = piece(json!({ "role": "assistant", "content": "" }), Value::Null);
    for word in ["één ", "deux ", "три ", "四 ", "five "] {
        body.push_str(&piece(json!({ "content": word }), Value::Null));
    }
    body.push_str(&piece(json!({}), json!("stop")));
    let usage = json!({ "prompt_tokens": FIGURES.prompt_tokens, "completion_tokens": FIGURES.completion_tokens,
                        "total_tokens": CHARGED });
    body.push_str(&chunk(json!([]), usage));
    body + "data: [DONE]\n\n"
}

impl Streams {
    /// Opens that many, round the edges, with numbers from `first` on.
    pub(crate) async fn open(
        stack: &Stack,
        payers: &Payers,
        edges: usize,
        first: u64,
        count: u64,
    ) -> anyhow::Result<Self> {
        let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body: transcript() };
        let held = Behaviour { hold_after_events: Some(2), raw: Some(raw), ..Behaviour::default() };
        let queue = vec![held; usize::try_from(count)?];
        stack.upstream.script(Script { path: PATH.to_owned(), queue, ..Script::default() });
        let mut opening = JoinSet::new();
        for number in first..first + count {
            let edge = usize::try_from(number)? / 2 % edges;
            let request = call(&stack.http, &stack.edge_url(edge)?, payers.key(number), number, true);
            opening.spawn(async move { anyhow::Ok((number, edge, request.send().await?)) });
        }
        let mut reading = JoinSet::new();
        for opened in opening.join_all().await {
            let (number, edge, answer) = opened?;
            anyhow::ensure!(answer.status() == 200, "stream {number} was answered {}", answer.status());
            reading.spawn(async move { (edge, number, answer.bytes().await.map(Vec::from)) });
        }
        Ok(Self { reading })
    }

    /// How many are still held.
    pub(crate) fn count(&self) -> usize {
        self.reading.len()
    }

    /// Lets that many go on to their end: each is whole, byte for byte.
    pub(crate) async fn finish(&mut self, stack: &Stack, count: usize) -> anyhow::Result<()> {
        stack.upstream.release(Some(count));
        for _ in 0..count {
            let (_, number, read) = self.reading.join_next().await.context("no stream is left")??;
            let read = String::from_utf8(read.with_context(|| format!("stream {number} broke off"))?)?;
            // Nothing is ours but pings, between events.
            let own: String = read.split_inclusive("\n\n").filter(|event| *event != ": ping\n\n").collect();
            assert_eq!(own, transcript(), "stream {number}");
        }
        Ok(())
    }

    /// Waits until that many have broken off, all of one edge.
    pub(crate) async fn break_off(&mut self, edge: usize, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            let (of, number, read) = self.reading.join_next().await.context("no stream is left")??;
            anyhow::ensure!(read.is_err(), "stream {number} ended as if it were whole");
            assert_eq!(of, edge, "stream {number} broke off");
        }
        Ok(())
    }
}

/// How a call of the load ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As it should.
    Whole,
    /// With another status and code, and whether it said when to come back.
    Refused(u16, String, bool),
    /// Without an answer, or in the middle of one.
    Broken,
}

/// A call of the load.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) end: End,
}

/// Callers that call again and again, streamed and not, every edge in turn.
pub(crate) struct Load {
    callers: JoinSet<Vec<Call>>,
    stop: watch::Sender<bool>,
    whole: Arc<AtomicU64>,
}

impl Load {
    /// Lets that many callers loose. Their calls have numbers from `first` on.
    pub(crate) fn start(
        stack: &Stack,
        payers: &Payers,
        edges: usize,
        callers: u64,
        first: u64,
    ) -> anyhow::Result<Self> {
        let urls = (0..edges).map(|edge| stack.edge_url(edge)).collect::<anyhow::Result<Vec<_>>>()?;
        let (next, whole) = (Arc::new(AtomicU64::new(first)), Arc::new(AtomicU64::new(0)));
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (http, urls, keys) =
                (stack.http.clone(), urls.clone(), [payers.key(0), payers.key(1)].map(str::to_owned));
            let (next, whole, stop) = (Arc::clone(&next), Arc::clone(&whole), stop.subscribe());
            tasks.spawn(async move {
                let mut calls = Vec::new();
                while !*stop.borrow() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let place = usize::try_from(number).unwrap_or_default();
                    // Every mix of key, edge and kind comes up.
                    let (key, edge, streamed) = (place % 2, place / 2 % urls.len(), place / 4 % 2 == 0);
                    let end = made(call(&http, &urls[edge], &keys[key], number, streamed), streamed).await;
                    if end == End::Whole {
                        whole.fetch_add(1, Ordering::Relaxed);
                    } else {
                        tokio::time::sleep(PAUSE).await;
                    }
                    calls.push(Call { number, end });
                }
                calls
            });
        }
        Ok(Self { callers: tasks, stop, whole })
    }

    /// Waits until that many more calls have been answered as they should.
    pub(crate) async fn more(&self, calls: u64) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let wanted = self.whole.load(Ordering::Relaxed) + calls;
        testkit::until("calls are answered", || async { Ok(self.whole.load(Ordering::Relaxed) >= wanted) }).await?;
        Ok(began.elapsed())
    }

    /// Ends it when the calls under way are over.
    pub(crate) async fn stop(self) -> Vec<Call> {
        self.stop.send_replace(true);
        self.callers.join_all().await.into_iter().flatten().collect()
    }
}

async fn made(request: RequestBuilder, streamed: bool) -> End {
    let Ok(answer) = request.send().await else { return End::Broken };
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let Ok(text) = answer.text().await else { return End::Broken };
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    if status != 200 {
        let code = body["error"]["code"].as_str().or(body["error"]["type"].as_str()).unwrap_or_default();
        return End::Refused(status, code.to_owned(), headers.contains_key("retry-after"));
    }
    let is_whole = if streamed {
        client::stream_text(&text) == (TEXT.to_owned(), true)
    } else {
        body["choices"][0]["message"]["content"].as_str().map(str::trim_end) == Some(TEXT.trim_end())
    };
    if is_whole { End::Whole } else { End::Broken }
}

/// Waits until the ledger is as it must be when no call is in flight; how long that took.
pub(crate) async fn at_rest(stack: &Stack) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let faults = RefCell::new(Vec::new());
    let rest = testkit::until("the ledger is at rest", || async {
        faults.replace(stack.database.ledger_faults().await?);
        Ok(faults.borrow().is_empty())
    })
    .await;
    rest.with_context(|| format!("it is not: {:#?}", faults.take()))?;
    Ok(began.elapsed())
}

/// The numbers of a project's calls that are in the log.
pub(crate) async fn numbers(stack: &Stack, project: ProjectId) -> anyhow::Result<BTreeSet<u64>> {
    stack.database.logged_calls(project).await?.iter().map(number).collect()
}

fn number(row: &LoggedCall) -> anyhow::Result<u64> {
    let tag = row.tags.as_ref().and_then(|tags| tags["call"].as_str());
    Ok(tag.with_context(|| format!("a row has no number: {row:?}"))?.parse()?)
}

/// The log by the calls' numbers, once the ledger is at rest: every call that the upstream saw has one row, every row has
/// its call, and what ended as it should is charged what was reported.
pub(crate) async fn accounts(
    stack: &Stack,
    payers: &Payers,
    calls: &[Call],
    streams: std::ops::Range<u64>,
) -> anyhow::Result<BTreeMap<u64, LoggedCall>> {
    let mut rows = BTreeMap::new();
    for project in payers.projects {
        for row in stack.database.logged_calls(project).await? {
            let number = number(&row)?;
            let twice = rows.insert(number, row);
            anyhow::ensure!(twice.is_none(), "call {number} has two rows: {twice:?}");
        }
    }
    let made: BTreeMap<u64, &End> = calls.iter().map(|call| (call.number, &call.end)).collect();
    let log = stack.upstream.log(0);
    anyhow::ensure!(log.calls.len() as u64 == log.counters.requests, "the upstream has forgotten calls");
    let seen: BTreeSet<u64> = log
        .calls
        .iter()
        .map(|call| {
            let content = call.body["messages"][0]["content"].as_str().unwrap_or_default();
            Ok(content.trim_start_matches("call ").parse()?)
        })
        .collect::<anyhow::Result<_>>()?;
    for number in &seen {
        anyhow::ensure!(rows.contains_key(number), "call {number} is not in the log, it ended {:?}", made.get(number));
    }
    for (number, row) in &rows {
        anyhow::ensure!(made.contains_key(number) || streams.contains(number), "nobody made call {number}: {row:?}");
        if row.status == 200 {
            assert_eq!(
                (row.state.as_str(), row.charged_requests, row.charged_tokens),
                ("final", 1, CHARGED),
                "{row:?}"
            );
        }
        if !seen.contains(number) && row.error_code.as_deref() != Some("edge_lost") {
            assert_eq!((row.charged_tokens, row.charged_cost), (0, 0), "nothing was sent: {row:?}");
        }
        if made.get(number) == Some(&&End::Whole) {
            anyhow::ensure!(row.status == 200 || row.error_code.as_deref() == Some("edge_lost"), "{row:?}");
        }
    }
    Ok(rows)
}

/// Nobody was told anything but to come back, and that in the words of the API.
pub(crate) fn told_to_come_back(calls: &[Call]) -> usize {
    let refused: Vec<&Call> = calls.iter().filter(|call| call.end != End::Whole).collect();
    for call in &refused {
        assert!(matches!(&call.end, End::Refused(503, _, true)), "{call:?}");
    }
    refused.len()
}
