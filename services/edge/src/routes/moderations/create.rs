//! `POST /v1/moderations`.

use axum::extract::{Request, State};
use axum::response::Response;
use providers::ModerationRequest;
use rand::rng;

use crate::catalog::Target;
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::single::{Sending, Single, Tariff, answer};
use crate::state::Shared;

/// Passes a moderation through, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    mut asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = ModerationRequest::parse(&received).map_err(EdgeError::from)?;
    let project = edge.catalog.project(asked.caller.project).await?;
    let chosen = project.choose(&request.model, &asked.caller)?;
    let route = &chosen.route;
    let targets = route.order_of(|target| target.provider.speaks_openai(), &mut rng())?;
    let measure = route.at(&targets, 0)?.measure;
    let texts = edge.counter.each(measure.family, &request.texts).await?;
    let texts = texts.into_iter().fold(0_i64, i64::saturating_add);
    let single = Single {
        operation: "moderations",
        project: &project,
        route,
        targets: &targets,
        tags: std::mem::take(&mut asked.tags).and(request.metadata, request.user.as_deref()),
        tokens: vec![texts.saturating_add(measure.pictures(request.images))],
        tariff: Tariff::Moderations,
    };
    let mut make = |target: &Target| Ok(request.call(&target.model, &chosen.public_model));
    answer(&edge, asked, single, Sending::Whole(&mut make)).await
}
