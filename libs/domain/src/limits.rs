//! Caps of a tier.

use serde::{Deserialize, Serialize};

use crate::NanoUsd;

/// The caps of a project or key. Zero means unlimited, everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Requests per UTC minute.
    pub requests_per_minute: i64,
    /// Tokens (prompt and completion) per UTC minute.
    pub tokens_per_minute: i64,
    /// Tokens per calendar day of the tier's time zone.
    pub tokens_per_day: i64,
    /// Tokens per calendar month of the tier's time zone.
    pub tokens_per_month: i64,
    /// Cost per calendar day of the tier's time zone.
    pub cost_per_day: NanoUsd,
    /// Cost per calendar month of the tier's time zone.
    pub cost_per_month: NanoUsd,
    /// Calls in flight at once.
    pub concurrent_requests: i64,
}

impl Limits {
    /// The first cap that is negative, by its name.
    #[must_use]
    pub fn negative(&self) -> Option<&'static str> {
        [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("tokens_per_day", self.tokens_per_day),
            ("tokens_per_month", self.tokens_per_month),
            ("cost_per_day", self.cost_per_day.0),
            ("cost_per_month", self.cost_per_month.0),
            ("concurrent_requests", self.concurrent_requests),
        ]
        .into_iter()
        .find(|(_, cap)| *cap < 0)
        .map(|(name, _)| name)
    }
}

/// How the output bound of an admitted call is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// The bound is reserved; an answer that runs over it is charged as excess.
    #[default]
    Soft,
    /// The bound is also sent upstream and the answer is cut at it.
    Hard,
}

impl Enforcement {
    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }

    /// The enforcement of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Soft, Self::Hard].into_iter().find(|e| e.as_str() == name)
    }
}
