//! `ragmux status`: what runs, where, and with which keys.

use domain::Secret;

use crate::state_dir::StateDir;
use crate::status::{State, Status};
use crate::terminal::{program, say};

/// Prints the status for people, or as one JSON object.
pub(crate) fn run(dir: &StateDir, json: bool) -> anyhow::Result<()> {
    let status = Status::of(dir)?;
    say(&if json { serde_json::to_string_pretty(&status)? } else { text(dir, &status) });
    Ok(())
}

fn text(dir: &StateDir, status: &Status) -> String {
    let place = dir.path().display();
    let begin = match status.state {
        State::Ready => format!("ready, in {place}"),
        State::Starting => format!("starting, in {place}"),
        State::Stopping => format!("stopping, in {place}"),
        State::Stopped if dir.exists() => format!("stopped, in {place}; start it with `{}`", up()),
        State::Stopped => format!("nothing in {place} yet; start it with `{}`", up()),
    };
    let mut lines = vec![begin];
    let secret = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
    let rows = [
        ("edge", status.edge_url.clone()),
        ("admin", status.admin_url.clone()),
        ("admin gRPC", status.admin_grpc.map(|address| address.to_string())),
        ("demonstration model", status.upstream_url.clone()),
        ("database", secret(&status.database_url)),
        ("project key", secret(&status.project_key)),
        ("admin user", status.admin_user.clone()),
        ("admin password", secret(&status.admin_password)),
        ("document store", status.store_id.map(|id| id.to_string())),
    ];
    lines.extend(rows.into_iter().filter_map(|(name, value)| Some(format!("  {name:<20} {}", value?))));
    for service in &status.services {
        let listen: Vec<String> = service.listen.iter().map(|(what, address)| format!("{what} {address}")).collect();
        lines.push(format!("  {:<20} process {}, {}", service.name, service.pid, listen.join(", ")));
        lines.push(format!("  {:<20} log {}", "", service.log.display()));
    }
    lines.join("\n")
}

fn up() -> &'static str {
    program().trim_end_matches(" --")
}
