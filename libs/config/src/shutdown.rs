//! How long an orderly stop may take.

use std::time::Duration;

use crate::Env;

const MINUTE: Duration = Duration::from_secs(60);

/// The two budgets of a stop that an operator sets; the others are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// `SHUTDOWN_DELAY`: how long the process keeps serving after it has turned not ready, for load balancers that
    /// take a while to notice.
    pub delay: Duration,
    /// `SHUTDOWN_DRAIN`: how long calls in flight may go on before they are cut.
    pub drain: Duration,
}

impl Shutdown {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        Self {
            delay: env.duration("SHUTDOWN_DELAY", Duration::ZERO, Duration::ZERO..=10 * MINUTE),
            drain: env.duration("SHUTDOWN_DRAIN", Duration::from_secs(15), Duration::ZERO..=120 * MINUTE),
        }
    }
}
