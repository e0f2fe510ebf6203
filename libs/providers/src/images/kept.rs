//! Images fetched lately.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Image;

const MAX_IMAGES: usize = 64;
const MAX_TOTAL_BYTES: usize = 256 * 1024 * 1024;
const KEEP_FOR: Duration = Duration::from_secs(10 * 60);

/// Images by URL: at most 64, for ten minutes, and all together at most as large as 64 of the largest or 256 MiB. What
/// was used longest ago makes room.
#[derive(Debug)]
pub(super) struct Kept {
    max_total_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    total_bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    image: Image,
    until: Instant,
    used: u64,
}

impl Kept {
    pub(super) fn new(max_image_bytes: usize) -> Self {
        Self {
            max_total_bytes: max_image_bytes.saturating_mul(MAX_IMAGES).min(MAX_TOTAL_BYTES),
            state: Mutex::default(),
        }
    }

    pub(super) fn get(&self, url: &str) -> Option<Image> {
        let mut state = self.state();
        state.uses += 1;
        let uses = state.uses;
        let entry = state.entries.get_mut(url)?;
        if entry.until <= Instant::now() {
            state.remove(url);
            return None;
        }
        entry.used = uses;
        Some(entry.image.clone())
    }

    pub(super) fn keep(&self, url: String, image: Image) {
        // One that would throw out all the others is not worth it.
        if image.data.len() > self.max_total_bytes / 2 {
            return;
        }
        let now = Instant::now();
        let mut state = self.state();
        state.remove(&url);
        while state.entries.len() >= MAX_IMAGES || state.total_bytes + image.data.len() > self.max_total_bytes {
            let oldest = state.entries.iter().min_by_key(|(_, entry)| (entry.until > now, entry.used));
            let Some(url) = oldest.map(|(url, _)| url.clone()) else { break };
            state.remove(&url);
        }
        state.uses += 1;
        state.total_bytes += image.data.len();
        let entry = Entry { image, until: now + KEEP_FOR, used: state.uses };
        state.entries.insert(url, entry);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, url: &str) {
        if let Some(entry) = self.entries.remove(url) {
            self.total_bytes -= entry.image.data.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn image(length: usize) -> Image {
        Image { media_type: "image/png".to_owned(), data: Bytes::from(vec![7; length]) }
    }

    fn shape(kept: &Kept) -> (usize, usize) {
        let state = kept.state();
        assert_eq!(state.total_bytes, state.entries.values().map(|entry| entry.image.data.len()).sum::<usize>());
        (state.entries.len(), state.total_bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_is_kept_for_ten_minutes_whether_used_or_not() {
        let kept = Kept::new(100);
        kept.keep("a".to_owned(), image(10));
        tokio::time::advance(KEEP_FOR - Duration::from_millis(1)).await;
        assert_eq!(kept.get("a"), Some(image(10)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((kept.get("a"), shape(&kept)), (None, (0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_used_longest_ago_makes_room() {
        let kept = Kept::new(1);
        for index in 0..MAX_IMAGES {
            kept.keep(index.to_string(), image(1));
        }
        assert!(kept.get("0").is_some());
        kept.keep("new".to_owned(), image(1));
        assert_eq!((kept.get("0").is_some(), kept.get("1").is_some(), shape(&kept)), (true, false, (64, 64)));
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_bounded_too_and_replacing_counts_once() {
        let kept = Kept { max_total_bytes: 10, state: Mutex::default() };
        kept.keep("a".to_owned(), image(4));
        kept.keep("a".to_owned(), image(5));
        kept.keep("b".to_owned(), image(5));
        assert_eq!(shape(&kept), (2, 10));
        kept.keep("c".to_owned(), image(1));
        assert_eq!((kept.get("a"), shape(&kept)), (None, (2, 6)));
        kept.keep("d".to_owned(), image(6));
        assert_eq!((kept.get("d"), shape(&kept)), (None, (2, 6)));
        assert_eq!(Kept::new(8 << 20).max_total_bytes, 256 << 20);
        assert_eq!(Kept::new(1 << 20).max_total_bytes, 64 << 20);
    }
}
