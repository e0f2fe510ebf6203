//! The vectors of queries that were asked a short while ago.
//!
//! A conversation asks the same question again, and so do many people of one project. A vector depends on the model and
//! the text alone, so it needs no time of its own: it is right as long as the model's revision is. Projects do not share,
//! since one would learn from the time of an answer, and from its price, what another has asked. The text is not kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use domain::{EmbeddingRevisionId, ProjectId};
use sha2::{Digest, Sha256};

/// About 2,000 vectors of 1,536 dimensions.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// What an entry takes beside its vector.
const ENTRY_BYTES: usize = 256;

/// Whose query, embedded by which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueryKey {
    project: ProjectId,
    revision: EmbeddingRevisionId,
    text: [u8; 32],
}

impl QueryKey {
    pub(crate) fn new(project: ProjectId, revision: EmbeddingRevisionId, text: &str) -> Self {
        Self { project, revision, text: Sha256::digest(text.as_bytes()).into() }
    }
}

/// Vectors by query; the one that was not asked for the longest goes first.
#[derive(Debug, Default)]
pub(crate) struct QueryCache {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<QueryKey, (Arc<[f32]>, u64)>,
    by_use: BTreeMap<u64, QueryKey>,
    uses: u64,
    bytes: usize,
}

impl QueryCache {
    pub(crate) fn get(&self, key: &QueryKey) -> Option<Arc<[f32]>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        let (vector, used) = kept.entries.get_mut(key)?;
        kept.by_use.remove(used);
        kept.uses += 1;
        *used = kept.uses;
        kept.by_use.insert(kept.uses, *key);
        Some(Arc::clone(vector))
    }

    pub(crate) fn put(&self, key: QueryKey, vector: Arc<[f32]>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&key);
        kept.uses += 1;
        let now = kept.uses;
        kept.bytes += size(&vector);
        kept.entries.insert(key, (vector, now));
        kept.by_use.insert(now, key);
        while kept.bytes > MOST_BYTES
            && let Some((_, oldest)) = kept.by_use.first_key_value()
        {
            let oldest = *oldest;
            kept.remove(&oldest);
        }
    }
}

impl Kept {
    fn remove(&mut self, key: &QueryKey) {
        if let Some((vector, used)) = self.entries.remove(key) {
            self.by_use.remove(&used);
            self.bytes = self.bytes.saturating_sub(size(&vector));
        }
    }
}

fn size(vector: &[f32]) -> usize {
    size_of_val(vector) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(project: i64, revision: i64, text: &str) -> QueryKey {
        QueryKey::new(ProjectId(project), EmbeddingRevisionId(revision), text)
    }

    #[test]
    fn a_vector_is_found_by_project_model_and_text() {
        let cache = QueryCache::default();
        cache.put(key(1, 1, "a"), Arc::from([1.0]));
        assert_eq!(cache.get(&key(1, 1, "a")).as_deref(), Some([1.0].as_slice()));
        for other in [key(2, 1, "a"), key(1, 2, "a"), key(1, 1, "b")] {
            assert_eq!(cache.get(&other), None);
        }
    }

    #[test]
    fn the_one_not_asked_for_longest_goes_first() {
        let cache = QueryCache::default();
        let vector: Arc<[f32]> = Arc::from(vec![0.0; 1_000_000]);
        for text in ["a", "b", "c", "d"] {
            cache.put(key(1, 1, text), Arc::clone(&vector));
        }
        assert!(cache.get(&key(1, 1, "a")).is_some());
        cache.put(key(1, 1, "c"), Arc::clone(&vector));
        cache.put(key(1, 1, "e"), vector);
        let left = ["a", "b", "c", "d", "e"].map(|text| cache.get(&key(1, 1, text)).is_some());
        assert_eq!(left, [true, false, true, true, true]);
        let kept = cache.kept.lock().unwrap();
        assert!(kept.bytes <= MOST_BYTES && kept.entries.len() == kept.by_use.len());
        assert_eq!(kept.bytes, kept.entries.values().map(|(vector, _)| size(vector)).sum::<usize>());
    }
}
