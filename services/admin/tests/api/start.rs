//! Starting and stopping.

use reqwest::StatusCode;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::lab::{Admin, environment, run};

#[tokio::test]
async fn an_empty_database_is_migrated_before_the_service_is_ready() -> anyhow::Result<()> {
    let database = testkit::unmigrated_database().await?;
    let environment = environment(&database);
    let behind = run(&environment, &["migrate", "--check"]).await?;
    assert_eq!(behind.code, Some(1));
    assert!(behind.stderr.contains("the schema is at version 0, and this build needs"), "{}", behind.stderr);

    let (first, second) = tokio::try_join!(Admin::start_with(&environment), Admin::start_with(&environment))?;
    let (status, fleet) = first.get("/fleet").await?;
    assert_eq!(status, StatusCode::OK);
    let instances = fleet["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 2, "{fleet}");
    assert!(instances.iter().all(|instance| instance["service"] == "admin"), "{fleet}");
    let health = first.client.get(format!("{}/healthz", first.base)).send().await?;
    assert_eq!(health.status(), StatusCode::OK);
    let mut health = HealthClient::new(Endpoint::new(first.grpc.clone())?.connect().await?);
    for service in ["", "admin"] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await?.into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
    assert_eq!(run(&environment, &["migrate", "--check"]).await?.code, Some(0));

    let pool = database.superuser_pool().await?;
    testkit::until("today and seven days of the log are made, beside the default", async || {
        let days: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_inherits WHERE inhparent = 'request_logs'::regclass")
                .fetch_one(&pool)
                .await?;
        Ok(days == 9)
    })
    .await?;
    assert!(first.stop().await?.success(), "an orderly stop is a success");
    testkit::until("the stopped one has left", async || {
        Ok(second.get("/fleet").await?.1["instances"].as_array().unwrap().len() == 1)
    })
    .await
}

#[tokio::test]
async fn another_key_than_the_databases_ends_the_start_with_one_message() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = environment(&database);
    Admin::start_with(&environment).await?.stop().await?;
    environment.insert("SECRET_KEY".to_owned(), "ff".repeat(32));
    let ended = run(&environment, &[]).await?;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    for part in ["SECRET_KEY does not match", "key source: env", "canary", "ragmux-admin rotate-key"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn mistakes_in_settings_and_arguments_are_told_and_nothing_starts() -> anyhow::Result<()> {
    let pairs = [("DATABASE_URL", "mysql://x"), ("MAX_UPLOAD_MB", "many"), ("SECRET_KEY", "short")];
    let environment = pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let ended = run(&environment, &["serve"]).await?;
    assert_eq!(ended.code, Some(2));
    for key in ["DATABASE_URL", "MAX_UPLOAD_MB", "SECRET_KEY"] {
        assert!(ended.stderr.contains(key), "{}", ended.stderr);
    }
    let ended = run(&environment, &["fly"]).await?;
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("fly"), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_process_without_its_database_can_be_seen_to_wait_and_be_stopped() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = environment(&database);
    for key in ["DATABASE_URL", "MIGRATE_DATABASE_URL"] {
        environment.insert(key.to_owned(), "postgres://nobody@127.0.0.1:1/nothing".to_owned());
    }
    let admin = Admin::launch(&environment).await?;
    let status =
        async |path: &str| anyhow::Ok(admin.client.get(format!("{}{path}", admin.base)).send().await?.status());
    assert_eq!(status("/healthz").await?, StatusCode::OK);
    assert_eq!(status("/readyz").await?, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status("/admin/api/setup").await?, StatusCode::SERVICE_UNAVAILABLE);
    let mut health = HealthClient::new(Endpoint::new(admin.grpc.clone())?.connect().await?);
    let answer = health.check(HealthCheckRequest { service: "admin".to_owned() }).await?.into_inner();
    assert_eq!(answer.status(), ServingStatus::NotServing);
    drop(health);
    testkit::until("it says what it waits for", async || Ok(admin.logged("waiting for the database"))).await?;
    assert!(admin.stop().await?.success());
    Ok(())
}

#[tokio::test]
async fn housekeeping_goes_on_until_nothing_is_left_that_has_ended() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let pool = database.superuser_pool().await?;
    sqlx::raw_sql(
        "INSERT INTO users (username, role) VALUES ('someone', 'viewer');
         INSERT INTO sessions (user_id, token_hash, expires_at)
         SELECT u.id, sha256(n::text::bytea), now() - interval '1 second' FROM users u, generate_series(1, 5001) n;
         INSERT INTO login_attempts (username, address, success, attempted_at)
         SELECT 'someone', '192.0.2.1', false, now() - interval '25 hours' FROM generate_series(1, 5001);",
    )
    .execute(&pool)
    .await?;
    let admin = Admin::launch(&environment(&database)).await?;
    testkit::until("a pass has ended", async || Ok(admin.logged("housekeeping is done"))).await?;
    let left: (i64, i64) =
        sqlx::query_as("SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM login_attempts)")
            .fetch_one(&pool)
            .await?;
    assert_eq!(left, (0, 0));
    Ok(())
}
