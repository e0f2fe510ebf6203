//! The calls of this process that the database should know of: open ones, and those whose settlement is not durable yet.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{ProjectId, RequestId};
use store::ledger::OpenCallRow;

/// The calls, by lane. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LiveCalls {
    lanes: Arc<[Mutex<HashMap<RequestId, OpenCallRow>>]>,
}

impl LiveCalls {
    pub(crate) fn new(lanes: usize) -> Self {
        Self { lanes: (0..lanes).map(|_| Mutex::default()).collect() }
    }

    /// The lane of a project: all that locks the same rows goes one after the other.
    pub(crate) fn lane_of(&self, project: ProjectId) -> usize {
        usize::try_from(project.0.unsigned_abs()).unwrap_or(0) % self.lanes.len().max(1)
    }

    /// Remembers a call, or what is newly known of it.
    pub(crate) fn keep(&self, row: OpenCallRow) {
        if let Some(mut lane) = self.lane(self.lane_of(row.ask.project)) {
            lane.insert(row.ask.request, row);
        }
    }

    /// Forgets a call.
    pub(crate) fn forget(&self, row: &OpenCallRow) {
        if let Some(mut lane) = self.lane(self.lane_of(row.ask.project)) {
            lane.remove(&row.ask.request);
        }
    }

    /// The calls of one lane.
    pub(crate) fn rows(&self, lane: usize) -> Vec<OpenCallRow> {
        self.lane(lane).map(|lane| lane.values().cloned().collect()).unwrap_or_default()
    }

    /// The ids of all.
    pub(crate) fn ids(&self) -> HashSet<RequestId> {
        (0..self.lanes.len())
            .filter_map(|lane| self.lane(lane))
            .flat_map(|lane| lane.keys().copied().collect::<Vec<_>>())
            .collect()
    }

    fn lane(&self, lane: usize) -> Option<MutexGuard<'_, HashMap<RequestId, OpenCallRow>>> {
        // A panic while it was held has left a map that is as good as any.
        self.lanes.get(lane).map(|lane| lane.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
