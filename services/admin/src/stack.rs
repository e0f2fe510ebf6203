//! The layers every request passes, outermost first.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use domain::RequestId;
use http::header::CACHE_CONTROL;
use http::{HeaderName, HeaderValue, Method, Uri};
use tracing::Instrument;

use crate::app::App;
use crate::error::ApiError;
use crate::rescue::rescue;
use crate::routes;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The API with its layers, and the probes beside it.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let api = Router::new()
        // Each row of the table brings its own check of who is calling.
        .nest("/admin/api", routes::router(app))
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|method: Method| async { ApiError::MethodNotAllowed(method) })
        // Until the start is complete nothing is touched: the schema may be missing and the key may be the wrong one.
        .layer(from_fn_with_state(Arc::clone(app), when_started))
        // Below this, failures are values; above it, they are answers.
        .layer(from_fn(rescue))
        // Every answer, failures included, has the id that the log has, and stays out of caches.
        .layer(from_fn(identify));
    // The probes are ahead of it all: they answer while the service starts and are not worth a request id.
    app.health.http_probes().merge(api)
}

async fn when_started(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.health.report().status {
        "starting" | "migrating" => ApiError::Starting.into_response(),
        _ => next.run(request).await,
    }
}

async fn identify(mut request: Request, next: Next) -> Response {
    let id = RequestId::new();
    request.extensions_mut().insert(id);
    let span = tracing::info_span!("request", request_id = %id, method = %request.method());
    let uri: Uri = request.uri().clone();
    let response = async {
        let mut response = next.run(request).await;
        tracing::debug!(path = uri.path(), status = response.status().as_u16(), "a request was answered");
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
            headers.insert(REQUEST_ID, value);
        }
        response
    };
    response.instrument(span).await
}
