//! The parser's process by itself, for this crate's tests: service binaries start it from their own `main`.
//!
//! `probe` ties the process down like a parser and tells what it can still do.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode};

use ragmux_extract::{child, protocol};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(command) if command == protocol::COMMAND => child::main(args),
        Some(command) if command == "probe" => probe(),
        _ => ExitCode::from(protocol::EXIT_USAGE),
    }
}

fn probe() -> ExitCode {
    let state = child::confine(protocol::ChildLimits::default());
    let tried = [
        ("filter", state.filter),
        ("landlock", state.landlock),
        ("read a file", std::fs::File::open("/etc/passwd").is_ok()),
        ("write a file", std::fs::File::create("/dev/shm/extract-probe").is_ok()),
        ("list a folder", std::fs::read_dir("/").is_ok()),
        ("listen", TcpListener::bind("127.0.0.1:0").is_ok()),
        (
            "connect",
            TcpStream::connect("127.0.0.1:1").is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused),
        ),
        ("start a process", Command::new("/proc/self/exe").spawn().is_ok()),
        ("start a thread", std::thread::Builder::new().spawn(|| ()).is_ok()),
        ("use memory", !vec![1u8; 64 * 1024 * 1024].is_empty()),
    ];
    for (what, works) in tried {
        println!("{what}={works}");
    }
    ExitCode::SUCCESS
}
