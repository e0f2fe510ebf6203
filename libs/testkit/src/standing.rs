//! The standing of a process that nobody gives up.

use std::sync::Arc;

use store::instances::{InstanceId, Standing};
use tokio::sync::{Notify, watch};

/// The standing of a process that has this id to its end, and whose beats all get through.
#[must_use]
pub fn standing(id: InstanceId) -> Standing {
    Standing::new(watch::channel(id).1, watch::channel(0).1, Arc::new(Notify::new()))
}
