//! What a person may do.

use serde::{Deserialize, Serialize};

/// A person's role, weakest first: a later role may do all that an earlier one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads the projects they are a member of.
    Viewer,
    /// Changes the projects they are a member of.
    Editor,
    /// Everything, people and credentials included.
    Admin,
}

impl Role {
    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    /// The role of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Viewer, Self::Editor, Self::Admin].into_iter().find(|role| role.as_str() == name)
    }
}
