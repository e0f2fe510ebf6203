//! `POST /v1/rerank`.

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::response::Response;
use providers::RerankRequest;
use rand::rng;
use tokens::Family;

use crate::catalog::Target;
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::single::{Sending, Single, Tariff, answer};
use crate::state::Shared;

/// Documents of one search unit, and the tokens of one document with the query: a longer document counts as several
/// (Cohere, Pricing, "What is a search unit").
const DOCUMENTS_A_UNIT: i64 = 100;
const TOKENS_A_DOCUMENT: i64 = 500;

/// What is looked at of a document where the request says nothing (Cohere API reference, Rerank, `max_tokens_per_doc`).
const DEFAULT_TOKENS_PER_DOC: i64 = 4096;

/// Puts documents into the order of how well they answer a query, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    mut asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = RerankRequest::parse(&received).map_err(EdgeError::from)?;
    let project = edge.catalog.project(asked.caller.project).await?;
    let chosen = project.choose(&request.model, &asked.caller)?;
    let route = &chosen.route;
    let targets = route.order_of(|target| target.provider.reranks(), &mut rng())?;
    // None of their vocabularies is known.
    let query = edge.counter.text(Family::Estimated, &request.query).await?;
    let documents = edge.counter.each(Family::Estimated, &request.documents).await?;
    let tokens = documents.iter().fold(0_i64, |sum, document| sum.saturating_add(query).saturating_add(*document));
    let id = Cow::<str>::Owned(asked.id.to_string());
    let single = Single {
        operation: "rerank",
        project: &project,
        route,
        targets: &targets,
        tags: std::mem::take(&mut asked.tags).and(request.metadata, None),
        // As Voyage bills it (API reference, Rerankers): the query once for each document.
        prompt_tokens: tokens,
        tariff: Tariff::SearchUnits(search_units(query, &documents, request.max_tokens_per_doc)),
    };
    let mut make = |target: &Target| request.call(target.provider, &target.model, &id);
    answer(&edge, asked, single, Sending::Whole(&mut make)).await
}

/// The search units of a request, by our count of its tokens.
fn search_units(query: i64, documents: &[i64], most: Option<u64>) -> i64 {
    let most = most.map_or(DEFAULT_TOKENS_PER_DOC, |most| i64::try_from(most).unwrap_or(i64::MAX));
    let room = TOKENS_A_DOCUMENT.saturating_sub(query).max(1);
    let pieces = |tokens: i64| {
        i64::try_from(tokens.min(most).max(1).unsigned_abs().div_ceil(room.unsigned_abs())).unwrap_or(i64::MAX)
    };
    let pieces = documents.iter().fold(0_i64, |sum, tokens| sum.saturating_add(pieces(*tokens)));
    i64::try_from(pieces.unsigned_abs().div_ceil(DOCUMENTS_A_UNIT.unsigned_abs())).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_hundred_documents_and_a_long_one_is_several() {
        assert_eq!(search_units(10, &[20; 100], None), 1);
        assert_eq!(search_units(10, &[20; 101], None), 2);
        assert_eq!(search_units(10, &[490; 100], None), 1);
        assert_eq!(search_units(10, &[491; 100], None), 2);
        assert_eq!(search_units(10, &[491; 100], Some(100)), 1);
        assert_eq!(search_units(10, &[1_000_000], None), 1, "no more of it is looked at");
        assert_eq!(search_units(0, &[0], None), 1);
        assert_eq!(search_units(1_000, &[50; 4], None), 2, "a query that leaves no room");
    }
}
