//! Folding the segments of lexical indexes. Every replica does it; what one has in hand the others leave alone.
//!
//! A segment is folded with others of its size, eight times as large each time, so that a chunk is written anew a few
//! times in its life and a store has a few dozen segments, however many documents it has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::StoreId;
use store::lexical::SegmentSize;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Between two passes, if the last one was quick.
const EVERY: Duration = Duration::from_secs(20);
/// A pass is followed by a pause of at least this many times its length: at most a tenth of the time is spent on it.
const REST: u32 = 10;
/// The longest pause.
const SELDOM: Duration = Duration::from_secs(600);

/// So many segments of one size are folded into one of the next.
const FAN_IN: usize = 8;
/// Chunks of a segment that is not folded any more.
const LARGE: i32 = 4_096;
/// Chunks and segments of one fold.
const MOST_CHUNKS: i32 = 8_192;
const MOST_SEGMENTS: usize = 512;
/// Small segments looked at for one fold.
const WINDOW: i64 = 5_000;
/// A folded segment is written anew when this share of its chunks is not live any more.
const WORN_SHARE: f64 = 0.2;
/// Between two folds.
const BREATH: Duration = Duration::from_millis(50);

/// Passes, from now on until it is told to stop.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        let began = Instant::now();
        match stop.run_until_cancelled(pass(&app.store)).await {
            None => return,
            Some(Ok(0)) => {}
            Some(Ok(folded)) => tracing::debug!(folded, "segments of lexical indexes are folded"),
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "segments of lexical indexes cannot be folded now and are tried again");
            }
        }
        let pause = began.elapsed().saturating_mul(REST).clamp(EVERY, SELDOM);
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Folds what is due; returns how many segments are gone.
async fn pass(store: &Store) -> Result<i64, StoreError> {
    let mut gone = 0;
    for due in store.list_stores_to_fold(FAN_IN as i64).await? {
        gone += fold_store(store, due).await?;
    }
    let mut after = 0;
    while let Some(changed) = store.find_changed_segment(after).await? {
        after = changed.id;
        if changed.live as f64 >= f64::from(changed.chunks) * (1.0 - WORN_SHARE) {
            store.note_segment_checked(changed.id, changed.content_revision).await?;
        } else {
            gone += store.fold_segments(changed.store, &[changed.id], changed.content_revision).await?.segments;
        }
    }
    store.delete_orphaned_segments().await?;
    Ok(gone)
}

async fn fold_store(store: &Store, id: StoreId) -> Result<i64, StoreError> {
    let mut gone = 0;
    while let Some(revision) = store.find_content_revision(id).await?
        && let Some(segments) = due(&store.list_small_segments(id, LARGE, WINDOW).await?)
    {
        let folded = store.fold_segments(id, &segments, revision).await?.segments;
        gone += folded;
        if folded < 2 {
            // Another process has them.
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(gone)
}

/// Segments to be folded into one: the oldest of the smallest size of which there are enough.
fn due(segments: &[SegmentSize]) -> Option<Vec<i64>> {
    let mut by_size: BTreeMap<u32, Vec<&SegmentSize>> = BTreeMap::new();
    for segment in segments {
        let size = segment.chunks.max(1).unsigned_abs().ilog(FAN_IN as u32);
        by_size.entry(size).or_default().push(segment);
    }
    let same = by_size.into_values().find(|same| same.len() >= FAN_IN)?;
    let mut chunks = 0;
    let fitting = same.iter().take(MOST_SEGMENTS).take_while(|segment| {
        chunks += segment.chunks;
        chunks <= MOST_CHUNKS
    });
    let ids: Vec<i64> = fitting.map(|segment| segment.id).collect();
    (ids.len() > 1).then_some(ids)
}
