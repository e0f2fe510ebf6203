//! `POST /v1/responses`.

use axum::extract::{Request, State};
use axum::response::Response;
use providers::ClientDialect;

use crate::completion::{Asked, answer};
use crate::error::Failure;
use crate::state::Shared;

/// Answers a conversation by OpenAI's Responses API.
pub(crate) async fn create(State(edge): State<Shared>, asked: Asked, request: Request) -> Result<Response, Failure> {
    answer(edge, asked, ClientDialect::Responses, request).await
}
