//! Connections that nobody answers and nobody closes.

use std::time::Duration;

use store::logins::{LoginAttempt, LoginLimits};
use store::testing::{ProjectLock, TestDatabase};
use store::{Store, StoreError};
use testkit::{DatabaseProxy, RoleName};
use tokio::task::JoinHandle;

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

/// A store with one connection in its pool that leads over a network, and a login that waits in its transaction for what
/// the second value holds.
async fn waiting_login(
    database: &TestDatabase,
    proxy: &DatabaseProxy,
) -> anyhow::Result<(Store, ProjectLock, JoinHandle<Result<LoginAttempt, StoreError>>)> {
    let mut config = database.config(RoleName::Backend);
    config.url = proxy.url(database, RoleName::Backend)?.into();
    // One for the pool; the others beat and listen.
    config.max_connections = 3;
    let store = Store::new(&config, "test")?;
    let lock = database.lock_table("login_attempts").await?;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { login(&store, "ann", "192.0.2.1").await }
    });
    testkit::until("the transaction is under way", || async { database.has_lock_waiters().await }).await?;
    Ok((store, lock, waiting))
}

async fn login(store: &Store, username: &str, address: &str) -> Result<LoginAttempt, StoreError> {
    let limits = LoginLimits {
        user_per_minute: 10,
        address_per_minute: 10,
        lockout_failures: 10,
        lockout: Duration::from_secs(60),
    };
    store.begin_login(username, address, &limits).await
}

#[tokio::test]
async fn a_transaction_that_nobody_answers_ends_in_time_and_gives_its_place_in_the_pool_back() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let proxy = DatabaseProxy::to(&database).await?;
    let (store, lock, waiting) = waiting_login(&database, &proxy).await?;
    proxy.fall_silent();
    // Nothing but its deadline can end it, so that it need not be sat out.
    tokio::time::pause();
    let answer = waiting.await?;
    tokio::time::resume();
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    lock.release().await?;
    proxy.speak_again();
    assert!(matches!(login(&store, "bob", "192.0.2.2").await?, LoginAttempt::Allowed { .. }));
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_is_left_in_the_silence_gives_its_place_in_the_pool_back() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let proxy = DatabaseProxy::to(&database).await?;
    let (store, lock, waiting) = waiting_login(&database, &proxy).await?;
    proxy.fall_silent();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    lock.release().await?;
    proxy.speak_again();
    assert!(matches!(login(&store, "bob", "192.0.2.2").await?, LoginAttempt::Allowed { .. }));
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_is_left_is_rolled_back_and_costs_no_connection() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let proxy = DatabaseProxy::to(&database).await?;
    let (store, lock, waiting) = waiting_login(&database, &proxy).await?;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    lock.release().await?;
    assert!(matches!(login(&store, "bob", "192.0.2.2").await?, LoginAttempt::Allowed { .. }));
    let watcher = database.superuser_pool().await?;
    let attempts: i64 = sqlx::query_scalar("SELECT count(*) FROM login_attempts").fetch_one(&watcher).await?;
    assert_eq!(attempts, 1);
    Ok(())
}
