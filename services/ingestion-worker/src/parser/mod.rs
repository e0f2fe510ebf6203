//! One document, one process: starts the parser, feeds it, takes its pages and judges its end.
//!
//! The process is the worker's own binary again, started with [`extract::protocol::COMMAND`]. It gets no environment
//! and no file, only the document on its standard input. However it ends, the pages it sent before are kept. A PDF that
//! one engine did not read well is read by another, in a fresh process.

mod process;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::DocumentFailure;
use extract::protocol::{ChildEnd, ChildLimits, SandboxPolicy, SandboxState, WALL_SECONDS, failure_of};
use extract::{Engine, Extracted, Format, Reading, conclude, is_doubtful, settle};
use tokio_util::sync::CancellationToken;

use process::{Answer, Ended};

/// How parsers are started.
#[derive(Clone, Debug)]
pub struct ParserSettings {
    /// The binary that becomes a parser when its first argument says so.
    pub program: PathBuf,
    /// What each parser limits itself to.
    pub limits: ChildLimits,
    /// How long a parser may take by the clock.
    pub wall: Duration,
    /// Whether a parser may run without its system call filter.
    pub sandbox: SandboxPolicy,
}

impl ParserSettings {
    /// The defaults, with this process's own binary: the file it was started from, even if another took its place
    /// since, because parent and child must speak the same protocol.
    #[must_use]
    pub fn own_binary(sandbox: SandboxPolicy) -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            limits: ChildLimits::default(),
            wall: Duration::from_secs(WALL_SECONDS),
            sandbox,
        }
    }
}

/// What came out of a document that could be read, at least in part.
#[derive(Debug)]
pub struct Parsed {
    /// Its text; `partial_pages` says that some is missing.
    pub extracted: Extracted,
    /// How the parser died, when it died after it had sent pages with text.
    pub ended_by: Option<DocumentFailure>,
}

/// Why nothing came out of a document.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The document's own verdict, or the way its parser died. The code is stable.
    #[error("the document was not parsed: {}", .0.code())]
    Document(DocumentFailure),
    /// The caller gave up; nothing is known about the document.
    #[error("the parser was cancelled")]
    Cancelled,
    /// No parser could be started or reached: a fault of this machine, worth another try.
    #[error("the parser could not be started")]
    Start(#[source] std::io::Error),
    /// The sandbox is required and this machine cannot set it up: no document will do better here.
    #[error("the parser's sandbox is required and could not be set up")]
    Sandbox,
    /// Parent and child do not understand each other.
    #[error("the parser ended with code {code} and without a verdict")]
    Protocol {
        /// The exit code.
        code: i32,
    },
}

/// Starts parsers.
#[derive(Debug)]
pub struct Parser {
    settings: ParserSettings,
    warned: AtomicBool,
}

impl Parser {
    /// With these settings.
    #[must_use]
    pub fn new(settings: ParserSettings) -> Self {
        Self { settings, warned: AtomicBool::new(false) }
    }

    /// Parses one document. Dropping the future kills the process.
    ///
    /// The process dies with the thread that starts it, so this is called on a runtime's own worker threads, which
    /// live as long as the runtime, and not from a blocking pool.
    ///
    /// # Errors
    /// See [`ParseError`].
    pub async fn parse(&self, format: Format, bytes: &[u8], cancel: &CancellationToken) -> Result<Parsed, ParseError> {
        let mut reading = self.read(format, Engine::First, bytes, cancel).await?;
        if format == Format::Pdf && is_doubtful(&reading) {
            reading = settle(reading, self.read(format, Engine::Second, bytes, cancel).await?);
        }
        let (extracted, ended_by) = conclude(reading).map_err(|end| match end {
            extract::End::Refused(failure) | extract::End::Died(failure) => ParseError::Document(failure),
            extract::End::Read(_) => ParseError::Document(DocumentFailure::NoText),
        })?;
        Ok(Parsed { extracted, ended_by })
    }

    /// One process, from its start to its end.
    async fn read(
        &self,
        format: Format,
        engine: Engine,
        bytes: &[u8],
        cancel: &CancellationToken,
    ) -> Result<Reading, ParseError> {
        let answer = process::run(&self.settings, format, engine, bytes, cancel).await.map_err(ParseError::Start)?;
        if let Some(state) = answer.sandbox {
            self.warn_once(state);
        }
        judge(answer)
    }

    fn warn_once(&self, state: SandboxState) {
        if !state.filter && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                landlock = state.landlock,
                "parsers run without a system call filter; set EXTRACT_SANDBOX=required to refuse that"
            );
        }
    }
}

fn judge(answer: Answer) -> Result<Reading, ParseError> {
    let end = match answer.end {
        Ended::Cancelled => return Err(ParseError::Cancelled),
        Ended::Read(summary) => extract::End::Read(summary),
        // A parser that caught a panic says so itself; its pages are as good as those of one that died.
        Ended::Refused(DocumentFailure::ParserCrashed) => extract::End::Died(DocumentFailure::ParserCrashed),
        Ended::Refused(failure) => extract::End::Refused(failure),
        Ended::Died(ChildEnd::Code(code)) if code == i32::from(extract::protocol::EXIT_SANDBOX) => {
            return Err(ParseError::Sandbox);
        }
        Ended::Died(end) => match (failure_of(end, &answer.stderr), end) {
            (DocumentFailure::Internal, ChildEnd::Code(code)) => return Err(ParseError::Protocol { code }),
            (failure, _) => extract::End::Died(failure),
        },
    };
    Ok(Reading { pages: answer.extracted.pages, end })
}
