//! An installation to be asked: the real services, a store for each collection, and what its edge finds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};
use testkit::{Admin, PrivateServer, Role, Stack};

use super::Way;
use super::collection::Collection;
use super::measures::DEEP;
use crate::arguments::Quality;
use crate::report::say;

/// Files of one request.
const FILES: usize = 100;
/// How long nothing may become of any document before the run is given up.
const STANDSTILL: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(250);

/// The model that the scripted upstream embeds with.
const DEMONSTRATION: &str = "demo-embed";

/// Everything that runs, in the order in which it ends.
pub(crate) struct Installation {
    stack: Stack,
    admin: Admin,
    connection: Value,
    edge: String,
    server: PrivateServer,
}

/// A store that has a collection, and a key of its project.
pub(crate) struct Loaded {
    store: i64,
    key: String,
    /// Places of the collection's documents by their ids here.
    places: HashMap<i64, usize>,
    /// Documents that have no text and cannot be found.
    pub(crate) empty: usize,
    /// What they were cut into.
    pub(crate) chunks: i64,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Installation {
    /// Starts everything, and connects it to the server that embeds.
    ///
    /// # Errors
    /// When something does not come up.
    pub(crate) async fn start(arguments: &Quality) -> anyhow::Result<Self> {
        let server = PrivateServer::start_named("bench-quality").await?;
        let stack = Stack::builder()
            .workers(1)
            .edges(1)
            .database(server.database().await?)
            .set("ALLOW_PRIVATE_UPSTREAMS", "true")
            .set("MAX_PENDING_DOCUMENTS", "1000000")
            .start()
            .await?;
        let admin = stack.admin().await?;
        let demonstration = stack.upstream.base_url();
        let (base_url, model) = match &arguments.embeddings_url {
            Some(url) => {
                (url.as_str(), arguments.embeddings_model.as_deref().context("--embeddings-model is missing")?)
            }
            None => (demonstration.as_str(), DEMONSTRATION),
        };
        let mut connection = json!({
            "name": "embeddings", "provider_type": "custom_openai", "base_url": base_url, "model_name": model,
        });
        if let (Some(key), Some(members)) = (&arguments.embeddings_key, connection.as_object_mut()) {
            members.insert("api_key".to_owned(), json!(key));
        }
        let connection = member(&admin.send(Method::POST, "/models", Some(connection)).await?, "id")?;
        let edge = stack.edge_url(0)?;
        Ok(Self { stack, admin, connection, edge, server })
    }

    /// Uploads a collection into a store of its own and waits until every document is ready.
    ///
    /// # Errors
    /// When one fails, or none gets any further for a while.
    pub(crate) async fn load(&self, collection: &Collection) -> anyhow::Result<Loaded> {
        let began = Instant::now();
        let (name, admin) = (&collection.name, &self.admin);
        let made = admin.send(Method::POST, "/projects", Some(json!({ "name": name }))).await?;
        let project = member(member_of(&made, "project")?, "id")?;
        let key = member_of(&made, "api_key")?.as_str().context("the project has no key")?.to_owned();
        let store = json!({ "name": name, "project_id": project, "embedding_connection_id": self.connection });
        let store = number(&admin.send(Method::POST, "/rag-stores", Some(store)).await?, "id")?;
        admin.send(Method::PATCH, &format!("/projects/{project}"), Some(json!({ "store_id": store }))).await?;
        let with_text: Vec<(usize, &str)> = collection
            .documents
            .iter()
            .enumerate()
            .map(|(n, d)| (n, d.text.as_str()))
            .filter(|(_, text)| !text.is_empty())
            .collect();
        let mut places = HashMap::new();
        for files in with_text.chunks(FILES) {
            places.extend(self.upload(store, files).await?);
        }
        self.wait(store, with_text.len()).await?;
        let chunks = number(&admin.send(Method::GET, &format!("/rag-stores/{store}"), None).await?, "chunk_count")?;
        let empty = collection.documents.len() - with_text.len();
        Ok(Loaded { store, key, places, empty, chunks, took: began.elapsed() })
    }

    /// Uploads some files; places in the collection by the ids that they got.
    async fn upload(&self, store: i64, files: &[(usize, &str)]) -> anyhow::Result<Vec<(i64, usize)>> {
        let form = files.iter().fold(Form::new(), |form, (place, text)| {
            form.part("file", Part::bytes(text.as_bytes().to_vec()).file_name(format!("document-{place}.txt")))
        });
        let answer = self.admin.upload_form(store, "?allow_duplicate=true", form).await?;
        let documents = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
        anyhow::ensure!(documents.len() == files.len(), "{} of {} files were taken", documents.len(), files.len());
        let id = |document: &Value| number(document, "id");
        documents.iter().zip(files).map(|(document, (place, _))| Ok((id(document)?, *place))).collect()
    }

    async fn wait(&self, store: i64, expected: usize) -> anyhow::Result<()> {
        let (mut ready, mut since) = (0, Instant::now());
        loop {
            let totals = self.stack.database.ingest_totals(&[testkit::StoreId(store)]).await?;
            let done = usize::try_from(totals.ready)?;
            if totals.failed > 0 {
                let path = format!("/rag-stores/{store}/documents?status=failed&limit=1");
                let failed = self.admin.send(Method::GET, &path, None).await?;
                anyhow::bail!("{} documents failed, such as {failed}", totals.failed);
            }
            if done >= expected {
                return Ok(());
            }
            if done > ready {
                (ready, since) = (done, Instant::now());
            }
            let log = || self.stack.nth(Role::Worker, 0).map(testkit::Process::log_tail).unwrap_or_default();
            anyhow::ensure!(since.elapsed() < STANDSTILL, "{done} of {expected} documents are ready:\n{}", log());
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Makes the searches of a store go one way.
    ///
    /// # Errors
    /// When that is refused.
    pub(crate) async fn search_by(&self, loaded: &Loaded, way: Way) -> anyhow::Result<()> {
        let change = json!({ "retrieval": way.weights() });
        self.admin.send(Method::PATCH, &format!("/rag-stores/{}", loaded.store), Some(change)).await?;
        Ok(())
    }

    /// The documents found for a question, best first, a passage each; and how long the edge took.
    ///
    /// # Errors
    /// When the edge does not answer, or leaves a part of the search out.
    pub(crate) async fn ask(&self, loaded: &Loaded, query: &str) -> anyhow::Result<(Vec<usize>, Duration)> {
        let began = Instant::now();
        let question = json!({ "query": query, "top_k": DEEP });
        let url = format!("{}/retrieve", self.edge);
        let answer = self.stack.http.post(url).bearer_auth(&loaded.key).json(&question).send().await?;
        let status = answer.status();
        let answer: Value = answer.json().await?;
        let took = began.elapsed();
        anyhow::ensure!(status.is_success(), "a question was answered {status}: {answer}");
        let degraded = answer.get("degraded").and_then(Value::as_array).is_some_and(|parts| !parts.is_empty());
        anyhow::ensure!(!degraded, "a part of the search was left out: {answer}");
        let hits = member_of(&answer, "data")?.as_array().context("the answer has no list")?;
        let place = |hit: &Value| {
            let id = number(hit, "document_id")?;
            loaded.places.get(&id).copied().with_context(|| format!("document {id} is not of the collection"))
        };
        Ok((hits.iter().map(place).collect::<anyhow::Result<_>>()?, took))
    }

    /// Ends everything in order.
    ///
    /// # Errors
    /// When a process did not end well.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.stack.shut_down().await?;
        say("everything has ended");
        self.server.stop().await
    }
}

fn member_of<'a>(value: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    value.get(name).with_context(|| format!("there is no {name} in {value}"))
}

fn member(value: &Value, name: &str) -> anyhow::Result<Value> {
    member_of(value, name).cloned()
}

fn number(value: &Value, name: &str) -> anyhow::Result<i64> {
    member_of(value, name)?.as_i64().with_context(|| format!("{name} is no number in {value}"))
}
