//! How far the text of a page can be believed.
//!
//! Engines lose text without an error: glyphs that no table maps to a character, operators that were skipped, spaces
//! that were never drawn. The score is 1 for text without any such sign and falls towards 0.

use serde::{Deserialize, Serialize};

/// Below this a page is read by another engine as well.
pub(crate) const DOUBTFUL: f64 = 0.7;
/// Fewer letters say nothing about words and spaces.
const ENOUGH_LETTERS: f64 = 40.0;
/// Words are shorter, but for compounds and addresses.
const LONG_WORD: usize = 24;
/// Mean letters of a word, in scripts that have spaces.
const LETTERS_PER_WORD: (f64, f64) = (2.0, 15.0);
/// Share of words of one letter: so many are usual, and so many are only had from words that fell apart.
const SINGLE_LETTERS: (f64, f64) = (0.15, 0.5);
/// Share of spaces, runs counted once, in scripts that have them.
const SPACES: (f64, f64) = (0.08, 0.35);
/// A string that is shown has a character at least, some of them only spaces.
const CHARS_PER_OPERATOR: f64 = 0.5;

/// What an engine met on a page, besides text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Glyphs drawn, or characters if the engine does not tell.
    pub glyphs: u32,
    /// Those of them without a character that could be read.
    pub unmapped: u32,
    /// Text operators in the page's own content; 0 if the engine does not tell.
    pub operators: u32,
    /// Strings shown while the page was drawn; 0 if the engine does not tell.
    pub shown: u32,
    /// Whether the engine gave the page up half-way.
    pub failed: bool,
}

impl Tally {
    /// Counts the characters that an engine gave for glyphs.
    pub(crate) fn count(&mut self, text: &str) {
        let mut all = 0u32;
        for c in text.chars() {
            all += 1;
            self.unmapped = self.unmapped.saturating_add(u32::from(is_unmapped(c)));
        }
        // A glyph without a character is one that could not be mapped.
        self.unmapped = self.unmapped.saturating_add(u32::from(all == 0));
        self.glyphs = self.glyphs.saturating_add(all.max(1));
    }
}

/// Replacement characters, private use and control characters: none of them is anything a reader sees.
fn is_unmapped(c: char) -> bool {
    let private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..);
    private || c == '\u{fffd}' || (c.is_control() && !c.is_whitespace())
}

/// What the text itself shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sanity {
    /// From 0 to 1.
    pub(crate) score: f64,
    /// Letters and digits, and other signs for a tenth of one.
    pub(crate) letters: f64,
}

/// Scores the text of a page. A page with neither text nor a sign of any is sane.
pub(crate) fn judge(text: &str, tally: &Tally) -> Sanity {
    let shape = Shape::of(text);
    let glyphs = f64::from(tally.glyphs);
    let mapped = if glyphs > 0.0 { 1.0 - (3.0 * f64::from(tally.unmapped) / glyphs).min(1.0) } else { 1.0 };
    let operators = f64::from(tally.operators);
    let covered = if operators > 0.0 { (shape.visible / (operators * CHARS_PER_OPERATOR)).min(1.0) } else { 1.0 };
    let shown = if operators > 0.0 && tally.shown > 0 { (f64::from(tally.shown) / operators).min(1.0) } else { 1.0 };
    let failed = if tally.failed { 0.5 } else { 1.0 };
    let score = [mapped, covered, shown, failed, shape.words(), shape.spaced()].into_iter().fold(1.0, f64::min);
    Sanity { score, letters: shape.letters + 0.1 * (shape.visible - shape.letters) }
}

#[derive(Debug, Default)]
struct Shape {
    /// Characters that are not white space.
    visible: f64,
    /// Runs of white space.
    spaces: f64,
    letters: f64,
    /// Letters of scripts that part words by spaces.
    spaced_letters: f64,
    words: f64,
    /// Words of one letter.
    single: f64,
    /// Letters in words longer than any.
    long: f64,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut shape = Self::default();
        for part in text.split_whitespace() {
            shape.spaces += 1.0;
            let mut word = 0usize;
            for c in part.chars() {
                shape.visible += 1.0;
                shape.letters += if c.is_alphanumeric() { 1.0 } else { 0.0 };
                if c.is_alphabetic() && !is_unspaced(c) {
                    word += 1;
                } else if !matches!(c, '\'' | '\u{2019}' | '\u{300}'..='\u{36f}') {
                    shape.end_of_word(word);
                    word = 0;
                }
            }
            shape.end_of_word(word);
        }
        shape
    }

    fn end_of_word(&mut self, letters: usize) {
        if letters > 0 {
            let count = letters as f64;
            self.words += 1.0;
            self.single += if letters == 1 { 1.0 } else { 0.0 };
            self.spaced_letters += count;
            self.long += if letters > LONG_WORD { count } else { 0.0 };
        }
    }

    /// Whether there is enough text, mostly in scripts with spaces, to tell.
    fn tells(&self) -> bool {
        self.spaced_letters >= ENOUGH_LETTERS && self.spaced_letters > 0.5 * self.letters
    }

    fn words(&self) -> f64 {
        if !self.tells() {
            return 1.0;
        }
        let mean = self.spaced_letters / self.words.max(1.0);
        let (low, high) = LETTERS_PER_WORD;
        let length = if mean < low { (mean - 1.0).max(0.0) / (low - 1.0) } else { (high / mean).min(1.0) };
        let (usual, many) = SINGLE_LETTERS;
        let single = (self.single / self.words.max(1.0) - usual) / (many - usual);
        length.min(1.0 - single.clamp(0.0, 1.0)).min(1.0 - (3.0 * self.long / self.spaced_letters).min(1.0))
    }

    fn spaced(&self) -> f64 {
        if !self.tells() {
            return 1.0;
        }
        let share = self.spaces / (self.spaces + self.visible).max(1.0);
        let (low, high) = SPACES;
        if share < low { share / low } else { 1.0 - ((share - high) / (0.5 - high)).clamp(0.0, 1.0) }
    }
}

/// Scripts that do not part words by spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan. Korean has spaces.
fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{e00}'..='\u{eff}' | '\u{f00}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{2e80}'..='\u{31ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSE: &str = "The parser reads one page after the other, and each of them is scored by what can be seen.";

    fn score(text: &str) -> f64 {
        let mut tally = Tally::default();
        text.chars().for_each(|c| tally.count(&c.to_string()));
        judge(text, &tally).score
    }

    #[test]
    fn good_text_in_any_script_is_sane() {
        for text in [
            PROSE,
            "これは日本語の文章です。文字コードを推定します。これは日本語の文章です。文字コードを推定します。",
            "مرحبا بالعالم هذا نص عربي قصير يستخدم للاختبار فقط ولا شيء غير ذلك",
            &format!(
                "{} Donaudampfschifffahrtsgesellschaft",
                "ein Satz mit gar nicht so langen Worten und ".repeat(10)
            ),
            "1 234,50  2 345,60  17",
            "",
        ] {
            assert!(score(text) >= DOUBTFUL, "{} {text}", score(text));
        }
    }

    #[test]
    fn every_kind_of_loss_lowers_the_score() {
        assert!(score(&PROSE.replace(' ', "")) < DOUBTFUL, "no spaces");
        let apart: String = PROSE.chars().flat_map(|c| [c, ' ']).collect();
        assert!(score(&apart) < DOUBTFUL, "a space after each letter");
        let broken = "Tha n ks fo r rea din g this g u i de o n co l d ema il s a n d wh a t t o wri te in th em";
        assert!(score(broken) < DOUBTFUL, "words that fell apart");
        assert!(score(&PROSE.replace('e', "\u{fffd}")) < DOUBTFUL, "characters that are not known");
        assert!(score(&PROSE.replace('e', "\u{f065}")) < DOUBTFUL, "private use");
        let silent = Tally { glyphs: 900, unmapped: 900, ..Tally::default() };
        assert!(judge("", &silent).score < DOUBTFUL, "glyphs without characters");
        let skipped = Tally { operators: 100, shown: 10, ..Tally::default() };
        assert!(judge(PROSE, &skipped).score < DOUBTFUL, "operators that were skipped");
        let nothing = Tally { operators: 3, ..Tally::default() };
        assert!(judge("", &nothing).score < DOUBTFUL, "text operators and no text");
    }
}
