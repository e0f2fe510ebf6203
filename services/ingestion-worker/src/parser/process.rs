//! The process itself.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use domain::DocumentFailure;
use extract::protocol::{Arguments, ChildEnd, Frame, FrameDecoder, Header, MAX_STDERR_BYTES, SandboxState, Verdict};
use extract::{Engine, Extracted, Format, Summary};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::ParserSettings;

const READ_BYTES: usize = 64 * 1024;
/// A killed process is gone at once, unless the kernel is stuck; nobody waits for that.
const REAP_TIMEOUT: Duration = Duration::from_secs(5);

/// All that is known when a process has ended.
pub(super) struct Answer {
    pub(super) extracted: Extracted,
    pub(super) sandbox: Option<SandboxState>,
    pub(super) end: Ended,
    /// The last it wrote to standard error. It may quote the document and is never logged.
    pub(super) stderr: Vec<u8>,
}

pub(super) enum Ended {
    Read(Summary),
    Refused(DocumentFailure),
    Died(ChildEnd),
    Cancelled,
}

/// Runs one process from its start to its end.
pub(super) async fn run(
    settings: &ParserSettings,
    format: Format,
    engine: Engine,
    bytes: &[u8],
    cancel: &CancellationToken,
) -> io::Result<Answer> {
    let mut child = start(settings)?;
    let (Some(stdin), Some(stdout), Some(mut stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("the process has no pipes"));
    };
    let header = Header { format, length: bytes.len() as u64, sandbox: settings.sandbox, engine };
    let mut seen = Seen::default();
    let mut errors = Vec::new();
    let talk = async {
        let feed = feed(stdin, &header, bytes);
        let (_, took, ()) = tokio::join!(feed, take(stdout, &mut seen), keep_last(&mut stderr, &mut errors));
        took?;
        child.wait().await.map_err(TakeError::Pipe)
    };
    let ended = tokio::select! {
        () = cancel.cancelled() => None,
        ended = timeout(settings.wall, talk) => Some(ended),
    };
    let end = match ended {
        Some(Ok(Ok(status))) => seen.end(Some(status)),
        None => Ended::Cancelled,
        Some(Err(_)) => seen.end_or(ChildEnd::Deadline),
        Some(Ok(Err(TakeError::Protocol))) => Ended::Died(ChildEnd::Output),
        Some(Ok(Err(TakeError::Pipe(error)))) => {
            kill(&mut child).await;
            return Err(error);
        }
    };
    kill(&mut child).await;
    Ok(Answer { extracted: seen.extracted, sandbox: seen.sandbox, end, stderr: errors })
}

fn start(settings: &ParserSettings) -> io::Result<Child> {
    let arguments = Arguments { parent: std::process::id(), limits: settings.limits };
    Command::new(&settings.program)
        .args(arguments.to_args())
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// Ends the process if it has not ended, and collects it.
async fn kill(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    // It may end by itself in between; then there is nothing to kill.
    let _ = child.start_kill();
    if timeout(REAP_TIMEOUT, child.wait()).await.is_err() {
        tracing::warn!("a killed parser has not ended; the kernel will collect it later");
    }
}

/// A process that ends before it has read everything closes its pipe: its end says why.
async fn feed(mut stdin: ChildStdin, header: &Header, bytes: &[u8]) -> io::Result<()> {
    stdin.write_all(&header.to_line()).await?;
    stdin.write_all(bytes).await?;
    stdin.shutdown().await
}

enum TakeError {
    Pipe(io::Error),
    /// What was wrong with a frame may quote it, so it goes no further.
    Protocol,
}

#[derive(Default)]
struct Seen {
    extracted: Extracted,
    sandbox: Option<SandboxState>,
    verdict: Option<Verdict>,
}

impl Seen {
    fn frame(&mut self, frame: Frame) {
        match frame {
            Frame::Started(state) => self.sandbox = Some(state),
            Frame::Page(page) => self.extracted.push(page),
            Frame::Verdict(verdict) => self.verdict = Some(verdict),
        }
    }

    fn end(&mut self, status: Option<ExitStatus>) -> Ended {
        let died = match status.map(|s| (s.signal(), s.code())) {
            Some((Some(signal), _)) => ChildEnd::Signal(signal),
            Some((None, Some(code))) => ChildEnd::Code(code),
            _ => ChildEnd::Output,
        };
        self.end_or(died)
    }

    /// A verdict counts however the process ended after it.
    fn end_or(&mut self, died: ChildEnd) -> Ended {
        match self.verdict.take() {
            Some(Verdict::Read(summary)) => Ended::Read(summary),
            Some(Verdict::Refused(failure)) => Ended::Refused(failure),
            None => Ended::Died(died),
        }
    }
}

async fn take(mut stdout: ChildStdout, seen: &mut Seen) -> Result<(), TakeError> {
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = stdout.read(&mut buffer).await.map_err(TakeError::Pipe)?;
        if read == 0 {
            return Ok(());
        }
        decoder.push(buffer.get(..read).unwrap_or_default()).map_err(|_| TakeError::Protocol)?;
        while let Some(frame) = decoder.next_frame().map_err(|_| TakeError::Protocol)? {
            seen.frame(frame);
        }
    }
}

/// Reads to the end and keeps the last bytes: what a process says when it dies is the last it says.
async fn keep_last(from: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let over = kept.len().saturating_sub(MAX_STDERR_BYTES);
        kept.drain(..over);
    }
}
