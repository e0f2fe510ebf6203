//! What the provider of a test does when it is called.

use serde_json::Value;
use upstream::{Behaviour, Figures, Handle, Raw, Script, ScriptedError};

pub(crate) const JSON: &str = "application/json";
pub(crate) const EVENTS: &str = "text/event-stream";

/// What its next call meets, whatever is called.
pub(crate) fn next(upstream: &Handle, behaviour: Behaviour) {
    upstream.script(Script { path: "*".to_owned(), queue: vec![behaviour], default: None });
}

/// It answers with a text.
pub(crate) fn says(text: &str) -> Behaviour {
    Behaviour { content: Some(text.to_owned()), ..Behaviour::default() }
}

/// It answers with a text, and reports so many tokens of prompt and answer, of the former cached and of the latter thought.
pub(crate) fn says_for(text: &str, [prompt, completion, cached, reasoning]: [u64; 4]) -> Behaviour {
    let figures = Figures {
        prompt_tokens: prompt,
        completion_tokens: completion,
        cached_tokens: cached,
        reasoning_tokens: reasoning,
    };
    Behaviour { figures: Some(figures), ..says(text) }
}

/// It answers with these bytes.
pub(crate) fn raw(content_type: &str, body: impl Into<String>) -> Behaviour {
    let raw = Raw { status: 200, content_type: content_type.to_owned(), body: body.into() };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

/// It answers with this.
pub(crate) fn answers(body: &Value) -> Behaviour {
    raw(JSON, body.to_string())
}

/// It refuses, or fails.
pub(crate) fn failing(status: u16) -> Behaviour {
    Behaviour { error: Some(ScriptedError::status(status)), ..Behaviour::default() }
}
