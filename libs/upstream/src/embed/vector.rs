//! Feature hashing: a text becomes a vector without any model.
//!
//! Words, parts of words and pairs of characters are hashed to a dimension and a sign, so that texts that share them
//! point the same way. Nothing is learnt and nothing is downloaded; two processes agree on every bit.

use std::collections::BTreeMap;

use crate::words::{Word, words};

/// Dimensions of `demo-embed` unless the request asks for others.
pub(crate) const DIMENSIONS: usize = 384;

/// What a word that says nothing weighs beside one that does.
const EMPTY_WEIGHT: f32 = 0.05;

/// What all parts of a word weigh together: enough to find `descaling` by `descaler` or by a misspelling.
const PARTS_WEIGHT: f32 = 0.45;

/// The vector of a text, of length one.
pub(crate) fn vector(text: &str, dimensions: usize) -> Vec<f32> {
    let mut features = Features::default();
    for word in words(text) {
        features.add_word(&word);
    }
    if features.0.is_empty() {
        // Signs only, or nothing: still a direction of its own.
        features.add("text", text.trim(), 1.0);
    }
    features.into_vector(dimensions)
}

/// Weight and how often, by hash. Ordered, because the sums of floats depend on the order.
#[derive(Default)]
struct Features(BTreeMap<u64, (f32, f32)>);

impl Features {
    fn add(&mut self, kind: &str, feature: &str, weight: f32) {
        let entry = self.0.entry(hash(kind, feature)).or_insert((weight, 0.0));
        entry.1 += 1.0;
    }

    fn add_word(&mut self, word: &Word) {
        if word.empty {
            self.add("word", &word.stem, EMPTY_WEIGHT);
            return;
        }
        let chars: Vec<char> = word.stem.chars().collect();
        // Long words and numbers are about something, and a mixture of both names one thing.
        let numeric = word.stem.contains(|c: char| c.is_numeric());
        let weight = match (numeric, word.stem.contains(|c: char| c.is_alphabetic())) {
            (true, true) => 2.5,
            (true, false) => 1.2,
            (false, _) => 0.8 + 0.05 * chars.len().min(8) as f32,
        };
        self.add("word", &word.stem, weight);
        if chars.len() < 4 {
            return;
        }
        let framed: Vec<char> = std::iter::once('^').chain(chars).chain(['$']).collect();
        let parts = framed.windows(4);
        let each = weight * PARTS_WEIGHT / (parts.len() as f32).sqrt();
        for part in parts {
            self.add("part", &part.iter().collect::<String>(), each);
        }
    }

    fn into_vector(self, dimensions: usize) -> Vec<f32> {
        let mut vector = vec![0.0_f32; dimensions];
        let count = dimensions.max(1) as u64;
        for (hash, (weight, times)) in self.0 {
            // A word said ten times is not ten times the subject.
            let value = weight * (1.0 + times.ln());
            let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
            if let Some(slot) = usize::try_from(hash % count).ok().and_then(|at| vector.get_mut(at)) {
                *slot += sign * value;
            }
        }
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        if norm > 0.0 {
            vector.iter_mut().for_each(|x| *x /= norm);
        } else if let Some(first) = vector.first_mut() {
            // Features that cancel out exactly.
            *first = 1.0;
        }
        vector
    }
}

/// How alike two vectors of length one are, −1 to 1.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// FNV-1a with the finish of SplitMix64, because the low bits choose the dimension and the highest the sign.
fn hash(kind: &str, feature: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in kind.bytes().chain([0]).chain(feature.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alike(a: &str, b: &str) -> f32 {
        cosine(&vector(a, DIMENSIONS), &vector(b, DIMENSIONS))
    }

    #[test]
    fn texts_about_the_same_are_closer() {
        let question = "How often must the boiler be descaled?";
        let answer = "Descale the boiler every two hundred hours, more often with hard water.";
        let other = "The warranty covers parts and labour for three years from delivery.";
        assert!(alike(question, answer) > alike(question, other) + 0.1);
    }

    #[test]
    fn misspelt_and_inflected_words_still_match() {
        assert!(alike("thermostat", "thermostats") > 0.9);
        assert!(alike("thermostat replacement", "thermosstat replacment") > 0.3);
        assert!(alike("咖啡机的水箱", "水箱在咖啡机后面") > 0.2);
    }

    proptest! {
        #[test]
        fn every_text_has_a_vector_of_length_one(text in any::<String>(), dimensions in 1_usize..2000) {
            let vector = vector(&text, dimensions);
            prop_assert_eq!(vector.len(), dimensions);
            prop_assert!((cosine(&vector, &vector) - 1.0).abs() < 1e-3);
        }
    }
}
