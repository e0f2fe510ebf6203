//! The lexical leg on public judged collections: how good it is, not how fast.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of a test fail it by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use ragmux_retrieval::analyzer::{Language, Query, term_frequencies};
use ragmux_retrieval::bm25::{Corpus, Posting, Segment, top_k};

/// The folder of collections, if this machine has it.
fn collections() -> Option<PathBuf> {
    let root = std::env::var_os("RAGMUX_CORPUS_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")), PathBuf::from);
    if root.join("ir").is_dir() {
        return Some(root.join("ir"));
    }
    eprintln!("NOT RUN: no judged collections in RAGMUX_CORPUS_DIR or ../shared/data");
    None
}

struct Index {
    /// Names of the documents, by ordinal.
    names: Vec<String>,
    lengths: Vec<i32>,
    postings: BTreeMap<String, (Vec<i32>, Vec<i16>)>,
}

fn lines(path: PathBuf) -> Vec<serde_json::Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn index(path: PathBuf, language: Language) -> Index {
    let mut index = Index { names: Vec::new(), lengths: Vec::new(), postings: BTreeMap::new() };
    for (ordinal, document) in (0i32..).zip(lines(path)) {
        let text = format!("{} {}", document["title"].as_str().unwrap(), document["text"].as_str().unwrap());
        let counted = term_frequencies(&text, language);
        index.names.push(document["_id"].as_str().unwrap().to_owned());
        index.lengths.push(counted.length.try_into().unwrap());
        for (term, frequency) in counted.terms {
            let (ordinals, frequencies) = index.postings.entry(term).or_default();
            ordinals.push(ordinal);
            frequencies.push(frequency.try_into().unwrap());
        }
    }
    index
}

fn search<'i>(index: &'i Index, query: &str, language: Language) -> Vec<&'i str> {
    let query = Query::parse(query, &[language]);
    let terms: Vec<Vec<Posting<'_>>> = query
        .terms
        .iter()
        .filter_map(|term| index.postings.get(term))
        .map(|(ordinals, frequencies)| vec![Posting { segment: 1, ordinals, frequencies }])
        .collect();
    let corpus = Corpus {
        chunks: index.names.len() as u64,
        terms: index.lengths.iter().map(|l| u64::from(l.unsigned_abs())).sum(),
    };
    let segments = [Segment { id: 1, first_ordinal: 0, lengths: &index.lengths }];
    let hits = top_k(corpus, &terms, &segments, 10);
    hits.into_iter().map(|h| index.names[usize::try_from(h.ordinal).unwrap()].as_str()).collect()
}

/// The mean of nDCG@10 over the judged queries, gains as judged.
fn ndcg(collection: &str, language: Language) -> Option<f64> {
    let folder = collections()?.join(collection);
    let index = index(folder.join("corpus.jsonl"), language);
    let mut judged: HashMap<String, HashMap<String, f64>> = HashMap::new();
    for line in std::fs::read_to_string(folder.join("qrels/test.tsv")).unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let gain: f64 = fields[2].parse().unwrap();
        judged.entry(fields[0].to_owned()).or_default().insert(fields[1].to_owned(), gain.max(0.0));
    }
    let discounted = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
        gains.take(10).enumerate().map(|(i, gain)| gain / (i as f64 + 2.0).log2()).sum()
    };
    let mut all = Vec::new();
    for query in lines(folder.join("queries.jsonl")) {
        let Some(judgements) = judged.get(query["_id"].as_str().unwrap()) else { continue };
        let mut best: Vec<f64> = judgements.values().copied().collect();
        best.sort_by(|a, b| b.total_cmp(a));
        let ideal = discounted(&mut best.into_iter());
        let found = search(&index, query["text"].as_str().unwrap(), language);
        let got = discounted(&mut found.iter().map(|name| judgements.get(*name).copied().unwrap_or(0.0)));
        all.push(if ideal > 0.0 { got / ideal } else { 0.0 });
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    println!("{collection}: nDCG@10 {mean:.4} over {} queries", all.len());
    Some(mean)
}

#[test]
fn english_abstracts_are_ranked_at_least_as_well_as_the_reference() {
    let Some(mean) = ndcg("cranfield", Language::ENGLISH) else { return };
    assert!(mean >= 0.52, "{mean}");
}

#[test]
fn chinese_passages_are_found_by_pairs_of_characters() {
    let Some(mean) = ndcg("xquad-zh", Language::from_code("zh")) else { return };
    assert!(mean >= 0.96, "{mean}");
}
