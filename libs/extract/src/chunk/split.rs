//! Where chunks end: at the largest unit of text that fits.

use std::collections::VecDeque;
use std::ops::Range;

use text_splitter::{ChunkConfig, TextSplitter};

use super::sizer::Sizer;

/// The splitter looks at all that is left of a text for every chunk, so it is given windows of bounded length.
const WINDOW_BYTES: usize = 8 * 1024;
/// A window holds several chunks whatever their size is, in bytes for each unit of size.
const WINDOW_PER_SIZE: usize = 16;

/// Cuts sections into parts that leave room for the overlap.
pub(super) struct Splitter<'c> {
    sizer: Sizer<'c>,
    count: &'c dyn Fn(&str) -> usize,
    size: usize,
    /// The size of a part.
    room: usize,
    window: usize,
}

impl<'c> Splitter<'c> {
    /// `overlap` is below `size`.
    pub(super) fn new(size: usize, overlap: usize, count: &'c dyn Fn(&str) -> usize) -> Self {
        let window = WINDOW_BYTES.max(size.saturating_mul(WINDOW_PER_SIZE));
        Self { sizer: Sizer::new(count), count, size, room: size - overlap, window }
    }

    /// The parts of a section, in order, without overlap: all of it but white space between them.
    pub(super) fn cores<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
        let mut at = 0;
        let mut ready: VecDeque<Range<usize>> = VecDeque::new();
        std::iter::from_fn(move || {
            while ready.is_empty() && at < text.len() {
                at = self.window(text, at, &mut ready);
            }
            ready.pop_front()
        })
    }

    /// Cuts one window and returns where the next begins.
    fn window(&self, text: &str, at: usize, ready: &mut VecDeque<Range<usize>>) -> usize {
        let end = text.floor_char_boundary(at.saturating_add(self.window));
        let window = text.get(at..end).unwrap_or_default();
        if at == 0 && end == text.len() && (self.count)(text.trim()) <= self.size {
            ready.extend(trimmed(text));
            return end;
        }
        self.sizer.load(window);
        let by_pieces = TextSplitter::new(ChunkConfig::new(self.room).with_sizer(&self.sizer));
        for (offset, part) in by_pieces.chunk_indices(window) {
            if (self.count)(part) <= self.room {
                ready.push_back(at + offset..at + offset + part.len());
                continue;
            }
            // The pieces said less than the whole: this part is cut again, by what it really counts.
            let exact = TextSplitter::new(ChunkConfig::new(self.room).with_sizer(Sizer::new(self.count)));
            for (inner, part) in exact.chunk_indices(part) {
                ready.push_back(at + offset + inner..at + offset + inner + part.len());
            }
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
