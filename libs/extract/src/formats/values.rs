//! Separated values: CSV, TSV and their kin (RFC 4180, read leniently).

use super::records::Records;
use crate::{BlockKind, ExtractError, Summary, decode, emit::Emitter, emit::Outline};

/// Lines that are looked at for the separator.
const SAMPLE_LINES: usize = 20;

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let decoded = decode::decode(bytes, None)?;
    let mut outline = Outline::new(emitter);
    match separator(&decoded.text) {
        Some(separator) => records(&decoded.text, separator, &mut outline)?,
        // A single column is a list of lines.
        None => outline.block(BlockKind::Paragraph, &decoded.text)?,
    }
    outline.finish()?;
    Ok(Summary { charset: Some(decoded.charset.to_owned()), engine: "csv".to_owned(), ..Summary::default() })
}

fn records(text: &str, separator: u8, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(text.as_bytes());
    let mut records = Records::default();
    let mut row = csv::StringRecord::new();
    // Whatever is between quotation marks is a value, so reading text from memory has no errors.
    while reader.read_record(&mut row).unwrap_or(false) {
        let cells: Vec<String> = row.iter().map(str::to_owned).collect();
        records.row(&cells, outline)?;
    }
    records.finish(outline)
}

/// The separator that the most of the first lines have, and as often as the first of them.
fn separator(text: &str) -> Option<u8> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).take(SAMPLE_LINES).collect();
    let first = lines.first()?;
    let fit = |separator: u8| {
        let count = |line: &str| line.bytes().filter(|b| *b == separator).count();
        let wanted = count(first);
        let same = lines.iter().filter(|line| count(line) == wanted).count();
        let some = lines.iter().filter(|line| count(line) > 0).count();
        (if wanted > 0 { same } else { 0 }, some)
    };
    let best = [b'\t', b';', b',', b'|'].into_iter().rev().max_by_key(|separator| fit(*separator))?;
    (fit(best).1 > 0).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_separator_is_the_one_that_makes_columns() {
        assert_eq!(separator("a;b\n1,5;2,5\n"), Some(b';'));
        assert_eq!(separator("name,text\nx,\"a; b; c\"\n"), Some(b','));
        assert_eq!(separator("a\tb, c\n1\t2\n"), Some(b'\t'));
        assert_eq!(separator("one\ntwo\n"), None);
    }
}
