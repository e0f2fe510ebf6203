use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const NO_TIME: Duration = Duration::from_millis(50);

async fn serve(router: Router, limits: Limits) -> Serving {
    Listener::bind("test", ([127, 0, 0, 1], 0).into()).await.unwrap().serve(router, limits)
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// An HTTP/1 client that shows every byte.
struct Client(TcpStream);

impl Client {
    async fn connect(serving: &Serving) -> Self {
        Self(TcpStream::connect(serving.address()).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn get(&mut self, path: &str) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
    }

    /// Everything up to and including the given text.
    async fn read_to(&mut self, end: &str) -> String {
        let mut seen = Vec::new();
        let read = async {
            while !String::from_utf8_lossy(&seen).contains(end) {
                assert_ne!(self.0.read_buf(&mut seen).await.unwrap(), 0, "closed early");
            }
        };
        timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("no {end:?} came"));
        String::from_utf8(seen).unwrap()
    }

    /// Everything until the server closes the connection.
    async fn read_all(&mut self) -> String {
        let mut seen = Vec::new();
        // A reset is a way to close, too.
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut seen)).await.expect("the connection stays open");
        String::from_utf8(seen).unwrap()
    }
}

type Http2 = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

async fn connect_http2(serving: &Serving) -> (Http2, tokio::task::JoinHandle<hyper::Result<()>>) {
    let io = TokioIo::new(TcpStream::connect(serving.address()).await.unwrap());
    let (client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    (client, tokio::spawn(connection))
}

fn request(path: &str) -> Request<Empty<Bytes>> {
    Request::builder().uri(format!("http://test{path}")).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn both_protocols_are_answered_on_one_port_and_know_their_client() {
    let whose = async |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request<Body>| {
        assert!(request.version() == Version::HTTP_2 || request.version() == Version::HTTP_11);
        format!("{:?} {peer}", request.version())
    };
    let serving = serve(Router::new().route("/", get(whose)), Limits::default()).await;

    let mut client = Client::connect(&serving).await;
    let own = client.0.local_addr().unwrap();
    for _ in 0..2 {
        client.get("/").await;
        client.read_to(&format!("HTTP/1.1 {own}")).await;
    }
    let (mut client, _) = connect_http2(&serving).await;
    let answer = client.send_request(request("/")).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"HTTP/2.0 127.0.0.1:"), "{body:?}");
}

/// One HTTP/2 frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The frames that a server sends to an HTTP/2 client which writes this, as kinds and payloads, until it closes or the
/// wanted one has come.
async fn frames(serving: &Serving, written: &[u8], wanted: u8) -> Vec<(u8, Vec<u8>)> {
    let mut client = Client::connect(serving).await.0;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    client.write_all(&[frame(4, 0, 0, &[]), written.to_vec()].concat()).await.unwrap();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(kind, _)| *kind != wanted) {
        let mut head = [0; 9];
        if timeout(PATIENCE, client.read_exact(&mut head)).await.unwrap().is_err() {
            break;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        client.read_exact(&mut payload).await.unwrap();
        seen.push((head[3], payload));
    }
    seen
}

#[tokio::test]
async fn an_http2_client_is_told_how_many_calls_it_may_have_at_a_time() {
    const SETTINGS: u8 = 4;
    let serving = serve(hello(), Limits::default()).await;
    let seen = frames(&serving, &[], SETTINGS).await;
    // SETTINGS_MAX_CONCURRENT_STREAMS is number 3 (RFC 9113, section 6.5.2).
    assert!(seen[0].1.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 100]), "{seen:?}");
}

#[tokio::test]
async fn a_client_that_opens_calls_only_to_reset_them_is_sent_away() {
    const GOAWAY: u8 = 7;
    let serving = serve(hello(), Limits::default()).await;
    // GET http://test/ by the static table of RFC 7541, and at once RST_STREAM with CANCEL.
    let head = [0x82, 0x86, 0x84, 0x41, 4, b't', b'e', b's', b't'];
    let opened_and_reset = |stream: u32| [frame(1, 5, stream, &head), frame(3, 0, stream, &[0, 0, 0, 8])].concat();
    let written: Vec<u8> = (0..90).flat_map(|number| opened_and_reset(2 * number + 1)).collect();
    let seen = frames(&serving, &written, GOAWAY).await;
    let (kind, payload) = seen.last().unwrap();
    // ENHANCE_YOUR_CALM (RFC 9113, section 7).
    assert_eq!((*kind, payload.get(4..8)), (GOAWAY, Some([0, 0, 0, 0xb].as_slice())), "{seen:?}");
}

#[tokio::test]
async fn small_pieces_do_not_wait_for_a_packet_to_fill() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut client = Client(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
    let (accepted, peer) = listener.accept().await.unwrap();
    // Two handles of one socket: its options can be read while the other is served.
    let accepted = accepted.into_std().unwrap();
    let handle = accepted.try_clone().unwrap();
    assert!(!handle.nodelay().unwrap());
    let shared = Arc::new(Shared::new("test", hello(), Limits::default()));
    let serving = tokio::spawn(connection::serve(TcpStream::from_std(accepted).unwrap(), peer, shared));
    client.get("/").await;
    client.read_to("hello").await;
    assert!(handle.nodelay().unwrap());
    drop(client);
    serving.await.unwrap();
}

#[tokio::test]
async fn a_used_port_is_one_clear_sentence() {
    let serving = serve(hello(), Limits::default()).await;
    let error = Listener::bind("edge http", serving.address()).await.unwrap_err();
    let port = serving.address().port();
    let expected = format!("edge http cannot listen on 127.0.0.1:{port}: the port is in use by another process");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_header_is_cut() {
    let serving = serve(hello(), Limits { header: NO_TIME, ..Limits::default() }).await;
    for start in ["", "P", "PRI * HTTP/2", "GET / HTTP/1.1\r\nhost: te"] {
        let mut client = Client::connect(&serving).await;
        client.send(start).await;
        assert_eq!(client.read_all().await, "", "after {start:?}");
    }
}

#[tokio::test]
async fn an_idle_connection_outlives_the_header_limit() {
    let serving = serve(hello(), Limits { header: NO_TIME, ..Limits::default() }).await;
    let mut idle = Client::connect(&serving).await;
    idle.get("/").await;
    idle.read_to("hello").await;
    // A later connection runs into the header limit, so the first has been idle for longer than that.
    assert_eq!(Client::connect(&serving).await.read_all().await, "");
    idle.get("/").await;
    idle.read_to("hello").await;
}

#[tokio::test]
async fn an_idle_connection_ends_at_its_own_limit() {
    let limits = Limits { keep_alive: NO_TIME, http2_idle: NO_TIME, ..Limits::default() };
    let serving = serve(hello(), limits).await;
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    assert!(client.read_all().await.ends_with("hello"));
    let (mut client, connection) = connect_http2(&serving).await;
    assert_eq!(client.send_request(request("/")).await.unwrap().status(), StatusCode::OK);
    timeout(PATIENCE, connection).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_body_that_stops_coming_is_an_error_for_its_handler() {
    let read = async |body: Body| match axum::body::to_bytes(body, usize::MAX).await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::REQUEST_TIMEOUT,
    };
    let limits = Limits { body_idle: NO_TIME, ..Limits::default() };
    let serving = serve(Router::new().route("/", post(read)), limits).await;
    let mut client = Client::connect(&serving).await;
    client.send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nabc").await;
    client.read_to("HTTP/1.1 408").await;
}

/// Sends once it is dropped.
struct OnDrop(Option<oneshot::Sender<()>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(());
        }
    }
}

/// A router whose handler answers with `make`, once, and the sign that what it gave was dropped.
fn dropping<B: Into<Body>>(
    make: impl Fn(OnDrop) -> B + Clone + Send + Sync + 'static,
) -> (Router, oneshot::Receiver<()>) {
    let (sender, dropped) = oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let handler = async move || {
        let guard = OnDrop(sender.lock().unwrap().take());
        make(guard).into()
    };
    (Router::new().route("/", get(handler)), dropped)
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_cut() {
    let (router, dropped) = dropping(|guard| {
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        Body::from_stream(futures::stream::repeat(piece).map(move |piece| {
            let _held = &guard;
            Ok::<_, std::io::Error>(piece)
        }))
    });
    let serving = serve(router, Limits { write_stall: NO_TIME, ..Limits::default() }).await;
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    timeout(PATIENCE, dropped).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_call() {
    let (begun, mut has_begun) = mpsc::channel(1);
    let (ended, has_ended) = oneshot::channel();
    let ended = Arc::new(Mutex::new(Some(ended)));
    let handler = async move || {
        let _guard = OnDrop(ended.lock().unwrap().take());
        begun.send(()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let serving = serve(Router::new().route("/", get(handler)), Limits::default()).await;
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    timeout(PATIENCE, has_begun.recv()).await.unwrap().unwrap();
    drop(client);
    timeout(PATIENCE, has_ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_one_to_end() {
    let order: Arc<Mutex<Vec<u16>>> = Arc::default();
    let seen = Arc::clone(&order);
    let note = async move |ConnectInfo(peer): ConnectInfo<SocketAddr>| {
        seen.lock().unwrap().push(peer.port());
        "noted"
    };
    let serving = serve(Router::new().route("/", get(note)), Limits { connections: 1, ..Limits::default() }).await;
    let (mut first, mut second) = (Client::connect(&serving).await, Client::connect(&serving).await);
    let ports = [first.0.local_addr().unwrap().port(), second.0.local_addr().unwrap().port()];
    second.get("/").await;
    for _ in 0..3 {
        first.get("/").await;
        first.read_to("noted").await;
    }
    drop(first);
    second.read_to("noted").await;
    assert_eq!(*order.lock().unwrap(), [ports[0], ports[0], ports[0], ports[1]]);
}

/// A router whose handler, once called, waits for the test.
fn gated() -> (Router, mpsc::Receiver<oneshot::Sender<()>>) {
    let (calls, called) = mpsc::channel(1);
    let handler = async move || {
        let (open, opened) = oneshot::channel();
        calls.send(open).await.unwrap();
        opened.await.unwrap();
        "finished"
    };
    (Router::new().route("/", get(handler)), called)
}

#[tokio::test]
async fn a_drain_lets_calls_finish_and_takes_no_new_connection() {
    let (router, mut called) = gated();
    let serving = serve(router, Limits::default()).await;
    let address = serving.address();
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    let (mut http2, _connection) = connect_http2(&serving).await;
    let http2_answer = tokio::spawn(async move { http2.send_request(request("/")).await });
    let gates = [called.recv().await.unwrap(), called.recv().await.unwrap()];
    let mut idle = Client::connect(&serving).await;

    let drain = tokio::spawn(serving.drain(Deadline::default()));
    assert_eq!(idle.read_all().await, "", "a connection without a call is closed");
    timeout(PATIENCE, async { while TcpStream::connect(address).await.is_ok() {} }).await.unwrap();
    assert!(!drain.is_finished());
    gates.into_iter().for_each(|gate| gate.send(()).unwrap());

    let answer = client.read_all().await;
    assert!(answer.contains("connection: close") && answer.ends_with("finished"), "{answer}");
    assert_eq!(http2_answer.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(timeout(PATIENCE, drain).await.unwrap().unwrap(), Drained { cut: 0 });
}

#[tokio::test]
async fn a_client_in_the_queue_of_the_system_is_answered_before_the_end() {
    use std::io::{Read, Write};

    let serving = serve(hello(), Limits::default()).await;
    // The runtime of this test has one thread, which is here: the listener cannot have accepted this yet.
    let mut client = std::net::TcpStream::connect(serving.address()).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    serving.drain(Deadline::default()).await;
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn calls_that_take_too_long_end_in_their_own_protocol() {
    let listener = Listener::bind("test", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let cut = listener.cut();
    let stream = async move || {
        let (sender, receiver) = mpsc::channel::<Result<&str, std::io::Error>>(1);
        tokio::spawn(async move {
            sender.send(Ok("data: begins\n\n")).await.unwrap();
            cut.ordered().await;
            sender.send(Ok("data: cut\n\n")).await.unwrap();
        });
        Body::from_stream(futures::stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        }))
    };
    let serving = listener.serve(Router::new().route("/", get(stream)), Limits::default());
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    client.read_to("begins").await;
    let deadline = Deadline::default();
    deadline.reach();
    assert_eq!(serving.drain(deadline).await, Drained { cut: 1 });
    let rest = client.read_all().await;
    assert!(rest.contains("data: cut") && rest.ends_with("0\r\n\r\n"), "{rest}");
}

#[tokio::test]
async fn calls_that_do_not_end_even_then_are_closed() {
    let (router, mut called) = gated();
    let serving = serve(router, Limits::default()).await;
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    let (mut http2, _connection) = connect_http2(&serving).await;
    let http2_answer = tokio::spawn(async move { http2.send_request(request("/")).await });
    let _gates = [called.recv().await.unwrap(), called.recv().await.unwrap()];
    let deadline = Deadline::default();
    deadline.reach();
    assert_eq!(timeout(PATIENCE, serving.drain(deadline)).await.unwrap(), Drained { cut: 2 });
    assert_eq!(client.read_all().await, "");
    assert!(http2_answer.await.unwrap().is_err());
}

#[tokio::test]
async fn clients_asked_to_leave_are_served_until_they_do() {
    let serving = serve(hello(), Limits::default()).await;
    let mut client = Client::connect(&serving).await;
    client.get("/").await;
    assert!(!client.read_to("hello").await.contains("connection: close"));
    let (mut http2, connection) = connect_http2(&serving).await;
    assert_eq!(http2.send_request(request("/")).await.unwrap().status(), StatusCode::OK);

    serving.ask_to_leave();
    client.get("/").await;
    let last = client.read_all().await;
    assert!(last.contains("connection: close") && last.ends_with("hello"), "{last}");
    timeout(PATIENCE, connection).await.unwrap().unwrap().unwrap();
    let mut late = Client::connect(&serving).await;
    late.get("/").await;
    assert!(late.read_all().await.ends_with("hello"));
}
