//! Marks of unfinished work: what is not done is an issue, not a comment.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::{Finding, Workspace};

/// Put together here, so that this file does not find itself.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Reports every mark in the text files of the checkout.
///
/// # Errors
///
/// When a file cannot be read.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in workspace.texts() {
        let bytes = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let shown = path.strip_prefix(&workspace.root).unwrap_or(&path);
        findings.extend(check_text(shown, &text));
    }
    Ok(findings)
}

fn check_text(path: &Path, text: &str) -> Vec<Finding> {
    let marked = text.lines().zip(1..).filter(|(line, _)| words(line).any(|word| MARKS.contains(&word)));
    marked.map(|(_, line)| Finding::at(path, line, "a mark of unfinished work; finish it or file an issue")).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_as_a_word() {
        let text = format!("fine\n// {}: later\n{}S\n", MARKS[0], MARKS[0]);
        let found = check_text(Path::new("a.rs"), &text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "a.rs:2");
    }
}
