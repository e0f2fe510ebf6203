//! The edge as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    edge::main(std::env::args_os().skip(1))
}
