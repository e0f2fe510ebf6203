//! How claims end.

use super::*;

fn tries(max_attempts: i32) -> ParserTries {
    ParserTries { max_deaths: 3, max_attempts, delay: Duration::ZERO }
}

#[tokio::test]
async fn a_lapsed_lease_is_claimed_again_and_the_old_claim_can_write_nothing() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let zombie = fixture.claim_one().await?.key;
    assert!(fixture.write(zombie, 0..2).await?);
    assert!(fixture.claim("other", StoreId(0), 1).await?.documents.is_empty(), "the lease holds");
    fixture.lapse(document).await?;
    let heir = fixture.claim_one().await?;
    assert_eq!((heir.key.token, heir.attempts), (zombie.token + 1, 2));

    assert!(!fixture.write(zombie, 2..3).await?);
    assert!(!fixture.store.finish_document(zombie, &finish(2), LEASE).await?);
    assert!(!fixture.store.fail_document(zombie, DocumentFailure::Internal).await?);
    assert!(!fixture.store.set_progress(zombie, "embedding", 1, 2).await?);
    assert!(fixture.store.renew_leases(&[zombie], LEASE).await?.is_empty());
    assert_eq!(fixture.store.hand_back_documents(&[zombie]).await?, 0);
    assert_eq!(fixture.store.record_parser_death(zombie, DocumentFailure::ParserCrashed, tries(3)).await?, None);
    assert!(!fixture.store.delay_document(zombie, DocumentFailure::Internal, LEASE, LEASE).await?);
    assert!(!fixture.store.delay_for_budget(zombie, LEASE).await?);

    // The heir finds what was paid for and writes the rest.
    let settings = fixture.settings(heir.key).await?;
    let written = fixture.store.list_written_chunks(heir.key, &settings).await?;
    assert_eq!(
        written.iter().map(|(at, _, has_vector)| (*at, *has_vector)).collect::<Vec<_>>(),
        [(0, true), (1, true)]
    );
    assert!(fixture.write(heir.key, 2..4).await?);
    assert!(!fixture.store.finish_document(heir.key, &finish(5), LEASE).await?, "a chunk is missing");
    assert!(fixture.store.finish_document(heir.key, &finish(4), LEASE).await?);
    assert_eq!(fixture.state(document).await?, ("ready".to_owned(), 0, None));
    Ok(())
}

#[tokio::test]
async fn a_clean_stop_and_a_passing_error_cost_no_attempt() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let claim = fixture.claim_one().await?;
    assert_eq!(fixture.store.hand_back_documents(&[claim.key]).await?, 1);
    assert_eq!(fixture.state(document).await?, ("pending".to_owned(), 0, None));

    let claim = fixture.claim_one().await?;
    let day = Duration::from_secs(86_400);
    let failure = DocumentFailure::EmbeddingUnavailable;
    assert!(fixture.store.delay_document(claim.key, failure, Duration::from_secs(60), day).await?);
    assert_eq!(fixture.state(document).await?, ("delayed".to_owned(), 0, Some("embedding_unavailable".to_owned())));
    assert!(fixture.claim("w", StoreId(0), 1).await?.documents.is_empty(), "it is not due yet");
    sqlx::query(
        "UPDATE documents SET run_at = clock_timestamp(), retrying_since = clock_timestamp() - interval '25 hours'",
    )
    .execute(&fixture.pool)
    .await?;
    assert_eq!(fixture.store.promote_delayed_documents().await?, 1);
    let claim = fixture.claim_one().await?;
    assert!(fixture.store.delay_document(claim.key, failure, Duration::from_secs(60), day).await?);
    assert_eq!(fixture.state(document).await?.0, "failed", "a day of retries is enough");
    Ok(())
}

#[tokio::test]
async fn a_document_put_back_keeps_its_place() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let first = fixture.add_documents(store, 1).await?[0];
    fixture.add_documents(store, 1).await?;
    let claim = fixture.claim_one().await?;
    assert_eq!(claim.key.document, first);
    fixture.store.hand_back_documents(&[claim.key]).await?;
    assert_eq!(fixture.claim_one().await?.key.document, first);
    Ok(())
}

#[tokio::test]
async fn no_wait_goes_beyond_the_day_that_errors_may_last() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 1).await?;
    let (day, week) = (Duration::from_secs(86_400), Duration::from_secs(7 * 86_400));
    let claim = fixture.claim_one().await?;
    assert!(fixture.store.delay_document(claim.key, DocumentFailure::EmbeddingUnavailable, week, day).await?);
    let (within, retries): (bool, i32) = sqlx::query_as(
        "SELECT run_at <= clock_timestamp() + interval '1 day' AND run_at > clock_timestamp() + interval '23 hours',
                retries FROM documents",
    )
    .fetch_one(&fixture.pool)
    .await?;
    assert_eq!((within, retries), (true, 1), "a provider may ask for more time, but not for that much");
    Ok(())
}

#[tokio::test]
async fn a_wait_for_a_budget_has_no_age_and_ends_when_the_project_is_changed() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(86_400));
    let claim = fixture.claim_one().await?;
    fixture.store.delay_document(claim.key, DocumentFailure::EmbeddingUnavailable, Duration::ZERO, day).await?;
    fixture.store.promote_delayed_documents().await?;
    let claim = fixture.claim_one().await?;
    assert!(fixture.store.delay_for_budget(claim.key, hour).await?);
    assert_eq!(fixture.state(document).await?, ("delayed".to_owned(), 0, Some("budget".to_owned())));
    let counted: (i32, bool) =
        sqlx::query_as("SELECT retries, retrying_since IS NULL FROM documents").fetch_one(&fixture.pool).await?;
    assert_eq!(counted, (1, true), "the one error before it is all that counts");
    assert_eq!(fixture.store.promote_delayed_documents().await?, 0);

    let id: i64 = sqlx::query_scalar("SELECT id FROM projects").fetch_one(&fixture.pool).await?;
    let project = fixture.store.find_project(Reach::All, ProjectId(id)).await?.unwrap();
    let entry = AuditEntry::new(Actor::named("test"), "test");
    fixture.store.update_project(Reach::All, project.id, project.revision, &project.settings, &entry).await?;
    assert_eq!(fixture.store.promote_delayed_documents().await?, 1);
    assert_eq!(fixture.claim_one().await?.key.document, document);
    Ok(())
}

#[tokio::test]
async fn a_parser_that_dies_costs_an_attempt_and_the_third_death_is_the_last() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    let die = async |max_attempts| -> anyhow::Result<ParserDeath> {
        fixture.store.promote_delayed_documents().await?;
        let key = fixture.claim_one().await?.key;
        let death = fixture.store.record_parser_death(key, DocumentFailure::ParserCrashed, tries(max_attempts)).await?;
        Ok(death.unwrap())
    };
    for deaths in [1, 2] {
        assert_eq!(die(5).await?, ParserDeath { deaths, is_final: false });
        assert_eq!(fixture.state(document).await?, ("delayed".to_owned(), deaths, Some("parser_crashed".to_owned())));
    }
    assert_eq!(die(5).await?, ParserDeath { deaths: 3, is_final: true });
    assert_eq!(fixture.state(document).await?, ("failed".to_owned(), 3, Some("parser_crashed".to_owned())));

    sqlx::query("UPDATE documents SET status = 'pending', parser_deaths = 0, attempts = 1")
        .execute(&fixture.pool)
        .await?;
    assert_eq!(die(2).await?, ParserDeath { deaths: 1, is_final: true }, "no claim is left for another try");
    Ok(())
}

#[tokio::test]
async fn a_finish_and_a_deletion_lock_the_store_first_as_uploads_do() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 2).await?;
    let (finished, deleted) = (fixture.claim_one().await?.key, fixture.claim_one().await?.key);
    fixture.write(finished, 0..1).await?;
    let entry = AuditEntry::new(Actor::named("test"), "test");
    let mut upload = fixture.pool.begin().await?;
    sqlx::query("SELECT FROM document_stores FOR NO KEY UPDATE").execute(&mut *upload).await?;
    let finish = finish(1);
    let ends = async {
        tokio::try_join!(
            fixture.store.finish_document(finished, &finish, LEASE),
            fixture.store.delete_document(Reach::All, deleted.document, &entry),
        )
    };
    let replaces = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE wait_event_type = 'Lock' AND datname = current_database()";
        testkit::until("both wait for the store", || async {
            Ok(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&fixture.pool).await? == 2)
        })
        .await?;
        sqlx::query("SELECT FROM documents FOR UPDATE NOWAIT").execute(&mut *upload).await?;
        upload.rollback().await?;
        anyhow::Ok(())
    };
    let (ended, replaced) = tokio::join!(ends, replaces);
    replaced?;
    assert!(ended?.0, "the finish goes on");
    Ok(())
}

#[tokio::test]
async fn renewals_and_progress_are_heap_only_updates() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 1).await?;
    let key = fixture.claim_one().await?.key;
    let counts = async || -> anyhow::Result<(i64, i64)> {
        let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'documents'";
        Ok(sqlx::query_as(counts).fetch_one(&fixture.pool).await?)
    };
    // Counters are reported a little later.
    testkit::until("the claim is counted", || async { Ok(counts().await?.0 == 1) }).await?;
    let before = counts().await?.1;
    // More versions than a page holds, so that room is made for them within it.
    for _ in 0..100 {
        assert_eq!(fixture.store.renew_leases(&[key], LEASE).await?, [key.document]);
        assert!(fixture.store.set_progress(key, "embedding", 1, 2).await?);
    }
    testkit::until("they are counted", || async { Ok(counts().await?.0 == 201) }).await?;
    // With an index on what they change there would be none. A page is not tidied while somebody, a vacuum say, still sees
    // the versions before, so now and then one goes to another page.
    let heap_only = counts().await?.1 - before;
    assert!(heap_only >= 180, "{heap_only} of 200");
    Ok(())
}
