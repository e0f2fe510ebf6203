//! `POST /v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::Response;
use providers::{EmbeddingsRequest, UpstreamError};
use rand::rng;

use crate::catalog::{PublicRoute, Target, distinct_providers};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::single::{Course, Sending, Single, Tariff, answer, total};
use crate::state::Shared;

/// Passes an embeddings call through, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    mut asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = EmbeddingsRequest::parse(&received).map_err(EdgeError::from)?;
    let order = |route: &PublicRoute| route.order_of_embedders(&mut rng());
    let course = Course::of(&edge, &asked.caller, &request.model, order).await?;
    for provider in distinct_providers(course.targets()) {
        let features = request.costly_features(provider);
        course.project.allow_features(&asked.caller, course.route(), &features)?;
    }
    // All targets have the same model.
    let family = course.first()?.measure.family;
    let tokens = edge.counter.embeddings(family, &received, &request).await?;
    let counted = total(&tokens).unsigned_abs();
    let single = Single {
        operation: "embeddings",
        course: &course,
        tags: std::mem::take(&mut asked.tags).and(request.metadata, request.user.as_deref()),
        tokens,
        tariff: Tariff::Tokens,
    };
    let mut make = |target: &Target| {
        let call = request.call(target.provider, &target.model, course.public_model());
        call.map(|call| call.counted(counted)).map_err(UpstreamError::Unfit)
    };
    answer(&edge, asked, single, Sending::Embeddings(&mut make)).await
}
