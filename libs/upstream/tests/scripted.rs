//! Scripts: what they do to calls, and what is seen of calls.
#![allow(clippy::unwrap_used, reason = "part of tests")]

mod client;

use std::time::Duration;

use client::{Client, events, question, streamed};
use domain::Secret;
use futures::StreamExt;
use ragmux_upstream::{
    Behaviour, Counters, Figures, LineEnd, Log, Options, Outcome, Raw, ReportUsage, Script, ScriptedError, Wait,
};
use serde_json::{Value, json};

async fn json(response: reqwest::Response) -> Value {
    response.json().await.unwrap()
}

fn pieces(chunks: usize, content: &str) -> Behaviour {
    Behaviour { chunks: Some(chunks), content: Some(content.to_owned()), ..Behaviour::default() }
}

#[tokio::test]
async fn queued_behaviours_are_met_once_and_then_the_default() {
    let client = Client::scripted().await;
    client.upstream.script(Script {
        path: "/v1/chat/completions".to_owned(),
        queue: vec![pieces(1, "first"), pieces(1, "second")],
        default: Some(pieces(1, "later")),
    });
    client.upstream.script(Script { path: "*".to_owned(), queue: vec![pieces(1, "elsewhere")], default: None });
    for expected in ["first", "second", "later", "later"] {
        let answer = json(client.chat(&question("?")).await).await;
        assert_eq!(answer["choices"][0]["message"]["content"], expected);
    }
}

#[tokio::test]
async fn two_calls_at_once_meet_one_behaviour_each() {
    let client = Client::scripted().await;
    client.next((0..20).map(|n| pieces(1, &n.to_string())));
    let body = question("?");
    let calls =
        (0..20).map(|_| async { json(client.chat(&body).await).await["choices"][0]["message"]["content"].clone() });
    let mut seen: Vec<u64> = futures::future::join_all(calls)
        .await
        .iter()
        .map(|content| content.as_str().unwrap().parse().unwrap())
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn errors_have_their_status_type_and_header() {
    let client = Client::scripted().await;
    client.next(
        [
            ScriptedError {
                retry_after: Some("7".to_owned()),
                code: Some("slow_down".to_owned()),
                ..ScriptedError::status(429)
            },
            ScriptedError::status(500),
            ScriptedError {
                message: "No.".to_owned(),
                r#type: Some("own_type".to_owned()),
                ..ScriptedError::status(401)
            },
        ]
        .map(|error| Behaviour { error: Some(error), ..Behaviour::default() }),
    );
    let limited = client.chat(&streamed("?")).await;
    assert_eq!(limited.status(), 429);
    assert_eq!(limited.headers()["retry-after"], "7");
    let error = json(limited).await["error"].clone();
    assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some("rate_limit_exceeded"), Some("slow_down")));
    let failed = client.chat(&question("?")).await;
    assert_eq!(failed.status(), 500);
    assert_eq!(json(failed).await["error"]["type"], "server_error");
    let refused = client.chat(&question("?")).await;
    assert_eq!(refused.status(), 401);
    assert_eq!(json(refused).await["error"]["message"], "No.");
    assert_eq!(client.chat(&question("?")).await.status(), 200);
}

#[tokio::test]
async fn a_held_call_waits_for_its_release() {
    let client = Client::scripted().await;
    client.next([Behaviour { hold: true, ..pieces(1, "at last") }, Behaviour { hold: true, ..pieces(1, "after it") }]);
    let http = client.http.clone();
    let url = client.url("/v1/chat/completions");
    let start = || tokio::spawn(http.post(&url).json(&question("?")).send());
    let first = start();
    client.wait(Wait { held: Some(1), ..Wait::default() }).await;
    let second = start();
    let counters = client.wait(Wait { held: Some(2), ..Wait::default() }).await;
    assert_eq!((counters.requests, counters.open, counters.finished), (2, 2, 0));
    assert!(!first.is_finished() && !second.is_finished());
    client.upstream.release(Some(1));
    let answer = json(first.await.unwrap().unwrap()).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "at last");
    assert!(!second.is_finished());
    client.upstream.release(None);
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
    client.wait(Wait { finished: Some(2), open: Some(0), ..Wait::default() }).await;
}

#[tokio::test]
async fn a_stream_can_be_held_in_its_middle() {
    let client = Client::scripted().await;
    client.next([Behaviour { hold_after_events: Some(3), ..pieces(4, "x") }]);
    let mut stream = client.chat(&streamed("?")).await.bytes_stream();
    let mut read = Vec::new();
    while String::from_utf8_lossy(&read).matches("\n\n").count() < 3 {
        read.extend_from_slice(&stream.next().await.unwrap().unwrap());
    }
    client.wait(Wait { held: Some(1), ..Wait::default() }).await;
    assert_eq!(String::from_utf8_lossy(&read).matches("\"content\":\"x\"").count(), 2);
    client.upstream.release(None);
    while let Some(bytes) = stream.next().await {
        read.extend_from_slice(&bytes.unwrap());
    }
    let text = String::from_utf8(read).unwrap();
    assert_eq!(text.matches("\"content\":\"x\"").count(), 4);
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_call_that_hangs_ends_with_its_client() {
    let client = Client::scripted().await;
    client.next([Behaviour { hang: true, ..Behaviour::default() }]);
    let call = tokio::spawn(client.http.post(client.url("/v1/chat/completions")).json(&question("?")).send());
    client.wait(Wait { open: Some(1), ..Wait::default() }).await;
    call.abort();
    let counters = client.wait(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await;
    assert_eq!(counters.finished, 1);
    let seen = client.upstream.log(0).calls;
    assert_eq!((seen[0].end, seen[0].status), (Some(Outcome::Aborted), None));
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_is_noticed() {
    let client = Client::scripted().await;
    client.next([Behaviour { stay_open: true, ..pieces(2, "x") }]);
    let mut stream = client.chat(&streamed("?")).await.bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: "));
    client.wait(Wait { open: Some(1), ..Wait::default() }).await;
    drop(stream);
    client.wait(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await;
    let seen = client.upstream.log(0).calls;
    assert_eq!((seen[0].end, seen[0].status), (Some(Outcome::Aborted), Some(200)));
    assert!(seen[0].bytes_sent >= first.len() as u64);
}

#[tokio::test]
async fn pieces_usage_and_ends_are_as_told() {
    let client = Client::scripted().await;
    let figures = Figures { prompt_tokens: 1000, completion_tokens: 7, cached_tokens: 512, reasoning_tokens: 3 };
    client.next([
        pieces(5, " ab"),
        Behaviour { usage: ReportUsage::Always, figures: Some(figures), ..pieces(2, "x") },
        Behaviour { usage: ReportUsage::Never, ..pieces(2, "x") },
        Behaviour { omit_done: true, finish_reason: Some("content_filter".to_owned()), ..pieces(1, "x") },
        Behaviour { content: Some("three little words".to_owned()), ..Behaviour::default() },
    ]);
    let mut asks = streamed("?");
    asks["stream_options"] = json!({ "include_usage": true });

    let stream = events(&client.chat(&asks).await.text().await.unwrap());
    assert_eq!(stream.len(), 1 + 5 + 3);
    let usage: Value = serde_json::from_str(&stream[7]).unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 5);

    let stream = events(&client.chat(&streamed("?")).await.text().await.unwrap());
    let usage: Value = serde_json::from_str(&stream[stream.len() - 2]).unwrap();
    assert_eq!(usage["usage"]["total_tokens"], 1007);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 512);
    assert_eq!(usage["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);

    assert!(!client.chat(&asks).await.text().await.unwrap().contains("usage"));

    let stream = client.chat(&streamed("?")).await.text().await.unwrap();
    assert!(!stream.contains("[DONE]") && stream.contains("\"finish_reason\":\"content_filter\""));

    let stream = client.chat(&streamed("?")).await.text().await.unwrap();
    assert!(stream.contains("\" little\""));
}

#[tokio::test]
async fn bytes_arrive_whatever_their_pieces_and_line_ends() {
    let client = Client::scripted().await;
    let plain = pieces(6, "é");
    client.next([
        plain.clone(),
        Behaviour { split_bytes: Some(3), ..plain.clone() },
        Behaviour { line_end: LineEnd::CrLf, split_bytes: Some(1), ..plain.clone() },
        Behaviour { line_end: LineEnd::Cr, ..plain.clone() },
        Behaviour { between_events_ms: 1, first_byte_ms: 1, ..plain },
    ]);
    let mut texts = Vec::new();
    for _ in 0..5 {
        let text = client.chat(&streamed("?")).await.text().await.unwrap();
        // Ids and times differ from call to call.
        let kept: Vec<String> = text.split("chatcmpl-").map(|part| part.chars().skip(24).collect()).collect();
        let kept =
            kept.join("").split("\"created\":").map(|part| part[part.len().min(10)..].to_owned()).collect::<String>();
        texts.push(kept);
    }
    assert_eq!(texts[1], texts[0]);
    assert_eq!(texts[2], texts[0].replace('\n', "\r\n"));
    assert_eq!(texts[3], texts[0].replace('\n', "\r"));
    assert_eq!(texts[4], texts[0]);
}

#[tokio::test]
async fn a_connection_is_cut_where_told() {
    let client = Client::scripted().await;
    client.next([
        Behaviour { cut_after_bytes: Some(20), ..pieces(3, "x") },
        Behaviour { cut_after_events: Some(2), ..pieces(3, "x") },
        Behaviour { cut_after_bytes: Some(20), ..pieces(3, "x") },
        Behaviour { close: true, ..Behaviour::default() },
    ]);
    let mut received = Vec::new();
    for body in [streamed("?"), streamed("?"), question("?")] {
        let mut stream = client.chat(&body).await.bytes_stream();
        let mut bytes = Vec::new();
        loop {
            match stream.next().await {
                Some(Ok(more)) => bytes.extend_from_slice(&more),
                Some(Err(_)) => break,
                None => panic!("the answer ended as if it were whole"),
            }
        }
        received.push(String::from_utf8(bytes).unwrap());
    }
    assert_eq!((received[0].len(), received[2].len()), (20, 20));
    assert_eq!(received[1].matches("\n\n").count(), 2);
    let closed = client.post("/v1/chat/completions", &question("?")).await;
    assert!(closed.unwrap_err().is_request());
    client.wait(Wait { finished: Some(4), open: Some(0), ..Wait::default() }).await;
    let log = client.upstream.log(0);
    assert!(log.calls.iter().all(|call| call.end == Some(Outcome::Cut)), "{:?}", log.calls);
    assert_eq!(log.counters.aborted, 0);
}

#[tokio::test]
async fn any_body_can_be_sent_on_any_path() {
    let client = Client::scripted().await;
    let raw = |status, content_type: &str, body: &str| Behaviour {
        raw: Some(Raw { status, content_type: content_type.to_owned(), body: body.to_owned() }),
        headers: [("x-own".to_owned(), "yes".to_owned())].into(),
        ..Behaviour::default()
    };
    let transcript = "event: a\ndata: 1\n\n: note\n\ndata: 2\r\n\r\ndata: cut off";
    client.next([raw(529, "application/json", "{\"type\":\"error\"}"), raw(200, "text/event-stream", transcript)]);
    let overloaded = client.post("/v1/elsewhere", &json!({})).await.unwrap();
    assert_eq!((overloaded.status().as_u16(), &overloaded.headers()["x-own"]), (529, &"yes".parse().unwrap()));
    assert_eq!(overloaded.text().await.unwrap(), "{\"type\":\"error\"}");
    let stream = client.post("/v1/elsewhere", &json!({ "stream": true })).await.unwrap();
    assert_eq!(stream.text().await.unwrap(), transcript);
    assert_eq!(client.post("/v1/elsewhere", &json!({})).await.unwrap().status(), 404);
}

#[tokio::test]
async fn the_log_shows_calls_and_no_keys() {
    let options = Options { api_keys: vec![Secret::new("sk-one"), Secret::new("sk-two")], ..Options::scripted() };
    let client = Client::of(options).await;
    let body = json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "hi" }], "stream": true });
    let call =
        client.http.post(client.url("/v1/chat/completions?beta=1")).bearer_auth("sk-two").header("X-Tag", "blue");
    call.json(&body).send().await.unwrap().text().await.unwrap();
    client.get("/v1/models").await;
    client.wait(Wait { finished: Some(2), ..Wait::default() }).await;

    let text = client.get("/script/log").await.text().await.unwrap();
    assert!(!text.contains("sk-two"));
    let log: Log = serde_json::from_str(&text).unwrap();
    let call = &log.calls[0];
    assert_eq!(
        (call.method.as_str(), call.path.as_str(), call.query.as_deref()),
        ("POST", "/v1/chat/completions", Some("beta=1"))
    );
    assert_eq!((call.key, call.model.as_deref(), call.stream), (Some(1), Some("gpt-4o"), true));
    assert_eq!((&call.body, call.headers["x-tag"].as_str()), (&body, "blue"));
    assert_eq!((call.headers["authorization"].as_str(), call.end), ("redacted", Some(Outcome::Answered)));
    assert!(call.bytes_sent > 0 && call.at_ms > 0);
    assert_eq!((log.calls[1].key, log.calls[1].status), (None, Some(401)));
    assert_eq!(log.counters.requests, 2);

    let later: Log = client.get(&format!("/script/log?after={}", call.id)).await.json().await.unwrap();
    assert_eq!(later.calls, log.calls[1..]);
    assert_eq!(client.get("/script/log?after=x").await.status(), 400);
}

#[tokio::test]
async fn the_log_keeps_the_newest_and_the_counters_all() {
    let client = Client::of(Options { log_calls: 2, ..Options::scripted() }).await;
    for _ in 0..5 {
        client.get("/v1/models").await;
    }
    let counters = client.wait(Wait { finished: Some(5), ..Wait::default() }).await;
    assert_eq!((counters.requests, counters.open), (5, 0));
    assert_eq!(client.upstream.log(0).calls.iter().map(|call| call.id).collect::<Vec<_>>(), [4, 5]);
}

#[tokio::test]
async fn everything_is_reached_over_http() {
    let client = Client::scripted().await;
    let script = Script {
        path: "/v1/embeddings".to_owned(),
        queue: Vec::new(),
        default: Some(Behaviour { hold: true, ..Behaviour::default() }),
    };
    assert_eq!(client.post("/script", &serde_json::to_value(script).unwrap()).await.unwrap().status(), 200);
    let embed = json!({ "model": "any", "input": "x" });
    let call = tokio::spawn(client.http.post(client.url("/v1/embeddings")).json(&embed).send());
    let counters: Counters = client.post("/script/wait", &json!({ "held": 1 })).await.unwrap().json().await.unwrap();
    assert_eq!((counters.held, counters.open), (1, 1));
    assert_eq!(client.post("/script/wait", &json!({ "held": 2, "timeout_ms": 1 })).await.unwrap().status(), 408);
    assert_eq!(client.http.post(client.url("/script/release")).send().await.unwrap().status(), 200);
    assert_eq!(call.await.unwrap().unwrap().status(), 200);

    assert_eq!(client.http.delete(client.url("/script")).send().await.unwrap().status(), 200);
    let counters: Counters = client.get("/script/counters").await.json().await.unwrap();
    assert_eq!((counters.requests, counters.held), (0, 0));
    assert_eq!(client.post("/v1/embeddings", &embed).await.unwrap().status(), 200);

    for (path, body) in [
        ("/script", json!({ "path": "*", "quee": [] })),
        ("/script", json!({ "path": "no-slash" })),
        ("/script", json!({ "path": "*", "default": { "hang": "yes" } })),
        ("/script/wait", json!({ "held": -1 })),
    ] {
        assert_eq!(client.post(path, &body).await.unwrap().status(), 400, "{path} {body}");
    }
}

#[tokio::test]
async fn clearing_lets_held_calls_go() {
    let client = Client::scripted().await;
    client.next([Behaviour { hold: true, ..Behaviour::default() }]);
    let call = tokio::spawn(client.http.get(client.url("/v1/models")).send());
    client.wait(Wait { held: Some(1), ..Wait::default() }).await;
    client.upstream.clear();
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn stopping_finishes_what_it_can_and_cuts_the_rest() {
    let client = Client::scripted().await;
    client.next([
        Behaviour { hold: true, ..Behaviour::default() },
        Behaviour { stay_open: true, ..pieces(1, "x") },
        Behaviour { hang: true, ..Behaviour::default() },
    ]);
    let start = |body: Value| {
        let call = client.http.post(client.url("/v1/chat/completions")).json(&body).send();
        tokio::spawn(async move { call.await?.text().await })
    };
    let held = start(question("?"));
    client.wait(Wait { held: Some(1), ..Wait::default() }).await;
    let open = start(streamed("?"));
    client.wait(Wait { open: Some(2), ..Wait::default() }).await;
    let hung = start(question("?"));
    client.wait(Wait { open: Some(3), ..Wait::default() }).await;
    let Client { upstream, http } = client;
    let address = upstream.address();
    upstream.release(None);
    upstream.stop(Duration::from_millis(200)).await;
    assert!(held.await.unwrap().unwrap().contains("demonstration model"));
    assert!(open.await.unwrap().is_err());
    assert!(hung.await.unwrap().is_err());
    assert!(http.get(format!("http://{address}/healthz")).send().await.unwrap_err().is_connect());
}
