//! `POST /v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use providers::ClientDialect;

use crate::completion::{Asked, answer};
use crate::error::Failure;
use crate::state::Shared;

/// Has texts go on by OpenAI's Completions, passed through: without the project's prompt and without passages.
pub(crate) async fn create(State(edge): State<Shared>, asked: Asked, request: Request) -> Result<Response, Failure> {
    answer(edge, asked, ClientDialect::Completions, request).await
}
