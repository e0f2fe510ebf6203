//! What a call costs when somebody's snapshot keeps all the rows that were ever replaced.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor};

use crate::admission::{fixture, granted};

/// Updates each tier as often as a hot one is in a minute or so, generation by generation.
const UPDATES: &str = "DO $$
    DECLARE
        t record;
    BEGIN
        PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
        FOR t IN SELECT * FROM tier_state LOOP
            FOR i IN 1..20000 LOOP
                PERFORM add_to_tier(t.tier, t.id, t.minute_start, t.day_start, t.month_start, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            END LOOP;
        END LOOP;
    END $$";

#[tokio::test]
async fn an_admission_reads_no_dead_rows_whatever_the_statistics_say() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000000").await?;
    let key = fixture.user_key("tokens_per_day = 1000000").await?;
    let first = fixture.ask(Some(key), 10, 100);
    granted(&fixture.admit(std::slice::from_ref(&first)).await?[0]);

    let mut old = fixture.pool.begin().await?;
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tier_state").await?;
    fixture.pool.execute(UPDATES).await?;
    fixture.pool.execute("ANALYZE tier_state, requests_open").await?;
    let pages: i64 =
        sqlx::query_scalar("SELECT pg_relation_size('tier_state') / 8192").fetch_one(&fixture.pool).await?;
    assert!(pages > 1000, "{pages} pages are not many");

    let admit = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
         SELECT * FROM admit_v2(gen_random_uuid(), current_ledger_epoch(), false, ARRAY[gen_random_uuid()], ARRAY[{}],
             ARRAY[{}], ARRAY[10], ARRAY[10], ARRAY[1], ARRAY[0], ARRAY[0], ARRAY[0], ARRAY[0], '[{{}}]')",
        fixture.project.0, key.0
    );
    let mut connection = fixture.pool.acquire().await?;
    // Whoever samples a large table may find all of the few live rows, or none.
    for live in [0, 1, 2, 3, 10] {
        let statistics = format!(
            "UPDATE pg_class SET reltuples = {live} WHERE relname IN ('tier_state', 'tier_state_pkey');
             DELETE FROM pg_statistic WHERE starelid = 'tier_state'::regclass"
        );
        sqlx::raw_sql(AssertSqlSafe(statistics)).execute(&fixture.pool).await?;
        let mut read = 0;
        // The first time reads the catalogue, too.
        for _ in 0..2 {
            let plan: Value = sqlx::query_scalar(AssertSqlSafe(admit.clone())).fetch_one(&mut *connection).await?;
            let plan = &plan[0]["Plan"];
            assert_eq!(plan["Actual Rows"].as_f64(), Some(1.0), "{plan}");
            read = ["Shared Hit Blocks", "Shared Read Blocks"].iter().filter_map(|name| plan[name].as_i64()).sum();
        }
        assert!(read > 0 && read < 300, "{read} of {pages} pages with {live} rows");
    }
    old.rollback().await?;
    Ok(())
}
