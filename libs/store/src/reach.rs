//! Whose rows a statement may see.

use domain::UserId;

/// The rows that a caller of the admin API may see and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of them: administrators.
    All,
    /// Those of the projects that this person is a member of.
    Member(UserId),
}

impl Reach {
    /// The parameter of `can_reach_project`.
    pub(crate) fn member(self) -> Option<i64> {
        match self {
            Self::All => None,
            Self::Member(user) => Some(user.0),
        }
    }
}
