//! Chats: `POST /v1/chat/completions`, and what answers the same in the words of other APIs.

pub(crate) mod completions;
pub(crate) mod gemini;
pub(crate) mod messages;
pub(crate) mod ollama;
mod passages;
mod quote;
mod request;
pub(crate) mod responses;
mod wire;

use serde_json::Value;
use tokens::Family;

use self::request::{ChatRequest, Message};
use crate::{
    Options,
    answer::{Answer, unix_seconds},
    error::ApiError,
    models,
    script::{Behaviour, Figures, ReportUsage},
};

/// The honest answer of a model that knows nothing.
const NOTHING_MATCHED: &str = "I am a demonstration model that only quotes passages it was given, and none of them \
                               matches this question.";

/// A chat answer before it is put in a shape.
#[derive(Clone, Debug, PartialEq)]
struct Reply {
    id: String,
    created: u64,
    model: String,
    /// The text in the pieces a stream sends.
    pieces: Vec<String>,
    finish_reason: String,
    choices: usize,
    usage: Option<Figures>,
}

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(body: &Value, id: u64, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let request = ChatRequest::parse(body)?;
    let mut reply = reply(&request, id, behaviour, options)?;
    let report = match behaviour.usage {
        ReportUsage::AsAsked => !request.stream || request.include_usage,
        ReportUsage::Always => true,
        ReportUsage::Never => false,
    };
    reply.usage = reply.usage.filter(|_| report);
    Ok(if request.stream { wire::events(&reply, !behaviour.omit_done) } else { wire::whole(&reply) })
}

/// What a request is answered, whatever the dialect, with usage.
fn reply(request: &ChatRequest, id: u64, behaviour: &Behaviour, options: &Options) -> Result<Reply, ApiError> {
    models::check(&request.model, models::CHAT, options)?;
    let family = Family::of(&request.model);
    let (pieces, finish_reason) = match scripted(behaviour) {
        Some(pieces) => (pieces, "stop"),
        None => limited(&text(request), request, family),
    };
    Ok(Reply {
        id: format!("chatcmpl-{id:024x}"),
        created: unix_seconds(),
        usage: Some(behaviour.figures.unwrap_or_else(|| figures(request, family, &pieces, behaviour))),
        model: request.model.clone(),
        pieces,
        finish_reason: behaviour.finish_reason.clone().unwrap_or_else(|| finish_reason.to_owned()),
        choices: request.choices,
    })
}

/// The pieces a script asks for.
fn scripted(behaviour: &Behaviour) -> Option<Vec<String>> {
    match (&behaviour.content, behaviour.chunks) {
        (None, None) => None,
        (Some(content), None) => Some(in_words(content).map(str::to_owned).collect()),
        (content, Some(chunks)) => Some(vec![content.clone().unwrap_or_else(|| " token".to_owned()); chunks]),
    }
}

fn text(request: &ChatRequest) -> String {
    let passages = passages::find(&request.messages);
    let question = passages::without_blocks(request.question());
    quote::quote(&question, &passages).unwrap_or_else(|| NOTHING_MATCHED.to_owned())
}

/// The text up to a stop string or the output limit, in words, and why it ends there.
fn limited(text: &str, request: &ChatRequest, family: Family) -> (Vec<String>, &'static str) {
    let stop = request.stop.iter().filter_map(|stop| text.find(stop.as_str())).min();
    let text = stop.and_then(|at| text.get(..at)).unwrap_or(text);
    let mut kept = String::new();
    let mut pieces = Vec::new();
    for word in in_words(text) {
        kept.push_str(word);
        if request.output_limit.is_some_and(|limit| tokens::count(family, &kept) > limit) {
            return (pieces, "length");
        }
        pieces.push(word.to_owned());
    }
    (pieces, "stop")
}

/// Words with the white space before them.
fn in_words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.len() - rest.trim_start().len();
        let end = rest.get(start..)?.find(char::is_whitespace).map_or(rest.len(), |at| start + at);
        let (word, after) = rest.split_at_checked(end)?;
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

fn figures(request: &ChatRequest, family: Family, pieces: &[String], behaviour: &Behaviour) -> Figures {
    let prompt = counted_prompt(request, family);
    let completion = match behaviour.chunks {
        Some(chunks) => chunks,
        None => tokens::count(family, &pieces.concat()),
    };
    Figures {
        prompt_tokens: prompt,
        completion_tokens: completion.saturating_mul(request.choices) as u64,
        ..Figures::default()
    }
}

fn counted_prompt(request: &ChatRequest, family: Family) -> u64 {
    tokens::count_messages(family, request.messages.iter().map(|message: &Message| message.text.as_str())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_the_space_before_them() {
        assert_eq!(in_words("One  two\nthree ").collect::<Vec<_>>(), ["One", "  two", "\nthree", " "]);
        assert_eq!(in_words("").count(), 0);
    }
}
