//! Document stores over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use upstream::{Behaviour, Raw, Script};

use crate::lab::{Admin, model, upstream};

#[tokio::test]
async fn a_store_asks_its_model_for_the_width_and_makes_room_for_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let id = admin.make_store(&upstream).await?;
    let (status, store) = admin.get(&format!("/rag-stores/{id}")).await?;
    assert_eq!(status, StatusCode::OK);
    let width = store["dimensions"].as_i64().unwrap();
    let expected = json!([400, 60, true, 0, 0]);
    let found: Vec<&Value> = ["chunk_tokens", "chunk_overlap", "contextual", "document_count", "bytes_used"]
        .iter()
        .map(|member| &store[*member])
        .collect();
    assert_eq!(json!(found), expected);
    let table: Option<String> = sqlx::query_scalar("SELECT to_regclass($1)::text")
        .bind(format!("chunk_embeddings_{width}"))
        .fetch_one(&database.superuser_pool().await?)
        .await?;
    assert!(width > 0 && table.is_some(), "{width}");

    let path = format!("/rag-stores/{id}");
    let put = async |change: Value| admin.call(Method::PUT, &path, Some(change)).await;
    let (status, changed) = put(json!({ "chunk_tokens": 200, "language": "en", "max_documents": 5 })).await?;
    assert_eq!(
        (status, &changed["chunk_tokens"], &changed["chunk_overlap"]),
        (StatusCode::OK, &json!(200), &json!(60))
    );
    assert_eq!((&changed["language"], &changed["reprocess_recommended"]), (&json!("en"), &json!(false)));
    let (_, changed) = put(json!({ "language": null })).await?;
    assert_eq!(changed["language"], Value::Null);
    for (member, value) in [
        ("chunk_tokens", json!(10)),
        ("chunk_overlap", json!(200)),
        ("language", json!("english")),
        ("max_bytes", json!(-1)),
        ("embedding_connection_id", json!(99)),
        ("max_age_days", json!(36_501)),
    ] {
        let (status, body) = put(json!({ member: value })).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{member}");
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(admin.get(&path).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn a_store_without_a_model_that_answers_is_not_made() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let project = admin.make("/projects", json!({ "name": "p" })).await?["project"]["id"].clone();
    let away = admin.make("/models", model("away", "http://127.0.0.1:1/v1")).await?["id"].clone();
    let store = |project: &Value, connection: &Value| json!({ "project_id": project, "embedding_connection_id": connection, "name": "s" });
    let (status, body) = admin.post("/rag-stores", store(&project, &away)).await?;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::BAD_GATEWAY, &json!("upstream_error")), "{body}");
    for (bad, member) in [
        (store(&json!(99), &away), "project_id"),
        (store(&project, &json!(99)), "embedding_connection_id"),
        (json!({ "name": "s" }), "project_id"),
    ] {
        let (status, body) = admin.post("/rag-stores", bad).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    assert_eq!(admin.get("/rag-stores").await?.1, json!({ "rag_stores": [] }));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_searched_is_refused_before_a_store_is_made_of_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let project = admin.make("/projects", json!({ "name": "p" })).await?["project"]["id"].clone();
    let wide = admin.make("/models", model("wide", &upstream.base_url())).await?["id"].clone();
    let mut words = model("words", &upstream.base_url());
    words["provider_type"] = json!("anthropic");
    let words = admin.make("/models", words).await?["id"].clone();
    let store =
        |connection: &Value| json!({ "project_id": project, "embedding_connection_id": connection, "name": "s" });
    let answer = |width: usize| {
        let data = json!([{ "object": "embedding", "index": 0, "embedding": vec![0.5; width] }]);
        let body = json!({ "object": "list", "data": data, "model": "m" }).to_string();
        let raw = Raw { status: 200, content_type: "application/json".to_owned(), body };
        Behaviour { raw: Some(raw), ..Behaviour::default() }
    };
    let queue = vec![answer(4001), answer(4000)];
    upstream.script(Script { path: "/v1/embeddings".to_owned(), queue, ..Script::default() });
    for (connection, words) in [(&words, "anthropic"), (&wide, "4001 dimensions")] {
        let (status, body) = admin.post("/rag-stores", store(connection)).await?;
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(message.starts_with("embedding_connection_id: ") && message.contains(words), "{message}");
    }
    assert_eq!(admin.get("/rag-stores").await?.1, json!({ "rag_stores": [] }));
    let made = admin.make("/rag-stores", store(&wide)).await?;
    assert_eq!(made["dimensions"], 4000);
    // The same goes for a store that is to be switched.
    let path = format!("/rag-stores/{}", made["id"]);
    let (status, _) = admin.call(Method::PATCH, &path, Some(json!({ "embedding_connection_id": words }))).await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(admin.get(&path).await?.1["embedding_switch"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn of_stores_made_at_once_with_one_name_there_is_one() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let project = admin.make("/projects", json!({ "name": "p" })).await?["project"]["id"].clone();
    let connection = admin.make("/models", model("embed", &upstream.base_url())).await?["id"].clone();
    let store = |name: String| json!({ "project_id": project, "embedding_connection_id": connection, "name": name });
    // The table of the width is not there yet either.
    let same = (0..6).map(|_| admin.post("/rag-stores", store("s".to_owned())));
    let other = (0..4).map(|number| admin.post("/rag-stores", store(format!("s{number}"))));
    let (same, other) =
        futures::future::try_join(futures::future::try_join_all(same), futures::future::try_join_all(other)).await?;
    let of = |wanted: StatusCode| same.iter().filter(|(status, _)| *status == wanted).count();
    assert_eq!((of(StatusCode::CREATED), of(StatusCode::CONFLICT)), (1, 5), "{same:?}");
    assert!(other.iter().all(|(status, _)| *status == StatusCode::CREATED), "{other:?}");
    assert_eq!(admin.get("/rag-stores").await?.1["rag_stores"].as_array().map(Vec::len), Some(5));
    Ok(())
}

#[tokio::test]
async fn another_connection_is_switched_to_and_one_can_go_back() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let (admin, upstream) = (Admin::start(&database).await?, upstream().await?);
    let id = admin.make_store(&upstream).await?;
    let path = format!("/rag-stores/{id}");
    let first = admin.get(&path).await?.1["embedding_connection_id"].clone();
    let mut wide = model("wide", &upstream.base_url());
    wide["model_name"] = json!("text-embedding-3-small");
    let wide = admin.make("/models", wide).await?["id"].clone();
    let ask = async |body: Value| admin.call(Method::PATCH, &path, Some(body)).await;
    let (status, asked) = ask(json!({ "embedding_connection_id": wide, "max_documents": 9 })).await?;
    assert_eq!(
        (status, &asked["max_documents"], &asked["dimensions"]),
        (StatusCode::OK, &json!(9), &json!(384)),
        "{asked}"
    );
    let switch = &asked["embedding_switch"];
    assert_eq!(
        (&switch["embedding_connection_id"], &switch["dimensions"], &switch["status"], &switch["error"]),
        (&wide, &json!(1536), &json!("queued"), &Value::Null),
        "{asked}"
    );
    let calls = upstream.counters().requests;
    let (_, same) = ask(json!({ "embedding_connection_id": wide })).await?;
    assert_eq!((&same["embedding_switch"]["started_at"], upstream.counters().requests), (&switch["started_at"], calls));
    let (status, body) = admin.call(Method::DELETE, &format!("/models/{wide}"), None).await?;
    assert_eq!(status, StatusCode::CONFLICT, "{body}");
    let (_, back) = ask(json!({ "embedding_connection_id": first })).await?;
    assert_eq!((&back["embedding_switch"], &back["embedding_connection_id"]), (&Value::Null, &first));
    let pool = database.superuser_pool().await?;
    let told: Vec<Value> =
        sqlx::query_scalar("SELECT details FROM audit_logs WHERE action = 'rag_store.update' ORDER BY id")
            .fetch_all(&pool)
            .await?;
    assert!(told.contains(&json!({ "embedding_connection_id": wide, "dimensions": 1536 })), "{told:?}");
    assert_eq!(told.last(), Some(&json!({ "embedding_switch": "cancelled" })));
    Ok(())
}
