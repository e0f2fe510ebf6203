//! Runs the real parser process and collects what it says.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use ragmux_extract::protocol::{
    Arguments, ChildEnd, ChildLimits, Frame, FrameDecoder, Header, SandboxPolicy, SandboxState, Verdict, failure_of,
};
use ragmux_extract::{Engine, Extracted, Format};

use domain::DocumentFailure;

pub(crate) const CHILD: &str = env!("CARGO_BIN_EXE_extract-child");

/// What a parser process answered.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) sandbox: Option<SandboxState>,
    pub(crate) extracted: Extracted,
    /// The verdict, or the code for a process that died without one.
    pub(crate) result: Result<(), DocumentFailure>,
    pub(crate) died: bool,
}

impl Outcome {
    /// All text, white space collapsed.
    pub(crate) fn text(&self) -> String {
        let text = ragmux_extract::chunk::document_text(&self.extracted);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn start(arguments: &Arguments) -> Child {
    Command::new(CHILD)
        .args(arguments.to_args())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(crate) fn parse(format: Format, bytes: &[u8]) -> Outcome {
    parse_with(format, bytes, ChildLimits::default(), |_, _| ())
}

/// A PDF, by the engine of choice.
pub(crate) fn parse_by(engine: Engine, bytes: &[u8], limits: ChildLimits) -> Outcome {
    run(Format::Pdf, engine, bytes, limits, |_, _| ())
}

/// `on_frame` may kill the process, by its id.
pub(crate) fn parse_with(format: Format, bytes: &[u8], limits: ChildLimits, on_frame: impl Fn(u32, &Frame)) -> Outcome {
    run(format, Engine::First, bytes, limits, on_frame)
}

fn run(format: Format, engine: Engine, bytes: &[u8], limits: ChildLimits, on_frame: impl Fn(u32, &Frame)) -> Outcome {
    let mut child = start(&Arguments { parent: std::process::id(), limits });
    let mut stdin = child.stdin.take().unwrap();
    let header = Header { format, length: bytes.len() as u64, sandbox: SandboxPolicy::BestEffort, engine };
    let input = [header.to_line(), bytes.to_vec()].concat();
    // A child that dies early closes its pipe: that is no fault of the writer.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let mut stderr = child.stderr.take().unwrap();
    let errors = std::thread::spawn(move || {
        let mut all = Vec::new();
        stderr.read_to_end(&mut all).unwrap();
        all
    });
    let (finished, watched) = mpsc::channel::<()>();
    let pid = child.id();
    let watchdog = std::thread::spawn(move || {
        if watched.recv_timeout(Duration::from_secs(150)) == Err(mpsc::RecvTimeoutError::Timeout) {
            kill(pid);
            true
        } else {
            false
        }
    });

    let mut stdout = child.stdout.take().unwrap();
    let mut decoder = FrameDecoder::default();
    let mut outcome = Outcome { sandbox: None, extracted: Extracted::default(), result: Ok(()), died: false };
    let mut verdict = None;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = stdout.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        decoder.push(&buffer[..n]).unwrap();
        while let Some(frame) = decoder.next_frame().unwrap() {
            on_frame(pid, &frame);
            match frame {
                Frame::Started(state) => outcome.sandbox = Some(state),
                Frame::Page(page) => outcome.extracted.push(page),
                Frame::Verdict(v) => verdict = Some(v),
            }
        }
    }
    let status = child.wait().unwrap();
    drop(finished);
    assert!(!watchdog.join().unwrap(), "the process did not end");
    writer.join().unwrap();
    let errors = errors.join().unwrap();
    match verdict {
        Some(Verdict::Read(summary)) => outcome.extracted.summary = summary,
        Some(Verdict::Refused(failure)) => outcome.result = Err(failure),
        None => {
            let end = match (status.signal(), status.code()) {
                (Some(signal), _) => ChildEnd::Signal(signal),
                (None, code) => ChildEnd::Code(code.unwrap_or(-1)),
            };
            outcome.died = true;
            outcome.result = Err(failure_of(end, &errors));
        }
    }
    outcome
}

pub(crate) fn kill(pid: u32) {
    let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}
