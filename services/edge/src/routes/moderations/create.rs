//! `POST /v1/moderations`.

use axum::extract::{Request, State};
use axum::response::Response;
use providers::ModerationRequest;
use rand::rng;

use crate::catalog::{PublicRoute, Target};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::single::{Course, Sending, Single, Tariff, answer};
use crate::state::Shared;

/// Passes a moderation through, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    mut asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = ModerationRequest::parse(&received).map_err(EdgeError::from)?;
    let order = |route: &PublicRoute| route.order_of(|target| target.provider.speaks_openai(), &mut rng());
    let course = Course::of(&edge, &asked.caller, &request.model, order).await?;
    let measure = course.first()?.measure;
    let texts = edge.counter.each(measure.family, &request.texts).await?;
    let texts = texts.into_iter().fold(0_i64, i64::saturating_add);
    let single = Single {
        operation: "moderations",
        course: &course,
        tags: std::mem::take(&mut asked.tags).and(request.metadata, request.user.as_deref()),
        tokens: vec![texts.saturating_add(measure.pictures(request.images))],
        tariff: Tariff::Moderations,
    };
    let mut make = |target: &Target| Ok(request.call(&target.model, course.public_model()));
    answer(&edge, asked, single, Sending::Whole(&mut make)).await
}
