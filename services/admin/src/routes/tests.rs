//! The table against a real database: every row is closed to those it is not for, and every write of it is audited.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use config::Env;
use domain::{KeyHash, Role, Secret, UserId};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use runtime::{Health, Settings as _};
use serde_json::{Value, json};
use sqlx::PgPool;
use store::audit::{Actor, AuditEntry};
use store::schema;
use testkit::{RoleName, TestDatabase};
use tokio::net::TcpListener;
use tower::ServiceExt;
use vault::Vault;

use super::table;
use crate::app::App;
use crate::auth::Floor;
use crate::config::Settings;
use crate::stack;

struct Lab {
    _database: TestDatabase,
    app: Arc<App>,
    router: Router,
    pool: PgPool,
}

impl Lab {
    async fn start() -> anyhow::Result<Self> {
        let database = testkit::database().await?;
        let url = database.url(RoleName::Backend).expose();
        let mut env = Env::of([("DATABASE_URL", url), ("ALLOW_PRIVATE_UPSTREAMS", "true")]);
        let settings = Settings::read(&mut env);
        env.finish()?;
        let vault = Vault::load(Some(&Secret::new("ab".repeat(32))), None, Path::new("/does/not/exist"))?;
        let health = Health::new(schema::expected());
        health.database_seen(schema::expected());
        health.started();
        let app = App::new(&settings, database.store(RoleName::Backend)?, vault, health)?;
        let (router, pool) = (stack::router(&app), database.superuser_pool().await?);
        Ok(Self { _database: database, app, router, pool })
    }

    /// The token of somebody new with this role.
    async fn sign_in(&self, role: Role) -> anyhow::Result<String> {
        let id: i64 = sqlx::query_scalar("INSERT INTO users (username, role) VALUES ($1, $1) RETURNING id")
            .bind(role.as_str())
            .fetch_one(&self.pool)
            .await?;
        let (token, entry) = (format!("token of {}", role.as_str()), AuditEntry::new(Actor::named("test"), "login"));
        let lasts = Duration::from_secs(3600);
        self.app.store.create_session(UserId(id), &KeyHash::of(&token), lasts, &entry).await?;
        Ok(token)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        content_type: &str,
        body: String,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let mut request =
            Request::builder().method(method).uri(format!("/admin/api{path}")).header("content-type", content_type);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = self.router.clone().oneshot(request.body(Body::from(body))?).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok((status, if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? }))
    }

    /// A call that works, as an administrator.
    async fn works(&self, method: Method, path: &str, token: &str, body: Value) -> anyhow::Result<Value> {
        let (status, answer) = self.send(method, path, Some(token), "application/json", body.to_string()).await?;
        anyhow::ensure!(status.is_success(), "{path}: {status} {answer}");
        Ok(answer)
    }
}

/// A path with ids that exist nowhere.
fn filled(path: &str) -> String {
    path.replace("{id}", "987654").replace("{route_id}", "987654")
}

#[tokio::test]
async fn every_row_is_closed_to_nobody_and_to_lower_roles() -> anyhow::Result<()> {
    let lab = Lab::start().await?;
    let roles = [Role::Viewer, Role::Editor, Role::Admin];
    let mut tokens = Vec::new();
    for role in roles {
        tokens.push((role, lab.sign_in(role).await?));
    }
    for (access, _) in table::rows() {
        let Floor::Role(floor) = access.floor else { continue };
        // Ending the session would make the next call fail for another reason.
        if access.path == "/logout" {
            continue;
        }
        let path = filled(access.path);
        let call = |token: Option<String>| {
            let (lab, method, path) = (&lab, access.method.clone(), path.clone());
            async move { lab.send(method, &path, token.as_deref(), "application/json", "{}".to_owned()).await }
        };
        let (status, body) = call(None).await?;
        assert_eq!((status, &body["error"]["type"]), (StatusCode::UNAUTHORIZED, &json!("unauthorized")), "{access:?}");
        assert_eq!(call(Some("sk-mgmt-unknown".to_owned())).await?.0, StatusCode::UNAUTHORIZED, "{access:?}");
        for (role, token) in &tokens {
            let (status, body) = call(Some(token.clone())).await?;
            let refused = status == StatusCode::FORBIDDEN;
            assert_eq!(refused, *role < floor, "{role:?} at {access:?}: {status} {body}");
            assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{access:?}: {body}");
            assert!(status.is_success() || body["error"]["message"].is_string(), "{access:?}: {body}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_is_not_ones_own_is_not_found() -> anyhow::Result<()> {
    let lab = Lab::start().await?;
    let (admin, editor) = (lab.sign_in(Role::Admin).await?, lab.sign_in(Role::Editor).await?);
    let theirs = lab.works(Method::POST, "/projects", &admin, json!({ "name": "theirs" })).await?;
    let id = theirs["project"]["id"].to_string();
    let own = lab.works(Method::POST, "/projects", &editor, json!({ "name": "own" })).await?;
    for (access, _) in table::rows() {
        if !access.path.starts_with("/projects/{id}") {
            continue;
        }
        let path = access.path.replace("{id}", &id).replace("{route_id}", "1");
        let valid = json!({ "name": "x", "groups": [[{ "connection_id": 1 }]] });
        let body = if access.path.contains("routes") { valid } else { json!({}) };
        let (status, _) =
            lab.send(access.method.clone(), &path, Some(&editor), "application/json", body.to_string()).await?;
        assert_eq!(status, StatusCode::NOT_FOUND, "{access:?}");
    }
    let listed = lab.works(Method::GET, "/projects", &editor, json!({})).await?;
    assert_eq!(listed["projects"], json!([own["project"]]));
    Ok(())
}

#[tokio::test]
async fn every_write_of_the_table_leaves_its_entry() -> anyhow::Result<()> {
    let lab = Lab::start().await?;
    let setup = json!({ "username": "root", "password": "correct horse battery", "bearer": true });
    let (status, begun) = lab.send(Method::POST, "/setup", None, "application/json", setup.to_string()).await?;
    assert_eq!(status, StatusCode::CREATED);
    let login = json!({ "username": "root", "password": "correct horse battery" });
    lab.send(Method::POST, "/login", None, "application/json", login.to_string()).await?;
    let token = begun["token"].as_str().unwrap();
    let works = async |method: Method, path: &str, body: Value| lab.works(method, path, token, body).await;

    let upstream = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, upstream::Options::scripted())?;
    let model = json!({
        "name": "m", "provider_type": "custom_openai", "model_name": "demo-embed", "base_url": upstream.base_url(),
    });
    let model = works(Method::POST, "/models", model).await?["id"].clone();
    works(Method::PUT, &format!("/models/{model}"), json!({ "name": "n" })).await?;
    let spare = json!({ "name": "s", "provider_type": "openai", "model_name": "gpt-4o" });
    let spare = works(Method::POST, "/models", spare).await?["id"].clone();
    works(Method::DELETE, &format!("/models/{spare}"), json!({})).await?;
    let price = json!({ "provider_type": "openai", "model_pattern": "x", "input": 1, "output": 1 });
    works(Method::POST, "/prices", price).await?;

    let project = works(Method::POST, "/projects", json!({ "name": "p" })).await?["project"]["id"].clone();
    works(Method::PUT, &format!("/projects/{project}"), json!({ "strict_models": true })).await?;
    works(Method::POST, &format!("/projects/{project}/rotate-key"), json!({})).await?;
    let routes = format!("/projects/{project}/routes");
    let route = json!({ "name": "r", "groups": [[{ "connection_id": model }]] });
    let route = works(Method::POST, &routes, route).await?["id"].clone();
    works(Method::PUT, &format!("{routes}/{route}"), json!({ "name": "r2" })).await?;
    works(Method::DELETE, &format!("{routes}/{route}"), json!({})).await?;

    let store = json!({ "project_id": project, "embedding_connection_id": model, "name": "s" });
    let store = works(Method::POST, "/rag-stores", store).await?["id"].clone();
    works(Method::PUT, &format!("/rag-stores/{store}"), json!({ "name": "t" })).await?;
    let form = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\ntext\r\n--b--\r\n";
    let documents = format!("/rag-stores/{store}/documents");
    let kind = "multipart/form-data; boundary=b";
    let (status, document) = lab.send(Method::POST, &documents, Some(token), kind, form.to_owned()).await?;
    assert_eq!(status, StatusCode::ACCEPTED, "{document}");
    let document = format!("/documents/{}", document["id"]);
    works(Method::POST, &format!("{document}/reprocess"), json!({})).await?;
    works(Method::POST, &format!("/rag-stores/{store}/reprocess"), json!({})).await?;
    let calibrate = format!("/rag-stores/{store}/calibrate");
    let (status, told) = lab
        .send(Method::POST, &calibrate, Some(token), "application/json", json!({ "queries": [] }).to_string())
        .await?;
    assert_eq!((status, told["error"]["message"].to_string().contains("at least 10")), (StatusCode::BAD_REQUEST, true));
    works(Method::DELETE, &document, json!({})).await?;
    works(Method::DELETE, &format!("/rag-stores/{store}"), json!({})).await?;
    works(Method::DELETE, &format!("/projects/{project}"), json!({})).await?;
    works(Method::POST, "/logout", json!({})).await?;

    let written: Vec<(String, String)> =
        sqlx::query_as("SELECT action, actor FROM audit_logs").fetch_all(&lab.pool).await?;
    assert!(written.iter().all(|(_, actor)| actor == "root"), "{written:?}");
    let written: BTreeSet<String> = written.into_iter().map(|(action, _)| action).collect();
    let named = table::rows().into_iter().filter_map(|(access, _)| access.action.map(str::to_owned));
    assert_eq!(written, named.collect::<BTreeSet<String>>());
    Ok(())
}
