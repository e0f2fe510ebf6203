//! `POST /v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::Response;
use providers::{EmbeddingsRequest, UpstreamError};
use rand::rng;

use crate::catalog::{Target, distinct_providers};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::single::{Sending, Single, Tariff, answer};
use crate::state::Shared;

/// Passes an embeddings call through, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    mut asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = EmbeddingsRequest::parse(&received).map_err(EdgeError::from)?;
    let project = edge.catalog.project(asked.caller.project).await?;
    let chosen = project.choose(&request.model, &asked.caller)?;
    let route = &chosen.route;
    let targets = route.order_of_embedders(&mut rng())?;
    for provider in distinct_providers(targets.iter().filter_map(|at| route.targets.get(*at))) {
        project.allow_features(&asked.caller, route, &request.costly_features(provider))?;
    }
    // All targets have the same model.
    let family = route.at(&targets, 0)?.measure.family;
    let single = Single {
        operation: "embeddings",
        project: &project,
        route,
        targets: &targets,
        tags: std::mem::take(&mut asked.tags).and(request.metadata, request.user.as_deref()),
        tokens: edge.counter.embeddings(family, &received, &request).await?,
        tariff: Tariff::Tokens,
    };
    let mut make = |target: &Target| {
        request.call(target.provider, &target.model, &chosen.public_model).map_err(UpstreamError::Unfit)
    };
    answer(&edge, asked, single, Sending::Embeddings(&mut make)).await
}
