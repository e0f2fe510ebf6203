//! The keeper of large stores' vectors: gives a store that has grown a table of its own, takes its vectors there, builds
//! the index, and sweeps and drops what nobody needs any more.
//!
//! Every process has one. Each step is a transaction that holds its table's row, so that one works at a store at a time
//! and a step that is cut off leaves nothing; see [`store::vectors::tables`]. Nothing of it is on anybody's path: searches
//! compare exactly what the index does not have yet.

use std::collections::HashMap;
use std::time::Duration;

use domain::{ChunkId, StoreId};
use store::vectors::tables::{Step, VectorStore};
use store::vectors::{OwnTable, exact_rows};
use store::{Store, StoreError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Between two looks at all stores.
const EVERY: Duration = Duration::from_secs(10);
/// Vectors taken by one statement into a table without an index,
const MOVED_BARE: i64 = 2_000;
/// and into one with it: each is several milliseconds of work, and whoever deletes one of them waits for the statement.
const MOVED_INDEXED: i64 = 100;
/// Statements after which it is the turn of other stores. A table gets its index with what is in it by then.
const MOVED_AT_ONCE: i64 = 500;
/// Between two sweeps of a table. What is to be swept is not seen by searches and costs them next to nothing.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// Vectors looked at by one statement for those whose chunk is gone.
const SWEPT: i64 = 10_000;
/// What a build may take for its graph. A larger store is built more slowly, not with more.
const BUILD_MEMORY_MIB: u32 = 256;

/// Keeps the tables of large stores.
pub(crate) struct Keeper {
    store: Store,
    every: Duration,
    sweep_every: Duration,
    /// Vectors of a width above which a store gets a table of its own.
    limit: fn(i32) -> i64,
    /// Stores that were counted and are small: the state of their content then.
    small: HashMap<StoreId, i64>,
}

impl Keeper {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, every: EVERY, sweep_every: SWEEP_EVERY, limit: exact_rows, small: HashMap::new() }
    }

    /// Looks again and again until it is told to stop. A step that is under way then is dropped, and its transaction
    /// with it.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            match stop.run_until_cancelled(self.look()).await {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "the vectors of large stores could not be looked after");
                }
            }
            let pause = self.every.mul_f64(rand::random_range(0.9..1.1));
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// One look at all stores. What fails for one store does not keep the others from their turn.
    pub(crate) async fn look(&mut self) -> Result<(), StoreError> {
        for (store, width) in self.store.list_obsolete_vector_tables().await? {
            match self.store.drop_vector_table(store, width).await {
                Ok(true) => tracing::info!(store_id = store.0, width, "a table of vectors was dropped"),
                // Somebody is at it: with the next look.
                Ok(false) | Err(StoreError::Conflict) => {}
                Err(error) => left_alone(store, &error),
            }
        }
        let stores = self.store.list_vector_stores(self.sweep_every).await?;
        self.small.retain(|small, _| stores.binary_search_by_key(small, |store| store.store).is_ok());
        for store in stores {
            if let Err(error) = self.keep(&store).await {
                left_alone(store.store, &error);
            }
        }
        Ok(())
    }

    async fn keep(&mut self, store: &VectorStore) -> Result<(), StoreError> {
        let own = match store.own {
            Some(own) => own,
            None if self.has_grown(store).await? => {
                self.store.open_vector_table(store.store).await?;
                OwnTable {
                    store: store.store,
                    width: store.width,
                    revision: store.revision,
                    indexed: false,
                    vectors: 0,
                }
            }
            None => return Ok(()),
        };
        let Some(moved) = self.fill(&own).await? else { return Ok(()) };
        if !own.indexed && self.store.index_vector_table(&own, BUILD_MEMORY_MIB).await? {
            tracing::info!(store_id = own.store.0, moved, "the vectors of a store have an index");
        }
        if store.sweep_due {
            self.sweep(&own, store.content_revision).await?;
        }
        Ok(())
    }

    /// Whether a store has more vectors than can be compared one by one. One that has not changed is not counted again.
    async fn has_grown(&mut self, store: &VectorStore) -> Result<bool, StoreError> {
        if self.small.get(&store.store) == Some(&store.content_revision) {
            return Ok(false);
        }
        let limit = (self.limit)(store.width);
        let counted = self.store.count_shared_vectors(store.store, store.width, limit.saturating_add(1)).await?;
        if counted <= limit {
            self.small.insert(store.store, store.content_revision);
            return Ok(false);
        }
        tracing::info!(store_id = store.store.0, width = store.width, limit, "a store gets a table for its vectors");
        Ok(true)
    }

    /// Takes vectors to a store's own table until there are no more, or it is the turn of others. Returns how many;
    /// `None` when another process is at it.
    async fn fill(&self, own: &OwnTable) -> Result<Option<i64>, StoreError> {
        let batch = if own.indexed { MOVED_INDEXED } else { MOVED_BARE };
        let mut moved = 0;
        while moved < batch.saturating_mul(MOVED_AT_ONCE) {
            match self.store.move_vectors(own, batch).await? {
                Step::NotOurs => return Ok(None),
                Step::Done(some) => {
                    moved += some;
                    if some < batch {
                        break;
                    }
                }
            }
        }
        Ok(Some(moved))
    }

    async fn sweep(&self, own: &OwnTable, content_revision: i64) -> Result<(), StoreError> {
        let (mut after, mut removed) = (ChunkId(0), 0);
        while let Some(swept) = self.store.sweep_vectors(own, content_revision, after, SWEPT).await? {
            removed += swept.removed;
            match swept.looked_at {
                Some(last) => after = last,
                None => break,
            }
        }
        if removed > 0 {
            tracing::debug!(store_id = own.store.0, removed, "vectors of chunks that are gone were removed");
        }
        Ok(())
    }
}

fn left_alone(store: StoreId, error: &StoreError) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(error, store_id = store.0, "the vectors of a store could not be looked after");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use domain::DocumentId;
    use store::Reach;
    use store::audit::{Actor, AuditEntry};
    use store::ingest::{NewChunk, NewSegment};
    use store::vectors::nearest::Nearest;
    use testkit::{RoleName, TestDatabase, work};
    use tokio::task::yield_now;

    use super::*;

    const WIDTH: i32 = 8;
    const LIMIT: i64 = 100;
    /// The vectors that are searched for, nearest of all.
    const STABLE: i32 = 40;

    struct Scene {
        database: TestDatabase,
        store: StoreId,
    }

    async fn scene() -> anyhow::Result<Scene> {
        let database = testkit::database().await?;
        let project = database.insert_project("p", "").await?;
        let connection = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await?;
        let store = database.insert_document_store(project, connection, WIDTH).await?;
        Ok(Scene { database, store })
    }

    impl Scene {
        fn keeper(&self) -> anyhow::Result<Keeper> {
            let store = self.database.store(RoleName::Backend)?;
            Ok(Keeper { sweep_every: Duration::ZERO, limit: |_| LIMIT, ..Keeper::new(store) })
        }

        /// Writes a document as a worker does; returns whichever it got to claim.
        async fn add(&self, backend: &Store, chunks: std::ops::Range<i32>) -> anyhow::Result<DocumentId> {
            self.database.insert_document(self.store, "a.txt").await?;
            let request = work::claim_request("host/1/aaaaaaaa", StoreId(0), 1);
            let claim = testkit::eventually("a document to claim", || async {
                Ok(backend.claim_documents(&request).await?.documents.pop())
            })
            .await?;
            let rows: Vec<NewChunk> = (0..).zip(chunks).map(|(ordinal, number)| chunk(ordinal, number)).collect();
            let segment = NewSegment { lengths: vec![1; rows.len()], postings: Vec::new() };
            work::complete(backend, claim.key, &rows, &segment).await?;
            Ok(claim.key.document)
        }

        /// The nearest vectors, through the index as soon as there is one; and whether there was.
        async fn search(&self, edge: &Store, limit: i64) -> anyhow::Result<(Vec<ChunkId>, bool)> {
            let settings = edge.find_search_settings(self.store).await?.unwrap();
            let request = Nearest {
                settings: &settings,
                vector: &vector(0),
                limit,
                within: None,
                deadline: Duration::from_secs(10),
                exact_rows: Some(LIMIT),
            };
            let found = edge.nearest_chunks(&request).await?;
            Ok((found.hits.iter().map(|hit| hit.chunk).collect(), !found.plan.is_exhaustive()))
        }
    }

    fn vector(number: i32) -> Vec<f32> {
        let mut vector = vec![0.1; usize::try_from(WIDTH).unwrap()];
        vector[0] = 1.0;
        vector[1] = number as f32 / 50.0;
        // Those that come later are apart from each other as well.
        vector[2] = (number.rem_euclid(37)) as f32 / 200.0;
        vector
    }

    fn chunk(ordinal: i32, number: i32) -> NewChunk {
        work::plain_chunk(ordinal, &format!("passage {number}"), vector(number))
    }

    #[tokio::test]
    async fn a_store_that_grows_is_moved_indexed_and_dropped_again() -> anyhow::Result<()> {
        let scene = scene().await?;
        let (backend, edge) = (scene.database.store(RoleName::Backend)?, scene.database.store(RoleName::Edge)?);
        let mut keeper = scene.keeper()?;
        scene.add(&backend, 0..100).await?;
        keeper.look().await?;
        assert!(backend.list_vector_stores(Duration::ZERO).await?[0].own.is_none(), "it is not large yet");
        let second = scene.add(&backend, 100..150).await?;
        keeper.look().await?;
        let own = backend.list_vector_stores(Duration::ZERO).await?[0].own.unwrap();
        assert_eq!((own.indexed, own.vectors), (true, 150));
        let (found, by_index) = scene.search(&edge, 20).await?;
        assert_eq!((found.len(), by_index), (20, true));

        let entry = AuditEntry::new(Actor::named("test"), "document.delete");
        backend.delete_document(Reach::All, second, &entry).await?;
        while backend.delete_old_versions(second).await? {}
        backend.remove_document(second).await?;
        scene.add(&backend, 150..160).await?;
        keeper.look().await?;
        let own = backend.list_vector_stores(Duration::ZERO).await?[0].own.unwrap();
        assert_eq!(own.vectors, 110, "fifty went and ten came");
        for document in scene.database.document_ids(scene.store).await? {
            backend.delete_document(Reach::All, document, &entry).await?;
            while backend.delete_old_versions(document).await? {}
            backend.remove_document(document).await?;
        }
        assert!(scene.search(&edge, 20).await?.0.is_empty());
        backend.delete_document_store(Reach::All, scene.store, &entry).await?;
        keeper.look().await?;
        assert!(backend.list_obsolete_vector_tables().await?.is_empty() && keeper.small.is_empty());
        Ok(())
    }

    /// Searchers, writers, a deleter and somebody who ends the keeper's sessions wherever they are: no search misses one of
    /// the vectors that stay, and no snapshot has a live chunk without a vector or with two.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_missed_or_doubled_while_a_store_is_moved() -> anyhow::Result<()> {
        let scene = scene().await?;
        let backend = scene.database.store(RoleName::Backend)?;
        let edge = scene.database.store(RoleName::Edge)?;
        scene.add(&backend, 0..STABLE).await?;
        let stable: Vec<ChunkId> = scene.search(&edge, i64::from(STABLE)).await?.0;
        assert_eq!(stable.len(), usize::try_from(STABLE)?);
        let watch = scene.database.watch_vectors(scene.store, WIDTH).await?;
        let (done, looked, ended, indexed) =
            (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));

        let keep = async {
            let mut keeper = scene.keeper()?;
            while !done.load(Ordering::Relaxed) {
                // A session that was ended is an error like any other; the next look goes on.
                let _ = keeper.look().await;
            }
            keeper.look().await?;
            keeper.look().await?;
            anyhow::Ok(())
        };
        let write = async {
            let entry = AuditEntry::new(Actor::named("test"), "document.delete");
            let (mut next, mut mine) = (1_000, Vec::new());
            // Until sessions were ended often, and enough was found through the index beside that.
            while ended.load(Ordering::Relaxed) < 10 || indexed.load(Ordering::Relaxed) < 20 || next < 2_500 {
                mine.push(scene.add(&backend, next..next + 25).await?);
                next += 25;
                if mine.len() > 10 {
                    let gone = mine.remove(mine.len().div_euclid(2));
                    testkit::until("it is deleted", || async {
                        match backend.delete_document(Reach::All, gone, &entry).await {
                            Ok(()) => Ok(true),
                            Err(StoreError::Conflict) => Ok(false),
                            Err(error) => Err(error.into()),
                        }
                    })
                    .await?;
                }
                anyhow::ensure!(next < 100_000, "the keeper was not met at its work");
            }
            done.store(true, Ordering::Relaxed);
            anyhow::Ok(())
        };
        let search = async {
            while !done.load(Ordering::Relaxed) {
                let (found, by_index) = scene.search(&edge, i64::from(STABLE) + 10).await?;
                let missing = stable.iter().filter(|chunk| !found.contains(chunk)).count();
                anyhow::ensure!(missing == 0, "{missing} are missing; by index: {by_index}");
                indexed.fetch_add(usize::from(by_index), Ordering::Relaxed);
                looked.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let count = async {
            while !done.load(Ordering::Relaxed) {
                let misplaced = watch.misplaced().await?;
                anyhow::ensure!(misplaced == 0, "{misplaced} chunks do not have one vector");
            }
            Ok(())
        };
        let end = async {
            while !done.load(Ordering::Relaxed) {
                if ended.load(Ordering::Relaxed) < 10 {
                    ended.fetch_add(watch.end_steps().await?, Ordering::Relaxed);
                }
                yield_now().await;
            }
            Ok(())
        };
        tokio::try_join!(keep, write, search, count, end)?;
        assert!(looked.load(Ordering::Relaxed) > 20 && ended.load(Ordering::Relaxed) >= 10);
        let own = backend.list_vector_stores(Duration::from_secs(3600)).await?[0].own.unwrap();
        assert!(own.indexed);
        assert_eq!(watch.misplaced().await?, 0);
        assert_eq!(backend.count_shared_vectors(scene.store, WIDTH, 10).await?, 0, "all are in its own table");
        Ok(())
    }
}
