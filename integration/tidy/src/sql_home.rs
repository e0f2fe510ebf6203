//! SQL has one home.

use std::path::Path;

use anyhow::Context as _;

use crate::{Finding, Source, Workspace, rust};

/// Where SQL is written, and the test kit, which arranges databases.
const HOMES: [&str; 2] = ["libs/store", "libs/testkit"];

/// Statements by their first words; the rest of the text must hold one of the given words as well, when there are any.
const STATEMENTS: &[(&str, &[&str])] = &[
    ("SELECT ", &[" FROM ", "("]),
    ("INSERT INTO ", &[]),
    ("UPDATE ", &[" SET "]),
    ("DELETE FROM ", &[]),
    ("WITH ", &[" AS ("]),
    ("MERGE INTO ", &[]),
    ("TRUNCATE TABLE ", &[]),
    ("CREATE ", OBJECTS),
    ("ALTER ", OBJECTS),
    ("DROP ", OBJECTS),
    ("GRANT ", &[" TO "]),
    ("REVOKE ", &[" FROM "]),
    ("SET LOCAL ", &[]),
    ("LOCK TABLE ", &[]),
];

const OBJECTS: &[&str] =
    &[" TABLE ", " INDEX ", " ROLE ", " DATABASE ", " SCHEMA ", " FUNCTION ", " EXTENSION ", " VIEW ", " TYPE "];

/// Reports SQL and uses of the driver in production code outside `libs/store`.
///
/// # Errors
///
/// When a file is no Rust.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let elsewhere =
        |source: &&Source| source.is_production && !HOMES.iter().any(|home| source.krate == Path::new(home));
    for source in workspace.sources.iter().filter(elsewhere) {
        findings.extend(check_source(source).with_context(|| source.path.display().to_string())?);
    }
    Ok(findings)
}

fn check_source(source: &Source) -> anyhow::Result<Vec<Finding>> {
    let parsed = rust::parse(&source.text)?;
    let drivers = parsed.identifiers.iter().filter(|spot| spot.text == "sqlx");
    let drivers = drivers.map(|spot| Finding::at(&source.path, spot.line, "the driver is used outside libs/store"));
    let statements = parsed.strings.iter().filter(|spot| is_statement(&spot.text));
    let statements = statements.map(|spot| Finding::at(&source.path, spot.line, "a statement outside libs/store"));
    Ok(drivers.chain(statements).collect())
}

/// Whether a text reads as a statement. Prose is told apart by its case: SQL here is written with upper-case words.
fn is_statement(text: &str) -> bool {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
    STATEMENTS.iter().any(|(opening, others)| {
        // A statement in lower case is still one when it reads on like one.
        let is_lower = text.starts_with(&opening.to_lowercase()) && text.contains(['$', '*', '=', '(']);
        let words = if is_lower { text.to_uppercase() } else { text.clone() };
        words.starts_with(opening)
            && words.len() > opening.len()
            && (others.is_empty() || others.iter().any(|other| words.contains(other)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let source = Source { path: "a.rs".into(), krate: "libs/a".into(), text: text.to_owned(), is_production: true };
        check_source(&source).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn statements_and_the_driver_are_found_where_they_stand() {
        assert_eq!(
            problems("use sqlx::PgPool;\nfn f() {\n    q(\"SELECT id\n      FROM projects\");\n}"),
            ["a.rs:1: the driver is used outside libs/store", "a.rs:3: a statement outside libs/store"]
        );
    }

    #[test]
    fn every_kind_of_statement_is_known() {
        for text in [
            "SELECT now()",
            "select * from users where id = $1",
            "INSERT INTO users VALUES ($1)",
            "UPDATE users SET name = $1",
            "DELETE FROM users",
            "WITH t AS (SELECT 1) SELECT * FROM t",
            "CREATE DATABASE \\\"{name}\\\"",
            "CREATE UNIQUE INDEX i ON t (c)",
            "DROP TABLE t",
            "ALTER ROLE x PASSWORD 'y'",
            "SET LOCAL lock_timeout = '1s'",
        ] {
            assert!(is_statement(text), "{text}");
        }
    }

    #[test]
    fn prose_is_no_statement() {
        for text in [
            "select a model from the list",
            "Update the settings",
            "create a key",
            "with a grace period",
            "SELECTED",
            "",
            "drop the connection",
            "delete from the store what is gone",
        ] {
            assert!(!is_statement(text), "{text}");
        }
    }
}
