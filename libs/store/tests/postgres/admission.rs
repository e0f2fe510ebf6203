//! The ledger's functions on a real server, through the edge's role.

use domain::{ApiKeyId, NanoUsd, Price, ProjectId, RequestId, Tier};
use sqlx::{Acquire, PgPool};
use store::ledger::{Admission, Ask, Denial, Entry};
use store::testing::{RoleName, TestDatabase};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::books::Books;

pub(crate) struct Fixture {
    pub(crate) database: TestDatabase,
    pub(crate) pool: PgPool,
    pub(crate) store: store::Store,
    pub(crate) books: Mutex<Books>,
    pub(crate) project: ProjectId,
    pub(crate) project_key: ApiKeyId,
}

pub(crate) async fn fixture(limits: &str) -> anyhow::Result<Fixture> {
    let database = testkit::database().await?;
    let pool = database.superuser_pool().await?;
    let store = database.store(RoleName::Edge)?;
    let project = sqlx::query_scalar("INSERT INTO projects (name) VALUES ('p') RETURNING id").fetch_one(&pool).await?;
    let key = sqlx::query_scalar(
        "INSERT INTO api_keys (kind, name, key_hash, key_prefix, project_id)
         VALUES ('project', 'p', '\\x00', 'sk-proj-x', $1) RETURNING id",
    )
    .bind(project)
    .fetch_one(&pool)
    .await?;
    let books = Mutex::new(Books::open(&store).await?);
    let fixture = Fixture { database, pool, store, books, project: ProjectId(project), project_key: ApiKeyId(key) };
    fixture.limit("projects", project, limits).await?;
    Ok(fixture)
}

impl Fixture {
    pub(crate) async fn limit(&self, table: &str, id: i64, limits: &str) -> anyhow::Result<()> {
        if !limits.is_empty() {
            let sql = format!("UPDATE {table} SET {limits} WHERE id = {id}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.pool).await?;
        }
        Ok(())
    }

    pub(crate) async fn user_key(&self, limits: &str) -> anyhow::Result<ApiKeyId> {
        let user: i64 = sqlx::query_scalar("INSERT INTO users (username, role) VALUES ('u', 'viewer') RETURNING id")
            .fetch_one(&self.pool)
            .await?;
        let key: i64 = sqlx::query_scalar(
            "INSERT INTO api_keys (kind, name, key_hash, key_prefix, owner_user_id)
             VALUES ('gateway', 'k', '\\x01', 'sk-user-x', $1) RETURNING id",
        )
        .bind(user)
        .fetch_one(&self.pool)
        .await?;
        sqlx::query("INSERT INTO api_key_projects VALUES ($1, $2)")
            .bind(key)
            .bind(self.project.0)
            .execute(&self.pool)
            .await?;
        self.limit("api_keys", key, limits).await?;
        Ok(ApiKeyId(key))
    }

    pub(crate) fn ask(&self, key: Option<ApiKeyId>, prompt: i64, output: i64) -> Ask {
        Ask {
            request: RequestId::new(),
            project: self.project,
            key: Some(key.unwrap_or(self.project_key)),
            prompt_tokens: prompt,
            output_tokens: output,
            min_output: 64,
            input_price: Price(0),
            output_price: Price(0),
            fixed_cost: NanoUsd(0),
            details: r#"{"operation":"chat"}"#.to_owned(),
        }
    }

    pub(crate) async fn admit(&self, asks: &[Ask]) -> anyhow::Result<Vec<Admission>> {
        Ok(self.books.lock().await.admit(asks).await?)
    }

    pub(crate) async fn settle(&self, request: RequestId, tokens: i64, cost: i64) -> anyhow::Result<Vec<RequestId>> {
        Ok(self.books.lock().await.settle(request, tokens, cost).await?)
    }
}

pub(crate) fn granted(admission: &Admission) -> i64 {
    match admission {
        Admission::Admitted { output_tokens, .. } => *output_tokens,
        other => panic!("not admitted: {other:?}"),
    }
}

pub(crate) fn denial(admission: &Admission) -> &Denial {
    match admission {
        Admission::Denied(denial) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

#[tokio::test]
async fn the_third_request_of_a_minute_is_denied_with_what_the_answer_needs() -> anyhow::Result<()> {
    let fixture = fixture("requests_per_minute = 2").await?;
    // A batch that crosses into the next minute would see the window anew.
    testkit::early_in_a_minute().await?;
    let asks: Vec<Ask> = (0..3).map(|_| fixture.ask(None, 10, 100)).collect();
    let answers = fixture.admit(&asks).await?;
    let denial = denial(&answers[2]);
    assert_eq!((denial.code.as_str(), denial.tier, denial.cap), ("rate_limit_rpm", Tier::Project, 2));
    assert_eq!(denial.used + denial.held, 2);
    assert!((1..=60).contains(&denial.retry_after_seconds));
    assert_eq!(denial.headroom.requests, Some((2, 0)));
    Ok(())
}

#[tokio::test]
async fn a_large_denied_ask_leaves_room_for_small_ones_behind_it() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000").await?;
    let answers =
        fixture.admit(&[fixture.ask(None, 900, 64), fixture.ask(None, 5000, 100), fixture.ask(None, 30, 500)]).await?;
    assert_eq!(granted(&answers[0]), 64);
    assert_eq!(denial(&answers[1]).code, "budget_daily");
    assert_eq!(denial(&answers[2]).held, 964, "6 tokens are left, which is less than the smallest output");
    let answers = fixture.admit(&[Ask { min_output: 7, ..fixture.ask(None, 30, 7) }]).await?;
    assert_eq!(denial(&answers[0]).code, "budget_daily");
    let answers = fixture.admit(&[Ask { min_output: 6, ..fixture.ask(None, 30, 6) }]).await?;
    assert_eq!(granted(&answers[0]), 6);
    Ok(())
}

#[tokio::test]
async fn a_call_behind_a_denied_one_has_its_own_row() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 100").await?;
    let other = fixture.database.insert_project("other", "tokens_per_day = 1000").await?;
    let (key, _) = fixture.database.insert_project_key(other).await?;
    let large = fixture.ask(None, 5000, 64);
    let small = Ask { project: other, key: Some(key), ..fixture.ask(None, 36, 64) };
    let answers = fixture.admit(&[large.clone(), small.clone(), large.clone()]).await?;
    assert_eq!((denial(&answers[0]).code.as_str(), granted(&answers[1])), ("budget_daily", 64));
    let open: Vec<(Uuid, i64, i64, i64)> =
        sqlx::query_as("SELECT request_id, project_id, held_tokens, output_tokens FROM requests_open")
            .fetch_all(&fixture.pool)
            .await?;
    assert_eq!(open, [(small.request.0, other.0, 100, 64)]);
    assert_eq!(fixture.settle(small.request, 90, 0).await?, [small.request]);
    assert_eq!(fixture.database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_key_denial_takes_nothing_from_the_project() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 100000").await?;
    let key = fixture.user_key("tokens_per_day = 100").await?;
    let answers = fixture.admit(&[fixture.ask(Some(key), 500, 100), fixture.ask(None, 500, 100)]).await?;
    let denied = denial(&answers[0]);
    assert_eq!((denied.tier, denied.code.as_str(), denied.cap), (Tier::Key, "budget_daily", 100));
    assert_eq!(granted(&answers[1]), 100);
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!(totals.day_tokens_held, 600);
    Ok(())
}

#[tokio::test]
async fn a_key_over_its_limits_does_not_touch_the_row_that_all_keys_share() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000").await?;
    let key = fixture.user_key("concurrent_requests = 1").await?;
    let one = async |prompt, output| fixture.admit(&[fixture.ask(Some(key), prompt, output)]).await;
    let rows = async || {
        let rows: Vec<(String, i32, i64, i64)> = sqlx::query_as(
            "SELECT xmin::text || ctid::text, updates, day_tokens_held, open_calls FROM tier_state ORDER BY tier",
        )
        .fetch_all(&fixture.pool)
        .await?;
        anyhow::Ok(rows)
    };
    granted(&one(100, 100).await?[0]);
    let before = rows().await?;
    assert_eq!(denial(&one(10, 64).await?[0]).code, "concurrency_limit");
    assert_eq!(rows().await?, before, "not even a new version of a row");
    // Nor does the project's denial leave anything with a key that has room.
    fixture.limit("api_keys", key.0, "concurrent_requests = 9").await?;
    let denied = one(900, 64).await?;
    assert_eq!((denial(&denied[0]).code.as_str(), denial(&denied[0]).tier), ("budget_daily", Tier::Project));
    let after = rows().await?;
    assert_eq!(after[0], before[0]);
    assert_eq!((after[1].2, after[1].3), (200, 1));
    assert_eq!(granted(&one(10, 64).await?[0]), 64);
    Ok(())
}

#[tokio::test]
async fn the_output_is_clipped_to_the_tightest_window_in_tokens_and_money() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000, cost_per_day = 5000").await?;
    let priced = Ask { input_price: Price(1_000_000), output_price: Price(10_000_000), ..fixture.ask(None, 500, 4000) };
    let answers = fixture.admit(&[priced]).await?;
    // 5,000 nano-USD less 500 for the prompt, at 10 a token.
    assert_eq!(granted(&answers[0]), 450);
    let pool = &fixture.pool;
    let held: (i64, i64) = sqlx::query_as("SELECT held_tokens, held_cost FROM requests_open").fetch_one(pool).await?;
    assert_eq!(held, (950, 5000));
    Ok(())
}

#[tokio::test]
async fn a_revoked_or_ungranted_key_is_refused_by_admission_itself() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let refusal = |answers: &[Admission]| match &answers[0] {
        Admission::Refused { code } => code.clone(),
        other => format!("{other:?}"),
    };
    assert_eq!(granted(&fixture.admit(&[fixture.ask(Some(key), 1, 100)]).await?[0]), 100);
    for (change, code) in [
        ("UPDATE users SET active = false", "key_owner_inactive"),
        ("UPDATE api_keys SET expires_at = clock_timestamp()", "key_expired"),
        ("UPDATE api_keys SET revoked_at = clock_timestamp()", "key_revoked"),
    ] {
        sqlx::raw_sql(change).execute(&fixture.pool).await?;
        assert_eq!(refusal(&fixture.admit(&[fixture.ask(Some(key), 1, 100)]).await?), code);
    }
    sqlx::raw_sql("UPDATE api_keys SET revoked_at = NULL, expires_at = NULL; UPDATE users SET active = true; DELETE FROM api_key_projects")
        .execute(&fixture.pool)
        .await?;
    assert_eq!(refusal(&fixture.admit(&[fixture.ask(Some(key), 1, 100)]).await?), "project_not_granted");
    let unknown = Ask { project: ProjectId(-1), ..fixture.ask(None, 1, 100) };
    assert_eq!(refusal(&fixture.admit(&[unknown]).await?), "project_not_granted");
    Ok(())
}

#[tokio::test]
async fn no_key_of_an_inactive_owner_is_admitted_alone_or_with_others() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let key = fixture.user_key("").await?;
    let owned = "UPDATE api_keys SET owner_user_id = (SELECT id FROM users) WHERE kind = 'project'";
    sqlx::raw_sql(owned).execute(&fixture.pool).await?;
    let batches = [vec![None], vec![Some(key)], vec![None; 3], vec![Some(key); 3], vec![None, Some(key)]];
    for is_active in [true, false] {
        let change = sqlx::query("UPDATE users SET active = $1").bind(is_active);
        change.execute(&fixture.pool).await?;
        for keys in &batches {
            let asks: Vec<Ask> = keys.iter().map(|key| fixture.ask(*key, 1, 100)).collect();
            for answer in fixture.admit(&asks).await? {
                match answer {
                    Admission::Admitted { .. } => assert!(is_active, "{keys:?}"),
                    Admission::Refused { code } => {
                        assert_eq!((code.as_str(), is_active), ("key_owner_inactive", false))
                    }
                    Admission::Denied(denial) => panic!("{denial:?}"),
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn settling_moves_held_to_used_and_is_idempotent() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000").await?;
    let ask = fixture.ask(None, 100, 200);
    fixture.admit(std::slice::from_ref(&ask)).await?;
    assert_eq!(fixture.settle(ask.request, 450, 9).await?, [ask.request]);
    assert!(fixture.settle(ask.request, 450, 9).await?.is_empty());
    fixture.books.lock().await.link.flush().await?;
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((totals.day_tokens, totals.day_tokens_held, totals.open_calls), (450, 0, 0));
    assert_eq!((totals.logged_tokens, totals.logged_cost, totals.log_rows), (450, 9, 1));
    let (used, excess): (i64, i64) =
        sqlx::query_as("SELECT day_tokens_used, day_tokens_excess FROM tier_state").fetch_one(&fixture.pool).await?;
    assert_eq!((used, excess), (300, 150), "used takes at most the hold");
    // The excess counts in the next admission.
    let answers = fixture.admit(&[fixture.ask(None, 500, 100)]).await?;
    assert_eq!(denial(&answers[0]).used, 450);
    Ok(())
}

#[tokio::test]
async fn a_call_that_settles_after_its_window_closed_adds_to_the_closed_window() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let ask = fixture.ask(None, 100, 200);
    fixture.admit(std::slice::from_ref(&ask)).await?;
    // Yesterday, as far as the ledger is concerned.
    sqlx::raw_sql(
        "UPDATE tier_state SET minute_start = minute_start - interval '1 day', day_start = day_start - interval '1 day';
         UPDATE requests_open SET minute_start = minute_start - interval '1 day', project_day = project_day - interval '1 day'",
    )
    .execute(&fixture.pool)
    .await?;
    let today = fixture.ask(None, 1, 64);
    fixture.admit(std::slice::from_ref(&today)).await?;
    fixture.settle(ask.request, 120, 0).await?;
    fixture.settle(today.request, 2, 0).await?;
    let closed: i64 =
        sqlx::query_scalar("SELECT tokens_used FROM usage_counters WHERE window_kind = 'day' AND tier = 1 AND id = $1")
            .bind(fixture.project.0)
            .fetch_one(&fixture.pool)
            .await?;
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((closed, totals.day_tokens, totals.day_tokens_held, totals.open_calls), (120, 2, 0, 0));
    Ok(())
}

#[tokio::test]
async fn a_hot_row_changes_its_generation_and_loses_nothing() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000000").await?;
    for _ in 0..6 {
        let asks: Vec<Ask> = (0..50).map(|_| fixture.ask(None, 1, 64)).collect();
        for ask in &asks {
            fixture.admit(std::slice::from_ref(ask)).await?;
        }
        for ask in &asks {
            fixture.settle(ask.request, 10, 0).await?;
        }
    }
    let (rows, generation): (i64, i64) =
        sqlx::query_as("SELECT count(*), max(generation) FROM tier_state").fetch_one(&fixture.pool).await?;
    assert_eq!((rows, generation), (1, 2), "600 changes are more than one generation");
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((totals.day_tokens, totals.day_tokens_held, totals.logged_tokens), (3000, 0, 3000));
    Ok(())
}

#[tokio::test]
async fn the_commit_of_both_calls_waits_for_no_disk() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let mut transaction = fixture.pool.begin().await?;
    let project = fixture.project.0;
    for call in [
        format!(
            "SELECT admit_v2(gen_random_uuid(), current_ledger_epoch(), false, ARRAY[gen_random_uuid()], '{{{project}}}',
                             '{{NULL}}', '{{1}}', '{{64}}', '{{64}}', '{{0}}', '{{0}}', '{{0}}', '{{0}}', '[{{}}]')"
        ),
        "SELECT settle_v2(gen_random_uuid(), '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '[]')".to_owned(),
    ] {
        let mut savepoint = transaction.begin().await?;
        sqlx::raw_sql("SET LOCAL synchronous_commit = on").execute(&mut *savepoint).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(call)).execute(&mut *savepoint).await?;
        let value: String =
            sqlx::query_scalar("SELECT current_setting('synchronous_commit')").fetch_one(&mut *savepoint).await?;
        assert_eq!(value, "off");
        savepoint.rollback().await?;
    }
    Ok(())
}

#[tokio::test]
async fn hostile_text_reaches_the_log_unchanged() -> anyhow::Result<()> {
    let fixture = fixture("").await?;
    let details = serde_json::json!({ "operation": "chat", "route": "\0a\\u0000" }).to_string();
    let ask = Ask { details, ..fixture.ask(None, 1, 64) };
    fixture.admit(std::slice::from_ref(&ask)).await?;
    let text = "'; DROP TABLE projects; -- \\u0000 \u{1F600} \"\u{0000}";
    let entry = Entry { status: 200, model: Some(text.to_owned()), ..Entry::default() };
    fixture.books.lock().await.settle_as(ask.request, 1, 0, entry).await?;
    let (model, route): (String, String) =
        sqlx::query_as("SELECT model, route FROM request_logs").fetch_one(&fixture.pool).await?;
    assert_eq!((model, route), (text.replace('\0', ""), "a\\u0000".to_owned()));
    Ok(())
}

#[tokio::test]
async fn work_of_our_own_meets_budgets_but_no_rate_limit() -> anyhow::Result<()> {
    let fixture =
        fixture("requests_per_minute = 1, tokens_per_minute = 100, concurrent_requests = 1, tokens_per_day = 1000")
            .await?;
    let own = |prompt| Ask { key: None, ..fixture.ask(None, prompt, 0) };
    let asks = [own(300), own(300), own(500)];
    let answers = fixture.admit(&asks).await?;
    assert_eq!((granted(&answers[0]), granted(&answers[1])), (0, 0));
    assert_eq!(denial(&answers[2]).code, "budget_daily");
    let client = Ask { min_output: 20, ..fixture.ask(None, 20, 20) };
    assert_eq!(granted(&fixture.admit(std::slice::from_ref(&client)).await?[0]), 20, "no rate limit is used up");
    for ask in &asks[..2] {
        fixture.settle(ask.request, 250, 0).await?;
    }
    fixture.settle(client.request, 30, 0).await?;
    let totals = fixture.database.tier_totals(fixture.project).await?;
    assert_eq!((totals.day_requests, totals.day_tokens, totals.day_tokens_held, totals.open_calls), (1, 530, 0, 0));
    let minute: (i64, i64) = sqlx::query_as("SELECT minute_tokens_used, minute_requests_used FROM tier_state")
        .fetch_one(&fixture.pool)
        .await?;
    assert_eq!(minute, (30, 1));
    Ok(())
}

#[tokio::test]
async fn a_change_of_zone_empties_no_budget_and_loses_no_hold() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_month = 1000, tokens_per_day = 1000").await?;
    let key = fixture.user_key("tokens_per_month = 5000").await?;
    let (settled, open) = (fixture.ask(Some(key), 300, 100), fixture.ask(Some(key), 300, 100));
    fixture.admit(&[settled.clone(), open.clone()]).await?;
    fixture.settle(settled.request, 400, 0).await?;
    // Far enough apart that the day differs whatever the hour is.
    for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "UPDATE projects SET time_zone = '{zone}'; UPDATE api_keys SET time_zone = '{zone}' WHERE kind = 'gateway'"
        )))
        .execute(&fixture.pool)
        .await?;
        let denied = fixture.admit(&[fixture.ask(Some(key), 300, 100)]).await?;
        let denied = denial(&denied[0]);
        assert_eq!((denied.code.as_str(), denied.used, denied.held), ("budget_monthly", 400, 400), "{zone}");
    }
    fixture.settle(open.request, 350, 0).await?;
    let rows: Vec<(i64, i64, i64)> = sqlx::query_as(
        "SELECT month_tokens_used, day_tokens_used, month_tokens_held + day_tokens_held FROM tier_state ORDER BY tier",
    )
    .fetch_all(&fixture.pool)
    .await?;
    assert_eq!(rows, [(750, 750, 0), (750, 750, 0)]);
    Ok(())
}

#[tokio::test]
async fn a_clock_that_steps_back_opens_no_closed_window() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000").await?;
    let ask = fixture.ask(None, 900, 64);
    fixture.admit(std::slice::from_ref(&ask)).await?;
    fixture.settle(ask.request, 964, 0).await?;
    // To the running row the present is a minute, a day and a month ago.
    sqlx::raw_sql(
        "UPDATE tier_state SET minute_start = minute_start + interval '1 minute', day_start = day_start + interval '1 day',
                               month_start = month_start + interval '1 month'",
    )
    .execute(&fixture.pool)
    .await?;
    let answers = fixture.admit(&[fixture.ask(None, 900, 64)]).await?;
    assert_eq!((denial(&answers[0]).code.as_str(), denial(&answers[0]).used), ("budget_daily", 964));
    Ok(())
}
