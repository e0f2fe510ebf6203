//! Limits that hold across edges.

use reqwest::StatusCode;
use serde_json::json;
use testkit::Stack;

use crate::client;

#[tokio::test]
async fn the_third_call_of_a_minute_is_denied_whichever_edge_it_goes_to() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(2).start().await?;
    let project = stack.project("p", json!({ "limits": { "requests_per_minute": 2 } })).await?;
    testkit::early_in_a_minute().await?;
    let first = client::chat(&stack, 0, &project, client::ask("first")).await?;
    assert_eq!(first.status(), 200);
    assert_eq!(first.headers()["x-ratelimit-limit-requests"], "2");
    assert_eq!(first.headers()["x-ratelimit-remaining-requests"], "1");
    assert_eq!(client::chat(&stack, 1, &project, client::ask_streamed("second")).await?.status(), 200);

    for (edge, body) in [(0, client::ask("third")), (1, client::ask("third")), (0, client::ask_streamed("third"))] {
        let answer = client::chat(&stack, edge, &project, body).await?;
        assert_eq!(answer.headers()["content-type"], "application/json", "a denied stream is JSON");
        let (status, retry_after, body) = client::read(answer, "retry-after").await?;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{body}");
        let error = &body["error"];
        assert_eq!(
            (error["type"].as_str(), error["code"].as_str(), error["scope"].as_str()),
            (Some("rate_limit_exceeded"), Some("rate_limit_rpm"), Some("project"))
        );
        assert_eq!((error["cap"].as_i64(), error["resets_at"].is_string()), (Some(2), true), "{body}");
        assert_eq!(error["used"].as_i64().unwrap() + error["held"].as_i64().unwrap(), 2, "{body}");
        let seconds: u64 = retry_after.unwrap().parse()?;
        assert!((1..=60).contains(&seconds));
    }
    stack.shut_down().await
}

#[tokio::test]
async fn a_spent_daily_token_budget_is_a_quota_error_on_every_edge() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(2).start().await?;
    let project = stack.project("p", json!({ "limits": { "tokens_per_day": 4000 } })).await?;
    let mut body = client::ask("Tell me something.");
    body["max_tokens"] = json!(500);
    let first = client::chat(&stack, 0, &project, body.clone()).await?;
    assert_eq!(first.status(), 200);
    assert!(first.headers().contains_key("x-ragmux-budget-daily-remaining"));
    let mut denied = None;
    for number in 0..400 {
        let answer = client::chat(&stack, number % 2, &project, body.clone()).await?;
        if answer.status() != StatusCode::OK {
            denied = Some(answer);
            break;
        }
    }
    let answer = denied.unwrap();
    assert_eq!(answer.headers()["x-should-retry"], "false");
    let (status, retry_after, body) = client::read(answer, "retry-after").await?;
    let error = &body["error"];
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some("insufficient_quota"), Some("budget_daily")));
    assert!(retry_after.unwrap().parse::<u64>()? >= 1);
    let totals = testkit::eventually("the calls are settled", || async {
        let totals = stack.database.tier_totals(testkit::ProjectId(project.id)).await?;
        Ok((totals.open_rows == 0).then_some(totals))
    })
    .await?;
    assert!(totals.day_tokens <= 4000, "{totals:?}");
    assert_eq!((totals.day_tokens, totals.day_tokens_held), (totals.logged_tokens, 0));
    stack.shut_down().await
}
