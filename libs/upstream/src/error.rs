//! Errors in the shape the OpenAI API documents ("Error codes").

use hyper::StatusCode;
use serde_json::json;

/// An error answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// 400: a field is wrong.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message).about(param)
    }

    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind: "invalid_request_error", param: None, code: None }
    }

    pub(crate) fn about(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        error_body(&self.message, self.kind, self.param.as_deref(), self.code)
    }
}

/// The one error shape.
pub(crate) fn error_body(message: &str, kind: &str, param: Option<&str>, code: Option<&str>) -> Vec<u8> {
    json!({ "error": { "message": message, "type": kind, "param": param, "code": code } }).to_string().into_bytes()
}
