//! Hearing of changes: the log of configuration changes is followed, and what they touch is forgotten.

use std::time::Duration;

use domain::{ApiKeyId, ConnectionId, ProjectId, UserId};
use store::config_log::ConfigChange;
use store::{Listener, Store, StoreError, Topic};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::state::Shared;

/// How long to try to listen.
const LISTEN: Duration = Duration::from_secs(5);
/// Before listening is tried again.
const PAUSE: Duration = Duration::from_secs(1);
const PAGE: i64 = 500;

/// Follows the log from a sequence on, until it is told to stop.
pub(crate) async fn follow(edge: Shared, from: i64, stop: CancellationToken) {
    let mut tail = Tail { store: edge.store.clone(), edge, seen: from, listener: None, unheard: false, failing: false };
    stop.run_until_cancelled(async {
        loop {
            tail.wait().await;
            tail.catch_up().await;
        }
    })
    .await;
}

struct Tail {
    store: Store,
    edge: Shared,
    seen: i64,
    listener: Option<Listener>,
    /// Whether the listener has said nothing until now.
    unheard: bool,
    failing: bool,
}

impl Tail {
    /// Waits for a notification, or until it is time to look without one.
    async fn wait(&mut self) {
        self.unheard = false;
        let poll = self.edge.config_poll;
        if self.listener.is_none() && self.store.has_sessions() {
            match timeout(LISTEN, self.store.listen(Topic::Config)).await {
                // Something may have been changed before this moment: look at once.
                Ok(Ok(listener)) => {
                    self.listener = listener;
                    return;
                }
                Ok(Err(_)) | Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    return;
                }
            }
        }
        let Some(listener) = &mut self.listener else {
            tokio::time::sleep(poll).await;
            return;
        };
        match timeout(poll, listener.heard()).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => self.listener = None,
            Err(_) => self.unheard = true,
        }
    }

    /// Applies everything that is new.
    async fn catch_up(&mut self) {
        loop {
            match self.store.in_time(self.store.list_config_changes(self.seen, PAGE)).await {
                Ok(changes) => {
                    self.failing = false;
                    if self.unheard && !changes.is_empty() {
                        // Its connection may be one that nobody answers and nobody closes.
                        self.listener = None;
                    }
                    let is_last_page = (changes.len() as i64) < PAGE;
                    for change in &changes {
                        self.apply(change);
                    }
                    if is_last_page {
                        return;
                    }
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    fn apply(&mut self, change: &ConfigChange) {
        // What lies between was removed from the log before it was seen here.
        if change.sequence > self.seen + 1 {
            self.forget_all();
        }
        self.seen = change.sequence;
        let edge = &self.edge;
        match change.kind.as_str() {
            "api_key" => {
                edge.principals.key_changed(ApiKeyId(change.row_id));
                edge.denials.key_changed(ApiKeyId(change.row_id));
                edge.live.key_changed(ApiKeyId(change.row_id));
            }
            "user" => {
                edge.principals.user_changed(UserId(change.row_id));
                edge.live.user_changed(UserId(change.row_id));
            }
            "project" => {
                edge.principals.project_changed(ProjectId(change.row_id));
                edge.catalog.project_changed(ProjectId(change.row_id));
                edge.denials.project_changed(ProjectId(change.row_id));
                edge.live.project_changed(ProjectId(change.row_id));
            }
            "connection" => {
                // How it failed before says nothing of what it is now.
                edge.providers.breakers().forget(ConnectionId(change.row_id));
                edge.catalog.projects_changed();
            }
            "route" | "store" => edge.catalog.projects_changed(),
            "price" => edge.catalog.prices_changed(),
            _ => self.forget_all(),
        }
        tracing::debug!(kind = change.kind, row_id = change.row_id, "a change of configuration was heard of");
    }

    fn forget_all(&self) {
        self.edge.principals.clear();
        self.edge.denials.clear();
        self.edge.live.all_changed();
        self.edge.providers.breakers().forget_all();
        self.edge.catalog.projects_changed();
        self.edge.catalog.prices_changed();
    }

    fn failed(&mut self, error: &StoreError) {
        if !self.failing {
            self.failing = true;
            let error: &dyn std::error::Error = error;
            tracing::warn!(error, "changes of configuration cannot be read, trying on");
        }
    }
}
