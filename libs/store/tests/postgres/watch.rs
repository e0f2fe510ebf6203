//! The watch over a test's ledger: it is silent while the ledger's functions are at work, and tells of everything else.

use std::collections::BTreeSet;

use domain::Tier;
use sqlx::AssertSqlSafe;
use store::ledger::{Admission, Ask};
use store::testing::{Cap, LedgerWatch, Meter};

use crate::admission::{Fixture, fixture};

impl Fixture {
    async fn rules(&self, watch: &LedgerWatch) -> anyhow::Result<BTreeSet<String>> {
        Ok(watch.breaches().await?.into_iter().map(|(rule, _)| rule).collect())
    }

    fn numbered(&self, number: i64, ask: Ask) -> Ask {
        Ask { details: format!(r#"{{"operation":"chat","tags":{{"call":"{number}"}}}}"#), ..ask }
    }
}

#[tokio::test]
async fn what_the_ledger_does_is_as_it_must_be_at_every_commit() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000, requests_per_minute = 100").await?;
    let key = fixture.user_key("concurrent_requests = 3, time_zone = 'Asia/Kathmandu'").await?;
    let watch = fixture.database.watch_ledger().await?;
    let asks: Vec<Ask> = (1..=4).map(|number| fixture.numbered(number, fixture.ask(Some(key), 100, 100))).collect();
    // One too many for the key.
    let admitted = fixture.admit(&asks).await?;
    assert!(matches!(admitted[..], [.., Admission::Admitted { .. }, Admission::Denied(_)]), "{admitted:?}");
    let in_flight = watch.meter((Tier::Key, key.0), Cap::ConcurrentRequests).await?;
    assert_eq!((in_flight.used, in_flight.held), (0, 3));
    assert_eq!(watch.open_calls(&[]).await?, 3);
    // Within its hold, beyond it, and lost with its process.
    fixture.settle(asks[0].request, 150, 7).await?;
    fixture.settle(asks[1].request, 450, 0).await?;
    assert!(watch.differences().await?.is_empty());
    let instance = fixture.books.lock().await.instance;
    assert_eq!(watch.open_calls(&[instance]).await?, 0);
    let mut link = fixture.store.ledger_link();
    assert_eq!(link.give_up(instance, std::time::Duration::ZERO, 64).await?, 1);
    fixture.settle(asks[2].request, 90, 0).await?;

    let calls = watch.calls(&[1, 2, 3, 4]).await?;
    let told: Vec<_> = calls
        .iter()
        .map(|call| (call.number, call.held_tokens, call.row.as_ref().map(|row| row.charged_tokens)))
        .collect();
    assert_eq!(told, [(Some(1), 200, Some(150)), (Some(2), 200, Some(450)), (Some(3), 200, Some(90))]);
    assert_eq!(watch.last_place().await?, 3);
    let day = watch.meter((Tier::Project, fixture.project.0), Cap::TokensPerDay).await?;
    assert_eq!(day, Meter { used: 690, held: 0, ..day });
    assert_eq!(watch.breaches().await?, []);
    assert!(watch.commits().await? >= 4);
    Ok(())
}

#[tokio::test]
async fn whatever_else_is_done_to_the_ledger_is_told() -> anyhow::Result<()> {
    let used = "what is used does not move by what the log charges";
    let held = "what is held does not move by what open calls hold";
    let twice = "a call is in the ledger more than once";
    for (deed, rules, differs) in [
        ("UPDATE tier_state SET day_tokens_used = day_tokens_used + 1 WHERE tier = 1", vec![used], true),
        ("UPDATE tier_state SET month_cost_held = month_cost_held + 1 WHERE tier = 2", vec![held], true),
        ("UPDATE tier_state SET open_calls = open_calls + 1 WHERE tier = 2", vec![held], true),
        ("UPDATE tier_state SET day_tokens_used = -1, day_tokens_excess = day_tokens_used + 1 WHERE tier = 1",
         vec!["a figure is below zero, or a generation too old"], true),
        ("UPDATE tier_state SET minute_start = minute_start - interval '1 minute' WHERE tier = 1",
         vec!["a window runs backwards", used, held], true),
        ("INSERT INTO tier_state (tier, id, generation, minute_start, day_start, month_start)
          SELECT tier, id, generation + 1, minute_start, day_start, month_start FROM tier_state WHERE tier = 1",
         vec!["a tier has not one running row"], true),
        ("UPDATE projects SET tokens_per_day = 1", vec!["used and held are over a cap"], false),
        ("INSERT INTO usage_counters (tier, id, window_kind, window_start, cost_excess)
          VALUES (1, 1, 'day', '2026-01-01 00:00 UTC', 5)", vec![used], true),
        ("DELETE FROM requests_open", vec![held], true),
        ("UPDATE requests_open SET held_tokens = held_tokens + 1", vec!["an open call was changed", held], true),
        ("INSERT INTO requests_open SELECT gen_random_uuid(), admitted_at, instance_id, project_id, api_key_id, key_tier,
              minute_start, project_day - interval '1 day', project_month, key_day, key_month, 0, 0, 0, details
          FROM requests_open", vec!["an open call holds in other windows than those of its admission", held], true),
        ("DELETE FROM request_logs", vec!["a log row that was no estimate of a lost edge was changed or removed", used], true),
        ("UPDATE request_logs SET tags = '{\"call\": \"2\"}' WHERE tags ->> 'call' = '1'",
         vec!["a call is logged as another one", "a log row that was no estimate of a lost edge was changed or removed"], false),
        ("UPDATE request_logs SET charged_cost = charged_cost + 1",
         vec!["a log row that was no estimate of a lost edge was changed or removed", used], true),
        ("INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, api_key_id, operation, status, state,
              charged_requests, charged_tokens, charged_cost)
          SELECT request_id, admitted_at + interval '1 microsecond', instance_id, project_id, api_key_id, operation, status, state, 0, 0, 0
            FROM request_logs", vec![twice], false),
        ("INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, api_key_id, operation, status, state,
              charged_requests, charged_tokens, charged_cost)
          SELECT request_id, admitted_at, instance_id, project_id, api_key_id, 'chat', 200, 'final', 0, 0, 0 FROM requests_open",
         vec![twice], false),
        ("INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, api_key_id, operation, status, state,
              charged_requests, charged_tokens, charged_cost)
          SELECT gen_random_uuid(), admitted_at, instance_id, project_id, api_key_id, 'chat', 200, 'final', 0, 0, 0 FROM requests_open",
         vec!["a call is logged that was never admitted"], false),
        // A settlement that adds to excess what the hold covers keeps every sum, and is over no cap by itself.
        ("UPDATE tier_state SET day_tokens_used = day_tokens_used - 1, day_tokens_excess = day_tokens_excess + 1
           WHERE tier = 1", vec![], true),
    ] {
        let fixture = fixture("tokens_per_day = 1000").await?;
        let key = fixture.user_key("").await?;
        let watch = fixture.database.watch_ledger().await?;
        let asks = [1, 2].map(|number| fixture.numbered(number, fixture.ask(Some(key), 100, 100)));
        fixture.admit(&asks).await?;
        fixture.settle(asks[0].request, 150, 7).await?;
        assert_eq!(watch.breaches().await?, []);
        sqlx::raw_sql(AssertSqlSafe(deed)).execute(&fixture.pool).await?;
        let found: BTreeSet<String> = fixture.rules(&watch).await?;
        assert_eq!(found, rules.iter().map(|rule| (*rule).to_owned()).collect(), "{deed}");
        assert_eq!(!watch.differences().await?.is_empty(), differs, "{deed}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cap_that_is_set_after_a_minute_does_not_look_back() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let watch = fixture.database.watch_ledger().await?;
    fixture.admit(&[fixture.ask(None, 100, 100), fixture.ask(None, 100, 100)]).await?;
    for deed in [
        "UPDATE tier_state SET minute_start = minute_start - interval '1 minute'",
        "TRUNCATE watch.breaches",
        "UPDATE projects SET requests_per_minute = 1",
    ] {
        sqlx::raw_sql(deed).execute(&fixture.pool).await?;
    }
    assert_eq!(watch.breaches().await?, []);
    Ok(())
}

#[tokio::test]
async fn an_admission_over_a_cap_is_told_although_only_excess_fills_it() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000").await?;
    let watch = fixture.database.watch_ledger().await?;
    let first = fixture.ask(None, 100, 100);
    fixture.admit(std::slice::from_ref(&first)).await?;
    fixture.settle(first.request, 900, 0).await?;
    // The sums of an honest admission, but for a cap that nobody looked at.
    sqlx::raw_sql(
        "BEGIN;
         UPDATE tier_state SET open_calls = 1, minute_requests_held = 1, minute_tokens_held = 101, day_requests_held = 1,
             day_tokens_held = 101, month_requests_held = 1, month_tokens_held = 101;
         INSERT INTO requests_open
         SELECT gen_random_uuid(), s.minute_start, l.instance_id, l.project_id, l.api_key_id, false, s.minute_start,
                s.day_start, s.month_start, NULL, NULL, 101, 0, 1, '{}'
           FROM tier_state s, request_logs l;
         COMMIT;",
    )
    .execute(&fixture.pool)
    .await?;
    assert_eq!(fixture.rules(&watch).await?, BTreeSet::from(["a call was admitted over a cap".to_owned()]));
    Ok(())
}
