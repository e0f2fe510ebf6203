//! Resource limits of the parser's process.

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::protocol::ChildLimits;

/// Open files: the standard streams, the copy of standard output, and room for what a library may try.
const MAX_OPEN_FILES: u64 = 16;
/// The first CPU limit sends SIGXCPU, which says why the process ended; the last only kills.
const CPU_GRACE_SECONDS: u64 = 5;

/// Sets the limits. Each can only be lowered, which always works; one that a kernel does not know is left out.
pub(super) fn apply(limits: ChildLimits) {
    // Should memory run out before the limit does, the kernel is to take the parser and not the worker.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let cpu = limits.cpu_seconds;
    let all = [
        (Resource::As, limits.address_space_bytes, limits.address_space_bytes),
        (Resource::Cpu, cpu, cpu.saturating_add(CPU_GRACE_SECONDS)),
        (Resource::Fsize, 0, 0),
        (Resource::Nofile, MAX_OPEN_FILES, MAX_OPEN_FILES),
        // Without effect for root; the filter forbids it to everybody.
        (Resource::Nproc, 0, 0),
        (Resource::Core, 0, 0),
    ];
    for (resource, current, maximum) in all {
        let _ = setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) });
    }
}
