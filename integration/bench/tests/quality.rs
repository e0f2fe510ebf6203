//! The quality bench runs through the real services, and what it says can be believed: on collections whose right answers
//! are known, each way of searching does what it is there for.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of a test fail it by panicking"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

const SUBJECTS: usize = 16;
const DOCUMENTS_EACH: usize = 4;
const WORDS_EACH: usize = 8;

/// Words that mean nothing and look like some language's.
fn word(random: &mut StdRng) -> String {
    let syllables =
        ["ba", "ko", "mi", "tu", "re", "lan", "dor", "vis", "gel", "pra", "sto", "nuk", "fer", "hal", "zim"];
    (0..random.random_range(3..5)).map(|_| *syllables.choose(random).unwrap()).collect()
}

/// With one letter left out, as somebody in a hurry types it.
fn misspelt(word: &str, random: &mut StdRng) -> String {
    let gone = random.random_range(1..word.len() - 1);
    word.char_indices().filter(|(at, _)| *at != gone).map(|(_, letter)| letter).collect()
}

/// A collection of some subjects with words of their own, and a question about each: in the words of its documents, or
/// all of them misspelt.
fn write(folder: &Path, misspell: bool) -> PathBuf {
    let mut random = StdRng::seed_from_u64(7);
    let folder = folder.join(if misspell { "misspelt" } else { "exact" });
    std::fs::create_dir_all(folder.join("qrels")).unwrap();
    let filler: Vec<String> = (0..40).map(|_| word(&mut random)).collect();
    let (mut corpus, mut queries, mut qrels) =
        (String::new(), String::new(), "query-id\tcorpus-id\tscore\n".to_owned());
    for subject in 0..SUBJECTS {
        let own: Vec<String> = (0..WORDS_EACH).map(|_| word(&mut random)).collect();
        for document in 0..DOCUMENTS_EACH {
            let mut words: Vec<&String> = own.iter().chain(filler.sample(&mut random, 20)).collect();
            words.shuffle(&mut random);
            let text = words.into_iter().cloned().collect::<Vec<_>>().join(" ");
            let entry = json!({ "_id": format!("d{subject}-{document}"), "title": "", "text": text });
            writeln!(corpus, "{entry}").unwrap();
            writeln!(qrels, "q{subject}\td{subject}-{document}\t1").unwrap();
        }
        let asked: Vec<String> = own
            .sample(&mut random, 3)
            .map(|word| if misspell { misspelt(word, &mut random) } else { word.clone() })
            .collect();
        writeln!(queries, "{}", json!({ "_id": format!("q{subject}"), "text": asked.join(" ") })).unwrap();
    }
    for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    folder
}

fn run(arguments: &[&str], paths: &[&Path], json: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ragmux-bench"));
    let run = command.arg("quality").args(paths).args(arguments).arg("--json").arg(json).output().unwrap();
    (
        run.status.success(),
        format!("{}\n{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr)),
    )
}

#[test]
fn each_way_of_searching_does_what_it_is_there_for() {
    let folder = tempfile::tempdir().unwrap();
    let (exact, misspelt) = (write(folder.path(), false), write(folder.path(), true));
    let json = folder.path().join("figures.json");
    let (worked, said) = run(&["--vector-at-least", "0.2"], &[&exact, &misspelt], &json);
    assert!(worked, "{said}");
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let score = |name: &str| {
        let mut figures = results["figures"].as_array().unwrap().iter();
        let found = figures.find(|figure| figure["name"] == name).unwrap_or_else(|| panic!("no {name}:\n{said}"));
        assert!(found["details"]["recall@100"]["value"].as_f64().unwrap() >= found["value"].as_f64().unwrap() * 0.5);
        found["value"].as_f64().unwrap()
    };
    let of = |collection: &str| {
        ["lexical", "vector", "hybrid", "textbook BM25"].map(|way| score(&format!("{collection} nDCG@10, {way}")))
    };
    let [lexical, vector, hybrid, textbook] = of("exact");
    assert!(lexical > 0.95 && (lexical - textbook).abs() < 0.02, "words find what has them:\n{said}");
    assert!(vector > 0.5 && hybrid >= lexical.min(vector), "{said}");
    let [lexical, vector, hybrid, textbook] = of("misspelt");
    assert!(lexical < 0.2 && textbook < 0.2, "no word is there:\n{said}");
    assert!(vector > lexical + 0.3 && hybrid > lexical + 0.3, "the vectors know parts of words:\n{said}");
}

#[test]
fn what_cannot_be_read_is_told_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let (worked, said) = run(&[], &[folder.path()], &folder.path().join("figures.json"));
    assert!(!worked && said.contains("corpus.jsonl cannot be read"), "{said}");
}
