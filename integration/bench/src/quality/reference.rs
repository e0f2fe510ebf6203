//! BM25 as the textbooks have it, over everything in memory: what the product's lexical leg is compared with.
//!
//! It shares nothing with the product: words are runs of letters and digits in lower case without a plural's `s`, and
//! letters of scripts without spaces stand in overlapping pairs.

use std::collections::HashMap;

use super::collection::Document;

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// An index of all documents.
pub(crate) struct Bm25 {
    /// Documents by term, with how often.
    postings: HashMap<String, Vec<(usize, f64)>>,
    lengths: Vec<f64>,
    average: f64,
}

impl Bm25 {
    pub(crate) fn index(documents: &[Document]) -> Self {
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        let mut lengths = Vec::with_capacity(documents.len());
        for (place, document) in documents.iter().enumerate() {
            let terms = terms(&document.text);
            lengths.push(terms.len() as f64);
            let mut counted: HashMap<String, f64> = HashMap::new();
            for term in terms {
                *counted.entry(term).or_default() += 1.0;
            }
            for (term, frequency) in counted {
                postings.entry(term).or_default().push((place, frequency));
            }
        }
        let average = (lengths.iter().sum::<f64>() / lengths.len().max(1) as f64).max(1.0);
        Self { postings, lengths, average }
    }

    /// The best documents, best first, ties by place. A term counts as often as the query has it.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<usize> {
        let all = self.lengths.len() as f64;
        let mut scores: HashMap<usize, f64> = HashMap::new();
        for term in terms(query) {
            let Some(postings) = self.postings.get(&term) else { continue };
            let having = postings.len() as f64;
            let idf = (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
            for (place, frequency) in postings {
                let length = self.lengths.get(*place).copied().unwrap_or_default();
                let norm = K1 * (1.0 - B + B * length / self.average);
                *scores.entry(*place).or_default() += idf * frequency * (K1 + 1.0) / (frequency + norm);
            }
        }
        let mut ranked: Vec<(usize, f64)> = scores.into_iter().collect();
        ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.into_iter().take(limit).map(|(place, _)| place).collect()
    }
}

fn terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    for run in text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        let letters: Vec<char> = run.chars().collect();
        for part in letters.chunk_by(|a, b| is_dense(*a) == is_dense(*b)) {
            if part.first().is_some_and(|c| is_dense(*c)) && part.len() > 1 {
                terms.extend(part.windows(2).map(|pair| pair.iter().collect::<String>()));
            } else {
                terms.push(singular(part.iter().collect()));
            }
        }
    }
    terms
}

/// Without the ending of an English plural (Harman 1991, the S stemmer).
fn singular(word: String) -> String {
    let ends = |ending: &str| word.ends_with(ending);
    let cut = |by: usize| word.get(..word.len() - by).unwrap_or_default().to_owned();
    if word.len() < 4 {
        word
    } else if ends("ies") && !ends("eies") && !ends("aies") {
        cut(3) + "y"
    } else if ends("es") && !ends("aes") && !ends("ees") && !ends("oes") || ends("s") && !ends("us") && !ends("ss") {
        cut(1)
    } else {
        word
    }
}

/// Letters of scripts that put no spaces between words.
fn is_dense(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(texts: &[&str]) -> Vec<Document> {
        texts.iter().map(|text| Document { text: (*text).to_owned() }).collect()
    }

    #[test]
    fn rare_words_and_short_texts_come_first() {
        let long = format!("wing {}", "filler ".repeat(50));
        let index = Bm25::index(&documents(&["the flow", &long, "the wings", "the shock"]));
        assert_eq!(index.search("a wing in air", 10), [2, 1]);
        assert_eq!(index.search("nothing", 10), [0; 0]);
        assert_eq!(index.search("wing", 1), [2]);
    }

    #[test]
    fn words_are_cut_by_script() {
        assert_eq!(terms("Studies of classes, gas & API接口"), ["study", "of", "classe", "gas", "api", "接口"]);
        assert_eq!(terms("黑豹队"), ["黑豹", "豹队"]);
    }
}
