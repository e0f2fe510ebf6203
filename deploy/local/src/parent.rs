//! A child of the launcher does not outlive it.

use std::process::ExitCode;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::terminal::complain;

/// The environment key that holds the launcher's process id.
pub(crate) const KEY: &str = "RAGMUX_DIE_WITH_PARENT";

/// When this process was started by the launcher, asks the kernel to tell it to stop once the launcher is gone, even
/// killed.
///
/// # Errors
///
/// The exit code, when the launcher is gone already or the kernel refuses.
pub(crate) fn follow() -> Result<(), ExitCode> {
    let Some(value) = std::env::var_os(KEY) else { return Ok(()) };
    let Some(parent) = value.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw) else {
        complain(&format!("{KEY} is no process id"));
        return Err(ExitCode::from(2));
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        complain(&format!("this process cannot be tied to its launcher: {error}"));
        return Err(ExitCode::FAILURE);
    }
    // It may have died before the kernel was asked.
    if getppid() == Some(parent) { Ok(()) } else { Err(ExitCode::FAILURE) }
}
