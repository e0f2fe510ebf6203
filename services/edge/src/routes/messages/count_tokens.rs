//! `POST /v1/messages/count_tokens`.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use domain::ProviderType;
use ledger::Ending;
use providers::{Attempts, MessagesRequest, Outgoing};
use rand::rng;
use serde_json::json;
use tokio::time::Instant;

use crate::admission::{
    Admitted, Claim, Model, admit, interrupted, overruled_by_now, settle_failed, settle_interrupted, settle_unsent,
};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::state::Shared;
use crate::visited;

/// Counts the prompt's tokens: the provider does if it has the same API, else it is done here, where pictures count
/// as large ones and documents by their size. The project's prompt is in the count, passages are not. It is a request of no tokens.
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
    let targets = route.order_of(|target| target.provider.chats(), &mut rng())?;
    let target = route.at(&targets, 0)?;
    let connection = target.connection()?;
    let claim = Claim {
        route: Some(&route.name),
        model: Some(Model::of(target, &connection)),
        tags: tags.and(request.metadata, request.user.as_deref()),
        ..Claim::of_a_request("count_tokens", (id, accepted), &caller, &project)
    };
    let Admitted { mut call, mut headers } = admit(&edge, claim).await?;
    let project_prompt = project.system_prompt.as_deref();
    let counted = if target.provider == ProviderType::Anthropic {
        if let Some(overruling) = overruled_by_now(&mut call) {
            return Err(settle_unsent(&edge, &caller, *call, overruling, headers));
        }
        let outgoing =
            Outgoing { model: &target.model, project_prompt, anthropic: Some(&anthropic), ..Outgoing::default() };
        let count = request.count_call(&outgoing);
        let mut attempts = Attempts::until(Instant::now() + edge.call_limit).replaying_timeouts(route.replay_timeouts);
        call.sent();
        let counted = tokio::select! {
            biased;
            counted = edge.providers.count_tokens(&connection, &count, &mut attempts) => Ok(counted),
            interruption = interrupted(&caller, &mut call) => Err(interruption),
        };
        visited::note(Some(target), &attempts, &[], &mut call, Some(&mut headers));
        match counted {
            Ok(Ok(counted)) => counted,
            Ok(Err(error)) => {
                settle_failed(*call, &error);
                return Err(Failure::with(error, headers));
            }
            Err(interruption) => return Err(settle_interrupted(&edge, &caller, *call, interruption, headers)),
        }
    } else {
        // Nobody is asked.
        visited::note(Some(target), &Attempts::until(Instant::now()), &[], &mut call, Some(&mut headers));
        match edge.counter.messages(target.measure, &received, &request, project_prompt).await {
            Ok(counted) => counted.unsigned_abs(),
            Err(error) => {
                let status = error.face().status.as_u16();
                call.finish(Ending::Fault, status, None);
                return Err(Failure::with(error, headers));
            }
        }
    };
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, &caller, *call, overruling, headers));
    }
    call.usage(ledger::Usage::default());
    call.finish(Ending::Complete, 200, None);
    let mut response = Json(json!({ "input_tokens": counted })).into_response();
    response.headers_mut().extend(headers);
    Ok(response)
}
