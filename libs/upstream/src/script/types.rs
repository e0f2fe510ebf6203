//! The JSON of the routes under `/script`, for both sides.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where [`Behaviour::stamp`] puts the time.
pub const STAMP: &str = "@0000000000000000000";

/// `POST /script`: what to do with the calls to one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// The path, such as `/v1/chat/completions`, or `*` for every path that has no script of its own.
    pub path: String,
    /// Behaviours for the next calls, one each, added behind those already waiting.
    pub queue: Vec<Behaviour>,
    /// The behaviour of calls that find the queue empty, from now on. Absent: unchanged.
    pub default: Option<Behaviour>,
}

/// What one call meets. Everything left out is as usual.
///
/// In order: [`hold`](Self::hold), [`first_byte_ms`](Self::first_byte_ms), then [`hang`](Self::hang) or
/// [`close`](Self::close), then the answer, which is [`error`](Self::error), [`raw`](Self::raw) or the ordinary one with
/// changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// Nothing is sent, not even the status, before `POST /script/release`.
    pub hold: bool,
    /// The stream stops after this many events until `POST /script/release`.
    pub hold_after_events: Option<usize>,
    /// The body stops after this many bytes, wherever in an event that is, until `POST /script/release`.
    pub hold_after_bytes: Option<usize>,
    /// The stream stops before each event until `POST /script/release`.
    pub hold_each_event: bool,
    /// Milliseconds before the status is sent.
    pub first_byte_ms: u64,
    /// Milliseconds between two events.
    pub between_events_ms: u64,
    /// The call is never answered; it ends when the client leaves or the server stops.
    pub hang: bool,
    /// The connection is closed in place of an answer.
    pub close: bool,
    /// An error in place of an answer.
    pub error: Option<ScriptedError>,
    /// A body to send as it is, on any path.
    pub raw: Option<Raw>,
    /// Headers added to the answer, replacing those of the same name.
    pub headers: BTreeMap<String, String>,
    /// Chat: the text of the answer, or of each piece if [`chunks`](Self::chunks) is given too.
    pub content: Option<String>,
    /// Chat: the number of content events of a stream; each is one token of usage.
    pub chunks: Option<usize>,
    /// Chat: the `finish_reason` or `stop_reason`.
    pub finish_reason: Option<String>,
    /// Whether usage is reported.
    pub usage: ReportUsage,
    /// The usage that is reported, in place of what was counted.
    pub figures: Option<Figures>,
    /// A stream ends without `[DONE]`, `message_stop` or `response.completed`.
    pub omit_done: bool,
    /// Each [`STAMP`] of the body is replaced by `@` and the nanoseconds since 1970, in 19 digits, at which its piece was
    /// handed to the connection. A stamp that is cut in two by [`split_bytes`](Self::split_bytes) stays as it is.
    pub stamp: bool,
    /// How the lines of a stream end.
    pub line_end: LineEnd,
    /// The body is written in pieces of this many bytes, each flushed, whatever they cut in two.
    pub split_bytes: Option<usize>,
    /// The connection is cut after this many bytes of the body.
    pub cut_after_bytes: Option<usize>,
    /// The connection is cut after this many events of a stream.
    pub cut_after_events: Option<usize>,
    /// After the last byte the body stays open until the client leaves or the server stops.
    pub stay_open: bool,
}

impl Behaviour {
    /// Whether it says what a chat answers, so that nothing has to be found out.
    pub(crate) fn has_chat(&self) -> bool {
        self.content.is_some() || self.chunks.is_some()
    }

    /// Whether the answer is the same whatever the request says.
    pub(crate) fn is_fixed(&self) -> bool {
        self.error.is_some() || self.raw.is_some()
    }
}

/// An error answer in the shape of the path's API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptedError {
    /// The HTTP status.
    pub status: u16,
    /// `error.message`; a fixed sentence if empty.
    pub message: String,
    /// `error.type`; by status if absent.
    pub r#type: Option<String>,
    /// `error.code`.
    pub code: Option<String>,
    /// `error.param`.
    pub param: Option<String>,
    /// The `Retry-After` header as it is sent: seconds or an HTTP date.
    pub retry_after: Option<String>,
}

impl ScriptedError {
    /// An error of this status with the type OpenAI gives it.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }
}

/// A body sent byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// The HTTP status.
    #[serde(default = "ok")]
    pub status: u16,
    /// The `Content-Type`, such as `application/json` or `text/event-stream`.
    pub content_type: String,
    /// The body. For an event stream it is cut into events after each blank line, so that pacing works.
    pub body: String,
}

fn ok() -> u16 {
    200
}

/// Whether an answer reports usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportUsage {
    /// As the API says: always in JSON, in a stream when `stream_options.include_usage` asks for it.
    #[default]
    AsAsked,
    /// Always.
    Always,
    /// Never, whatever was asked.
    Never,
}

/// Figures of a usage report, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Figures {
    /// `prompt_tokens`.
    pub prompt_tokens: u64,
    /// `completion_tokens`.
    pub completion_tokens: u64,
    /// `prompt_tokens_details.cached_tokens`.
    pub cached_tokens: u64,
    /// `completion_tokens_details.reasoning_tokens`.
    pub reasoning_tokens: u64,
}

/// How lines end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineEnd {
    /// `\n`.
    #[default]
    Lf,
    /// `\r\n`.
    CrLf,
    /// `\r`.
    Cr,
}

/// `POST /script/release`: lets held calls go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Release {
    /// How many, the longest held first. Absent: all that are held now.
    pub count: Option<usize>,
}

/// `POST /script/wait`: answers with the [`Counters`] once all that is given is true, else 408.
///
/// `requests`, `finished`, `aborted` and `held` are reached by as many or more; `open` is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wait {
    /// Calls seen.
    pub requests: Option<u64>,
    /// Calls over, however they ended.
    pub finished: Option<u64>,
    /// Calls whose client left.
    pub aborted: Option<u64>,
    /// Calls held now.
    pub held: Option<u64>,
    /// Calls not over yet.
    pub open: Option<u64>,
    /// How long to wait, in milliseconds; 10,000 if absent, at most 60,000.
    pub timeout_ms: Option<u64>,
}

impl Wait {
    /// Whether the counters are as waited for.
    #[must_use]
    pub fn is_met(&self, counters: &Counters) -> bool {
        let reached = |wanted: Option<u64>, is: u64| wanted.is_none_or(|wanted| is >= wanted);
        reached(self.requests, counters.requests)
            && reached(self.finished, counters.finished)
            && reached(self.aborted, counters.aborted)
            && reached(self.held, counters.held)
            && self.open.is_none_or(|open| open == counters.open)
    }
}

/// Counts since the start or the last `DELETE /script`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Calls seen.
    pub requests: u64,
    /// Calls over.
    pub finished: u64,
    /// Calls over because the client left.
    pub aborted: u64,
    /// Calls not over yet.
    pub open: u64,
    /// Calls held now.
    pub held: u64,
    /// Bytes of bodies handed to connections.
    pub bytes_sent: u64,
}

/// `GET /script/log`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// The calls, oldest first.
    pub calls: Vec<SeenCall>,
    /// The counts.
    pub counters: Counters,
}

/// A call that the server saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenCall {
    /// Its number, from 1.
    pub id: u64,
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query without its question mark.
    pub query: Option<String>,
    /// The headers, names in lower case; values of those that carry a key are replaced by `redacted`.
    pub headers: BTreeMap<String, String>,
    /// Which of [`crate::Options::api_keys`] was used, by its place in the list.
    pub key: Option<usize>,
    /// The `model` member of the body.
    pub model: Option<String>,
    /// Whether the body asks for a stream.
    pub stream: bool,
    /// The body if it is JSON of at most 1 MiB, else null.
    pub body: Value,
    /// The size of the body in bytes.
    pub body_bytes: usize,
    /// The usage that the script has for it, if it has any.
    pub figures: Option<Figures>,
    /// When it came, in milliseconds since 1970.
    pub at_ms: u64,
    /// How it ended; absent while it is open.
    pub end: Option<Outcome>,
    /// The status it was answered with.
    pub status: Option<u16>,
    /// Bytes of the body handed to the connection.
    pub bytes_sent: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All of the answer was handed to the connection.
    Answered,
    /// The client left before that.
    Aborted,
    /// The server cut the connection because the script says so.
    Cut,
}
