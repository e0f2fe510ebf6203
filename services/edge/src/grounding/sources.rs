//! The sources of an answer, in the three places a client may find them.

use std::fmt::Write;

use retrieval::Hit;
use serde::Serialize;

use super::Grounded;

/// What proxies and servers take of one header without complaint.
const LONGEST_HEADER: usize = 2048;

/// Where a passage is from.
#[derive(Debug, Serialize)]
pub(crate) struct Source<'a> {
    document_id: i64,
    filename: &'a str,
    section: Option<&'a str>,
    page: Option<i32>,
    score: f64,
}

impl<'a> Source<'a> {
    pub(crate) fn of(hit: &'a Hit) -> Self {
        let passage = &hit.passage;
        Self {
            document_id: passage.document.0,
            filename: &passage.file_name,
            section: Some(passage.heading_path.as_str()).filter(|path| !path.is_empty()),
            page: passage.page_from,
            score: rounded(hit.score),
        }
    }
}

/// Six digits tell any two ranks apart.
fn rounded(score: f64) -> f64 {
    (score * 1e6).round() / 1e6
}

/// The sources as an ASCII JSON array that fits a header: as many from the front as there is room for.
pub(super) fn sources_header(hits: &[Hit]) -> String {
    let mut header = String::from("[");
    for hit in hits {
        let entry = serde_json::to_string(&Source::of(hit)).map(|json| ascii(&json)).unwrap_or_default();
        let comma = usize::from(header.len() > 1);
        if header.len() + comma + entry.len() + 1 > LONGEST_HEADER {
            break;
        }
        if comma > 0 {
            header.push(',');
        }
        header.push_str(&entry);
    }
    header.push(']');
    header
}

/// JSON in ASCII alone: every other character as its UTF-16 escapes (RFC 8259, 7).
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && character != '\u{7f}' {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// The `ragmux` member of an answer whose client asked for the context.
pub(crate) fn sources_member(grounded: &Grounded) -> String {
    #[derive(Serialize)]
    struct Member<'a> {
        sources: Vec<Source<'a>>,
        context: Option<&'a str>,
    }
    let member = Member { sources: grounded.hits.iter().map(Source::of).collect(), context: grounded.block.as_deref() };
    serde_json::to_string(&member).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use domain::{ChunkId, DocumentId};
    use store::search::Passage;

    use super::*;

    fn hit(document: i64, file_name: &str) -> Hit {
        Hit {
            passage: Passage {
                chunk: ChunkId(1),
                document: DocumentId(document),
                file_name: file_name.to_owned(),
                title: None,
                ordinal: 0,
                heading_path: "A > B".to_owned(),
                page_from: Some(3),
                page_to: Some(4),
                char_from: 0,
                char_to: 4,
                content: "text".to_owned(),
                token_count: 1,
            },
            score: 0.032_786_885_245,
            vector_rank: Some(1),
            lexical_rank: None,
            lexical_score: None,
            distance: None,
            rerank_score: None,
        }
    }

    #[test]
    fn the_header_is_ascii_json() {
        let header = sources_header(&[hit(7, "Größe \"😀\".pdf")]);
        assert!(header.is_ascii());
        assert_eq!(
            header,
            r#"[{"document_id":7,"filename":"Gr\u00f6\u00dfe \"\ud83d\ude00\".pdf","section":"A > B","page":3,"score":0.032787}]"#
        );
        let read: serde_json::Value = serde_json::from_str(&header).unwrap();
        assert_eq!(read[0]["filename"], "Größe \"😀\".pdf");
    }

    #[test]
    fn the_header_drops_whole_entries_to_fit() {
        let hits: Vec<Hit> = (0..100).map(|n| hit(n, &format!("file-{n}.pdf"))).collect();
        let header = sources_header(&hits);
        assert!(header.len() <= LONGEST_HEADER);
        let read: Vec<serde_json::Value> = serde_json::from_str(&header).unwrap();
        assert!(read.len() > 10 && read.len() < 100);
        assert_eq!(sources_header(&[hit(1, &"x".repeat(3000))]), "[]");
    }
}
