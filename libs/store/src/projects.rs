//! Projects: the tenants. Admission locks their rows, so every write to one is a single short statement.

use domain::{ApiKey, Enforcement, Limits, NanoUsd, ProjectId, RetrievalSettings, RouteId, StoreId, UserId};
use serde::Deserialize;
use time::OffsetDateTime;

use crate::audit::AuditEntry;
use crate::{Reach, Store, StoreError};

/// What people set of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectSettings {
    /// Its name, unique in the installation.
    pub name: String,
    /// The route of calls that name no model of the project; one of the project's own.
    pub default_route: Option<RouteId>,
    /// The store that its calls search; one of its own, or one it was granted.
    pub store: Option<StoreId>,
    /// Put before every conversation.
    pub system_prompt: String,
    /// Whether a model that is no route of the project is refused instead of answered by the default route.
    pub strict_models: bool,
    /// Whether models without a price may be called although a cost cap is set.
    pub allow_unpriced: bool,
    /// How the output bound is kept.
    pub enforcement: Enforcement,
    /// How its documents are searched.
    pub retrieval: RetrievalSettings,
    /// The zone whose calendar its days and months follow; a name of `pg_timezone_names`.
    pub time_zone: String,
    /// Its caps.
    pub limits: Limits,
}

impl ProjectSettings {
    /// A project of this name with the defaults: no route, no store, no caps, UTC.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            default_route: None,
            store: None,
            system_prompt: String::new(),
            strict_models: false,
            allow_unpriced: false,
            enforcement: Enforcement::Soft,
            retrieval: RetrievalSettings::default(),
            time_zone: "UTC".to_owned(),
            limits: Limits::default(),
        }
    }
}

/// A project as stored.
#[derive(Clone, Debug)]
pub struct Project {
    /// Which one.
    pub id: ProjectId,
    /// What people set.
    pub settings: ProjectSettings,
    /// The first characters of its key.
    pub key_prefix: Option<String>,
    /// Counts changes.
    pub revision: i64,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it was changed.
    pub updated_at: OffsetDateTime,
}

/// How the deletion of a project ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectDeletion {
    /// It is gone.
    Deleted,
    /// It stays: calls are open or logged under it.
    HasUsage,
}

macro_rules! select_projects {
    ($tail:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            Row,
            r#"SELECT p.id, p.name, p.default_route_id, p.store_id, p.system_prompt, p.strict_models, p.allow_unpriced,
                      p.enforcement, p.retrieval, p.time_zone, p.requests_per_minute, p.tokens_per_minute, p.tokens_per_day,
                      p.tokens_per_month, p.cost_per_day, p.cost_per_month, p.concurrent_requests,
                      k.key_prefix AS "key_prefix?", p.revision, p.created_at, p.updated_at
                 FROM projects p
                      LEFT JOIN api_keys k ON k.project_id = p.id AND k.kind = 'project' AND k.revoked_at IS NULL "#
                + $tail
            $(, $argument)*
        )
    };
}

struct Row {
    id: i64,
    name: String,
    default_route_id: Option<i64>,
    store_id: Option<i64>,
    system_prompt: String,
    strict_models: bool,
    allow_unpriced: bool,
    enforcement: String,
    retrieval: serde_json::Value,
    time_zone: String,
    requests_per_minute: i64,
    tokens_per_minute: i64,
    tokens_per_day: i64,
    tokens_per_month: i64,
    cost_per_day: i64,
    cost_per_month: i64,
    concurrent_requests: i64,
    key_prefix: Option<String>,
    revision: i64,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl From<Row> for Project {
    fn from(row: Row) -> Self {
        Self {
            id: ProjectId(row.id),
            settings: ProjectSettings {
                name: row.name,
                default_route: row.default_route_id.map(RouteId),
                store: row.store_id.map(StoreId),
                system_prompt: row.system_prompt,
                strict_models: row.strict_models,
                allow_unpriced: row.allow_unpriced,
                enforcement: Enforcement::parse(&row.enforcement).unwrap_or_default(),
                retrieval: RetrievalSettings::deserialize(row.retrieval).unwrap_or_default(),
                time_zone: row.time_zone,
                limits: Limits {
                    requests_per_minute: row.requests_per_minute,
                    tokens_per_minute: row.tokens_per_minute,
                    tokens_per_day: row.tokens_per_day,
                    tokens_per_month: row.tokens_per_month,
                    cost_per_day: NanoUsd(row.cost_per_day),
                    cost_per_month: NanoUsd(row.cost_per_month),
                    concurrent_requests: row.concurrent_requests,
                },
            },
            key_prefix: row.key_prefix,
            revision: row.revision,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl Store {
    /// The projects within reach, by name.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_projects(&self, reach: Reach) -> Result<Vec<Project>, StoreError> {
        let rows = select_projects!("WHERE can_reach_project(p.id, $1) ORDER BY p.name LIMIT 10000", reach.member())
            .fetch_all(self.pool())
            .await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// One project within reach.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_project(&self, reach: Reach, id: ProjectId) -> Result<Option<Project>, StoreError> {
        let row = select_projects!("WHERE p.id = $1 AND can_reach_project(p.id, $2)", id.0, reach.member())
            .fetch_optional(self.pool())
            .await?;
        Ok(row.map(Into::into))
    }

    /// Whether this is the name of a time zone that PostgreSQL knows, written as it writes it. The list has names that
    /// are no zones: `Factory` stands for one that nobody has set, `localtime` and `posixrules` for whatever the server's
    /// system has, and what lies under `posix/` and `right/` are copies.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn is_time_zone(&self, name: &str) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM pg_timezone_names WHERE name = $1
                              AND name !~ '^(Factory$|localtime$|posixrules$|posix/|right/)') AS "exists!""#,
            name
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Makes a project with its key and, when a person makes it, that person as its first member. It has neither route
    /// nor store yet: those belong to a project that exists.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken.
    pub async fn create_project(
        &self,
        settings: &ProjectSettings,
        key: &ApiKey,
        member: Option<UserId>,
        entry: &AuditEntry,
    ) -> Result<ProjectId, StoreError> {
        let (limits, hash) = (&settings.limits, key.hash());
        let made = sqlx::query!(
            r#"WITH made AS (
                   INSERT INTO projects (name, system_prompt, strict_models, allow_unpriced, enforcement, time_zone,
                                         requests_per_minute, tokens_per_minute, tokens_per_day, tokens_per_month,
                                         cost_per_day, cost_per_month, concurrent_requests, retrieval)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $18)
                   RETURNING id),
               key AS (
                   INSERT INTO api_keys (kind, name, key_hash, key_prefix, project_id)
                   SELECT 'project', 'project', $14, $15, id FROM made),
               member AS (
                   INSERT INTO project_members (project_id, user_id)
                   SELECT id, $16::bigint FROM made WHERE $16::bigint IS NOT NULL)
               SELECT id AS "id!", record_change('project', id, $17) AS sequence FROM made"#,
            settings.name,
            settings.system_prompt,
            settings.strict_models,
            settings.allow_unpriced,
            settings.enforcement.as_str(),
            settings.time_zone,
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.tokens_per_day,
            limits.tokens_per_month,
            limits.cost_per_day.0,
            limits.cost_per_month.0,
            limits.concurrent_requests,
            hash.as_bytes().as_slice(),
            key.display_prefix(),
            member.map(|user| user.0),
            entry.to_json(),
            to_json(&settings.retrieval)
        )
        .fetch_one(self.pool())
        .await?;
        Ok(ProjectId(made.id))
    }

    /// Changes a project within reach that still has the given revision. Documents that wait for its budget are due then.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken; [`StoreError::Conflict`] when the project was changed or
    /// deleted meanwhile, or the route is not its own, or the store neither its own nor granted to it.
    pub async fn update_project(
        &self,
        reach: Reach,
        id: ProjectId,
        revision: i64,
        settings: &ProjectSettings,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let limits = &settings.limits;
        let changed = sqlx::query_file_scalar!(
            "src/queries/update_project.sql",
            id.0,
            revision,
            settings.name,
            settings.default_route.map(|route| route.0),
            settings.store.map(|store| store.0),
            settings.system_prompt,
            settings.strict_models,
            settings.allow_unpriced,
            settings.enforcement.as_str(),
            settings.time_zone,
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.tokens_per_day,
            limits.tokens_per_month,
            limits.cost_per_day.0,
            limits.cost_per_month.0,
            limits.concurrent_requests,
            reach.member(),
            entry.to_json(),
            to_json(&settings.retrieval)
        )
        .fetch_optional(self.pool())
        .await?;
        changed.ok_or(StoreError::Conflict)?;
        if let Err(error) = self.release_budget_waits(id).await {
            // The change itself stands. They are due when the window ends, as if nothing had been changed.
            tracing::warn!(error = &error as &dyn std::error::Error, "documents that wait for a budget were not told");
        }
        Ok(())
    }

    /// Gives a project a new key in place of its old one, which ends with this statement.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the project is not within reach or has no key.
    pub async fn rotate_project_key(
        &self,
        reach: Reach,
        id: ProjectId,
        key: &ApiKey,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let hash = key.hash();
        let rotated = sqlx::query_scalar!(
            "WITH rotated AS (
                 UPDATE api_keys
                    SET key_hash = $2, key_prefix = $3, previous_hash = NULL, previous_valid_until = NULL,
                        revision = revision + 1
                  WHERE project_id = $1 AND kind = 'project' AND revoked_at IS NULL AND can_reach_project($1, $4)
                 RETURNING id)
             SELECT append_config_change('api_key', id) + record_audit('project', $1, $5) FROM rotated",
            id.0,
            hash.as_bytes().as_slice(),
            key.display_prefix(),
            reach.member(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        rotated.map(|_| ()).ok_or(StoreError::NotFound)
    }

    /// Deletes a project within reach, with its routes, members and key, unless calls were made under it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Referenced`] while it owns a store.
    pub async fn delete_project(
        &self,
        reach: Reach,
        id: ProjectId,
        entry: &AuditEntry,
    ) -> Result<ProjectDeletion, StoreError> {
        let outcome = sqlx::query_scalar!(
            r#"SELECT delete_project($1, $2, $3) AS "deleted?""#,
            id.0,
            reach.member(),
            entry.to_json()
        )
        .fetch_one(self.pool())
        .await?;
        match outcome {
            Some(true) => Ok(ProjectDeletion::Deleted),
            Some(false) => Ok(ProjectDeletion::HasUsage),
            None => Err(StoreError::NotFound),
        }
    }
}

fn to_json(retrieval: &RetrievalSettings) -> serde_json::Value {
    serde_json::to_value(retrieval).unwrap_or_else(|_| serde_json::json!({}))
}
