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

#[cfg(test)]
mod tests {
    use testkit::RoleName;

    use super::*;

    fn sizes(chunks: &[i32]) -> Vec<SegmentSize> {
        (1..).zip(chunks).map(|(id, chunks)| SegmentSize { id, chunks: *chunks }).collect()
    }

    #[test]
    fn the_smallest_are_folded_first_and_never_too_many_chunks() {
        assert_eq!(due(&sizes(&[1; 7])), None);
        assert_eq!(due(&sizes(&[1, 2, 3, 4, 5, 6, 7, 7])).unwrap().len(), 8);
        assert_eq!(due(&sizes(&[1, 8, 1, 8, 1, 8, 1, 8, 1, 8, 1, 8, 1, 8])), None, "seven of each size");
        let mut mixed = vec![100; 8];
        mixed.extend([1; 9]);
        assert_eq!(due(&sizes(&mixed)).unwrap(), (9..=17).collect::<Vec<_>>());
        let large = due(&sizes(&[4_000; 8])).unwrap();
        assert_eq!(large, [1, 2], "as many as have room");
        assert_eq!(due(&sizes(&vec![1; 2_000])).unwrap().len(), MOST_SEGMENTS);
    }

    #[test]
    fn a_store_has_few_segments_however_many_documents_come() {
        let (mut segments, mut next, mut written) = (Vec::new(), 0_i64, 0_i64);
        for _ in 0..20_000 {
            next += 1;
            segments.push(SegmentSize { id: next, chunks: 1 });
            let small = |segments: &Vec<SegmentSize>| {
                segments.iter().copied().filter(|segment| segment.chunks < LARGE).collect::<Vec<_>>()
            };
            while let Some(ids) = due(&small(&segments)) {
                let (gone, kept): (Vec<SegmentSize>, _) =
                    segments.into_iter().partition(|segment| ids.contains(&segment.id));
                let chunks = gone.iter().map(|segment| segment.chunks).sum();
                (segments, next, written) = (kept, next + 1, written + i64::from(chunks));
                segments.push(SegmentSize { id: next, chunks });
            }
        }
        assert!(segments.len() <= 40, "{}", segments.len());
        assert!(written <= 5 * 20_000, "each chunk is written anew a few times: {written}");
    }

    #[tokio::test]
    async fn a_pass_folds_what_is_live_and_forgets_what_is_not() {
        let database = testkit::database().await.unwrap();
        let project = database.insert_project("p", "").await.unwrap();
        let embedding = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await.unwrap();
        let documents = database.insert_document_store(project, embedding, 3).await.unwrap();
        for number in 0..20 {
            database.insert_document(documents, &format!("{number}.txt")).await.unwrap();
        }
        let pool = database.superuser_pool().await.unwrap();
        sqlx::raw_sql(
            "UPDATE documents SET status = 'ready', live_version = content_version;
             INSERT INTO chunks (document_id, content_version, store_id, ordinal, content, char_from, char_to,
                                 token_count, content_hash)
             SELECT id, content_version, store_id, 0, file_name, 0, 1, 1, '' FROM documents;
             INSERT INTO posting_segments (store_id, document_id, content_version, first_ordinal, lengths, chunk_count,
                                           total_length)
             SELECT store_id, id, content_version, 0, '{1}', 1, 1 FROM documents;
             INSERT INTO postings (store_id, term, segment_id, ordinals, frequencies)
             SELECT store_id, 'word', id, '{0}', '{1}' FROM posting_segments;",
        )
        .execute(&pool)
        .await
        .unwrap();
        let store = database.store(RoleName::Backend).unwrap();
        assert_eq!(pass(&store).await.unwrap(), 20);
        let read = async || store.read_lexical(documents, &["word".to_owned()]).await.unwrap();
        let folded = read().await;
        assert_eq!((folded.segments.len(), folded.chunks, folded.postings[0].ordinals.len()), (1, 20, 20));
        assert_eq!(pass(&store).await.unwrap(), 0);

        // A few that go are left in it, many are not.
        for (gone, left) in [(2, 20), (8, 12)] {
            let delete = "DELETE FROM documents WHERE id IN (SELECT id FROM documents ORDER BY id LIMIT $1)";
            let already =
                20 - sqlx::query_scalar::<_, i64>("SELECT count(*) FROM documents").fetch_one(&pool).await.unwrap();
            sqlx::query(delete).bind(gone - already).execute(&pool).await.unwrap();
            sqlx::query("UPDATE document_stores SET content_revision = content_revision + 1")
                .execute(&pool)
                .await
                .unwrap();
            pass(&store).await.unwrap();
            assert_eq!(read().await.chunks, left);
        }
        sqlx::raw_sql("DELETE FROM documents; UPDATE projects SET store_id = NULL; DELETE FROM document_stores;")
            .execute(&pool)
            .await
            .unwrap();
        pass(&store).await.unwrap();
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM posting_segments").fetch_one(&pool).await.unwrap();
        assert_eq!(left, 0, "what a store leaves goes as well");
    }
}
