//! The world of a test: a database, a provider, and as many edges as it needs.

use std::net::SocketAddr;
use std::sync::Arc;

use config::Env;
use domain::{ApiKey, ApiKeyId, ConnectionId, ProjectId, RouteId};
use edge::{App, SERVICE, Settings};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use runtime::{Process, Settings as _, Stop};
use serde_json::{Value, json};
use testkit::{LoggedCall, RoleName, TestDatabase, eventually, until};
use tokens::{Family, count, count_messages};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use upstream::{Behaviour, Handle, Options, Script, Wait};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const SECRET_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A database with one project, its key, and a route `fast` to the model `real-chat` of a scripted provider.
pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) upstream: Handle,
    pub(crate) connection: ConnectionId,
    pub(crate) project: ProjectId,
    pub(crate) route: RouteId,
    pub(crate) key_id: ApiKeyId,
    pub(crate) key: ApiKey,
}

/// A running edge.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Stop,
    client: Client,
    key: String,
    running: Option<JoinHandle<anyhow::Result<()>>>,
}

impl World {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::with("").await
    }

    /// One whose project has these limits (`column = value, …`).
    pub(crate) async fn with(limits: &str) -> anyhow::Result<Self> {
        let upstream = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, Options::scripted())?;
        let database = testkit::database().await?;
        let connection = database.insert_connection("provider", &upstream.base_url(), "real-chat").await?;
        let project = database.insert_project("shop", limits).await?;
        let route = database.insert_route(project, "fast", connection).await?;
        let (key_id, key) = database.insert_project_key(project).await?;
        Ok(Self { database, upstream, connection, project, route, key_id, key })
    }

    pub(crate) async fn edge(&self) -> anyhow::Result<Edge> {
        self.edge_with(&[]).await
    }

    /// One with settings of its own.
    pub(crate) async fn edge_with(&self, settings: &[(&str, &str)]) -> anyhow::Result<Edge> {
        self.edge_tuned(settings, |_| ()).await
    }

    /// One with settings that no environment can give it.
    pub(crate) async fn edge_tuned(
        &self,
        settings: &[(&str, &str)],
        tune: impl FnOnce(&mut Settings),
    ) -> anyhow::Result<Edge> {
        let url = self.database.url(RoleName::Edge).expose().to_owned();
        let edge = Edge::start_tuned(&url, self.key.secret().expose(), settings, tune).await?;
        edge.until_ready().await?;
        Ok(edge)
    }

    /// What the next call to the provider's chat meets.
    pub(crate) fn next_chat(&self, behaviour: Behaviour) {
        self.upstream.script(Script { path: CHAT.to_owned(), queue: vec![behaviour], ..Script::default() });
    }

    /// What all calls to the provider's chat meet from now on.
    pub(crate) fn every_chat(&self, behaviour: Behaviour) {
        self.upstream.script(Script { path: CHAT.to_owned(), default: Some(behaviour), ..Script::default() });
    }

    pub(crate) async fn upstream_until(&self, wait: Wait) -> anyhow::Result<()> {
        tokio::time::timeout(testkit::DEADLINE, self.upstream.wait(wait)).await?;
        Ok(())
    }

    /// The log, once it has that many calls.
    pub(crate) async fn logged(&self, calls: usize) -> anyhow::Result<Vec<LoggedCall>> {
        eventually(&format!("{calls} calls in the log"), async || {
            let logged = self.database.logged_calls(self.project).await?;
            Ok((logged.len() >= calls).then_some(logged))
        })
        .await
    }

    /// The only call in the log.
    pub(crate) async fn the_logged_call(&self) -> anyhow::Result<LoggedCall> {
        let logged = self.logged(1).await?;
        assert_eq!(logged.len(), 1, "{logged:?}");
        Ok(logged[0].clone())
    }
}

impl Edge {
    pub(crate) async fn start(database_url: &str, key: &str, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_tuned(database_url, key, settings, |_| ()).await
    }

    async fn start_tuned(
        database_url: &str,
        key: &str,
        settings: &[(&str, &str)],
        tune: impl FnOnce(&mut Settings),
    ) -> anyhow::Result<Self> {
        // Fails when another test of this process was first, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pairs = [
            ("DATABASE_URL", database_url),
            ("DB_MAX_CONNS", "9"),
            ("SECRET_KEY", SECRET_KEY),
            ("EDGE_LISTEN", "127.0.0.1:0"),
            ("HEALTH_GRPC_LISTEN", "127.0.0.1:0"),
            ("ALLOW_PRIVATE_UPSTREAMS", "true"),
        ];
        let given = |key: &str| settings.iter().any(|(name, _)| *name == key);
        let pairs = pairs.into_iter().filter(|(name, _)| !given(name)).chain(settings.iter().copied());
        let mut env = Env::of(pairs);
        let mut settings = Settings::read(&mut env);
        env.finish()?;
        tune(&mut settings);
        let app = App::bind(settings).await?;
        let (address, stop) = (app.http_address(), Stop::new());
        let running = tokio::spawn(app.run(Process { service: SERVICE, stop: stop.clone() }));
        let client = Client::builder().no_proxy().build()?;
        Ok(Self { address, stop, client, key: key.to_owned(), running: Some(running) })
    }

    pub(crate) async fn until_ready(&self) -> anyhow::Result<()> {
        until("the edge is ready", async || Ok(self.ready().await?.0 == 200)).await
    }

    /// What `/readyz` says.
    pub(crate) async fn ready(&self) -> anyhow::Result<(u16, Value)> {
        let answer = self.client.get(self.url("/readyz")).send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A request without a key.
    pub(crate) fn bare(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.bare(reqwest::Method::GET, path).bearer_auth(&self.key)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.bare(reqwest::Method::POST, path).bearer_auth(&self.key).json(body)
    }

    /// A chat of one turn, with these members beside it.
    pub(crate) fn chat(&self, members: Value) -> RequestBuilder {
        self.post(CHAT, &turn(members))
    }

    /// Ends the edge as a signal would, and waits until it has ended.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.begin();
        self.ended().await
    }

    /// Waits until the edge has ended by itself or by its stop.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        match self.running.take() {
            Some(running) => tokio::time::timeout(testkit::DEADLINE, running).await??,
            None => Ok(()),
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
        }
    }
}

pub(crate) const TURN: &str = "Tell me about the moon";

/// The prompt tokens of [`turn`], by our count.
pub(crate) fn turn_tokens() -> i64 {
    i64::try_from(count_messages(Family::Estimated, [TURN])).unwrap()
}

/// Tokens of an answer, by our count.
pub(crate) fn answer_tokens(text: &str) -> i64 {
    i64::try_from(count(Family::Estimated, text)).unwrap()
}

/// A chat request of one turn, with these members beside it.
pub(crate) fn turn(members: Value) -> Value {
    let mut body = json!({ "model": "fast", "messages": [{ "role": "user", "content": TURN }] });
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Asserts the status and gives the body.
pub(crate) async fn body_of(answer: Response, status: u16) -> Value {
    let is = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(is, StatusCode::from_u16(status).unwrap(), "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Status, type and code of an error.
pub(crate) async fn error_of(answer: Response) -> (u16, String, Value) {
    let status = answer.status().as_u16();
    assert!(answer.headers().contains_key("x-request-id"));
    let text = answer.text().await.unwrap();
    let body: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let error = &body["error"];
    assert!(!error["message"].as_str().unwrap().is_empty());
    (status, error["type"].as_str().unwrap().to_owned(), error["code"].clone())
}

pub(crate) fn header<'a>(answer: &'a Response, name: &str) -> Option<&'a str> {
    answer.headers().get(name).map(|value| value.to_str().unwrap())
}

/// A way to the database that can be blocked.
pub(crate) struct Path {
    pub(crate) url: String,
    blocked: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Path {
    pub(crate) async fn to(database: &TestDatabase) -> anyhow::Result<Self> {
        let server = database.config(RoleName::Edge).server().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = database.url(RoleName::Edge).expose();
        let by_path = url.replace(&format!("@{}:{}/", server.0, server.1), &format!("@{}/", listener.local_addr()?));
        assert_ne!(by_path, url);
        let blocked = watch::Sender::new(false);
        let (mut is_blocked, server) = (blocked.subscribe(), Arc::new(server));
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if *is_blocked.borrow_and_update() {
                    continue;
                }
                let (server, mut is_blocked) = (Arc::clone(&server), is_blocked.clone());
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect((server.0.as_str(), server.1)).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = is_blocked.wait_for(|blocked| *blocked) => {}
                    }
                });
            }
        });
        Ok(Self { url: by_path, blocked, accepting })
    }

    pub(crate) fn block(&self, block: bool) {
        self.blocked.send_replace(block);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
