//! What is wrong with the settings.

use std::fmt;

use thiserror::Error;

/// One setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The key as the operator wrote it: `NAME`, or `NAME_FILE` where the file is at fault.
    pub key: String,
    /// What was found; absent for secrets and where nothing was found.
    pub value: Option<String>,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} is {value:?}: {}", self.key, self.problem),
            None => write!(f, "{}: {}", self.key, self.problem),
        }
    }
}

/// Everything that is wrong with the settings, in the order it was found.
///
/// Its text has a line for the count and one for each mistake.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "one setting is wrong:")?,
            count => write!(f, "{count} settings are wrong:")?,
        }
        for mistake in &self.0 {
            write!(f, "\n  {mistake}")?;
        }
        Ok(())
    }
}
