//! An output bound that is kept here as well as at the provider: what streams by is counted, and the answer ends before
//! the event that would pass the bound.

use std::collections::BTreeMap;

use tokens::{Family, count};

use super::texts::{Part, Piece};
use crate::json::Members;

/// A bound of a call's output that has to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputBound {
    /// The field by which the provider bounds the output of one choice, reasoning included.
    pub field: &'static str,
    /// The most tokens of all choices together.
    pub tokens: u64,
    /// How tokens are counted here.
    pub family: Family,
    /// The prompt's tokens by our count, for the usage of an answer that is cut.
    pub prompt_tokens: u64,
}

/// Texts longer than this, in bytes, are counted for good up to a word's beginning, so that what is counted again with
/// every event stays short.
const SETTLED_FROM: usize = 512;

/// Texts without spaces are counted for good at this length, wherever it cuts them.
const SETTLED_ANYWHERE_FROM: usize = 4096;

/// Counts the output of all choices of a stream.
#[derive(Debug)]
pub(crate) struct Meter {
    bound: OutputBound,
    /// Tokens of texts that are not kept any more.
    settled: u64,
    tails: BTreeMap<(u64, Part), Tail>,
    /// The bytes of all tails. A token has at least one, so this bounds their tokens.
    tail_bytes: u64,
}

/// The end of one text.
#[derive(Debug, Default)]
struct Tail {
    text: String,
    tokens: Option<u64>,
}

impl Meter {
    pub(crate) fn new(bound: OutputBound) -> Self {
        Self { bound, settled: 0, tails: BTreeMap::new(), tail_bytes: 0 }
    }

    pub(crate) fn bound(&self) -> &OutputBound {
        &self.bound
    }

    /// Takes what an event adds if the output stays within the bound with it, else leaves all as it was.
    pub(super) fn take(&mut self, pieces: &[Piece<'_>]) -> bool {
        let texts = pieces.iter().flat_map(|piece| piece.texts.iter().map(|text| (piece.index, text)));
        self.take_texts(texts.map(|(index, text)| (index, text.part, text.text.as_ref())))
    }

    /// The same for texts: of which choice, of which part of it, and what.
    pub(crate) fn take_texts<'a>(&mut self, texts: impl IntoIterator<Item = (u64, Part, &'a str)>) -> bool {
        let mut before = Vec::new();
        for (index, part, text) in texts {
            let tail = self.tails.entry((index, part)).or_default();
            before.push(((index, part), tail.text.len()));
            tail.text.push_str(text);
            tail.tokens = None;
            self.tail_bytes += text.len() as u64;
        }
        let most = self.settled.saturating_add(self.tail_bytes);
        if most > self.bound.tokens && self.count() > self.bound.tokens {
            // Backwards, so that a text that was added to twice ends at the first of its lengths.
            for (key, length) in before.into_iter().rev() {
                let Some(tail) = self.tails.get_mut(&key) else { continue };
                self.tail_bytes -= (tail.text.len() - length) as u64;
                tail.text.truncate(length);
                tail.tokens = None;
            }
            return false;
        }
        for (key, _) in before {
            self.settle(key);
        }
        true
    }

    /// All tokens so far.
    pub(crate) fn tokens(&self) -> u64 {
        let of_tails =
            self.tails.values().map(|tail| tail.tokens.unwrap_or_else(|| count(self.bound.family, &tail.text) as u64));
        self.settled.saturating_add(of_tails.sum())
    }

    /// The same, where what was counted need not be counted again.
    fn count(&mut self) -> u64 {
        for Tail { text, tokens } in self.tails.values_mut() {
            tokens.get_or_insert_with(|| count(self.bound.family, text) as u64);
        }
        self.tokens()
    }

    /// Counts the front of a long tail for good.
    fn settle(&mut self, key: (u64, Part)) {
        let Some(tail) = self.tails.get_mut(&key) else { return };
        let length = tail.text.len();
        if length <= SETTLED_FROM {
            return;
        }
        // Vocabularies take a space together with the word after it.
        let end = match tail.text.rfind(' ') {
            Some(space) if space > 0 => space,
            _ if length > SETTLED_ANYWHERE_FROM => length,
            _ => return,
        };
        let front: String = tail.text.drain(..end).collect();
        tail.tokens = None;
        self.tail_bytes -= front.len() as u64;
        self.settled = self.settled.saturating_add(count(self.bound.family, &front) as u64);
    }
}

/// The place of a choice among the choices.
pub(super) fn index_of(choice: &Members<'_>) -> u64 {
    choice.present("index").and_then(|value| value.get().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use serde_json::value::RawValue;

    use super::super::texts::pieces;
    use super::*;

    fn meter(tokens: u64, family: Family) -> Meter {
        Meter::new(OutputBound { field: "max_tokens", tokens, family, prompt_tokens: 0 })
    }

    fn delta(index: u64, name: &str, text: &str) -> Box<RawValue> {
        let delta = serde_json::json!({ "index": index, "delta": { name: text } });
        RawValue::from_string(delta.to_string()).unwrap()
    }

    fn takes(meter: &mut Meter, events: &[Box<RawValue>]) -> usize {
        events.iter().take_while(|event| meter.take(&pieces(&[event]))).count()
    }

    #[test]
    fn the_event_over_the_bound_is_not_taken_and_leaves_no_trace() {
        let mut meter = meter(3, Family::O200k);
        let words = [delta(0, "content", "one"), delta(0, "content", " two"), delta(1, "reasoning", "three")];
        assert_eq!(takes(&mut meter, &words), 3);
        assert_eq!(meter.tokens(), 3);
        for beyond in ["content", "refusal", "reasoning", "reasoning_content"] {
            assert!(!meter.take(&pieces(&[&delta(0, beyond, "!")])), "{beyond}");
            assert_eq!(meter.tokens(), 3);
        }
        // Nothing is no output.
        assert!(meter.take(&pieces(&[&delta(2, "content", "")])));
    }

    #[test]
    fn a_word_in_pieces_counts_as_the_word() {
        let whole = "internationalisation of understanding ";
        let letters: Vec<_> = whole.chars().map(|c| delta(0, "content", &c.to_string())).collect();
        let mut meter = meter(count(Family::O200k, whole) as u64, Family::O200k);
        // The beginnings of words have more tokens than the words, but never more than the letters.
        assert!(takes(&mut meter, &letters) > letters.len() / 2);
        let mut meter = self::meter(letters.len() as u64, Family::O200k);
        assert_eq!(takes(&mut meter, &letters), letters.len());
        assert_eq!(meter.tokens(), count(Family::O200k, whole) as u64);
    }

    #[test]
    fn what_was_long_ago_is_not_kept() {
        let mut meter = meter(u64::MAX, Family::O200k);
        let long = "so many words ".repeat(2000);
        for piece in long.split_inclusive(' ') {
            assert!(meter.take(&pieces(&[&delta(0, "content", piece)])));
        }
        for _ in 0..5000 {
            assert!(meter.take(&pieces(&[&delta(1, "content", "\u{6708}")])));
        }
        assert!(meter.tail_bytes <= (SETTLED_FROM + SETTLED_ANYWHERE_FROM) as u64 + 16, "{}", meter.tail_bytes);
        let exact = count(Family::O200k, &long) + count(Family::O200k, &"\u{6708}".repeat(5000));
        let counted = usize::try_from(meter.tokens()).unwrap();
        assert!(counted.abs_diff(exact) <= exact / 100, "{counted} for {exact}");
    }

    #[test]
    fn tool_calls_count_by_name_and_arguments() {
        let call = r#"{"delta":{"tool_calls":[{"index":1,"function":{"name":"find","arguments":"{}"}}]}}"#;
        let call = RawValue::from_string(call.to_owned()).unwrap();
        let mut meter = meter(100, Family::O200k);
        assert!(meter.take(&pieces(&[&call])) && meter.take(&pieces(&[&call])));
        assert_eq!(meter.tokens() as usize, count(Family::O200k, "findfind") + count(Family::O200k, "{}{}"));
    }

    proptest! {
        #[test]
        fn no_order_of_events_gets_past_the_bound(
            events in proptest::collection::vec((0_u64..3, "content|refusal|reasoning", "[a-z \u{e9}\u{6708}]{0,12}"), 0..40),
            bound in 0_u64..60,
        ) {
            for family in [Family::Estimated, Family::O200k] {
                let mut meter = meter(bound, family);
                let mut texts: BTreeMap<(u64, &str), String> = BTreeMap::new();
                for (index, name, text) in &events {
                    if meter.take(&pieces(&[&delta(*index, name, text)])) {
                        texts.entry((*index, name)).or_default().push_str(text);
                    }
                }
                let counted: u64 = texts.values().map(|text| count(family, text) as u64).sum();
                prop_assert_eq!(meter.tokens(), counted);
                prop_assert!(counted <= bound);
            }
        }
    }
}
