//! Usage by day and denials by minute.

use std::time::Duration;

use domain::{InstanceId, ProjectId, RequestId, Tier};
use serde_json::{Value, json};
use store::denials::DenialCount;
use store::testing::{LogRow, RoleName, TestDatabase, UsageRow};
use store::{Store, StoreError};

use crate::admission::fixture;

const SHOP: (ProjectId, &str) = (ProjectId(1), "shop");

fn call(tags: Value) -> LogRow {
    LogRow {
        request: RequestId::new(),
        days_ago: 0,
        project: SHOP,
        key: Some(7),
        model: Some("m"),
        status: 200,
        estimated: false,
        tokens: 10,
        cost: 3,
        tags,
    }
}

/// What the job of the admin service does.
async fn roll_up(store: &Store) -> Result<usize, StoreError> {
    let due = store.list_due_usage_days().await?;
    for day in &due.days {
        assert!(store.roll_up_usage_day(*day).await?);
    }
    store.finish_usage_rollup(due.settled_until).await?;
    Ok(due.days.len())
}

/// The tag, and its requests, errors, estimates, tokens and cost.
fn figures(rows: &[UsageRow]) -> Vec<(String, [i64; 5])> {
    let told = |row: &UsageRow| {
        assert_eq!(row.prompt_tokens, row.charged_tokens);
        let tag = format!("{}={}", row.tag_key, row.tag_value);
        (tag, [row.requests, row.errors, row.estimated, row.charged_tokens, row.charged_cost])
    };
    rows.iter().map(told).collect()
}

async fn insert(database: &TestDatabase, rows: &[LogRow]) -> anyhow::Result<()> {
    for row in rows {
        database.insert_log_row(row).await?;
    }
    Ok(())
}

/// Lets the watermark stand where everything settled so far lies before the overlap.
async fn settled_long_ago(database: &TestDatabase) -> anyhow::Result<()> {
    database
        .execute(
            "UPDATE request_logs SET settled_at = settled_at - interval '1 hour';
             UPDATE usage_rollup_state SET settled_until = clock_timestamp()",
        )
        .await
}

#[tokio::test]
async fn a_day_has_a_total_and_a_row_for_each_tag() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    store.ensure_log_day(0).await?;
    insert(
        &database,
        &[
            call(json!({ "team": "a", "env": "prod" })),
            call(json!({ "team": "a" })),
            LogRow { status: 499, estimated: true, ..call(json!({ "team": "b" })) },
            LogRow { key: None, model: None, tokens: 1, ..call(Value::Null) },
            LogRow { project: (ProjectId(2), "other"), tokens: 5, ..call(json!(["no", "object"])) },
        ],
    )
    .await?;
    assert_eq!(roll_up(&store).await?, 1);
    let rows = database.usage_rollups().await?;
    let expected = [
        ("=", [3, 1, 1, 30, 9]),
        ("=", [1, 0, 0, 1, 3]),
        ("env=prod", [1, 0, 0, 10, 3]),
        ("team=a", [2, 0, 0, 20, 6]),
        ("team=b", [1, 1, 1, 10, 3]),
        ("=", [1, 0, 0, 5, 3]),
    ];
    assert_eq!(figures(&rows), expected.map(|(tag, figures)| (tag.to_owned(), figures)));
    assert_eq!((rows[0].api_key_id, rows[0].model.as_deref()), (Some(7), Some("m")));
    assert_eq!((rows[1].api_key_id, rows[1].model.as_deref()), (None, None));
    assert_eq!((rows[0].project_name.as_deref(), rows[5].project_name.as_deref()), (Some("shop"), Some("other")));
    // Again, and nothing is added to what is there.
    assert_eq!(roll_up(&store).await?, 1, "within the overlap");
    assert_eq!(database.usage_rollups().await?, rows);
    Ok(())
}

#[tokio::test]
async fn only_days_that_were_settled_into_are_due_and_a_correction_is_one() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    for day in [-3, -2, 0] {
        store.ensure_log_day(day).await?;
    }
    let lost = LogRow { days_ago: 3, estimated: true, tokens: 4_096, ..call(json!({})) };
    insert(&database, &[lost.clone(), LogRow { days_ago: 2, ..call(json!({})) }, call(json!({}))]).await?;
    assert_eq!(roll_up(&store).await?, 3);
    settled_long_ago(&database).await?;
    assert_eq!(roll_up(&store).await?, 0);
    let request = lost.request;
    let correct = format!(
        "UPDATE request_logs SET charged_tokens = 12, prompt_tokens = 12, state = 'final', settled_at = clock_timestamp()
          WHERE request_id = '{request}'"
    );
    database.execute(correct).await?;
    assert_eq!(roll_up(&store).await?, 1);
    let rows = database.usage_rollups().await?;
    assert_eq!(rows.iter().map(|row| row.days_ago).collect::<Vec<_>>(), [3, 2, 0]);
    assert_eq!(figures(&rows)[0].1, [1, 0, 0, 12, 3]);
    Ok(())
}

#[tokio::test]
async fn a_day_that_loses_an_estimate_is_added_up_again() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let store = fixture.database.store(RoleName::Backend)?;
    store.ensure_log_day(0).await?;
    fixture.register("active").await?;
    let ask = fixture.ask(None, 100, 200);
    fixture.admit(std::slice::from_ref(&ask)).await?;
    assert_eq!(fixture.give_up().await?, 1);
    assert_eq!(roll_up(&store).await?, 1);
    let rows = fixture.database.usage_rollups().await?;
    assert_eq!((rows.len(), rows[0].estimated, rows[0].charged_tokens), (1, 1, 300));
    settled_long_ago(&fixture.database).await?;
    assert_eq!(roll_up(&store).await?, 0);
    // The process is back and asks again: the call is open, as if nothing had been charged.
    let mut books = fixture.books.lock().await;
    books.instance = InstanceId::new();
    books.admit_again(std::slice::from_ref(&ask), true).await?;
    assert_eq!(roll_up(&store).await?, 1);
    assert!(fixture.database.usage_rollups().await?.is_empty());
    // Not for ever.
    fixture.database.execute("UPDATE usage_days_changed SET changed_at = changed_at - interval '1 hour'").await?;
    assert_eq!(roll_up(&store).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_settlement_that_commits_late_is_found_the_next_time() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    store.ensure_log_day(0).await?;
    insert(&database, &[call(json!({}))]).await?;
    settled_long_ago(&database).await?;
    let pool = database.superuser_pool().await?;
    let mut late = pool.begin().await?;
    sqlx::query(
        "INSERT INTO request_logs SELECT (r).* FROM (SELECT jsonb_populate_record(l, jsonb_build_object(
                     'request_id', gen_random_uuid(), 'settled_at', clock_timestamp())) AS r FROM request_logs l) x",
    )
    .execute(&mut *late)
    .await?;
    assert_eq!(roll_up(&store).await?, 0, "it is not there yet");
    late.commit().await?;
    assert_eq!(roll_up(&store).await?, 1);
    assert_eq!(database.usage_rollups().await?[0].requests, 2);
    Ok(())
}

#[tokio::test]
async fn a_day_that_the_log_has_no_more_keeps_its_rollups() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    for day in [-40, -39, 0] {
        store.ensure_log_day(day).await?;
    }
    let old = LogRow { days_ago: 40, tokens: 77, ..call(json!({ "team": "a" })) };
    insert(&database, &[old.clone(), LogRow { days_ago: 39, ..call(json!({})) }]).await?;
    assert_eq!(roll_up(&store).await?, 2);
    let before = database.usage_rollups().await?;
    database
        .execute(
            "DO $$ BEGIN
                EXECUTE 'DROP TABLE request_logs_' || to_char((clock_timestamp() AT TIME ZONE 'UTC')::date - 40, 'YYYYMMDD');
             END $$",
        )
        .await?;
    settled_long_ago(&database).await?;
    // A call of the day that is gone is settled now: it lands in the default partition.
    insert(&database, &[LogRow { request: RequestId::new(), ..old }]).await?;
    assert_eq!(roll_up(&store).await?, 1);
    assert_eq!(database.usage_rollups().await?, before);
    // A day that was never made but is not older than the log is made, and added up.
    insert(&database, &[LogRow { days_ago: 5, tokens: 8, ..call(json!({})) }]).await?;
    assert_eq!(roll_up(&store).await?, 2);
    let rows = database.usage_rollups().await?;
    assert_eq!(
        rows.iter().map(|row| (row.days_ago, row.charged_tokens)).collect::<Vec<_>>(),
        [(40, 77), (40, 77), (39, 10), (5, 8)]
    );
    Ok(())
}

#[tokio::test]
async fn tags_without_number_are_kept_within_bounds() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Backend)?;
    store.ensure_log_day(0).await?;
    // 1,100 customers, the first of them with two calls; 130 keys of one call each, of which 99 have room beside it.
    database
        .execute(
            "INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, operation, status, state,
                                       charged_requests, charged_tokens, charged_cost, tags)
             SELECT gen_random_uuid(), clock_timestamp(), gen_random_uuid(), 1, 'chat', 200, 'final', 1, 1, 1, tags
               FROM (SELECT jsonb_build_object('customer', 'c' || n) AS tags FROM generate_series(1, 1100) n
                     UNION ALL SELECT '{\"customer\": \"c1\"}'
                     UNION ALL SELECT jsonb_build_object('key' || lpad(n::text, 3, '0'), repeat('\u{1F600}', 512))
                                 FROM generate_series(1, 130) n) t",
        )
        .await?;
    roll_up(&store).await?;
    let rows = database.usage_rollups().await?;
    let total: Vec<_> = rows.iter().filter(|row| row.tag_key.is_empty()).collect();
    assert_eq!((total.len(), total[0].requests), (1, 1_231));
    let customers: Vec<_> = rows.iter().filter(|row| row.tag_key == "customer").collect();
    assert_eq!((customers.len(), customers.iter().map(|row| row.requests).sum::<i64>()), (1_001, 1_101));
    let of = |value: &str| customers.iter().find(|row| row.tag_value == value).map(|row| row.requests);
    assert_eq!((of("c1"), of("(other)")), (Some(2), Some(100)));
    let keys: Vec<&str> = rows.iter().map(|row| row.tag_key.as_str()).filter(|key| key.starts_with("key")).collect();
    assert_eq!((keys.len(), keys[0], keys[98]), (99, "key001", "key099"));
    Ok(())
}

#[tokio::test]
async fn two_at_once_do_a_day_once_and_lose_nothing() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (first, second) = (database.store(RoleName::Backend)?, database.store(RoleName::Backend)?);
    first.ensure_log_day(0).await?;
    insert(&database, &[call(json!({ "team": "a" })), call(json!({ "team": "b" }))]).await?;
    let day = first.list_due_usage_days().await?.days[0];
    // Somebody else is at it, in a transaction that has not ended.
    let pool = database.superuser_pool().await?;
    let mut busy = pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(advisory_class(), 4)").execute(&mut *busy).await?;
    assert!(!first.roll_up_usage_day(day).await?);
    assert!(database.usage_rollups().await?.is_empty());
    busy.rollback().await?;
    let racing = (0..6).map(|at| if at % 2 == 0 { &first } else { &second }).map(|store| store.roll_up_usage_day(day));
    let done = futures::future::try_join_all(racing).await?;
    assert!(done.contains(&true));
    assert_eq!(figures(&database.usage_rollups().await?).len(), 3);
    Ok(())
}

#[tokio::test]
async fn denials_are_added_to_their_minutes() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let count = |tier, id, code: &str, denials, age_minutes: u64| DenialCount {
        tier,
        id,
        code: code.to_owned(),
        denials,
        age: Duration::from_secs(60 * age_minutes),
    };
    let counts = [
        count(Tier::Project, 1, "rate_limit_rpm", 5, 0),
        count(Tier::Key, 1, "rate_limit_rpm", 2, 0),
        count(Tier::Key, 1, "key_revoked", 1, 3),
    ];
    let stores = (0..4).map(|_| database.store(RoleName::Edge)).collect::<Result<Vec<_>, _>>()?;
    let reversed: Vec<DenialCount> = counts.iter().rev().cloned().collect();
    let adding = stores.iter().enumerate().flat_map(|(at, store)| {
        let counts = if at % 2 == 0 { &counts[..] } else { &reversed };
        (0..10).map(move |_| store.add_denials(counts))
    });
    futures::future::try_join_all(adding).await?;
    stores[0].add_denials(&[]).await?;
    let all = database.denial_counts().await?;
    let row = |tier, code: &str, denials| (tier, 1, code.to_owned(), denials);
    assert_eq!(all, [row(1, "rate_limit_rpm", 200), row(2, "key_revoked", 40), row(2, "rate_limit_rpm", 80)]);
    let pool = database.superuser_pool().await?;
    let apart: i64 = sqlx::query_scalar(
        "SELECT (extract(epoch FROM max(minute) FILTER (WHERE code = 'rate_limit_rpm')
                                  - max(minute) FILTER (WHERE code = 'key_revoked')) / 60)::bigint FROM denial_rollups",
    )
    .fetch_one(&pool)
    .await?;
    assert_eq!(apart, 3);
    Ok(())
}
