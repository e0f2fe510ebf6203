//! What crashes leave behind, and how it is put right: lost commits, lost replies, lost processes.

use std::time::Duration;

use domain::{InstanceId, RequestId};
use store::StoreError;
use store::instances::{Beat, NewInstance};
use store::ledger::{Admission, Ask, Entry, OpenCallRow};
use store::testing::RoleName;

use crate::admission::{Fixture, denial, fixture, granted};
use crate::books::Books;

const AGE: Duration = Duration::ZERO;

impl Fixture {
    /// An admitted call, as its owner knows it.
    pub(crate) async fn open(&self, ask: &Ask) -> anyhow::Result<OpenCallRow> {
        assert!(matches!(self.admit(std::slice::from_ref(ask)).await?[0], Admission::Admitted { .. }));
        Ok(self.books.lock().await.row(ask.request))
    }

    /// What a crash does to a call whose admission was not durable yet: neither its row nor its hold is there.
    async fn lose_admission(&self, row: &OpenCallRow) -> anyhow::Result<()> {
        self.books.lock().await.link.forget_calls(&[row.ask.request]).await?;
        self.database.lose_ledger_epoch().await
    }

    pub(crate) async fn register(&self, state: &str) -> anyhow::Result<InstanceId> {
        let instance = self.books.lock().await.instance;
        let new = NewInstance {
            id: instance,
            service: "edge".to_owned(),
            owner: "o".to_owned(),
            host: "h".to_owned(),
            version: "1".to_owned(),
            schema_version: 1,
            addresses: serde_json::json!({}),
            key_ids: Vec::new(),
        };
        self.store.register_instance(&new).await?;
        self.store.set_instance_state(instance, state).await?;
        Ok(instance)
    }

    /// Gives this process up, as another would, and settles its calls.
    pub(crate) async fn give_up(&self) -> anyhow::Result<i64> {
        let instance = self.books.lock().await.instance;
        sqlx::query("UPDATE instances SET state = 'lost' WHERE id = $1").bind(instance.0).execute(&self.pool).await?;
        let mut link = self.store.ledger_link();
        assert_eq!(link.list_orphaned_instances(AGE).await?, [instance]);
        let settled = link.give_up(instance, AGE, 64).await?;
        assert_eq!(link.give_up(instance, AGE, 64).await?, 0);
        Ok(settled)
    }

    pub(crate) async fn log_row(&self, request: RequestId) -> anyhow::Result<(i32, Option<String>, String, i64, i64)> {
        Ok(sqlx::query_as(
            "SELECT status, error_code, state, charged_requests, charged_tokens FROM request_logs WHERE request_id = $1",
        )
        .bind(request.0)
        .fetch_one(&self.pool)
        .await?)
    }

    /// Used, excess and held tokens of the running day, of project and key alike.
    pub(crate) async fn day(&self) -> anyhow::Result<(i64, i64, i64)> {
        let rows: Vec<(i64, i64, i64)> =
            sqlx::query_as("SELECT day_tokens_used, day_tokens_excess, day_tokens_held FROM tier_state ORDER BY tier")
                .fetch_all(&self.pool)
                .await?;
        assert!(rows.windows(2).all(|pair| pair[0] == pair[1]), "{rows:?}");
        Ok(rows[0])
    }
}

#[tokio::test]
async fn a_flush_waits_for_the_disk_where_the_database_is_set_not_to() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let careless = format!("ALTER DATABASE {} SET synchronous_commit = off", fixture.database.name());
    sqlx::raw_sql(sqlx::AssertSqlSafe(careless)).execute(&fixture.pool).await?;
    let mut books = Books::open(&fixture.database.store(RoleName::Edge)?).await?;
    // More than once, for the server writes now and then by itself.
    for _ in 0..20 {
        let ask = fixture.ask(None, 1, 64);
        books.admit(std::slice::from_ref(&ask)).await?;
        books.settle(ask.request, 10, 0).await?;
        let written: String =
            sqlx::query_scalar("SELECT pg_current_wal_insert_lsn()::text").fetch_one(&fixture.pool).await?;
        books.link.flush().await?;
        let is_durable: bool = sqlx::query_scalar("SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn")
            .bind(&written)
            .fetch_one(&fixture.pool)
            .await?;
        assert!(is_durable, "the log is not flushed up to {written}");
    }
    Ok(())
}

#[tokio::test]
async fn nothing_is_admitted_on_another_history_until_the_open_calls_are_back() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000, concurrent_requests = 1").await?;
    let key = fixture.user_key("tokens_per_day = 100000").await?;
    let ask = fixture.ask(Some(key), 100, 200);
    let row = fixture.open(&ask).await?;
    fixture.lose_admission(&row).await?;
    assert_eq!(fixture.day().await?, (0, 0, 0));
    let next = [fixture.ask(Some(key), 1, 64)];
    let mut books = fixture.books.lock().await;
    assert!(matches!(books.admit(&next).await, Err(StoreError::EpochChanged)));
    // No cap refuses what runs already, and doing it twice is doing it once.
    let (instance, calls) = (books.instance, [row.clone()]);
    let epoch = books.link.reassert(instance, &calls).await?;
    assert_eq!(books.link.reassert(instance, &calls).await?, epoch);
    books.epoch = epoch;
    let denied = books.admit(&next).await?;
    assert_eq!(denial(&denied[0]).code, "concurrency_limit", "the slot is taken again");
    drop(books);
    assert_eq!(fixture.day().await?, (0, 0, 300));
    assert_eq!(fixture.settle(ask.request, 150, 0).await?, [ask.request]);
    assert_eq!(fixture.day().await?, (150, 0, 0));
    Ok(())
}

#[tokio::test]
async fn a_settled_call_is_not_put_back() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let ask = fixture.ask(None, 100, 200);
    let row = fixture.open(&ask).await?;
    fixture.settle(ask.request, 150, 0).await?;
    let mut books = fixture.books.lock().await;
    let instance = books.instance;
    books.link.reassert(instance, &[row]).await?;
    assert_eq!(fixture.day().await?, (150, 0, 0));
    assert!(fixture.database.open_ids(fixture.project).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_call_whose_admission_and_settlement_are_lost_is_charged_directly_and_once() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let ask = fixture.ask(Some(key), 100, 200);
    let row = fixture.open(&ask).await?;
    fixture.lose_admission(&row).await?;
    for (changed, _) in [(vec![ask.request], 0), (vec![], 1), (vec![], 2)] {
        assert_eq!(fixture.settle(ask.request, 450, 0).await?, changed);
        assert_eq!(fixture.day().await?, (300, 150, 0));
    }
    assert_eq!(fixture.log_row(ask.request).await?, (200, None, "final".to_owned(), 1, 450));
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((totals.open_calls, totals.day_requests, totals.log_rows), (0, 1, 1));
    Ok(())
}

#[tokio::test]
async fn a_call_whose_admission_time_is_not_known_is_logged_once_too() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let ask = fixture.ask(None, 100, 200);
    let row = fixture.open(&ask).await?;
    fixture.lose_admission(&row).await?;
    let mut books = fixture.books.lock().await;
    books.forget_time(ask.request);
    let entry = Entry { status: 200, latency_ms: 5000, ..Entry::default() };
    for changed in [vec![ask.request], vec![]] {
        assert_eq!(books.settle_as(ask.request, 150, 0, entry.clone()).await?, changed);
    }
    drop(books);
    assert_eq!(fixture.day().await?, (150, 0, 0));
    let age: f64 = sqlx::query_scalar("SELECT extract(epoch FROM settled_at - admitted_at)::float8 FROM request_logs")
        .fetch_one(&fixture.pool)
        .await?;
    assert!((5.0..60.0).contains(&age), "{age}");
    Ok(())
}

#[tokio::test]
async fn calls_of_a_lost_process_are_charged_their_hold_until_it_says_better_once() -> anyhow::Result<()> {
    let fixture = fixture("cost_per_day = 1000000").await?;
    let key = fixture.user_key("").await?;
    fixture.register("active").await?;
    let (returns, never) = (fixture.ask(Some(key), 100, 200), fixture.ask(Some(key), 10, 64));
    fixture.open(&returns).await?;
    fixture.open(&never).await?;
    assert_eq!(fixture.give_up().await?, 2);
    let lost = |tokens| (499, Some("edge_lost".to_owned()), "estimated".to_owned(), 1, tokens);
    assert_eq!(fixture.log_row(returns.request).await?, lost(300));
    assert_eq!(fixture.log_row(never.request).await?, lost(74));
    assert_eq!(fixture.day().await?, (374, 0, 0));
    // Its owner is back, and knows that more was used than held.
    for changed in [vec![returns.request], vec![]] {
        assert_eq!(fixture.settle(returns.request, 350, 0).await?, changed);
        assert_eq!(fixture.day().await?, (374, 50, 0));
    }
    assert_eq!(fixture.log_row(returns.request).await?, (200, None, "final".to_owned(), 1, 350));
    // Or less, by an estimate of its own, which is not replaced again.
    let entry = Entry { status: 499, estimated: true, ..Entry::default() };
    let mut books = fixture.books.lock().await;
    assert_eq!(books.settle_as(never.request, 20, 0, entry.clone()).await?, [never.request]);
    assert!(books.settle_as(never.request, 10, 0, entry).await?.is_empty());
    drop(books);
    assert_eq!(fixture.day().await?, (320, 50, 0));
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((totals.day_tokens, totals.logged_tokens, totals.day_requests, totals.open_calls), (370, 370, 2, 0));
    Ok(())
}

#[tokio::test]
async fn a_lost_process_admits_nothing_under_its_old_id() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let instance = fixture.register("active").await?;
    assert_eq!(granted(&fixture.admit(&[fixture.ask(None, 1, 64)]).await?[0]), 64);
    let observer = InstanceId::new();
    let (_, beats) = fixture.store.list_beats().await?;
    assert_eq!(beats.iter().map(|beat| beat.id).collect::<Vec<_>>(), [instance]);
    assert!(!fixture.store.mark_instance_lost(observer, beats[0]).await?, "by one that nobody knows");
    let mut books = fixture.books.lock().await;
    books.instance = observer;
    drop(books);
    fixture.register("active").await?;
    assert!(!fixture.store.mark_instance_lost(observer, Beat { beats: -1, ..beats[0] }).await?, "it has beaten since");
    assert!(fixture.store.mark_instance_lost(observer, beats[0]).await?);
    let mut books = fixture.books.lock().await;
    books.instance = instance;
    let refused = books.admit(&[fixture.ask(None, 1, 64)]).await;
    assert!(matches!(refused, Err(StoreError::InstanceLost)), "{refused:?}");
    assert!(!fixture.store.mark_instance_lost(instance, Beat { id: observer, beats: 0 }).await?, "it judges nobody");
    Ok(())
}

#[tokio::test]
async fn the_calls_of_a_living_process_are_not_given_up() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let instance = fixture.register("draining").await?;
    fixture.open(&fixture.ask(None, 1, 64)).await?;
    let mut link = fixture.store.ledger_link();
    assert!(link.list_orphaned_instances(AGE).await?.is_empty());
    assert_eq!(link.give_up(instance, AGE, 64).await?, 0);
    // One that has left is not waited for any longer than its time.
    fixture.store.set_instance_state(instance, "left").await?;
    assert_eq!(link.give_up(instance, Duration::from_secs(3600), 64).await?, 0);
    assert_eq!(link.give_up(instance, AGE, 64).await?, 1);
    Ok(())
}

#[tokio::test]
async fn an_admission_that_is_tried_again_is_held_once_and_one_that_nobody_knows_is_taken_back() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000, requests_per_minute = 1000").await?;
    let asks = [fixture.ask(None, 100, 200), fixture.ask(None, 100, 200)];
    let mut books = fixture.books.lock().await;
    for again in [false, true, true] {
        let answers = books.admit_again(&asks, again).await?;
        assert!(answers.iter().all(|answer| granted(answer) == 200));
    }
    assert_eq!(fixture.day().await?, (0, 0, 600));
    let instance = books.instance;
    assert!(books.link.list_open_calls(instance, Duration::from_secs(3600)).await?.is_empty(), "all too young");
    let mut open = books.link.list_open_calls(instance, AGE).await?;
    open.sort_unstable_by_key(|call| call.0);
    assert_eq!(open.len(), 2);
    assert_eq!(books.link.forget_calls(&open).await?, 2);
    assert_eq!(books.link.forget_calls(&open).await?, 0);
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((totals.day_tokens_held, totals.day_requests, totals.open_calls, totals.log_rows), (0, 0, 0, 0));
    Ok(())
}

#[tokio::test]
async fn an_admission_that_is_tried_again_after_its_process_was_given_up_is_charged_once() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000").await?;
    let key = fixture.user_key("").await?;
    fixture.register("active").await?;
    let ask = fixture.ask(Some(key), 100, 200);
    fixture.open(&ask).await?;
    assert_eq!(fixture.give_up().await?, 1);
    assert_eq!(fixture.day().await?, (300, 0, 0));
    let mut books = fixture.books.lock().await;
    books.instance = InstanceId::new();
    let answers = books.admit_again(std::slice::from_ref(&ask), true).await?;
    assert_eq!(granted(&answers[0]), 200);
    drop(books);
    assert_eq!(fixture.day().await?, (0, 0, 300));
    assert_eq!(fixture.settle(ask.request, 150, 0).await?, [ask.request]);
    assert_eq!(fixture.log_row(ask.request).await?, (200, None, "final".to_owned(), 1, 150));
    assert!(fixture.database.ledger_faults().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_call_that_a_crash_left_with_the_time_of_its_first_try_is_settled_once() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let ask = fixture.ask(Some(key), 100, 200);
    let first = fixture.open(&ask).await?;
    // Its owner heard of the second try, which was lost.
    fixture.books.lock().await.admitted_earlier(ask.request, Duration::from_millis(20));
    let second = fixture.books.lock().await.row(ask.request);
    assert_ne!(first.admitted_at, second.admitted_at);
    assert_eq!(fixture.settle(ask.request, 150, 0).await?, [ask.request]);
    assert!(fixture.settle(ask.request, 150, 0).await?.is_empty(), "the answer was lost");
    let mut books = fixture.books.lock().await;
    let instance = books.instance;
    books.link.reassert(instance, &[second]).await?;
    drop(books);
    assert!(fixture.settle(ask.request, 150, 0).await?.is_empty());
    assert_eq!(fixture.day().await?, (150, 0, 0));
    assert!(fixture.database.ledger_faults().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_direct_charge_of_yesterday_goes_to_yesterday() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let ask = fixture.ask(None, 100, 200);
    let row = fixture.open(&ask).await?;
    fixture.lose_admission(&row).await?;
    let mut books = fixture.books.lock().await;
    books.admitted_earlier(ask.request, Duration::from_secs(86_400));
    assert_eq!(books.settle(ask.request, 450, 0).await?, [ask.request]);
    drop(books);
    assert_eq!(fixture.day().await?, (0, 0, 0));
    let closed: Vec<(i64, i64)> = sqlx::query_as(
        "SELECT tokens_used, tokens_excess FROM usage_counters WHERE window_kind = 'day' AND tokens_used > 0",
    )
    .fetch_all(&fixture.pool)
    .await?;
    assert_eq!(closed, [(300, 150)]);
    Ok(())
}
