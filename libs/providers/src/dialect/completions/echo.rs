//! Answers that begin with their prompt, which the model has not written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::request::{CompletionRequest, Prompt};
use crate::dialect::openai::{Delivered, Piece, TextPart};

/// Prompts longer than this together, in bytes, are not kept to be recognised.
const MOST_BYTES: usize = 1024 * 1024;

/// What the answers to a request repeat of it, and how many are written for each that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeats {
    /// The prompts, each for as many answers as follow each other; none where none is repeated, or not as it was sent.
    prompts: Vec<String>,
    answers_each: u64,
    unseen: u64,
    is_known: bool,
}

impl Repeats {
    pub(super) fn of(request: &CompletionRequest<'_>) -> Self {
        let text = |prompt: &Prompt<'_>| match prompt {
            Prompt::Text(text) => Some(text.as_ref().to_owned()),
            Prompt::Tokens(_) => None,
        };
        let bytes = |prompt: &Prompt<'_>| match prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(_) => 0,
        };
        let prompts = match request.echo {
            false => Some(Vec::new()),
            true if request.prompts.iter().map(bytes).sum::<usize>() > MOST_BYTES => None,
            true => request.prompts.iter().map(text).collect(),
        };
        Self {
            is_known: prompts.is_some(),
            prompts: prompts.unwrap_or_default(),
            answers_each: request.n.max(1),
            unseen: request.best_of.div_ceil(request.n.max(1)).saturating_sub(1),
        }
    }

    /// Whether all that is repeated can be told from what the model writes.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// What is repeated in the answer of that place (API reference: the answers to one prompt follow each other).
    fn at(&self, index: u64) -> Option<&str> {
        let prompt = usize::try_from(index / self.answers_each).ok()?;
        self.prompts.get(prompt).map(String::as_str)
    }
}

/// Takes the prompts off the front of answers, as far as they are there.
#[derive(Clone, Debug)]
pub(crate) struct Echoed {
    repeats: Arc<Repeats>,
    /// How much of its prompt each answer has had; more than there is where something else came.
    had: BTreeMap<u64, usize>,
}

impl Echoed {
    pub(crate) fn new(repeats: Arc<Repeats>) -> Self {
        Self { repeats, had: BTreeMap::new() }
    }

    /// Where what the answers say is to be kept.
    pub(crate) fn delivered(&self) -> Delivered {
        Delivered::each_of(self.repeats.unseen)
    }

    /// Leaves what the model has written.
    pub(crate) fn strip(&mut self, piece: &mut Piece<'_>) {
        let Some(prompt) = self.repeats.at(piece.index) else { return };
        let had = self.had.entry(piece.index).or_default();
        for text in piece.texts.iter_mut().filter(|text| text.part == TextPart::Content) {
            let due = prompt.get(*had..).unwrap_or_default();
            let same = common(due, &text.text);
            *had = if same < due.len().min(text.text.len()) { usize::MAX } else { had.saturating_add(same) };
            match &mut text.text {
                Cow::Borrowed(text) => *text = text.get(same..).unwrap_or_default(),
                Cow::Owned(text) => drop(text.drain(..same)),
            }
        }
    }
}

/// The length of the beginning that two texts share, in bytes.
fn common(one: &str, other: &str) -> usize {
    let same = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    one.floor_char_boundary(same)
}
