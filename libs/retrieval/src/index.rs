//! The lexical index of a batch of chunks, as the worker stores it.

use std::collections::BTreeMap;

use store::ingest::{NewPosting, NewSegment};

use crate::analyzer::{Language, term_frequencies};

/// Indexes consecutive chunks. Each is `(ordinal, text)`; headings belong to the text, so that a word of a heading finds
/// the passages below it. Without a language each chunk is read in its own.
#[must_use]
pub fn segment<'a>(chunks: impl IntoIterator<Item = (i32, &'a str)>, language: Option<&str>) -> NewSegment {
    let language = language.map(Language::from_code);
    let mut lengths = Vec::new();
    let mut postings: BTreeMap<String, NewPosting> = BTreeMap::new();
    for (ordinal, text) in chunks {
        let counted = term_frequencies(text, language.unwrap_or_else(|| Language::detect(text)));
        lengths.push(i32::try_from(counted.length).unwrap_or(i32::MAX));
        for (term, frequency) in counted.terms {
            let posting = postings.entry(term).or_insert_with_key(|term| NewPosting {
                term: term.clone(),
                ordinals: Vec::new(),
                frequencies: Vec::new(),
            });
            posting.ordinals.push(ordinal);
            posting.frequencies.push(i16::try_from(frequency).unwrap_or(i16::MAX));
        }
    }
    NewSegment { lengths, postings: postings.into_values().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_counts_terms_by_chunk() {
        let segment = segment([(7, "red red door"), (8, "red")], Some("en"));
        assert_eq!(segment.lengths, [3, 1]);
        let red = segment.postings.iter().find(|posting| posting.term == "red").unwrap();
        assert_eq!((red.ordinals.as_slice(), red.frequencies.as_slice()), ([7, 8].as_slice(), [2, 1].as_slice()));
        assert_eq!(segment.postings.len(), 2);
    }
}
