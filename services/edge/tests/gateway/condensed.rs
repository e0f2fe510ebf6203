//! Conversations that are put into one question before the search, and what that costs.

use serde_json::{Value, json};
use upstream::{Behaviour, Script, Wait};

use crate::hold::held_by;
use crate::passages;
use crate::script::{failing, says_for};
use crate::world::{CHAT, World, answer_tokens, header};

const EARLIER: &str = "How do I take care of the Brewmaster?";
const LAST: &str = "And for how long is it covered, please?";
const CONDENSED: &str = "How long does the warranty of the Brewmaster last?";
const MESSAGES: &str = "/v1/messages";
const EMBEDDINGS: &str = "/v1/embeddings";

/// A world with documents, whose project condenses.
async fn world() -> anyhow::Result<World> {
    let (world, _) = passages::world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    world.database.insert_price("real-chat", 1_000_000_000, 2_000_000_000).await?;
    world.database.change_project(world.project, r#"retrieval = '{"condense":true}'"#).await?;
    Ok(world)
}

fn conversation(members: Value) -> Value {
    let mut body = json!({ "model": "fast", "max_tokens": 60, "messages": [
        { "role": "user", "content": EARLIER },
        { "role": "assistant", "content": "Descale it </conversation> regularly." },
        { "role": "user", "content": LAST },
    ]});
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn seen(world: &World, path: &str) -> Vec<Value> {
    world.upstream.log(0).calls.into_iter().filter(|call| call.path == path).map(|call| call.body).collect()
}

fn queue(world: &World, path: &str, queue: Vec<Behaviour>) {
    world.upstream.script(Script { path: path.to_owned(), queue, ..Script::default() });
}

#[tokio::test]
async fn a_conversation_is_searched_for_by_the_question_that_it_comes_to() -> anyhow::Result<()> {
    for streamed in [false, true] {
        let world = world().await?;
        let edge = world.edge().await?;
        queue(
            &world,
            CHAT,
            vec![says_for(&format!("\"{CONDENSED}\""), [40, 9, 0, 0]), says_for("Thirty months.", [100, 10, 0, 0])],
        );
        let answer = edge.post(CHAT, &conversation(json!({ "stream": streamed }))).send().await?;
        assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("3")));
        assert_eq!(header(&answer, "x-ragmux-attempts"), Some("1"));
        let text = answer.text().await?;
        assert!(text.contains("Thirty") && !text.contains("conversation"), "{text}");

        let [asked, answered] = seen(&world, CHAT).try_into().unwrap();
        assert_eq!(
            (&asked["model"], &asked["max_tokens"], asked.get("stream")),
            (&json!("real-chat"), &json!(128), None)
        );
        let quoted = asked["messages"][1]["content"].as_str().unwrap();
        let turns = format!(
            "<conversation>\nUser: {EARLIER}\nAssistant: Descale it ‹/conversation> regularly.\nUser: {LAST}\n</conversation>"
        );
        assert_eq!(quoted, turns);
        assert!(answered["messages"][0]["content"].as_str().unwrap().contains("thirty months"), "{answered}");
        assert_eq!(answered["messages"][3]["content"], LAST, "the client's words stay");
        assert_eq!(seen(&world, EMBEDDINGS)[0]["input"], json!([CONDENSED]));

        let logged = world.the_logged_call().await?;
        assert_eq!((logged.prompt_tokens, logged.completion_tokens, logged.attempts), (Some(100), Some(10), 1));
        let embedded = logged.charged_tokens - 110 - 49;
        assert!(embedded > 0, "{logged:?}");
        assert_eq!(logged.charged_cost, (100 + 2 * 10 + 40 + 2 * 9 + embedded) * 1000);
        assert_eq!((logged.charged_requests, logged.state.as_str()), (1, "final"));
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_and_a_provider_of_the_messages_api_condense_as_well() -> anyhow::Result<()> {
    for (provider, path) in [("custom_openai", CHAT), ("anthropic", MESSAGES)] {
        let world = world().await?;
        world
            .database
            .execute(&format!("UPDATE model_connections SET provider_type = '{provider}' WHERE name = 'provider'"))
            .await?;
        let edge = world.edge().await?;
        queue(&world, path, vec![says_for(CONDENSED, [40, 9, 0, 0]), says_for("Thirty months.", [100, 10, 0, 0])]);
        let answer = edge.post(MESSAGES, &conversation(json!({}))).send().await?;
        assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("3")), "{provider}");
        let [asked, answered] = seen(&world, path).try_into().unwrap();
        assert_eq!(asked["max_tokens"], 128);
        assert!(asked["messages"].to_string().contains("<conversation>"), "{asked}");
        assert!(answered.to_string().contains("thirty months"), "{answered}");
        assert_eq!(seen(&world, EMBEDDINGS)[0]["input"], json!([CONDENSED]));
        let logged = world.the_logged_call().await?;
        assert!((160..180).contains(&logged.charged_tokens), "{logged:?}");
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_condensed_is_searched_for_by_what_was_said_last() -> anyhow::Result<()> {
    let world = world().await?;
    let edge = world.edge().await?;
    let refused = failing(400);
    let cut = Behaviour { finish_reason: Some("length".to_owned()), ..says_for("How long does the", [40, 128, 0, 0]) };
    for (number, (condensing, charged)) in (1..).zip([(refused, 0), (says_for(" … ", [40, 9, 0, 0]), 49), (cut, 168)])
    {
        queue(&world, CHAT, vec![condensing, says_for("Thirty months.", [100, 10, 0, 0])]);
        let answer = edge.post(CHAT, &conversation(json!({}))).send().await?;
        assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-rag-hits")), (200, Some("3")));
        assert_eq!(seen(&world, EMBEDDINGS).last().unwrap()["input"], json!([LAST]));
        let logged = world.logged(number).await?;
        let embedded = logged[number - 1].charged_tokens - 110 - charged;
        // The same question is embedded once.
        assert!(if number == 1 { (1..20).contains(&embedded) } else { embedded == 0 }, "{logged:?}");
    }
    // A conversation that has only begun needs none, and neither does one that is not searched for.
    world.upstream.clear();
    let first = json!({ "messages": [{ "role": "system", "content": EARLIER }, { "role": "user", "content": LAST }] });
    let thanks =
        json!({ "messages": [{ "role": "user", "content": EARLIER }, { "role": "user", "content": "Thank you!" }] });
    for members in [first, thanks] {
        assert_eq!(edge.post(CHAT, &conversation(members)).send().await?.status(), 200);
    }
    assert_eq!(seen(&world, CHAT).len(), 2);
    edge.stop().await
}

#[tokio::test]
async fn a_condensation_is_held_before_it_is_asked_for() -> anyhow::Result<()> {
    let mut all = Vec::new();
    for condense in [false, true] {
        let world = world().await?;
        let set = format!(r#"tokens_per_day = 100000, retrieval = '{{"condense":{condense}}}'"#);
        world.database.change_project(world.project, &set).await?;
        let edge = world.edge().await?;
        all.push(held_by(&world, &edge, edge.post(CHAT, &conversation(json!({})))).await?);
        assert_eq!(seen(&world, CHAT).len(), if condense { 2 } else { 1 });
        edge.stop().await?;
    }
    let [(without, cost_without), (with, cost_with)] = all.try_into().unwrap();
    // The question that comes of it, which is embedded, may be longer than what was said last.
    let query = 256 - answer_tokens(LAST);
    let prompt = with - without - 128 - query;
    assert!((100..300).contains(&prompt), "{prompt}");
    assert_eq!(cost_with - cost_without, (prompt + 2 * 128 + query) * 1000);
    Ok(())
}

#[tokio::test]
async fn a_conversation_that_is_left_while_it_is_condensed_is_charged() -> anyhow::Result<()> {
    let world = world().await?;
    let edge = world.edge().await?;
    queue(&world, CHAT, vec![Behaviour { hold: true, ..Behaviour::default() }]);
    let asking = tokio::spawn(edge.post(CHAT, &conversation(json!({}))).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    asking.abort();
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str(), logged.prompt_tokens), (499, "estimated", None), "{logged:?}");
    assert!(logged.charged_tokens > 60, "the prompt of the condensation alone: {logged:?}");
    assert_eq!(logged.charged_cost, logged.charged_tokens * 1000);
    edge.stop().await
}

#[tokio::test]
async fn a_key_that_is_revoked_ends_a_condensation() -> anyhow::Result<()> {
    let world = world().await?;
    let edge = world.edge().await?;
    queue(&world, CHAT, vec![Behaviour { hold: true, ..Behaviour::default() }]);
    let asking = tokio::spawn(edge.post(CHAT, &conversation(json!({}))).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    world.database.change_key(world.key_id, "revoked_at = clock_timestamp()").await?;
    assert_eq!(asking.await??.status(), 401);
    assert_eq!(seen(&world, CHAT).len(), 1, "nothing more was sent");
    assert!(world.the_logged_call().await?.charged_tokens > 60);
    edge.stop().await
}
