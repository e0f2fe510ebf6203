//! `POST /v1/messages/count_tokens`.

use axum::extract::{Request, State};
use axum::response::Response;
use domain::ProviderType;
use ledger::Ending;
use providers::{Attempts, Counted, MessagesRequest, Outgoing, UpstreamError};
use rand::rng;
use serde_json::json;
use tokio::time::Instant;

use crate::admission::{
    Admitted, Claim, Model, admit, interrupted, overruled_by_now, settle_as, settle_failed, settle_interrupted,
    settle_unsent,
};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::json;
use crate::state::Shared;
use crate::visited;

/// Counts the prompt's tokens. The targets of the route have their turns as in any other call: a provider that has the
/// same API is asked, and for another it is done here, where pictures count as large ones and documents by their size. It is done here as
/// well where a provider fails, or does not count, and a target that nobody has to be asked for is left. The project's
/// prompt is in the count, passages are not. It is a request of no tokens.
pub(crate) async fn count_tokens(
    State(edge): State<Shared>,
    asked: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let Asked { caller, id, accepted, tags, anthropic } = asked;
    let received = edge.bodies.read(request).await?;
    let request = MessagesRequest::parse_count(&received).map_err(EdgeError::from)?;
    let project = edge.catalog.project(caller.project).await?;
    let chosen = project.choose(&request.model, &caller)?;
    let route = &chosen.route;
    let order = route.order_of(|target| target.provider.chats(), &mut rng())?;
    let (first, destinations) = (route.at(&order, 0)?, route.destinations(&order)?);
    let connection = first.connection()?;
    let claim = Claim {
        route: Some(&route.name),
        model: Some(Model::of(first, &connection)),
        tags: tags.and(request.metadata, request.user.as_deref()),
        ..Claim::of_a_request("count_tokens", (id, accepted), &caller, &project)
    };
    let Admitted { mut call, mut headers } = admit(&edge, claim).await?;
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, &caller, *call, overruling, headers));
    }
    let project_prompt = project.system_prompt.as_deref();
    let counts = |at: usize| route.at(&order, at).ok().filter(|target| target.provider == ProviderType::Anthropic);
    let mut ask = |at: usize| {
        let model = &counts(at)?.model;
        let outgoing = Outgoing { model, project_prompt, anthropic: Some(&anthropic), ..Outgoing::default() };
        Some(request.count_call(&outgoing))
    };
    // To be counted twice costs nobody anything.
    let mut attempts = Attempts::until(Instant::now() + edge.call_limit).replaying_timeouts(true);
    if counts(0).is_some() {
        attempts = attempts.telling(call.sent());
    }
    let counted = tokio::select! {
        biased;
        counted = edge.providers.count_tokens(&destinations, &mut ask, &mut attempts) => Ok(counted),
        interruption = interrupted(&caller, &mut call) => Err(interruption),
    };
    let last = attempts.last().and_then(|at| route.at(&order, at).ok());
    visited::note(last, &attempts, &[], &mut call, Some(&mut headers));
    let counted = match counted {
        Ok(Ok(Counted::Tokens(counted))) => Ok(counted),
        Ok(Ok(Counted::Nowhere(at))) => Err(at),
        Ok(Err(error)) => {
            let uncounted = match &error {
                error if lacks_counting(error) => attempts.last(),
                UpstreamError::Rejected { .. } => None,
                _ => (0..order.len()).find(|at| counts(*at).is_none()),
            };
            let Some(at) = uncounted else {
                settle_failed(*call, &error);
                return Err(Failure::with(error, headers));
            };
            Err(at)
        }
        Err(interruption) => return Err(settle_interrupted(&edge, &caller, *call, interruption, headers)),
    };
    let counted = match counted {
        Ok(counted) => counted,
        Err(at) => {
            let target = route.at(&order, at).unwrap_or(first);
            visited::counted_here(target, &mut call, &mut headers);
            match edge.counter.messages(target.measure, &received, &request, project_prompt).await {
                Ok(counted) => counted.unsigned_abs(),
                Err(error) => {
                    settle_as(*call, Ending::Fault, &error);
                    return Err(Failure::with(error, headers));
                }
            }
        }
    };
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, &caller, *call, overruling, headers));
    }
    call.usage(ledger::Usage::default());
    call.finish(Ending::Complete, 200, None);
    Ok(json::of(&json!({ "input_tokens": counted }), headers)?)
}

/// Whether a server says that it has no such call, as those that imitate the API may. That it does not know the model is
/// said by the type of the error (Anthropic API reference, Errors).
fn lacks_counting(error: &UpstreamError) -> bool {
    match error {
        UpstreamError::Rejected { status: 404, words } => words.error_type.as_deref() != Some("not_found_error"),
        UpstreamError::Rejected { status, .. } => *status == 405,
        UpstreamError::Failed { status, .. } => *status == 501,
        _ => false,
    }
}
