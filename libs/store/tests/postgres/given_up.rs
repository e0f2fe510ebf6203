//! Processes that are given up while somebody is at their calls.

use std::time::Duration;

use domain::{Price, RequestId};
use store::StoreError;
use store::ledger::Ask;

use crate::admission::{Fixture, fixture};

const AT_ONCE: u32 = 64;

impl Fixture {
    async fn lose(&self) -> anyhow::Result<()> {
        let instance = self.books.lock().await.instance;
        sqlx::query("UPDATE instances SET state = 'lost' WHERE id = $1").bind(instance.0).execute(&self.pool).await?;
        Ok(())
    }

    async fn is_final(&self, request: RequestId, tokens: i64) -> anyhow::Result<()> {
        assert_eq!(self.log_row(request).await?, (200, None, "final".to_owned(), 1, tokens));
        assert!(self.database.ledger_faults().await?.is_empty());
        Ok(())
    }
}

#[tokio::test]
async fn a_call_whose_owner_settles_it_while_it_is_given_up_is_charged_once_and_as_its_owner_says() -> anyhow::Result<()>
{
    let fixture = fixture("tokens_per_day = 1000000, concurrent_requests = 10").await?;
    let key = fixture.user_key("tokens_per_month = 1000000").await?;
    let instance = fixture.register("active").await?;
    let mut link = fixture.store.ledger_link();
    for round in 1..=60 {
        sqlx::query("UPDATE instances SET state = 'active'").execute(&fixture.pool).await?;
        let asks: Vec<Ask> = (0..4).map(|_| fixture.ask(Some(key), 100, 200)).collect();
        fixture.admit(&asks).await?;
        fixture.lose().await?;
        let settling = async {
            for ask in &asks {
                assert_eq!(fixture.settle(ask.request, 150, 0).await?, [ask.request]);
            }
            anyhow::Ok(())
        };
        let giving_up = async {
            loop {
                // One by one, so that it meets its owner at every one of them.
                match link.give_up(instance, Duration::ZERO, 1).await {
                    Ok(0) => return Ok(()),
                    Ok(_) | Err(StoreError::Conflict) => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let (settled, given_up) = tokio::join!(settling, giving_up);
        settled?;
        given_up?;
        for ask in &asks {
            fixture.is_final(ask.request, 150).await?;
        }
        assert_eq!(fixture.day().await?, (600 * round, 0, 0));
    }
    Ok(())
}

#[tokio::test]
async fn an_owner_that_settles_before_the_giving_up_is_committed_replaces_the_estimate() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let instance = fixture.register("active").await?;
    let ask = fixture.ask(Some(key), 100, 200);
    fixture.open(&ask).await?;
    fixture.lose().await?;
    let mut other = fixture.pool.begin().await?;
    let given_up: i64 =
        sqlx::query_scalar("SELECT give_up_v1($1, 0, 64)").bind(instance.0).fetch_one(&mut *other).await?;
    assert_eq!(given_up, 1);
    let commit = async {
        testkit::until("the owner waits", || async { fixture.database.has_lock_waiters().await }).await?;
        anyhow::Ok(other.commit().await?)
    };
    let (settled, committed) = tokio::join!(fixture.settle(ask.request, 350, 0), commit);
    committed?;
    assert_eq!(settled?, [ask.request]);
    fixture.is_final(ask.request, 350).await?;
    assert_eq!(fixture.day().await?, (300, 50, 0));
    Ok(())
}

#[tokio::test]
async fn a_call_that_its_owner_is_settling_is_left_to_it() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let instance = fixture.register("active").await?;
    let ask = fixture.ask(Some(key), 100, 200);
    fixture.open(&ask).await?;
    fixture.lose().await?;
    // Holds the owner where it has its tiers and its open row, and has not written the log.
    sqlx::raw_sql(
        "CREATE FUNCTION wait_at_row() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM set_config('lock_timeout', '0', true); PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
         CREATE TRIGGER wait_at_row AFTER DELETE ON requests_open FOR EACH ROW EXECUTE FUNCTION wait_at_row();",
    )
    .execute(&fixture.pool)
    .await?;
    let mut gate = fixture.pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *gate).await?;
    let mut link = fixture.store.ledger_link();
    let beside = async {
        testkit::until("the owner is at its row", || async { fixture.database.has_lock_waiters().await }).await?;
        let refused = link.give_up(instance, Duration::ZERO, AT_ONCE).await;
        assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
        anyhow::Ok(gate.commit().await?)
    };
    let (settled, waited) = tokio::join!(fixture.settle(ask.request, 150, 0), beside);
    waited?;
    assert_eq!(settled?, [ask.request]);
    assert_eq!(link.give_up(instance, Duration::ZERO, AT_ONCE).await?, 0);
    fixture.is_final(ask.request, 150).await?;
    assert_eq!(fixture.day().await?, (150, 0, 0));
    Ok(())
}

#[tokio::test]
async fn what_is_locked_keeps_no_other_call_from_being_given_up() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let instance = fixture.register("active").await?;
    let blocked = fixture.database.insert_project("blocked", "").await?;
    let (blocked_key, _) = fixture.database.insert_project_key(blocked).await?;
    let in_blocked = || Ask { project: blocked, ..fixture.ask(Some(blocked_key), 10, 64) };
    let mut asks = vec![in_blocked(), in_blocked(), fixture.ask(Some(key), 10, 64), fixture.ask(Some(key), 10, 64)];
    asks.extend((0..4).map(|_| fixture.ask(None, 10, 64)));
    fixture.admit(&asks).await?;
    fixture.lose().await?;
    // A project, a key, and one call of those that are left.
    let mut other = fixture.pool.begin().await?;
    sqlx::query("SELECT FROM projects WHERE id = $1 FOR UPDATE").bind(blocked.0).execute(&mut *other).await?;
    sqlx::query("SELECT FROM api_keys WHERE id = $1 FOR UPDATE").bind(key.0).execute(&mut *other).await?;
    sqlx::query("SELECT FROM requests_open WHERE request_id = $1 FOR UPDATE")
        .bind(asks[4].request.0)
        .execute(&mut *other)
        .await?;
    let mut link = fixture.store.ledger_link();
    let mut settled = 0;
    let refused = loop {
        match link.give_up(instance, Duration::ZERO, 1).await {
            Ok(calls) => settled += calls,
            Err(error) => break error,
        }
        assert!(settled <= 3, "{settled}");
    };
    assert!(matches!(refused, StoreError::Conflict), "{refused:?}");
    assert_eq!(settled, 3);
    other.rollback().await?;
    loop {
        match link.give_up(instance, Duration::ZERO, AT_ONCE).await? {
            0 => break,
            calls => settled += calls,
        }
    }
    assert_eq!(settled, 8);
    assert!(fixture.database.ledger_faults().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_price_that_changes_meanwhile_changes_nothing_for_a_call_in_flight() -> anyhow::Result<()> {
    let fixture = fixture("cost_per_day = 1000000000").await?;
    let instance = fixture.register("active").await?;
    fixture.database.insert_price("m", 5_000_000, 7_000_000).await?;
    let ask = Ask { input_price: Price(5_000_000), output_price: Price(7_000_000), ..fixture.ask(None, 100, 200) };
    fixture.open(&ask).await?;
    fixture.database.execute("UPDATE model_prices SET input = 90000000, output = 90000000").await?;
    let kept: serde_json::Value =
        sqlx::query_scalar("SELECT details -> 'prices' FROM requests_open").fetch_one(&fixture.pool).await?;
    assert_eq!(kept, serde_json::json!({ "input": 5_000_000, "output": 7_000_000, "fixed": 0 }));
    fixture.lose().await?;
    assert_eq!(fixture.store.ledger_link().give_up(instance, Duration::ZERO, AT_ONCE).await?, 1);
    let charged: (i64, i64) = sqlx::query_as(
        "SELECT l.charged_cost, s.day_cost_used FROM request_logs l, tier_state s WHERE s.tier = 1 AND s.id = l.project_id",
    )
    .fetch_one(&fixture.pool)
    .await?;
    assert_eq!(charged, (100 * 5 + 200 * 7, 100 * 5 + 200 * 7));
    Ok(())
}
