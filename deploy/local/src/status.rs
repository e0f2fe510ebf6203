//! What an installation tells about itself, and the file that other processes read it from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use domain::Secret;
use serde::{Deserialize, Serialize};

use crate::installation::exposed_option;
use crate::state_dir::StateDir;
use crate::terminal::complain;

/// The file it is in while a copy runs.
pub(crate) const FILE: &str = "status.json";

/// Where a copy is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Not everything is up, or the setup is not complete.
    Starting,
    /// It can be used.
    Ready,
    /// It was told to stop, and something still runs.
    Stopping,
    /// Nothing runs.
    #[default]
    Stopped,
}

/// What `status --json` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) state: State,
    /// The HTTP API for LLM clients; clients add `/v1`.
    pub(crate) edge_url: Option<String>,
    /// The admin API; clients add `/admin/api`.
    pub(crate) admin_url: Option<String>,
    /// The gRPC admin API, as address and port.
    pub(crate) admin_grpc: Option<SocketAddr>,
    /// The demonstration model, when it is used.
    pub(crate) upstream_url: Option<String>,
    /// The database, as the user that owns it.
    #[serde(with = "exposed_option")]
    pub(crate) database_url: Option<Secret>,
    #[serde(with = "exposed_option")]
    pub(crate) project_key: Option<Secret>,
    pub(crate) admin_user: Option<String>,
    #[serde(with = "exposed_option")]
    pub(crate) admin_password: Option<Secret>,
    /// The document store of the project.
    pub(crate) store_id: Option<i64>,
    /// What runs.
    pub(crate) services: Vec<Running>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Listen addresses by what they are for.
    pub(crate) listen: BTreeMap<String, SocketAddr>,
    pub(crate) log: PathBuf,
}

impl Status {
    /// What the folder says about itself now.
    pub(crate) fn of(dir: &StateDir) -> anyhow::Result<Self> {
        let written = || dir.read(FILE).ok().flatten().and_then(|text| serde_json::from_str::<Self>(&text).ok());
        if dir.holder()?.is_some() {
            // A copy that has only just begun has written nothing yet.
            return Ok(written().unwrap_or(Self { state: State::Starting, ..Self::default() }));
        }
        // Nothing that was written while a copy ran is true any more, except what lasts.
        let Self { project_key, admin_user, admin_password, store_id, .. } = written().unwrap_or_default();
        Ok(Self { project_key, admin_user, admin_password, store_id, ..Self::default() })
    }
}

/// The status of this copy, written down at every change.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    status: Arc<Mutex<Status>>,
    dir: StateDir,
}

impl Board {
    pub(crate) fn new(dir: StateDir, status: Status) -> Self {
        Self { status: Arc::new(Mutex::new(status)), dir }
    }

    /// Changes the status and writes it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut status);
        let written = serde_json::to_vec_pretty(&*status)
            .map_err(anyhow::Error::from)
            .and_then(|text| self.dir.write(FILE, &text));
        // The product works without it; `status` is then behind the truth.
        if let Err(error) = written {
            complain(&format!("the status cannot be written down: {error}"));
        }
    }

    /// A process has started.
    pub(crate) fn started(&self, running: Running) {
        self.change(|status| {
            status.services.retain(|service| service.name != running.name);
            status.services.push(running);
        });
    }

    /// A process has ended.
    pub(crate) fn ended(&self, name: &str) {
        self.change(|status| status.services.retain(|service| service.name != name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, StateDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = StateDir::at(parent.path()).unwrap().create().unwrap();
        (parent, dir)
    }

    fn running(name: &str, pid: u32) -> Running {
        let listen = BTreeMap::from([("http".to_owned(), SocketAddr::from(([127, 0, 0, 1], 8765)))]);
        Running { name: name.to_owned(), pid, listen, log: "edge.log".into() }
    }

    #[test]
    fn the_members_are_the_documented_ones() {
        let text = serde_json::to_value(Status::default()).unwrap();
        let members: Vec<&str> = text.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "state",
            "edge_url",
            "admin_url",
            "admin_grpc",
            "upstream_url",
            "database_url",
            "project_key",
            "admin_user",
            "admin_password",
            "store_id",
            "services",
        ];
        expected.sort_unstable();
        let mut members = members;
        members.sort_unstable();
        assert_eq!(members, expected);
        assert_eq!(text["state"], "stopped");
    }

    #[tokio::test]
    async fn stopped_means_that_nothing_runs_any_more() {
        let (_parent, dir) = folder();
        let lock = dir.lock().await.unwrap().unwrap();
        Board::new(dir.clone(), Status::default()).change(|status| status.state = State::Stopping);
        assert_eq!(Status::of(&dir).unwrap().state, State::Stopping);
        drop(lock);
        assert_eq!(Status::of(&dir).unwrap().state, State::Stopped);
    }

    #[tokio::test]
    async fn what_a_dead_copy_wrote_is_not_believed() {
        let (_parent, dir) = folder();
        let lock = dir.lock().await.unwrap().unwrap();
        assert_eq!(Status::of(&dir).unwrap().state, State::Starting);
        let board = Board::new(
            dir.clone(),
            Status {
                state: State::Ready,
                store_id: Some(7),
                edge_url: Some("http://x".to_owned()),
                ..Status::default()
            },
        );
        board.started(running("edge", 1));
        board.started(running("admin", 2));
        board.started(running("edge", 3));
        board.ended("admin");
        let status = Status::of(&dir).unwrap();
        assert_eq!((status.state, status.services), (State::Ready, vec![running("edge", 3)]));
        drop(lock);
        let status = Status::of(&dir).unwrap();
        assert_eq!((status.state, status.services.len(), status.store_id), (State::Stopped, 0, Some(7)));
        assert_eq!(status.edge_url, None);
    }
}
