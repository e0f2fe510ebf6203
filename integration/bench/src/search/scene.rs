//! Stores full of generated vectors, written the way a worker writes them.

use std::collections::BTreeMap;

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use store::Store;
use store::ingest::{NewPosting, NewSegment};
use testkit::{StoreId, TestDatabase, work};

/// Dimensions, as a small model has them.
pub(crate) const WIDTH: i32 = 384;
/// Vectors of one cluster, on average.
const OF_A_CLUSTER: usize = 200;
/// Words that texts are made of, and how many a text has.
const WORDS: usize = 20_000;
const WORDS_OF_A_TEXT: usize = 60;
/// Chunks of a document, which is one batch.
pub(crate) const OF_A_DOCUMENT: usize = 100;

/// The same vectors and texts on every machine.
pub(crate) struct Generator {
    random: StdRng,
    centres: Vec<Vec<f32>>,
}

impl Generator {
    /// For about so many vectors.
    pub(crate) fn new(seed: u64, vectors: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let clusters = vectors.div_ceil(OF_A_CLUSTER).max(8);
        let centres = (0..clusters).map(|_| normal(&mut random, 1.0)).collect();
        Self { random, centres }
    }

    /// A vector of unit length near one of the centres, as those of texts about one subject are.
    pub(crate) fn vector(&mut self) -> Vec<f32> {
        let centre = self.random.random_range(0..self.centres.len());
        let noise = normal(&mut self.random, 0.7);
        let centre = self.centres.get(centre).into_iter().flatten();
        let sum: Vec<f32> = centre.zip(noise).map(|(centre, noise)| centre + noise).collect();
        let length = sum.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        sum.into_iter().map(|x| x / length).collect()
    }

    /// So many words; few of them are frequent, as in any language.
    pub(crate) fn words(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                let rank = (WORDS as f64).powf(self.random.random_range(0.0..1.0)) as usize;
                word(rank)
            })
            .collect()
    }
}

/// A word that no stemmer shortens.
fn word(number: usize) -> String {
    const CONSONANTS: [char; 8] = ['b', 'k', 'm', 'p', 'g', 'f', 'v', 'z'];
    const VOWELS: [char; 4] = ['a', 'o', 'u', 'i'];
    let letter = |of: &[char], at: usize| of.get(at % of.len()).copied().unwrap_or('a');
    let mut rest = number;
    let mut text = String::new();
    for _ in 0..3 {
        text.push(letter(&CONSONANTS, rest));
        rest /= CONSONANTS.len();
        text.push(letter(&VOWELS, rest));
        rest /= VOWELS.len();
    }
    text.push('k');
    text
}

/// Normally distributed components, by the sum of twelve uniform ones.
fn normal(random: &mut StdRng, deviation: f32) -> Vec<f32> {
    let component = |_| ((0..12).map(|_| random.random_range(0.0..1.0_f32)).sum::<f32>() - 6.0) * deviation;
    (0..WIDTH).map(component).collect()
}

/// What a store was filled with.
pub(crate) struct Filled {
    pub(crate) store: StoreId,
    /// All vectors in the order of their chunks' ids.
    pub(crate) vectors: Vec<Vec<f32>>,
}

/// Fills a store with documents of [`OF_A_DOCUMENT`] chunks each. The metadata of a document says its number of a hundred:
/// `{"hundredth": n}`.
pub(crate) async fn fill(
    database: &TestDatabase,
    backend: &Store,
    (store, chunks): (StoreId, usize),
    generator: &mut Generator,
) -> anyhow::Result<Filled> {
    let mut vectors = Vec::with_capacity(chunks);
    for number in 0..chunks.div_ceil(OF_A_DOCUMENT) {
        let document = database.insert_document(store, "generated.txt").await?;
        database.set_metadata(document, &json!({ "hundredth": number % 100 })).await?;
        let request = work::claim_request("bench/1/00000000", StoreId(0), 1);
        let claim = backend.claim_documents(&request).await?.documents.pop().context("nothing waits")?;
        let mut rows = Vec::with_capacity(OF_A_DOCUMENT);
        let (mut lengths, mut postings) = (Vec::new(), BTreeMap::new());
        for ordinal in 0..i32::try_from(OF_A_DOCUMENT.min(chunks - vectors.len()))? {
            let (embedding, words) = (generator.vector(), generator.words(WORDS_OF_A_TEXT));
            vectors.push(embedding.clone());
            index(&mut lengths, &mut postings, ordinal, &words);
            rows.push(work::plain_chunk(ordinal, &words.join(" "), embedding));
        }
        let segment = NewSegment { lengths, postings: postings.into_values().collect() };
        work::complete(backend, claim.key, &rows, &segment).await?;
    }
    Ok(Filled { store, vectors })
}

/// Adds a chunk's words to those of its batch.
fn index(lengths: &mut Vec<i32>, postings: &mut BTreeMap<String, NewPosting>, ordinal: i32, words: &[String]) {
    lengths.push(i32::try_from(words.len()).unwrap_or(i32::MAX));
    let mut counted = BTreeMap::<&String, i16>::new();
    for word in words {
        *counted.entry(word).or_default() += 1;
    }
    for (word, count) in counted {
        let posting = postings.entry(word.clone()).or_insert_with(|| NewPosting {
            term: word.clone(),
            ordinals: Vec::new(),
            frequencies: Vec::new(),
        });
        posting.ordinals.push(ordinal);
        posting.frequencies.push(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_unit_vectors_and_texts() {
        let (mut one, mut other) = (Generator::new(7, 1000), Generator::new(7, 1000));
        for _ in 0..20 {
            let vector = one.vector();
            assert_eq!(vector, other.vector());
            assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
            assert_eq!(one.words(9), other.words(9));
        }
        assert_ne!(one.vector(), one.vector());
        let words: std::collections::HashSet<String> = (0..16_384).map(word).collect();
        assert_eq!(words.len(), 16_384);
    }
}
