//! An upstream in this process and a client of it.
#![allow(
    dead_code,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "part of tests, each of which uses a part"
)]

use std::{sync::Once, time::Duration};

use ragmux_upstream::{Behaviour, Counters, Handle, Options, Script, Wait, serve};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::net::TcpListener;

static TLS: Once = Once::new();

/// Everything here happens on one machine; what takes longer than this does not happen.
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    pub(crate) upstream: Handle,
    pub(crate) http: reqwest::Client,
}

impl Client {
    pub(crate) async fn of(options: Options) -> Self {
        // The client wants a provider even for plain HTTP; a second installation is refused, which is fine.
        TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = reqwest::Client::builder().timeout(DEADLINE).no_proxy().build().unwrap();
        Self { upstream: serve(listener, options).unwrap(), http }
    }

    /// A scripted upstream.
    pub(crate) async fn scripted() -> Self {
        Self::of(Options::scripted()).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.upstream.address())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Response> {
        self.http.post(self.url(path)).json(body).send().await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.http.get(self.url(path)).send().await.unwrap()
    }

    pub(crate) async fn chat(&self, body: &Value) -> Response {
        self.post("/v1/chat/completions", body).await.unwrap()
    }

    /// What the next calls to any path meet.
    pub(crate) fn next(&self, behaviours: impl IntoIterator<Item = Behaviour>) {
        self.upstream.script(Script { path: "*".to_owned(), queue: behaviours.into_iter().collect(), default: None });
    }

    pub(crate) async fn wait(&self, wait: Wait) -> Counters {
        let counters = tokio::time::timeout(DEADLINE, self.upstream.wait(wait)).await;
        counters.unwrap_or_else(|_| panic!("{wait:?} is not met: {:?}", self.upstream.counters()))
    }
}

/// A question to a model.
pub(crate) fn question(text: &str) -> Value {
    json!({ "model": "demo-chat", "messages": [{ "role": "user", "content": text }] })
}

/// The same, streamed.
pub(crate) fn streamed(text: &str) -> Value {
    let mut body = question(text);
    body["stream"] = json!(true);
    body
}

/// The data of the events of a stream.
pub(crate) fn events(stream: &str) -> Vec<String> {
    stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}
