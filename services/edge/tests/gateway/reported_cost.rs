//! What a provider says that a call has cost.

use serde_json::{Value, json};
use testkit::{eventually, until};
use upstream::{Behaviour, Raw};

use crate::world::{Edge, World, header};

/// An answer of 10 and 5 tokens with a cost as it is written.
fn costing(cost: &str, streamed: bool) -> Behaviour {
    let usage = format!(r#"{{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"cost":{cost}}}"#);
    let raw = if streamed {
        let body = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}]}}\n\n\
             data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"
        );
        Raw { status: 200, content_type: "text/event-stream".to_owned(), body }
    } else {
        let choice = r#"{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}"#;
        let body = format!(r#"{{"choices":[{choice}],"usage":{usage}}}"#);
        Raw { status: 200, content_type: "application/json".to_owned(), body }
    };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

/// The ledger's entry of a call that costs so much: the reported cost, the charged cost and where that is from.
async fn entry(world: &World, edge: &Edge, cost: &str, streamed: bool) -> anyhow::Result<Value> {
    world.next_chat(costing(cost, streamed));
    let answer = edge.chat(json!({ "stream": streamed, "max_tokens": 50 })).send().await?;
    let id = header(&answer, "x-request-id").unwrap().to_owned();
    assert_eq!(answer.status(), 200);
    answer.text().await?;
    let entry = eventually("it is settled", async || {
        let answer = edge.get(&format!("/v1/usage/{id}")).send().await?;
        let entry: Value = answer.json().await?;
        Ok(entry["charged"].is_object().then_some(entry))
    })
    .await?;
    Ok(json!([entry["reported"]["cost_usd"], entry["charged"]["cost_usd"], entry["cost_source"]]))
}

#[tokio::test]
async fn what_openrouter_says_is_kept_and_charged_where_there_is_no_price() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.change_connection(world.connection, "provider_type = 'openrouter'").await?;
    let edge = world.edge().await?;
    for streamed in [false, true] {
        for (cost, reported) in [("0.00014", json!(0.00014)), ("1.4e-4", json!(0.00014)), ("0", json!(0))] {
            let expected = json!([reported, reported, "reported"]);
            assert_eq!(entry(&world, &edge, cost, streamed).await?, expected, "{cost}");
        }
        assert_eq!(entry(&world, &edge, "null", streamed).await?, json!([null, 0, "none"]));
    }
    // A price that is known is what is charged.
    world.database.insert_price("real-chat", 1_000_000_000, 2_000_000_000).await?;
    world
        .database
        .execute("UPDATE model_prices SET provider_type = 'openrouter' WHERE model_pattern = 'real-chat'")
        .await?;
    until(
        "the price is known",
        async || Ok(entry(&world, &edge, "0.5", false).await? == json!([0.5, 0.00002, "user"])),
    )
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn what_others_count_in_is_not_known() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    assert_eq!(entry(&world, &edge, "0.5", false).await?, json!([null, 0, "none"]));
    assert_eq!(entry(&world, &edge, "0.5", true).await?, json!([null, 0, "none"]));
    edge.stop().await
}
