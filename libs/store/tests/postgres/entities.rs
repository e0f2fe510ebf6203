//! What the admin service writes, through the backend's role.

use std::path::Path;

use domain::{ApiKey, ConnectionId, KeyKind, OutputField, ProjectId, Secret};
use store::audit::{Actor, AuditEntry};
use store::connections::{ConnectionSettings, CredentialChange};
use store::projects::{ProjectDeletion, ProjectSettings};
use store::routes::{RouteSettings, RouteTarget};
use store::testing::{RoleName, TestDatabase};
use store::{Reach, StoreError};
use vault::Vault;

pub(crate) fn entry(action: &'static str) -> AuditEntry {
    AuditEntry::new(Actor::named("test"), action)
}

pub(crate) fn vault() -> anyhow::Result<Vault> {
    Ok(Vault::load(Some(&Secret::new("ab".repeat(32))), None, Path::new("/does/not/exist"))?)
}

pub(crate) fn connection(name: &str) -> ConnectionSettings {
    ConnectionSettings {
        name: name.to_owned(),
        provider_type: "custom_openai".to_owned(),
        base_url: "http://127.0.0.1:1/v1".to_owned(),
        model_name: "m".to_owned(),
        output_field: Some(OutputField::None),
    }
}

fn route(name: &str, connections: &[ConnectionId]) -> RouteSettings {
    RouteSettings {
        name: name.to_owned(),
        max_output: None,
        min_output: 64,
        context_tokens: 3000,
        context_placement: None,
        allowed_features: vec!["audio".to_owned()],
        replay_timeouts: true,
        groups: connections.iter().map(|connection| vec![RouteTarget { connection: *connection, weight: 1 }]).collect(),
    }
}

pub(crate) async fn project(database: &TestDatabase, name: &str) -> anyhow::Result<(ProjectId, ApiKey)> {
    let key = ApiKey::generate(KeyKind::Project);
    let store = database.store(RoleName::Backend)?;
    let id = store.create_project(&ProjectSettings::named(name), &key, None, &entry("project.create")).await?;
    Ok((id, key))
}

#[tokio::test]
async fn every_write_leaves_its_audit_entry_and_a_change_that_edges_see() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    let (project, key) = project(&database, "p").await?;
    let upstream = store.create_connection(&connection("c"), None, &vault()?, &entry("model.create")).await?;
    let made = store.create_route(Reach::All, project, &route("m", &[upstream]), &entry("route.create")).await?;
    let other = ApiKey::generate(KeyKind::Project);
    store.rotate_project_key(Reach::All, project, &other, &entry("project.rotate_key")).await?;

    let edge = database.store(RoleName::Edge)?;
    assert!(edge.find_principal(&key.hash()).await?.is_none(), "the old key ends at once");
    assert_eq!(edge.find_principal(&other.hash()).await?.and_then(|found| found.project), Some(project));
    let changes = edge.list_config_changes(0, 100).await?;
    let kinds: Vec<(&str, i64)> = changes.iter().map(|change| (change.kind.as_str(), change.row_id)).collect();
    assert_eq!(kinds[..3], [("project", project.0), ("connection", upstream.0), ("route", made.0)]);
    assert_eq!(kinds[3].0, "api_key");

    let pool = database.superuser_pool().await?;
    let actions: Vec<String> = sqlx::query_scalar("SELECT action FROM audit_logs ORDER BY id").fetch_all(&pool).await?;
    assert_eq!(actions, ["project.create", "model.create", "route.create", "project.rotate_key"]);
    let backend = sqlx::PgPool::connect(database.url(RoleName::Backend).expose()).await?;
    let changed = sqlx::query("UPDATE audit_logs SET actor = 'x'").execute(&backend).await;
    assert!(changed.unwrap_err().to_string().contains("permission denied"), "the log is append only");
    Ok(())
}

#[tokio::test]
async fn a_credential_opens_at_its_own_row_only() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (store, vault) = (database.store(RoleName::Backend)?, vault()?);
    let secret = Secret::new("sk-upstream");
    let id = store.create_connection(&connection("a"), Some(&secret), &vault, &entry("model.create")).await?;
    let other = store.create_connection(&connection("b"), None, &vault, &entry("model.create")).await?;
    let read = store.find_connection(id).await?.unwrap();
    assert_eq!(read.open_credential(&vault)?.unwrap().expose(), "sk-upstream");
    let target = read.target().unwrap();
    assert_eq!((target.connection, &target.base_url), (id, &read.settings.base_url));
    assert_eq!(target.open_credential(&vault)?.unwrap().expose(), "sk-upstream");

    let pool = database.superuser_pool().await?;
    sqlx::query("UPDATE model_connections SET credential_sealed = $1 WHERE id = $2")
        .bind(&read.credential_sealed)
        .bind(other.0)
        .execute(&pool)
        .await?;
    assert!(store.find_connection(other).await?.unwrap().open_credential(&vault).is_err());

    let stale = read.revision - 1;
    let update = async |revision, change| {
        store.update_connection(id, revision, &connection("a"), &change, &vault, &entry("model.update")).await
    };
    assert!(matches!(update(stale, CredentialChange::Keep).await, Err(StoreError::Conflict)));
    update(read.revision, CredentialChange::Keep).await?;
    assert!(store.find_connection(id).await?.unwrap().open_credential(&vault)?.is_some());
    update(read.revision + 1, CredentialChange::Clear).await?;
    assert!(store.find_connection(id).await?.unwrap().credential_sealed.is_none());
    Ok(())
}

#[tokio::test]
async fn a_project_takes_only_routes_and_stores_that_are_its_own() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    let upstream = store.create_connection(&connection("c"), None, &vault()?, &entry("model.create")).await?;
    let (mine, _) = project(&database, "mine").await?;
    let (theirs, _) = project(&database, "theirs").await?;
    let foreign = store.create_route(Reach::All, theirs, &route("m", &[upstream]), &entry("route.create")).await?;
    let own = store.create_route(Reach::All, mine, &route("m", &[upstream]), &entry("route.create")).await?;

    let mut settings = ProjectSettings::named("mine");
    settings.default_route = Some(foreign);
    let change = store.update_project(Reach::All, mine, 1, &settings, &entry("project.update")).await;
    assert!(matches!(change, Err(StoreError::Conflict)));
    settings.default_route = Some(own);
    store.update_project(Reach::All, mine, 1, &settings, &entry("project.update")).await?;
    assert_eq!(store.find_project(Reach::All, mine).await?.unwrap().settings, settings);

    store.update_route(Reach::All, mine, own, &route("n", &[upstream, upstream]), &entry("route.update")).await?;
    let read = store.list_routes(Reach::All, mine, Some(own)).await?;
    assert_eq!(read[0].settings, route("n", &[upstream, upstream]));
    let unknown = route("x", &[ConnectionId(999)]);
    let refused = store.create_route(Reach::All, mine, &unknown, &entry("route.create")).await;
    assert!(matches!(refused, Err(StoreError::Referenced { .. })));
    let refused = store.delete_connection(upstream, &entry("model.delete")).await;
    assert!(matches!(refused, Err(StoreError::Referenced { .. })));

    assert_eq!(store.delete_project(Reach::All, mine, &entry("project.delete")).await?, ProjectDeletion::Deleted);
    sqlx::query(
        "INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, operation, status, state,
                     charged_requests, charged_tokens, charged_cost)
                 VALUES (gen_random_uuid(), now(), gen_random_uuid(), $1, 'chat', 200, 'final', 1, 1, 1)",
    )
    .bind(theirs.0)
    .execute(&database.superuser_pool().await?)
    .await?;
    assert_eq!(store.delete_project(Reach::All, theirs, &entry("project.delete")).await?, ProjectDeletion::HasUsage);
    Ok(())
}

#[tokio::test]
async fn people_reach_the_projects_they_are_members_of() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (store, pool) = (database.store(RoleName::Backend)?, database.superuser_pool().await?);
    let user: i64 = sqlx::query_scalar("INSERT INTO users (username, role) VALUES ('u', 'editor') RETURNING id")
        .fetch_one(&pool)
        .await?;
    let reach = Reach::Member(domain::UserId(user));
    let (hidden, _) = project(&database, "hidden").await?;
    let key = ApiKey::generate(KeyKind::Project);
    let settings = ProjectSettings::named("own");
    let own = store.create_project(&settings, &key, Some(domain::UserId(user)), &entry("project.create")).await?;

    let listed: Vec<ProjectId> = store.list_projects(reach).await?.iter().map(|project| project.id).collect();
    assert_eq!(listed, [own]);
    assert!(store.find_project(reach, hidden).await?.is_none());
    let rotated = store.rotate_project_key(reach, hidden, &key, &entry("project.rotate_key")).await;
    assert!(matches!(rotated, Err(StoreError::NotFound)));
    let deleted = store.delete_project(reach, hidden, &entry("project.delete")).await;
    assert!(matches!(deleted, Err(StoreError::NotFound)));
    Ok(())
}
