//! How long a file may be.

use crate::{Finding, Workspace};

/// The most lines of a production file, its own tests included.
const LONGEST: usize = 500;

/// Reports production files that are longer.
#[must_use]
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let production = workspace.sources.iter().filter(|source| source.is_production);
    let too_long = production.filter(|source| is_too_long(&source.text));
    too_long
        .map(|source| {
            let lines = source.text.lines().count();
            Finding::at(&source.path, lines, format!("{lines} lines are more than {LONGEST}; it has two subjects"))
        })
        .collect()
}

fn is_too_long(text: &str) -> bool {
    text.lines().count() > LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_lines_are_allowed() {
        assert!(!is_too_long(&"x\n".repeat(LONGEST)));
        assert!(is_too_long(&"x\n".repeat(LONGEST + 1)));
    }
}
