//! The services behind a pooler, and many workers that meet something new at the same moment.

use std::time::Duration;

use futures::future::try_join_all;
use serde_json::{Value, json};
use testkit::{Admin, PoolMode, Pooler, Project, Role, RoleName, Stack, StoreId};

const WORKERS: usize = 8;
/// Each store's; there are two of one width and one of another.
const DOCUMENTS: usize = 16;
const WIDTHS: [i32; 2] = [384, 1536];

/// What leads a process of a role to the database.
fn way(stack: &Stack, pooler: Option<(&Pooler, PoolMode)>, role: Role) -> anyhow::Result<Vec<(&'static str, String)>> {
    let Some((pooler, mode)) = pooler else { return Ok(Vec::new()) };
    let name = if role == Role::Edge { RoleName::Edge } else { RoleName::Backend };
    let (word, told) = match mode {
        PoolMode::Session => ("session", ""),
        // As other drivers say it.
        PoolMode::Transaction => ("transaction", "?statement_cache_capacity=0"),
    };
    let mut settings = vec![("DATABASE_URL", pooler.url(&stack.database, name)?), ("DB_POOLER", word.to_owned())];
    if role == Role::Admin {
        let owner = pooler.url(&stack.database, RoleName::Owner)?;
        settings.push(("MIGRATE_DATABASE_URL", format!("{owner}{told}")));
    }
    Ok(settings)
}

async fn spawn(stack: &mut Stack, pooler: Option<(&Pooler, PoolMode)>, role: Role) -> anyhow::Result<usize> {
    let settings = way(stack, pooler, role)?;
    let settings: Vec<(&str, &str)> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    stack.spawn_with(role, &settings).await
}

async fn upload(admin: &Admin, store: i64) -> anyhow::Result<Vec<i64>> {
    try_join_all((0..DOCUMENTS).map(|number| async move {
        let text = format!("# Note {number}\n\nThe number of this note about kettles in {store} is {number}.\n");
        admin.upload(store, &format!("note{number}.md"), text.into_bytes()).await
    }))
    .await
}

async fn add_store(stack: &Stack, admin: &Admin, project: &Project, name: &str, model: &str) -> anyhow::Result<i64> {
    let connection = json!({
        "name": name, "provider_type": "custom_openai", "base_url": stack.upstream.base_url(), "model_name": model,
    });
    let connection = admin.send(reqwest::Method::POST, "/models", Some(connection)).await?["id"].clone();
    let store = json!({ "name": name, "project_id": project.id, "embedding_connection_id": connection });
    Ok(admin.send(reqwest::Method::POST, "/rag-stores", Some(store)).await?["id"].as_i64().unwrap())
}

async fn ask(stack: &Stack, project: &Project, path: &str, body: Value) -> anyhow::Result<Value> {
    let url = format!("{}/{path}", stack.edge_url(0)?);
    let answer = stack.http.post(url).bearer_auth(&project.key).json(&body).send().await?;
    let (status, text) = (answer.status(), answer.text().await?);
    anyhow::ensure!(status.is_success(), "{path} was answered {status}: {text}");
    Ok(serde_json::from_str(&text)?)
}

/// All three services reach the database one way; eight workers start at the same moment and find widths that no table
/// is there for, in stores that nobody has worked for.
async fn eight_workers_meet_new_widths(mode: Option<PoolMode>) -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pooler = match mode {
        None => None,
        // Far fewer sessions than connections: each transaction meets another.
        Some(mode) => match Pooler::start(&database, mode, if mode == PoolMode::Session { 120 } else { 6 }).await? {
            Some(pooler) => Some((pooler, mode)),
            None => return Ok(()),
        },
    };
    let pooler = pooler.as_ref().map(|(pooler, mode)| (pooler, *mode));
    // What the three kinds of process open together stays below what a server admits.
    let builder = Stack::builder().admins(0).database(database).set("DB_MAX_CONNS", "8").set("INGEST_WORKERS", "2");
    let mut stack = builder.start().await?;
    let http = stack.http.clone();
    for role in [Role::Admin, Role::Edge] {
        let number = spawn(&mut stack, pooler, role).await?;
        stack.process(number)?.ready(&http).await?;
    }
    let project = stack.project("p", json!({ "limits": { "tokens_per_month": 10_000_000 } })).await?;
    let admin = stack.admin().await?;
    let sibling = add_store(&stack, &admin, &project, "sibling", "another-embed").await?;
    let wide = add_store(&stack, &admin, &project, "wide", "text-embedding-3-small").await?;
    let stores = [project.store, sibling, wide];
    stack.database.drop_vector_tables(&WIDTHS).await?;
    let mut documents = Vec::new();
    for store in stores {
        documents.extend(upload(&admin, store).await?);
    }
    for _ in 0..WORKERS {
        spawn(&mut stack, pooler, Role::Worker).await?;
    }
    for document in documents {
        admin.ready(document).await?;
    }
    let all = i64::try_from(DOCUMENTS)?;
    for store in stores {
        assert_eq!(stack.database.live_chunks(StoreId(store)).await?, (all, all), "store {store}");
    }
    let mut finished = 0;
    for worker in 0..WORKERS {
        let process = stack.nth_mut(Role::Worker, worker)?;
        process.ready(&http).await?;
        assert!(process.stop(Duration::from_secs(60)).await?.success(), "{}", process.log_tail());
        let log = process.log();
        finished += log.matches("a document is ready").count();
        for bad in ["\"level\":\"ERROR\"", "prepared statement", "already exists", "a document failed"] {
            assert!(!log.contains(bad), "{bad}: {log}");
        }
    }
    assert_eq!(finished, stores.len() * DOCUMENTS, "each once");

    // The edge's statements hold by the same way, one after another and many at once.
    let question = json!({ "query": "boiling water", "top_k": 50 });
    let found = ask(&stack, &project, "retrieve", question).await?;
    assert_eq!((found["data"].as_array().map(Vec::len), &found["degraded"]), (Some(DOCUMENTS), &json!([])), "{found}");
    let chat = json!({ "model": "chat", "messages": [{ "role": "user", "content": "Where are the kettles?" }] });
    let answers = try_join_all((0..24).map(|_| ask(&stack, &project, "chat/completions", chat.clone()))).await?;
    assert_eq!(answers.len(), 24);
    for role in [Role::Edge, Role::Admin] {
        let process = stack.nth_mut(role, 0)?;
        assert!(process.stop(Duration::from_secs(60)).await?.success(), "{}", process.log_tail());
        let log = process.log();
        for bad in ["\"level\":\"ERROR\"", "prepared statement"] {
            assert!(!log.contains(bad), "{bad}: {log}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_meet_new_widths_and_make_one_table_of_each() -> anyhow::Result<()> {
    eight_workers_meet_new_widths(None).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_meet_new_widths_behind_a_transaction_pooler() -> anyhow::Result<()> {
    eight_workers_meet_new_widths(Some(PoolMode::Transaction)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_meet_new_widths_behind_a_session_pooler() -> anyhow::Result<()> {
    eight_workers_meet_new_widths(Some(PoolMode::Session)).await
}
