//! Routes, connections and keys for tests of what calls them, and the log rows those calls leave.

use domain::{ApiKey, ApiKeyId, ConnectionId, KeyKind, ProjectId, RouteId, UserId};
use sqlx::{AssertSqlSafe, PgPool};

use super::TestDatabase;

/// What the log says of one call.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct LoggedCall {
    /// The call.
    pub request_id: String,
    /// `chat`, `embeddings` or `retrieve`.
    pub operation: String,
    /// The public model name.
    pub route: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The status the client got.
    pub status: i32,
    /// Why it failed.
    pub error_code: Option<String>,
    /// `final` or `estimated`.
    pub state: String,
    /// Whether it was streamed.
    pub streamed: bool,
    /// Reported prompt tokens.
    pub prompt_tokens: Option<i64>,
    /// Reported completion tokens.
    pub completion_tokens: Option<i64>,
    /// Requests charged.
    pub charged_requests: i64,
    /// Tokens charged.
    pub charged_tokens: i64,
    /// Nano-USD charged.
    pub charged_cost: i64,
    /// Upstream attempts.
    pub attempts: i32,
    /// Passages added.
    pub rag_hits: Option<i32>,
    /// The client's tags.
    pub tags: Option<serde_json::Value>,
    /// The connection that was asked last.
    pub connection_id: Option<i64>,
}

impl TestDatabase {
    async fn with_pool<T, F>(&self, work: impl FnOnce(PgPool) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let pool = self.superuser_pool().await?;
        let done = work(pool.clone()).await;
        pool.close().await;
        Ok(done?)
    }

    /// A connection to an OpenAI-shaped server.
    ///
    /// # Errors
    /// When the name is taken.
    pub async fn insert_connection(&self, name: &str, base_url: &str, model: &str) -> anyhow::Result<ConnectionId> {
        self.with_pool(async |pool| {
            sqlx::query_scalar(
                "INSERT INTO model_connections (name, provider_type, base_url, model_name)
                 VALUES ($1, 'custom_openai', $2, $3) RETURNING id",
            )
            .bind(name)
            .bind(base_url)
            .bind(model)
            .fetch_one(&pool)
            .await
        })
        .await
        .map(ConnectionId)
    }

    /// Gives a connection a credential as the vault sealed it.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn set_credential(&self, connection: ConnectionId, sealed: &[u8]) -> anyhow::Result<()> {
        self.with_pool(async |pool| {
            sqlx::query("UPDATE model_connections SET credential_sealed = $2 WHERE id = $1")
                .bind(connection.0)
                .bind(sealed)
                .execute(&pool)
                .await
        })
        .await?;
        self.announce("connection", connection.0).await
    }

    /// A route to one connection; the first of a project is its default.
    ///
    /// # Errors
    /// When the name is taken.
    pub async fn insert_route(
        &self,
        project: ProjectId,
        name: &str,
        connection: ConnectionId,
    ) -> anyhow::Result<RouteId> {
        let id: i64 = self
            .with_pool(async |pool| {
                sqlx::query_scalar(
                    "WITH made AS (INSERT INTO routes (project_id, name) VALUES ($1, $2) RETURNING id),
                          target AS (INSERT INTO route_targets (route_id, connection_id) SELECT id, $3 FROM made),
                          chosen AS (UPDATE projects SET default_route_id = made.id FROM made
                                      WHERE projects.id = $1 AND default_route_id IS NULL)
                     SELECT id FROM made",
                )
                .bind(project.0)
                .bind(name)
                .bind(connection.0)
                .fetch_one(&pool)
                .await
            })
            .await?;
        self.announce("route", id).await?;
        Ok(RouteId(id))
    }

    /// Another connection for a route, in a group that may be new.
    ///
    /// # Errors
    /// When it is in the group.
    pub async fn add_target(
        &self,
        route: RouteId,
        connection: ConnectionId,
        group: i16,
        weight: i32,
    ) -> anyhow::Result<()> {
        self.with_pool(async |pool| {
            sqlx::query(
                "INSERT INTO route_targets (route_id, connection_id, group_number, weight) VALUES ($1, $2, $3, $4)",
            )
            .bind(route.0)
            .bind(connection.0)
            .bind(group)
            .bind(weight)
            .execute(&pool)
            .await
        })
        .await?;
        self.announce("route", route.0).await
    }

    /// Takes an edge's right to read a table away, so that what reads it fails.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn hide_from_edges(&self, table: &str) -> anyhow::Result<()> {
        let sql = format!("REVOKE ALL ON {table} FROM ragmux_edge");
        self.with_pool(|pool| async move { sqlx::query(AssertSqlSafe(sql)).execute(&pool).await }).await?;
        Ok(())
    }

    /// Changes a project (`column = value, …`) as the admin service would: the change is logged with it.
    ///
    /// # Errors
    /// When a value is not allowed.
    pub async fn change_project(&self, project: ProjectId, set: &str) -> anyhow::Result<()> {
        self.change("projects", "project", project.0, set).await
    }

    /// Changes a key, likewise.
    ///
    /// # Errors
    /// When a value is not allowed.
    pub async fn change_key(&self, key: ApiKeyId, set: &str) -> anyhow::Result<()> {
        self.change("api_keys", "api_key", key.0, set).await
    }

    /// Gives a key another secret, likewise. The one it had works for so many milliseconds more by the database's clock.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn rotate_key(&self, key: ApiKeyId, kind: KeyKind, grace_ms: i64) -> anyhow::Result<ApiKey> {
        let next = ApiKey::generate(kind);
        self.with_pool(async |pool| {
            sqlx::query(
                "UPDATE api_keys
                    SET previous_hash = CASE WHEN $3 > 0 THEN key_hash END,
                        previous_valid_until = CASE WHEN $3 > 0 THEN clock_timestamp() + $3 * interval '1 ms' END,
                        key_hash = $2
                  WHERE id = $1",
            )
            .bind(key.0)
            .bind(next.hash().as_bytes().as_slice())
            .bind(grace_ms)
            .execute(&pool)
            .await
        })
        .await?;
        self.announce("api_key", key.0).await?;
        Ok(next)
    }

    /// Gives a person's key a project, likewise.
    ///
    /// # Errors
    /// When it has it.
    pub async fn add_grant(&self, key: ApiKeyId, project: ProjectId) -> anyhow::Result<()> {
        self.with_pool(async |pool| {
            sqlx::query("INSERT INTO api_key_projects (api_key_id, project_id) VALUES ($1, $2)")
                .bind(key.0)
                .bind(project.0)
                .execute(&pool)
                .await
        })
        .await?;
        self.announce("api_key", key.0).await
    }

    /// Takes a project from a person's key, likewise.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn remove_grant(&self, key: ApiKeyId, project: ProjectId) -> anyhow::Result<()> {
        self.with_pool(async |pool| {
            sqlx::query("DELETE FROM api_key_projects WHERE api_key_id = $1 AND project_id = $2")
                .bind(key.0)
                .bind(project.0)
                .execute(&pool)
                .await
        })
        .await?;
        self.announce("api_key", key.0).await
    }

    /// Changes a route, likewise.
    ///
    /// # Errors
    /// When a value is not allowed.
    pub async fn change_route(&self, route: RouteId, set: &str) -> anyhow::Result<()> {
        self.change("routes", "route", route.0, set).await
    }

    /// Changes a connection, likewise.
    ///
    /// # Errors
    /// When a value is not allowed.
    pub async fn change_connection(&self, connection: ConnectionId, set: &str) -> anyhow::Result<()> {
        self.change("model_connections", "connection", connection.0, set).await
    }

    /// Changes a person, likewise.
    ///
    /// # Errors
    /// When a value is not allowed.
    pub async fn change_user(&self, user: UserId, set: &str) -> anyhow::Result<()> {
        self.change("users", "user", user.0, set).await
    }

    /// Sets a price, in nano-USD per million tokens.
    ///
    /// # Errors
    /// When the model has one.
    pub async fn insert_price(&self, model: &str, input: i64, output: i64) -> anyhow::Result<()> {
        self.insert_price_of("custom_openai", model, input, output).await
    }

    /// Sets a price of a provider's model, likewise.
    ///
    /// # Errors
    /// When the model has one.
    pub async fn insert_price_of(&self, provider: &str, model: &str, input: i64, output: i64) -> anyhow::Result<()> {
        self.with_pool(async |pool| {
            sqlx::query(
                "INSERT INTO model_prices (provider_type, model_pattern, input, output) VALUES ($4, $1, $2, $3)",
            )
            .bind(model)
            .bind(input)
            .bind(output)
            .bind(provider)
            .execute(&pool)
            .await
        })
        .await?;
        self.announce("price", 0).await
    }

    async fn change(&self, table: &str, kind: &str, id: i64, set: &str) -> anyhow::Result<()> {
        let sql = format!("UPDATE {table} SET {set} WHERE id = {id}");
        self.with_pool(async |pool| sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await).await?;
        self.announce(kind, id).await
    }

    async fn announce(&self, kind: &str, id: i64) -> anyhow::Result<()> {
        self.with_pool(async |pool| {
            sqlx::query("SELECT append_config_change($1, $2)").bind(kind).bind(id).execute(&pool).await
        })
        .await?;
        Ok(())
    }

    /// A person.
    ///
    /// # Errors
    /// When the name is taken.
    pub async fn insert_user(&self, name: &str) -> anyhow::Result<UserId> {
        self.with_pool(async |pool| {
            sqlx::query_scalar("INSERT INTO users (username, role) VALUES ($1, 'editor') RETURNING id")
                .bind(name)
                .fetch_one(&pool)
                .await
        })
        .await
        .map(UserId)
    }

    /// A person's key for projects.
    ///
    /// # Errors
    /// When the person has a key of that name.
    pub async fn insert_user_key(
        &self,
        user: UserId,
        name: &str,
        scopes: &[&str],
        projects: &[ProjectId],
    ) -> anyhow::Result<(ApiKeyId, ApiKey)> {
        let key = ApiKey::generate(KeyKind::Gateway);
        let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        let projects: Vec<i64> = projects.iter().map(|project| project.0).collect();
        let id = self
            .with_pool(async |pool| {
                sqlx::query_scalar(
                    "WITH made AS (INSERT INTO api_keys (kind, name, key_hash, key_prefix, owner_user_id, scopes)
                                   VALUES ('gateway', $1, $2, $3, $4, $5) RETURNING id),
                          grants AS (INSERT INTO api_key_projects (api_key_id, project_id)
                                     SELECT made.id, p FROM made, unnest($6::bigint[]) p)
                     SELECT id FROM made",
                )
                .bind(name)
                .bind(key.hash().as_bytes().as_slice())
                .bind(key.display_prefix())
                .bind(user.0)
                .bind(scopes)
                .bind(projects)
                .fetch_one(&pool)
                .await
            })
            .await?;
        Ok((ApiKeyId(id), key))
    }

    /// The log of a project, oldest call first.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn logged_calls(&self, project: ProjectId) -> anyhow::Result<Vec<LoggedCall>> {
        self.with_pool(async |pool| {
            sqlx::query_as(
                "SELECT request_id::text, operation, route, model, status, error_code, state, streamed, prompt_tokens,
                        completion_tokens, charged_requests, charged_tokens, charged_cost, attempts, rag_hits, tags,
                        connection_id
                   FROM request_logs WHERE project_id = $1 ORDER BY admitted_at, request_id",
            )
            .bind(project.0)
            .fetch_all(&pool)
            .await
        })
        .await
    }
}
