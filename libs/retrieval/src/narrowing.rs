//! Searches that may find some documents only.

use std::collections::HashMap;
use std::time::Duration;

use store::filters::{SegmentPart, Within};
use store::lexical::Posting;

use crate::search::{Retrieval, RetrievalError, Search};

const FILTER_DEADLINE: Duration = Duration::from_secs(2);

impl Retrieval {
    /// The documents that a search may find; `None` where it may find all. Both legs look among them and nowhere else,
    /// so that nobody gets what was to be left out because something failed: without them there is no search.
    pub(crate) async fn within(&self, search: &Search<'_>) -> Result<Option<Within>, RetrievalError> {
        match search.filter.filter(|filter| !filter.is_empty()) {
            None => Ok(None),
            Some(filter) => self
                .store
                .list_documents_within(search.store, filter, FILTER_DEADLINE)
                .await
                .map(Some)
                .map_err(RetrievalError::Store),
        }
    }
}

/// Leaves of postings what a filter leaves of their segments. Returns whether all segments were still there.
pub(crate) fn narrow(postings: &mut Vec<Posting>, parts: &HashMap<i64, SegmentPart>) -> bool {
    postings.retain_mut(|posting| match parts.get(&posting.segment) {
        None | Some(SegmentPart::Moved) => false,
        Some(SegmentPart::Whole) => true,
        Some(SegmentPart::Places(places)) => {
            let both = posting.ordinals.iter().zip(&posting.frequencies);
            let left = both.filter(|(ordinal, _)| places.binary_search(ordinal).is_ok());
            (posting.ordinals, posting.frequencies) = left.map(|(ordinal, frequency)| (*ordinal, *frequency)).unzip();
            !posting.ordinals.is_empty()
        }
    });
    !parts.values().any(|part| *part == SegmentPart::Moved)
}

/// So many terms as the chunks that a filter leaves would have if they were like the others.
pub(crate) fn share(terms: i64, chunks: i64, left: i64) -> i64 {
    let terms = i128::from(terms) * i128::from(left) / i128::from(chunks.max(1));
    i64::try_from(terms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posting(segment: i64, ordinals: &[i32]) -> Posting {
        Posting {
            term: "a".to_owned(),
            segment,
            ordinals: ordinals.to_vec(),
            frequencies: ordinals.iter().map(|ordinal| i16::try_from(*ordinal).unwrap()).collect(),
        }
    }

    #[test]
    fn postings_keep_the_places_that_are_left() {
        let mut postings = vec![posting(1, &[0, 2]), posting(2, &[1, 3, 5]), posting(3, &[0]), posting(4, &[7])];
        let parts = HashMap::from([
            (1, SegmentPart::Whole),
            (2, SegmentPart::Places(vec![0, 3, 5])),
            (4, SegmentPart::Places(vec![6])),
        ]);
        assert!(narrow(&mut postings, &parts));
        let left: Vec<_> = postings.iter().map(|p| (p.segment, p.ordinals.clone(), p.frequencies.clone())).collect();
        assert_eq!(left, [(1, vec![0, 2], vec![0, 2]), (2, vec![3, 5], vec![3, 5])]);
        assert!(!narrow(&mut postings, &HashMap::from([(1, SegmentPart::Moved)])));
        assert!(postings.is_empty());
        assert_eq!((share(1_000, 10, 3), share(5, 0, 0), share(i64::MAX, 2, 2)), (300, 0, i64::MAX));
    }
}
