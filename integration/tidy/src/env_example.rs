//! `.env.example` says what the services read, and what they do without.
//!
//! In it a key that must be set stands as `KEY=example`, a key with a default as `#KEY=default`, each under a line that
//! says what it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use config::Env;
use runtime::Settings;

use crate::{Finding, Workspace};

const NAME: &str = ".env.example";

/// One reader of settings: the name to report it by, and a function that reads everything it knows and shows what it
/// made of it.
type Reader = (&'static str, fn(&mut Env) -> String);

/// Everything that reads settings.
const READERS: &[Reader] = &[
    ("edge", show::<edge::Settings>),
    ("ingestion-worker", show::<ingestion_worker::Config>),
    ("admin", show::<admin::Settings>),
];

/// What a service makes of its environment; secrets show themselves as redacted.
fn show<S: Settings + Debug>(env: &mut Env) -> String {
    format!("{:?}", S::read(env))
}

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    line: usize,
    key: String,
    value: String,
    is_default: bool,
    is_explained: bool,
}

/// Reports keys that are missing, unknown, twice there, unexplained, or given with another default than the code's.
///
/// # Errors
///
/// When the file cannot be read.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let text = fs::read_to_string(workspace.root.join(NAME)).with_context(|| format!("{NAME} cannot be read"))?;
    Ok(check_text(&text, READERS))
}

fn check_text(text: &str, readers: &[Reader]) -> Vec<Finding> {
    let entries = entries(text);
    let mut findings = check_entries(&entries);
    let required: BTreeMap<&str, &str> =
        entries.iter().filter(|e| !e.is_default).map(|e| (e.key.as_str(), e.value.as_str())).collect();
    let mut known = BTreeSet::new();
    for (name, read) in readers {
        let mut env = Env::of(required.clone());
        let without = read(&mut env);
        let keys = env.keys();
        let starts = env.finish();
        for key in &keys {
            if !entries.iter().any(|entry| entry.key == *key) {
                findings.push(Finding::about(NAME, format!("{key} is missing; {name} reads it")));
            }
        }
        let defaults = entries.iter().filter(|entry| entry.is_default && keys.contains(entry.key.as_str()));
        match starts {
            Err(mistakes) => findings.push(Finding::about(NAME, format!("{name} cannot start from it: {mistakes}"))),
            Ok(_) => findings.extend(defaults.filter_map(|entry| {
                let mut env = Env::of(required.clone().into_iter().chain([(entry.key.as_str(), entry.value.as_str())]));
                let is_default = read(&mut env) == without && env.finish().is_ok();
                let problem = || format!("{}={} is not the default of {name}", entry.key, entry.value);
                (!is_default).then(|| Finding::at(Path::new(NAME), entry.line, problem()))
            })),
        }
        known.extend(keys);
    }
    let unknown = entries.iter().filter(|entry| !known.contains(entry.key.as_str()));
    findings
        .extend(unknown.map(|entry| Finding::at(Path::new(NAME), entry.line, format!("nothing reads {}", entry.key))));
    findings
}

/// What is wrong with the file by itself.
fn check_entries(entries: &[Entry]) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for entry in entries {
        let at = |problem: String| Finding::at(Path::new(NAME), entry.line, problem);
        if !seen.insert(&entry.key) {
            findings.push(at(format!("{} is there twice", entry.key)));
        }
        if !entry.is_explained {
            findings.push(at(format!("{} needs a line above it that says what it is for", entry.key)));
        }
    }
    findings
}

fn entries(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut is_explained = false;
    for (line, number) in text.lines().zip(1..) {
        let (body, is_default) = match line.strip_prefix('#') {
            Some(body) => (body, true),
            None => (line, false),
        };
        match body.split_once('=').filter(|(key, _)| is_key(key)) {
            Some((key, value)) => {
                let (key, value) = (key.to_owned(), value.trim().to_owned());
                entries.push(Entry { line: number, key, value, is_default, is_explained });
                is_explained = false;
            }
            None => is_explained = is_default && !body.trim().is_empty(),
        }
    }
    entries
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const READER: &[Reader] = &[("x", |env| {
        let limit = env.duration("LIMIT", Duration::from_secs(5), Duration::ZERO..=Duration::from_secs(9));
        format!("{:?}", (env.required_text("NEEDED"), limit, env.list("LIST")))
    })];

    fn problems(text: &str) -> Vec<String> {
        check_text(text, READER).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_that_says_it_all_is_fine() {
        assert_eq!(problems("# Title\n\n# a\nNEEDED=x\n# b, such as A=1\n#LIMIT=5s\n# c\n#LIST=\n"), [""; 0]);
    }

    #[test]
    fn what_is_missing_unknown_wrong_or_unexplained_is_named() {
        assert_eq!(
            problems("# a\nNEEDED=x\n#LIMIT=6s\n# c\n#OTHER=1\n# d\n#OTHER=1\n"),
            [
                ".env.example:3: LIMIT needs a line above it that says what it is for",
                ".env.example:7: OTHER is there twice",
                ".env.example: LIST is missing; x reads it",
                ".env.example:3: LIMIT=6s is not the default of x",
                ".env.example:5: nothing reads OTHER",
                ".env.example:7: nothing reads OTHER",
            ]
        );
    }

    #[test]
    fn what_must_be_set_has_a_usable_example() {
        assert_eq!(
            problems("# b\n#LIMIT=5s\n# c\n#LIST=\n# a\n#NEEDED=\n"),
            [
                ".env.example: x cannot start from it: one setting is wrong:\n  NEEDED: is required; set NEEDED or NEEDED_FILE"
            ]
        );
    }
}
