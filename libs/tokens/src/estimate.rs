//! An estimate for models whose vocabulary is not known.
//!
//! It walks the text the way vocabularies are applied: a text falls into runs (a word, up to three digits, some
//! punctuation, some white space), and a run becomes one token or, the longer and the rarer it is, several. The rates
//! per script in `script.rs` come from counting user-interface texts in 45 languages with `o200k_base`; the tests keep
//! the estimate within a band of the exact count, mostly above it.

use crate::script::{self, Kind};

/// An estimate of the number of tokens of `text`, meant to be rather above than below the truth.
///
/// Linear in the length of the text; never more than its bytes, which no byte-pair vocabulary exceeds.
pub fn estimate(text: &str) -> usize {
    let mut hundredths = 0_u64;
    let mut run = Run::default();
    let mut foreign = 0_u8;
    for c in text.chars() {
        let kind = Kind::of(c);
        if run.ends_before(c, kind) {
            hundredths += run.cost(Some(kind), foreign > 0);
            foreign = run.foreign_after(foreign);
            run = Run { kind: Some(kind), glued: run.kind == Some(Kind::Digit), ..Run::default() };
        }
        run.push(c);
    }
    hundredths += run.cost(None, foreign > 0);
    usize::try_from(hundredths.div_ceil(100)).unwrap_or(usize::MAX).min(text.len())
}

/// A stretch of characters of one kind.
#[derive(Default)]
struct Run {
    kind: Option<Kind>,
    chars: u64,
    /// Characters that differ from the one before them.
    changes: u64,
    capitals: u64,
    small: bool,
    marked: bool,
    /// Has a letter of Latin Extended, which few languages with much text on the web use.
    extended: bool,
    /// Whether a digit came right before.
    glued: bool,
    last: Option<char>,
}

impl Run {
    fn ends_before(&self, c: char, kind: Kind) -> bool {
        // A capital inside a word starts another one: camelCase.
        self.kind != Some(kind)
            || (kind == Kind::Latin && c.is_uppercase() && self.last.is_some_and(|last| !last.is_uppercase()))
    }

    fn push(&mut self, c: char) {
        self.chars += 1;
        self.changes += u64::from(self.last.is_some_and(|last| last != c));
        self.capitals += u64::from(c.is_uppercase());
        self.small |= c.is_lowercase();
        self.marked |= !c.is_ascii();
        self.extended |= c > '\u{ff}';
        self.last = Some(c);
    }

    /// For how many of the words after this run one expects the same, little known language.
    fn foreign_after(&self, before: u8) -> u8 {
        match self.kind {
            Some(Kind::Latin) if self.extended => 5,
            Some(Kind::Latin) => before.saturating_sub(1),
            _ => before,
        }
    }

    /// Hundredths of a token, knowing what comes after the run and what language its words are likely from.
    fn cost(&self, next: Option<Kind>, foreign: bool) -> u64 {
        let Some(kind) = self.kind else { return 0 };
        let rate = kind.rate();
        match kind {
            Kind::Latin if self.marked => script::LATIN_MARKED.cost(self.chars),
            Kind::Latin if self.glued || (self.capitals > 1 && self.small) => script::LATIN_NOISE.cost(self.chars),
            Kind::Latin if self.capitals > 1 => script::LATIN_CAPITALS.cost(self.chars),
            Kind::Latin if foreign => script::LATIN_FOREIGN.cost(self.chars),
            // A single space belongs to the word or sign after it.
            Kind::Space if self.last == Some(' ') && next.is_some_and(|kind| kind != Kind::Digit) => {
                if self.chars == 1 { 0 } else { rate.cost(self.chars - 1) + 100 * self.changes.saturating_sub(1) }
            }
            Kind::Space => rate.cost(self.chars) + 100 * self.changes,
            // A line drawn with one sign is cheap, a mixture is not.
            Kind::Ascii | Kind::Symbol | Kind::Other => {
                let repeats = self.chars - 1 - self.changes;
                rate.cost(1 + self.changes) + 10 * repeats
            }
            _ => rate.cost(self.chars),
        }
    }
}
