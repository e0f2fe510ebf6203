//! What the parser's process may ask of the kernel: memory, its own pipes, clocks, and to end.
//!
//! The filter is a list of what is allowed; the rest, known today or not, answers `EPERM`. An error and not a kill,
//! because libraries try things they can do without (the C library reads the number of processors from a file when it
//! makes a second heap), and a document is no worse for it; an attacker gains nothing from an error.

use std::collections::BTreeMap;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use crate::protocol::SandboxState;

/// Allowed whatever their arguments are.
const ALLOWED: &[i64] = &[
    // The pipes.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads that exist, and signals to oneself.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Who and when.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Sets up all that this kernel can do.
pub(super) fn apply() -> SandboxState {
    // Landlock first: setting it up takes system calls that the filter refuses.
    let landlock = restrict_files();
    let filter = rustix::thread::set_no_new_privs(true).is_ok()
        && program().is_some_and(|program| apply_filter_all_threads(&program).is_ok());
    SandboxState { filter, landlock }
}

/// No file and no port, with no exceptions.
fn restrict_files() -> bool {
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self);
    restricted.is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}

fn program() -> Option<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).ok()?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // Memory that can be executed is for code, and all code is loaded.
    let no_exec = || rule(2, SeccompCmpOp::MaskedEq(u64::from(libc::PROT_EXEC.unsigned_abs())), 0);
    rules.insert(libc::SYS_mmap, vec![no_exec()?]);
    rules.insert(libc::SYS_mprotect, vec![no_exec()?]);
    // Aborting raises a signal in the process itself; no other may get one.
    rules.insert(libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Eq, u64::from(std::process::id()))?]);
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch).ok()?;
    filter.try_into().ok()
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Option<SeccompRule> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).ok()?;
    SeccompRule::new(vec![condition]).ok()
}
