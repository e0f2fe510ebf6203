//! Where chunks end: at the largest unit of text that fits.

use std::ops::Range;

use text_splitter::{ChunkConfig, ChunkSizer, TextSplitter};

/// The splitter looks at all that is left of a text for every chunk, so it is given windows of bounded length.
const WINDOW_BYTES: usize = 8 * 1024;
/// A window holds several chunks whatever their size is, in bytes for each unit of size.
const WINDOW_PER_SIZE: usize = 16;

struct Sizer<'c>(&'c dyn Fn(&str) -> usize);

impl ChunkSizer for Sizer<'_> {
    fn size(&self, chunk: &str) -> usize {
        (self.0)(chunk)
    }
}

/// Cuts sections into parts that leave room for the overlap.
pub(super) struct Splitter<'c> {
    splitter: TextSplitter<Sizer<'c>>,
    count: &'c dyn Fn(&str) -> usize,
    size: usize,
    window: usize,
}

impl<'c> Splitter<'c> {
    /// `overlap` is below `size`.
    pub(super) fn new(size: usize, overlap: usize, count: &'c dyn Fn(&str) -> usize) -> Self {
        let config = ChunkConfig::new(size - overlap).with_sizer(Sizer(count));
        let window = WINDOW_BYTES.max(size.saturating_mul(WINDOW_PER_SIZE));
        Self { splitter: TextSplitter::new(config), count, size, window }
    }

    /// The parts of a section, in order, without overlap: all of it but white space between them.
    pub(super) fn cores<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
        let mut at = 0;
        let mut ready: std::collections::VecDeque<Range<usize>> = std::collections::VecDeque::new();
        std::iter::from_fn(move || {
            while ready.is_empty() && at < text.len() {
                at = self.window(text, at, &mut ready);
            }
            ready.pop_front()
        })
    }

    /// Cuts one window and returns where the next begins.
    fn window(&self, text: &str, at: usize, ready: &mut std::collections::VecDeque<Range<usize>>) -> usize {
        let end = text.floor_char_boundary(at.saturating_add(self.window));
        let window = text.get(at..end).unwrap_or_default();
        if at == 0 && end == text.len() && (self.count)(text.trim()) <= self.size {
            ready.extend(trimmed(text));
            return end;
        }
        for (offset, part) in self.splitter.chunk_indices(window) {
            ready.push_back(at + offset..at + offset + part.len());
        }
        // The last part ends where the window does and not where the text would have it: it is cut again.
        if end < text.len() && ready.len() > 1 { ready.pop_back().map_or(end, |last| last.start) } else { end }
    }
}

fn trimmed(text: &str) -> Option<Range<usize>> {
    let start = text.len() - text.trim_start().len();
    let end = text.trim_end().len();
    (start < end).then_some(start..end)
}
