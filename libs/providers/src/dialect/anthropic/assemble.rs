//! The body for a provider of the same dialect: the client's bytes with the few edits the gateway owes.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::request::{Message, MessagesRequest, is_marked, is_result};
use super::thinking::LEAST_BUDGET;
use crate::client::{ChatCall, CountCall};
use crate::dialect::openai::{ContextPlacement, Outgoing, SpliceRules};
use crate::dialect::said::{Piece, Said};
use crate::dialect::{ClientDialect, UpstreamDialect};
use crate::json::{Members, Splices, literal, span, unquoted};

const BETA: HeaderName = HeaderName::from_static("anthropic-beta");
const VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Headers of the API as a client sent them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnthropicHeaders {
    /// `anthropic-version`: the form of requests and answers (API reference, Versions).
    pub version: Option<String>,
    /// `anthropic-beta`: features, separated by commas (API reference, Beta headers).
    pub beta: Option<String>,
}

impl MessagesRequest<'_> {
    /// The call for a connection of the same dialect. All of the client's body stays as it was sent, byte for byte, but
    /// for: the value of `model`; `ragmux`, which is removed; bounds above one that must be kept; the texts put into
    /// `system` or into what the user said last; and what came of other providers' models: thoughts, and ids of calls.
    pub(crate) fn call(&self, outgoing: &Outgoing<'_>) -> ChatCall {
        let mut dropped = Vec::new();
        let (mut splices, stops_thinking) = self.model_and_texts(outgoing, &mut dropped);
        if let Some(bound) = outgoing.output_bound {
            self.bound_output(bound.tokens.max(1), !stops_thinking, &mut splices);
        }
        ChatCall {
            body: Bytes::from(splices.apply(self.text.as_bytes())),
            stream: self.stream,
            rules: self.rules(outgoing),
            dropped: dropped.into_iter().map(Cow::into_owned).collect(),
            client: ClientDialect::Messages,
            upstream: UpstreamDialect::Messages,
            headers: headers(outgoing),
        }
    }

    /// How the answer is changed on its way back, whoever gives it.
    pub(crate) fn rules(&self, outgoing: &Outgoing<'_>) -> SpliceRules {
        SpliceRules::of(outgoing, self.stream)
    }

    /// What a provider of the same dialect is asked to count the tokens of the request by.
    #[must_use]
    pub fn count_call(&self, outgoing: &Outgoing<'_>) -> CountCall {
        let (splices, _) = self.model_and_texts(outgoing, &mut Vec::new());
        CountCall { body: Bytes::from(splices.apply(self.text.as_bytes())), headers: headers(outgoing) }
    }

    /// What is changed for every purpose, and whether that the model thinks has been taken back.
    fn model_and_texts(&self, outgoing: &Outgoing<'_>, dropped: &mut Vec<Cow<'_, str>>) -> (Splices, bool) {
        let mut splices = Splices::default();
        match self.members.get("model") {
            Some(value) => splices.replace(span(self.text, value.get()), literal(outgoing.model)),
            None => self.add(&format!("\"model\":{}", literal(outgoing.model)), &mut splices),
        }
        for range in self.members.ranges_without(self.text, "ragmux") {
            splices.remove(range);
        }
        self.put_texts(outgoing, &mut splices);
        let stops_thinking = self.remove_foreign(&mut splices, dropped);
        self.fit_call_ids(&mut splices);
        (splices, stops_thinking)
    }

    /// Puts a member in front of all.
    fn add(&self, member: &str, splices: &mut Splices) {
        // `messages` is always there, so a comma is always right.
        splices.insert(self.members.inside(self.text), format!("{member},"));
    }

    fn bound_output(&self, bound: u64, thinks: bool, splices: &mut Splices) {
        if self.max_tokens <= bound {
            return;
        }
        if let Some(value) = self.members.get("max_tokens") {
            splices.replace(span(self.text, value.get()), bound.to_string());
        }
        let Some(thinking) = self.members.present("thinking").filter(|_| thinks) else { return };
        let budget = Members::parse(thinking.get()).ok().and_then(|thinking| thinking.present("budget_tokens"));
        let Some(budget) = budget.filter(|budget| budget.get().parse::<u64>().is_ok_and(|budget| budget >= bound))
        else {
            return;
        };
        if bound > LEAST_BUDGET {
            splices.replace(span(self.text, budget.get()), (bound - 1).to_string());
        } else {
            // There is no room to think in.
            splices.replace(span(self.text, thinking.get()), "{\"type\":\"disabled\"}");
        }
    }

    fn put_texts(&self, outgoing: &Outgoing<'_>, splices: &mut Splices) {
        let said_last = self.messages.iter().rev().find(|message| message.role == "user");
        let (in_system, in_user) = match (outgoing.placement, said_last) {
            (ContextPlacement::LastUser, Some(message)) => (None, outgoing.context.map(|context| (message, context))),
            _ => (outgoing.context, None),
        };
        if let Some((message, context)) = in_user {
            self.put_before_question(message, context, splices);
        }
        let texts: Vec<&str> = in_system.into_iter().chain(outgoing.project_prompt).collect();
        if texts.is_empty() {
            return;
        }
        let text = texts.join("\n\n");
        match (&self.system, self.members.get("system")) {
            (Said::Text(own), Some(raw)) => {
                let separator = if own.is_empty() { "" } else { "\n\n" };
                splices.insert(span(self.text, raw.get()).start + 1, unquoted(&format!("{text}{separator}")));
            }
            (Said::Pieces(blocks), Some(raw)) => {
                splices.insert(span(self.text, raw.get()).start + 1, block_before(&text, !blocks.is_empty()));
                if in_system.is_some() {
                    // A prefix that differs with every question can never be read from the cache, so marks only cost.
                    self.remove_cache_marks(blocks, splices);
                }
            }
            (_, Some(raw)) => splices.replace(span(self.text, raw.get()), literal(&text)),
            (_, None) => self.add(&format!("\"system\":{}", literal(&text)), splices),
        }
    }

    /// Puts a text before what the user says, but after the results of tools, which the API wants first, and after what
    /// the client marks to be cached: the next call has it again, and the text not.
    fn put_before_question(&self, message: &Message<'_>, text: &str, splices: &mut Splices) {
        let at = span(self.text, message.raw_content.get());
        match &message.content {
            Said::Pieces(blocks) => match blocks.iter().rfind(|block| is_result(block) || is_marked(block)) {
                Some(behind) => {
                    let block = format!(",{{\"type\":\"text\",\"text\":{}}}", literal(text));
                    splices.insert(behind.members.range(self.text).end, block);
                }
                None => splices.insert(at.start + 1, block_before(text, !blocks.is_empty())),
            },
            Said::Text(own) => {
                let separator = if own.is_empty() { "" } else { "\n\n" };
                splices.insert(at.start + 1, unquoted(&format!("{text}{separator}")));
            }
            Said::Nothing => splices.replace(at, literal(text)),
        }
    }

    fn remove_cache_marks(&self, blocks: &[Piece<'_>], splices: &mut Splices) {
        for block in blocks {
            for range in block.members.ranges_without(self.text, "cache_control") {
                splices.remove(range);
            }
        }
    }
}

/// The headers of the dialect that a client may set.
fn headers(outgoing: &Outgoing<'_>) -> HeaderMap {
    let Some(sent) = outgoing.anthropic else { return HeaderMap::new() };
    let headers = [(VERSION, &sent.version), (BETA, &sent.beta)].into_iter();
    headers.filter_map(|(name, text)| Some((name, HeaderValue::from_str(text.as_deref()?).ok()?))).collect()
}

fn block_before(text: &str, comma: bool) -> String {
    let comma = if comma { "," } else { "" };
    format!("{{\"type\":\"text\",\"text\":{}}}{comma}", literal(text))
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
