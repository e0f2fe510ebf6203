//! When calls of processes that are gone are settled.

use std::time::Duration;

use crate::Env;

/// The longest a process may not beat before the others give it up, and settle its calls by what they held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanAfter(pub Duration);

/// Ten beats, which are 2 s apart.
const SHORTEST: Duration = Duration::from_secs(20);

impl OrphanAfter {
    /// Reads `LEDGER_ORPHAN_AFTER`.
    pub fn read(env: &mut Env) -> Self {
        Self(env.duration("LEDGER_ORPHAN_AFTER", Duration::from_secs(60), SHORTEST..=Duration::from_secs(3600)))
    }
}
