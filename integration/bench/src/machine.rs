//! What the system says of processes and of itself.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use nix::time::ClockId;
use nix::unistd::Pid;

/// CPU time a process has used, all its threads that were and are, in the kernel's own nanoseconds.
///
/// # Errors
/// When it has ended.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid)?);
    let clock = ClockId::pid_cpu_clock_id(pid).with_context(|| format!("process {pid} has no clock"))?;
    Ok(clock.now().with_context(|| format!("the clock of process {pid} cannot be read"))?.into())
}

/// CPU time of a process and its children, those that have ended included.
pub(crate) fn cpu_of_family(pid: u32) -> Duration {
    let running: Duration = std::iter::once(pid).chain(children(pid)).filter_map(|pid| cpu(pid).ok()).sum();
    running + cpu_of_ended_children(pid)
}

/// CPU time of the children of a process that have ended, to 10 ms.
pub(crate) fn cpu_of_ended_children(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    Duration::from_millis(children_ticks(&stat).unwrap_or_default() * 10)
}

/// User and system time of children that were waited for: fields 16 and 17 of `/proc/PID/stat`, in ticks.
fn children_ticks(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13).take(2);
    fields.map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Resident memory in bytes.
///
/// # Errors
/// When it has ended.
pub(crate) fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("no status of the process")?;
    let kib = field(&status, "VmRSS:").context("the status has no VmRSS")?;
    Ok(kib * 1024)
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|child| fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| parent(&stat) == Some(pid)))
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which stands in parentheses and may hold
/// anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A number of `/proc/…/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// CPU time that anything on this machine has used since it started.
pub(crate) fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&stat).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 10))
}

/// User, nice, system, irq, softirq and steal of the first line; a tick is 10 ms (USER_HZ).
fn busy_ticks(stat: &str) -> Option<u64> {
    let ticks: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).map_while(|tick| tick.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum())
}

/// The machine in a few words.
pub(crate) fn describe() -> serde_json::Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name));
    serde_json::json!({
        "processors": processors(),
        "processor": model.unwrap_or_default().trim(),
        "memory_bytes": field(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0) * 1024,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

/// How many processors the machine has, wherever this process may run.
pub(crate) fn processors() -> usize {
    count_processors(&fs::read_to_string("/proc/stat").unwrap_or_default()).max(1)
}

fn count_processors(stat: &str) -> usize {
    let numbers = stat.lines().filter_map(|line| line.strip_prefix("cpu"));
    numbers.filter(|number| number.starts_with(|c: char| c.is_ascii_digit())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_has_used_its_time() {
        let own = std::process::id();
        let before = cpu(own).unwrap();
        let until = before + Duration::from_millis(30);
        let mut n = 0_u64;
        while cpu(own).unwrap() < until {
            n = std::hint::black_box(n + 1);
        }
        assert!(cpu(own).unwrap() >= until && busy() > Duration::ZERO);
        assert!(resident_bytes(own).unwrap() > 1024 * 1024);
        // Above the highest pid there can be (2²²).
        assert!(cpu(5_000_000).is_err());
    }

    #[test]
    fn names_of_processes_may_hold_anything() {
        assert_eq!(parent("17 (a) b (c) S 4 17 17 0"), Some(4));
        assert_eq!(parent("17"), None);
        assert_eq!(children_ticks("17 (a) b) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19"), Some(33));
    }

    #[test]
    fn idle_and_waiting_time_is_not_busy() {
        let stat = "cpu  1 2 4 1000 500 8 16 32 64 128\ncpu0 1\ncpu1 2\nctxt 5";
        assert_eq!((busy_ticks(stat), count_processors(stat)), (Some(63), 2));
    }
}
