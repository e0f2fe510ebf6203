//! The models on offer.

use hyper::StatusCode;
use serde::Serialize;

use crate::{Options, answer::Answer, error::ApiError};

pub(crate) const CHAT: &str = "demo-chat";
pub(crate) const EMBED: &str = "demo-embed";

/// When the demonstration models came to be, in seconds since 1970: it never changes, as for other models.
const CREATED: u64 = 1_767_225_600;

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

impl<'a> Model<'a> {
    fn new(id: &'a str) -> Self {
        Self { id, object: "model", created: CREATED, owned_by: "ragmux" }
    }
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: [Model<'a>; 2],
}

/// `GET /v1/models`.
pub(crate) fn list() -> Answer {
    Answer::json(&List { object: "list", data: [Model::new(CHAT), Model::new(EMBED)] })
}

/// `GET /v1/models/{id}`.
pub(crate) fn get(id: &str, options: &Options) -> Answer {
    if options.any_model || [CHAT, EMBED].contains(&id) { Answer::json(&Model::new(id)) } else { unknown(id).into() }
}

/// Whether a request for `model` at the route of `own` is answered.
pub(crate) fn check(model: &str, own: &str, options: &Options) -> Result<(), ApiError> {
    if model == own || options.any_model {
        return Ok(());
    }
    if [CHAT, EMBED].contains(&model) {
        return Err(ApiError::invalid("model", format!("The model `{model}` is not offered at this endpoint.")));
    }
    Err(unknown(model))
}

fn unknown(model: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("The model `{model}` does not exist."))
        .about("model")
        .with_code("model_not_found")
}
