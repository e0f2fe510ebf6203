//! What a rule found.

use std::fmt;
use std::path::Path;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A manifest's crate, or a file with the line.
    pub place: String,
    /// What is wrong there, and what would be right.
    pub problem: String,
}

impl Finding {
    /// A finding about a crate or another thing with a name.
    pub fn about(name: &str, problem: impl Into<String>) -> Self {
        Self { place: name.to_owned(), problem: problem.into() }
    }

    /// A finding in a line of a file.
    pub fn at(path: &Path, line: usize, problem: impl Into<String>) -> Self {
        Self { place: format!("{}:{line}", path.display()), problem: problem.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}
