//! Projects: the tenants, with their caps and their key.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod rotate_key;
pub(crate) mod update;

use domain::{
    ConnectionId, Enforcement, Limits, ProjectId, RerankSettings, RetrievalSettings, RetrieveWhen, RouteId, StoreId,
};
use serde::{Deserialize, Serialize};
use store::Reach;
use store::projects::{Project, ProjectSettings};
use time::OffsetDateTime;

use super::checks;
use crate::app::App;
use crate::body::nullable;
use crate::error::ApiError;

const MAX_PROMPT_BYTES: usize = 64 * 1024;

/// A project, as the API shows it.
#[derive(Serialize)]
pub(crate) struct View {
    id: ProjectId,
    name: String,
    default_route_id: Option<RouteId>,
    store_id: Option<StoreId>,
    system_prompt: String,
    strict_models: bool,
    allow_unpriced: bool,
    enforcement: Enforcement,
    retrieval: RetrievalSettings,
    time_zone: String,
    /// Tokens and requests as they are, cost in nano-USD; zero is no cap.
    limits: Limits,
    api_key_prefix: Option<String>,
    revision: i64,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<Project> for View {
    fn from(project: Project) -> Self {
        let settings = project.settings;
        Self {
            id: project.id,
            name: settings.name,
            default_route_id: settings.default_route,
            store_id: settings.store,
            system_prompt: settings.system_prompt,
            strict_models: settings.strict_models,
            allow_unpriced: settings.allow_unpriced,
            enforcement: settings.enforcement,
            retrieval: settings.retrieval,
            time_zone: settings.time_zone,
            limits: settings.limits,
            api_key_prefix: project.key_prefix,
            revision: project.revision,
            created_at: project.created_at,
            updated_at: project.updated_at,
        }
    }
}

/// The members that people may set, in a new project and in a change alike.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Changes {
    name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    default_route_id: Option<Option<RouteId>>,
    #[serde(deserialize_with = "nullable")]
    store_id: Option<Option<StoreId>>,
    system_prompt: Option<String>,
    strict_models: Option<bool>,
    allow_unpriced: Option<bool>,
    enforcement: Option<Enforcement>,
    retrieval: Option<RetrievalChanges>,
    time_zone: Option<String>,
    limits: Option<LimitChanges>,
}

/// Caps; what is left out stays.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitChanges {
    requests_per_minute: Option<i64>,
    tokens_per_minute: Option<i64>,
    tokens_per_day: Option<i64>,
    tokens_per_month: Option<i64>,
    cost_per_day: Option<domain::NanoUsd>,
    cost_per_month: Option<domain::NanoUsd>,
    concurrent_requests: Option<i64>,
}

/// Retrieval settings; what is left out stays.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RetrievalChanges {
    when: Option<RetrieveWhen>,
    #[serde(deserialize_with = "nullable")]
    top_k: Option<Option<u32>>,
    condense: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    rerank: Option<Option<RerankChange>>,
}

/// Who orders what was found.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RerankChange {
    connection_id: ConnectionId,
    candidates: Option<u32>,
}

impl RetrievalChanges {
    fn apply(self, now: RetrievalSettings) -> Result<RetrievalSettings, ApiError> {
        let rerank = |change: RerankChange| RerankSettings {
            connection_id: change.connection_id,
            candidates: change.candidates.unwrap_or(RerankSettings::DEFAULT_CANDIDATES),
        };
        let settings = RetrievalSettings {
            when: self.when.unwrap_or(now.when),
            top_k: self.top_k.unwrap_or(now.top_k),
            condense: self.condense.unwrap_or(now.condense),
            rerank: self.rerank.map_or(now.rerank, |change| change.map(rerank)),
        };
        match settings.fault() {
            Some((member, must)) => Err(ApiError::invalid(format!("retrieval.{member}: expected {must}"))),
            None => Ok(settings),
        }
    }
}

impl LimitChanges {
    fn apply(self, now: Limits) -> Result<Limits, ApiError> {
        let limits = Limits {
            requests_per_minute: self.requests_per_minute.unwrap_or(now.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.unwrap_or(now.tokens_per_minute),
            tokens_per_day: self.tokens_per_day.unwrap_or(now.tokens_per_day),
            tokens_per_month: self.tokens_per_month.unwrap_or(now.tokens_per_month),
            cost_per_day: self.cost_per_day.unwrap_or(now.cost_per_day),
            cost_per_month: self.cost_per_month.unwrap_or(now.cost_per_month),
            concurrent_requests: self.concurrent_requests.unwrap_or(now.concurrent_requests),
        };
        match limits.negative() {
            Some(cap) => Err(ApiError::invalid(format!("limits.{cap}: a cap cannot be negative; 0 is no cap"))),
            None => Ok(limits),
        }
    }
}

impl Changes {
    /// The settings after the changes, checked.
    async fn apply(self, app: &App, now: ProjectSettings) -> Result<ProjectSettings, ApiError> {
        let settings = ProjectSettings {
            name: checks::name(self.name.as_deref().unwrap_or(&now.name))?,
            default_route: self.default_route_id.unwrap_or(now.default_route),
            store: self.store_id.unwrap_or(now.store),
            system_prompt: self.system_prompt.unwrap_or(now.system_prompt),
            strict_models: self.strict_models.unwrap_or(now.strict_models),
            allow_unpriced: self.allow_unpriced.unwrap_or(now.allow_unpriced),
            enforcement: self.enforcement.unwrap_or(now.enforcement),
            retrieval: self.retrieval.unwrap_or_default().apply(now.retrieval)?,
            time_zone: self.time_zone.unwrap_or(now.time_zone),
            limits: self.limits.unwrap_or_default().apply(now.limits)?,
        };
        if settings.system_prompt.len() > MAX_PROMPT_BYTES || settings.system_prompt.contains('\0') {
            return Err(ApiError::invalid("system_prompt: expected at most 64 KiB of text"));
        }
        let chosen = |rerank: &RerankSettings| Some(rerank.connection_id);
        if let Some(rerank) = settings.retrieval.rerank
            && chosen(&rerank) != now.retrieval.rerank.as_ref().and_then(chosen)
        {
            let found = app.store.find_connection(rerank.connection_id).await?.and_then(|found| found.target());
            if !found.is_some_and(|target| target.provider.reranks()) {
                return Err(ApiError::invalid(
                    "retrieval.rerank.connection_id: there is no such connection that reranks",
                ));
            }
        }
        if settings.time_zone.contains('\0') || !app.store.is_time_zone(&settings.time_zone).await? {
            return Err(ApiError::invalid("time_zone: expected a name of the IANA database, such as Europe/Berlin"));
        }
        Ok(settings)
    }
}

/// One project within reach, or the error that there is none.
pub(super) async fn read(app: &App, reach: Reach, id: ProjectId) -> Result<Project, ApiError> {
    app.store.find_project(reach, id).await?.ok_or(ApiError::NotFound)
}
