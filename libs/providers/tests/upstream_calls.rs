//! Calls over real sockets: what is sent, what comes back, and every way it can break.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed step fails the test"
)]

#[path = "calls/embeddings.rs"]
mod embeddings;
#[path = "calls/memory.rs"]
mod memory;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ragmux_providers::{
    Answer, Attempts, ChatCall, ChatRequest, ChatStream, Connection, Destination, HttpOptions, Outgoing, Providers,
    UpstreamError, Waited,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, timeout};
use wire::{DEADLINE, KEY, Step, Wire, answer, chunk, connection_to, options, providers, stream_end, stream_head};

const WORD: &str = "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hé\"}}]}\n\n";
const STOP: &str = "data: {\"model\":\"real\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str =
    "data: {\"model\":\"real\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const CHAT_ANSWER: &str = r#"{"model":"real","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;

fn call(stream: bool) -> ChatCall {
    let body = format!(r#"{{"model":"asked","stream":{stream},"messages":[{{"role":"user","content":"q"}}]}}"#);
    let outgoing = Outgoing { model: "real", public_model: "asked", ..Outgoing::default() };
    ChatRequest::parse(body.as_bytes()).unwrap().call(&outgoing)
}

fn attempts() -> Attempts {
    Attempts::until(Instant::now() + DEADLINE)
}

/// Sends a call to the only place it may go.
async fn chat(
    providers: &Providers,
    connection: &Connection,
    call: &ChatCall,
    attempts: &mut Attempts,
) -> Result<Answer, UpstreamError> {
    let only = [Destination { connection: Arc::new(connection.clone()), group: 0 }];
    providers.chat(&only, &mut |_| Ok(call.clone()), attempts).await
}

async fn fails(wire: &Wire, providers: &Providers, stream: bool) -> (UpstreamError, u32) {
    let mut attempts = attempts();
    let error = chat(providers, &wire.connection(), &call(stream), &mut attempts).await.unwrap_err();
    (error, attempts.made())
}

async fn stream(wire: &Wire, providers: &Providers) -> ChatStream {
    match chat(providers, &wire.connection(), &call(true), &mut attempts()).await.unwrap() {
        Answer::Stream(stream) => *stream,
        Answer::Json(_) => panic!("not a stream"),
    }
}

async fn rest(stream: &mut ChatStream) -> (String, Result<(), UpstreamError>) {
    let mut bytes = Vec::new();
    loop {
        match timeout(DEADLINE, stream.next()).await.expect("the stream stalls") {
            Ok(Some(more)) => bytes.extend_from_slice(&more),
            Ok(None) => return (String::from_utf8(bytes).unwrap(), Ok(())),
            Err(error) => return (String::from_utf8(bytes).unwrap(), Err(error)),
        }
    }
}

#[tokio::test]
async fn a_whole_answer_comes_back_under_the_public_name() {
    let wire = Wire::start(vec![answer("200 OK", "", CHAT_ANSWER)]).await;
    let mut attempts = attempts();
    let got = chat(&providers(), &wire.connection(), &call(false), &mut attempts).await.unwrap();
    let Answer::Json(got) = got else { panic!("a stream") };
    assert_eq!(got.body, CHAT_ANSWER.replace("real", "asked"));
    assert_eq!(got.usage.unwrap().prompt_tokens, 5);
    assert_eq!(attempts.made(), 1);

    let sent = wire.requests().remove(0);
    let lower = sent.to_ascii_lowercase();
    assert!(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert!(sent.ends_with(r#"{"model":"real","stream":false,"messages":[{"role":"user","content":"q"}]}"#));
    for header in [
        format!("authorization: bearer {KEY}\r\n"),
        format!("user-agent: ragmux/{}\r\n", env!("CARGO_PKG_VERSION")),
        "accept-encoding: identity\r\n".to_owned(),
        "content-type: application/json\r\n".to_owned(),
    ] {
        assert!(lower.contains(&header), "{header} is not in {sent}");
    }
}

#[tokio::test]
async fn a_stream_is_passed_on_event_by_event_however_the_network_cuts_it() {
    let text = [WORD, STOP, USAGE, DONE].concat();
    let (head, tail) = text.as_bytes().split_at(WORD.find('é').unwrap() + 1);
    let script = vec![stream_head(), chunk(head), Step::Hold, chunk(tail), stream_end()];
    let wire = Wire::start(vec![script]).await;
    let providers = providers();
    let connection = wire.connection();
    let (call, mut attempts) = (call(true), attempts());
    let chat = chat(&providers, &connection, &call, &mut attempts);
    tokio::pin!(chat);
    while wire.requests().is_empty() {
        assert!(timeout(Duration::from_millis(5), &mut chat).await.is_err(), "half an event was taken for one");
    }
    wire.go();
    let Answer::Stream(mut stream) = chat.await.unwrap() else { panic!("not a stream") };
    let (got, result) = rest(&mut stream).await;
    result.unwrap();
    assert_eq!(got, [WORD, STOP, DONE].concat().replace("real", "asked"));
    let outcome = stream.outcome();
    assert_eq!((outcome.usage.unwrap().prompt_tokens, outcome.complete), (5, true));
    assert_eq!(outcome.delivered.text(), "hé");
}

#[tokio::test]
async fn a_wait_for_the_next_event_can_be_given_up_and_taken_up_again() {
    let script = vec![stream_head(), chunk(WORD.as_bytes()), Step::Hold, chunk(STOP.as_bytes()), stream_end()];
    let wire = Wire::start(vec![script]).await;
    let providers = providers();
    let mut stream = stream(&wire, &providers).await;
    let first = stream.next().await.unwrap().unwrap();
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(5), stream.next()).await.is_err());
    }
    wire.go();
    let (second, result) = rest(&mut stream).await;
    result.unwrap();
    assert_eq!([first, Bytes::from(second)].concat(), [WORD, STOP].concat().replace("real", "asked").as_bytes());
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_an_error_after_what_was_delivered() {
    for end in [vec![], vec![stream_end()]] {
        let script = [vec![stream_head(), chunk(WORD.as_bytes()), chunk(b"data: {\"half")], end].concat();
        let wire = Wire::start(vec![script]).await;
        let providers = providers();
        let mut stream = stream(&wire, &providers).await;
        let (got, result) = rest(&mut stream).await;
        assert_eq!(got, WORD.replace("real", "asked"));
        assert!(matches!(result, Err(UpstreamError::Truncated)), "{result:?}");
        assert!(!stream.outcome().complete);
        assert!(stream.next().await.unwrap().is_none(), "after its error a stream is over");
    }
}

#[tokio::test]
async fn a_connection_lost_after_the_whole_answer_does_not_spoil_it() {
    let script = vec![stream_head(), chunk([WORD, STOP, DONE].concat().as_bytes())];
    let wire = Wire::start(vec![script]).await;
    let providers = providers();
    let (got, result) = rest(&mut stream(&wire, &providers).await).await;
    result.unwrap();
    assert_eq!(got, [WORD, STOP, DONE].concat().replace("real", "asked"));
}

#[tokio::test]
async fn without_done_an_answer_is_whole_only_if_its_body_ended_in_order() {
    for (end, whole) in [(vec![stream_end()], true), (vec![], false)] {
        let script = [vec![stream_head(), chunk([WORD, STOP].concat().as_bytes())], end].concat();
        let wire = Wire::start(vec![script]).await;
        let providers = providers();
        let (got, result) = rest(&mut stream(&wire, &providers).await).await;
        assert_eq!(got, [WORD, STOP].concat().replace("real", "asked"));
        assert_eq!(result.is_ok(), whole, "{result:?}");
    }
}

#[tokio::test]
async fn a_provider_that_never_closes_a_finished_stream_is_not_waited_for() {
    let script = vec![stream_head(), chunk([STOP, DONE].concat().as_bytes()), Step::AwaitClose];
    let wire = Wire::start(vec![script]).await;
    let providers = providers();
    let (got, result) = rest(&mut stream(&wire, &providers).await).await;
    result.unwrap();
    assert_eq!(got, [STOP, DONE].concat().replace("real", "asked"));
    wire.client_closed().await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_before_its_first_event_is_an_error_and_is_not_sent_again() {
    let cut_head = vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-".to_vec())];
    let cut_json = vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"model\"".to_vec())];
    let only_comment = vec![stream_head(), chunk(b": thinking\n\n"), stream_end()];
    for (script, streamed, code) in [
        (cut_head, false, "upstream_unreachable"),
        (cut_json, false, "upstream_truncated"),
        (only_comment, true, "upstream_truncated"),
    ] {
        let wire = Wire::start(vec![script]).await;
        let (error, made) = fails(&wire, &providers(), streamed).await;
        assert_eq!((error.status(), error.code(), made), (502, Some(code), 1));
    }
}

#[tokio::test]
async fn an_error_inside_a_stream_is_one_before_the_first_event_and_an_end_after_it() {
    let error = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    let wire = Wire::start(vec![
        vec![stream_head(), chunk(error.as_bytes()), stream_end()],
        vec![stream_head(), chunk([WORD, error].concat().as_bytes()), stream_end()],
    ])
    .await;
    let providers = providers();
    let (failed, made) = fails(&wire, &providers, true).await;
    assert_eq!((failed.status(), failed.message(), made), (502, "out of memory".to_owned(), 1));
    let (got, result) = rest(&mut stream(&wire, &providers).await).await;
    assert_eq!((got, result.unwrap_err().message()), (WORD.replace("real", "asked"), "out of memory".to_owned()));
}

#[tokio::test]
async fn a_busy_provider_is_asked_again_three_times_at_most() {
    let busy = || answer("503 Service Unavailable", "retry-after: 0\r\n", r#"{"error":{"message":"busy"}}"#);
    let wire = Wire::start(vec![busy(), answer("200 OK", "", CHAT_ANSWER), busy(), busy(), busy()]).await;
    let providers = providers();
    let mut twice = attempts();
    chat(&providers, &wire.connection(), &call(false), &mut twice).await.unwrap();
    assert_eq!(twice.made(), 2);
    let (error, made) = fails(&wire, &providers, false).await;
    assert_eq!((error.status(), error.message(), made), (503, "busy".to_owned(), 3));
    assert_eq!(wire.requests().len(), 5);
}

#[tokio::test]
async fn what_asking_again_cannot_mend_is_asked_once() {
    for (status, body, told, message) in [
        ("429 Too Many Requests", r#"{"error":{"message":"pay","code":"insufficient_quota"}}"#, 429, "pay"),
        ("400 Bad Request", r#"{"error":{"message":"bad key own-credential-text"}}"#, 400, "bad key [redacted]"),
        ("401 Unauthorized", "{}", 502, "the provider does not accept the connection's credential"),
        ("500 Internal Server Error", "<html>", 502, "the provider failed"),
        ("404 Not Found\r\ncontent-encoding: gzip", "\u{1f}", 404, "the provider refused the request"),
        ("302 Found", "", 502, "the provider's answer cannot be used: its status is neither success nor an error"),
        ("200 OK", "no json", 502, "the provider's answer cannot be used: it is not a JSON object"),
    ] {
        let wire = Wire::start(vec![answer(status, "", body)]).await;
        let (error, made) = fails(&wire, &providers(), false).await;
        assert_eq!((error.status(), error.message().as_str(), made), (told, message, 1), "{status}");
    }
}

#[tokio::test]
async fn a_provider_that_asks_for_a_long_wait_is_not_waited_for() {
    let wire = Wire::start(vec![answer("429 Too Many Requests", "retry-after: 60\r\n", "{}")]).await;
    let (error, made) = fails(&wire, &providers(), false).await;
    assert_eq!((error.retry_after(), made), (Some(Duration::from_secs(60)), 1));
}

#[tokio::test]
async fn a_port_nobody_listens_on_is_tried_three_times() {
    let wire = Wire::start(vec![]).await;
    let connection = wire.connection();
    drop(wire);
    let mut attempts = attempts();
    let error = chat(&providers(), &connection, &call(false), &mut attempts).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Connect(_)), "{error:?}");
    assert_eq!((error.status(), attempts.made()), (502, 3));
    assert_eq!(error.message(), "the provider cannot be reached", "the client learns no address");
}

#[tokio::test]
async fn private_addresses_are_not_called_unless_the_installation_says_so() {
    let wire = Wire::start(vec![answer("200 OK", "", CHAT_ANSWER)]).await;
    let closed = Providers::new(HttpOptions::default()).unwrap();
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        let connection = connection_to(&format!("http://{host}:{}/v1", wire.port));
        let error = chat(&closed, &connection, &call(false), &mut attempts()).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Refused(_)), "{host}: {error:?}");
        assert_eq!(error.status(), 502);
    }
    assert!(wire.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_elsewhere_or_to_plain_http_is_not_followed() {
    for to in ["http://127.0.0.1:1/v1/chat/completions", "https://elsewhere.example/v1/chat/completions"] {
        let wire = Wire::start(vec![answer("307 Temporary Redirect", &format!("location: {to}\r\n"), "")]).await;
        let (error, made) = fails(&wire, &providers(), false).await;
        assert!(matches!(error, UpstreamError::BadAnswer(_)), "{error:?}");
        assert_eq!(made, 1);
    }
}

#[tokio::test]
async fn every_wait_has_an_end_and_is_not_started_over() {
    let short = Duration::from_millis(50);
    let silent = || vec![Step::AwaitClose];
    let wire =
        Wire::start(vec![silent(), silent(), vec![stream_head(), chunk(WORD.as_bytes()), Step::AwaitClose]]).await;
    let slow_head = Providers::new(HttpOptions { header_timeout: short, ..options() }).unwrap();
    let (error, made) = fails(&wire, &slow_head, false).await;
    assert!(matches!(error, UpstreamError::Timeout(Waited::Headers)), "{error:?}");
    assert_eq!((error.status(), made), (504, 1));

    let mut attempts = Attempts::until(Instant::now() + short);
    let error = chat(&providers(), &wire.connection(), &call(false), &mut attempts).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Timeout(Waited::Total)), "{error:?}");

    let idle = Providers::new(HttpOptions { idle_timeout: short, ..options() }).unwrap();
    let mut stalled = stream(&wire, &idle).await;
    let (got, result) = rest(&mut stalled).await;
    assert_eq!(got, WORD.replace("real", "asked"));
    assert!(matches!(result, Err(UpstreamError::Timeout(Waited::Idle))), "{result:?}");
}

#[tokio::test]
async fn a_stream_ends_at_its_longest_time_and_at_its_most_bytes() {
    let script = || vec![stream_head(), chunk(WORD.as_bytes()), Step::Hold, chunk(STOP.as_bytes()), Step::AwaitClose];
    let wire = Wire::start(vec![script(), script()]).await;
    let bounded = HttpOptions { stream_max_bytes: WORD.len() as u64, ..options() };
    let mut stream_of_bytes = stream(&wire, &Providers::new(bounded).unwrap()).await;
    wire.go();
    let (_, result) = rest(&mut stream_of_bytes).await;
    assert!(matches!(result, Err(UpstreamError::TooLarge { limit_bytes }) if limit_bytes == WORD.len() as u64));
    drop(stream_of_bytes);
    wire.client_closed().await;

    let timed = HttpOptions { stream_max_duration: Duration::from_millis(50), ..options() };
    let mut stream_of_time = stream(&wire, &Providers::new(timed).unwrap()).await;
    let (_, result) = rest(&mut stream_of_time).await;
    assert!(matches!(result, Err(UpstreamError::Timeout(Waited::Total))), "{result:?}");
}

#[tokio::test]
async fn a_stream_ends_in_time_however_much_the_provider_has_to_say() {
    let wire = Wire::start(vec![vec![stream_head(), chunk(WORD.as_bytes()), Step::Endless(WORD)]]).await;
    let timed = HttpOptions { stream_max_duration: Duration::from_millis(50), ..options() };
    let mut endless = stream(&wire, &Providers::new(timed).unwrap()).await;
    let (_, result) = rest(&mut endless).await;
    assert!(matches!(result, Err(UpstreamError::Timeout(Waited::Total))), "{result:?}");
}

#[tokio::test]
async fn the_time_of_a_stream_begins_with_its_call() {
    let wire = Wire::start(vec![vec![stream_head(), chunk(WORD.as_bytes()), Step::AwaitClose]]).await;
    let mut attempts = Attempts::until(Instant::now() + Duration::from_millis(300));
    let answer = chat(&providers(), &wire.connection(), &call(true), &mut attempts).await.unwrap();
    let Answer::Stream(mut silent) = answer else { panic!("not a stream") };
    let (_, result) = rest(&mut silent).await;
    assert!(matches!(result, Err(UpstreamError::Timeout(Waited::Total))), "{result:?}");
}

#[tokio::test]
async fn dropping_a_stream_or_a_waiting_call_cancels_it_at_the_provider() {
    let wire =
        Wire::start(vec![vec![stream_head(), chunk(WORD.as_bytes()), Step::AwaitClose], vec![Step::AwaitClose]]).await;
    let providers = providers();
    drop(stream(&wire, &providers).await);
    wire.client_closed().await;
    let connection = wire.connection();
    let (call, mut attempts) = (call(false), attempts());
    {
        let waiting = chat(&providers, &connection, &call, &mut attempts);
        tokio::pin!(waiting);
        while wire.requests().len() < 2 {
            assert!(timeout(Duration::from_millis(5), &mut waiting).await.is_err());
        }
    }
    wire.client_closed().await;
}

#[tokio::test]
async fn an_answer_in_a_form_nobody_asked_for_is_refused() {
    let wire = Wire::start(vec![
        answer("200 OK", "content-encoding: gzip\r\n", CHAT_ANSWER),
        answer("200 OK", "", CHAT_ANSWER),
        answer("200 OK", "", r#"{"error":{"message":"no such model","code":404}}"#),
    ])
    .await;
    let providers = providers();
    assert!(matches!(fails(&wire, &providers, false).await.0, UpstreamError::BadAnswer(_)));
    assert!(matches!(fails(&wire, &providers, true).await.0, UpstreamError::BadAnswer("it is not a stream")));
    let (error, _) = fails(&wire, &providers, true).await;
    assert_eq!((error.status(), error.message()), (404, "no such model".to_owned()));
}

#[tokio::test]
async fn calls_can_be_served_by_tasks_that_move_between_threads() {
    let wire = Wire::start(vec![vec![stream_head(), chunk([STOP, DONE].concat().as_bytes()), stream_end()]]).await;
    let (providers, connection) = (providers(), wire.connection());
    let task = tokio::spawn(async move {
        let body = Bytes::from_static(br#"{"stream":true,"messages":[{"role":"user","content":"q"}]}"#);
        let request = ChatRequest::parse(&body).unwrap();
        let call = request.call(&Outgoing { model: &connection.model, public_model: "asked", ..Outgoing::default() });
        let answer = chat(&providers, &connection, &call, &mut attempts()).await.unwrap();
        let Answer::Stream(mut stream) = answer else { panic!("not a stream") };
        assert_eq!(request.messages.len(), 1);
        rest(&mut stream).await.1
    });
    timeout(DEADLINE, task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn no_texts_need_no_call() {
    let connection = connection_to("http://127.0.0.1:1/v1");
    let got = providers().embed(&connection, &[], None, &mut attempts()).await.unwrap();
    assert!(got.vectors.is_empty() && got.usage.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_come_about_is_given_up_after_15_seconds() {
    // A server whose queue is full answers no more: its system drops what else would come in.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let _queue = [std::net::TcpStream::connect(address).unwrap(), std::net::TcpStream::connect(address).unwrap()];
    let connection = connection_to(&format!("http://{address}/v1"));
    // So little longer that there is no time for a second attempt.
    let limit = Duration::from_secs(15);
    let (begun, providers) = (Instant::now(), providers());
    let mut attempts = Attempts::until(begun + limit + Duration::from_millis(100));
    // Nothing else happens, so the clock of the test goes from one deadline to the next.
    let error = chat(&providers, &connection, &call(true), &mut attempts).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Connect(_)), "{error:?}");
    assert_eq!((begun.elapsed().as_secs(), attempts.made()), (limit.as_secs(), 1));
}

#[tokio::test]
async fn small_pieces_do_not_wait_for_a_packet_to_fill() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (connection, providers) =
        (connection_to(&format!("http://{}/v1", listener.local_addr().unwrap())), providers());
    let calling = tokio::spawn(async move {
        let _ = chat(&providers, &connection, &call(true), &mut attempts()).await;
    });
    let (mut accepted, peer) = listener.accept().await.unwrap();
    // The request is sent when the socket is as it is to be.
    accepted.read_u8().await.unwrap();
    assert!(own_socket(peer).nodelay().unwrap());
    calling.abort();
}

/// Another handle of the socket of this process that has the address.
fn own_socket(address: SocketAddr) -> std::net::TcpStream {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
            // What has been closed since it was listed has no handle.
            Some(std::net::TcpStream::from(pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?))
        })
        .find(|socket| socket.local_addr().is_ok_and(|own| own == address))
        .expect("the process cannot look at its own socket")
}
