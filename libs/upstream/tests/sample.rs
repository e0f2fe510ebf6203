//! The demonstration models on the sample documents that `cargo run` loads.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "part of tests")]

mod client;

use std::{
    collections::BTreeSet,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use client::Client;
use ragmux_upstream::Options;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Question {
    question: String,
    file: String,
    page: Option<usize>,
    answer: String,
}

/// A page of the manual or a section of another document.
struct Passage {
    file: &'static str,
    page: Option<usize>,
    text: String,
}

impl Passage {
    fn contains(&self, answer: &str) -> bool {
        self.text.split_whitespace().collect::<Vec<_>>().join(" ").contains(answer)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/local/sample")
}

fn questions() -> Vec<Question> {
    serde_json::from_str(&std::fs::read_to_string(folder().join("questions.json")).unwrap()).unwrap()
}

fn passages() -> Vec<Passage> {
    let pages = pdf_extract::extract_text_by_pages(folder().join("aurora-7-service-manual.pdf")).unwrap();
    let pages = pages.into_iter().enumerate();
    let mut passages: Vec<Passage> =
        pages.map(|(n, text)| Passage { file: "aurora-7-service-manual.pdf", page: Some(n + 1), text }).collect();
    let mut add = |file, text: &str, heading: &str| {
        for section in text.split(heading) {
            passages.push(Passage { file, page: None, text: without_tags(section) });
        }
    };
    add("bar-handbook.docx", &document_xml(), "<w:p><w:pPr><w:pStyle w:val=\"Heading1\"/></w:pPr>");
    let html = std::fs::read_to_string(folder().join("water-guide.html")).unwrap();
    let body = html.split_once("<h1>").unwrap().1.split_once("<footer>").unwrap().0;
    add("water-guide.html", body, "<h2>");
    add("dawn-release-notes.md", &std::fs::read_to_string(folder().join("dawn-release-notes.md")).unwrap(), "\n## ");
    passages
}

fn document_xml() -> String {
    let file = std::fs::File::open(folder().join("bar-handbook.docx")).unwrap();
    let mut text = String::new();
    zip::ZipArchive::new(file).unwrap().by_name("word/document.xml").unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Paragraphs and rows on lines of their own, cells with a bar between them.
fn without_tags(text: &str) -> String {
    let text = text.replace("</w:p></w:tc>", " | ").replace("</td>", " | ");
    let part = |part: &str| match part.split_once('>') {
        Some(("/p" | "/li" | "/tr" | "/h1" | "/h2" | "/w:p" | "/w:tr", after)) => format!("\n\n{after}"),
        Some((_, after)) => after.to_owned(),
        None => part.to_owned(),
    };
    text.split('<').map(part).collect()
}

async fn vectors(client: &Client, texts: Vec<String>) -> Vec<Vec<f32>> {
    let response = client.post("/v1/embeddings", &json!({ "model": "demo-embed", "input": texts })).await.unwrap();
    let body: Value = response.json().await.unwrap();
    let vectors = body["data"].as_array().unwrap().iter();
    vectors.map(|item| serde_json::from_value(item["embedding"].clone()).unwrap()).collect()
}

/// The places of the passages, nearest first.
fn ranked(question: &[f32], passages: &[Vec<f32>]) -> Vec<usize> {
    let score = |at: &usize| passages[*at].iter().zip(question).map(|(x, y)| x * y).sum::<f32>();
    let mut order: Vec<usize> = (0..passages.len()).collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
    order
}

#[test]
fn the_documents_are_what_their_sources_make() {
    for script in ["make_pdf.py", "make_docx.py"] {
        let status = Command::new("python3").arg(folder().join("source").join(script)).arg("--check").status().unwrap();
        assert!(status.success(), "{script}");
    }
}

#[test]
fn every_answer_stands_in_its_place_and_only_there() {
    let passages = passages();
    for question in questions() {
        let places = passages.iter().filter(|passage| passage.contains(&question.answer));
        let places: BTreeSet<_> = places.map(|passage| (passage.file, passage.page)).collect();
        // The part list names the fuse by its temperature.
        let elsewhere: BTreeSet<_> = match question.answer.as_str() {
            "168 degrees" => [("aurora-7-service-manual.pdf", Some(8))].into(),
            _ => BTreeSet::new(),
        };
        let places: Vec<_> = places.difference(&elsewhere).collect();
        assert_eq!(places, [&(question.file.as_str(), question.page)], "{}", question.answer);
    }
}

#[tokio::test]
async fn the_right_passage_is_found_for_most_questions() {
    let client = Client::of(Options::default()).await;
    let (passages, questions) = (passages(), questions());
    let of_passages = vectors(&client, passages.iter().map(|passage| passage.text.clone()).collect()).await;
    let of_questions = vectors(&client, questions.iter().map(|question| question.question.clone()).collect()).await;
    let (mut first, mut among_three, mut missed) = (0, 0, Vec::new());
    for (question, vector) in questions.iter().zip(&of_questions) {
        let order = ranked(vector, &of_passages);
        let place = order.iter().position(|at| passages[*at].contains(&question.answer)).unwrap();
        first += usize::from(place == 0);
        among_three += usize::from(place < 3);
        if place > 0 {
            missed.push((question.question.as_str(), place + 1));
        }
    }
    assert!(first * 4 >= questions.len() * 3, "only {first} of {}: {missed:?}", questions.len());
    assert!(among_three * 10 >= questions.len() * 9, "only {among_three} of {}: {missed:?}", questions.len());
}

#[tokio::test]
async fn the_answer_is_quoted_from_what_was_found() {
    let client = Client::of(Options::default()).await;
    let (passages, questions) = (passages(), questions());
    let of_passages = vectors(&client, passages.iter().map(|passage| passage.text.clone()).collect()).await;
    let of_questions = vectors(&client, questions.iter().map(|question| question.question.clone()).collect()).await;
    let mut wrong = Vec::new();
    for (question, vector) in questions.iter().zip(&of_questions) {
        let mut context = String::from("<context>\n");
        for (n, at) in ranked(vector, &of_passages).into_iter().take(5).enumerate() {
            let Passage { file, text, .. } = &passages[at];
            context.push_str(&format!("[{}] ({file})\n{text}\n\n", n + 1));
        }
        context.push_str("</context>");
        let body = json!({
            "model": "demo-chat",
            "messages": [{ "role": "system", "content": context }, { "role": "user", "content": question.question }],
        });
        let answer: Value = client.chat(&body).await.json().await.unwrap();
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!((1..=5).any(|n| content.contains(&format!("[{n}]"))), "{content}");
        if !content.contains(&question.answer) {
            wrong.push((question.question.as_str(), content.to_owned()));
        }
    }
    assert!(wrong.len() * 8 <= questions.len(), "{wrong:#?}");
}
