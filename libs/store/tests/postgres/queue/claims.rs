//! What is claimed, by whom and in which order.

use std::collections::HashSet;

use super::*;

#[tokio::test]
async fn racing_workers_claim_every_document_once() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    fixture.add_documents(store, 60).await?;
    let worker = |number: i32| {
        let fixture = &fixture;
        async move {
            let owner = format!("host/{number}/aaaaaaaa");
            let mut seen = Vec::new();
            loop {
                let claimed = fixture.claim(&owner, StoreId(0), 4).await?;
                if claimed.documents.is_empty() {
                    return anyhow::Ok(seen);
                }
                seen.extend(claimed.documents.iter().map(|claim| claim.key.document));
            }
        }
    };
    let (a, b, c) = tokio::try_join!(worker(1), worker(2), worker(3))?;
    let all: Vec<_> = a.into_iter().chain(b).chain(c).collect();
    assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (60, 60));
    Ok(())
}

#[tokio::test]
async fn a_claim_takes_from_each_store_in_turn_and_respects_running_caps() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let big = fixture.add_store("big", 0).await?;
    let capped = fixture.add_store("capped", 1).await?;
    let small = fixture.add_store("small", 0).await?;
    for (store, count) in [(big, 100), (capped, 5), (small, 1)] {
        fixture.add_documents(store, count).await?;
    }
    let claimed = fixture.claim("w", StoreId(0), 4).await?;
    let stores: Vec<_> = claimed.documents.iter().map(|claim| claim.store).collect();
    for (store, expected) in [(big, 2), (capped, 1), (small, 1)] {
        assert_eq!(stores.iter().filter(|found| **found == store).count(), expected, "{store} in {stores:?}");
    }
    assert_eq!(claimed.next_cursor, Some(small));
    let beyond = fixture.claim("w", small, 4).await?;
    assert!(beyond.documents.is_empty() && beyond.next_cursor.is_none(), "nothing waits after the last store");
    let again = fixture.claim("w", big, 4).await?;
    assert!(again.documents.is_empty(), "the capped store has one running");
    assert_eq!(again.next_cursor, Some(capped));
    Ok(())
}

#[tokio::test]
async fn within_a_store_priority_decides_and_then_age() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let (first, second) = (fixture.add_store("a", 0).await?, fixture.add_store("b", 0).await?);
    let documents = fixture.add_documents(first, 3).await?;
    fixture.add_documents(second, 1).await?;
    sqlx::query("UPDATE documents SET priority = 0 WHERE id = $1").bind(documents[2].0).execute(&fixture.pool).await?;
    let claimed = fixture.claim("w", StoreId(0), 2).await?;
    let of_first: Vec<_> = claimed.documents.iter().filter(|claim| claim.store == first).collect();
    assert_eq!((claimed.documents.len(), of_first.len()), (2, 1));
    assert_eq!(of_first[0].key.document, documents[2], "the urgent one, although others are older");
    Ok(())
}

#[tokio::test]
async fn a_document_that_never_ends_gets_its_verdict_at_the_claim_that_finds_it() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let document = fixture.add_documents(store, 1).await?[0];
    for attempt in 1..=3 {
        assert_eq!(fixture.claim_one().await?.attempts, attempt);
        fixture.lapse(document).await?;
    }
    assert!(fixture.claim("w", StoreId(0), 1).await?.documents.is_empty());
    assert_eq!(fixture.state(document).await?, ("failed".to_owned(), 3, Some("gave_up_after_attempts".to_owned())));
    Ok(())
}

#[tokio::test]
async fn the_server_itself_ends_a_statement_of_the_queue_that_takes_too_long() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let held = fixture.add_documents(store, 1).await?[0];
    let key = fixture.claim_one().await?.key;
    fixture.write(key, 0..1).await?;
    let waiting = fixture.add_documents(store, 1).await?[0];
    let lease = Duration::from_secs(1);
    let request = ClaimRequest { lease, ..request("w", StoreId(0), 1) };

    let mut blocker = fixture.pool.begin().await?;
    sqlx::query("LOCK TABLE documents IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await?;
    let claimed = fixture.store.claim_documents(&request).await.map(|_| ());
    let renewed = fixture.store.renew_leases(&[key], lease).await.map(|_| ());
    let finished = fixture.store.finish_document(key, &finish(1), lease / 4).await.map(|_| ());
    for ended in [claimed, renewed, finished] {
        assert!(matches!(ended, Err(StoreError::Timeout { .. })), "{ended:?}");
    }
    blocker.rollback().await?;
    assert_eq!(fixture.state(waiting).await?, ("pending".to_owned(), 0, None), "claimed for nobody");
    assert_eq!(fixture.state(held).await?.0, "processing");
    assert!(fixture.store.finish_document(key, &finish(1), LEASE).await?);
    Ok(())
}

/// The stores of a claim's documents.
async fn stores(
    fixture: &Fixture,
    left_alone: &[ConnectionId],
    on_trial: &[ConnectionId],
) -> anyhow::Result<Vec<StoreId>> {
    let request = ClaimRequest { left_alone, on_trial, ..request("w", StoreId(0), 4) };
    let claimed = fixture.store.claim_documents(&request).await?;
    assert!(!claimed.contended);
    Ok(claimed.documents.iter().map(|claim| claim.store).collect())
}

#[tokio::test]
async fn stores_whose_provider_is_left_alone_are_passed_over_and_then_tried_with_one_document() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let paused = fixture.add_store("paused", 0).await?;
    let other = fixture.add_store("other", 0).await?;
    fixture.add_documents(paused, 5).await?;
    fixture.add_documents(other, 1).await?;
    sqlx::raw_sql(
        "INSERT INTO model_connections (name, provider_type, base_url, model_name)
         VALUES ('other', 'custom_openai', 'http://127.0.0.1:2/v1', 'demo-embed');
         UPDATE document_stores SET embedding_connection_id = (SELECT max(id) FROM model_connections)
          WHERE name = 'other'",
    )
    .execute(&fixture.pool)
    .await?;
    let down: i64 = sqlx::query_scalar("SELECT min(id) FROM model_connections").fetch_one(&fixture.pool).await?;
    let down = [ConnectionId(down)];
    assert_eq!(stores(&fixture, &down, &[]).await?, [other]);
    assert_eq!(stores(&fixture, &[], &down).await?, [paused]);
    assert_eq!(stores(&fixture, &[], &[]).await?.len(), 4);
    Ok(())
}

#[tokio::test]
async fn a_claim_says_that_somebody_else_was_at_what_it_wanted() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 2).await?;
    let documents = fixture.add_documents(store, 5).await?;
    let mut other = fixture.pool.begin().await?;
    sqlx::query("SELECT FROM documents WHERE id = ANY ($1) FOR UPDATE")
        .bind(documents[..4].iter().map(|document| document.0).collect::<Vec<_>>())
        .execute(&mut *other)
        .await?;
    let claimed = fixture.claim("w", StoreId(0), 4).await?;
    assert_eq!((claimed.documents.len(), claimed.contended), (1, true));
    other.rollback().await?;
    let claimed = fixture.claim("w", StoreId(0), 4).await?;
    assert_eq!((claimed.documents.len(), claimed.contended), (1, false), "more are there, but two run");
    let claimed = fixture.claim("w", StoreId(0), 4).await?;
    assert_eq!((claimed.documents.len(), claimed.contended), (0, false));
    Ok(())
}

#[tokio::test]
async fn a_thousand_exhausted_documents_do_not_keep_others_from_being_taken_over() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let documents = fixture.add_documents(store, 1001).await?;
    sqlx::query(
        "UPDATE documents SET status = 'processing', lease_until = clock_timestamp() - interval '1 s',
                              attempts = CASE WHEN id = $1 THEN 1 ELSE 3 END",
    )
    .bind(documents[1000].0)
    .execute(&fixture.pool)
    .await?;
    let mut claims = 0;
    let claimed = loop {
        claims += 1;
        if let Some(claim) = fixture.claim("w", StoreId(0), 1).await?.documents.pop() {
            break claim;
        }
    };
    assert_eq!((claimed.key.document, claimed.attempts), (documents[1000], 2));
    assert!(claims <= 11, "{claims}");
    let failed = "SELECT count(*) FROM documents WHERE status = 'failed' AND error_code = 'gave_up_after_attempts'";
    assert_eq!(sqlx::query_scalar::<_, i64>(failed).fetch_one(&fixture.pool).await?, 1000);
    Ok(())
}

#[tokio::test]
async fn stores_that_had_no_turn_are_the_next_ones() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let mut waiting = Vec::new();
    for number in 0..21 {
        let store = fixture.add_store(&format!("s{number}"), 0).await?;
        fixture.add_documents(store, 3).await?;
        waiting.push(store);
    }
    // Fewer slots than stores that are looked at, and fewer of these than there are.
    for round in 1..=3 {
        let (mut cursor, mut served) = (StoreId(0), Vec::new());
        while served.len() < 21 {
            let claimed = fixture.claim("w", cursor, 3).await?;
            cursor = claimed.next_cursor.unwrap();
            served.extend(claimed.documents.iter().map(|claim| claim.store));
        }
        served.sort_unstable();
        assert_eq!(served, waiting, "round {round}");
    }
    Ok(())
}

#[tokio::test]
async fn one_document_at_most_is_claimed_that_workers_have_died_of_or_beside() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let store = fixture.add_store("s", 0).await?;
    let documents = fixture.add_documents(store, 5).await?;
    let worked = async |attempts: &[(i32, i32)]| -> anyhow::Result<()> {
        for (document, (attempts, deaths)) in documents.iter().zip(attempts) {
            sqlx::query(
                "UPDATE documents SET status = 'processing', lease_until = clock_timestamp() - interval '1 s',
                                      attempts = $2, parser_deaths = $3 WHERE id = $1",
            )
            .bind(document.0)
            .bind(attempts)
            .bind(deaths)
            .execute(&fixture.pool)
            .await?;
        }
        Ok(())
    };
    let claimed = async |suspects: i64| -> anyhow::Result<Vec<(DocumentId, bool)>> {
        let request = ClaimRequest { max_attempts: 5, suspects, ..request("w", StoreId(0), 5) };
        let mut claimed: Vec<_> = fixture.store.claim_documents(&request).await?.documents;
        claimed.sort_by_key(|claim| claim.key.document);
        Ok(claimed.iter().map(|claim| (claim.key.document, claim.is_suspect())).collect())
    };
    let [first, second, harmless, new, died] = documents[..] else { panic!("{documents:?}") };
    // The last one's parser died twice, which no worker dies of.
    worked(&[(2, 0), (4, 1), (1, 0), (0, 0), (3, 2)]).await?;
    assert_eq!(claimed(0).await?, [(harmless, false), (new, false), (died, false)]);
    assert_eq!(claimed(1).await?, [(first, true)]);
    assert_eq!(claimed(1).await?, [(second, true)]);
    assert_eq!(claimed(1).await?, []);
    Ok(())
}
