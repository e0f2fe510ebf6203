//! Folding the segments of a lexical index: nothing that can be found is lost or found twice, at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::ChunkId;
use store::filters::{SegmentPart, Within};
use store::lexical::Place;
use tokio::task::JoinSet;

use super::*;

/// Chunks with a term and how often, as a search sees them.
async fn found(store: &Store, id: StoreId, term: &str) -> anyhow::Result<Option<BTreeMap<ChunkId, (i16, i32)>>> {
    let read = store.read_lexical(id, &[term.to_owned()]).await?;
    let (mut places, mut about) = (Vec::new(), Vec::new());
    for posting in &read.postings {
        let segment = read.segments.iter().find(|segment| segment.id == posting.segment);
        let segment = segment.ok_or_else(|| anyhow::anyhow!("a posting without its segment"))?;
        for (ordinal, frequency) in posting.ordinals.iter().zip(&posting.frequencies) {
            let place = usize::try_from(ordinal - segment.first_ordinal)?;
            places.push((posting.segment, *ordinal));
            about.push((*frequency, segment.lengths[place]));
        }
    }
    let resolved = store.resolve_places(id, &places).await?;
    if resolved.contains(&Place::Moved) {
        return Ok(None);
    }
    let mut chunks = BTreeMap::new();
    for (place, about) in resolved.into_iter().zip(about) {
        if let Place::Chunk(chunk) = place {
            anyhow::ensure!(chunks.insert(chunk, about).is_none(), "a chunk is found twice");
        }
    }
    Ok(Some(chunks))
}

/// The same, read again as long as folds come in between.
async fn settled(store: &Store, id: StoreId, term: &str) -> anyhow::Result<BTreeMap<ChunkId, (i16, i32)>> {
    testkit::eventually("the segments of a search stay where they are", || found(store, id, term)).await
}

impl Fixture {
    /// Documents of one to three chunks that are ready.
    async fn add_ready(&self, store: StoreId, count: i64) -> anyhow::Result<Vec<DocumentId>> {
        let documents = self.add_documents(store, count).await?;
        for claim in self.claim("w", StoreId(0), count).await?.documents {
            let chunks = 1 + i32::try_from(claim.key.document.0 % 3)?;
            assert!(self.write(claim.key, 0..chunks).await?);
            assert!(self.store.finish_document(claim.key, &finish(chunks), LEASE).await?);
        }
        Ok(documents)
    }

    async fn small(&self, store: StoreId) -> anyhow::Result<Vec<i64>> {
        let segments = self.store.list_small_segments(store, 1000, 1000).await?;
        Ok(segments.into_iter().map(|segment| segment.id).collect())
    }
}

#[tokio::test]
async fn a_folded_index_says_the_same_and_forgets_what_is_gone() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let (id, other) = (fixture.add_store("s", 0).await?, fixture.add_store("o", 0).await?);
    let documents = fixture.add_ready(id, 20).await?;
    fixture.add_ready(other, 2).await?;
    // One that is being written is no part of it.
    fixture.add_documents(id, 1).await?;
    let writing = fixture.claim_one().await?;
    fixture.write(writing.key, 0..3).await?;

    let (store, edge) = (&fixture.store, fixture.database.store(RoleName::Edge)?);
    let before = settled(&edge, id, "every").await?;
    let at0 = settled(&edge, id, "at0").await?;
    let corpus = store.read_lexical(id, &[]).await?;
    assert_eq!((at0.len(), i64::try_from(before.len())?), (20, corpus.chunks));
    assert_eq!(store.list_stores_to_fold(8).await?, [id]);

    let revision = store.find_content_revision(id).await?.unwrap();
    let mut segments = fixture.small(id).await?;
    assert_eq!(segments.len(), 20);
    segments.extend(fixture.small(other).await?);
    let fold = store.fold_segments(id, &segments, revision).await?;
    assert_eq!((fold.segments, fold.chunks), (20, corpus.chunks), "segments of other stores are no part of it");
    assert_eq!(fixture.small(id).await?.len(), 1);
    assert_eq!(settled(&edge, id, "every").await?, before);
    assert_eq!(settled(&edge, id, "at0").await?, at0);
    let after = store.read_lexical(id, &[]).await?;
    assert_eq!((after.chunks, after.terms), (corpus.chunks, corpus.terms));
    assert_eq!(
        settled(&edge, other, "every").await?.len(),
        usize::try_from(store.read_lexical(other, &[]).await?.chunks)?
    );

    // What a filter leaves of it are places.
    let within = Within { documents: documents[3..5].to_vec(), chunks: 0 };
    let folded = fixture.small(id).await?[0];
    let parts = store.list_segment_parts(id, &[folded, 0], &within).await?;
    assert_eq!(parts[&0], SegmentPart::Moved);
    let SegmentPart::Places(places) = &parts[&folded] else { anyhow::bail!("no places: {parts:?}") };
    let places: Vec<(i64, i32)> = places.iter().map(|place| (folded, *place)).collect();
    let of_them: Vec<i64> = sqlx::query_scalar("SELECT id FROM chunks WHERE document_id IN ($1, $2) ORDER BY id")
        .bind(documents[3].0)
        .bind(documents[4].0)
        .fetch_all(&fixture.pool)
        .await?;
    let resolved = store.resolve_places(id, &places).await?;
    assert_eq!(resolved, of_them.into_iter().map(|chunk| Place::Chunk(ChunkId(chunk))).collect::<Vec<_>>());

    // The one that was being written is found like any other, and folded with the rest.
    assert!(store.finish_document(writing.key, &finish(3), LEASE).await?);
    let with_it = settled(&edge, id, "every").await?;
    assert_eq!(with_it.len(), before.len() + 3);
    store.fold_segments(id, &fixture.small(id).await?, revision).await?;
    assert_eq!((fixture.small(id).await?.len(), settled(&edge, id, "every").await?), (1, with_it));

    // A document that goes takes nothing out of the folded segment, and is not found all the same.
    let entry = AuditEntry::new(Actor::named("test"), "document.delete");
    for document in &documents[..10] {
        store.delete_document(Reach::All, *document, &entry).await?;
    }
    let left = settled(&edge, id, "at0").await?;
    assert_eq!(left.len(), 11);
    let changed = store.find_changed_segment(0).await?.unwrap();
    assert!(changed.store == id && changed.live < i64::from(changed.chunks));
    let worn = store.fold_segments(id, &[changed.id], changed.content_revision).await?;
    assert_eq!((worn.segments, worn.chunks), (1, changed.live));
    assert_eq!(settled(&edge, id, "at0").await?, left);
    assert_eq!(store.find_changed_segment(0).await?, None);

    // Without any live chunk nothing is left of it.
    sqlx::query("DELETE FROM documents WHERE store_id = $1").bind(id.0).execute(&fixture.pool).await?;
    assert_eq!(store.fold_segments(id, &fixture.small(id).await?, 0).await?.chunks, 0);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM postings WHERE store_id = $1")
        .bind(id.0)
        .fetch_one(&fixture.pool)
        .await?;
    assert_eq!((left, fixture.small(id).await?.len()), (0, 0));
    Ok(())
}

#[tokio::test]
async fn folds_at_once_writers_and_searches_are_not_in_each_others_way() -> anyhow::Result<()> {
    let fixture = Arc::new(fixture().await?);
    let id = fixture.add_store("s", 0).await?;
    fixture.add_ready(id, 40).await?;
    let before = settled(&fixture.store, id, "at0").await?;
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..3 {
        let fixture = Arc::clone(&fixture);
        tasks.spawn(async move {
            for _ in 0..6 {
                for four in fixture.small(id).await?.chunks(4) {
                    fixture.store.fold_segments(id, four, 0).await?;
                }
            }
            Ok(())
        });
    }
    let writer = Arc::clone(&fixture);
    tasks.spawn(async move { writer.add_ready(id, 10).await.map(|_| ()) });
    let mut reads = 0;
    while !tasks.is_empty() {
        if let Some(chunks) = found(&fixture.store, id, "at0").await? {
            assert!(before.keys().all(|chunk| chunks.contains_key(chunk)), "a chunk was not found for a moment");
            reads += 1;
        }
        while let Some(done) = tasks.try_join_next() {
            done??;
        }
    }
    assert!(reads > 0 && settled(&fixture.store, id, "at0").await?.len() == 50);
    let segments = fixture.small(id).await?;
    assert!(segments.len() < 30, "{}", segments.len());
    Ok(())
}
