//! What went wrong upstream, as decisions: what the client is told, what is charged, whether to try again.

use std::sync::Arc;
use std::time::Duration;

use domain::Kind;

use crate::dialect::openai::RequestError;
use crate::images::ImageError;
use crate::ssrf::AddressRefused;

/// What a call that failed **before its first byte** is charged. A stream that fails later is charged by its
/// [`crate::StreamOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Nothing, and the request slot is given back: the fault was ours or the provider's.
    Nothing,
    /// No tokens, but the request counts: the provider refused what the client sent.
    Request,
    /// The prompt by our count: the provider has answered, and bills it, but the answer is of no use.
    Prompt,
}

/// The words of a provider's error answer, scrubbed and cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// What it said.
    pub message: String,
    /// Its `type`, where it gave one.
    pub error_type: Option<String>,
    /// Its `code`, where it gave one.
    pub code: Option<String>,
    /// The request field it complained about, where it named one.
    pub param: Option<String>,
}

/// Which wait ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// For the status and headers of the answer.
    Headers,
    /// For the next bytes of the answer.
    Idle,
    /// For the whole call.
    Total,
}

/// A failed upstream call.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The base URL leads to an address that may not be called. Nothing was sent.
    #[error("the connection leads to an address that is not allowed")]
    Refused(#[source] AddressRefused),
    /// The request has no form that the provider would understand. Nothing was sent.
    #[error("the request cannot be put to this model")]
    Unfit(RequestError),
    /// Every connection the call could go to has failed again and again, and is left alone for a while. Nothing was sent.
    #[error("the provider has failed repeatedly and is left alone for a while")]
    LeftAlone {
        /// When the first of them is tried again.
        retry_after: Option<Duration>,
    },
    /// No connection came about (look-up, TCP, TLS). Nothing was sent.
    #[error("the provider cannot be reached")]
    Connect(#[source] reqwest::Error),
    /// The connection broke after the request was sent and before the answer began.
    #[error("the provider closed the connection before it answered")]
    Lost(#[source] reqwest::Error),
    /// A wait ran out.
    #[error("the provider did not answer in time")]
    Timeout(Waited),
    /// The provider does not accept the connection's credential (401, 403).
    #[error("the provider does not accept the connection's credential")]
    Auth {
        /// The provider's status.
        status: u16,
    },
    /// The provider asks to slow down (429).
    #[error("the provider limits the rate")]
    RateLimited {
        /// What it said.
        words: Words,
        /// How long it asked to wait.
        retry_after: Option<Duration>,
    },
    /// The provider refused the request (other 4xx).
    #[error("the provider refused the request")]
    Rejected {
        /// The provider's status, which the client gets too.
        status: u16,
        /// What it said.
        words: Words,
    },
    /// The provider failed (5xx, or an error inside a stream).
    #[error("the provider failed")]
    Failed {
        /// The provider's status.
        status: u16,
        /// What it said.
        words: Words,
        /// How long it asked to wait.
        retry_after: Option<Duration>,
    },
    /// The answer is not what the API promises.
    #[error("the provider's answer cannot be used: {0}")]
    BadAnswer(&'static str),
    /// The answer ended before it was complete.
    #[error("the provider's answer broke off")]
    Truncated,
    /// The answer, or one event of it, is larger than allowed.
    #[error("the provider's answer is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The bound.
        limit_bytes: u64,
    },
    /// The process has no memory left for the answer.
    #[error("this edge has no memory left for the answer")]
    Overloaded,
    /// The process has no room left to make the request. Nothing was sent.
    #[error("this edge has no room left to make the request")]
    NoRoom,
    /// The provider wants the bytes of an image that could not be fetched. Nothing was sent.
    #[error("the request has an image that the provider wants and that cannot be had")]
    Image(#[source] Arc<ImageError>),
}

impl UpstreamError {
    /// The HTTP status the client gets.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Unfit(_) => 400,
            Self::Image(error) => error.status(),
            Self::Timeout(_) => 504,
            Self::RateLimited { .. } => 429,
            Self::Rejected { status, .. } => *status,
            Self::Failed { status: 504, .. } => 504,
            Self::Failed { status: 503 | 529, .. } | Self::LeftAlone { .. } | Self::Overloaded | Self::NoRoom => 503,
            Self::Refused(_)
            | Self::Connect(_)
            | Self::Lost(_)
            | Self::Auth { .. }
            | Self::Failed { .. }
            | Self::BadAnswer(_)
            | Self::Truncated
            | Self::TooLarge { .. } => 502,
        }
    }

    /// The kind, for faces other than HTTP.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Timeout(_) => Kind::Timeout,
            Self::RateLimited { .. } => Kind::Limited,
            Self::Rejected { .. } | Self::Unfit(_) => Kind::Invalid,
            Self::Image(error) => error.kind(),
            _ => Kind::Unavailable,
        }
    }

    /// The error `type` the client gets: the provider's own where it is relayed.
    #[must_use]
    pub fn error_type(&self) -> &str {
        match self {
            Self::Rejected { words, .. } | Self::RateLimited { words, .. } => {
                words.error_type.as_deref().unwrap_or("upstream_error")
            }
            Self::Unfit(_) => "invalid_request_error",
            Self::Image(error) => error.error_type(),
            Self::Overloaded | Self::NoRoom => "server_error",
            _ => "upstream_error",
        }
    }

    /// The error `code` the client gets.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Rejected { words, .. } | Self::RateLimited { words, .. } => words.code.as_deref(),
            Self::Refused(_) => Some("upstream_refused"),
            Self::Unfit(_) => None,
            Self::Image(error) => Some(error.code()),
            Self::LeftAlone { .. } => Some("upstream_circuit_open"),
            Self::Connect(_) | Self::Lost(_) => Some("upstream_unreachable"),
            Self::Timeout(_) => Some("upstream_timeout"),
            Self::Auth { .. } => Some("upstream_auth"),
            Self::Failed { .. } => Some("upstream_failed"),
            Self::BadAnswer(_) => Some("upstream_bad_answer"),
            Self::Truncated => Some("upstream_truncated"),
            Self::TooLarge { .. } => Some("upstream_too_large"),
            Self::Overloaded | Self::NoRoom => Some("overloaded"),
        }
    }

    /// The request field the provider complained about.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Rejected { words, .. } => words.param.as_deref(),
            Self::Unfit(error) => error.param(),
            _ => None,
        }
    }

    /// The sentence the client gets: the provider's scrubbed words where it gave any, else ours. It may quote the request,
    /// so it is for nobody else; logs get the error itself, which never does.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Rejected { words, .. } | Self::RateLimited { words, .. } | Self::Failed { words, .. }
                if !words.message.is_empty() =>
            {
                words.message.clone()
            }
            Self::Unfit(error) => format!("{self}: {error}"),
            Self::Image(error) => error.to_string(),
            _ => self.to_string(),
        }
    }

    /// How long the client should wait before it tries again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. }
            | Self::Failed { retry_after, .. }
            | Self::LeftAlone { retry_after } => *retry_after,
            Self::Overloaded | Self::NoRoom => Some(Duration::from_secs(1)),
            Self::Image(error) => error.retry_after(),
            _ => None,
        }
    }

    /// What the call is charged if this ended it before the first byte.
    #[must_use]
    pub fn charge(&self) -> Charge {
        match self {
            // The account of the connection has run out, which is not the client's doing.
            Self::Rejected { status: 402 | 408, .. } => Charge::Nothing,
            Self::Rejected { .. } => Charge::Request,
            Self::Image(error) if error.status() == 400 => Charge::Request,
            // All of them follow a status of success.
            Self::BadAnswer(_) | Self::Truncated | Self::TooLarge { .. } | Self::Overloaded => Charge::Prompt,
            _ => Charge::Nothing,
        }
    }

    /// Whether a call of our own that ended so may stand in the provider's bill: it has answered, or was at work when we
    /// stopped waiting for it.
    #[must_use]
    pub fn may_be_billed(&self) -> bool {
        self.charge() == Charge::Prompt || matches!(self, Self::Timeout(Waited::Total))
    }

    /// Whether an attempt that ended so may stand in the provider's bill though no answer of it can be used.
    pub(crate) fn leaves_open(&self) -> bool {
        self.charge() == Charge::Prompt || matches!(self, Self::Timeout(_) | Self::Lost(_))
    }

    /// Whether the failure is the destination's and not the request's, so that another one may do better. A request that
    /// was sent and not answered is neither: the provider may be working on it.
    #[must_use]
    pub fn is_of_destination(&self) -> bool {
        match self {
            Self::Refused(_)
            | Self::Connect(_)
            | Self::Auth { .. }
            | Self::RateLimited { .. }
            | Self::Failed { .. }
            | Self::Unfit(_)
            | Self::Image(_) => true,
            Self::Rejected { status, .. } => matches!(status, 402 | 408),
            Self::LeftAlone { .. }
            | Self::Lost(_)
            | Self::Timeout(_)
            | Self::BadAnswer(_)
            | Self::Truncated
            | Self::TooLarge { .. }
            | Self::Overloaded
            | Self::NoRoom => false,
        }
    }

    /// Whether the same call may be sent once more. A request that was sent and not answered may not: the provider may
    /// be working on it. Nor may one that a spent quota refused, which no waiting of ours repairs.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::RateLimited { words, .. } => words.code.as_deref() != Some("insufficient_quota"),
            Self::Rejected { status, .. } => *status == 408,
            Self::Failed { status, .. } => matches!(status, 502..=504 | 529),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: u16) -> UpstreamError {
        UpstreamError::Failed { status, words: Words::default(), retry_after: None }
    }

    #[test]
    fn provider_statuses_become_the_clients() {
        for (status, told) in [(500, 502), (501, 502), (502, 502), (503, 503), (504, 504), (529, 503), (599, 502)] {
            assert_eq!(failed(status).status(), told);
        }
        let auth = UpstreamError::Auth { status: 401 };
        assert_eq!((auth.status(), auth.code(), auth.charge()), (502, Some("upstream_auth"), Charge::Nothing));
        let full = UpstreamError::Overloaded;
        assert_eq!((full.status(), full.code(), full.charge()), (503, Some("overloaded"), Charge::Prompt));
        let full = UpstreamError::NoRoom;
        assert_eq!((full.status(), full.code(), full.charge()), (503, Some("overloaded"), Charge::Nothing));
    }

    #[test]
    fn what_an_error_says_of_itself_quotes_nobody() {
        let words = || Words { message: "do not say: my secret prompt".to_owned(), ..Words::default() };
        let (retry_after, quoting) = (None, "my secret prompt");
        for error in [
            UpstreamError::Rejected { status: 400, words: words() },
            UpstreamError::RateLimited { words: words(), retry_after },
            UpstreamError::Failed { status: 500, words: words(), retry_after },
            UpstreamError::Unfit(RequestError::Malformed(quoting.to_owned())),
        ] {
            assert!(error.message().contains(quoting), "{error:?}");
            let mut said = vec![error.to_string()];
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                said.push(cause.to_string());
                source = cause.source();
            }
            assert!(!said.concat().contains(quoting), "{said:?}");
        }
    }

    #[test]
    fn our_own_calls_pay_for_what_was_answered_and_for_what_was_not_waited_for() {
        for error in [UpstreamError::BadAnswer("it is none"), UpstreamError::Timeout(Waited::Total)] {
            assert!(error.may_be_billed(), "{error:?}");
        }
        for error in [failed(500), UpstreamError::Timeout(Waited::Headers), UpstreamError::Auth { status: 401 }] {
            assert!(!error.may_be_billed(), "{error:?}");
        }
    }

    #[test]
    fn an_account_that_has_run_out_is_the_destinations() {
        let rejected = |status| UpstreamError::Rejected { status, words: Words::default() };
        let empty = rejected(402);
        assert_eq!((empty.status(), empty.charge(), empty.is_retryable()), (402, Charge::Nothing, false));
        assert!(empty.is_of_destination() && !rejected(400).is_of_destination());
        assert_eq!(rejected(400).charge(), Charge::Request);
    }

    #[test]
    fn only_what_was_not_done_is_tried_again() {
        for status in [502, 503, 504, 529] {
            assert!(failed(status).is_retryable());
        }
        assert!(!failed(500).is_retryable());
        assert!(!UpstreamError::Timeout(Waited::Headers).is_retryable());
        assert!(!UpstreamError::Truncated.is_retryable());
        let limited = |code: Option<&str>| UpstreamError::RateLimited {
            words: Words { code: code.map(str::to_owned), ..Words::default() },
            retry_after: None,
        };
        assert!(limited(None).is_retryable());
        assert!(!limited(Some("insufficient_quota")).is_retryable());
    }
}
