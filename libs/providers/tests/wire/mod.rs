//! A server that writes exactly the bytes it is told to, one script a request, so that faults can sit at any byte.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{ConnectionId, ProviderType, Secret};
use ragmux_providers::{AddressPolicy, Connection, HttpOptions, Providers, validate_base_url};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const KEY: &str = "own-credential-text";

/// What the server does next on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(Vec<u8>),
    /// Waits for [`Wire::go`].
    Hold,
    /// Sends the same chunk again and again, until the client closes the connection.
    Endless(&'static str),
    /// Waits until the client closes the connection, and counts it.
    AwaitClose,
}

pub(crate) struct Wire {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    gate: Arc<Notify>,
    closed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    pub(crate) async fn start(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (gate, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let state = (Arc::clone(&requests), Arc::clone(&gate), Arc::clone(&closed));
        let task = tokio::spawn(async move {
            for script in scripts {
                let (socket, _) = listener.accept().await.unwrap();
                play(socket, script, &state.0, &state.1, &state.2).await;
            }
        });
        Self { port, requests, gate, closed, task }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn go(&self) {
        self.gate.notify_one();
    }

    pub(crate) async fn client_closed(&self) {
        tokio::time::timeout(DEADLINE, self.closed.notified()).await.expect("the client keeps the connection open");
    }

    pub(crate) fn connection(&self) -> Connection {
        connection_to(&format!("http://127.0.0.1:{}/v1", self.port))
    }
}

async fn play(mut socket: TcpStream, script: Vec<Step>, log: &Mutex<Vec<String>>, gate: &Notify, closed: &Notify) {
    let request = read_request(&mut socket).await;
    log.lock().unwrap().push(request);
    for step in script {
        match step {
            Step::Send(bytes) => {
                socket.write_all(&bytes).await.unwrap();
                socket.flush().await.unwrap();
            }
            Step::Hold => gate.notified().await,
            Step::Endless(text) => {
                let Step::Send(bytes) = chunk(text.as_bytes()) else { return };
                while socket.write_all(&bytes).await.is_ok() {}
            }
            Step::AwaitClose => {
                let mut rest = [0; 64];
                while socket.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                closed.notify_one();
            }
        }
    }
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned))
                .map_or(0, |length| length.parse::<usize>().unwrap());
            if body.len() >= length {
                return text;
            }
        }
        let mut chunk = [0; 4096];
        let read = socket.read(&mut chunk).await.unwrap();
        if read == 0 {
            // A client whose time is short may give up before its request is whole.
            return text;
        }
        bytes.extend_from_slice(&chunk[..read]);
    }
}

pub(crate) fn connection_to(base_url: &str) -> Connection {
    let provider = ProviderType::CustomOpenAi;
    Connection {
        id: ConnectionId(7),
        provider,
        base_url: validate_base_url(base_url, provider, &AddressPolicy::new(true, [])).unwrap(),
        credential: Some(Secret::new(KEY)),
        model: "real".to_owned(),
    }
}

pub(crate) fn options() -> HttpOptions {
    HttpOptions { addresses: AddressPolicy::new(true, []), ..HttpOptions::default() }
}

pub(crate) fn providers() -> Providers {
    Providers::new(options()).unwrap()
}

/// A whole answer with a length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<Step> {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    );
    vec![Step::Send(text.into_bytes())]
}

/// The head of a stream.
pub(crate) fn stream_head() -> Step {
    Step::Send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
            .to_vec(),
    )
}

/// One HTTP chunk.
pub(crate) fn chunk(bytes: &[u8]) -> Step {
    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    Step::Send(framed)
}

/// The end of a chunked body.
pub(crate) fn stream_end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}
