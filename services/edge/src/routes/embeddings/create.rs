//! `POST /v1/embeddings`.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use domain::{NanoUsd, RequestId};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use ledger::Ending;
use providers::{Attempts, EmbeddingsFailure, EmbeddingsRequest};
use tokens::Family;
use tokio::time::Instant;

use crate::admission::{
    Admitted, Claim, Model, Tags, admit, interrupted, overruled_by_now, reported, settle_failed, settle_interrupted,
    settle_unsent,
};
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::routes::request_id::Arrival;
use crate::state::Shared;

/// Passes an embeddings call through, metered.
pub(crate) async fn create(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Extension(Arrival(accepted)): Extension<Arrival>,
    tags: Tags,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = EmbeddingsRequest::parse(&received).map_err(EdgeError::from)?;
    let project = edge.catalog.project(caller.project).await?;
    let chosen = project.choose(&request.model, &caller)?;
    let target = chosen.route.target()?;
    let connection = target.connection()?;
    let prices = edge.catalog.prices().await?;
    let hold_prices = project.hold_prices(&caller, &chosen.route, &prices)?;
    project.allow_features(&caller, &chosen.route, &request.costly_features(target.provider))?;
    let upstream = request.call(target.provider, &connection.model, &chosen.public_model).map_err(EdgeError::from)?;
    let counted = edge.counter.embeddings(Family::of(&target.model), &received, &request).await?;
    let claim = Claim {
        request: id,
        accepted,
        caller: &caller,
        has_limits: project.has_limits,
        operation: "embeddings",
        route: Some(&chosen.route.name),
        model: Some(Model::of(target, &connection)),
        tags: tags.and(request.metadata, request.user.as_deref()),
        prompt_tokens: counted,
        other_tokens: 0,
        output_tokens: 0,
        min_output: 0,
        prices: hold_prices,
        other_cost: NanoUsd::ZERO,
        streamed: false,
    };
    let Admitted { mut call, headers } = admit(&edge, claim).await?;
    let (snapshot, source) = target.price(&prices);
    call.priced(snapshot, source);
    let mut attempts = Attempts::until(Instant::now() + edge.call_limit);
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, &caller, *call, overruling, headers));
    }
    call.sent();
    let answer = tokio::select! {
        biased;
        answer = edge.providers.embeddings(&connection, &upstream, &mut attempts) => Ok(answer),
        interruption = interrupted(&caller, &mut call) => Err(interruption),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(interruption) => {
            return Err(settle_interrupted(&edge, &caller, *call, interruption, headers));
        }
    };
    call.entry_mut().attempts = i32::try_from(attempts.made()).unwrap_or(i32::MAX);
    let answer = match answer {
        Ok(answer) => answer,
        Err(EmbeddingsFailure { error, used: None }) => {
            settle_failed(*call, &error);
            return Err(Failure::with(error, headers));
        }
        Err(EmbeddingsFailure { error, used: Some(used) }) => {
            // The provider charges for the parts that it had answered.
            call.first_byte();
            call.usage(reported(used));
            call.finish(Ending::Cut, error.status(), error.code());
            return Err(Failure::with(error, headers));
        }
    };
    call.first_byte();
    if let Some(usage) = answer.usage {
        call.usage(reported(usage));
    }
    call.finish(Ending::Complete, 200, None);
    let mut response = Response::new(Body::from(answer.body));
    *response.headers_mut() = headers;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
