//! Connections that nobody answers and nobody closes.

use std::time::Duration;

use store::{Store, StoreError};
use testkit::{DatabaseProxy, RoleName};

#[tokio::test]
async fn a_statement_that_nobody_answers_gives_its_place_in_the_pool_back() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let proxy = DatabaseProxy::to(&database).await?;
    let mut config = database.config(RoleName::Edge);
    config.url = proxy.url(&database, RoleName::Edge)?.into();
    // One for the pool; the others beat and listen.
    config.max_connections = 3;
    let store = Store::new(&config, "test")?;
    let lock = database.lock_table("instances").await?;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.list_beats().await.map(drop) }
    });
    testkit::until("the statement is under way", || async { database.has_lock_waiters().await }).await?;
    proxy.fall_silent();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    lock.release().await?;
    proxy.speak_again();
    store.list_beats().await?;
    Ok(())
}

#[tokio::test]
async fn what_somebody_waits_for_ends_in_time() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut config = database.config(RoleName::Edge);
    config.acquire_timeout = Duration::from_millis(200);
    let store = Store::new(&config, "test")?;
    let lock = database.lock_table("instances").await?;
    let answer = store.in_time(store.list_beats()).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    lock.release().await
}

#[tokio::test]
async fn a_statement_that_is_left_costs_no_connection() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut config = database.config(RoleName::Edge);
    // One for the pool; the others beat and listen.
    config.max_connections = 3;
    let store = Store::new(&config, "left")?;
    let watcher = database.superuser_pool().await?;
    let sessions = async || {
        sqlx::query_scalar::<_, i32>(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'left'",
        )
        .fetch_all(&watcher)
        .await
    };
    store.list_beats().await?;
    let before = sessions().await?;
    for _ in 0..3 {
        let lock = database.lock_table("instances").await?;
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.list_beats().await.map(drop) }
        });
        testkit::until("the statement is under way", || async { database.has_lock_waiters().await }).await?;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        lock.release().await?;
        store.list_beats().await?;
    }
    assert_eq!((before.len(), sessions().await?), (1, before));
    Ok(())
}
