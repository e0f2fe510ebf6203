use domain::ProviderType::{AzureOpenAi, CustomOpenAi, DeepSeek, Groq, Mistral, OpenAi, OpenRouter, XAi};
use serde_json::Value;
use tokens::Family;

use super::*;
use crate::dialect::golden::{PLAIN, words};
use crate::dialect::openai::{ChatRequest, OutputBound};

/// The body for a Chat request read into the common form, and what was dropped on the way out.
fn sent(
    provider: ProviderType,
    outgoing: &Outgoing<'_>,
    request: &Value,
) -> Result<(Value, Vec<String>), RequestError> {
    let text = request.to_string();
    let request = ChatRequest::parse(text.as_bytes()).unwrap();
    let conversation = request.conversation().unwrap();
    let mut dropped = Vec::new();
    let body = body(&conversation, provider, outgoing, &mut dropped)?;
    Ok((serde_json::from_slice(&body).unwrap(), words(&dropped)))
}

fn with(members: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "q" }] });
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    body
}

/// All of what a conversation can be made of.
fn everything() -> Value {
    serde_json::from_str(include_str!("golden/conversation.json")).unwrap()
}

#[test]
fn every_provider_gets_what_its_reference_knows() {
    for (provider, name, golden) in [
        (OpenAi, "openai", include_str!("golden/openai.request.json")),
        (AzureOpenAi, "azure", include_str!("golden/azure.request.json")),
        (DeepSeek, "deepseek", include_str!("golden/deepseek.request.json")),
        (Mistral, "mistral", include_str!("golden/mistral.request.json")),
        (Groq, "groq", include_str!("golden/groq.request.json")),
        (XAi, "xai", include_str!("golden/xai.request.json")),
        (OpenRouter, "openrouter", include_str!("golden/openrouter.request.json")),
        (CustomOpenAi, "custom", include_str!("golden/custom.request.json")),
    ] {
        let golden: Value = serde_json::from_str(golden).unwrap();
        let model = golden["body"]["model"].as_str().unwrap();
        let (body, dropped) = sent(provider, &Outgoing { model, ..PLAIN }, &everything()).unwrap();
        assert_eq!(json!({ "body": body, "dropped": dropped }), golden, "{name}");
    }
}

#[test]
fn a_turn_of_which_nothing_is_left_joins_its_neighbours() {
    let mut conversation = Conversation::default();
    let text = |text: &'static str| Block::Text { text: text.into(), cache: None };
    let thought = || Block::Reasoning { text: "hm".into(), signature: None };
    conversation.say(Role::User, [text("a")]);
    conversation.say(Role::Assistant, [thought(), text("")]);
    conversation.say(Role::User, [text("b")]);
    let mut dropped = Vec::new();
    let sent = body(&conversation, OpenAi, &PLAIN, &mut dropped).unwrap();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    assert_eq!(sent["messages"], json!([{ "role": "user", "content": "a\n\nb" }]));
    assert_eq!(words(&dropped), ["reasoning"]);
    let mut nothing = Conversation::default();
    nothing.say(Role::User, [thought()]);
    assert_eq!(body(&nothing, OpenAi, &PLAIN, &mut dropped).unwrap_err().param(), Some("messages"));
}

#[test]
fn images_and_files_of_results_are_said_by_the_user() {
    let mut conversation = Conversation::default();
    conversation.say(
        Role::Assistant,
        [Block::ToolCall { id: "1".into(), name: "f".into(), arguments: "".into(), signature: None }],
    );
    let image = || Block::Image {
        source: ImageSource::Base64 { media_type: "image/png".into(), data: "QUJD".into() },
        detail: None,
        cache: None,
    };
    let text = |text: &'static str| Block::Text { text: text.into(), cache: None };
    let result = |content| Block::ToolResult { call_id: "1".into(), name: None, content, is_error: true, cache: None };
    conversation.say(Role::User, [result(vec![text("a"), image(), text("b")]), result(vec![image()]), text("and?")]);
    let mut dropped = Vec::new();
    let body = body(&conversation, OpenAi, &PLAIN, &mut dropped).unwrap();
    let url = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,QUJD" } });
    assert_eq!(
        serde_json::from_slice::<Value>(&body).unwrap()["messages"],
        json!([
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": "1", "content": "a\n\nb" },
            { "role": "tool", "tool_call_id": "1", "content": "The result is in the next message." },
            { "role": "user", "content": [url, url, { "type": "text", "text": "and?" }] },
        ])
    );
    assert_eq!(words(&dropped), ["is_error"]);
}

#[test]
fn a_file_goes_where_files_are_known_and_text_goes_anywhere() {
    let file = |data: &str| {
        json!({ "messages": [{ "role": "user", "content": [
        { "type": "file", "file": { "filename": "a.txt", "file_data": data } }] }] })
    };
    let (text, pdf) = (file("data:text/plain;base64,aGk="), file("data:application/pdf;base64,aGk="));
    for provider in [OpenAi, DeepSeek, Mistral, Groq] {
        let (body, _) = sent(provider, &PLAIN, &text).unwrap();
        assert_eq!(body["messages"][0]["content"], json!([{ "type": "text", "text": "a.txt:\n\nhi" }]));
    }
    let (body, _) = sent(OpenAi, &PLAIN, &pdf).unwrap();
    assert_eq!(body["messages"][0]["content"][0]["file"]["file_data"], "data:application/pdf;base64,aGk=");
    for provider in [DeepSeek, Mistral, Groq, XAi] {
        assert!(matches!(sent(provider, &PLAIN, &pdf), Err(RequestError::Invalid { .. })));
    }
}

#[test]
fn the_least_of_all_limits_is_sent_under_the_providers_name() {
    let limit = |provider, request: &Value, bound: Option<OutputBound>| {
        let (body, _) = sent(provider, &Outgoing { output_bound: bound, ..PLAIN }, request).unwrap();
        (body.get("max_tokens").and_then(Value::as_u64), body.get("max_completion_tokens").and_then(Value::as_u64))
    };
    let asked = with(json!({ "max_tokens": 9 }));
    assert_eq!(limit(OpenAi, &asked, None), (None, Some(9)));
    assert_eq!(limit(Mistral, &asked, None), (Some(9), None));
    assert_eq!(limit(OpenAi, &with(json!({})), None), (None, None));
    let bound = |tokens| Some(OutputBound { field: "max_tokens", tokens, family: Family::Estimated, prompt_tokens: 0 });
    assert_eq!(limit(OpenAi, &asked, bound(5)), (Some(5), None));
    assert_eq!(limit(OpenAi, &asked, bound(50)), (Some(9), None));
    assert_eq!(limit(CustomOpenAi, &with(json!({})), bound(0)), (Some(1), None));
}

#[test]
fn how_much_to_think_is_said_as_each_provider_has_it() {
    for (provider, model, asked, member, value) in [
        (OpenAi, "gpt-5-mini", json!({ "reasoning_effort": "minimal" }), "reasoning_effort", json!("minimal")),
        (OpenAi, "o3", json!({ "reasoning": { "max_tokens": 30000 } }), "reasoning_effort", json!("high")),
        (Groq, "openai/gpt-oss-20b", json!({ "reasoning_effort": "low" }), "reasoning_effort", json!("low")),
        (XAi, "grok-4.3", json!({ "reasoning_effort": "none" }), "reasoning_effort", json!("none")),
        (DeepSeek, "m", json!({ "reasoning_effort": "none" }), "thinking", json!({ "type": "disabled" })),
        (DeepSeek, "m", json!({ "reasoning_effort": "xhigh" }), "reasoning_effort", json!("max")),
        (OpenRouter, "m", json!({ "reasoning": { "max_tokens": 7 } }), "reasoning", json!({ "max_tokens": 7 })),
        (OpenRouter, "m", json!({ "reasoning_effort": "high" }), "reasoning", json!({ "effort": "high" })),
        (
            CustomOpenAi,
            "m",
            json!({ "thinking": { "type": "enabled", "budget_tokens": 5000 } }),
            "reasoning_effort",
            json!("medium"),
        ),
    ] {
        let (body, dropped) = sent(provider, &Outgoing { model, ..PLAIN }, &with(asked)).unwrap();
        assert_eq!((&body[member], dropped.len()), (&value, 0), "{provider:?} {model}");
    }
    for (provider, model) in [(OpenAi, "gpt-4o"), (Mistral, "m"), (XAi, "grok-4"), (Groq, "llama")] {
        let (body, dropped) =
            sent(provider, &Outgoing { model, ..PLAIN }, &with(json!({ "reasoning_effort": "low" }))).unwrap();
        assert_eq!((body.get("reasoning_effort"), dropped.as_slice()), (None, &["reasoning_effort".to_owned()][..]));
    }
}
