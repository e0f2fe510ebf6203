//! Names that say nothing about what is behind them.

use std::ffi::OsStr;

use crate::{Finding, Workspace};

const EMPTY: [&str; 7] = ["util", "utils", "common", "core", "shared", "helpers", "misc"];

/// Reports crates, folders and modules with such a name.
#[must_use]
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let crates = workspace
        .members
        .iter()
        .filter(|member| says_nothing(&member.package))
        .map(|member| Finding::about(&member.package, "the name of the crate says nothing about its subject"));
    let modules = workspace.sources.iter().filter_map(|source| {
        let inner = source.path.strip_prefix(&source.krate).unwrap_or(&source.path).with_extension("");
        let empty = inner.iter().filter_map(OsStr::to_str).any(says_nothing);
        empty.then(|| Finding::at(&source.path, 1, "the name of the module says nothing about its subject"))
    });
    crates.chain(modules).collect()
}

fn says_nothing(name: &str) -> bool {
    EMPTY.contains(&name.trim_start_matches("ragmux-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_empty_as_a_whole_only() {
        assert!(says_nothing("util") && says_nothing("ragmux-common"));
        assert!(!says_nothing("shared_cluster") && !says_nothing("score"));
    }
}
