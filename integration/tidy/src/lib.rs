//! The rules of this workspace that no compiler checks.
//!
//! [`check`] reads the manifests and the sources and reports every [`Finding`]: an arrow between crates that is not in
//! the table ([`arrows`]), SQL outside `libs/store` ([`sql_home`]), a source or SQL file that is too long, a name
//! that says nothing ([`names`]), a mark of unfinished work ([`marks`]), and a `.env.example` that does not say what the
//! services read ([`env_example`]).
//!
//! [`query_data`] compares the committed `.sqlx` with what the database says about today's statements. It needs a
//! database and minutes, so it is a command of its own.

pub mod arrows;
pub mod env_example;
mod finding;
pub mod length;
pub mod marks;
pub mod names;
pub mod query_data;
mod rust;
pub mod sql_home;
mod workspace;

pub use finding::Finding;
pub use workspace::{Member, Place, Source, Workspace};

/// Everything that breaks a rule, in the order of the rules.
///
/// # Errors
///
/// When a file cannot be read or is no Rust.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let mut findings = arrows::check(workspace);
    findings.extend(names::check(workspace));
    findings.extend(length::check(workspace)?);
    findings.extend(sql_home::check(workspace)?);
    findings.extend(marks::check(workspace)?);
    findings.extend(env_example::check(workspace)?);
    Ok(findings)
}
