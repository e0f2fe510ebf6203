//! How long a file may be.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::{Finding, Workspace};

/// The most lines of a production file, its own tests included.
const LONGEST: usize = 500;

/// Reports production files and files of SQL that are longer.
///
/// # Errors
///
/// When a file cannot be read.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let production = workspace.sources.iter().filter(|source| source.is_production);
    let mut findings: Vec<Finding> = production.filter_map(|source| check_text(&source.path, &source.text)).collect();
    for path in workspace.texts().filter(|path| path.extension().is_some_and(|kind| kind == "sql")) {
        let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        findings.extend(check_text(path.strip_prefix(&workspace.root).unwrap_or(&path), &text));
    }
    Ok(findings)
}

fn check_text(path: &Path, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (lines > LONGEST)
        .then(|| Finding::at(path, lines, format!("{lines} lines are more than {LONGEST}; it has two subjects")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_lines_are_allowed() {
        let path = Path::new("a.sql");
        assert_eq!(check_text(path, &"x\n".repeat(LONGEST)), None);
        let found = check_text(path, &"x\n".repeat(LONGEST + 1)).unwrap();
        assert_eq!(found.place, "a.sql:501");
    }
}
