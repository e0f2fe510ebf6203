//! Why an image could not be had, as decisions: what the client is told.

use std::time::Duration;

use domain::Kind;

/// An image could not be had. Nothing of a URL but its host is told: the rest may hold signatures.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Too many images are being fetched right now. Not the client's to repair, as the next.
    #[error("too many images are being fetched; try again later")]
    Saturated {
        /// How long until the fetches that are under way have ended for certain.
        retry_after: Duration,
    },
    /// The process has no memory left for the images of the request.
    #[error("this edge has no memory left for the images of the request")]
    Overloaded,
    /// This installation fetches none.
    #[error("images are not fetched from URLs here; send the image as a data: URL")]
    Disabled,
    /// The request names too many.
    #[error("at most {limit} images of a request are fetched from URLs, and one that is named again counts again")]
    TooMany {
        /// The bound.
        limit: usize,
    },
    /// It is no usable URL.
    #[error("an image URL must be a valid http or https URL of at most 8192 bytes without user name and password")]
    Malformed,
    /// The URL itself names an address that is never called.
    #[error("the image host {host} is a private or reserved address")]
    Forbidden {
        /// The URL's host.
        host: String,
    },
    /// No connection came about, it broke, or the host's name leads to an address that is never called: which of them is
    /// not told.
    #[error("the image could not be fetched from {host}")]
    Unreachable {
        /// The URL's host.
        host: String,
        /// What happened.
        source: reqwest::Error,
    },
    /// The host took too long.
    #[error("the image host {host} did not answer in time")]
    Timeout {
        /// The URL's host.
        host: String,
    },
    /// All hosts together took too long.
    #[error("the images of the request did not all come in time")]
    LateTogether,
    /// The host redirects too often, elsewhere, or to plain HTTP.
    #[error("the image host {host} redirects to where it is not followed")]
    Redirect {
        /// The URL's host.
        host: String,
    },
    /// The host gave no image.
    #[error("the image host {host} answered with status {status}")]
    Status {
        /// The URL's host.
        host: String,
        /// Its answer's status.
        status: u16,
    },
    /// What the host gave is of another type.
    #[error("what {host} answered is not an image of an accepted type ({accepted})")]
    Unsupported {
        /// The URL's host.
        host: String,
        /// The accepted media types.
        accepted: String,
    },
    /// The image is too large.
    #[error("the image of {host} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The URL's host.
        host: String,
        /// The bound.
        limit_bytes: usize,
    },
    /// The answer has no bytes.
    #[error("the image of {host} is empty")]
    Empty {
        /// The URL's host.
        host: String,
    },
}

impl ImageError {
    /// The HTTP status the client gets.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Saturated { .. } => 429,
            Self::Overloaded => 503,
            _ => 400,
        }
    }

    /// The error `type` the client gets.
    #[must_use]
    pub fn error_type(&self) -> &'static str {
        match self {
            Self::Saturated { .. } => "rate_limit_exceeded",
            Self::Overloaded => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The kind, for faces other than HTTP.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Saturated { .. } => Kind::Limited,
            Self::Overloaded => Kind::Unavailable,
            _ => Kind::Invalid,
        }
    }

    /// The error `code` the client gets.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Saturated { .. } => "image_fetch_saturated",
            Self::Overloaded => "overloaded",
            Self::Disabled => "image_fetch_disabled",
            Self::TooMany { .. } => "too_many_images",
            Self::Malformed | Self::Forbidden { .. } => "invalid_image_url",
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::LateTogether
            | Self::Redirect { .. }
            | Self::Status { .. } => "image_fetch_failed",
            Self::Unsupported { .. } => "unsupported_image_type",
            Self::TooLarge { .. } => "image_too_large",
            Self::Empty { .. } => "invalid_image",
        }
    }

    /// How long the client should wait before it tries again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Saturated { retry_after } => Some(*retry_after),
            Self::Overloaded => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}
