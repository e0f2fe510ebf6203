//! The id of each call: in its answer, in its log lines, and the key of its ledger entry.

use std::time::Instant;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use domain::RequestId;
use http::HeaderValue;
use tracing::Instrument;

use crate::header_names::X_REQUEST_ID;

/// When a call arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival(pub(crate) Instant);

/// Gives a call its id. One that the client sends is not taken: the ledger needs ids that nobody can choose.
pub(crate) async fn assign(mut request: Request, next: Next) -> Response {
    let id = RequestId::new();
    request.extensions_mut().insert(id);
    request.extensions_mut().insert(Arrival(Instant::now()));
    let span = tracing::info_span!("call", request_id = %id);
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response
}
