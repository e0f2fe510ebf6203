//! What a provider was told otherwise than its client says it, in the client's words again.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::hub::{Event, Part, Whole};

/// Puts back what was changed for a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retelling {
    /// The client's names of tools by those that the provider was given.
    names: HashMap<String, String>,
    /// What the model went on with, where its provider says that again first.
    prefix: Option<String>,
    /// So much of it has been said again, in bytes.
    said: usize,
}

impl Retelling {
    pub(crate) fn new(names: HashMap<String, String>, prefix: Option<String>) -> Self {
        Self { names, prefix, said: 0 }
    }

    /// The events as the client is told them.
    pub(crate) fn retell<'a>(&mut self, events: Vec<Event<'a>>) -> Vec<Event<'a>> {
        if self.names.is_empty() && self.prefix.is_none() {
            return events;
        }
        let mut told = Vec::with_capacity(events.len() + 1);
        for event in events {
            match event {
                Event::Text(piece) => told.extend(self.text(piece).map(Event::Text)),
                Event::ToolCall { index, id, name, signature } => {
                    told.extend(self.give_up().map(Event::Text));
                    let name = self.names.get(name.as_ref()).map_or(name, |own| Cow::Owned(own.clone()));
                    told.push(Event::ToolCall { index, id, name, signature });
                }
                Event::Finish(_) | Event::Refusal(_) => {
                    told.extend(self.give_up().map(Event::Text));
                    told.push(event);
                }
                event => told.push(event),
            }
        }
        told
    }

    /// The same for an answer that is whole.
    pub(crate) fn retell_whole(mut self, whole: &mut Whole) {
        if self.names.is_empty() && self.prefix.is_none() {
            return;
        }
        for part in &mut whole.parts {
            match part {
                Part::ToolCall { name, .. } => {
                    if let Some(own) = self.names.get(name.as_str()) {
                        name.clone_from(own);
                    }
                }
                Part::Text(text) => {
                    if let Some(prefix) = self.prefix.take()
                        && let Some(rest) = text.strip_prefix(prefix.as_str())
                    {
                        *text = rest.to_owned();
                    }
                }
                _ => {}
            }
        }
        whole.parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    }

    /// A piece of text without what of it the client has said itself.
    fn text<'a>(&mut self, piece: Cow<'a, str>) -> Option<Cow<'a, str>> {
        let Some(prefix) = &self.prefix else { return Some(piece) };
        let rest = prefix.get(self.said..).unwrap_or_default();
        if let Some(new) = piece.strip_prefix(rest) {
            let new = (!new.is_empty()).then(|| Cow::Owned(new.to_owned()));
            self.prefix = None;
            return new;
        }
        if rest.starts_with(piece.as_ref()) {
            self.said += piece.len();
            return None;
        }
        Some(self.give_up().map_or(piece.clone(), |held| Cow::Owned(held.into_owned() + &piece)))
    }

    /// What was held back, where it turns out to be no repetition.
    fn give_up<'a>(&mut self) -> Option<Cow<'a, str>> {
        let mut held = self.prefix.take()?;
        held.truncate(self.said);
        (!held.is_empty()).then_some(Cow::Owned(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Finish;

    fn told(prefix: &str, pieces: &[&'static str]) -> String {
        let mut retelling = Retelling::new(HashMap::new(), Some(prefix.to_owned()));
        let mut events: Vec<Event<'_>> = Vec::new();
        for piece in pieces {
            events.extend(retelling.retell(vec![Event::Text((*piece).into())]));
        }
        events.extend(retelling.retell(vec![Event::Finish(Finish::Stop)]));
        let text = |event: &Event<'_>| match event {
            Event::Text(text) => text.to_string(),
            _ => String::new(),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn what_the_client_said_itself_is_not_told_again_however_it_is_cut() {
        for (pieces, left) in [
            (&["{\"a\": 1}"][..], "\": 1}"),
            (&["{", "\"", "a\":", " 1}"], "\": 1}"),
            (&["{\"a", "\": 1}"], "\": 1}"),
            (&["{\"b\": 1}"], "{\"b\": 1}"),
            (&["{", "\"b\"", ": 1}"], "{\"b\": 1}"),
            (&["{", "\""], "{\""),
            (&[], ""),
        ] {
            assert_eq!(told("{\"a", pieces), left, "{pieces:?}");
            let mut whole = Whole::of(pieces.iter().map(|piece| Event::Text((*piece).into())));
            Retelling::new(HashMap::new(), Some("{\"a".to_owned())).retell_whole(&mut whole);
            let said = whole.parts.first().map_or("", |part| if let Part::Text(text) = part { text } else { "" });
            assert_eq!(said, left, "{pieces:?}");
        }
    }

    #[test]
    fn calls_have_the_clients_names() {
        let names = HashMap::from([("short".to_owned(), "long".to_owned())]);
        let call =
            |name: &'static str| Event::ToolCall { index: 0, id: "a".into(), name: name.into(), signature: None };
        let mut retelling = Retelling::new(names, None);
        assert_eq!(retelling.retell(vec![call("short"), call("other")]), [call("long"), call("other")]);
        let mut whole = Whole::of([call("short")]);
        retelling.retell_whole(&mut whole);
        assert_eq!(whole, Whole::of([call("long")]));
    }
}
