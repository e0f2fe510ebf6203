use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::{Block, BlockKind, Page};

fn paragraph(text: &str) -> Block {
    Block { kind: BlockKind::Paragraph, text: text.to_owned() }
}

fn document(pages: Vec<Vec<Vec<String>>>) -> Extracted {
    let mut all = Extracted::default();
    for (number, sections) in pages.into_iter().enumerate() {
        let sections = sections
            .into_iter()
            .enumerate()
            .map(|(i, blocks)| Section {
                heading_path: vec![format!("h{i}")],
                blocks: blocks.iter().map(|b| paragraph(b)).collect(),
            })
            .collect();
        all.pages.push(Page { number: u32::try_from(number + 1).ok(), sections, tally: None });
    }
    all
}

fn one(text: &str) -> Extracted {
    document(vec![vec![vec![text.to_owned()]]])
}

fn by_words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn by_chars(text: &str) -> usize {
    text.chars().count()
}

fn settings(size: usize, overlap: usize) -> ChunkSettings {
    ChunkSettings { size, overlap, max_chunks: 20_000 }
}

/// What must hold whatever the document is.
fn check(extracted: &Extracted, settings: &ChunkSettings, count: &dyn Fn(&str) -> usize) {
    let text: Vec<char> = document_text(extracted).chars().collect();
    let chunks = chunks(extracted, settings, count).unwrap();
    let mut covered = 0usize;
    for (index, chunk) in chunks.iter().enumerate() {
        let (from, to) = (chunk.char_from as usize, chunk.char_to as usize);
        assert_eq!(chunk.ordinal as usize, index);
        assert_eq!(chunk.content, text[from..to].iter().collect::<String>());
        assert_eq!(chunk.token_count as usize, count(&chunk.content));
        assert!(chunk.token_count as usize <= settings.size, "{} > {}", chunk.token_count, settings.size);
        assert!(!chunk.content.trim().is_empty());
        assert!(to > covered, "a chunk of nothing but overlap");
        let skipped: String = text[covered.min(from)..from].iter().collect();
        assert!(skipped.trim().is_empty(), "lost {skipped:?}");
        let repeated: String = text[from..covered.max(from)].iter().collect();
        assert!(count(&repeated) <= settings.overlap);
        if index > 0 {
            assert!(from > chunks[index - 1].char_from as usize);
        }
        covered = to;
    }
    let rest: String = text[covered..].iter().collect();
    assert!(rest.trim().is_empty(), "lost {rest:?}");
}

#[test]
fn a_section_that_fits_is_one_chunk() {
    let all = chunks(&one("a few words"), &settings(400, 60), &by_words).unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].char_from, all[0].char_to, all[0].token_count), (0, 11, 3));
    assert_eq!((all[0].page_from, all[0].page_to), (Some(1), Some(1)));
}

#[test]
fn chunks_never_cross_a_section_or_page() {
    let extracted =
        document(vec![vec![vec!["one two".into(), "three".into()], vec!["four".into()]], vec![vec!["five".into()]]]);
    let all = chunks(&extracted, &settings(400, 60), &by_words).unwrap();
    let texts: Vec<&str> = all.iter().map(|c| c.content.as_str()).collect();
    assert_eq!(texts, ["one two\n\nthree", "four", "five"]);
    assert_eq!(all[2].page_from, Some(2));
    assert_eq!(all[1].heading_path, ["h1"]);
    check(&extracted, &settings(400, 60), &by_words);
}

#[test]
fn the_overlap_begins_with_a_sentence_where_it_can() {
    let text = "Aa bb cc dd. Ee ff gg hh. Ii jj kk ll. Mm nn oo pp. Qq rr ss tt.";
    let all = chunks(&one(text), &settings(14, 5), &by_words).unwrap();
    assert!(all.len() > 2);
    assert!(all.iter().all(|c| c.content.starts_with(char::is_uppercase)), "{all:?}");
    check(&one(text), &settings(14, 5), &by_words);
}

#[test]
fn text_without_spaces_overlaps_by_whole_characters() {
    let text = "北".repeat(50) + &"e\u{301}".repeat(200);
    check(&one(&text), &settings(20, 6), &by_chars);
    let all = chunks(&one(&text), &settings(20, 6), &by_chars).unwrap();
    assert!(all.iter().all(|c| !c.content.starts_with('\u{301}')));
}

#[test]
fn too_many_chunks_are_refused() {
    let limits = ChunkSettings { size: 2, overlap: 0, max_chunks: 10 };
    let failed = chunks(&one(&"w ".repeat(100)), &limits, &by_words);
    assert_eq!(failed, Err(DocumentFailure::TooManyChunks));
}

#[test]
fn the_context_is_embedded_and_not_stored() {
    let extracted = document(vec![vec![vec!["text".into()]]]);
    let all = chunks(&extracted, &settings(10, 0), &by_words).unwrap();
    assert_eq!(embedded_text(&all[0], Some("Guide")), "Guide · h0\n\ntext");
    assert_eq!(embedded_text(&all[0], Some("h0")), "h0\n\ntext");
    assert_eq!(embedded_text(&all[0], None), "h0\n\ntext");
    assert_eq!(all[0].content, "text");
}

#[test]
fn a_long_single_line_costs_a_bounded_multiple_of_its_length() {
    // Bytes given to the counter stand for time: a splitter that looks at the rest of the text for every chunk would
    // count millions of times the length.
    for line in ["x".repeat(1 << 20), "word ".repeat(1 << 18), "字".repeat(1 << 19), " ".repeat(1 << 20) + "x"] {
        let counted = Cell::new(0usize);
        let count = |text: &str| {
            counted.set(counted.get() + text.len());
            text.len().div_ceil(4)
        };
        let all = chunks(&one(&line), &ChunkSettings::default(), &count).unwrap();
        assert!(!all.is_empty());
        assert!(counted.get() <= 15 * line.len(), "{} times", counted.get() / line.len());
    }
}

#[test]
fn tokens_of_a_real_vocabulary_are_counted() {
    let count = |text: &str| tokens::count(tokens::Family::Cl100k, text);
    let paragraph =
        "The lease is renewed each third, for all documents at once; см. раздел 4.2. 租约到期后任务会被重新领取。\n\n";
    let code = "    if (index_of(&mut buffer[..n]) != SIZE_MAX) { return -EINVAL; }\n";
    let text = [paragraph.repeat(40), code.repeat(60), "0123456789abcdef".repeat(300)].concat();
    check(&one(&text), &ChunkSettings::default(), &count);
    check(&one(&text), &settings(64, 16), &count);
}

fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => "[a-zA-Z]{1,9}[.!?]?",
        1 => "[一-龥。]{1,12}",
        1 => "[a-z]{40,120}",
        1 => "(e\u{301}|👩\u{200d}👧|ก็){1,6}",
        1 => "[ \n\t]{1,4}",
    ];
    prop::collection::vec(word, 0..120).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_cover_the_text_exactly_once_apart_from_overlap(
        pages in prop::collection::vec(prop::collection::vec(prop::collection::vec(words(), 1..4), 1..3), 1..3),
        size in 12usize..80,
        overlap in 0usize..40,
        chars in any::<bool>(),
    ) {
        let overlap = overlap.min(size / 2);
        let count: &dyn Fn(&str) -> usize = if chars { &by_chars } else { &|t| t.len().div_ceil(4) };
        check(&document(pages), &settings(size, overlap), count);
    }
}
