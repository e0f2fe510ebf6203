//! Searches that may find some documents only.

use std::collections::BTreeSet;

use domain::{DocumentId, StoreId};
use serde_json::{Value, json};
use testkit::{RoleName, work};

use crate::passages::{QUESTION, world};
use crate::world::{Edge, World, body_of};

const TEXT: &str = "How long the warranty of the Brewmaster lasts depends on who asks.";

/// Another document of the store, of one passage that has the words of the question.
async fn add(world: &World, store: StoreId, metadata: &Value) -> anyhow::Result<DocumentId> {
    let document = world.database.insert_document(store, "terms.pdf").await?;
    world.database.set_metadata(document, metadata).await?;
    let worker = world.database.store(RoleName::Backend)?;
    let request = work::claim_request("h/1/aaaaaaaa", StoreId(0), 1);
    let key = worker.claim_documents(&request).await?.documents[0].key;
    let settings = worker.find_ingest_settings(key.document).await?.unwrap();
    let mut embedding = vec![0.0; usize::try_from(settings.width)?];
    embedding[0] = 1.0;
    let segment = retrieval::index::segment([(0, TEXT)], Some("en"));
    work::complete(&worker, key, &[work::plain_chunk(0, TEXT, embedding)], &segment).await?;
    Ok(document)
}

async fn found(edge: &Edge, filter: Value) -> anyhow::Result<(BTreeSet<i64>, Value)> {
    let ask = json!({ "query": QUESTION, "filter": filter });
    let body = body_of(edge.post("/v1/retrieve", &ask).send().await?, 200).await;
    let documents = body["data"].as_array().unwrap().iter().map(|hit| hit["document_id"].as_i64().unwrap());
    Ok((documents.collect(), body))
}

#[tokio::test]
async fn only_what_the_filter_leaves_is_found_by_words_and_by_vectors() -> anyhow::Result<()> {
    let (world, store) = world().await?;
    let first = world.database.document_ids(store).await?[0];
    world.database.set_metadata(first, &json!({ "team": "support", "tags": ["public"] })).await?;
    let second = add(&world, store, &json!({ "team": "sales", "year": 2024 })).await?;
    let edge = world.edge().await?;
    let (both, _) = found(&edge, Value::Null).await?;
    assert_eq!(both, BTreeSet::from([first.0, second.0]));
    for (filter, expected) in [
        (json!({ "metadata": { "team": "support" } }), first),
        (json!({ "metadata": { "team": "sales", "year": { "gte": 2020 } } }), second),
        (json!({ "tags": ["public"] }), first),
        (json!({ "documents": [second] }), second),
    ] {
        let (documents, body) = found(&edge, filter.clone()).await?;
        assert_eq!(documents, BTreeSet::from([expected.0]), "{filter}");
        assert_eq!((&body["degraded"], &body["exhaustive"]), (&json!([]), &json!(true)));
    }
    let (none, body) = found(&edge, json!({ "metadata": { "team": "nobody" } })).await?;
    assert!(none.is_empty() && body["exhaustive"] == true);

    let bad = json!({ "query": QUESTION, "filter": { "metadata": { "team": { "like": "s%" } } } });
    let told = body_of(edge.post("/v1/retrieve", &bad).send().await?, 400).await;
    let message = told["error"]["message"].as_str().unwrap();
    assert!(message.contains("filter.metadata.team.like must be one of eq"), "{told}");

    // Words alone: the filter holds there too.
    let down = upstream::Behaviour { error: Some(upstream::ScriptedError::status(500)), ..Default::default() };
    let script = upstream::Script { path: "/v1/embeddings".to_owned(), default: Some(down), ..Default::default() };
    world.upstream.script(script);
    let ask = json!({ "query": "warranty Brewmaster", "filter": { "documents": [second] } });
    let body = body_of(edge.post("/v1/retrieve", &ask).send().await?, 200).await;
    assert_eq!((&body["degraded"], body["data"].as_array().unwrap().len()), (&json!(["vector"]), 1), "{body}");
    assert_eq!(body["data"][0]["document_id"], second.0);
    edge.stop().await
}
