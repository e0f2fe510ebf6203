//! What a claim writes, and what becomes of it.

use store::lexical::Place;
use store::search::{SearchSettings, VectorHit};
use store::vectors::nearest::Nearest;

use super::*;

async fn nearest(
    edge: &Store,
    settings: &SearchSettings,
    vector: &[f32],
    limit: i64,
) -> Result<Vec<VectorHit>, StoreError> {
    let deadline = Duration::from_secs(5);
    let request = Nearest { settings, vector, limit, within: None, deadline, exact_rows: None };
    Ok(edge.nearest_chunks(&request).await?.hits)
}

#[tokio::test]
async fn a_new_version_becomes_searchable_in_one_step_and_replaces_the_old() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let edge = fixture.database.store(RoleName::Edge)?;
    let settings = edge.find_search_settings(store).await?.unwrap();
    let seen = || async {
        let hits = nearest(&edge, &settings, &[1.0, 0.0, 0.0], 10).await?;
        let read = edge.read_lexical(store, &["every".to_owned()]).await?;
        let lexical: usize = read.postings.iter().map(|posting| posting.ordinals.len()).sum();
        anyhow::Ok((hits.len(), lexical, read.chunks))
    };
    let claim = fixture.claim_one().await?;
    fixture.write(claim.key, 0..3).await?;
    assert_eq!(seen().await?, (0, 0, 0), "nothing shows before the finish");
    assert!(fixture.store.finish_document(claim.key, &finish(3), LEASE).await?);
    assert_eq!(seen().await?, (3, 3, 3));

    sqlx::query("UPDATE documents SET content_version = content_version + 1, status = 'pending'")
        .execute(&fixture.pool)
        .await?;
    let claim = fixture.claim_one().await?;
    fixture.write(claim.key, 0..2).await?;
    fixture.write(claim.key, 2..5).await?;
    assert_eq!(seen().await?, (3, 3, 3), "the old version stays until the new one is complete");
    assert!(fixture.store.finish_document(claim.key, &finish(5), LEASE).await?);
    assert_eq!(seen().await?, (5, 5, 5));
    while fixture.store.delete_old_versions(document).await? {}
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM chunks").fetch_one(&fixture.pool).await?;
    let vectors: i64 = sqlx::query_scalar("SELECT count(*) FROM chunk_embeddings_3").fetch_one(&fixture.pool).await?;
    assert_eq!((left, vectors), (5, 5));

    let hits = nearest(&edge, &settings, &[1.0, 4.0, 0.0], 2).await?;
    let passages = edge.list_passages(store, &[hits[0].chunk]).await?;
    assert_eq!((passages[0].content.as_str(), passages[0].page_from), ("passage 4", Some(5)));
    assert!(hits[0].distance < 1e-6 && hits[1].distance > hits[0].distance);
    let read = edge.read_lexical(store, &["at2".to_owned()]).await?;
    let (posting, segment) = (&read.postings[0], &read.segments[0]);
    assert_eq!((posting.ordinals.as_slice(), segment.first_ordinal, segment.lengths.len()), ([2].as_slice(), 2, 3));
    let places = edge.resolve_places(store, &[(segment.id, 2), (segment.id, 99), (0, 2)]).await?;
    assert!(matches!(places[0], Place::Chunk(_)));
    assert_eq!(places[1..], [Place::Gone, Place::Moved]);
    Ok(())
}

#[tokio::test]
async fn what_was_written_under_other_settings_can_be_discarded() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 1).await?;
    let claim = fixture.claim_one().await?;
    fixture.write(claim.key, 0..3).await?;
    let settings = fixture.settings(claim.key).await?;
    assert!(!fixture.store.discard_written_chunks(ClaimKey { token: 99, ..claim.key }).await?);
    assert_eq!(fixture.store.list_written_chunks(claim.key, &settings).await?.len(), 3, "another claim may not");
    assert!(fixture.store.discard_written_chunks(claim.key).await?);
    assert!(fixture.store.list_written_chunks(claim.key, &settings).await?.is_empty());
    assert!(fixture.write(claim.key, 0..2).await?);
    assert!(fixture.store.finish_document(claim.key, &finish(2), LEASE).await?);
    Ok(())
}

#[tokio::test]
async fn vectors_are_remembered_by_project_and_model() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let settings = fixture.store.find_ingest_settings(document).await?.unwrap();
    let hashes = vec![vec![1; 32], vec![2; 32]];
    let vectors = vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
    let claim = fixture.claim_one().await?.key;
    let paid = Paid { tokens: 5, cost: 7 };
    for _ in 0..2 {
        assert!(fixture.store.memoise_embeddings(claim, &settings, &hashes, &vectors, paid).await?);
    }
    let mut found = fixture
        .store
        .find_memoised_embeddings(settings.project, settings.revision, &[vec![2; 32], vec![3; 32], vec![1; 32]])
        .await?;
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, hashes.into_iter().zip(vectors).collect::<Vec<_>>());

    // The document keeps what each claim has paid, also one that does not finish; a lost one adds nothing to it.
    fixture.lapse(document).await?;
    let heir = fixture.claim_one().await?.key;
    let late = [vec![9; 32]];
    assert!(!fixture.store.memoise_embeddings(claim, &settings, &late, &[vec![7.0, 8.0, 9.0]], paid).await?);
    let kept = fixture.store.find_memoised_embeddings(settings.project, settings.revision, &late).await?;
    assert_eq!(kept.len(), 1, "what was paid for is remembered all the same");
    assert!(fixture.store.memoise_embeddings(heir, &settings, &[], &[], paid).await?);
    let price = "SELECT embedded_tokens, embedding_cost FROM documents";
    let price: (i64, i64) = sqlx::query_as(price).fetch_one(&fixture.pool).await?;
    assert_eq!(price, (15, 21));
    Ok(())
}

#[tokio::test]
async fn dead_versions_are_found_and_go_a_bounded_number_at_a_time() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let documents = fixture.add_documents(store, 3).await?;
    let (replaced, writing) = (documents[0], documents[1]);
    let claims = fixture.claim("w", StoreId(0), 3).await?.documents;
    for claim in claims.iter().filter(|claim| claim.key.document != documents[2]) {
        for ordinal in 0..20 {
            assert!(fixture.write(claim.key, ordinal..ordinal + 1).await?);
        }
        assert!(fixture.store.finish_document(claim.key, &finish(20), LEASE).await?);
    }
    let none = fixture.store.list_old_versions(DocumentId(0), 10).await?;
    assert_eq!((none.documents.len(), none.looked_at), (0, Some(documents[2])), "all that is there is live");

    // A worker died after its finish, and beside it a document is being replaced whose live version is still needed.
    let replace = "UPDATE documents SET content_version = 2, live_version = CASE id WHEN $1 THEN 2 ELSE 1 END
                    WHERE id IN ($1, $2)";
    sqlx::query(replace).bind(replaced.0).bind(writing.0).execute(&fixture.pool).await?;
    let found = fixture.store.list_old_versions(DocumentId(0), 10).await?;
    assert_eq!(found.documents, [replaced]);
    let first = fixture.store.list_old_versions(DocumentId(0), 1).await?;
    assert_eq!((first.documents, first.looked_at), (vec![replaced], Some(replaced)));
    assert_eq!(fixture.store.list_old_versions(documents[2], 1).await?.looked_at, None);

    let left = async || -> anyhow::Result<(i64, i64)> {
        let left = "SELECT (SELECT count(*) FROM chunks WHERE document_id = $1),
                           (SELECT count(*) FROM posting_segments WHERE document_id = $1)";
        Ok(sqlx::query_as(left).bind(replaced.0).fetch_one(&fixture.pool).await?)
    };
    assert!(fixture.store.delete_old_versions(replaced).await?, "there is more");
    assert_eq!(left().await?, (0, 4), "one statement does not take every segment");
    assert_eq!(fixture.store.list_old_versions(DocumentId(0), 10).await?.documents, [replaced]);
    assert!(!fixture.store.delete_old_versions(replaced).await?);
    assert_eq!(left().await?, (0, 0));
    assert!(!fixture.store.delete_old_versions(writing).await?);
    assert!(fixture.store.list_old_versions(DocumentId(0), 10).await?.documents.is_empty());
    let live: i64 = sqlx::query_scalar("SELECT count(*) FROM chunks").fetch_one(&fixture.pool).await?;
    assert_eq!(live, 20);
    Ok(())
}
