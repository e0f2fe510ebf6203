//! Requests of other APIs for providers of this one, which each refuse something else.

use domain::ProviderType::{self, AzureOpenAi, CustomOpenAi, DeepSeek, Mistral, OpenAi, OpenRouter, XAi};
use serde_json::{Value, json};

use crate::dialect::golden::PLAIN;
use crate::dialect::openai::Outgoing;
use crate::{ClientDialect, Inbound};

fn sent_by(client: ClientDialect, provider: ProviderType, model: &str, request: &Value) -> (Value, Vec<String>) {
    let text = request.to_string();
    let call = Inbound::parse(client, text.as_bytes()).unwrap().call(provider, &Outgoing { model, ..PLAIN }).unwrap();
    (serde_json::from_slice(&call.body).unwrap(), call.dropped)
}

/// What becomes of a Messages request with these members.
fn sent(provider: ProviderType, model: &str, members: &Value) -> (Value, Vec<String>) {
    let mut request =
        json!({ "model": "asked", "max_tokens": 100_000, "messages": [{ "role": "user", "content": "q" }] });
    request.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    sent_by(ClientDialect::Messages, provider, model, &request)
}

#[test]
fn a_user_is_named_in_as_many_letters_as_a_provider_takes() {
    let user = format!("user_{}_account__session_{}", "a".repeat(64), "b".repeat(60));
    let name = |provider, letters: usize| {
        let (body, dropped) = sent(provider, "m", &json!({ "metadata": { "user_id": user[..letters] } }));
        assert!(dropped.is_empty());
        body["user"].as_str().unwrap().to_owned()
    };
    for provider in [OpenAi, AzureOpenAi, XAi] {
        assert_eq!((name(provider, 64), name(provider, 65).len()), (user[..64].to_owned(), 64));
        assert_eq!(name(provider, 65), name(provider, 65));
        assert_ne!(name(provider, 66), name(provider, 65));
    }
    assert_eq!((name(OpenRouter, 128).len(), name(OpenRouter, 129).len()), (128, 64));
    assert_eq!(name(CustomOpenAi, 140), user[..140]);
}

#[test]
fn models_that_reason_are_not_told_what_they_refuse() {
    let members = json!({ "temperature": 0.2, "top_p": 0.9, "stop_sequences": ["end"] });
    let left = |provider, model| {
        let (body, dropped) = sent(provider, model, &members);
        let names = ["temperature", "top_p", "stop"];
        (names.into_iter().filter(|name| body.get(name).is_some()).collect::<Vec<_>>(), dropped)
    };
    let none = ["stop_sequences", "temperature", "top_p"].map(str::to_owned).to_vec();
    for model in ["gpt-5", "gpt-5-mini-2025-08-07", "o3", "o4-mini"] {
        assert_eq!(left(OpenAi, model), (vec![], none.clone()), "{model}");
    }
    assert_eq!(left(OpenAi, "gpt-5.1"), (vec!["temperature", "top_p"], vec!["stop_sequences".to_owned()]));
    assert_eq!(left(XAi, "grok-4"), (vec!["temperature", "top_p"], vec!["stop_sequences".to_owned()]));
    assert_eq!(left(OpenAi, "gpt-4o"), (vec!["temperature", "top_p", "stop"], vec![]));
    // What they are anyway goes without saying.
    let (body, dropped) = sent(OpenAi, "gpt-5", &json!({ "temperature": 1.0, "top_p": 1 }));
    assert_eq!((body.get("temperature"), body.get("top_p"), dropped.len()), (None, None, 0));
    let thinking = json!({ "temperature": 0.2, "thinking": { "type": "enabled", "budget_tokens": 9000 } });
    let (body, dropped) = sent(OpenAi, "gpt-5.1", &thinking);
    assert_eq!((&body["reasoning_effort"], dropped), (&json!("medium"), vec!["temperature".to_owned()]));
}

#[test]
fn a_model_is_asked_for_an_effort_that_it_has() {
    let effort = |provider, model, effort: &str| {
        let request = json!({ "model": "asked", "input": "q", "reasoning": { "effort": effort } });
        sent_by(ClientDialect::Responses, provider, model, &request).0["reasoning_effort"].take()
    };
    let budget = |model, budget: u64| {
        let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": budget } });
        sent(OpenAi, model, &thinking).0["reasoning_effort"].take()
    };
    assert_eq!(effort(XAi, "grok-3-mini", "medium"), "low");
    assert_eq!(effort(XAi, "grok-3-mini", "xhigh"), "high");
    assert_eq!(effort(XAi, "grok-4", "high"), Value::Null);
    assert_eq!(effort(CustomOpenAi, "openai/gpt-oss-20b", "xhigh"), "high");
    assert_eq!(effort(CustomOpenAi, "house-model", "xhigh"), "xhigh");
    assert_eq!((budget("gpt-5", 30_000), budget("gpt-5-pro", 2000)), (json!("high"), json!("high")));
    assert_eq!((budget("gpt-5-chat-latest", 2000), budget("gpt-4o", 2000)), (Value::Null, Value::Null));
}

#[test]
fn no_model_is_asked_for_more_than_it_writes() {
    for (provider, model, field, most) in [
        (OpenAi, "gpt-4o", "max_completion_tokens", 16_384),
        (OpenAi, "gpt-5", "max_completion_tokens", 100_000),
        (DeepSeek, "deepseek-chat", "max_tokens", 8192),
        (OpenAi, "our-model", "max_completion_tokens", 100_000),
    ] {
        assert_eq!(sent(provider, model, &json!({})).0[field], most, "{model}");
    }
}

#[test]
fn an_answer_is_held_strictly_to_a_schema_that_allows_it() {
    let strict = |provider, schema: Value| {
        let format = json!({ "output_config": { "format": { "type": "json_schema", "schema": schema } } });
        let (mut body, dropped) = sent(provider, "gpt-4o", &format);
        assert!(dropped.is_empty());
        body["response_format"]["json_schema"]["strict"].take()
    };
    let open = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "additionalProperties": false });
    let mut closed = open.clone();
    closed["required"] = json!(["a"]);
    assert_eq!((strict(OpenAi, closed.clone()), strict(OpenAi, open.clone())), (json!(true), json!(false)));
    assert_eq!((strict(XAi, open.clone()), strict(CustomOpenAi, open.clone())), (json!(false), json!(true)));
    let tools = json!({ "tools": [
        { "name": "f", "strict": true, "input_schema": open }, { "name": "g", "strict": true, "input_schema": closed }] });
    let (body, dropped) = sent(OpenAi, "gpt-4o", &tools);
    assert_eq!(
        (&body["tools"][0]["function"]["strict"], &body["tools"][1]["function"]["strict"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(dropped, ["tools[].strict"]);
}

#[test]
fn deepseek_is_told_of_the_form_in_words() {
    let schema = json!({ "type": "object", "properties": { "lit": { "type": "boolean" } } });
    let format = json!({ "output_config": { "format": { "type": "json_schema", "schema": schema } } });
    let (body, _) = sent(DeepSeek, "deepseek-chat", &format);
    assert_eq!(body["response_format"]["type"], "json_object");
    let told = body["messages"][0]["content"].as_str().unwrap();
    assert!(body["messages"][0]["role"] == "system" && told.contains(&schema.to_string()) && told.contains("JSON"));
    let plain = |said: &str| {
        let request = json!({ "model": "asked", "input": said, "text": { "format": { "type": "json_object" } } });
        sent_by(ClientDialect::Responses, DeepSeek, "deepseek-chat", &request).0["messages"].as_array().unwrap().len()
    };
    assert_eq!((plain("a lamp as Json"), plain("a lamp")), (1, 2));
}

#[test]
fn mistral_hears_its_model_between_a_result_and_the_user() {
    let messages = json!({ "messages": [
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_1", "name": "f", "input": {} }] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": "r" }, { "type": "text", "text": "and now?" }] }
    ] });
    let roles = |provider| -> Vec<String> {
        let (body, _) = sent(provider, "m", &messages);
        let role = |message: &Value| message["role"].as_str().unwrap().to_owned();
        body["messages"].as_array().unwrap().iter().map(role).collect()
    };
    assert_eq!(roles(Mistral), ["user", "assistant", "tool", "assistant", "user"]);
    assert_eq!(roles(OpenAi), ["user", "assistant", "tool", "user"]);
}

#[test]
fn mistral_goes_on_with_what_is_marked() {
    let messages = json!({ "messages": [
        { "role": "user", "content": "A colour as JSON." }, { "role": "assistant", "content": "{\"colour\":" }] });
    let (body, _) = sent(Mistral, "m", &messages);
    assert_eq!(body["messages"][1], json!({ "role": "assistant", "content": "{\"colour\":", "prefix": true }));
    assert_eq!(sent(OpenAi, "m", &messages).0["messages"][1].get("prefix"), None);
    let asked = json!({ "messages": [{ "role": "assistant", "content": "a" }, { "role": "user", "content": "b" }] });
    assert!(
        sent(Mistral, "m", &asked).0["messages"].as_array().unwrap().iter().all(|said| said.get("prefix").is_none())
    );
}

#[test]
fn mistral_is_asked_by_the_names_of_its_own_reference() {
    let sent = |provider, body: &str| {
        let call = Inbound::parse(ClientDialect::Chat, body.as_bytes()).unwrap();
        let call = call.call(provider, &PLAIN).unwrap();
        (String::from_utf8(call.body.to_vec()).unwrap(), call.dropped)
    };
    let body = r#"{"model":"real","seed": 7,"user":"u","messages":[{"role":"user","content":"q"}],"x":1}"#;
    let own = r#"{"random_seed":7,"model":"real","messages":[{"role":"user","content":"q"}],"x":1}"#;
    assert_eq!(sent(Mistral, body), (own.to_owned(), vec!["user".to_owned()]));
    assert_eq!(sent(OpenAi, body), (body.to_owned(), vec![]));
    let both = r#"{"model":"real","random_seed":3,"seed":7,"messages":[{"role":"user","content":"q"}]}"#;
    assert_eq!(sent(Mistral, both).0, r#"{"model":"real","random_seed":3,"messages":[{"role":"user","content":"q"}]}"#);
}

#[test]
fn long_names_of_tools_are_short_where_they_have_to_be() {
    let long = format!("mcp__server__{}", "tool_".repeat(20));
    let members = json!({ "tools": [{ "name": long, "input_schema": { "type": "object" } }], "messages": [
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_1", "name": long, "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "toolu_1", "content": "r" }] }
    ] });
    let (body, _) = sent(OpenAi, "gpt-4o", &members);
    let short = body["tools"][0]["function"]["name"].as_str().unwrap();
    assert_eq!((short.len(), &body["messages"][1]["tool_calls"][0]["function"]["name"]), (64, &json!(short)));
    let (body, _) = sent(ProviderType::Gemini, "gemini-2.5-flash", &members);
    assert_eq!(body["tools"][0]["functionDeclarations"][0]["name"], short);
    for provider in [CustomOpenAi, ProviderType::Ollama] {
        assert!(sent(provider, "m", &members).0.to_string().contains(&long), "{provider:?}");
    }
}

#[test]
fn what_clients_of_ollama_send_is_listed_by_everybody_else() {
    let request = json!({ "messages": [{ "role": "user", "content": "q" }], "num_ctx": 9, "options": { "a": 1 } });
    let (_, dropped) = sent_by(ClientDialect::Chat, ProviderType::Anthropic, "claude-opus-5", &request);
    assert_eq!(dropped, ["options", "num_ctx"]);
    assert!(sent_by(ClientDialect::Chat, ProviderType::Ollama, "m", &request).1.is_empty());
}

#[test]
fn what_a_model_thought_in_secret_goes_back_by_openrouter_as_it_came() {
    let detail = json!({
        "type": "reasoning.encrypted", "data": "c2VjcmV0", "id": "call_1", "format": "google-gemini-v1", "index": 0
    });
    let answer = json!({ "id": "a", "model": "google/gemini-3-pro", "choices": [{ "finish_reason": "stop",
        "message": { "role": "assistant", "content": "said", "reasoning_details": [detail] } }] });
    let whole = super::read_whole(&bytes::Bytes::from(answer.to_string()), None).unwrap();
    let secret = whole.parts.iter().find_map(|part| match part {
        crate::hub::Part::RedactedReasoning(data) => Some(data.clone()),
        _ => None,
    });
    let messages = json!({ "messages": [
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": [
            { "type": "redacted_thinking", "data": secret.unwrap() }, { "type": "text", "text": "said" }] },
        { "role": "user", "content": "go on" }
    ] });
    let (body, dropped) = sent(OpenRouter, "google/gemini-3-pro", &messages);
    assert_eq!((&body["messages"][1]["reasoning_details"], dropped.len()), (&json!([detail]), 0));
    for (provider, model) in [(OpenRouter, "openai/gpt-5"), (OpenAi, "gpt-5"), (ProviderType::Gemini, "gemini-3-pro")] {
        let (body, dropped) = sent(provider, model, &messages);
        assert!(!body.to_string().contains("c2VjcmV0"), "{model}");
        assert_eq!(dropped, ["messages[].content[].redacted_thinking"], "{model}");
    }
}
