//! What the parser's process and its parent say to each other.
//!
//! The parent starts its own binary with [`Arguments`], writes one line of JSON (a [`Header`]) and then the document's
//! bytes to its standard input, and closes it. The child answers on its standard output with frames: four bytes of
//! length, most significant first, then a [`Frame`] as JSON. The first frame is [`Frame::Started`], the last is
//! [`Frame::Verdict`]; a child that ends without a verdict died, and [`failure_of`] says how.

use std::ffi::OsStr;
use std::str::FromStr;

use domain::DocumentFailure;
use serde::{Deserialize, Serialize};

use crate::{Engine, Format, Page, Summary};

/// The first argument, which makes a service binary become a parser.
pub const COMMAND: &str = "extract";

/// The longest header line.
pub const MAX_HEADER_BYTES: u64 = 16 * 1024;
/// The longest frame: a document's whole text, escaped.
pub const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;
/// All frames of one document.
pub const MAX_OUTPUT_BYTES: usize = 128 * 1024 * 1024;
/// How much of the child's standard error is worth keeping.
pub const MAX_STDERR_BYTES: usize = 16 * 1024;
/// How long a parser may take by the clock, in seconds.
pub const WALL_SECONDS: u64 = 120;

/// The verdict was delivered.
pub const EXIT_DONE: u8 = 0;
/// The arguments or the header make no sense.
pub const EXIT_USAGE: u8 = 64;
/// The sandbox is required and could not be set up.
pub const EXIT_SANDBOX: u8 = 65;
/// The parent ended before the child could tie itself to it.
pub const EXIT_ORPHANED: u8 = 66;
/// The input ended early.
pub const EXIT_INPUT: u8 = 67;
/// The output was closed.
pub const EXIT_OUTPUT: u8 = 68;
/// The parser's thread could not be started or died.
pub const EXIT_THREAD: u8 = 69;

/// What the child limits itself to. It cannot raise them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildLimits {
    /// Processor time in seconds.
    pub cpu_seconds: u64,
    /// Address space in bytes, all of the binary and its stacks included.
    pub address_space_bytes: u64,
}

impl Default for ChildLimits {
    fn default() -> Self {
        Self { cpu_seconds: 60, address_space_bytes: 1536 * 1024 * 1024 }
    }
}

/// The child's arguments after [`COMMAND`]. They are arguments and not part of the header because the child ties
/// itself down before it reads anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The process that waits for the answer; a child with another parent ends at once.
    pub parent: u32,
    /// The limits.
    pub limits: ChildLimits,
}

impl Arguments {
    /// The whole argument list, [`COMMAND`] first.
    #[must_use]
    pub fn to_args(&self) -> [String; 4] {
        [
            COMMAND.to_owned(),
            self.parent.to_string(),
            self.limits.cpu_seconds.to_string(),
            self.limits.address_space_bytes.to_string(),
        ]
    }

    /// Reads the arguments that follow [`COMMAND`].
    #[must_use]
    pub fn parse<S: AsRef<OsStr>>(args: &[S]) -> Option<Self> {
        let [parent, cpu, memory] = args else { return None };
        Some(Self {
            parent: number(parent)?,
            limits: ChildLimits { cpu_seconds: number(cpu)?, address_space_bytes: number(memory)? },
        })
    }
}

fn number<T: FromStr>(arg: &impl AsRef<OsStr>) -> Option<T> {
    arg.as_ref().to_str()?.parse().ok()
}

/// Whether a parser may run where the system call filter cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxPolicy {
    /// Refuse to parse.
    Required,
    /// Parse, and say so.
    BestEffort,
}

impl FromStr for SandboxPolicy {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "required" => Ok(Self::Required),
            "best_effort" => Ok(Self::BestEffort),
            _ => Err("must be required or best_effort"),
        }
    }
}

/// The first line the child reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// What [`crate::detect`] found.
    pub format: Format,
    /// How many bytes of document follow.
    pub length: u64,
    /// What to do without a filter.
    pub sandbox: SandboxPolicy,
    /// Which engine is to read a PDF.
    #[serde(default)]
    pub engine: Engine,
}

impl Header {
    /// The line, with its end.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        // A few plain fields always serialise.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Which parts of the sandbox hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxState {
    /// The system call filter.
    pub filter: bool,
    /// Landlock, which newer kernels have.
    pub landlock: bool,
}

/// A message from the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frame {
    /// The child runs and is tied down as told.
    Started(SandboxState),
    /// A page, or a part of one.
    Page(Page),
    /// The end.
    Verdict(Verdict),
}

/// How the document was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Read to its end.
    Read(Summary),
    /// Not readable, with the stable code.
    Refused(DocumentFailure),
}

impl Frame {
    /// The frame with its length before it.
    ///
    /// # Errors
    /// When the frame is over [`MAX_FRAME_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, ProtocolError> {
        let mut out = vec![0; 4];
        serde_json::to_writer(&mut out, self)?;
        let length = out.len() - 4;
        if length > MAX_FRAME_BYTES {
            return Err(ProtocolError::TooLong { bytes: length });
        }
        let prefix = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        for (slot, byte) in out.iter_mut().zip(prefix) {
            *slot = byte;
        }
        Ok(out)
    }
}

/// Why the child's output cannot be used. The child is to be killed then.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A frame is longer than [`MAX_FRAME_BYTES`].
    #[error("a frame of {bytes} bytes is over the limit")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// All frames together are over [`MAX_OUTPUT_BYTES`].
    #[error("the output is over the limit")]
    TooMuch,
    /// A frame is not what a child says.
    #[error("a frame could not be read")]
    Malformed(#[from] serde_json::Error),
}

/// Puts frames together from the bytes of a pipe.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes at the start of `buffer` that were used.
    used: usize,
    total: usize,
}

impl FrameDecoder {
    /// Adds bytes as they came.
    ///
    /// # Errors
    /// [`ProtocolError::TooMuch`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.total += bytes.len();
        if self.total > MAX_OUTPUT_BYTES {
            return Err(ProtocolError::TooMuch);
        }
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// [`ProtocolError::TooLong`] and [`ProtocolError::Malformed`].
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ProtocolError> {
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        let Some((prefix, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(ProtocolError::TooLong { bytes: length });
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = serde_json::from_slice(body)?;
        self.used += 4 + length;
        Ok(Some(frame))
    }
}

/// How a child without a verdict ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEnd {
    /// The parent ended it because the time was up.
    Deadline,
    /// A signal that the parent did not send.
    Signal(i32),
    /// An exit code.
    Code(i32),
    /// Its output broke the protocol or a cap, and the parent ended it.
    Output,
}

/// The stable code for a child that ended without a verdict. `stderr` is what it wrote there, as far as it was kept.
///
/// [`DocumentFailure::Internal`] means that the document is not to blame: the sandbox could not be set up, or parent
/// and child do not understand each other.
#[must_use]
pub fn failure_of(end: ChildEnd, stderr: &[u8]) -> DocumentFailure {
    const SIGABRT: i32 = 6;
    const SIGXCPU: i32 = 24;
    const SIGXFSZ: i32 = 25;
    // The Rust runtime says this and aborts when an allocation fails.
    let out_of_memory = || stderr.windows(20).any(|w| w == b"memory allocation of");
    match end {
        ChildEnd::Deadline => DocumentFailure::ParserTimeout,
        ChildEnd::Output | ChildEnd::Signal(SIGXCPU | SIGXFSZ) => DocumentFailure::ParserLimit,
        ChildEnd::Signal(SIGABRT) if out_of_memory() => DocumentFailure::ParserLimit,
        ChildEnd::Signal(_) => DocumentFailure::ParserCrashed,
        ChildEnd::Code(code) if code == i32::from(EXIT_THREAD) => DocumentFailure::ParserCrashed,
        ChildEnd::Code(_) => DocumentFailure::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_command_line() {
        let arguments = Arguments { parent: 42, limits: ChildLimits::default() };
        let args = arguments.to_args();
        assert_eq!(args[0], COMMAND);
        assert_eq!(Arguments::parse(&args[1..]), Some(arguments));
        assert_eq!(Arguments::parse(&["1", "2"]), None);
        assert_eq!(Arguments::parse(&["-1", "2", "3"]), None);
    }

    #[test]
    fn frames_survive_any_cutting_of_the_pipe() {
        let frames = [
            Frame::Started(SandboxState { filter: true, landlock: false }),
            Frame::Page(Page { number: Some(3), sections: Vec::new(), tally: None }),
            Frame::Verdict(Verdict::Refused(DocumentFailure::PdfEncrypted)),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(|f| f.encode().unwrap()).collect();
        for step in [1, 3, 7, bytes.len()] {
            let mut decoder = FrameDecoder::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(step) {
                decoder.push(part).unwrap();
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, frames);
        }
    }

    #[test]
    fn nonsense_and_floods_are_refused() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&[0xff; 8]).unwrap();
        assert!(matches!(decoder.next_frame(), Err(ProtocolError::TooLong { .. })));
        let mut decoder = FrameDecoder::default();
        decoder.push(b"\0\0\0\x02{]").unwrap();
        assert!(matches!(decoder.next_frame(), Err(ProtocolError::Malformed(_))));
        let mut decoder = FrameDecoder::default();
        let flood = vec![0; MAX_OUTPUT_BYTES + 1];
        assert!(matches!(decoder.push(&flood), Err(ProtocolError::TooMuch)));
    }

    #[test]
    fn every_end_has_its_code() {
        let abort = ChildEnd::Signal(6);
        assert_eq!(failure_of(abort, b"memory allocation of 99 bytes failed"), DocumentFailure::ParserLimit);
        assert_eq!(failure_of(abort, b"thread 'parser' has overflowed its stack"), DocumentFailure::ParserCrashed);
        assert_eq!(failure_of(ChildEnd::Signal(11), b""), DocumentFailure::ParserCrashed);
        assert_eq!(failure_of(ChildEnd::Signal(24), b""), DocumentFailure::ParserLimit);
        assert_eq!(failure_of(ChildEnd::Deadline, b""), DocumentFailure::ParserTimeout);
        assert_eq!(failure_of(ChildEnd::Code(i32::from(EXIT_SANDBOX)), b""), DocumentFailure::Internal);
    }
}
