//! Plain text, and formats that read well as plain text.

use crate::{BlockKind, ExtractError, Summary, decode, emit::Emitter, emit::Outline};

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let decoded = decode::decode(bytes, None)?;
    let mut outline = Outline::new(emitter);
    paragraphs_of(&decoded.text, &mut outline)?;
    outline.finish()?;
    Ok(Summary { charset: Some(decoded.charset.to_owned()), engine: "text".to_owned(), ..Summary::default() })
}

/// Writes a text paragraph by paragraph.
pub(super) fn paragraphs_of(text: &str, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
    for paragraph in paragraphs(text) {
        outline.block(BlockKind::Paragraph, paragraph)?;
    }
    Ok(())
}

/// Runs of lines without a blank one between them.
fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut start = None;
        let mut end = at;
        for line in text.get(at..)?.split_inclusive('\n') {
            if !line.trim().is_empty() {
                start.get_or_insert(end);
            } else if start.is_some() {
                break;
            }
            end += line.len();
        }
        at = end;
        text.get(start?..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_split_at_blank_lines_and_nothing_is_lost() {
        let text = "one\ntwo\r\n\r\n  \n\nthree\n\n\n    indented";
        let all: Vec<&str> = paragraphs(text).collect();
        assert_eq!(all, ["one\ntwo\r\n", "three\n", "    indented"]);
    }

    #[test]
    fn a_single_line_is_one_paragraph() {
        assert_eq!(paragraphs("just this").collect::<Vec<_>>(), ["just this"]);
        assert_eq!(paragraphs("\n\n  \n").count(), 0);
        assert_eq!(paragraphs("\n\nlate").collect::<Vec<_>>(), ["late"]);
    }
}
