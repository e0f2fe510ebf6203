//! What a search found, put into another order by a model that does nothing else.

use domain::ConnectionId;
use serde_json::{Value, json};
use testkit::until;
use upstream::{Behaviour, Raw, Script, Wait};

use crate::hold::held_by;
use crate::passages;
use crate::script::failing;
use crate::world::{CHAT, Edge, World, answer_tokens, body_of, header};

const QUESTION: &str = "How long does the warranty of the Brewmaster last?";
const RETRIEVE: &str = "/v1/retrieve";

#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Cohere,
    Voyage,
}

impl By {
    fn path(self) -> &'static str {
        match self {
            Self::Cohere => "/v2/rerank",
            Self::Voyage => "/v1/rerank",
        }
    }

    /// An answer that has the third first, then the first, and leaves out the second.
    fn third_first(self) -> Behaviour {
        let results = json!([
            { "index": 2, "relevance_score": 0.9 },
            { "index": 0, "relevance_score": 0.25 },
        ]);
        let body = match self {
            Self::Cohere => json!({ "id": "r", "results": results, "meta": { "billed_units": { "search_units": 1 } } }),
            Self::Voyage => {
                json!({ "object": "list", "data": results, "model": "order", "usage": { "total_tokens": 70 } })
            }
        };
        let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: body.to_string() };
        Behaviour { raw: Some(raw), ..Behaviour::default() }
    }
}

/// A world with documents, whose project has what is found put into order. Nano-USD: 2,000,000 a search unit, 50 a token.
async fn world(by: By, candidates: u32) -> anyhow::Result<(World, ConnectionId)> {
    let (world, _) = passages::world().await?;
    let v1 = world.upstream.base_url();
    let (provider, address) = match by {
        By::Cohere => ("cohere_rerank", v1.replace("/v1", "/v2")),
        By::Voyage => ("voyage_rerank", v1),
    };
    let reranker = world.database.insert_connection("order", &address, "order").await?;
    world.database.change_connection(reranker, &format!("provider_type = '{provider}'")).await?;
    world.database.insert_price_of("cohere_rerank", "order", 2_000_000_000_000, 0).await?;
    world.database.insert_price_of("voyage_rerank", "order", 50_000_000, 0).await?;
    let set = json!({ "rerank": { "connection_id": reranker, "candidates": candidates } });
    world.database.change_project(world.project, &format!("retrieval = '{set}'")).await?;
    Ok((world, reranker))
}

fn script(world: &World, by: By, behaviour: Behaviour) {
    world.upstream.script(Script { path: by.path().to_owned(), default: Some(behaviour), ..Script::default() });
}

fn seen(world: &World, path: &str) -> Vec<Value> {
    world.upstream.log(0).calls.into_iter().filter(|call| call.path == path).map(|call| call.body).collect()
}

/// Pages of the passages, in order; each has one of its own.
async fn retrieve(edge: &Edge, members: Value) -> anyhow::Result<(Vec<i64>, Value)> {
    let mut body = json!({ "query": QUESTION });
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let body = body_of(edge.post(RETRIEVE, &body).send().await?, 200).await;
    Ok((body["data"].as_array().unwrap().iter().map(|hit| hit["page"].as_i64().unwrap()).collect(), body))
}

#[tokio::test]
async fn what_is_found_is_put_into_the_order_that_the_model_gives() -> anyhow::Result<()> {
    for by in [By::Cohere, By::Voyage] {
        let (world, _) = world(by, 15).await?;
        let edge = world.edge().await?;
        script(&world, by, failing(400));
        let (fused, refused) = retrieve(&edge, json!({})).await?;
        assert_eq!((fused.len(), &refused["degraded"]), (3, &json!(["rerank"])));
        assert!(refused["data"][0].get("rerank_score").is_none());
        let plain = world.the_logged_call().await?;
        assert_eq!(
            plain.charged_tokens,
            refused["usage"]["prompt_tokens"].as_i64().unwrap(),
            "a refusal costs nothing"
        );

        script(&world, by, by.third_first());
        let (pages, body) = retrieve(&edge, json!({})).await?;
        assert_eq!(pages, [fused[2], fused[0], fused[1]], "what is left out comes last");
        assert_eq!(body["degraded"], json!([]));
        let scores: Vec<_> = body["data"].as_array().unwrap().iter().map(|hit| hit["rerank_score"].as_f64()).collect();
        assert_eq!(scores, [Some(0.9), Some(0.25), None]);
        let asked = seen(&world, by.path()).pop().unwrap();
        assert_eq!((&asked["query"], asked["documents"].as_array().unwrap().len()), (&json!(QUESTION), 3));
        let (first, _) = retrieve(&edge, json!({ "top_k": 1 })).await?;
        assert_eq!(first, [fused[2]], "all candidates are shown, however few are asked for");

        let answer = edge
            .post(CHAT, &json!({ "model": "fast", "messages": [{ "role": "user", "content": QUESTION }] }))
            .send()
            .await?;
        assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("3")));
        let sources: Value = serde_json::from_str(header(&answer, "x-ragmux-rag-sources").unwrap())?;
        assert_eq!(sources[0]["page"], json!(fused[2]));
        let sent = seen(&world, CHAT).pop().unwrap().to_string();
        assert!(sent.contains(&format!("[1] (handbuch größe.pdf · Care · p.{})", fused[2])), "{sent}");

        let logged = world.logged(4).await?;
        let reranked = logged.iter().find(|call| call.operation == "retrieve" && call.rag_hits == Some(1)).unwrap();
        // The question's vector was paid for by the first that asked it.
        let tokens = reranked.charged_tokens;
        match by {
            By::Cohere => assert_eq!((reranked.charged_cost, tokens > 40), (2_000_000, true), "{reranked:?}"),
            By::Voyage => assert_eq!((reranked.charged_cost, tokens), (70 * 50, 70), "{reranked:?}"),
        }
        let chat = logged.iter().find(|call| call.operation == "chat").unwrap();
        assert_eq!(chat.charged_cost, reranked.charged_cost);
        assert_eq!(chat.attempts, 1);
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn fewer_than_two_candidates_are_not_put_into_order() -> anyhow::Result<()> {
    let (world, reranker) = world(By::Voyage, 1).await?;
    let edge = world.edge().await?;
    assert_eq!(retrieve(&edge, json!({})).await?.0.len(), 3);
    assert!(seen(&world, By::Voyage.path()).is_empty());
    // A model that is gone, or is none that reranks, leaves the order as it is, which is told.
    let set = json!({ "rerank": { "connection_id": reranker } });
    world.database.change_project(world.project, &format!("retrieval = '{set}'")).await?;
    until("the model is asked", async || {
        retrieve(&edge, json!({})).await?;
        Ok(!seen(&world, By::Voyage.path()).is_empty())
    })
    .await?;
    world.database.change_connection(reranker, "provider_type = 'custom_openai'").await?;
    until("nobody is asked", async || {
        world.upstream.clear();
        let (pages, body) = retrieve(&edge, json!({})).await?;
        assert_eq!(pages.len(), 3);
        Ok(seen(&world, By::Voyage.path()).is_empty() && body["degraded"] == json!(["rerank"]))
    })
    .await?;
    world.database.change_project(world.project, "retrieval = '{}'").await?;
    until("nobody is to be asked", async || Ok(retrieve(&edge, json!({})).await?.1["degraded"] == json!([]))).await?;
    let set = json!({ "rerank": { "connection_id": 999_999 } });
    world.database.change_project(world.project, &format!("retrieval = '{set}'")).await?;
    until("it is missed", async || Ok(retrieve(&edge, json!({})).await?.1["degraded"] == json!(["rerank"]))).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_reranking_is_held_before_it_is_asked_for_and_charged_when_it_is_left() -> anyhow::Result<()> {
    for (by, cost) in [(By::Cohere, None), (By::Voyage, Some(50))] {
        let (world, _) = world(by, 10).await?;
        world.database.change_project(world.project, "tokens_per_day = 100000").await?;
        let edge = world.edge().await?;
        let ask =
            || edge.post(CHAT, &json!({ "model": "fast", "messages": [{ "role": "user", "content": QUESTION }] }));
        let with = held_by(&world, &edge, ask()).await?;
        let set = world.database.change_project(world.project, "retrieval = '{}'");
        set.await?;
        let query = answer_tokens(QUESTION);
        let tokens = 10 * (query + 600);
        let price = cost.map_or(2_000_000, |each| tokens * each);
        until("the setting is heard of", async || {
            let without = held_by(&world, &edge, ask()).await?;
            Ok((with.0 - without.0, with.1 - without.1) == (tokens, price))
        })
        .await?;
        edge.stop().await?;
    }
    let (world, _) = world(By::Voyage, 10).await?;
    let edge = world.edge().await?;
    script(&world, By::Voyage, Behaviour { hold: true, ..Behaviour::default() });
    let asking = tokio::spawn(edge.post(RETRIEVE, &json!({ "query": QUESTION })).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    asking.abort();
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let left = world.the_logged_call().await?;
    assert_eq!((left.status, left.state.as_str()), (499, "estimated"), "{left:?}");
    assert!(left.charged_tokens > 4 * answer_tokens(QUESTION) && left.charged_cost > 0, "{left:?}");
    edge.stop().await
}
