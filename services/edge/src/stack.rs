//! The layers around the handlers, outermost first, and the table of routes.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use domain::Scope;
use runtime::Health;
use tower::{ServiceBuilder, ServiceExt};
use tower_http::cors::CorsLayer;

use crate::auth::authenticate;
use crate::error::{EdgeError, Failure, shown};
use crate::rescue::rescue;
use crate::routes::{
    chat, completions, embeddings, messages, models, moderations, request_id, rerank, responses, retrieve, usage,
};
use crate::state::Shared;

/// The API, once what it needs is there.
#[derive(Clone, Default)]
pub(crate) struct Late(Arc<OnceLock<Router>>);

impl Late {
    /// Opens the API. Only the first call counts.
    pub(crate) fn open(&self, router: Router) {
        let _ = self.0.set(router);
    }

    async fn call(self, request: Request) -> Result<Response, Failure> {
        let router = self.0.get().ok_or(EdgeError::Starting)?;
        let Ok(response) = router.clone().oneshot(request).await;
        Ok(response)
    }
}

/// What the HTTP listener serves from the first moment.
pub(crate) fn front(health: &Health, late: Late, cors: Option<CorsLayer>) -> Router {
    let layers = ServiceBuilder::new()
        // First, so that whatever happens to the call has an id in the log and in the answer.
        .layer(from_fn(request_id::assign))
        // Preflights have no key, and a page has to be able to read its errors: so before who is calling is asked, and
        // around what makes errors of failures.
        .option_layer(cors)
        // Around everything that can fail, and inside the id, which an internal error names.
        .layer(from_fn(rescue));
    let api = Router::new().fallback(async move |request: Request| late.call(request).await).layer(layers);
    // Probes are outside of all that: they answer whatever state the API is in, and leave no trace in the log.
    health.http_probes().merge(api)
}

/// The API.
pub(crate) fn api(edge: &Shared) -> Router {
    let keyed = |scope: Option<Scope>, handler: MethodRouter<Shared>| {
        // Before the body is read: who may not call costs no memory. Not around the fallbacks: what does not exist
        // does not exist for anybody.
        handler.route_layer(from_fn_with_state((Arc::clone(edge), scope), authenticate))
    };
    let scoped = |scope: Scope, handler: MethodRouter<Shared>| keyed(Some(scope), handler);
    // Anthropic's libraries put `/v1` behind the base URL, also behind one that ends with it as OpenAI's have it.
    let of_messages = ["/v1", "/v1/v1"].into_iter().fold(Router::new(), |router, base| {
        router
            .route(&format!("{base}/messages"), scoped(Scope::Chat, post(messages::create)))
            .route(&format!("{base}/messages/count_tokens"), scoped(Scope::Chat, post(messages::count_tokens)))
            .route(&format!("{base}/models"), scoped(Scope::Models, get(models::list)))
            // Names of models may have slashes.
            .route(&format!("{base}/models/{{*id}}"), scoped(Scope::Models, get(models::get)))
    });
    of_messages
        .route("/v1/chat/completions", scoped(Scope::Chat, post(chat::create)))
        .route("/v1/completions", scoped(Scope::Chat, post(completions::create)))
        .route("/v1/responses", scoped(Scope::Chat, post(responses::create)))
        .route(
            "/v1/responses/{*id}",
            scoped(Scope::Chat, get(responses::get).post(responses::get).delete(responses::get)),
        )
        .route("/v1/embeddings", scoped(Scope::Embeddings, post(embeddings::create)))
        .route("/v1/moderations", scoped(Scope::Chat, post(moderations::create)))
        .route("/v1/rerank", scoped(Scope::Retrieve, post(rerank::create)))
        .route("/v1/retrieve", scoped(Scope::Retrieve, post(retrieve::create)))
        // A key of whatever scope may know what it has used.
        .route("/v1/usage", keyed(None, get(usage::list)))
        // Whatever is asked for: what is no id is not found like an id that is nobody's.
        .route("/v1/usage/{*id}", keyed(None, get(usage::get)))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(edge))
}

async fn no_such_route(request: Request) -> Failure {
    EdgeError::NoSuchRoute { method: request.method().to_string(), path: shown(request.uri().path()) }.into()
}

async fn wrong_method(request: Request) -> Failure {
    EdgeError::WrongMethod { method: request.method().to_string() }.into()
}
