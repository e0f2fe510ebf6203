//! The ingestion worker as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ingestion_worker::main(std::env::args_os().skip(1))
}
