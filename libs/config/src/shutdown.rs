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

/// The drain that the grace periods of the deployment files are made for.
const USUAL_DRAIN: Duration = Duration::from_secs(15);

/// What the other stages of a stop may take together, with a reserve.
const REST_OF_A_STOP: Duration = Duration::from_secs(50);

impl Shutdown {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        let drain = env.duration("SHUTDOWN_DRAIN", USUAL_DRAIN, Duration::ZERO..=120 * MINUTE);
        if drain > USUAL_DRAIN {
            let grace = (drain + REST_OF_A_STOP).as_secs();
            env.warn(format!("SHUTDOWN_DRAIN is raised: whatever stops this process must give it {grace} s to end"));
        }
        Self { delay: env.duration("SHUTDOWN_DELAY", Duration::ZERO, Duration::ZERO..=10 * MINUTE), drain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Shutdown, Vec<String>) {
        let mut env = Env::of(pairs.iter().copied());
        let shutdown = Shutdown::read(&mut env);
        (shutdown, env.finish().unwrap().warnings)
    }

    #[test]
    fn a_raised_drain_says_what_grace_it_needs() {
        let usual = Shutdown { delay: Duration::ZERO, drain: Duration::from_secs(15) };
        assert_eq!(read(&[]), (usual, Vec::new()));
        let (raised, warnings) = read(&[("SHUTDOWN_DRAIN", "1m"), ("SHUTDOWN_DELAY", "5s")]);
        assert_eq!(raised, Shutdown { delay: Duration::from_secs(5), drain: MINUTE });
        assert!(warnings.len() == 1 && warnings[0].contains("110 s"), "{warnings:?}");
    }
}
