//! The sample documents: uploaded like anybody's, then watched until they can be searched.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Api;
use super::answers::Document;
use crate::terminal::say;

macro_rules! samples {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../sample/", $name)))),+]
    };
}

/// File names and contents.
const SAMPLES: &[(&str, &[u8])] =
    samples!["aurora-7-service-manual.pdf", "bar-handbook.docx", "dawn-release-notes.md", "water-guide.html"];

/// A question that the PDF answers.
pub(crate) const QUESTION: &str = "The display shows E47. What should I do?";

/// They take seconds; a provider that is slow or out of reach is no reason to wait for ever.
const DEADLINE: Duration = Duration::from_secs(300);

const PAUSE: Duration = Duration::from_millis(200);

/// A document on its way.
struct Upload {
    name: &'static str,
    id: i64,
    told: String,
    is_settled: bool,
}

/// Loads the samples into a store; returns whether all of them can be searched now. One that fails is reported and does
/// not keep the product from running.
pub(crate) async fn load(api: &Api, store: i64) -> anyhow::Result<bool> {
    say(&format!("loading {} sample documents", SAMPLES.len()));
    let mut uploads = Vec::new();
    for (name, bytes) in SAMPLES {
        let document = api.upload(store, name, bytes).await?;
        uploads.push(Upload { name, id: document.id, told: String::new(), is_settled: false });
    }
    let give_up = Instant::now() + DEADLINE;
    let mut failed = 0;
    while uploads.iter().any(|upload| !upload.is_settled) {
        for upload in uploads.iter_mut().filter(|upload| !upload.is_settled) {
            let document: Document = api.get(&format!("documents/{}", upload.id)).await?;
            let line = describe(&document);
            upload.is_settled = matches!(document.status.as_str(), "ready" | "failed");
            failed += u32::from(document.status == "failed");
            if upload.told != line {
                say(&format!("  {}: {line}", upload.name));
                upload.told = line;
            }
        }
        if Instant::now() >= give_up {
            say("  not all of them are ready yet; the ingestion-worker goes on with them");
            return Ok(false);
        }
        sleep(PAUSE).await;
    }
    Ok(failed == 0)
}

/// A document's state in a few words, the same for as long as there is nothing new to say.
fn describe(document: &Document) -> String {
    match document.status.as_str() {
        "pending" => "waiting".to_owned(),
        "ready" => {
            let pages = document.page_count.map_or_else(String::new, |pages| format!("{pages} pages, "));
            format!("ready, {pages}{} passages", document.chunk_count)
        }
        status @ ("failed" | "delayed") => {
            let reason = document.error.as_ref().map(|error| error.message.as_ref().unwrap_or(&error.code));
            format!("{status}: {}", reason.map_or("no reason given", String::as_str))
        }
        status => document.stage.clone().unwrap_or_else(|| status.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::Failure;
    use super::*;

    #[test]
    fn a_documents_state_is_told_in_words() {
        let of = |status: &str| Document { status: status.to_owned(), ..Document::default() };
        assert_eq!(describe(&of("pending")), "waiting");
        assert_eq!(describe(&Document { stage: Some("embed".to_owned()), ..of("processing") }), "embed");
        assert_eq!(describe(&Document { chunk_count: 3, ..of("ready") }), "ready, 3 passages");
        let pages = Document { chunk_count: 9, page_count: Some(8), ..of("ready") };
        assert_eq!(describe(&pages), "ready, 8 pages, 9 passages");
        let error = Some(Failure { code: "pdf_encrypted".to_owned(), message: None });
        assert_eq!(describe(&Document { error, ..of("failed") }), "failed: pdf_encrypted");
    }

    #[test]
    fn the_samples_answer_the_question_of_the_summary() {
        let questions = include_str!("../../sample/questions.json");
        assert!(questions.contains(QUESTION) && SAMPLES.iter().any(|(name, _)| name.ends_with(".pdf")));
    }
}
