//! The admin service as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    admin::main(std::env::args_os().skip(1))
}
