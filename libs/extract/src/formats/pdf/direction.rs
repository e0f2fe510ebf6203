//! Lines in scripts from right to left.
//!
//! Many PDFs draw such a line from left to right, glyph by glyph as it looks, so the characters come in the reverse of
//! the order they are read in. Where the glyphs are tells which order it is.

/// A drawn piece of text and where it begins along its line; none if that is not known.
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) at: Option<f64>,
}

/// The line in the order it is read.
pub(super) fn logical(mut line: Vec<Piece>) -> String {
    if line.iter().any(|p| is_right_to_left(&p.text)) && is_drawn_as_it_looks(&line) {
        reorder(&mut line);
    }
    line.into_iter().map(|p| p.text).collect()
}

/// Whether neighbours in a script from right to left mostly move to the right.
fn is_drawn_as_it_looks(line: &[Piece]) -> bool {
    let mut rightward = 0i64;
    for pair in line.windows(2) {
        let [first, second] = pair else { continue };
        if let (Some(a), Some(b)) = (first.at, second.at)
            && is_right_to_left(&first.text)
            && is_right_to_left(&second.text)
        {
            rightward += if b > a { 1 } else { -1 };
        }
    }
    rightward > 0
}

/// Reverses the line and turns back what is read from left to right within it: numbers and words of other scripts.
/// This is the common case of the bidirectional algorithm (UAX 9) backwards, for one level of embedding.
fn reorder(line: &mut [Piece]) {
    line.reverse();
    let mut start = 0;
    while start < line.len() {
        let rest = line.get(start..).unwrap_or_default();
        let Some(first) = rest.iter().position(|p| is_left_to_right(&p.text)) else { break };
        // A run goes on over what has no direction of its own, as long as it ends with something that has.
        let run = rest.get(first..).unwrap_or_default();
        let stop = run.iter().position(|p| is_right_to_left(&p.text)).unwrap_or(run.len());
        let length =
            run.get(..stop).unwrap_or_default().iter().rposition(|p| is_left_to_right(&p.text)).unwrap_or(0) + 1;
        let (from, to) = (start + first, start + first + length);
        if let Some(run) = line.get_mut(from..to) {
            run.reverse();
        }
        start = to;
    }
    for piece in line.iter_mut() {
        if let Some(mirrored) = mirrored(&piece.text) {
            piece.text = mirrored.to_owned();
        }
    }
}

/// Brackets are drawn as they look, and mean the other one.
fn mirrored(text: &str) -> Option<&'static str> {
    Some(match text {
        "(" => ")",
        ")" => "(",
        "[" => "]",
        "]" => "[",
        "{" => "}",
        "}" => "{",
        "«" => "»",
        "»" => "«",
        _ => return None,
    })
}

/// Letters of Hebrew, Arabic, Syriac, Thaana, N'Ko and their presentation forms.
fn is_right_to_left(text: &str) -> bool {
    text.chars().any(|c| matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'))
        && !is_left_to_right(text)
}

/// Digits, in any script, and letters that are not from right to left.
fn is_left_to_right(text: &str) -> bool {
    text.chars()
        .any(|c| c.is_numeric() || (c.is_alphabetic() && !matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fefc}')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, step: f64) -> Vec<Piece> {
        text.chars().enumerate().map(|(i, c)| Piece { text: c.to_string(), at: Some(step * i as f64) }).collect()
    }

    #[test]
    fn a_line_as_it_looks_is_turned_and_its_numbers_are_not() {
        assert_eq!(logical(line("(Windows 11) תכרעמ", 1.0)), "מערכת (Windows 11)");
        assert_eq!(logical(line("עד 2024 םינש", 1.0)), "שנים 2024 דע");
    }

    #[test]
    fn other_lines_stay() {
        assert_eq!(logical(line("plain (text)", 1.0)), "plain (text)");
        assert_eq!(logical(line("שלום", -1.0)), "שלום");
    }
}
