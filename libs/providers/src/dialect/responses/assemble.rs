//! The body for a provider of the same dialect: the client's bytes with the few edits the gateway owes.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::items::Sealed;
use super::request::{Input, Item, Kind, ResponsesRequest};
use crate::client::ChatCall;
use crate::dialect::openai::{ContextPlacement, Outgoing, SpliceRules};
use crate::dialect::said::Said;
use crate::dialect::{ClientDialect, UpstreamDialect};
use crate::hub::drop_path;
use crate::json::{Splices, literal, ranges_of, span, text_of, unquoted};

/// The least that the API takes for a bound of the output: it says so where it refuses less ("Expected a value >= 16").
/// A lower one is kept here alone.
const LEAST_OUTPUT: u64 = 16;

impl ResponsesRequest<'_> {
    /// The call for a connection of the same dialect. All of the client's body stays as it was sent, byte for byte, but
    /// for: the value of `model`; `ragmux`, which is removed; `store`, which is false; a bound above one that must be
    /// kept; the texts put into `instructions` or into what the user said last; and what cannot be understood without an
    /// answer that was kept: a thought that came without its encrypted content, and the ids that refer to it.
    pub(crate) fn call(&self, outgoing: &Outgoing<'_>) -> ChatCall {
        let mut splices = Splices::default();
        let mut dropped = Vec::new();
        match self.members.get("model") {
            Some(value) => splices.replace(span(self.text, value.get()), literal(outgoing.model)),
            None => self.add("model", &literal(outgoing.model), &mut splices),
        }
        for range in self.members.ranges_without(self.text, "ragmux") {
            splices.remove(range);
        }
        // Whoever asks for an answer to be kept asks this gateway, which keeps none.
        self.put("store", "false", &mut splices);
        if self.wants_store {
            drop_path(&mut dropped, "store".to_owned());
        }
        if let Some(bound) = outgoing.output_bound
            && self.max_output_tokens.is_none_or(|limit| limit > bound.tokens)
        {
            self.put("max_output_tokens", &bound.tokens.max(LEAST_OUTPUT).to_string(), &mut splices);
        }
        self.put_texts(outgoing, &mut splices);
        self.forget(&mut splices, &mut dropped);
        self.fit_call_ids(&mut splices);
        ChatCall {
            body: Bytes::from(splices.apply(self.text.as_bytes())),
            stream: self.stream,
            rules: self.rules(outgoing),
            dropped: dropped.into_iter().map(Cow::into_owned).collect(),
            client: ClientDialect::Responses,
            upstream: UpstreamDialect::Responses,
            headers: HeaderMap::new(),
        }
    }

    /// How the answer is changed on its way back, whoever gives it.
    pub(crate) fn rules(&self, outgoing: &Outgoing<'_>) -> SpliceRules {
        SpliceRules { echo: Some(Arc::new(self.echo())), ..SpliceRules::of(outgoing, self.stream) }
    }

    /// Puts a member in front of all. `value` must be JSON.
    fn add(&self, name: &str, value: &str, splices: &mut Splices) {
        // `input` is always there, so a comma is always right.
        splices.insert(self.members.inside(self.text), format!("\"{name}\":{value},"));
    }

    /// Gives a member that value, whatever it was.
    fn put(&self, name: &str, value: &str, splices: &mut Splices) {
        match self.members.get(name) {
            Some(given) if given.get() == value => {}
            Some(given) => splices.replace(span(self.text, given.get()), value),
            None => self.add(name, value, splices),
        }
    }

    fn put_texts(&self, outgoing: &Outgoing<'_>, splices: &mut Splices) {
        let has_user = matches!(self.input, Input::Text(_)) || self.items().iter().any(Item::is_user);
        let in_user = outgoing.placement == ContextPlacement::LastUser && has_user;
        if let Some(context) = outgoing.context.filter(|_| in_user) {
            self.put_before_question(context, splices);
        }
        let in_front = outgoing.context.filter(|_| !in_user);
        let texts: Vec<&str> = in_front.into_iter().chain(outgoing.project_prompt).collect();
        if texts.is_empty() {
            return;
        }
        let text = texts.join("\n\n");
        match (&self.instructions, self.members.get("instructions")) {
            (Some(own), Some(raw)) => {
                let separator = if own.is_empty() { "" } else { "\n\n" };
                splices.insert(span(self.text, raw.get()).start + 1, unquoted(&format!("{text}{separator}")));
            }
            _ => self.put("instructions", &literal(&text), splices),
        }
    }

    /// Puts a text before what the user said last.
    fn put_before_question(&self, text: &str, splices: &mut Splices) {
        let in_front = |own: &str| unquoted(&format!("{text}{}", if own.is_empty() { "" } else { "\n\n" }));
        if let (Input::Text(own), Some(raw)) = (&self.input, self.members.get("input")) {
            splices.insert(span(self.text, raw.get()).start + 1, in_front(own));
            return;
        }
        let Some(item) = self.items().iter().rev().find(|item| item.is_user()) else { return };
        let Some(raw) = item.raw_said else { return };
        let at = span(self.text, raw.get()).start + 1;
        match &item.said {
            Said::Text(own) => splices.insert(at, in_front(own)),
            Said::Pieces(parts) => {
                let comma = if parts.is_empty() { "" } else { "," };
                splices.insert(at, format!("{{\"type\":\"input_text\",\"text\":{}}}{comma}", literal(text)));
            }
            Said::Nothing => {}
        }
    }

    /// Takes out what the provider would look for among answers it has kept, and what other providers' answers carry.
    fn forget(&self, splices: &mut Splices, dropped: &mut Vec<Cow<'_, str>>) {
        let items = self.items();
        let elements: Vec<_> = items.iter().map(|item| (item.members.range(self.text), is_forgotten(item))).collect();
        let forgets = elements.iter().any(|(_, goes)| *goes);
        ranges_of(&elements).into_iter().for_each(|range| splices.remove(range));
        for (at, (item, (_, goes))) in items.iter().zip(&elements).enumerate() {
            if *goes {
                drop_path(dropped, format!("input[{at}]"));
            } else {
                let mut names = Vec::new();
                if item.kind == Kind::Call {
                    names.push("extra_content");
                }
                // The provider wants the thought back with what came of it, and knows what did by its id.
                if forgets && (item.kind == Kind::Call || item.role == "assistant") {
                    names.push("id");
                }
                for range in item.members.ranges_without_any(self.text, &names) {
                    splices.remove(range);
                }
            }
        }
    }
}

/// Whether an item is a thought that its provider cannot read any more.
fn is_forgotten(item: &Item<'_>) -> bool {
    let seal = item.members.present("encrypted_content").and_then(text_of).filter(|seal| !seal.is_empty());
    item.kind == Kind::Reasoning && !seal.is_some_and(|seal| Sealed::read(seal) == Sealed::Foreign)
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
