//! How a failure is written, by the API of the route that was asked.

use bytes::Bytes;
use domain::RequestId;
use providers::messages_error_type;
use serde::Serialize;

use super::{Face, Limit};

/// The API whose error form a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// OpenAI's, and of every route that has no form of its own.
    OpenAi,
    /// Anthropic's.
    Messages,
}

impl Shape {
    /// The form for a path.
    pub(crate) fn of(path: &str) -> Self {
        let path = path.strip_prefix("/v1/v1").or_else(|| path.strip_prefix("/v1")).unwrap_or_default();
        let below = path.strip_prefix("/messages");
        if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) { Self::Messages } else { Self::OpenAi }
    }

    /// The body of an error.
    pub(crate) fn body(self, face: &Face<'_>, id: Option<RequestId>) -> Bytes {
        #[derive(Serialize)]
        struct OpenAi<'a> {
            error: Members<'a>,
        }
        #[derive(Serialize)]
        struct Messages<'a> {
            r#type: &'static str,
            error: Members<'a>,
            request_id: Option<String>,
        }
        #[derive(Serialize)]
        struct Members<'a> {
            message: &'a str,
            r#type: &'a str,
            param: Option<&'a str>,
            code: Option<&'a str>,
            #[serde(flatten)]
            limit: Option<&'a Limit>,
            #[serde(skip_serializing_if = "Option::is_none")]
            details: Option<Details>,
        }
        #[derive(Serialize)]
        struct Details {
            error_code: &'static str,
        }
        // By this Anthropic's SDK knows that it has to send the whole conversation itself.
        let refuses_thread = self == Self::Messages && face.param.as_deref() == Some("thread");
        let kind = match self {
            Self::OpenAi => &face.kind,
            // Clients of this API know no types but its own. What else there is to know is in the code.
            Self::Messages => messages_error_type(face.status.as_u16()),
        };
        let error = Members {
            message: &face.message,
            r#type: kind,
            param: face.param.as_deref(),
            code: face.code.as_deref(),
            limit: face.limit.as_ref(),
            details: refuses_thread.then_some(Details { error_code: "thread_unsupported_request" }),
        };
        let body = match self {
            Self::OpenAi => serde_json::to_vec(&OpenAi { error }),
            Self::Messages => {
                serde_json::to_vec(&Messages { r#type: "error", error, request_id: id.map(|id| id.to_string()) })
            }
        };
        body.map(Bytes::from).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::error::EdgeError;

    #[test]
    fn a_path_has_the_form_of_its_api() {
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/v1/messages"] {
            assert_eq!(Shape::of(path), Shape::Messages);
        }
        for path in ["/v1/chat/completions", "/v1/messagesx", "/v1", "/", "/messages"] {
            assert_eq!(Shape::of(path), Shape::OpenAi);
        }
    }

    #[test]
    fn the_form_of_the_messages_api_has_its_types_and_our_code() {
        for (error, kind, code) in [
            (EdgeError::NoKey, "authentication_error", Value::Null),
            (EdgeError::BadKey, "authentication_error", "invalid_api_key".into()),
            (EdgeError::ProjectNotGranted, "permission_error", "project_not_granted".into()),
            (EdgeError::ModelNotFound { model: "m".to_owned() }, "not_found_error", "model_not_found".into()),
            (EdgeError::TooLarge { limit_bytes: 7 }, "request_too_large", "request_too_large".into()),
            (EdgeError::BodySlow, "timeout_error", "request_timeout".into()),
            (EdgeError::Encoded, "invalid_request_error", "unsupported_encoding".into()),
            (EdgeError::Overloaded, "overloaded_error", "overloaded".into()),
            (EdgeError::internal("why"), "api_error", "internal_error".into()),
        ] {
            let body: Value = serde_json::from_slice(&Shape::Messages.body(&error.face(), None)).unwrap();
            assert_eq!(
                (&body["type"], &body["error"]["type"], &body["error"]["code"]),
                (&json!("error"), &kind.into(), &code)
            );
        }
        let thread = EdgeError::UnpricedFeature { name: "thread".to_owned(), path: "thread".to_owned() };
        let body: Value = serde_json::from_slice(&Shape::Messages.body(&thread.face(), None)).unwrap();
        assert_eq!(body["error"]["details"], json!({ "error_code": "thread_unsupported_request" }));
        let id = RequestId::new();
        let body: Value = serde_json::from_slice(&Shape::Messages.body(&EdgeError::NoKey.face(), Some(id))).unwrap();
        assert_eq!(body["request_id"], id.to_string());
        let body: Value = serde_json::from_slice(&Shape::OpenAi.body(&EdgeError::NoKey.face(), Some(id))).unwrap();
        assert_eq!((body.get("type"), &body["error"]["type"]), (None, &json!("invalid_request_error")));
    }
}
