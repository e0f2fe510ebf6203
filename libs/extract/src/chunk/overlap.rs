//! How much of the chunk before a chunk repeats.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

/// Bytes of the chunk before that are looked at for each unit of overlap; tokens are shorter than this but for runs of
/// white space.
const LOOK_BACK_BYTES: usize = 8;

/// The chunk before.
#[derive(Clone, Copy)]
pub(super) struct Before {
    /// Where it begins, overlap included.
    pub(super) start: usize,
    /// Where its own part begins.
    pub(super) core: usize,
}

/// What a chunk may hold.
#[derive(Clone, Copy)]
pub(super) struct Room<'c> {
    pub(super) overlap: usize,
    pub(super) size: usize,
    pub(super) count: &'c dyn Fn(&str) -> usize,
}

/// Where a chunk begins whose own part is `core`: at the start of a sentence if that leaves at least half of the
/// overlap, else of a word, else of a character as readers see it.
pub(super) fn start(text: &str, before: &Before, core: &Range<usize>, room: Room<'_>) -> usize {
    let Room { overlap, size, count } = room;
    if overlap == 0 {
        return core.start;
    }
    // Never more than the part before, and each chunk begins later than the last.
    let later = before.start + text.get(before.start..).and_then(|t| t.chars().next()).map_or(0, char::len_utf8);
    let from = core.start.saturating_sub(overlap.saturating_mul(LOOK_BACK_BYTES)).max(before.core).max(later);
    let from = text.ceil_char_boundary(from);
    let Some(tail) = text.get(from..core.start) else { return core.start };
    let fits = |at: usize| count(text.get(at..core.start).unwrap_or_default().trim_end()) <= overlap;
    let places = Places::of(tail, from, from == before.core);
    let word = places.words.first_fit(fits);
    let sentence = places.sentences.first_fit(fits);
    let chosen = match (sentence, word) {
        (Some(sentence), Some(word)) if core.start - sentence >= (core.start - word) / 2 => Some(sentence),
        (_, Some(word)) => Some(word),
        (sentence, None) => sentence,
    };
    let Some(mut at) = chosen.or_else(|| places.characters.first_fit(fits)) else { return core.start };
    // The parts leave room for the overlap, so this hardly ever takes a second step.
    while at < core.start && count(text.get(at..core.end).unwrap_or_default()) > size {
        at = places.characters.after(at + (core.start - at) / 2).unwrap_or(core.start);
    }
    at
}

/// Offsets at which a chunk may begin, ascending.
#[derive(Default)]
struct Places {
    sentences: Ascending,
    words: Ascending,
    characters: Ascending,
}

impl Places {
    /// `whole` says that the tail is the whole part before, whose start is as good as that of a sentence.
    fn of(tail: &str, base: usize, whole: bool) -> Self {
        let mut places = Self::default();
        if whole {
            places.sentences.0.push(base);
            places.words.0.push(base);
            places.characters.0.push(base);
        }
        let mut previous: Option<&str> = None;
        let mut ended = false;
        for (offset, cluster) in tail.grapheme_indices(true) {
            let space = cluster.chars().all(char::is_whitespace);
            let after_space = previous.is_some_and(|p| p.chars().all(char::is_whitespace));
            let after_wide_stop = previous.is_some_and(|p| matches!(p, "。" | "！" | "？"));
            // The first cluster may be the end of one that begins before the tail.
            if !space && previous.is_some() {
                places.characters.0.push(base + offset);
                if after_space || after_wide_stop {
                    places.words.0.push(base + offset);
                }
                if (after_space && ended) || after_wide_stop {
                    places.sentences.0.push(base + offset);
                }
            }
            if !space {
                ended = matches!(cluster, "." | "!" | "?" | "。" | "！" | "？" | "…");
            } else if cluster.contains('\n') {
                ended = true;
            }
            previous = Some(cluster);
        }
        places
    }
}

#[derive(Default)]
struct Ascending(Vec<usize>);

impl Ascending {
    /// The first place from which the overlap fits. Sizes shrink from place to place, so halving finds it.
    fn first_fit(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let index = self.0.partition_point(|at| !fits(*at));
        self.0.get(index).copied()
    }

    /// The first place behind `at`.
    fn after(&self, at: usize) -> Option<usize> {
        self.0.get(self.0.partition_point(|place| *place <= at)).copied()
    }
}
