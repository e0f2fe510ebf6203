//! A database that crashes under load, one that is away for half a minute, and one that does not answer.

use std::time::{Duration, Instant};

use testkit::{DatabaseProxy, InstanceId, PrivateServer, Role, RoleName, Stack};

use crate::load::{self, Call, End, Load, Payers, Streams};

/// How long the database is away: longer than the others wait for a beat.
const AWAY: Duration = Duration::from_secs(30);

/// Who is there, and in which state.
async fn ring(stack: &Stack) -> anyhow::Result<Vec<(InstanceId, String)>> {
    let store = stack.database.store(RoleName::Backend)?;
    let found = store.list_instances().await?.into_iter().map(|instance| (instance.id, instance.state)).collect();
    store.close().await;
    Ok(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_postgresql_under_load_breaks_no_stream_and_loses_no_call() -> anyhow::Result<()> {
    let server = PrivateServer::start_named("crash").await?;
    let database = server.database().await?;
    let stack = Stack::builder().admins(0).edges(2).database(database).remembering(50_000).start().await?;
    let payers = Payers::furnish(&stack).await?;
    let mut streams = Streams::open(&stack, &payers, 2, 0, 40).await?;
    let before = ring(&stack).await?;
    let load = Load::start(&stack, &payers, 2, 16, 1000)?;
    for round in 0..3 {
        load.more(60).await?;
        let session = testkit::eventually("a session of an edge is found", || async {
            Ok(stack.database.ledger_sessions().await?.pop())
        })
        .await?;
        let epoch = stack.database.ledger_epoch().await?;
        let killed = Instant::now();
        server.kill_session(session)?;
        streams.finish(&stack, 10).await?;
        testkit::until("the server has recovered", || async {
            Ok(stack.database.ledger_epoch().await.is_ok_and(|now| now != epoch))
        })
        .await?;
        let recovered = killed.elapsed().as_millis();
        // As many as are under way now may still end well.
        let back = load.more(16 + 1).await?;
        println!("crash {round}: recovered after {recovered} ms, served {} ms later", back.as_millis());
    }
    for edge in [0, 1] {
        let log = stack.nth(Role::Edge, edge)?.log();
        assert!(log.contains("open calls are put back"), "edge {edge} has not noticed");
    }
    streams.finish(&stack, streams.count()).await?;
    let calls = load.stop().await;
    let rest = load::at_rest(&stack).await?;
    println!("crash: nothing held after {} ms", rest.as_millis());
    assert_eq!(ring(&stack).await?, before);
    let refused = load::told_to_come_back(&calls);
    let rows = load::accounts(&stack, &payers, &calls, 0..40).await?;
    println!("crash: {} calls, {refused} told to come back, {} rows", calls.len(), rows.len());
    assert!(rows.values().all(|row| row.error_code.as_deref() != Some("edge_lost")));
    assert!((0..40).all(|stream| rows[&stream].status == 200));
    stack.shut_down().await?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_for_30_s_breaks_none_of_200_streams_and_nobody_is_given_up() -> anyhow::Result<()> {
    let mut server = PrivateServer::start_named("away").await?;
    let database = server.database().await?;
    let stack = Stack::builder().edges(2).database(database).set("LEDGER_ORPHAN_AFTER", "20s").start().await?;
    let payers = Payers::furnish(&stack).await?;
    // A key that no edge has seen, as good as the others.
    let (_, unseen) = stack.database.insert_project_key(payers.projects[0]).await?;
    let mut streams = Streams::open(&stack, &payers, 2, 0, 200).await?;
    let before = ring(&stack).await?;
    let beats = beats(&stack).await?;

    server.halt().await?;
    let gone = Instant::now();
    streams.finish(&stack, 100).await?;
    let [governed, free] = [payers.key(0), payers.key(1)];
    let keys = [governed, free, unseen.secret().expose()];
    let mut number = 1000;
    let mut calls = Vec::new();
    while gone.elapsed() < AWAY {
        for (place, key) in keys.iter().enumerate() {
            number += 1;
            let end = load::try_once(&stack, place % 2, key, number).await?;
            // Nothing limits that project, so its first call does not wait for a database that nobody has missed yet.
            let may_run = *key == free && !calls.iter().any(|call: &Call| call.end == End::Whole);
            assert!(may_run && end == End::Whole || matches!(&end, End::Refused(503, _, true)), "{end:?}");
            calls.push(Call { number, end });
        }
    }
    server.resume().await?;
    let back = Instant::now();
    for (place, key) in keys.iter().chain(&keys).enumerate() {
        let edge = place % 2;
        loop {
            number += 1;
            let end = load::try_once(&stack, edge, key, number).await?;
            let served = end == End::Whole;
            calls.push(Call { number, end });
            if served {
                break;
            }
            anyhow::ensure!(back.elapsed() < testkit::DEADLINE, "edge {edge} does not serve again");
        }
    }
    load::told_to_come_back(&calls);
    println!("away: served again after {} ms", back.elapsed().as_millis());
    streams.finish(&stack, streams.count()).await?;
    let rest = load::at_rest(&stack).await?;
    println!("away: nothing held after {} ms", rest.as_millis());

    // Everybody has beaten since, under the id of before.
    testkit::until("everybody beats", || async {
        let now = self::beats(&stack).await?;
        Ok(now.len() == beats.len() && now.iter().zip(&beats).all(|(now, before)| now > before))
    })
    .await?;
    assert_eq!(ring(&stack).await?, before);
    let rows = load::accounts(&stack, &payers, &calls, 0..200).await?;
    let (served, others): (Vec<_>, Vec<_>) = rows.values().partition(|row| row.status == 200);
    assert_eq!(served.len(), 200 + calls.iter().filter(|call| call.end == End::Whole).count());
    assert!(others.iter().all(|row| row.error_code.as_deref() == Some("abandoned")), "{others:?}");
    stack.shut_down().await?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fall_silent_under_load_are_given_up_and_nobody_else_is() -> anyhow::Result<()> {
    let stack = Stack::builder().admins(0).set("LEDGER_ORPHAN_AFTER", "20s").remembering(50_000);
    let mut stack = stack.start().await?;
    let proxy = DatabaseProxy::to(&stack.database).await?;
    let url = proxy.url(&stack.database, RoleName::Edge)?;
    for _ in 0..2 {
        let edge = stack.spawn_with(Role::Edge, &[("DATABASE_URL", &url)]).await?;
        let http = stack.http.clone();
        stack.process(edge)?.ready(&http).await?;
    }
    let payers = Payers::furnish(&stack).await?;
    let mut streams = Streams::open(&stack, &payers, 2, 0, 40).await?;
    let before = ring(&stack).await?;
    let load = Load::start(&stack, &payers, 2, 16, 1000)?;
    load.more(60).await?;
    proxy.fall_silent();
    streams.finish(&stack, 20).await?;
    testkit::until("the edges miss it", || async {
        let logs = [0, 1].map(|edge| stack.nth(Role::Edge, edge).map(|edge| edge.log()).unwrap_or_default());
        Ok(logs.iter().all(|log| log.contains("the database cannot be reached")))
    })
    .await?;
    proxy.speak_again();
    let back = load.more(16 + 1).await?;
    println!("silence: served {} ms after it", back.as_millis());
    streams.finish(&stack, streams.count()).await?;
    let calls = load.stop().await;
    let rest = load::at_rest(&stack).await?;
    println!("silence: nothing held after {} ms", rest.as_millis());
    assert_eq!(ring(&stack).await?, before);
    let refused = load::told_to_come_back(&calls);
    let rows = load::accounts(&stack, &payers, &calls, 0..40).await?;
    println!("silence: {} calls, {refused} told to come back, {} rows", calls.len(), rows.len());
    assert!((0..40).all(|stream| rows[&stream].status == 200));
    assert!(rows.values().all(|row| row.error_code.as_deref() != Some("edge_lost")));
    stack.shut_down().await
}

/// How often each process has beaten, in the order of their ids.
async fn beats(stack: &Stack) -> anyhow::Result<Vec<(InstanceId, i64)>> {
    let store = stack.database.store(RoleName::Backend)?;
    let (_, beats) = store.list_beats().await?;
    store.close().await;
    let mut beats: Vec<_> = beats.into_iter().map(|beat| (beat.id, beat.beats)).collect();
    beats.sort_by_key(|(id, _)| id.0);
    Ok(beats)
}
