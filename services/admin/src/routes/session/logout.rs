//! `POST /logout`

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode};

use crate::app::App;
use crate::auth::{Caller, Deed, tokens};
use crate::error::ApiError;

/// Ends the session of the request, at every replica.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    caller: Caller,
    deed: Deed,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    app.store.delete_session(&caller.session, &deed.plain()).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = tokens::no_cookie(&headers) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}
