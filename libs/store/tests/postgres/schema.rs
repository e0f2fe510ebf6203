//! Migrations and roles on a real server.

use domain::KeyHash;
use store::testing::RoleName;
use store::{StoreError, schema};

#[tokio::test]
async fn eight_racing_migrations_apply_every_step_once() -> anyhow::Result<()> {
    let database = testkit::unmigrated_database().await?;
    let config = database.config(RoleName::Owner);
    let store = database.store(RoleName::Edge)?;
    assert_eq!(store.applied_version().await?, 0);
    let racing = (0..8).map(|_| schema::migrate(&config, false));
    let mut applied: Vec<i32> = futures::future::try_join_all(racing).await?.into_iter().flatten().collect();
    applied.sort_unstable();
    assert_eq!(applied, (1..=schema::expected()).collect::<Vec<_>>());
    assert_eq!(store.applied_version().await?, schema::expected());
    Ok(())
}

#[tokio::test]
async fn a_schema_other_than_public_works_beside_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = database.superuser_pool().await?;
    sqlx::raw_sql("GRANT CREATE ON DATABASE postgres TO ragmux_owner").execute(&pool).await?;
    let grant = format!("GRANT CREATE ON DATABASE \"{}\" TO ragmux_owner", database.name());
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&pool).await?;
    let mut config = database.config(RoleName::Owner);
    config.schema = "second".to_owned();
    let applied = schema::migrate(&config, false).await?;
    assert_eq!(applied.len(), schema::MIGRATIONS.len());
    let paths: Vec<String> = sqlx::query_scalar(
        "SELECT array_to_string(proconfig, ' ') FROM pg_proc WHERE proname = 'admit_v1' ORDER BY pronamespace::regnamespace::text",
    )
    .fetch_all(&pool)
    .await?;
    assert_eq!(paths, ["search_path=public, pg_temp", "search_path=second, public, pg_temp"]);
    Ok(())
}

#[tokio::test]
async fn a_changed_migration_is_noticed() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = database.superuser_pool().await?;
    sqlx::query("UPDATE schema_migrations SET checksum = '\\x00' WHERE version = 3").execute(&pool).await?;
    let error = schema::migrate(&database.config(RoleName::Owner), false).await.unwrap_err();
    assert!(matches!(error, store::MigrateError::Diverged { version: 3 }), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_edge_role_cannot_read_people_or_make_tables() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = sqlx::PgPool::connect(database.url(RoleName::Edge).expose()).await?;
    for statement in [
        "SELECT * FROM users",
        "SELECT * FROM sessions",
        "SELECT * FROM login_attempts",
        "SELECT * FROM audit_logs",
        "SELECT * FROM api_keys",
        "CREATE TABLE mine (id int)",
        "UPDATE tier_state SET open_calls = 0",
        "DELETE FROM request_logs",
        "SELECT FROM usage_rollups",
        "INSERT INTO denial_rollups VALUES (now(), 1, 1, 'rate_limit_rpm', 1)",
        "SELECT roll_up_usage_day_v1(CURRENT_DATE)",
        "SELECT ensure_vector_table(8)",
        "CREATE FUNCTION cardinality(uuid[]) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    ] {
        let error = sqlx::raw_sql(statement).execute(&pool).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "42501", "{statement}: {error}");
    }
    let nobody = database.store(RoleName::Edge)?.find_principal(&KeyHash::of("sk-proj-unknown")).await?;
    assert!(nobody.is_none());
    Ok(())
}

#[tokio::test]
async fn the_backend_role_cannot_rewrite_history() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = sqlx::PgPool::connect(database.url(RoleName::Backend).expose()).await?;
    for statement in [
        "DELETE FROM audit_logs",
        "UPDATE audit_logs SET actor = ''",
        "DELETE FROM request_logs",
        "DELETE FROM tier_state",
        "DELETE FROM usage_rollups",
        "UPDATE denial_rollups SET denials = 0",
    ] {
        let error = sqlx::raw_sql(statement).execute(&pool).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "42501", "{statement}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn racing_first_starts_agree_on_one_canary() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (edge, backend) = (database.store(RoleName::Edge)?, database.store(RoleName::Backend)?);
    let (first, second) = tokio::join!(edge.canary_or_insert(b"one"), backend.canary_or_insert(b"two"));
    let first = first?;
    assert_eq!(first, second?);
    assert_eq!(edge.canary_or_insert(b"three").await?, first);
    Ok(())
}

#[tokio::test]
async fn ten_callers_of_a_new_width_make_one_table() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = sqlx::PgPool::connect(database.url(RoleName::Backend).expose()).await?;
    let calls = (0..10).map(|_| sqlx::query("SELECT ensure_vector_table(384)").execute(&pool));
    futures::future::try_join_all(calls).await?;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM chunk_embeddings_384").fetch_one(&pool).await?;
    assert_eq!(rows, 0);
    let error = sqlx::query("SELECT ensure_vector_table(4001)").execute(&pool).await.unwrap_err();
    assert!(matches!(StoreError::from(error), StoreError::Invalid { .. }));
    Ok(())
}

#[tokio::test]
async fn racing_services_make_each_log_day_once() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let stores = (0..8).map(|_| database.store(RoleName::Edge)).collect::<Result<Vec<_>, _>>()?;
    futures::future::try_join_all(stores.iter().map(store::Store::ensure_log_days_ahead)).await?;
    let pool = database.superuser_pool().await?;
    let days: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_inherits
          WHERE inhparent = 'request_logs'::regclass AND inhrelid <> 'request_logs_default'::regclass",
    )
    .fetch_one(&pool)
    .await?;
    assert_eq!(days, 8, "today and a week");
    Ok(())
}

#[tokio::test]
async fn a_log_day_takes_the_rows_that_came_before_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = database.superuser_pool().await?;
    sqlx::query(
        "INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, operation, status, state,
                                   charged_requests, charged_tokens, charged_cost)
         VALUES (gen_random_uuid(), clock_timestamp(), gen_random_uuid(), 1, 'chat', 200, 'final', 1, 2, 3)",
    )
    .execute(&pool)
    .await?;
    let edge = database.store(RoleName::Edge)?;
    edge.ensure_log_day(0).await?;
    edge.ensure_log_day(0).await?;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM ONLY request_logs_default").fetch_one(&pool).await?;
    let all: i64 = sqlx::query_scalar("SELECT count(*) FROM request_logs").fetch_one(&pool).await?;
    assert_eq!((left, all), (0, 1));
    Ok(())
}
