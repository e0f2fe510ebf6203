//! Sizes of parts of a window without counting each part anew.
//!
//! The splitter asks for the sizes of many overlapping parts of the same text. Counting is what costs, so the window is
//! counted once, piece by piece, and a part is the sum of its pieces. Tokenizers cut at white space first, so the sum is
//! nearly always the exact size; the splitter's result is checked against the real one.

use std::cell::RefCell;

use text_splitter::ChunkSizer;

/// Runs without white space are counted in pieces of this size.
const MAX_PIECE_BYTES: usize = 48;

/// Sizes texts; see [`Sizer::load`].
pub(super) struct Sizer<'c> {
    count: &'c dyn Fn(&str) -> usize,
    window: RefCell<Window>,
}

#[derive(Default)]
struct Window {
    /// Where the window is in memory: parts are recognised by their address.
    address: usize,
    length: usize,
    /// Offsets at which pieces begin, ascending, and the end of the window.
    starts: Vec<usize>,
    /// The size of everything before each of them.
    sums: Vec<usize>,
}

impl<'c> Sizer<'c> {
    pub(super) fn new(count: &'c dyn Fn(&str) -> usize) -> Self {
        Self { count, window: RefCell::default() }
    }

    /// Counts the pieces of a window. Parts of it are sized from them until the next window is loaded, which must
    /// happen before the window's memory is used for anything else.
    pub(super) fn load(&self, text: &str) {
        let mut window = self.window.borrow_mut();
        window.address = text.as_ptr().addr();
        window.length = text.len();
        window.starts.clear();
        window.sums.clear();
        let (mut start, mut sum) = (0, 0);
        while start < text.len() {
            let end = piece_end(text, start);
            window.starts.push(start);
            window.sums.push(sum);
            sum += (self.count)(text.get(start..end).unwrap_or_default());
            start = end;
        }
        window.starts.push(text.len());
        window.sums.push(sum);
    }
}

/// A piece is white space and the word behind it: tokenizers put a space before its word.
fn piece_end(text: &str, start: usize) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    let mut word = false;
    for (offset, c) in rest.char_indices() {
        if offset > 0 && ((word && c.is_whitespace()) || offset >= MAX_PIECE_BYTES) {
            return start + offset;
        }
        word |= !c.is_whitespace();
    }
    text.len()
}

impl ChunkSizer for Sizer<'_> {
    fn size(&self, chunk: &str) -> usize {
        self.sum_of_pieces(chunk).unwrap_or_else(|| (self.count)(chunk))
    }
}

impl Sizer<'_> {
    fn sum_of_pieces(&self, chunk: &str) -> Option<usize> {
        let window = self.window.borrow();
        let from = chunk.as_ptr().addr().checked_sub(window.address)?;
        let to = from + chunk.len();
        if to > window.length {
            return None;
        }
        let first = window.starts.partition_point(|start| *start < from);
        let last = window.starts.partition_point(|start| *start <= to).checked_sub(1)?;
        let (first_at, last_at) = (*window.starts.get(first)?, *window.starts.get(last)?);
        if first_at > last_at {
            return None;
        }
        // The cut-off ends are shorter than a piece.
        let rim = |part: Option<&str>| part.filter(|p| !p.is_empty()).map_or(0, self.count);
        let middle = window.sums.get(last)?.saturating_sub(*window.sums.get(first)?);
        Some(rim(chunk.get(..first_at - from)) + middle + rim(chunk.get(last_at - from..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_sized_like_texts() {
        let text = "one two  three\n\nfour ".repeat(10) + &"x".repeat(300);
        let count = |t: &str| t.chars().filter(|c| !c.is_whitespace()).count();
        let sizer = Sizer::new(&count);
        sizer.load(&text);
        for from in (0..text.len()).step_by(7) {
            for to in (from..=text.len()).step_by(11) {
                assert_eq!(sizer.size(&text[from..to]), count(&text[from..to]), "{from}..{to}");
            }
        }
        // Another text at another place is counted itself.
        assert_eq!(sizer.size("elsewhere"), 9);
    }
}
