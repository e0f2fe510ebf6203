//! Calendars that change while calls run.

use store::ledger::Ask;

use crate::admission::fixture;

const ROUNDS: usize = 60;
const ZONES: [&str; 3] = ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projects_and_keys_change_their_zones_at_once_beside_admissions() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 100000000, tokens_per_month = 100000000").await?;
    let key = fixture.user_key("tokens_per_day = 100000000").await?;
    // Many that stay, whose rows every change writes anew, wherever there is room for them.
    let stay: Vec<Ask> = (0..120).map(|_| fixture.ask(Some(key), 10, 64)).collect();
    fixture.admit(&stay).await?;
    let change = |table: &'static str, id: i64| {
        let pool = fixture.pool.clone();
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let sql = format!("UPDATE {table} SET time_zone = '{}' WHERE id = {id}", ZONES[round % ZONES.len()]);
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await?;
            }
            anyhow::Ok(())
        })
    };
    let changes = [change("projects", fixture.project.0), change("api_keys", key.0)];
    for _ in 0..ROUNDS {
        let asks: Vec<Ask> = (0..3).map(|_| fixture.ask(Some(key), 10, 64)).collect();
        fixture.admit(&asks).await?;
        for ask in &asks {
            fixture.settle(ask.request, 20, 0).await?;
        }
    }
    for change in changes {
        change.await??;
    }
    for ask in &stay {
        fixture.settle(ask.request, 20, 0).await?;
    }
    let used = 20 * (3 * ROUNDS as i64 + stay.len() as i64);
    assert_eq!(fixture.day().await?, (used, 0, 0));
    Ok(())
}
