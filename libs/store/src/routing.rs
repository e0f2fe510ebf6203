//! What an edge needs to know of a project to serve its calls: its settings, its routes and where they lead.

use domain::{Enforcement, OutputField, ProjectId, RetrievalSettings, RouteId, StoreId};
use serde::Deserialize;
use time::OffsetDateTime;

use crate::targets::UpstreamTarget;
use crate::{Store, StoreError};

/// A project as an edge sees it.
#[derive(Clone, Debug)]
pub struct ProjectRouting {
    /// Which project.
    pub project: ProjectId,
    /// Its name.
    pub name: String,
    /// The route for model names it has no route for.
    pub default_route: Option<RouteId>,
    /// The store its chats are grounded on, if the project may (still) read it.
    pub store: Option<StoreId>,
    /// Text that goes before every conversation; may be empty.
    pub system_prompt: String,
    /// Whether unknown model names are an error rather than the default route.
    pub strict_models: bool,
    /// Whether models without a price may be called under a cost budget.
    pub allow_unpriced: bool,
    /// How output bounds are kept.
    pub enforcement: Enforcement,
    /// Whether any cost cap is set.
    pub has_cost_budget: bool,
    /// Whether any limit is set.
    pub has_limits: bool,
    /// How its documents are searched.
    pub retrieval: RetrievalSettings,
    /// The model that orders what was found; `None` where none is to, or it is gone.
    pub reranker: Option<UpstreamTarget>,
    /// Its routes by name.
    pub routes: Vec<Route>,
}

/// A public model name.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which route.
    pub id: RouteId,
    /// The public name.
    pub name: String,
    /// Output bound in tokens for calls that bring none.
    pub max_output: Option<i64>,
    /// Less room than this many output tokens is a denial.
    pub min_output: i64,
    /// Tokens that retrieved passages may take.
    pub context_tokens: i64,
    /// `system` or `last_user`; `None` for the provider's default.
    pub context_placement: Option<String>,
    /// Features that cost more than their tokens and are allowed all the same.
    pub allowed_features: Vec<String>,
    /// Whether a request that was sent and not answered in time may be sent again.
    pub replay_timeouts: bool,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// Where it leads, in the order of groups. Providers unknown to this build are left out.
    pub targets: Vec<RouteTarget>,
}

/// One way a route may go.
#[derive(Clone, Debug)]
pub struct RouteTarget {
    /// The connection's name.
    pub connection_name: String,
    /// Groups are tried in this order.
    pub group: i16,
    /// Share of the group's calls.
    pub weight: i32,
    /// How its output is bounded.
    pub output_field: OutputField,
    /// Where it is.
    pub upstream: UpstreamTarget,
}

impl Store {
    /// A project with its routes; `None` when it does not exist. The two statements may see different moments: whoever
    /// keeps the answer drops it for changes logged after it began to read.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_project_routing(&self, project: ProjectId) -> Result<Option<ProjectRouting>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT p.name, p.default_route_id, p.system_prompt, p.strict_models, p.allow_unpriced, p.enforcement,
                      (p.cost_per_day > 0 OR p.cost_per_month > 0) AS "has_cost_budget!",
                      greatest(p.requests_per_minute, p.tokens_per_minute, p.tokens_per_day, p.tokens_per_month,
                               p.cost_per_day, p.cost_per_month, p.concurrent_requests) > 0 AS "has_limits!", p.retrieval,
                      (SELECT s.id FROM document_stores s
                        WHERE s.id = p.store_id
                          AND (s.project_id = p.id
                               OR EXISTS (SELECT FROM project_stores g WHERE g.project_id = p.id AND g.store_id = s.id))
                      ) AS store_id
                 FROM projects p WHERE p.id = $1"#,
            project.0
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let retrieval = RetrievalSettings::deserialize(row.retrieval).unwrap_or_default();
        let reranker = match retrieval.rerank {
            Some(rerank) => self.find_connection(rerank.connection_id).await?.and_then(|found| found.target()),
            None => None,
        };
        Ok(Some(ProjectRouting {
            project,
            name: row.name,
            default_route: row.default_route_id.map(RouteId),
            store: row.store_id.map(StoreId),
            system_prompt: row.system_prompt,
            strict_models: row.strict_models,
            allow_unpriced: row.allow_unpriced,
            // A word this build does not know can only be a stricter one.
            enforcement: Enforcement::parse(&row.enforcement).unwrap_or(Enforcement::Hard),
            has_cost_budget: row.has_cost_budget,
            has_limits: row.has_limits,
            retrieval,
            reranker,
            routes: self.list_routes_with_targets(project).await?,
        }))
    }

    async fn list_routes_with_targets(&self, project: ProjectId) -> Result<Vec<Route>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT r.id, r.name, r.max_output, r.min_output, r.context_tokens, r.context_placement, r.created_at,
                      r.allowed_features, r.replay_timeouts, t.group_number AS "group_number?", t.weight AS "weight?", c.id AS "connection_id?",
                      c.name AS "connection_name?", c.provider_type AS "provider_type?", c.base_url AS "base_url?", c.model_name AS "model_name?",
                      c.credential_sealed AS "credential_sealed?", c.output_field AS "output_field?"
                 FROM routes r
                      LEFT JOIN route_targets t ON t.route_id = r.id
                      LEFT JOIN model_connections c ON c.id = t.connection_id
                WHERE r.project_id = $1
                ORDER BY r.name, r.id, t.group_number, t.connection_id"#,
            project.0
        )
        .fetch_all(self.pool())
        .await?;
        let mut routes: Vec<Route> = Vec::new();
        for row in rows {
            if routes.last().is_none_or(|route| route.id.0 != row.id) {
                routes.push(Route {
                    id: RouteId(row.id),
                    name: row.name,
                    max_output: row.max_output,
                    min_output: row.min_output,
                    context_tokens: row.context_tokens,
                    context_placement: row.context_placement,
                    allowed_features: row.allowed_features,
                    replay_timeouts: row.replay_timeouts,
                    created_at: row.created_at,
                    targets: Vec::new(),
                });
            }
            let target = (row.connection_id, row.provider_type, row.base_url, row.model_name, row.group_number);
            let (Some(connection), Some(provider), Some(base_url), Some(model), Some(group)) = target else { continue };
            let upstream = UpstreamTarget::new(connection, &provider, base_url, model, row.credential_sealed);
            if let (Some(route), Some(upstream)) = (routes.last_mut(), upstream) {
                // A word this build does not know is no field that it could send.
                let output_field = match row.output_field {
                    Some(name) => OutputField::parse(&name).unwrap_or(OutputField::None),
                    None => upstream.provider.output_field(),
                };
                route.targets.push(RouteTarget {
                    connection_name: row.connection_name.unwrap_or_default(),
                    group,
                    weight: row.weight.unwrap_or(1),
                    output_field,
                    upstream,
                });
            }
        }
        Ok(routes)
    }

    /// Names of projects, in the order of their ids; ones that do not exist are left out.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_project_names(&self, projects: &[ProjectId]) -> Result<Vec<(ProjectId, String)>, StoreError> {
        let ids: Vec<i64> = projects.iter().map(|project| project.0).collect();
        let rows = sqlx::query!("SELECT id, name FROM projects WHERE id = ANY ($1) ORDER BY id", &ids)
            .fetch_all(self.pool())
            .await?;
        Ok(rows.into_iter().map(|row| (ProjectId(row.id), row.name)).collect())
    }
}
