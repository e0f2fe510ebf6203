//! What a client is told: the one table from failures to statuses, types and codes.

use std::borrow::Cow;
use std::time::Duration;

use domain::Tier;
use http::StatusCode;
use providers::{RequestError, scrub};
use serde::Serialize;
use serde_json::value::RawValue;
use store::ledger::Denial;
use time::format_description::well_known::Rfc3339;

use super::{EdgeError, KeyState};
use crate::money::{dollars, number};

const INVALID_REQUEST: &str = "invalid_request_error";
const INVALID_KEY: &str = "invalid_api_key";
const RATE_LIMIT: &str = "rate_limit_exceeded";
const SERVER: &str = "server_error";

/// When to come back to a service that is starting, stopping or full.
const SHORTLY: Duration = Duration::from_secs(1);

/// When to come back to a service whose database is away.
const SOON: Duration = Duration::from_secs(2);

/// A failure as a client sees it, whatever its dialect.
#[derive(Debug)]
pub(crate) struct Face<'a> {
    pub(crate) status: StatusCode,
    pub(crate) kind: Cow<'a, str>,
    pub(crate) code: Option<Cow<'a, str>>,
    pub(crate) param: Option<Cow<'a, str>>,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
    /// Whether a client that retries by itself should be kept from it.
    pub(crate) final_for_now: bool,
    pub(crate) limit: Option<Limit>,
}

/// Which cap has no room. Costs are in US dollars.
#[derive(Debug, Serialize)]
pub(crate) struct Limit {
    scope: &'static str,
    cap: Box<RawValue>,
    used: Box<RawValue>,
    held: Box<RawValue>,
    resets_at: Option<String>,
}

impl<'a> Face<'a> {
    fn new(
        status: StatusCode,
        kind: &'a str,
        code: impl Into<Option<&'a str>>,
        message: impl std::fmt::Display,
    ) -> Self {
        Self {
            status,
            kind: Cow::Borrowed(kind),
            code: code.into().map(Cow::Borrowed),
            param: None,
            message: message.to_string(),
            retry_after: None,
            final_for_now: false,
            limit: None,
        }
    }

    fn about(mut self, param: Option<&'a str>) -> Self {
        self.param = param.map(Cow::Borrowed);
        self
    }

    /// The message quotes the call, and what it quotes may be a key in the wrong place.
    fn quoting(mut self) -> Self {
        self.message = scrub(&self.message, None);
        self
    }

    fn retry(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }
}

impl EdgeError {
    /// What a client is told.
    pub(crate) fn face(&self) -> Face<'_> {
        use StatusCode as S;
        match self {
            Self::NoKey => Face::new(S::UNAUTHORIZED, INVALID_REQUEST, None, self),
            Self::BadKey => Face::new(S::UNAUTHORIZED, INVALID_KEY, INVALID_KEY, self),
            Self::TooManyUnknownKeys { retry_after } => {
                let code = "too_many_unknown_keys";
                Face::new(S::TOO_MANY_REQUESTS, RATE_LIMIT, code, self).retry(Some(*retry_after))
            }
            Self::KeyState(state) => Face::new(S::UNAUTHORIZED, INVALID_KEY, key_state_code(*state), self),
            Self::Scope(_) => Face::new(S::FORBIDDEN, "insufficient_scope", "insufficient_scope", self),
            Self::ProjectRequired { .. } => Face::new(S::BAD_REQUEST, INVALID_REQUEST, "project_required", self),
            Self::ProjectNotGranted => Face::new(S::FORBIDDEN, INVALID_REQUEST, "project_not_granted", self),
            Self::NoSuchRoute { .. } => Face::new(S::NOT_FOUND, INVALID_REQUEST, "unknown_url", self).quoting(),
            Self::WrongMethod { .. } => {
                Face::new(S::METHOD_NOT_ALLOWED, INVALID_REQUEST, "method_not_allowed", self).quoting()
            }
            Self::TooLarge { .. } => Face::new(S::PAYLOAD_TOO_LARGE, INVALID_REQUEST, "request_too_large", self),
            Self::Encoded => Face::new(S::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, "unsupported_encoding", self),
            Self::BodyBroken => Face::new(S::BAD_REQUEST, INVALID_REQUEST, "incomplete_body", self),
            Self::BodySlow => Face::new(S::REQUEST_TIMEOUT, INVALID_REQUEST, "request_timeout", self),
            Self::Overloaded | Self::Busy => {
                Face::new(S::SERVICE_UNAVAILABLE, SERVER, "overloaded", self).retry(Some(SHORTLY))
            }
            Self::Request(error @ RequestError::Malformed(_)) => {
                Face::new(S::BAD_REQUEST, INVALID_REQUEST, None, error).quoting()
            }
            Self::Request(error) => Face::new(S::BAD_REQUEST, INVALID_REQUEST, None, error).about(error.param()),
            Self::ModelNotFound { .. } => {
                Face::new(S::NOT_FOUND, INVALID_REQUEST, "model_not_found", self).about(Some("model")).quoting()
            }
            Self::NoConnection { .. } => Face::new(S::SERVICE_UNAVAILABLE, SERVER, "model_unavailable", self),
            Self::UnsupportedForModel { .. } => {
                Face::new(S::BAD_REQUEST, INVALID_REQUEST, "unsupported_for_model", self).about(Some("model"))
            }
            Self::CredentialUnreadable => Face::new(S::SERVICE_UNAVAILABLE, SERVER, "credential_unreadable", self),
            Self::ModelUnpriced { .. } => {
                Face::new(S::BAD_REQUEST, INVALID_REQUEST, "model_unpriced", self).about(Some("model"))
            }
            Self::HardLimitUnsupported { .. } => {
                Face::new(S::BAD_REQUEST, INVALID_REQUEST, "hard_limit_unsupported", self).about(Some("model"))
            }
            Self::UnpricedFeature { path, .. } => {
                Face::new(S::BAD_REQUEST, INVALID_REQUEST, "unpriced_feature", self).about(Some(path))
            }
            Self::NoStore => Face::new(S::NOT_FOUND, INVALID_REQUEST, "store_not_found", self),
            Self::NoResponses => Face::new(S::NOT_FOUND, INVALID_REQUEST, "response_not_found", self),
            Self::NoSuchCall => Face::new(S::NOT_FOUND, INVALID_REQUEST, "call_not_found", self),
            Self::Search(_) => Face::new(S::SERVICE_UNAVAILABLE, SERVER, "search_failed", self).retry(Some(SOON)),
            Self::Denied(denial) => denied(denial),
            Self::Upstream(error) => {
                let status = S::from_u16(error.status()).unwrap_or(S::BAD_GATEWAY);
                let mut face = Face::new(status, error.error_type(), error.code(), error.message());
                face.param = error.param().map(Cow::Borrowed);
                face.retry(error.retry_after())
            }
            Self::Starting => Face::new(S::SERVICE_UNAVAILABLE, SERVER, "starting", self).retry(Some(SHORTLY)),
            Self::ShuttingDown => Face::new(S::SERVICE_UNAVAILABLE, SERVER, "shutting_down", self).retry(Some(SHORTLY)),
            Self::Unavailable(_) => Face::new(S::SERVICE_UNAVAILABLE, SERVER, "unavailable", self).retry(Some(SOON)),
            Self::Internal(_) => Face::new(S::INTERNAL_SERVER_ERROR, SERVER, "internal_error", self),
        }
    }
}

fn key_state_code(state: KeyState) -> &'static str {
    match state {
        KeyState::Revoked => "key_revoked",
        KeyState::Expired => "key_expired",
        KeyState::OwnerInactive => "key_owner_inactive",
    }
}

fn denied(denial: &Denial) -> Face<'_> {
    let is_cost = denial.code.starts_with("cost_");
    let is_quota = is_cost || denial.code.starts_with("budget_");
    let kind = if is_quota { "insufficient_quota" } else { RATE_LIMIT };
    let what = match denial.code.as_str() {
        "rate_limit_rpm" => "requests per minute",
        "rate_limit_tpm" => "tokens per minute",
        "concurrency_limit" => "calls at once",
        "budget_daily" => "tokens per day",
        "budget_monthly" => "tokens per month",
        "cost_daily" => "US dollars per day",
        _ => "US dollars per month",
    };
    let owner = match denial.tier {
        Tier::Project => "project's",
        Tier::Key => "API key's",
    };
    let show = |amount: i64| if is_cost { dollars(amount) } else { amount.to_string() };
    let message = format!(
        "the {owner} limit of {} {what} has no room for this call; try again in {} s",
        show(denial.cap),
        denial.retry_after_seconds
    );
    let mut face = Face::new(StatusCode::TOO_MANY_REQUESTS, kind, denial.code.as_str(), message)
        .retry(Some(Duration::from_secs(denial.retry_after_seconds.max(1).unsigned_abs())));
    face.final_for_now = is_quota;
    face.limit = Some(Limit {
        scope: denial.tier.as_str(),
        cap: number(show(denial.cap)),
        used: number(show(denial.used)),
        held: number(show(denial.held)),
        resets_at: denial.resets_at.and_then(|at| at.format(&Rfc3339).ok()),
    });
    face
}

#[cfg(test)]
mod tests {
    use store::ledger::Headroom;
    use time::macros::datetime;

    use super::*;

    fn denial(code: &str, cap: i64) -> EdgeError {
        EdgeError::Denied(Box::new(Denial {
            code: code.to_owned(),
            tier: Tier::Key,
            cap,
            used: 1_500_000_000,
            held: 0,
            resets_at: Some(datetime!(2026-03-01 00:00 UTC)),
            retry_after_seconds: 90,
            headroom: Headroom::default(),
        }))
    }

    #[test]
    fn a_spent_budget_is_told_with_its_figures() {
        let error = denial("cost_daily", 2_000_000_000);
        let face = error.face();
        assert_eq!(
            (face.status.as_u16(), &*face.kind, face.code.as_deref()),
            (429, "insufficient_quota", Some("cost_daily"))
        );
        assert!(face.final_for_now);
        assert_eq!(
            face.message,
            "the API key's limit of 2 US dollars per day has no room for this call; try again in 90 s"
        );
        assert_eq!(
            serde_json::to_string(&face.limit).unwrap(),
            r#"{"scope":"key","cap":2,"used":1.5,"held":0,"resets_at":"2026-03-01T00:00:00Z"}"#
        );
    }

    #[test]
    fn a_rate_limit_may_be_retried() {
        let error = denial("rate_limit_rpm", 2);
        let face = error.face();
        assert_eq!((&*face.kind, face.final_for_now), ("rate_limit_exceeded", false));
        assert_eq!(face.retry_after, Some(Duration::from_secs(90)));
    }
}
