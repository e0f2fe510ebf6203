//! What was used, as callers and operators see it.

use reqwest::StatusCode;
use serde_json::{Value, json};
use testkit::{Role, Stack};

use crate::client;

#[tokio::test]
async fn what_a_team_used_is_shown_by_any_edge_and_added_up_by_day() -> anyhow::Result<()> {
    let mut stack = Stack::builder().edges(2).start().await?;
    let project = stack.project("p", json!({ "limits": { "requests_per_minute": 2 } })).await?;
    let tagged = async |edge: usize, team: &str| {
        let url = format!("{}/chat/completions", stack.edge_url(edge)?);
        let call = stack.http.post(url).bearer_auth(&project.key).header("x-ragmux-tags", format!("team={team}"));
        anyhow::Ok(call.json(&client::ask("What is new?")).send().await?)
    };
    let asked = async |edge: usize, path: &str| {
        let url = format!("{}/usage{path}", stack.edge_url(edge)?);
        let answer = stack.http.get(url).bearer_auth(&project.key).send().await?;
        let (status, _, body) = client::read(answer, "content-type").await?;
        anyhow::Ok((status, body))
    };
    testkit::early_in_a_minute().await?;
    let mut tokens = 0;
    for (edge, team) in [(0, "search"), (1, "support")] {
        let answer = tagged(edge, team).await?;
        let id = answer.headers()["x-request-id"].to_str()?.to_owned();
        assert_eq!(answer.status(), 200);
        // The other edge knows of it, in flight or settled.
        let call = testkit::eventually("the call is settled", || async {
            let (status, body) = asked(1 - edge, &format!("/{id}")).await?;
            assert_eq!(status, StatusCode::OK, "{body}");
            Ok((body["state"] == "final").then_some(body))
        })
        .await?;
        assert_eq!((&call["tags"], &call["status"]), (&json!({ "team": team }), &json!(200)));
        tokens += call["charged"]["tokens"].as_i64().unwrap();
    }
    for edge in [0, 1] {
        assert_eq!(tagged(edge, "search").await?.status(), StatusCode::TOO_MANY_REQUESTS);
        let (_, usage) = asked(edge, "").await?;
        let day = &usage["tiers"][0]["day"];
        let sum = ["used", "excess"].map(|part| day["tokens"][part].as_i64().unwrap()).iter().sum::<i64>();
        assert_eq!((sum, &day["requests"]["used"]), (tokens, &json!(2)));
    }

    // A second admin adds up at once, whatever the first one is at.
    stack.spawn(Role::Admin).await?;
    let rows = testkit::eventually("the day is rolled up", || async {
        let rows = stack.database.usage_rollups().await?;
        let told: Vec<Value> =
            rows.iter().map(|row| json!([row.tag_key, row.tag_value, row.requests, row.project_name])).collect();
        Ok((told.len() == 3).then_some(told))
    })
    .await?;
    assert_eq!(json!(rows), json!([["", "", 2, "p"], ["team", "search", 1, "p"], ["team", "support", 1, "p"]]));
    testkit::until("the denials are counted", || async {
        Ok(stack.database.denial_counts().await? == [(1, project.id, "rate_limit_rpm".to_owned(), 2)])
    })
    .await?;
    stack.shut_down().await
}
