//! From text to terms, for the index and for queries alike.
//!
//! Text is folded (NFKC, lower case) and cut into words by the rules of Unicode. Words are stemmed in their language.
//! Scripts written without spaces are cut into overlapping pairs of characters. What looks like an identifier
//! (`ABC-123`, `foo_bar`, `10.0.4`) is kept whole as well. No word is left out: a word that is everywhere weighs next
//! to nothing by its frequency.

mod language;
mod query;
mod segment;

use std::collections::BTreeMap;

use unicode_normalization::UnicodeNormalization;

pub use language::Language;
pub use query::Query;

/// The longest term in bytes; longer words are cut.
pub const MAX_TERM_BYTES: usize = 64;

/// A term and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The text, at most [`MAX_TERM_BYTES`] and never empty.
    pub text: String,
    /// The number of the word it comes from; an identifier kept whole stands where its first part does.
    pub position: u32,
}

/// How often each term occurs in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TermFrequencies {
    /// Terms and their numbers, capped at what a `smallint` holds.
    pub terms: BTreeMap<String, u16>,
    /// All terms, repetitions included.
    pub length: u32,
}

/// The terms of a text, in order.
#[must_use]
pub fn analyze(text: &str, language: Language) -> Vec<Term> {
    let folded = fold(text);
    segment::terms(&folded, language)
}

/// The terms of a text, counted.
#[must_use]
pub fn term_frequencies(text: &str, language: Language) -> TermFrequencies {
    let mut all = TermFrequencies::default();
    for term in analyze(text, language) {
        let count = all.terms.entry(term.text).or_default();
        *count = count.saturating_add(1).min(i16::MAX.unsigned_abs());
        all.length = all.length.saturating_add(1);
    }
    all
}

/// NFKC and lower case, without what only controls line breaks, and with one kind of apostrophe and of hyphen.
fn fold(text: &str) -> String {
    text.nfkc()
        .filter(|c| !matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}'))
        .map(|c| match c {
            '\u{2018}' | '\u{2019}' | '\u{2bc}' => '\'',
            '\u{2010}' | '\u{2011}' => '-',
            other => other,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn terms(text: &str, language: Language) -> Vec<String> {
        analyze(text, language).into_iter().map(|t| t.text).collect()
    }

    fn english(text: &str) -> Vec<String> {
        terms(text, Language::ENGLISH)
    }

    #[test]
    fn words_are_folded_and_stemmed() {
        assert_eq!(english("The RUNNING shoes' prices"), ["the", "run", "shoe", "price"]);
        assert_eq!(english("oﬃce’s"), english("office's"));
        assert_eq!(terms("Häuser", Language::from_code("de")), terms("Haus", Language::from_code("de")));
        assert_eq!(terms("running", Language::NONE), ["running"]);
    }

    #[test]
    fn identifiers_are_kept_whole_as_well() {
        assert_eq!(english("see ABC-123."), ["see", "abc-123", "abc", "123"]);
        assert_eq!(english("call foo_bar()"), ["call", "foo_bar", "foo", "bar"]);
        assert_eq!(english("host 10.0.4, port"), ["host", "10.0.4", "port"]);
        assert_eq!(english("a high-speed train"), ["a", "high", "speed", "train"]);
        assert_eq!(english("std::vec/Vec"), ["std::vec/vec", "std", "vec", "vec"]);
        assert_eq!(english("mail me@example.com!"), ["mail", "me@example.com", "me", "exampl", "com"]);
        assert_eq!(english("error E0308"), ["error", "e0308"]);
        assert_eq!(english("C++ or F#, 1,000 times"), ["c++", "c", "or", "f#", "f", "1,000", "time"]);
    }

    #[test]
    fn scripts_without_spaces_become_pairs() {
        assert_eq!(english("黑豹队的"), ["黑豹", "豹队", "队的"]);
        assert_eq!(english("猫"), ["猫"]);
        assert_eq!(english("使用 API 接口"), ["使用", "api", "接口"]);
        assert_eq!(english("iPhone15の発売"), ["iphone15", "の発", "発売"]);
        assert_eq!(english("서울에서 부산"), ["서울", "울에", "에서", "부산"]);
        assert!(english("สวัสดี").len() > 2);
        assert_eq!(english("ＡＢＣ　ﾃｽﾄ"), ["abc", "テス", "スト"]);
    }

    #[test]
    fn elided_articles_are_cut_off() {
        let french = Language::from_code("fr");
        assert_eq!(terms("l'avion", french), terms("avion", french));
        assert_eq!(terms("aujourd'hui", french).len(), 1);
    }

    #[test]
    fn positions_count_words() {
        let all = analyze("see ABC-123 now", Language::NONE);
        let places: Vec<(&str, u32)> = all.iter().map(|t| (t.text.as_str(), t.position)).collect();
        assert_eq!(places, [("see", 0), ("abc-123", 1), ("abc", 1), ("123", 2), ("now", 3)]);
    }

    #[test]
    fn counting_is_capped() {
        let counted = term_frequencies(&"x ".repeat(40_000), Language::NONE);
        assert_eq!(counted.terms["x"], 32_767);
        assert_eq!(counted.length, 40_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_gives_bounded_terms_and_the_same_ones_again(text in "\\PC{0,200}", code in "(en|de|fr|tr|ar|zh)") {
            let language = Language::from_code(&code);
            let all = analyze(&text, language);
            prop_assert_eq!(&all, &analyze(&text, language));
            let mut last = 0;
            for term in &all {
                prop_assert!(!term.text.is_empty() && term.text.len() <= MAX_TERM_BYTES);
                prop_assert!(!term.text.contains(char::is_whitespace) && !term.text.contains('\0'));
                prop_assert!(term.position >= last);
                last = term.position;
            }
            let counted = term_frequencies(&text, language);
            prop_assert_eq!(counted.length as usize, all.len());
        }

        #[test]
        fn a_query_finds_the_text_it_is_taken_from(text in "[a-zA-Zäöüß0-9一-龥ก-ฮ _.-]{1,80}") {
            for language in [Language::ENGLISH, Language::from_code("de"), Language::NONE] {
                // A minus before a word is for the query's own syntax.
                let plain: Vec<&str> = text.split_whitespace().map(|w| w.trim_start_matches('-')).collect();
                let plain = plain.join(" ");
                let indexed = term_frequencies(&plain, language);
                let query = Query::parse(&plain, &[language]);
                for term in &query.terms {
                    prop_assert!(indexed.terms.contains_key(term), "{} not in {:?}", term, indexed);
                }
                prop_assert_eq!(query.terms.len(), indexed.terms.len());
            }
        }

        #[test]
        fn case_and_composition_do_not_matter(text in "[a-zäöüéà ]{0,60}") {
            let decomposed: String = text.nfd().collect();
            prop_assert_eq!(analyze(&text, Language::ENGLISH), analyze(&decomposed, Language::ENGLISH));
            let upper = text.replace('ß', "").to_uppercase();
            prop_assert_eq!(analyze(&text.replace('ß', ""), Language::ENGLISH), analyze(&upper, Language::ENGLISH));
        }
    }
}
