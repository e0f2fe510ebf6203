//! Codes, file names and error numbers: whether the lexical leg, which keeps them whole beside their parts, finds the one
//! passage that has them, among many that have others much like them. As long as it does, no leg of their own is needed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of a test fail it by panicking")]

use std::collections::HashMap;

use ragmux_retrieval::analyzer::{Language, Query};
use ragmux_retrieval::bm25::{Corpus, Posting, Segment, top_k};
use ragmux_retrieval::index;

const EACH: usize = 60;

/// Identifiers of one kind, all alike.
type Kind = (&'static str, fn(usize) -> String);

const KINDS: [Kind; 10] = [
    ("product code", |n| format!("AX-{}-{}", 4400 + n / 4, ["B", "C", "D", "E"][n % 4])),
    ("error number", |n| format!("E{:05}", 10_400 + n)),
    ("status in hex", |n| format!("0x8007{:04x}", 0x0005 + n * 3)),
    ("vendor error", |n| format!("ORA-{:05}", 1000 + n)),
    ("file name", |n| format!("settings.{}.{}.yaml", ["prod", "test", "dev"][n % 3], n / 3)),
    ("path", |n| format!("src/{}/main_loop_{}.rs", ["net", "disk"][n % 2], n / 2)),
    ("version", |n| format!("v2.{}.{}", n / 6, n % 6)),
    ("setting", |n| format!("MAX_{}_{}_MB", ["UPLOAD", "CACHE", "HEAP"][n % 3], n / 3)),
    ("function", |n| format!("get_user_{}_by_id()", n)),
    ("address", |n| format!("10.{}.{}.7", n / 8, n % 8)),
];

/// A passage for each, in words that all of them share.
fn passage(kind: &str, identifier: &str, n: usize) -> String {
    let also = ["restart the service", "ask the operator", "see the table below", "replace the part"][n % 4];
    format!(
        "Notes on {kind} number {n}. When {identifier} shows up in the log, {also} and write down the time. The {kind} \
         is listed with others of its kind, and most of them are handled alike."
    )
}

/// The share of questions whose passage comes first.
fn found_first(ask: impl Fn(&str, &str) -> String) -> HashMap<&'static str, f64> {
    let all: Vec<(&str, String, String)> = KINDS
        .iter()
        .flat_map(|(kind, make)| (0..EACH).map(move |n| (*kind, make(n), passage(kind, &make(n), n))))
        .collect();
    let texts = (0i32..).zip(all.iter().map(|(_, _, text)| text.as_str()));
    let segment = index::segment(texts, Some("en"));
    let by_term: HashMap<&str, _> = segment.postings.iter().map(|posting| (posting.term.as_str(), posting)).collect();
    let corpus =
        Corpus { chunks: all.len() as u64, terms: segment.lengths.iter().map(|n| u64::from(n.unsigned_abs())).sum() };
    let segments = [Segment { id: 1, first_ordinal: 0, lengths: &segment.lengths }];
    let mut first: HashMap<&str, f64> = HashMap::new();
    for (place, (kind, identifier, _)) in all.iter().enumerate() {
        let query = Query::parse(&ask(kind, identifier), &[Language::ENGLISH]);
        let terms: Vec<Vec<Posting<'_>>> = query
            .terms
            .iter()
            .filter_map(|term| by_term.get(term.as_str()))
            .map(|posting| vec![Posting { segment: 1, ordinals: &posting.ordinals, frequencies: &posting.frequencies }])
            .collect();
        let best = top_k(corpus, &terms, &segments, 2);
        let is_first = best.first().is_some_and(|hit| usize::try_from(hit.ordinal).unwrap() == place)
            // Beside it only one that has it as well could be as good.
            && best.get(1).is_none_or(|second| second.score < best[0].score);
        *first.entry(kind).or_default() += f64::from(u8::from(is_first)) / EACH as f64;
    }
    first
}

#[test]
fn an_identifier_finds_the_passage_that_has_it_before_all_that_have_others_like_it() {
    for (form, ask) in [
        ("alone", (|_, identifier| identifier.to_owned()) as fn(&str, &str) -> String),
        ("in a question", |kind, identifier| format!("What do I do about the {kind} {identifier}?")),
        ("in lower case", |_, identifier| identifier.to_lowercase()),
        ("in quotes", |_, identifier| format!("\"{identifier}\"")),
        ("in brackets", |_, identifier| format!("the message ({identifier}), what is it")),
    ] {
        let shares = found_first(ask);
        println!("{form}: {shares:?}");
        for (kind, share) in shares {
            assert!(share > 0.99, "{kind} {form}: {share}");
        }
    }
}
