//! What is limited, and over which time.

use serde::{Deserialize, Serialize};

/// Whose limit it is. A request passes the project's tier and, with a person's key, the key's as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The project.
    Project,
    /// The person's key.
    Key,
}

impl Tier {
    /// The name in errors and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Key => "key",
        }
    }
}

/// The time a cap covers. Minutes are UTC; days and months are calendar windows of the tier's time zone, computed by
/// the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// A UTC minute.
    Minute,
    /// A calendar day.
    Day,
    /// A calendar month.
    Month,
}
