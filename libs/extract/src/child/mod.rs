//! The parser's process: it ties itself down, reads one document, answers with its pages and ends.
//!
//! A service binary calls [`main`] first thing when its first argument is [`crate::protocol::COMMAND`]. The parser runs
//! in a thread with a large stack, because the parsers recurse as deep as a document nests. That thread exists before
//! the limits and the filter are set, which then forbid any further thread or process.

mod limits;
mod sandbox;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use domain::DocumentFailure;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::protocol::{
    Arguments, ChildLimits, EXIT_DONE, EXIT_INPUT, EXIT_ORPHANED, EXIT_OUTPUT, EXIT_SANDBOX, EXIT_THREAD, EXIT_USAGE,
    Frame, Header, MAX_HEADER_BYTES, SandboxPolicy, SandboxState, Verdict,
};
use crate::{ExtractError, extract};

/// The parser's stack. It is address space, not memory, until it is used.
const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Documents are limited to far less before they reach a parser.
const MAX_INPUT_BYTES: u64 = 512 * 1024 * 1024;

/// Reads one document from standard input and answers on standard output (see [`crate::protocol`]). `args` are the
/// arguments after [`crate::protocol::COMMAND`].
///
/// The process must have no other threads yet; it is of no use for anything else afterwards.
#[must_use]
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let Some(arguments) = Arguments::parse(&args) else { return ExitCode::from(EXIT_USAGE) };
    if !tie_to_parent(arguments.parent) {
        return ExitCode::from(EXIT_ORPHANED);
    }
    std::panic::set_hook(Box::new(|info| {
        // The message may quote the document; where it happened never does.
        if let Some(at) = info.location() {
            eprintln!("parser panicked at {}:{}", at.file(), at.line());
        }
    }));
    let parser = std::thread::Builder::new()
        .name("parser".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || run(arguments.limits));
    let code = parser.map_or(EXIT_THREAD, |parser| parser.join().unwrap_or(EXIT_THREAD));
    ExitCode::from(code)
}

/// Puts the calling process into the parser's limits and sandbox, for good. The calling thread must have been started
/// before; no other can be started afterwards.
pub fn confine(limits: ChildLimits) -> SandboxState {
    limits::apply(limits);
    sandbox::apply()
}

/// Makes the kernel kill this process when its parent dies, and checks that it has not died before.
fn tie_to_parent(parent: u32) -> bool {
    let tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    tied && getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(parent))
}

fn run(limits: ChildLimits) -> u8 {
    let Some(mut out) = take_stdout() else { return EXIT_OUTPUT };
    let state = confine(limits);
    let mut input = BufReader::new(std::io::stdin().lock());
    let Some(header) = read_header(&mut input) else { return EXIT_USAGE };
    if header.sandbox == SandboxPolicy::Required && !state.filter {
        return EXIT_SANDBOX;
    }
    if send(&mut out, &Frame::Started(state)).is_err() {
        return EXIT_OUTPUT;
    }
    let mut bytes = Vec::new();
    let read = input.take(header.length.saturating_add(1)).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 != header.length {
        return EXIT_INPUT;
    }
    let verdict = match parse(&header, &bytes, &mut out) {
        Ok(verdict) => verdict,
        Err(_) => return EXIT_OUTPUT,
    };
    if send(&mut out, &Frame::Verdict(verdict)).is_ok() { EXIT_DONE } else { EXIT_OUTPUT }
}

fn parse(header: &Header, bytes: &[u8], out: &mut File) -> std::io::Result<Verdict> {
    let mut sink = |page| send(out, &Frame::Page(page));
    match catch_unwind(AssertUnwindSafe(|| extract(header.format, header.engine, bytes, &mut sink))) {
        Ok(Ok(summary)) => Ok(Verdict::Read(summary)),
        Ok(Err(ExtractError::Document(failure))) => Ok(Verdict::Refused(failure)),
        Ok(Err(ExtractError::Output(error))) => Err(error),
        Err(_) => Ok(Verdict::Refused(DocumentFailure::ParserCrashed)),
    }
}

/// Keeps standard output for frames and sends everything that parsers print to standard error.
fn take_stdout() -> Option<File> {
    let out = rustix::io::dup(rustix::stdio::stdout()).ok()?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).ok()?;
    Some(File::from(out))
}

fn read_header(input: &mut impl BufRead) -> Option<Header> {
    let mut line = Vec::new();
    input.take(MAX_HEADER_BYTES).read_until(b'\n', &mut line).ok()?;
    let header: Header = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    (header.length <= MAX_INPUT_BYTES).then_some(header)
}

fn send(out: &mut File, frame: &Frame) -> std::io::Result<()> {
    out.write_all(&frame.encode().map_err(std::io::Error::other)?)
}
