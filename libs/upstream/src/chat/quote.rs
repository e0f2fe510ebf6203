//! Choosing the sentences that answer a question.

use std::collections::{BTreeMap, BTreeSet};

use unicode_segmentation::UnicodeSegmentation;

use super::passages::Passage;
use crate::{
    embed::{DIMENSIONS, cosine, vector},
    words::words,
};

/// Most sentences in an answer.
const MOST: usize = 3;
/// A sentence below this is no answer.
const LEAST_SCORE: f32 = 0.25;
/// A further sentence must reach this part of the best one's score.
const NEXT_TO_BEST: f32 = 0.8;
/// What a sentence with a number gains when a fact is asked for.
const FACT: f32 = 1.08;
/// Words that stand for something said before.
const PRONOUNS: [&str; 5] = ["it", "they", "them", "this", "these"];
/// Items of a list up to this many words are quoted whole.
const LONGEST_ITEM: usize = 45;
/// Longer "sentences" are tables or lists that lost their shape.
const LONGEST_WORDS: usize = 90;

/// A sentence, the passage it is from, and its words.
struct Sentence<'a> {
    text: String,
    passage: &'a Passage,
    stems: BTreeSet<String>,
    label_stems: BTreeSet<String>,
    rank: usize,
}

/// The best one to three sentences, each with the number of its passage, or `None` if none has to do with the question.
pub(crate) fn quote(question: &str, passages: &[Passage]) -> Option<String> {
    let wanted = subject(question);
    let sentences = sentences(passages);
    let weights = weights(&wanted, &sentences);
    let direction = vector(question, DIMENSIONS);
    let asks_for_fact =
        words(question).iter().any(|word| ["how", "what", "when", "which"].contains(&word.folded.as_str()));
    let score = |sentence: &Sentence<'_>| {
        let fact = asks_for_fact && sentence.text.contains(|c: char| c.is_numeric());
        score(sentence, &weights, &direction) * if fact { FACT } else { 1.0 }
    };
    let mut scored: Vec<(f32, &Sentence<'_>)> = sentences.iter().map(|sentence| (score(sentence), sentence)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.first().map(|(score, _)| *score).filter(|score| *score >= LEAST_SCORE)?;
    let mut chosen: Vec<&Sentence<'_>> = Vec::new();
    for (score, sentence) in scored {
        if chosen.len() == MOST || score < best * NEXT_TO_BEST {
            break;
        }
        if chosen.iter().all(|other| !overlaps(other, sentence)) {
            chosen.push(sentence);
        }
    }
    let quoted = chosen.iter().map(|sentence| format!("{} [{}]", sentence.text, sentence.passage.number));
    Some(quoted.collect::<Vec<_>>().join(" "))
}

/// The stems of a text's words that say something.
fn subject(text: &str) -> BTreeSet<String> {
    words(text).into_iter().filter(|word| !word.empty).map(|word| word.stem).collect()
}

fn sentences(passages: &[Passage]) -> Vec<Sentence<'_>> {
    let mut sentences = Vec::new();
    for (rank, passage) in passages.iter().enumerate() {
        let label_stems = subject(&passage.label);
        for paragraph in paragraphs(&passage.text) {
            for text in statements(&paragraph) {
                let (stems, label_stems) = (subject(&text), label_stems.clone());
                sentences.push(Sentence { text, passage, stems, label_stems, rank });
            }
        }
    }
    sentences
}

/// The sentences of a paragraph. One that begins with a pronoun, as in "Replace it", says nothing without the one before it, and the item of
/// a list is one statement.
fn statements(paragraph: &Paragraph) -> Vec<String> {
    let text = paragraph.text.trim();
    if paragraph.item && text.unicode_words().nth(LONGEST_ITEM).is_none() {
        return if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
    }
    let mut statements: Vec<String> = Vec::new();
    let mut joined = false;
    for sentence in text.unicode_sentences().map(str::trim).filter(|text| !text.is_empty()) {
        let follows = sentence.unicode_words().take(2).any(|word| PRONOUNS.contains(&word.to_lowercase().as_str()));
        match statements.last_mut().filter(|_| follows && !joined) {
            Some(before) => {
                before.push(' ');
                before.push_str(sentence);
                joined = true;
            }
            None => {
                statements.push(sentence.to_owned());
                joined = false;
            }
        }
    }
    statements
}

/// Lines that belong together.
#[derive(Default)]
struct Paragraph {
    text: String,
    item: bool,
}

/// Lines joined to paragraphs: a blank line ends one, and so does a heading or the item of a list before the next.
fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = vec![Paragraph::default()];
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        if line.starts_with(['#', '-', '*', '|', '•']) {
            paragraphs.push(Paragraph { item: true, ..Paragraph::default() });
        }
        if let Some(paragraph) = paragraphs.last_mut() {
            if !paragraph.text.is_empty() && !line.is_empty() {
                paragraph.text.push(' ');
            }
            paragraph.text.push_str(line.trim_start_matches(['#', '-', '*', '•', '|', ' ']));
        }
        let next_starts =
            lines.peek().is_some_and(|next| next.starts_with(|c: char| c.is_uppercase() || c.is_numeric()));
        let heading = line.chars().count() < 60 && !line.ends_with(['.', ',', ';', ':', '-', '–']) && next_starts;
        if line.is_empty() || heading || line.starts_with(['#', '|']) {
            paragraphs.push(Paragraph::default());
        }
    }
    paragraphs
}

/// How much each wanted word says: those that few sentences have say more (BM25's inverse document frequency).
fn weights(wanted: &BTreeSet<String>, sentences: &[Sentence<'_>]) -> BTreeMap<String, f32> {
    let all = sentences.len() as f32;
    wanted
        .iter()
        .map(|stem| {
            let with = sentences.iter().filter(|sentence| sentence.stems.contains(stem)).count() as f32;
            let rare = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
            // Letters with figures name one thing: a part, a fault.
            let names = stem.contains(|c: char| c.is_numeric()) && stem.contains(|c: char| c.is_alphabetic());
            (stem.clone(), if names { 2.0 * rare } else { rare })
        })
        .collect()
}

fn score(sentence: &Sentence<'_>, weights: &BTreeMap<String, f32>, direction: &[f32]) -> f32 {
    let total: f32 = weights.values().sum();
    let matched = |stems: &BTreeSet<String>| -> f32 {
        weights.iter().filter(|(stem, _)| stems.contains(*stem)).map(|(_, weight)| weight).sum()
    };
    let share = if total > 0.0 { matched(&sentence.stems) / total } else { 0.0 };
    let label = if total > 0.0 { matched(&sentence.label_stems) / total } else { 0.0 };
    let count = sentence.stems.len();
    let shape = if (3..=LONGEST_WORDS).contains(&count) && !sentence.text.ends_with('?') { 1.0 } else { 0.4 };
    // Passages come best first; the order decides between equals.
    let place = 0.05 / (1.0 + sentence.rank as f32);
    let alike = cosine(direction, &vector(&sentence.text, DIMENSIONS)).max(0.0);
    if share == 0.0 && alike < 0.25 {
        return 0.0;
    }
    shape * (share + 0.6 * alike + 0.15 * label) + place
}

/// Whether two sentences say the same, as those of overlapping passages do.
fn overlaps(a: &Sentence<'_>, b: &Sentence<'_>) -> bool {
    let same = a.stems.intersection(&b.stems).count();
    same * 5 >= a.stems.len().min(b.stems.len()).max(1) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passages() -> Vec<Passage> {
        let passage =
            |number, label: &str, text: &str| Passage { number, label: label.to_owned(), text: text.to_owned() };
        vec![
            passage(
                1,
                "manual.pdf · Boiler · p.4",
                "The boiler\nThe boiler holds 1.8 litres and is made of\nstainless steel. It must be descaled every 300 \
                 hours.\n\n- Never open the valve while hot.\n- The valve opens at 12 bar.",
            ),
            passage(2, "manual.pdf · Warranty · p.6", "The warranty runs for three years. Keep the receipt."),
        ]
    }

    #[test]
    fn the_sentence_that_answers_is_quoted_with_its_number() {
        let answer = quote("How many litres does the boiler hold?", &passages()).unwrap();
        assert!(
            answer.starts_with("The boiler holds 1.8 litres and is made of stainless steel. It must be descaled"),
            "{answer}"
        );
        let answer = quote("How long is the warranty?", &passages()).unwrap();
        assert!(answer.starts_with("The warranty runs for three years. [2]"), "{answer}");
        let answer = quote("At what pressure does the valve open?", &passages()).unwrap();
        assert!(answer.starts_with("The valve opens at 12 bar. [1]"), "{answer}");
    }

    #[test]
    fn a_question_about_something_else_has_no_answer() {
        assert_eq!(quote("Who painted the ceiling of the chapel?", &passages()), None);
        assert_eq!(quote("", &passages()), None);
        assert_eq!(quote("What is the warranty?", &[]), None);
    }

    #[test]
    fn a_pronoun_brings_what_it_stands_for_and_an_item_is_whole() {
        let text = "Pressure is read at the gauge. It should be 9 bar. Nothing else matters.\n\n- E1: the lid is open. \
                    Close it.\n- E2: no water.";
        let all: Vec<String> = paragraphs(text).iter().flat_map(statements).collect();
        assert_eq!(
            all,
            [
                "Pressure is read at the gauge. It should be 9 bar.",
                "Nothing else matters.",
                "E1: the lid is open. Close it.",
                "E2: no water.",
            ]
        );
    }

    #[test]
    fn the_same_sentence_is_quoted_once() {
        let mut twice = passages();
        twice.push(Passage { number: 3, ..twice[1].clone() });
        let answer = quote("How long does the warranty run?", &twice).unwrap();
        assert_eq!(answer.matches("three years").count(), 1, "{answer}");
    }
}
