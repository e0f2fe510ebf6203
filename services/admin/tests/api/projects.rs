//! Projects, their keys and their routes over HTTP.

use domain::{ApiKey, KeyHash};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::{RoleName, TestDatabase};

use crate::lab::{Admin, model};

async fn is_known(database: &TestDatabase, key: &str) -> anyhow::Result<bool> {
    Ok(database.store(RoleName::Edge)?.find_principal(&KeyHash::of(key)).await?.is_some())
}

#[tokio::test]
async fn a_project_has_one_key_that_is_shown_once_and_ends_when_it_is_rotated() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let made = admin.make("/projects", json!({ "name": " first ", "limits": { "requests_per_minute": 2 } })).await?;
    let (project, key) = (&made["project"], made["api_key"].as_str().unwrap().to_owned());
    assert_eq!((&project["name"], &project["limits"]["requests_per_minute"]), (&json!("first"), &json!(2)));
    assert_eq!(project["api_key_prefix"], json!(&key[..15]));
    ApiKey::parse(&key)?;
    assert!(is_known(&database, &key).await?);
    let path = format!("/projects/{}", project["id"]);
    assert!(!admin.get(&path).await?.1.to_string().contains(&key));
    assert_eq!(admin.post("/projects", json!({ "name": "first" })).await?.0, StatusCode::CONFLICT);

    let (status, rotated) = admin.call(Method::POST, &format!("{path}/rotate-key"), None).await?;
    assert_eq!(status, StatusCode::OK);
    let next = rotated["api_key"].as_str().unwrap();
    assert!(is_known(&database, next).await? && !is_known(&database, &key).await?);
    assert_eq!(admin.call(Method::DELETE, &path, None).await?.0, StatusCode::NO_CONTENT);
    assert!(!is_known(&database, next).await?, "its key goes with it");
    assert_eq!(admin.call(Method::POST, &format!("{path}/rotate-key"), None).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn an_update_changes_what_it_names_and_checks_it() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let made = admin.make("/projects", json!({ "name": "p", "limits": { "tokens_per_day": 1000 } })).await?;
    let path = format!("/projects/{}", made["project"]["id"]);
    let put = async |change: Value| admin.call(Method::PUT, &path, Some(change)).await;
    let change = json!({
        "system_prompt": "Be brief.", "strict_models": true, "enforcement": "hard", "time_zone": "Europe/Berlin",
        "limits": { "cost_per_day": 5_000_000_000_i64 },
    });
    let (status, changed) = put(change).await?;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&changed["name"], &changed["enforcement"]), (&json!("p"), &json!("hard")));
    assert_eq!(changed["limits"]["tokens_per_day"], 1000, "a limit that is not named stays");
    assert_eq!((&changed["limits"]["cost_per_day"], &changed["revision"]), (&json!(5_000_000_000_i64), &json!(2)));
    for (bad, member) in [
        (json!({ "time_zone": "Europe/Nowhere" }), "time_zone"),
        (json!({ "time_zone": "Factory" }), "time_zone"),
        (json!({ "time_zone": "europe/berlin" }), "time_zone"),
        (json!({ "time_zone": "'; DROP TABLE projects" }), "time_zone"),
        (json!({ "limits": { "requests_per_minute": -1 } }), "limits.requests_per_minute"),
        (json!({ "limits": { "requests": 1 } }), "the body"),
        (json!({ "enforcement": "none" }), "the body"),
        (json!({ "retrieval": { "when": "sometimes" } }), "the body"),
        (json!({ "retrieval": { "mode": "hybrid" } }), "the body"),
        (json!({ "retrieval": { "top_k": 0 } }), "retrieval.top_k"),
        (json!({ "retrieval": { "top_k": 101 } }), "retrieval.top_k"),
        (json!({ "retrieval": { "rerank": { "candidates": 5 } } }), "the body"),
        (json!({ "retrieval": { "rerank": { "connection_id": 99 } } }), "retrieval.rerank.connection_id"),
        (
            json!({ "retrieval": { "rerank": { "connection_id": 99, "candidates": 101 } } }),
            "retrieval.rerank.candidates",
        ),
        (json!({ "name": "" }), "name"),
        (json!({ "default_route_id": 99 }), "default_route_id"),
        (json!({ "store_id": 99 }), "store_id"),
        (json!({ "system_prompt": "x".repeat(70_000) }), "system_prompt"),
    ] {
        let (status, body) = put(bad.clone()).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(body["error"]["message"].as_str().unwrap().starts_with(member), "{body}");
    }
    assert_eq!(admin.get(&path).await?.1["revision"], 2, "nothing of it was written");
    Ok(())
}

#[tokio::test]
async fn how_a_project_searches_is_set_member_by_member() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let chat = admin.make("/models", model("chat", "https://host.example/v1")).await?["id"].clone();
    let reranker = json!({
        "name": "order", "provider_type": "cohere_rerank", "base_url": "https://host.example/v2", "model_name": "rerank-x",
        "api_key": "k",
    });
    let reranker = admin.make("/models", reranker).await?["id"].clone();
    let made = admin.make("/projects", json!({ "name": "p", "retrieval": { "when": "never" } })).await?;
    let (id, project) = (made["project"]["id"].as_i64().unwrap(), &made["project"]);
    let fresh = json!({ "when": "never", "top_k": null, "condense": false, "rerank": null });
    assert_eq!(project["retrieval"], fresh);

    // A setting of a later build is none of this one's, and stays.
    database.change_project(domain::ProjectId(id), r#"retrieval = retrieval || '{"later":7}'"#).await?;
    let path = format!("/projects/{id}");
    let patch =
        async |retrieval: Value| admin.call(Method::PATCH, &path, Some(json!({ "retrieval": retrieval }))).await;
    let (status, body) = patch(json!({ "top_k": 5, "rerank": { "connection_id": chat } })).await?;
    let said = body["error"]["message"].as_str().unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(said.starts_with("retrieval.rerank.connection_id"), "a model that chats does not rerank: {said}");
    let (status, changed) =
        patch(json!({ "top_k": 5, "condense": true, "rerank": { "connection_id": reranker } })).await?;
    assert_eq!(status, StatusCode::OK, "{changed}");
    let set = json!({
        "when": "never", "top_k": 5, "condense": true, "rerank": { "connection_id": reranker, "candidates": 15 },
    });
    assert_eq!(changed["retrieval"], set);
    assert_eq!(patch(json!({ "top_k": null, "when": "auto" })).await?.1["retrieval"]["rerank"], set["rerank"]);
    let (_, changed) = patch(json!({ "rerank": null })).await?;
    assert_eq!(changed["retrieval"], json!({ "when": "auto", "top_k": null, "condense": true, "rerank": null }));

    let pool = database.superuser_pool().await?;
    let stored: Value = sqlx::query_scalar("SELECT retrieval FROM projects").fetch_one(&pool).await?;
    assert_eq!((&stored["later"], &stored["condense"]), (&json!(7), &json!(true)));
    let audited: Vec<Value> =
        sqlx::query_scalar("SELECT details FROM audit_logs WHERE target_kind = 'project' ORDER BY id")
            .fetch_all(&pool)
            .await?;
    assert_eq!((&audited[1]["retrieval"]["from"], &audited[1]["retrieval"]["to"]), (&fresh, &set));
    let changes: i64 = sqlx::query_scalar("SELECT count(*) FROM config_changes WHERE kind = 'project' AND row_id = $1")
        .bind(id)
        .fetch_one(&pool)
        .await?;
    assert!(changes >= 4, "edges hear of each: {changes}");
    Ok(())
}

#[tokio::test]
async fn routes_lead_to_connections_and_keep_them_from_being_deleted() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let connection = admin.make("/models", model("c", "https://host.example/v1")).await?["id"].clone();
    let project = admin.make("/projects", json!({ "name": "p" })).await?["project"]["id"].clone();
    let path = format!("/projects/{project}/routes");
    let groups = json!([[{ "connection_id": connection }]]);
    let route = admin.make(&path, json!({ "name": "chat", "groups": groups })).await?;
    assert_eq!(route["groups"], json!([[{ "connection_id": connection, "weight": 1 }]]));
    assert_eq!(admin.post(&path, json!({ "name": "chat", "groups": groups })).await?.0, StatusCode::CONFLICT);
    let (status, body) = admin.post(&path, json!({ "name": "x", "groups": [[{ "connection_id": 999 }]] })).await?;
    assert_eq!(
        (status, &body["error"]["message"]),
        (StatusCode::BAD_REQUEST, &json!("groups: there is no such connection"))
    );
    assert_eq!(admin.post(&path, json!({ "name": "x" })).await?.0, StatusCode::BAD_REQUEST);

    let mut reranker = model("r", "https://host.example/v2");
    reranker["provider_type"] = json!("cohere_rerank");
    let reranker = admin.make("/models", reranker).await?["id"].clone();
    let mixed = json!([[{ "connection_id": connection }], [{ "connection_id": reranker }]]);
    let (status, body) = admin.post(&path, json!({ "name": "x", "groups": mixed })).await?;
    assert_eq!(
        (status, body["error"]["message"].as_str().unwrap().starts_with("groups: ")),
        (StatusCode::BAD_REQUEST, true)
    );
    let alone = json!({ "name": "rerank", "groups": [[{ "connection_id": reranker }]], "replay_timeouts": true });
    let reranks = admin.make(&path, alone).await?;
    assert_eq!((&reranks["replay_timeouts"], &route["replay_timeouts"]), (&json!(true), &json!(false)));
    let reranks = format!("{path}/{}", reranks["id"]);
    let (status, changed) = admin.call(Method::PATCH, &reranks, Some(json!({ "replay_timeouts": false }))).await?;
    assert_eq!((status, &changed["replay_timeouts"]), (StatusCode::OK, &json!(false)));
    assert_eq!(admin.call(Method::PATCH, &reranks, Some(json!({ "groups": mixed }))).await?.0, StatusCode::BAD_REQUEST);

    let one = format!("{path}/{}", route["id"]);
    let (status, changed) = admin.call(Method::PATCH, &one, Some(json!({ "max_output": 500 }))).await?;
    assert_eq!((status, &changed["max_output"], &changed["groups"]), (StatusCode::OK, &json!(500), &route["groups"]));
    let chosen = json!({ "default_route_id": route["id"] });
    assert_eq!(admin.call(Method::PUT, &format!("/projects/{project}"), Some(chosen)).await?.0, StatusCode::OK);
    let other = admin.make("/projects", json!({ "name": "q" })).await?["project"]["id"].clone();
    let foreign = format!("/projects/{other}/routes/{}", route["id"]);
    assert_eq!(admin.call(Method::DELETE, &foreign, None).await?.0, StatusCode::NOT_FOUND);
    let used = admin.call(Method::DELETE, &format!("/models/{connection}"), None).await?;
    assert_eq!((used.0, &used.1["error"]["code"]), (StatusCode::CONFLICT, &json!("still_referenced")));

    assert_eq!(admin.call(Method::DELETE, &one, None).await?.0, StatusCode::NO_CONTENT);
    let (_, project) = admin.get(&format!("/projects/{project}")).await?;
    assert_eq!(project["default_route_id"], Value::Null);
    assert_eq!(admin.call(Method::DELETE, &format!("/models/{connection}"), None).await?.0, StatusCode::NO_CONTENT);
    Ok(())
}

#[tokio::test]
async fn a_project_that_was_called_stays() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let admin = Admin::start(&database).await?;
    let project = admin.make("/projects", json!({ "name": "p" })).await?["project"]["id"].as_i64().unwrap();
    sqlx::query(
        "INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, operation, status, state,
                                   charged_requests, charged_tokens, charged_cost)
         VALUES (gen_random_uuid(), now(), gen_random_uuid(), $1, 'chat', 200, 'final', 1, 1, 1)",
    )
    .bind(project)
    .execute(&database.superuser_pool().await?)
    .await?;
    let (status, body) = admin.call(Method::DELETE, &format!("/projects/{project}"), None).await?;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("project_has_usage")));
    Ok(())
}
