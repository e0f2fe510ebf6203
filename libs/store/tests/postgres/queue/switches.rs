//! Stores that get another embedding model.

use domain::EmbeddingRevisionId;
use store::switches::{NewEmbedding, Switch, SwitchEnd, SwitchKey, SwitchPause};

use super::*;

const KEPT: Duration = Duration::from_secs(600);

impl Fixture {
    /// A connection to a model of that width, and a wish for it.
    async fn add_model(&self, name: &str, width: i32) -> anyhow::Result<NewEmbedding> {
        let connection = self.database.insert_connection(name, "http://127.0.0.1:1/v1", name).await?;
        self.store.ensure_vector_table(width).await?;
        Ok(NewEmbedding {
            connection,
            base_url: "http://127.0.0.1:1/v1".to_owned(),
            model_name: name.to_owned(),
            width,
        })
    }

    async fn wish(&self, store: StoreId, new: &NewEmbedding) -> anyhow::Result<()> {
        Ok(self.store.begin_embedding_switch(Reach::All, store, new, &entry()).await?)
    }

    async fn take(&self) -> anyhow::Result<Option<Switch>> {
        Ok(self.store.claim_embedding_switch("host/1/bbbbbbbb", LEASE, &[]).await?)
    }

    async fn take_it(&self) -> anyhow::Result<Switch> {
        self.take().await?.ok_or_else(|| anyhow::anyhow!("no switch is due"))
    }

    /// A document with so many chunks that is live.
    async fn live(&self, store: StoreId, chunks: i32) -> anyhow::Result<DocumentId> {
        self.add_documents(store, 1).await?;
        let claim = self.claim_one().await?;
        assert!(self.write(claim.key, 0..chunks).await?);
        let settings = self.settings(claim.key).await?;
        let finish = Finish { revision: settings.revision, ..finish(chunks) };
        assert!(self.store.finish_document(claim.key, &finish, LEASE).await?);
        Ok(claim.key.document)
    }

    /// Gives up to `limit` chunks their new vectors; how many there were.
    async fn build(&self, switch: &Switch, limit: i64) -> anyhow::Result<usize> {
        let bare = self.store.list_bare_chunks(switch, DocumentId(0), limit).await?;
        let ids: Vec<i64> = bare.iter().map(|chunk| chunk.id).collect();
        let width = usize::try_from(switch.settings.width)?;
        let vectors = vec![vec![0.5; width]; ids.len()];
        assert!(ids.is_empty() || self.store.write_switch_vectors(switch, &ids, &vectors).await?);
        Ok(ids.len())
    }

    /// Vectors of one model that a store has.
    async fn vectors(&self, revision: EmbeddingRevisionId, width: i32) -> anyhow::Result<i64> {
        let count =
            format!("SELECT count(*) FROM chunk_embeddings_{width} WHERE embedding_revision_id = {}", revision.0);
        Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&self.pool).await?)
    }

    async fn in_use(&self, store: StoreId) -> anyhow::Result<(EmbeddingRevisionId, i32)> {
        let settings = self.database.store(RoleName::Edge)?.find_search_settings(store).await?.unwrap();
        Ok((settings.revision, settings.width))
    }
}

fn entry() -> AuditEntry {
    AuditEntry::new(Actor::named("test"), "rag_store.update")
}

#[tokio::test]
async fn a_store_changes_over_when_each_live_chunk_has_its_new_vector_and_not_before() -> anyhow::Result<()> {
    for width in [3, 5, 3000] {
        let fixture = fixture().await?;
        let store = fixture.add_store("s", 0).await?;
        fixture.live(store, 3).await?;
        let gone = fixture.live(store, 2).await?;
        let before = fixture.in_use(store).await?;
        let new = fixture.add_model("other", width).await?;
        fixture.wish(store, &new).await?;
        let switch = fixture.take_it().await?;
        assert!(fixture.take().await?.is_none(), "one worker is at it");
        assert_eq!(fixture.build(&switch, 2).await?, 2);
        assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Incomplete);
        assert_eq!((fixture.in_use(store).await?, fixture.vectors(before.0, 3).await?), (before, 5));
        assert!(fixture.store.measure_embedding_switch(&switch).await?);
        let state = fixture.store.find_embedding_switch(store).await?.unwrap();
        assert_eq!((state.chunks_done, state.chunks_total, state.is_claimed), (2, 5, true));

        // Meanwhile one document goes and another becomes live.
        let bare = fixture.store.list_bare_chunks(&switch, DocumentId(0), 100).await?;
        fixture.store.delete_document(Reach::All, gone, &entry()).await?;
        while fixture.store.delete_old_versions(gone).await? {}
        fixture.store.remove_document(gone).await?;
        let ids: Vec<i64> = bare.iter().map(|chunk| chunk.id).collect();
        let vectors = vec![vec![0.5; usize::try_from(width)?]; ids.len()];
        assert!(fixture.store.write_switch_vectors(&switch, &ids, &vectors).await?, "what is gone is left out");
        fixture.live(store, 4).await?;
        assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Incomplete);
        assert_eq!(fixture.build(&switch, 100).await?, 4);
        assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Done);
        let after = fixture.in_use(store).await?;
        assert_eq!((after.0, after.1), (switch.settings.revision, width));
        assert_eq!((fixture.vectors(after.0, width).await?, fixture.vectors(before.0, 3).await?), (7, 7));
        assert!(fixture.store.find_embedding_switch(store).await?.is_none());
        assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Lost);

        assert_eq!(fixture.store.remove_retired_embeddings(KEPT).await?, None, "somebody may still search by them");
        assert_eq!(fixture.store.remove_retired_embeddings(Duration::ZERO).await?, Some(7));
        assert_eq!(fixture.store.remove_retired_embeddings(Duration::ZERO).await?, None);
        assert_eq!((fixture.vectors(after.0, width).await?, fixture.vectors(before.0, 3).await?), (7, 0));
    }
    Ok(())
}

#[tokio::test]
async fn a_document_begun_with_the_old_model_does_not_become_live_with_its_vectors() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 1).await?;
    let claim = fixture.claim_one().await?;
    let settings = fixture.settings(claim.key).await?;
    assert!(fixture.write(claim.key, 0..2).await?);
    let new = fixture.add_model("other", 3).await?;
    fixture.wish(store, &new).await?;
    let switch = fixture.take_it().await?;
    assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Done, "nothing is live");

    let late = Finish { revision: settings.revision, ..finish(2) };
    assert!(!fixture.store.finish_document(claim.key, &late, LEASE).await?);
    assert_eq!(fixture.state(claim.key.document).await?.0, "processing");
    // Whoever claims it next, or goes on, sees that these are of no use.
    let now = fixture.settings(claim.key).await?;
    assert_eq!(now.revision, switch.settings.revision);
    let written = fixture.store.list_written_chunks(claim.key, &now).await?;
    assert_eq!(written.iter().map(|chunk| chunk.2).collect::<Vec<_>>(), [false, false]);
    assert!(fixture.store.discard_written_chunks(claim.key).await?);
    assert!(fixture.write(claim.key, 0..2).await?);
    let finish = Finish { revision: now.revision, ..finish(2) };
    assert!(fixture.store.finish_document(claim.key, &finish, LEASE).await?);
    assert_eq!(fixture.vectors(now.revision, 3).await?, 2);
    Ok(())
}

#[tokio::test]
async fn documents_that_end_while_a_store_changes_over_are_found_by_the_model_in_use() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let models = [fixture.add_model("a", 3).await?, fixture.add_model("b", 3).await?];
    for round in 0..12 {
        fixture.add_documents(store, 1).await?;
        let claim = fixture.claim_one().await?;
        let settings = fixture.settings(claim.key).await?;
        assert!(fixture.write(claim.key, 0..1).await?);
        fixture.wish(store, &models[round % 2]).await?;
        let switch = fixture.take_it().await?;
        while fixture.build(&switch, 100).await? > 0 {}
        let late = Finish { revision: settings.revision, ..finish(1) };
        let (live, end) = tokio::join!(
            fixture.store.finish_document(claim.key, &late, LEASE),
            fixture.store.finish_embedding_switch(&switch)
        );
        let (live, end) = (live?, end?);
        assert_eq!(live, end == SwitchEnd::Incomplete, "one of the two comes first, and the other sees it");
        while fixture.build(&switch, 100).await? > 0 {}
        if end == SwitchEnd::Incomplete {
            assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Done);
        } else {
            fixture.store.delete_document(Reach::All, claim.key.document, &entry()).await?;
        }
        let bare: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM documents d JOIN document_stores s ON s.id = d.store_id
                    JOIN chunks c ON c.document_id = d.id AND c.content_version = d.live_version
              WHERE NOT EXISTS (SELECT FROM chunk_embeddings_3 e
                                 WHERE e.chunk_id = c.id AND e.embedding_revision_id = s.embedding_revision_id)",
        )
        .fetch_one(&fixture.pool)
        .await?;
        assert_eq!(bare, 0);
    }
    Ok(())
}

#[tokio::test]
async fn somebody_may_want_something_else_in_the_middle() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.live(store, 3).await?;
    let before = fixture.in_use(store).await?;
    let (second, third) = (fixture.add_model("second", 3).await?, fixture.add_model("third", 4).await?);
    fixture.wish(store, &second).await?;
    let switch = fixture.take_it().await?;
    assert_eq!(fixture.build(&switch, 2).await?, 2);

    // Back: the worker that was at it writes nothing more.
    fixture.store.cancel_embedding_switch(Reach::All, store, &entry()).await?;
    let bare = fixture.store.list_bare_chunks(&switch, DocumentId(0), 1).await?[0].id;
    assert!(!fixture.store.write_switch_vectors(&switch, &[bare], &[vec![0.5; 3]]).await?);
    assert!(!fixture.store.renew_embedding_switch(switch.key, LEASE).await?);
    assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Incomplete);
    assert_eq!(fixture.vectors(switch.settings.revision, 3).await?, 2);
    fixture.store.cancel_embedding_switch(Reach::All, store, &entry()).await?;

    // The second again: what is there of it is used, and not removed under it.
    fixture.wish(store, &second).await?;
    assert_eq!(fixture.store.remove_retired_embeddings(Duration::ZERO).await?, None);
    let again = fixture.take_it().await?;
    assert_eq!((again.settings.revision, again.key == switch.key), (switch.settings.revision, false));
    assert!(!fixture.store.write_switch_vectors(&switch, &[bare], &[vec![0.5; 3]]).await?, "an old claim");
    assert_eq!(fixture.build(&again, 100).await?, 1);

    // A third, whose vectors have another width.
    fixture.wish(store, &third).await?;
    assert_eq!(fixture.store.finish_embedding_switch(&again).await?, SwitchEnd::Lost, "it was complete, but too late");
    let last = fixture.take_it().await?;
    assert_eq!(fixture.build(&last, 100).await?, 3);
    assert_eq!(fixture.store.finish_embedding_switch(&last).await?, SwitchEnd::Done);
    assert_eq!(fixture.in_use(store).await?, (last.settings.revision, 4));
    let mut removed = 0;
    while let Some(gone) = fixture.store.remove_retired_embeddings(Duration::ZERO).await? {
        removed += gone;
    }
    assert_eq!(removed, 6, "the first's and the second's");
    assert_eq!((fixture.vectors(before.0, 3).await?, fixture.vectors(last.settings.revision, 4).await?), (0, 3));
    Ok(())
}

#[tokio::test]
async fn a_switch_is_taken_over_when_its_lease_lapses_and_waits_where_it_must() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.live(store, 2).await?;
    let new = fixture.add_model("other", 3).await?;
    fixture.wish(store, &new).await?;
    let zombie = fixture.take_it().await?;
    sqlx::query("UPDATE embedding_switches SET lease_until = clock_timestamp() - interval '1 second'")
        .execute(&fixture.pool)
        .await?;
    let heir = fixture.take_it().await?;
    let bare = fixture.store.list_bare_chunks(&heir, DocumentId(0), 1).await?[0].id;
    assert!(!fixture.store.write_switch_vectors(&zombie, &[bare], &[vec![0.5; 3]]).await?);
    let pause = async |key: SwitchKey, pause| fixture.store.pause_embedding_switch(key, pause).await;
    assert!(!pause(zombie.key, SwitchPause::Failed(DocumentFailure::Internal)).await?);

    assert!(pause(heir.key, SwitchPause::PutBack(Duration::ZERO)).await?);
    assert!(fixture.store.claim_embedding_switch("w", LEASE, &[new.connection]).await?.is_none(), "it is left alone");
    let away = |delay| SwitchPause::Unavailable {
        failure: DocumentFailure::EmbeddingUnavailable,
        delay,
        max_age: Duration::from_secs(3600),
    };
    assert!(pause(fixture.take_it().await?.key, away(LEASE)).await?);
    assert!(fixture.take().await?.is_none());
    let state = fixture.store.find_embedding_switch(store).await?.unwrap();
    assert_eq!((state.status.as_str(), state.error_code.as_deref()), ("building", Some("embedding_unavailable")));
    sqlx::query("UPDATE embedding_switches SET run_at = now(), retrying_since = now() - interval '61 minutes'")
        .execute(&fixture.pool)
        .await?;
    assert!(pause(fixture.take_it().await?.key, away(Duration::ZERO)).await?);
    let state = fixture.store.find_embedding_switch(store).await?.unwrap();
    assert_eq!(state.status, "failed", "it has waited long enough");
    assert!(fixture.take().await?.is_none());

    fixture.wish(store, &new).await?;
    let budget = fixture.take_it().await?;
    assert!(pause(budget.key, SwitchPause::OutOfBudget(LEASE)).await?);
    let state = fixture.store.find_embedding_switch(store).await?.unwrap();
    assert_eq!((state.status.as_str(), state.error_code.as_deref()), ("building", Some("budget")));
    sqlx::query("UPDATE embedding_switches SET run_at = now()").execute(&fixture.pool).await?;
    let last = fixture.take_it().await?;
    assert!(pause(last.key, SwitchPause::Failed(DocumentFailure::EmbeddingRejected)).await?);
    let state = fixture.store.find_embedding_switch(store).await?.unwrap();
    assert_eq!((state.status.as_str(), state.error_code.as_deref()), ("failed", Some("embedding_rejected")));
    Ok(())
}

#[tokio::test]
async fn a_connection_that_makes_vectors_or_has_made_some_that_are_there_stays() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.live(store, 1).await?;
    let old: i64 =
        sqlx::query_scalar("SELECT embedding_connection_id FROM document_stores").fetch_one(&fixture.pool).await?;
    let new = fixture.add_model("other", 3).await?;
    fixture.wish(store, &new).await?;
    let delete = async |id| fixture.store.delete_connection(id, &entry()).await;
    assert!(matches!(delete(new.connection).await, Err(StoreError::Referenced { .. })));
    let switch = fixture.take_it().await?;
    fixture.build(&switch, 10).await?;
    assert_eq!(fixture.store.finish_embedding_switch(&switch).await?, SwitchEnd::Done);
    assert!(matches!(delete(ConnectionId(old)).await, Err(StoreError::Referenced { .. })));
    while fixture.store.remove_retired_embeddings(Duration::ZERO).await?.is_some() {}
    delete(ConnectionId(old)).await?;
    Ok(())
}
