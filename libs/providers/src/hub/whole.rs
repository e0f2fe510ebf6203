//! An answer in one piece.

use super::event::{Event, Finish};
use crate::usage::Usage;

/// One part of an answer, in the order in which the model gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning { text: String, signature: Option<String> },
    RedactedReasoning(String),
    Text(String),
    Refusal(String),
    ToolCall { id: String, name: String, arguments: String, signature: Option<String> },
}

/// All of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Whole {
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) parts: Vec<Part>,
    pub(crate) usage: Option<Usage>,
    pub(crate) finish: Option<Finish>,
    /// The place in `parts` of each call, and its index in the stream.
    calls: Vec<(u64, usize)>,
    /// Whether the last thought has ended, although nothing else has come.
    has_thought: bool,
}

impl Whole {
    /// Puts the pieces of an answer together.
    pub(crate) fn of<'a>(events: impl IntoIterator<Item = Event<'a>>) -> Self {
        let mut whole = Self::default();
        for event in events {
            whole.add(event);
        }
        whole
    }

    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start { id, model } => {
                self.id = id.map(Into::into);
                self.model = model.map(Into::into);
            }
            Event::Reasoning(piece) => match self.thought() {
                Some((text, None)) => text.push_str(&piece),
                _ => self.parts.push(Part::Reasoning { text: piece.into_owned(), signature: None }),
            },
            Event::NextThought => self.has_thought = true,
            Event::ReasoningSignature(piece) => match self.thought() {
                Some((_, signature)) => signature.get_or_insert_default().push_str(&piece),
                None => {
                    let signature = Some(piece.into_owned());
                    self.parts.push(Part::Reasoning { text: String::new(), signature });
                }
            },
            Event::RedactedReasoning(data) => self.parts.push(Part::RedactedReasoning(data.into_owned())),
            Event::Text(piece) => match self.parts.last_mut() {
                Some(Part::Text(text)) => text.push_str(&piece),
                _ => self.parts.push(Part::Text(piece.into_owned())),
            },
            Event::Refusal(piece) => match self.parts.last_mut() {
                Some(Part::Refusal(text)) => text.push_str(&piece),
                _ => self.parts.push(Part::Refusal(piece.into_owned())),
            },
            Event::ToolCall { index, id, name, signature } => {
                self.calls.push((index, self.parts.len()));
                self.parts.push(Part::ToolCall {
                    id: id.into_owned(),
                    name: name.into_owned(),
                    arguments: String::new(),
                    signature: signature.map(Into::into),
                });
            }
            Event::Arguments { index, json } => {
                let at = self.calls.iter().rev().find(|(of, _)| *of == index).map(|(_, at)| *at);
                if let Some(Part::ToolCall { arguments, .. }) = at.and_then(|at| self.parts.get_mut(at)) {
                    arguments.push_str(&json);
                }
            }
            Event::Usage(usage) => self.usage = Some(usage),
            Event::Finish(finish) => self.finish = Some(finish),
        }
    }

    /// The thought that goes on with the next piece of one, and its signature.
    fn thought(&mut self) -> Option<(&mut String, &mut Option<String>)> {
        let has_ended = std::mem::take(&mut self.has_thought);
        match self.parts.last_mut() {
            Some(Part::Reasoning { text, signature }) if !has_ended => Some((text, signature)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_parts_and_calls_keep_theirs() {
        let call =
            |index, id: &'static str| Event::ToolCall { index, id: id.into(), name: "f".into(), signature: None };
        let arguments = |index, json: &'static str| Event::Arguments { index, json: json.into() };
        let whole = Whole::of([
            Event::Reasoning("th".into()),
            Event::Reasoning("ink".into()),
            Event::ReasoningSignature("si".into()),
            Event::ReasoningSignature("gn".into()),
            Event::Text("he".into()),
            Event::Text("re".into()),
            call(0, "a"),
            call(1, "b"),
            arguments(0, "{"),
            arguments(1, "[1"),
            arguments(0, "}"),
            arguments(1, "]"),
            Event::Finish(Finish::ToolCalls),
        ]);
        let made = |id: &str, arguments: &str| Part::ToolCall {
            id: id.to_owned(),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
            signature: None,
        };
        assert_eq!(
            whole.parts,
            [
                Part::Reasoning { text: "think".to_owned(), signature: Some("sign".to_owned()) },
                Part::Text("here".to_owned()),
                made("a", "{}"),
                made("b", "[1]"),
            ]
        );
        assert_eq!(whole.finish, Some(Finish::ToolCalls));
    }

    #[test]
    fn thoughts_that_are_told_apart_stay_apart() {
        let sign = |piece: &'static str| Event::ReasoningSignature(piece.into());
        let whole = Whole::of([
            Event::Reasoning("a".into()),
            Event::NextThought,
            Event::Reasoning("b".into()),
            sign("s1"),
            Event::NextThought,
            sign("s2"),
            Event::NextThought,
            Event::Text("said".into()),
            Event::NextThought,
            Event::Reasoning("c".into()),
            Event::Reasoning("d".into()),
        ]);
        let thought = |text: &str, signature: Option<&str>| Part::Reasoning {
            text: text.to_owned(),
            signature: signature.map(str::to_owned),
        };
        let said = Part::Text("said".to_owned());
        assert_eq!(
            whole.parts,
            [thought("a", None), thought("b", Some("s1")), thought("", Some("s2")), said, thought("cd", None)]
        );
    }
}
