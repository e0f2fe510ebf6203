//! Starts admin processes and talks to them.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use testkit::{RoleName, TestDatabase, eventually};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

pub(crate) const USER: &str = "root";
pub(crate) const PASSWORD: &str = "correct horse battery";
pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A running process.
pub(crate) struct Admin {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    pub(crate) base: String,
    pub(crate) grpc: String,
    pub(crate) client: reqwest::Client,
    token: Option<String>,
}

/// How a process ended that was not to serve.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// The environment of a process on a database.
pub(crate) fn environment(database: &TestDatabase) -> BTreeMap<String, String> {
    let pairs = [
        ("DATABASE_URL", database.url(RoleName::Backend).expose()),
        ("MIGRATE_DATABASE_URL", database.url(RoleName::Owner).expose()),
        ("SECRET_KEY", KEY),
        ("ADMIN_LISTEN", "127.0.0.1:0"),
        ("ADMIN_GRPC_LISTEN", "127.0.0.1:0"),
        ("ALLOW_PRIVATE_UPSTREAMS", "true"),
        ("ADMIN_USER", USER),
        ("ADMIN_PASSWORD", PASSWORD),
        ("LOG_FORMAT", "json"),
        ("DB_MAX_CONNS", "8"),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn command(environment: &BTreeMap<String, String>, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ragmux-admin"));
    command.args(arguments).env_clear().envs(environment).kill_on_drop(true);
    command
}

/// Runs a process to its end.
pub(crate) async fn run(environment: &BTreeMap<String, String>, arguments: &[&str]) -> anyhow::Result<Ended> {
    let output = tokio::time::timeout(testkit::DEADLINE, command(environment, arguments).output()).await??;
    Ok(Ended { code: output.status.code(), stderr: String::from_utf8(output.stderr)? })
}

impl Admin {
    /// Starts a process with this environment and waits until it listens.
    pub(crate) async fn launch(environment: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut child = command(environment, &[]).stdout(Stdio::piped()).spawn()?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (mut output, kept) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::clone(&lines));
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                kept.lock().unwrap().push(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
        });
        let listening = async |name: &str| {
            let address = eventually("a listener", || {
                let found = lines.lock().unwrap().iter().find_map(|line| {
                    (line["message"] == "listening" && line["listener"] == name).then(|| line["address"].clone())
                });
                async move { Ok(found) }
            });
            anyhow::Ok(format!("http://{}", address.await?.as_str().unwrap()))
        };
        let (base, grpc) = (listening("http").await?, listening("grpc").await?);
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { child, lines, base, grpc, client, token: None })
    }

    /// Starts a process that is ready and signed in as its first administrator.
    pub(crate) async fn start(database: &TestDatabase) -> anyhow::Result<Self> {
        Self::start_with(&environment(database)).await
    }

    /// The same with an environment of one's own.
    pub(crate) async fn start_with(environment: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut admin = Self::launch(environment).await?;
        admin.ready().await?;
        let login = json!({ "username": USER, "password": PASSWORD, "bearer": true });
        let (status, body) = admin.call(Method::POST, "/login", Some(login)).await?;
        anyhow::ensure!(status == StatusCode::OK, "{body}");
        admin.token = body["token"].as_str().map(str::to_owned);
        Ok(admin)
    }

    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        testkit::until("the service is ready", async || {
            Ok(self.client.get(format!("{}/readyz", self.base)).send().await?.status() == StatusCode::OK)
        })
        .await
    }

    /// The same process for somebody else, or for nobody.
    pub(crate) fn without_token(&mut self) -> Option<String> {
        self.token.take()
    }

    pub(crate) fn with_token(&mut self, token: Option<String>) {
        self.token = token;
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}/admin/api{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// One call: its status and what it answers, null for nothing.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        answer(request.send().await?).await
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<(StatusCode, Value)> {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> anyhow::Result<(StatusCode, Value)> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// A call that makes something; its answer.
    pub(crate) async fn make(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        let (status, answer) = self.post(path, body).await?;
        anyhow::ensure!(status == StatusCode::CREATED, "{status}: {answer}");
        Ok(answer)
    }

    /// Makes a project with a store whose documents `upstream` embeds; the store's id.
    pub(crate) async fn make_store(&self, upstream: &upstream::Handle) -> anyhow::Result<i64> {
        let connection = self.make("/models", model("embed", &upstream.base_url())).await?;
        let project = self.make("/projects", json!({ "name": "p" })).await?;
        let store = json!({
            "project_id": project["project"]["id"],
            "embedding_connection_id": connection["id"],
            "name": "s",
        });
        Ok(self.make("/rag-stores", store).await?["id"].as_i64().unwrap())
    }

    /// Whether a line with this message was logged.
    pub(crate) fn logged(&self, message: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line["message"] == message)
    }

    /// Asks the process to stop, as an operator does, and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<ExitStatus> {
        let pid = self.child.id().unwrap().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().await?;
        Ok(tokio::time::timeout(testkit::DEADLINE, self.child.wait()).await??)
    }
}

/// The status and the JSON of an answer.
pub(crate) async fn answer(response: Response) -> anyhow::Result<(StatusCode, Value)> {
    let status = response.status();
    let body = response.bytes().await?;
    Ok((status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? }))
}

/// The body that makes a connection.
pub(crate) fn model(name: &str, base_url: &str) -> Value {
    json!({ "name": name, "provider_type": "custom_openai", "base_url": base_url, "model_name": "demo-embed" })
}

/// A scripted upstream of this test's own.
pub(crate) async fn upstream() -> anyhow::Result<upstream::Handle> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    Ok(upstream::serve(listener, upstream::Options::scripted())?)
}
