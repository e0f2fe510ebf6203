//! Thoughts of other providers' models in a conversation that goes on with this one.
//!
//! A route may lead to providers of several dialects, so a client may bring back what we wrote for it when another one
//! answered. The API refuses thoughts that it has not signed (Anthropic API, Extended thinking), and it wants thoughts at
//! the head of a turn in which tools are called, as long as it is to think.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::value::RawValue;

use super::request::{Message, MessagesRequest, is_result};
use crate::dialect::said::Piece;
use crate::hub::{Signer, drop_path, is_marked};
use crate::json::{Members, Splices, literal, ranges_of, span, text_of};

/// What becomes of a block.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    Goes,
    /// Stays with that for its signature, which somebody else passed on for Anthropic.
    Signed(Range<usize>, String),
}

impl MessagesRequest<'_> {
    /// Takes what the API would refuse out of what the model said. Whether the model may not think therefore, which has been
    /// put into the request then, is returned.
    pub(super) fn remove_foreign(&self, splices: &mut Splices, dropped: &mut Vec<Cow<'_, str>>) -> bool {
        let mut messages = Vec::with_capacity(self.messages.len());
        for message in &self.messages {
            let is_removed = message.role == "assistant" && self.remove_from(message, splices, dropped);
            messages.push((message.members.range(self.text), is_removed));
        }
        // The API has no messages of nothing; what the user says before and after goes together.
        ranges_of(&messages).into_iter().for_each(|range| splices.remove(range));
        let Some(thinking) = self.members.present("thinking") else { return false };
        let is_enabled = Members::parse(thinking.get())
            .is_ok_and(|thinking| thinking.present("type").and_then(text_of).is_some_and(|kind| kind == "enabled"));
        let stops = is_enabled && self.goes_on_without();
        if stops {
            splices.replace(span(self.text, thinking.get()), "{\"type\":\"disabled\"}");
            drop_path(dropped, "thinking".to_owned());
        }
        stops
    }

    /// Whether nothing is left of a message. Where something is, what is foreign is taken out.
    fn remove_from(&self, message: &Message<'_>, splices: &mut Splices, dropped: &mut Vec<Cow<'_, str>>) -> bool {
        let mut blocks = Vec::new();
        for block in message.content.pieces() {
            let fate = self.fate(block);
            if fate == Fate::Goes {
                drop_path(dropped, format!("messages[].content[].{}", block.kind));
            }
            blocks.push((block.members.range(self.text), fate));
        }
        if !blocks.is_empty() && blocks.iter().all(|(_, fate)| *fate == Fate::Goes) {
            return true;
        }
        let elements: Vec<_> = blocks.iter().map(|(range, fate)| (range.clone(), *fate == Fate::Goes)).collect();
        ranges_of(&elements).into_iter().for_each(|range| splices.remove(range));
        for (_, fate) in blocks {
            if let Fate::Signed(range, signature) = fate {
                splices.replace(range, signature);
            }
        }
        false
    }

    fn fate(&self, block: &Piece<'_>) -> Fate {
        let seal = match &*block.kind {
            "thinking" => block.members.present("signature"),
            "redacted_thinking" => block.members.present("data"),
            _ => return Fate::Stays,
        };
        let Some((seal, text)) = seal.and_then(|seal: &RawValue| Some((seal, text_of(seal)?))) else {
            return Fate::Goes;
        };
        match Signer::Anthropic.own(&text) {
            Some(own) => Fate::Signed(span(self.text, seal.get()), literal(own)),
            None if text.is_empty() || is_marked(&text) => Fate::Goes,
            None => Fate::Stays,
        }
    }

    /// Whether the conversation ends with results of tools, and the turn that called them was begun by another model
    /// without thoughts of this one's.
    fn goes_on_without(&self) -> bool {
        let has_results = |message: &Message<'_>| message.content.pieces().iter().any(is_result);
        if !self.messages.last().is_some_and(has_results) {
            return false;
        }
        let is_in_turn = |message: &&Message<'_>| message.role != "user" || has_results(message);
        let turn = self.messages.iter().rev().take_while(is_in_turn);
        let blocks = turn.filter(|message| message.role == "assistant").last().map(|first| first.content.pieces());
        let Some(blocks) = blocks else { return false };
        let left = blocks.iter().find(|block| self.fate(block) != Fate::Goes);
        let thinks = left.is_some_and(|block| matches!(&*block.kind, "thinking" | "redacted_thinking"));
        let is_foreign = |block: &Piece<'_>| self.fate(block) == Fate::Goes || is_foreign_call(block);
        !thinks && blocks.iter().any(is_foreign)
    }
}

/// Whether a call has an id that is not of Anthropic's making: without thoughts of its own that is another model's turn.
fn is_foreign_call(block: &Piece<'_>) -> bool {
    let id = block.members.present("id").and_then(text_of);
    block.kind == "tool_use" && id.is_some_and(|id| !id.starts_with("toolu_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ChatCall;
    use crate::dialect::golden::PLAIN;
    use crate::dialect::openai::{Outgoing, OutputBound};

    const OWN: &str = r#"{ "type":"thinking", "thinking":"own\u0021","signature":"Eq==" }"#;
    const OWN_REDACTED: &str = r#"{"type":"redacted_thinking","data":"Em=="}"#;
    const GEMINIS: &str = r#"{"type":"thinking","thinking":"hm","signature":"ragmux-signed:gemini:GSIG"}"#;
    const UNSIGNED: &str = r#"{"type":"thinking","thinking":"hm","signature":""}"#;
    const REDACTED: &str = r#"{"type":"redacted_thinking","data":"ragmux-redacted:gemini:x"}"#;
    const CALL: &str = r#"{"type":"tool_use","id":"call_1","name":"f","input":{}}"#;
    const RESULT: &str = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"1"}]}"#;

    fn call_with(body: &str, outgoing: &Outgoing<'_>) -> (String, ChatCall) {
        let call = MessagesRequest::parse(body.as_bytes()).unwrap().call(outgoing);
        serde_json::from_slice::<serde_json::Value>(&call.body).unwrap();
        (String::from_utf8(call.body.to_vec()).unwrap(), call)
    }

    fn body(more: &str, messages: &str) -> String {
        format!(r#"{{"model":"real","max_tokens":4000,{more}"messages":[{messages}]}}"#)
    }

    fn said(blocks: &[&str]) -> String {
        let assistant = format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(" , "));
        body("", &[r#"{"role":"user","content":"q"}"#, &assistant, r#"{"role":"user","content":"on"}"#].join(", "))
    }

    #[test]
    fn thoughts_of_others_are_taken_out_and_all_else_is_the_clients_bytes() {
        for (blocks, left, dropped) in [
            (&[OWN, OWN_REDACTED, CALL][..], &[OWN, OWN_REDACTED, CALL][..], &[][..]),
            (&[GEMINIS, CALL], &[CALL], &["messages[].content[].thinking"]),
            (&[OWN, UNSIGNED, CALL], &[OWN, CALL], &["messages[].content[].thinking"]),
            (&[OWN, CALL, GEMINIS], &[OWN, CALL], &["messages[].content[].thinking"]),
            (
                &[UNSIGNED, REDACTED, OWN, GEMINIS, GEMINIS, CALL],
                &[OWN, CALL],
                &["messages[].content[].thinking", "messages[].content[].redacted_thinking"],
            ),
            (&[r#"{"type":"thinking","thinking":"x"}"#, CALL], &[CALL], &["messages[].content[].thinking"]),
        ] {
            let (sent, call) = call_with(&said(blocks), &PLAIN);
            assert_eq!(sent, said(left));
            assert_eq!(call.dropped, dropped);
            let request = said(blocks);
            let counted = MessagesRequest::parse_count(request.as_bytes()).unwrap().count_call(&PLAIN);
            assert_eq!(counted.body, said(left));
        }
    }

    #[test]
    fn what_others_passed_on_for_anthropic_loses_its_mark() {
        let marked = OWN.replace("Eq==", "ragmux-signed:anthropic:Eq==");
        let redacted = OWN_REDACTED.replace("Em==", "ragmux-redacted:anthropic:Em==");
        let (sent, call) = call_with(&said(&[&marked, &redacted, CALL]), &PLAIN);
        assert_eq!((sent, call.dropped.is_empty()), (said(&[OWN, OWN_REDACTED, CALL]), true));
    }

    #[test]
    fn a_message_of_nothing_else_goes() {
        let user = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        let (first, last) = (user("a"), user("b"));
        let foreign = format!(r#"{{"role":"assistant","content":[{GEMINIS},{UNSIGNED}]}}"#);
        let with = [&*first, &foreign, &foreign, &last].join(" , ");
        let (sent, call) = call_with(&body("", &with), &PLAIN);
        assert_eq!(sent, body("", &[&*first, &last].join(" , ")));
        assert_eq!(call.dropped, ["messages[].content[].thinking"]);
    }

    #[test]
    fn a_turn_of_tools_that_another_model_began_goes_on_without_thinking() {
        const THINKS: &str = r#""thinking":{"type":"enabled","budget_tokens":2000},"#;
        const ADAPTS: &str = r#""thinking":{"type":"adaptive"},"#;
        const OFF: &str = r#""thinking":{"type":"disabled"},"#;
        let user = r#"{"role":"user","content":"q"}"#;
        let asked = |thinking: &str, turns: &[&[&str]]| {
            let turn =
                |blocks: &&[&str]| format!(r#"{{"role":"assistant","content":[{}]}},{RESULT}"#, blocks.join(","));
            body(thinking, &format!("{user},{}", turns.iter().map(turn).collect::<Vec<_>>().join(",")))
        };
        let own_call = CALL.replace("call_1", "toolu_1");
        let own: &[&str] = &[OWN, &own_call];
        for (thinking, turns, sent_thinking, sent_turns) in [
            (THINKS, &[&[GEMINIS, CALL][..]][..], OFF, &[&[CALL][..]][..]),
            (THINKS, &[&[CALL]], OFF, &[&[CALL]]),
            (THINKS, &[&[GEMINIS, CALL], &[&own_call]], OFF, &[&[CALL], &[&own_call]]),
            (THINKS, &[own, &[GEMINIS, CALL]], THINKS, &[own, &[CALL]]),
            (THINKS, &[own], THINKS, &[own]),
            // What the API makes of its own model's turn it knows best.
            (THINKS, &[&[&own_call]], THINKS, &[&[&own_call]]),
            (ADAPTS, &[&[GEMINIS, CALL]], ADAPTS, &[&[CALL]]),
        ] {
            let (sent, call) = call_with(&asked(thinking, turns), &PLAIN);
            assert_eq!(sent, asked(sent_thinking, sent_turns));
            assert_eq!(call.dropped.contains(&"thinking".to_owned()), thinking != sent_thinking);
        }
        // A new question is a new turn.
        let next = format!(r#"{user},{{"role":"assistant","content":[{CALL}]}},{RESULT},{user}"#);
        assert_eq!(call_with(&body(THINKS, &next), &PLAIN).0, body(THINKS, &next));
        // A bound that leaves no room for the budget says nothing more of it.
        let bound =
            OutputBound { field: "max_tokens", tokens: 1500, family: tokens::Family::Estimated, prompt_tokens: 0 };
        let (sent, _) = call_with(&asked(THINKS, &[&[CALL]]), &Outgoing { output_bound: Some(bound), ..PLAIN });
        assert_eq!(sent, asked(OFF, &[&[CALL]]).replace("4000", "1500"));
    }
}
