//! Words as both demonstration models see them: folded, stemmed, with the empty ones known.

use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};
use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

static ENGLISH: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

/// English words that say nothing about a subject, sorted.
const EMPTY: [&str; 109] = [
    "a", "about", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "because", "been", "before",
    "between", "but", "by", "can", "could", "did", "do", "does", "each", "for", "from", "get", "had", "has", "have",
    "he", "her", "here", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "may", "me", "more", "most",
    "must", "my", "no", "nor", "not", "of", "off", "on", "one", "only", "or", "other", "our", "out", "over", "please",
    "shall", "she", "should", "so", "some", "such", "tell", "than", "that", "the", "their", "them", "then", "there",
    "these", "they", "this", "those", "through", "to", "too", "under", "until", "up", "upon", "us", "very", "was",
    "we", "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "would",
    "you", "your", "yours", "yourself",
];

/// A word of a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Word {
    /// The folded word: compatibility forms unified, lower case, without accents.
    pub(crate) folded: String,
    /// Its stem where it is English, else the folded word.
    pub(crate) stem: String,
    /// Whether it carries no subject of its own.
    pub(crate) empty: bool,
}

/// The words of a text in order. Scripts that put no spaces between words give pairs of neighbouring characters.
pub(crate) fn words(text: &str) -> Vec<Word> {
    let folded = fold(text);
    let mut words = Vec::new();
    let mut run: Vec<char> = Vec::new();
    let mut end = 0;
    for (at, word) in folded.unicode_word_indices() {
        if word.chars().all(is_unspaced) {
            if at != end {
                close(&mut run, &mut words);
            }
            run.extend(word.chars());
        } else {
            close(&mut run, &mut words);
            words.push(spaced(word));
        }
        end = at + word.len();
    }
    close(&mut run, &mut words);
    words
}

fn fold(text: &str) -> String {
    let lower = text.nfkc().flat_map(char::to_lowercase);
    // Accents of Latin, Greek and Cyrillic; the marks of other scripts are vowels and stay.
    lower.nfd().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).nfc().collect()
}

fn spaced(word: &str) -> Word {
    let stem = if word.chars().all(|c| c.is_ascii_alphabetic() || c == '\'') {
        ENGLISH.stem(word.strip_suffix("'s").unwrap_or(word)).into_owned()
    } else {
        word.to_owned()
    };
    Word { stem, empty: EMPTY.binary_search(&word).is_ok(), folded: word.to_owned() }
}

/// Han, kana, Hangul, Thai, Lao, Burmese, Khmer.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0xe00..=0xeff | 0x1000..=0x109f | 0x1100..=0x11ff | 0x1780..=0x17ff | 0x2e80..=0x2fdf | 0x3040..=0x318f
        | 0x31f0..=0x31ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xac00..=0xd7af | 0xf900..=0xfaff | 0x20000..=0x3ffff)
}

fn close(run: &mut Vec<char>, words: &mut Vec<Word>) {
    let pair = |pair: &[char]| {
        let text: String = pair.iter().collect();
        Word { folded: text.clone(), stem: text, empty: false }
    };
    match run.len() {
        0 => {}
        1 => words.push(pair(run)),
        _ => words.extend(run.windows(2).map(pair)),
    }
    run.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stems(text: &str) -> Vec<String> {
        words(text).into_iter().map(|word| word.stem).collect()
    }

    #[test]
    fn words_are_folded_and_stemmed() {
        assert_eq!(
            stems("The Boiler's valves, CLEANED weekly: 9.5 bar"),
            ["the", "boiler", "valv", "clean", "week", "9.5", "bar"]
        );
        assert_eq!(stems("Café ﬁlter Ёлка"), ["cafe", "filter", "елка"]);
    }

    #[test]
    fn scripts_without_spaces_give_pairs() {
        assert_eq!(stems("咖啡机 水"), ["咖啡", "啡机", "水"]);
        assert_eq!(stems("커피"), ["커피"]);
    }

    #[test]
    fn the_list_of_empty_words_is_sorted() {
        assert!(EMPTY.is_sorted());
        assert!(words("which").iter().all(|word| word.empty));
    }
}
