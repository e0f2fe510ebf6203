//! What people do about a store that does not find what it should: they try it out, look at how passages were found, and
//! have its weights fitted to questions whose answers they know.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::Stack;
use upstream::{Behaviour, Raw, Script};

/// One document for each subject. The first words of each say what it is about.
const SUBJECTS: [&str; 12] = [
    "boiler",
    "warranty",
    "grinder",
    "filter",
    "shipping",
    "invoice",
    "password",
    "warehouse",
    "holiday",
    "salary",
    "printer",
    "elevator",
];

fn text(subject: &str, number: usize) -> String {
    format!(
        "The {subject} has a page of its own. Whatever concerns the {subject} is written here, and its code is \
         QX-{:04}. Ask the people in charge of the {subject} before anything is changed.",
        4000 + number
    )
}

#[tokio::test]
async fn a_store_is_tried_out_explained_and_calibrated() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(1).workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let store = format!("/rag-stores/{}", project.store);
    let mut documents = Vec::new();
    for (number, subject) in SUBJECTS.iter().enumerate() {
        let name = format!("{subject}.txt");
        documents.push(admin.upload(project.store, &name, text(subject, number).into_bytes()).await?);
    }
    for document in &documents {
        admin.ready(*document).await?;
    }

    // Tried out: each passage says which legs found it.
    let ask = async |body: Value| admin.try_send(Method::POST, &format!("{store}/search"), Some(body)).await;
    let (status, found) = ask(json!({ "query": "who is in charge of the grinder QX-4002?", "top_k": 3 })).await?;
    assert_eq!(status, StatusCode::OK, "{found}");
    let best = &found["hits"][0];
    assert_eq!((&best["document_id"], &best["filename"]), (&json!(documents[2]), &json!("grinder.txt")), "{found}");
    assert_eq!(best["legs"]["lexical"]["rank"], 1, "{found}");
    assert!(best["legs"]["lexical"]["score"].as_f64().unwrap() > 0.0, "{found}");
    assert!(best["legs"]["vector"]["distance"].as_f64().is_some(), "{found}");
    let weights = |plan: &Value| (plan["vector_weight"].as_f64(), plan["lexical_weight"].as_f64());
    assert_eq!((weights(&found["plan"]), &found["plan"]["because"]), ((Some(1.0), Some(1.0)), &json!("settings")));
    assert_eq!(ask(json!({ "query": " " })).await?.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(json!({ "query": "x", "top_k": 101 })).await?.0, StatusCode::BAD_REQUEST);

    // A store whose model knows English is asked in Chinese: words search alone, and the edge says so as well.
    admin.send(Method::PATCH, &store, Some(json!({ "retrieval": { "languages": ["en"] } }))).await?;
    let question = json!({ "query": "黑豹队的防守丢了多少分", "explain": true });
    let url = format!("{}/retrieve", stack.edge_url(0)?);
    let told: Value = stack.http.post(&url).bearer_auth(&project.key).json(&question).send().await?.json().await?;
    assert_eq!(
        (weights(&told["plan"]), &told["plan"]["because"]),
        ((Some(0.0), Some(1.0)), &json!("language_not_covered"))
    );
    assert_eq!((&told["data"], &told["degraded"], &told["usage"]["total_tokens"]), (&json!([]), &json!([]), &json!(0)));
    let question = json!({ "query": "the elevator", "explain": true, "top_k": 1 });
    let told: Value = stack.http.post(&url).bearer_auth(&project.key).json(&question).send().await?.json().await?;
    assert_eq!(
        (&told["data"][0]["filename"], &told["data"][0]["legs"]["lexical"]["rank"]),
        (&json!("elevator.txt"), &json!(1))
    );
    let silent = json!({ "query": "the elevator" });
    let told: Value = stack.http.post(&url).bearer_auth(&project.key).json(&silent).send().await?.json().await?;
    assert!(told.get("plan").is_none() && told["data"][0].get("legs").is_none(), "{told}");

    // What is excluded is not found by vectors either.
    let (_, found) = ask(json!({ "query": "who is in charge of the grinder -QX", "top_k": 100 })).await?;
    assert_eq!(found["hits"], json!([]), "{found}");
    let (_, found) = ask(json!({ "query": "\"the salary has\" page", "top_k": 100 })).await?;
    assert_eq!(found["hits"].as_array().unwrap().len(), 1, "{found}");

    // Calibrated: nothing changes that is not asked for, and nothing that is no gain.
    let by = |number: usize| match number % 3 {
        0 => json!({ "query": format!("what about {}", SUBJECTS[number]), "documents": [documents[number]] }),
        1 => json!({ "query": SUBJECTS[number], "filenames": [format!("{}.txt", SUBJECTS[number])] }),
        _ => json!({ "query": format!("QX-{}", 4000 + number), "documents": [documents[number], 999_999] }),
    };
    let mut queries: Vec<Value> = (0..SUBJECTS.len()).map(by).collect();
    queries.push(json!({ "query": "nothing answers this", "external_keys": ["gone"] }));
    let calibrate = format!("{store}/calibrate");
    let body = json!({ "queries": queries, "apply": true });
    let done = admin.send(Method::POST, &calibrate, Some(body)).await?;
    assert_eq!((&done["questions"], &done["left_out"]), (&json!(12), &json!(1)), "{done}");
    assert!(done["score_before"]["ndcg"].as_f64().unwrap() > 0.8, "{done}");
    assert_eq!(done["improves"], done["applied"], "{done}");

    // With an embedder that takes every question for the same, and weights that hide what words find, there is something
    // to gain.
    let vector: Vec<f32> = (0..384).map(|place| if place == 0 { 1.0 } else { 0.0 }).collect();
    let same = json!({
        "object": "list",
        "data": [{ "object": "embedding", "index": 0, "embedding": vector }],
        "usage": { "prompt_tokens": 1, "total_tokens": 1 },
    });
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: same.to_string() };
    let same = Behaviour { raw: Some(raw), ..Behaviour::default() };
    stack.upstream.script(Script { path: "/v1/embeddings".to_owned(), default: Some(same), ..Script::default() });
    let skewed = json!({ "retrieval": { "vector_weight": 100, "lexical_weight": 0.001 } });
    admin.send(Method::PATCH, &store, Some(skewed)).await?;
    let hard: Vec<Value> = (0..SUBJECTS.len())
        .map(|number| json!({ "query": format!("page of its own, code QX-{}", 4000 + number), "documents": [documents[number]] }))
        .collect();
    let done = admin.send(Method::POST, &calibrate, Some(json!({ "queries": hard }))).await?;
    assert_eq!(done["applied"], false, "{done}");
    let before = admin.send(Method::GET, &store, None).await?["retrieval"].clone();
    assert_eq!(weights(&before), (Some(100.0), Some(0.001)));
    assert_eq!(done["improves"], true, "{done}");
    assert!(done["score_held_out"]["ndcg"].as_f64() > done["score_before"]["ndcg"].as_f64(), "{done}");
    let done = admin.send(Method::POST, &calibrate, Some(json!({ "queries": hard, "apply": true }))).await?;
    assert_eq!(done["applied"], true, "{done}");
    let after = admin.send(Method::GET, &store, None).await?["retrieval"].clone();
    assert_eq!(after["lexical_weight"], done["fitted"]["lexical"], "{after}");
    assert_eq!(after["languages"], json!(["en"]), "what was not fitted stays");

    let few = json!({ "queries": hard[..5] });
    let (status, told) = admin.try_send(Method::POST, &calibrate, Some(few)).await?;
    assert_eq!(
        (status, told["error"]["message"].as_str().unwrap().contains("at least 10")),
        (StatusCode::BAD_REQUEST, true)
    );
    stack.shut_down().await
}
