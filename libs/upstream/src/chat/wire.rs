//! Chat answers as JSON and as events (OpenAI API reference, Chat).

use serde::Serialize;
use serde_json::{Value, json};

use super::Reply;
use crate::{answer::Answer, script::Figures};

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<Value>,
    finish_reason: &'a str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<&'a str>,
    annotations: [Value; 0],
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Piece<'a>>,
    /// Null in all but the last event when usage is asked for, absent when not.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Piece<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Value>,
    finish_reason: Option<&'a str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Option<&'a str>>,
}

#[derive(Clone, Copy, Serialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    audio_tokens: u64,
}

#[derive(Clone, Copy, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
    audio_tokens: u64,
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

impl From<Figures> for Usage {
    fn from(figures: Figures) -> Self {
        Self {
            prompt_tokens: figures.prompt_tokens,
            completion_tokens: figures.completion_tokens,
            total_tokens: figures.prompt_tokens.saturating_add(figures.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: figures.cached_tokens, audio_tokens: 0 },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: figures.reasoning_tokens,
                audio_tokens: 0,
                accepted_prediction_tokens: 0,
                rejected_prediction_tokens: 0,
            },
        }
    }
}

const FINGERPRINT: &str = "fp_demonstration";

/// One JSON body.
pub(crate) fn whole(reply: &Reply) -> Answer {
    let content = reply.pieces.concat();
    let choice = |index| Choice {
        index,
        message: Message { role: "assistant", content: &content, refusal: None, annotations: [] },
        logprobs: None,
        finish_reason: &reply.finish_reason,
    };
    Answer::json(&Completion {
        id: &reply.id,
        object: "chat.completion",
        created: reply.created,
        model: &reply.model,
        choices: (0..reply.choices).map(choice).collect(),
        usage: reply.usage.map(Usage::from),
        system_fingerprint: FINGERPRINT,
    })
}

/// Events: the role, the pieces, the reason, usage if asked for, the end.
pub(crate) fn events(reply: &Reply, done: bool) -> Answer {
    let chunk = |choices: Vec<Piece<'_>>, usage: Option<Usage>| {
        event(&Chunk {
            id: &reply.id,
            object: "chat.completion.chunk",
            created: reply.created,
            model: &reply.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: reply.usage.map(|_| usage),
        })
    };
    let piece = |index, delta, finish_reason| vec![Piece { index, delta, logprobs: None, finish_reason }];
    let mut events = Vec::with_capacity(reply.choices * (reply.pieces.len() + 2) + 2);
    for index in 0..reply.choices {
        let role = Delta { role: Some("assistant"), content: Some(""), refusal: Some(None) };
        events.push(chunk(piece(index, role, None), None));
    }
    for content in &reply.pieces {
        for index in 0..reply.choices {
            let delta = Delta { content: Some(content), ..Delta::default() };
            events.push(chunk(piece(index, delta, None), None));
        }
    }
    for index in 0..reply.choices {
        events.push(chunk(piece(index, Delta::default(), Some(&reply.finish_reason)), None));
    }
    if let Some(figures) = reply.usage {
        events.push(chunk(Vec::new(), Some(figures.into())));
    }
    if done {
        events.push(b"data: [DONE]\n\n".to_vec());
    }
    Answer::Events(events)
}

fn event(chunk: &impl Serialize) -> Vec<u8> {
    let mut event = b"data: ".to_vec();
    if serde_json::to_writer(&mut event, chunk).is_err() {
        // Strings and numbers always serialise; an empty object keeps the stream well-formed all the same.
        event.extend_from_slice(json!({}).to_string().as_bytes());
    }
    event.extend_from_slice(b"\n\n");
    event
}
