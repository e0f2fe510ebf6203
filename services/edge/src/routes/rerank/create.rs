//! `POST /v1/rerank`.

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::response::Response;
use providers::{RerankRequest, search_units};
use rand::rng;
use tokens::Family;

use crate::catalog::{PublicRoute, Target};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::single::{Course, Sending, Single, Tariff, answer};
use crate::state::Shared;

/// Puts documents into the order of how well they answer a query, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    mut asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = RerankRequest::parse(&received).map_err(EdgeError::from)?;
    let order = |route: &PublicRoute| route.order_of(|target| target.provider.reranks(), &mut rng());
    let course = Course::of(&edge, &asked.caller, &request.model, order).await?;
    // None of their vocabularies is known.
    let query = edge.counter.text(Family::Estimated, &request.query).await?;
    let documents = edge.counter.each(Family::Estimated, &request.documents).await?;
    let tokens = documents.iter().fold(0_i64, |sum, document| sum.saturating_add(query).saturating_add(*document));
    let id = Cow::<str>::Owned(asked.id.to_string());
    let single = Single {
        operation: "rerank",
        course: &course,
        tags: std::mem::take(&mut asked.tags).and(request.metadata, None),
        // As Voyage bills it (API reference, Rerankers): the query once for each document.
        tokens: vec![tokens],
        tariff: Tariff::SearchUnits(search_units(query, &documents, request.max_tokens_per_doc)),
    };
    let mut make = |target: &Target| request.call(target.provider, &target.model, &id);
    answer(&edge, asked, single, Sending::Whole(&mut make)).await
}
