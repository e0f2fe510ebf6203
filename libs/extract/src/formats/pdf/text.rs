//! From the lines of a page to its paragraphs.

use crate::{Block, BlockKind, emit::clean};

/// Cleans the text of a page and splits it into paragraphs; words divided at line ends are joined.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    clean(page)
        .split("\n\n")
        .map(paragraph)
        .filter(|text| !text.is_empty())
        .map(|text| Block { kind: BlockKind::Paragraph, text })
        .collect()
}

fn paragraph(lines: &str) -> String {
    let mut out = String::with_capacity(lines.len());
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match join(&out, line) {
            Join::Line if out.is_empty() => {}
            Join::Line => out.push('\n'),
            Join::Keep => {}
            Join::Drop => {
                out.pop();
            }
        }
        out.push_str(line);
    }
    out
}

enum Join {
    /// A new line.
    Line,
    /// The hyphen belongs to the word.
    Keep,
    /// The hyphen only marks the line end.
    Drop,
}

/// A hyphen after a letter at the end of a line divides a word if the next line goes on in lower case; before a
/// capital it belongs to the word ("Anglo-Saxon"). After a digit or a space it is a dash.
fn join(before: &str, line: &str) -> Join {
    let mut back = before.chars().rev();
    let hyphen = back.next().is_some_and(|c| matches!(c, '-' | '\u{2010}'));
    if !hyphen || !back.next().is_some_and(char::is_alphabetic) {
        return Join::Line;
    }
    match line.chars().next() {
        Some(c) if c.is_lowercase() => Join::Drop,
        Some(c) if c.is_uppercase() => Join::Keep,
        _ => Join::Line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &str) -> Vec<String> {
        blocks(page).into_iter().map(|b| b.text).collect()
    }

    #[test]
    fn divided_words_are_joined() {
        assert_eq!(texts("a hyphen-\nated word"), ["a hyphenated word"]);
        assert_eq!(texts("the Anglo-\nSaxon"), ["the Anglo-Saxon"]);
        assert_eq!(texts("1990-\n1995 and -\nso on"), ["1990-\n1995 and -\nso on"]);
    }

    #[test]
    fn paragraphs_are_split_at_blank_lines() {
        assert_eq!(texts(" one \ntwo\n\n\n\n three\n"), ["one\ntwo", "three"]);
        assert!(texts(" \n\n ").is_empty());
    }
}
