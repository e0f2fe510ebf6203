//! The first administrator.

use reqwest::StatusCode;
use serde_json::json;

use crate::lab::{Admin, PASSWORD, environment};

#[tokio::test]
async fn of_many_setups_at_two_replicas_exactly_one_wins() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut environment = environment(&database);
    environment.remove("ADMIN_USER");
    environment.remove("ADMIN_PASSWORD");
    let (first, second) = tokio::try_join!(Admin::launch(&environment), Admin::launch(&environment))?;
    tokio::try_join!(first.ready(), second.ready())?;
    let (status, before) = first.get("/setup").await?;
    assert_eq!(
        (status, &before["needs_setup"], &before["secret_key_source"]),
        (StatusCode::OK, &json!(true), &json!("env"))
    );

    for bad in [json!({"username": "Root", "password": PASSWORD}), json!({"username": "root", "password": "short"})] {
        assert_eq!(first.post("/setup", bad).await?.0, StatusCode::BAD_REQUEST);
    }
    let setups = (0..4).map(|number| {
        let replica = if number % 2 == 0 { &first } else { &second };
        replica.post("/setup", json!({ "username": format!("root{number}"), "password": PASSWORD, "bearer": true }))
    });
    let answers = futures::future::try_join_all(setups).await?;
    let won: Vec<_> = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    assert!(won[0].1["token"].is_string() && won[0].1["user"]["role"] == "admin");
    let lost = answers.iter().filter(|(status, body)| {
        *status == StatusCode::CONFLICT && body["error"]["message"] == "setup already completed"
    });
    assert_eq!(lost.count(), 3);
    let (_, after) = second.get("/setup").await?;
    assert_eq!(after, json!({ "needs_setup": false }));
    Ok(())
}

#[tokio::test]
async fn replicas_that_start_at_once_make_one_first_administrator() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let environment = environment(&database);
    let (first, second) = tokio::try_join!(Admin::start_with(&environment), Admin::start_with(&environment))?;
    let made = |admin: &Admin| admin.logged("the first administrator was made from ADMIN_USER");
    assert!(made(&first) != made(&second), "exactly one says so");
    let (status, _) = first.post("/setup", json!({ "username": "other", "password": PASSWORD })).await?;
    assert_eq!(status, StatusCode::CONFLICT);
    Ok(())
}
