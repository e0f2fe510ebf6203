//! What a model answers, piece by piece, as every chat dialect can say it.

use std::borrow::Cow;
use std::fmt;

use bytes::{Bytes, BytesMut};

use super::whole::Whole;
use crate::error::UpstreamError;
use crate::usage::Usage;

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model had said everything.
    Stop,
    /// It came to one of the client's stop sequences, which this is where the provider tells.
    StopSequence(Option<String>),
    /// It came to a bound of tokens.
    Length,
    /// It waits for the results of tools.
    ToolCalls,
    /// The provider, or the model itself, would not say more.
    ContentFilter,
}

impl Finish {
    /// The word of the OpenAI chat API.
    pub(crate) fn as_openai(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopSequence(_) => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// A piece of an answer. Between pieces of the same kind the text goes on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event<'a> {
    /// The provider has begun. Comes first and once.
    Start {
        id: Option<Cow<'a, str>>,
        model: Option<Cow<'a, str>>,
    },
    Reasoning(Cow<'a, str>),
    /// The signature of the reasoning so far under its [`super::Signer`]'s mark, or a further piece of it.
    ReasoningSignature(Cow<'a, str>),
    /// What comes next is another thought, whether this one was signed or not.
    NextThought,
    /// Under its signer's mark.
    RedactedReasoning(Cow<'a, str>),
    Text(Cow<'a, str>),
    Refusal(Cow<'a, str>),
    /// A call of a tool begins. Its arguments follow, under the same index.
    ToolCall {
        index: u64,
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        signature: Option<Cow<'a, str>>,
    },
    /// The next piece of a call's arguments, as text.
    Arguments {
        index: u64,
        json: Cow<'a, str>,
    },
    Usage(Usage),
    /// Comes once; usage may come after it.
    Finish(Finish),
}

/// Reads the answers of one upstream dialect.
pub(crate) trait Reader: fmt::Debug + Send {
    /// Reads one event of a stream: the value of its `event` field, where it has one, and its data.
    ///
    /// # Errors
    /// The provider says in the stream that it failed, or says what its API does not.
    fn read<'a>(
        &mut self,
        name: Option<&str>,
        data: &'a [u8],
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), UpstreamError>;

    /// Whether the answer is whole by what has been read, however its connection ends.
    fn is_complete(&self) -> bool;

    /// Whether the dialect's last event has been read; nothing is expected after it.
    fn is_over(&self) -> bool;

    /// What a provider has said of the usage before the end, of the prompt above all: it is paid for however the answer
    /// ends.
    fn usage_so_far(&self) -> Option<Usage> {
        None
    }
}

/// What a client is told of a failure in the middle of its stream.
#[derive(Clone, Debug)]
pub struct Told<'a> {
    /// HTTP status, were there still one to send.
    pub status: u16,
    /// The OpenAI `type`.
    pub kind: &'a str,
    /// The `code`.
    pub code: Option<&'a str>,
    /// A sentence.
    pub message: &'a str,
}

/// Numbers the calls of tools of an answer, and makes ids for those that have none. No two answers have the same.
#[derive(Debug)]
pub(crate) struct CallIds {
    mark: u64,
    given: u64,
}

impl CallIds {
    pub(crate) fn new() -> Self {
        Self { mark: rand::random(), given: 0 }
    }

    /// The place of the next call, and an id for it.
    pub(crate) fn next(&mut self) -> (u64, String) {
        let index = self.given;
        self.given += 1;
        (index, format!("call_{:016x}_{index}", self.mark))
    }

    /// Whether there was a call.
    pub(crate) fn has_given(&self) -> bool {
        self.given > 0
    }
}

/// Writes answers in one dialect of clients.
pub(crate) trait Writer: fmt::Debug + Send {
    /// Appends what the client gets for an event: whole events of its dialect, or nothing yet.
    fn write(&mut self, event: &Event<'_>, out: &mut BytesMut);

    /// The bytes of the answer that it keeps, told or not.
    fn kept(&self) -> usize {
        0
    }

    /// Whether it holds more than it should of what the client cannot be told yet.
    fn is_overfull(&self) -> bool {
        false
    }

    /// Appends the end of a whole answer. `member` is one of ours, name and JSON, that the client asked for.
    fn end(&mut self, member: Option<(&str, &str)>, out: &mut BytesMut);

    /// Appends the end of an answer that failed.
    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut);

    /// An answer that is whole from the first, as a JSON body.
    fn whole(&self, answer: &Whole, member: Option<(&str, &str)>) -> Bytes;
}
