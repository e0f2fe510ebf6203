//! From placed glyphs to lines: spaces, line ends and paragraphs are inferred from where the glyphs are.

use pdf_extract::{MediaBox, OutputDev, OutputError, Transform};

use super::direction::{Piece, logical};
use crate::{emit::MAX_PAGE_TEXT_BYTES, sanity::Tally};

/// A gap of this share of the font size is a space. Kerning stays below, the narrowest justified spaces above.
const SPACE_GAP: f64 = 0.15;
/// A baseline that moves by this share of the font size is another line; super- and subscripts move less.
const LINE_STEP: f64 = 0.5;
/// Lines further apart than this are separate paragraphs; double-spaced text stays together.
const PARAGRAPH_STEP: f64 = 2.0;
/// Moving back by this share of the font size starts another line; accents and kerning move less.
const BACK_STEP: f64 = 1.0;
/// How far to the left of a glyph the next may end to be its neighbour in a script from right to left.
const LEFTWARD_GAP: f64 = 1.5;
/// Text whose direction differs by more than this cosine (25 degrees) is another line.
const SAME_DIRECTION: f64 = 0.9;
/// The same glyph again within this share of the font size makes bold print, not a double letter, unless it is of the
/// same string.
const OVERPRINT: f64 = 0.1;

#[derive(Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
}

impl Point {
    fn minus(self, other: Self) -> Self {
        Self { x: self.x - other.x, y: self.y - other.y }
    }

    fn dot(self, other: Self) -> f64 {
        self.x * other.x + self.y * other.y
    }

    fn cross(self, other: Self) -> f64 {
        self.x * other.y - self.y * other.x
    }

    fn length(self) -> f64 {
        self.x.hypot(self.y)
    }
}

struct Glyph {
    origin: Point,
    end: Point,
    direction: Point,
    size: f64,
    text: String,
    /// Which of the page's strings it belongs to.
    string: u32,
}

/// Collects the text of one page.
#[derive(Default)]
pub(super) struct PageText {
    out: String,
    /// The open line, in the order it was drawn.
    line: Vec<Piece>,
    last: Option<Glyph>,
    /// Bytes of text drawn so far.
    bytes: usize,
    tally: Tally,
    full: bool,
}

impl PageText {
    /// Whether the page has more text than a page may have; the rest was not read.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// The lines of the page, a blank line between paragraphs, and what was drawn.
    pub(super) fn finish(mut self) -> (String, Tally) {
        self.end_of_line("");
        (self.out, self.tally)
    }

    fn end_of_line(&mut self, end: &str) {
        self.out.push_str(&logical(std::mem::take(&mut self.line)));
        self.out.push_str(end);
    }

    fn put(&mut self, text: &str, at: Option<f64>) {
        self.line.push(Piece { text: text.to_owned(), at });
    }

    fn glyph(&mut self, glyph: Glyph) {
        let at = Some(glyph.direction.dot(glyph.origin));
        if let Some(last) = &self.last {
            let moved = glyph.origin.minus(last.end);
            let along = last.direction.dot(moved);
            let across = last.direction.cross(moved).abs();
            let size = glyph.size.max(last.size);
            let back = glyph.origin.minus(last.origin).length();
            if back < OVERPRINT * size
                && glyph.string != last.string
                && glyph.text == last.text
                && !glyph.text.trim().is_empty()
            {
                return;
            }
            // Scripts from right to left may be drawn in the order they are read: each glyph ends where the last began.
            let before = last.direction.dot(last.origin.minus(glyph.end));
            let leftward = along < 0.0 && before > -BACK_STEP * size && before < LEFTWARD_GAP * size;
            let gap = if leftward { before } else { along };
            if last.direction.dot(glyph.direction) < SAME_DIRECTION || across > PARAGRAPH_STEP * size {
                self.end_of_line("\n\n");
            } else if across > LINE_STEP * size || gap < -BACK_STEP * size {
                self.end_of_line("\n");
            } else if gap > SPACE_GAP * size
                && !self.line.last().is_some_and(|p| p.text.ends_with(char::is_whitespace))
                && !glyph.text.starts_with(char::is_whitespace)
            {
                self.put(" ", at);
            }
        }
        self.put(&glyph.text, at);
        self.last = Some(glyph);
    }
}

impl OutputDev for PageText {
    fn begin_page(
        &mut self,
        _page_num: u32,
        _media_box: &MediaBox,
        _art_box: Option<(f64, f64, f64, f64)>,
    ) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn output_character(
        &mut self,
        trm: &Transform,
        width: f64,
        spacing: f64,
        font_size: f64,
        text: &str,
    ) -> Result<(), OutputError> {
        self.bytes += text.len();
        if self.bytes > MAX_PAGE_TEXT_BYTES {
            self.full = true;
            return Err(OutputError::FormatError(std::fmt::Error));
        }
        self.tally.count(text);
        let across = Point { x: trm.m11, y: trm.m12 };
        let up = Point { x: trm.m21, y: trm.m22 };
        let origin = Point { x: trm.m31, y: trm.m32 };
        let advance = width * font_size + spacing;
        let norm = across.length();
        let size = font_size.abs() * up.length();
        if !(norm > 0.0 && size > 0.0 && norm.is_finite() && size.is_finite() && advance.is_finite()) {
            // A place that cannot be told; the characters are still the page's.
            self.put(text, None);
            return Ok(());
        }
        let sign = font_size.signum();
        self.glyph(Glyph {
            origin,
            end: Point { x: origin.x + across.x * advance, y: origin.y + across.y * advance },
            direction: Point { x: sign * across.x / norm, y: sign * across.y / norm },
            size,
            text: text.to_owned(),
            string: self.tally.shown,
        });
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.tally.shown = self.tally.shown.saturating_add(1);
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(page: &mut PageText, x: f64, y: f64, text: &str) {
        for (i, c) in text.chars().enumerate() {
            let trm = Transform::row_major(1.0, 0.0, 0.0, 1.0, x + 5.0 * i as f64, y);
            page.output_character(&trm, 0.5, 0.0, 10.0, &c.to_string()).unwrap();
        }
    }

    #[test]
    fn gaps_make_spaces_lines_and_paragraphs() {
        let mut page = PageText::default();
        put(&mut page, 0.0, 700.0, "one");
        put(&mut page, 18.0, 700.0, "two");
        put(&mut page, 0.0, 688.0, "three");
        put(&mut page, 0.0, 650.0, "four");
        assert_eq!(page.finish().0, "one two\nthree\n\nfour");
    }

    #[test]
    fn text_from_right_to_left_is_read_that_way_however_it_was_drawn() {
        let mut visual = PageText::default();
        put(&mut visual, 0.0, 700.0, "חול 12 םולש");
        assert_eq!(visual.finish().0, "שלום 12 לוח");
        let mut logical = PageText::default();
        for (i, c) in "שלום".chars().enumerate() {
            put(&mut logical, 100.0 - 5.0 * i as f64, 700.0, &c.to_string());
        }
        assert_eq!(logical.finish().0, "שלום");
    }

    #[test]
    fn overprinted_letters_count_once() {
        let mut page = PageText::default();
        for (i, c) in "bold".chars().enumerate() {
            for shift in [0.0, 0.3] {
                page.begin_word().unwrap();
                put(&mut page, 5.0 * i as f64 + shift, 700.0, &c.to_string());
            }
        }
        assert_eq!(page.finish().0, "bold");
    }

    #[test]
    fn a_page_has_a_limit() {
        let mut page = PageText::default();
        let long = "x".repeat(MAX_PAGE_TEXT_BYTES);
        let trm = Transform::row_major(1.0, 0.0, 0.0, 1.0, 0.0, 0.0);
        assert!(page.output_character(&trm, 0.5, 0.0, 10.0, &long).is_ok());
        assert!(page.output_character(&trm, 0.5, 0.0, 10.0, "y").is_err());
        assert!(page.is_full());
    }
}
