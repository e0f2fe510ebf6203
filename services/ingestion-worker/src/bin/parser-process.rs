//! A parser and nothing else, for the tests of the parent's side: the product starts its own binary again.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(command) if command == extract::protocol::COMMAND => extract::child::main(args),
        _ => ExitCode::from(extract::protocol::EXIT_USAGE),
    }
}
