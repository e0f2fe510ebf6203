//! The headers of answers, by name. What scripts of web pages may read of them is all but those that are for the
//! connection's or the browser's own use.

use http::HeaderName;
use http::header::{RETRY_AFTER, WARNING};

/// The id of the call.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same, by the name that clients of the Messages API look for.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Whether client libraries should try again by themselves.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The projects of which one has to be named.
pub(crate) const PROJECTS: HeaderName = HeaderName::from_static("x-ragmux-projects");

/// The model at the provider.
pub(crate) const MODEL: HeaderName = HeaderName::from_static("x-ragmux-model");
pub(crate) const ATTEMPTS: HeaderName = HeaderName::from_static("x-ragmux-attempts");
pub(crate) const CONNECTION: HeaderName = HeaderName::from_static("x-ragmux-connection");
pub(crate) const DROPPED: HeaderName = HeaderName::from_static("x-ragmux-dropped");

pub(crate) const HITS: HeaderName = HeaderName::from_static("x-ragmux-rag-hits");
pub(crate) const SOURCES: HeaderName = HeaderName::from_static("x-ragmux-rag-sources");
const CACHE: HeaderName = HeaderName::from_static("x-ragmux-cache");

pub(crate) const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
pub(crate) const REMAINING_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
pub(crate) const RESET_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");
pub(crate) const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
pub(crate) const REMAINING_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");
pub(crate) const RESET_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-reset-tokens");

/// The same limits as Anthropic's API has them (Rate limits, Response headers).
pub(crate) const MESSAGES_LIMIT_REQUESTS: HeaderName = HeaderName::from_static("anthropic-ratelimit-requests-limit");
pub(crate) const MESSAGES_REMAINING_REQUESTS: HeaderName =
    HeaderName::from_static("anthropic-ratelimit-requests-remaining");
pub(crate) const MESSAGES_RESET_REQUESTS: HeaderName = HeaderName::from_static("anthropic-ratelimit-requests-reset");
pub(crate) const MESSAGES_LIMIT_TOKENS: HeaderName = HeaderName::from_static("anthropic-ratelimit-tokens-limit");
pub(crate) const MESSAGES_REMAINING_TOKENS: HeaderName =
    HeaderName::from_static("anthropic-ratelimit-tokens-remaining");
pub(crate) const MESSAGES_RESET_TOKENS: HeaderName = HeaderName::from_static("anthropic-ratelimit-tokens-reset");

pub(crate) const DAILY: HeaderName = HeaderName::from_static("x-ragmux-budget-daily-remaining");
pub(crate) const MONTHLY: HeaderName = HeaderName::from_static("x-ragmux-budget-monthly-remaining");
// Names of their own, so that nobody takes dollars for tokens.
pub(crate) const DAILY_COST: HeaderName = HeaderName::from_static("x-ragmux-cost-budget-daily-remaining");
pub(crate) const MONTHLY_COST: HeaderName = HeaderName::from_static("x-ragmux-cost-budget-monthly-remaining");

/// What scripts of a page may read beside the body: what a client of the API may want to know.
pub(crate) const EXPOSED: [HeaderName; 29] = [
    RETRY_AFTER,
    WARNING,
    X_REQUEST_ID,
    REQUEST_ID,
    SHOULD_RETRY,
    PROJECTS,
    MODEL,
    ATTEMPTS,
    CONNECTION,
    DROPPED,
    HITS,
    SOURCES,
    CACHE,
    LIMIT_REQUESTS,
    REMAINING_REQUESTS,
    RESET_REQUESTS,
    LIMIT_TOKENS,
    REMAINING_TOKENS,
    RESET_TOKENS,
    MESSAGES_LIMIT_REQUESTS,
    MESSAGES_REMAINING_REQUESTS,
    MESSAGES_RESET_REQUESTS,
    MESSAGES_LIMIT_TOKENS,
    MESSAGES_REMAINING_TOKENS,
    MESSAGES_RESET_TOKENS,
    DAILY,
    MONTHLY,
    DAILY_COST,
    MONTHLY_COST,
];
