//! Which processors each process may use, and how the system ranks them.

use std::fs;
use std::io::ErrorKind;

use anyhow::Context as _;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::machine::children;

/// What the processes are placed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pins {
    /// Nothing: the system places them.
    None,
    /// Many calls at once, of which it counts what each process spends.
    ManyCalls,
    /// Calls one at a time, of which it counts how long each takes.
    SingleCalls,
}

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
    /// where there are enough processors.
    pub(crate) fn of_many_calls(all: &[usize]) -> Self {
        let part = |range: std::ops::Range<usize>| all.get(range).unwrap_or_default().to_vec();
        let count = all.len();
        let (upstream, server, database) = match count {
            0 | 1 => return Self::together(all),
            2 | 3 => (0..1, 1..count, 1..count),
            4..=7 => (1..2, 2..count, 2..count),
            _ => {
                let middle = 2 + (count - 2) / 2;
                (1..2, 2..middle, middle..count)
            }
        };
        Self { client: part(0..1), upstream: part(upstream), server: part(server), database: part(database) }
    }

    /// Client, upstream and server on one processor, the database on the others. A single call is at one of the three at
    /// a time; on a processor of its own each would be asleep when its turn comes, and waking it takes longer than what is
    /// measured. The database works on when the call is over.
    pub(crate) fn of_single_calls(all: &[usize]) -> Self {
        let Some((first, others)) = all.split_first().filter(|(_, others)| !others.is_empty()) else {
            return Self::together(all);
        };
        let first = || vec![*first];
        Self { client: first(), upstream: first(), server: first(), database: others.to_vec() }
    }

    /// Every process wherever the system puts it.
    pub(crate) fn together(all: &[usize]) -> Self {
        let all = || all.to_vec();
        Self { client: all(), upstream: all(), server: all(), database: all() }
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
        let placed = [
            (Some(std::process::id()), &self.client),
            (upstream, &self.upstream),
            (server, &self.server),
            (database, &self.database),
        ];
        for (pid, processors) in placed {
            if let Some(pid) = pid {
                anyhow::ensure!(pin(pid, processors)?, "process {pid} has ended");
            }
        }
        for session in database.map(children).unwrap_or_default() {
            // A session, or a vacuum's, may end at any time.
            pin(session, &self.database)?;
        }
        Ok(())
    }
}

/// The processors that this process may use.
///
/// # Errors
/// When the system does not say.
pub(crate) fn allowed() -> anyhow::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("the processors of this process cannot be read")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Pins every thread of a process; those it makes later inherit it. False if it has ended.
fn pin(pid: u32, processors: &[usize]) -> anyhow::Result<bool> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        threads => threads.with_context(|| format!("the threads of process {pid} cannot be listed"))?,
    };
    let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for thread in threads.filter_map(Pid::from_raw) {
        match sched_setaffinity(Some(thread), &set) {
            // A thread may end in between.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("process {pid} cannot be pinned")),
        }
    }
    Ok(true)
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
        assert_eq!(Placement::of_many_calls(&[3]), Placement::together(&[3]));
        for count in 2..20 {
            let all: Vec<usize> = (10..10 + count).collect();
            let placement = Placement::of_many_calls(&all);
            for measured in [&placement.server, &placement.database] {
                assert!(!measured.is_empty() && measured.iter().all(|cpu| all.contains(cpu)));
                let own = [&placement.client, &placement.upstream];
                assert!(own.iter().all(|own| own.len() == 1 && !measured.contains(&own[0])), "{placement:?}");
            }
        }
    }

    #[test]
    fn a_single_call_takes_turns_on_one_processor_and_leaves_the_others_to_the_database() {
        assert_eq!(Placement::of_single_calls(&[3]), Placement::together(&[3]));
        let placement = Placement::of_single_calls(&[3, 5, 7]);
        for one in [&placement.client, &placement.upstream, &placement.server] {
            assert_eq!(one, &[3]);
        }
        assert_eq!(placement.database, [5, 7]);
    }

    #[test]
    fn a_process_is_pinned_with_all_its_threads() {
        let last = *allowed().unwrap().last().unwrap();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(pin(child.id(), &[last]).unwrap());
        let set = sched_getaffinity(Pid::from_raw(i32::try_from(child.id()).unwrap())).unwrap();
        assert!(set.count() == 1 && set.is_set(last));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(!pin(child.id(), &[last]).unwrap(), "it has ended");
    }
}
