//! Which processors each process may use, and how the system ranks them.

use std::fs;

use anyhow::Context as _;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::machine::children;

/// The processors of each process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    client: Vec<usize>,
    upstream: Vec<usize>,
    server: Vec<usize>,
    database: Vec<usize>,
}

impl Placement {
    /// Client and upstream, whose work is not what is measured, apart from server and database; these two apart as well
    /// where there are enough processors. `None` on one processor.
    pub(crate) fn of_this_machine() -> anyhow::Result<Option<Self>> {
        let allowed = sched_getaffinity(None).context("the processors of this process cannot be read")?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        Ok(Self::of(&all))
    }

    fn of(all: &[usize]) -> Option<Self> {
        let part = |range: std::ops::Range<usize>| all.get(range).unwrap_or_default().to_vec();
        let count = all.len();
        match count {
            0 | 1 => None,
            2 | 3 => Some(Self {
                client: part(0..1),
                upstream: part(0..1),
                server: part(1..count),
                database: part(1..count),
            }),
            4..=7 => Some(Self {
                client: part(0..1),
                upstream: part(1..2),
                server: part(2..count),
                database: part(2..count),
            }),
            _ => {
                let middle = 2 + (count - 2) / 2;
                let (server, database) = (part(2..middle), part(middle..count));
                Some(Self { client: part(0..1), upstream: part(1..2), server, database })
            }
        }
    }

    /// Puts processes in their places; `server` and `database` where they are known.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn apply(
        &self,
        upstream: Option<u32>,
        server: Option<u32>,
        database: Option<u32>,
    ) -> anyhow::Result<()> {
        let sessions = database.map(children).unwrap_or_default();
        let placed = [(Some(std::process::id()), &self.client), (upstream, &self.upstream), (server, &self.server)];
        let placed =
            placed.into_iter().chain(database.into_iter().chain(sessions).map(|pid| (Some(pid), &self.database)));
        for (pid, processors) in placed {
            pid.map_or(Ok(()), |pid| pin(pid, processors))?;
        }
        Ok(())
    }
}

/// Pins every thread of a process; those it makes later inherit it.
fn pin(pid: u32, processors: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    let threads = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} has ended"))?;
    let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for thread in threads.filter_map(Pid::from_raw) {
        match sched_setaffinity(Some(thread), &set) {
            // A thread may end in between.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("process {pid} cannot be pinned")),
        }
    }
    Ok(())
}

/// Ranks this process, and what it starts from now on, before (-20) or behind (19) others.
///
/// # Errors
/// When the system refuses, as it does below 0 for anyone but root.
pub(crate) fn rank(nice: i32) -> anyhow::Result<()> {
    setpriority_process(None, nice).with_context(|| format!("the priority cannot be set to {nice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_shares_no_processor_with_what_measures() {
        assert_eq!(Placement::of(&[3]), None);
        for count in 2..20 {
            let all: Vec<usize> = (10..10 + count).collect();
            let placement = Placement::of(&all).unwrap();
            for measured in [&placement.server, &placement.database] {
                assert!(!measured.is_empty() && measured.iter().all(|cpu| all.contains(cpu)));
                let own = [&placement.client, &placement.upstream];
                assert!(own.iter().all(|own| own.len() == 1 && !measured.contains(&own[0])), "{placement:?}");
            }
        }
    }

    #[test]
    fn a_process_is_pinned_with_all_its_threads() {
        let Some(placement) = Placement::of_this_machine().unwrap() else { return };
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        pin(child.id(), &placement.server).unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let set = sched_getaffinity(pid).unwrap();
        assert_eq!(set.count() as usize, placement.server.len());
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
