//! Cutting folded text.

use rust_stemmers::Stemmer;
use unicode_segmentation::UnicodeSegmentation;

use super::{Language, MAX_TERM_BYTES, Term};

/// Characters that hold the parts of an identifier together. A hyphen and a full stop do so only in company: they are
/// punctuation between words as well.
const JOINERS: &[char] = &['_', '@', '/', '\\', ':', '#', '=', '+', '~', '&', '$', '%'];

pub(super) fn terms(folded: &str, language: Language) -> Vec<Term> {
    let mut cutter = Cutter { stemmer: language.stemmer(), elides: language.elides(), terms: Vec::new(), position: 0 };
    for run in folded.split_whitespace() {
        cutter.run(run);
    }
    cutter.terms
}

struct Cutter {
    stemmer: Option<Stemmer>,
    elides: bool,
    terms: Vec<Term>,
    position: u32,
}

impl Cutter {
    /// A run without white space.
    fn run(&mut self, run: &str) {
        let mut rest = run;
        while let Some(first) = rest.chars().next() {
            let dense = is_dense(first);
            let end = rest.find(|c| is_dense(c) != dense).unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            if dense {
                self.pairs(part);
            } else {
                self.spaced(part);
            }
            rest = after;
        }
    }

    /// Scripts without spaces: overlapping pairs, or the character if it stands alone.
    fn pairs(&mut self, run: &str) {
        let letters: Vec<char> = run.chars().collect();
        if let [only] = letters.as_slice() {
            self.push(&only.to_string());
        }
        for pair in letters.windows(2) {
            self.push(&pair.iter().collect::<String>());
        }
    }

    /// Scripts with spaces.
    fn spaced(&mut self, run: &str) {
        let run = without_punctuation(run);
        let parts: Vec<&str> = run.unicode_words().flat_map(parts_of).filter(|p| !p.is_empty()).collect();
        if parts.is_empty() || parts == [run] {
            return self.word(run);
        }
        if run.len() <= MAX_TERM_BYTES && is_identifier(run, parts.len()) {
            self.terms.push(Term { text: run.to_owned(), position: self.position });
        }
        for part in parts {
            self.word(part);
        }
    }

    fn word(&mut self, word: &str) {
        let word = if self.elides { without_article(word) } else { word };
        match &self.stemmer {
            Some(stemmer) if !word.contains(|c: char| c.is_numeric()) && word.len() <= MAX_TERM_BYTES => {
                let stem = stemmer.stem(word).into_owned();
                // A stemmer may leave nothing of a word that is only a suffix.
                self.push(if stem.is_empty() { word } else { &stem });
            }
            _ => self.push(word),
        }
    }

    fn push(&mut self, text: &str) {
        let text = text.get(..text.floor_char_boundary(MAX_TERM_BYTES)).unwrap_or_default();
        if !text.is_empty() {
            self.terms.push(Term { text: text.to_owned(), position: self.position });
            self.position += 1;
        }
    }
}

/// Punctuation around a word, but for what names a programming language (`c++`, `f#`).
fn without_punctuation(run: &str) -> &str {
    let run = run.trim_start_matches(|c: char| !c.is_alphanumeric());
    let word = run.trim_end_matches(|c: char| !c.is_alphanumeric());
    let after = run.get(word.len()..).unwrap_or_default();
    let sign = after.chars().take(2).take_while(|c| matches!(c, '+' | '#')).count();
    if word.is_empty() { word } else { run.get(..word.len() + sign).unwrap_or(word) }
}

/// The words within a word of Unicode, which keeps `foo_bar` and `example.com` together. Numbers stay whole.
fn parts_of(word: &str) -> impl Iterator<Item = &str> {
    let number = !word.contains(char::is_alphabetic);
    word.split(move |c: char| !number && !c.is_alphanumeric() && c != '\'' && !is_mark(c))
}

/// Combining marks, which belong to the letter before them.
fn is_mark(c: char) -> bool {
    unicode_normalization::char::is_combining_mark(c)
}

/// Several parts that belong together: held by a joiner, by a full stop, or by anything around a digit.
fn is_identifier(run: &str, parts: usize) -> bool {
    let joined = run.contains(|c: char| !c.is_alphanumeric() && c != '\'' && !is_mark(c));
    let digit = run.contains(|c: char| c.is_numeric());
    let sign = run.ends_with(['+', '#']);
    joined && (digit || sign || (parts > 1 && run.contains(JOINERS)) || (run.contains('.') && !run.contains("..")))
}

/// `l'avion` is a plane; `aujourd'hui` is one word.
fn without_article(word: &str) -> &str {
    match word.split_once('\'') {
        Some((article, noun)) if article.chars().count() <= 2 && !noun.is_empty() => noun,
        _ => word,
    }
}

/// Letters of scripts that do not put spaces between words: Han, Kana, Bopomofo, Hangul, Thai, Lao, Myanmar, Khmer.
fn is_dense(c: char) -> bool {
    matches!(c,
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1100}'..='\u{11ff}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30fa}'
        | '\u{30fc}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}
