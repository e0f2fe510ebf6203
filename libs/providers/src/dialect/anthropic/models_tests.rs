//! Requests for models that take less than others, or something else.

use serde_json::{Value, json};

use super::*;
use crate::dialect::golden::{PLAIN, asks, raw, says, set, tool, words};
use crate::dialect::openai::Outgoing;
use crate::hub::{Conversation, Effort, Format, Reasoning, SettingKind, Tool, ToolChoice};

fn sent(conversation: &Conversation<'_>, model: &'static str) -> (Value, Vec<String>) {
    let mut dropped = Vec::new();
    let body = body(conversation, &Outgoing { model, ..PLAIN }, &mut dropped).unwrap();
    (serde_json::from_slice(&body).unwrap(), words(&dropped))
}

fn thinks(effort: Option<Effort>, budget: Option<u64>) -> Conversation<'static> {
    Conversation {
        reasoning: Some(Reasoning { name: "reasoning_effort", effort, budget }),
        output_limit: Some(8000),
        ..asks([says("Nine times seven?")])
    }
}

#[test]
fn a_model_is_told_to_think_as_it_can_be() {
    let (high, budget) = (thinks(Some(Effort::High), None), thinks(None, Some(5000)));
    let adaptive = json!({ "type": "adaptive" });
    for (model, conversation, thinking, effort, dropped) in [
        ("claude-opus-4-7", &high, adaptive.clone(), json!("high"), &[][..]),
        ("claude-sonnet-5", &budget, adaptive.clone(), json!("medium"), &["budget"]),
        ("claude-opus-4-6", &high, adaptive, json!("high"), &[]),
        ("claude-opus-4-6", &budget, json!({ "type": "enabled", "budget_tokens": 5000 }), Value::Null, &[]),
        ("claude-sonnet-4-5", &high, json!({ "type": "enabled", "budget_tokens": 6400 }), Value::Null, &[]),
        ("claude-3-5-haiku-latest", &high, Value::Null, Value::Null, &["reasoning_effort"]),
        ("claude-3-haiku-20240307", &budget, Value::Null, Value::Null, &["reasoning_effort"]),
    ] {
        let (sent, without) = sent(conversation, model);
        assert_eq!((&sent["thinking"], &sent["output_config"]["effort"]), (&thinking, &effort), "{model}");
        assert_eq!(without, dropped, "{model}");
    }
    // A tool that must be called leaves no room for thought; a schema does.
    let mut forced = thinks(Some(Effort::High), None);
    forced.tools = vec![tool("f", None)];
    forced.tool_choice = Some(ToolChoice::Required);
    let (body, dropped) = sent(&forced, "claude-opus-5");
    assert_eq!((body.get("thinking"), body.get("output_config")), (None, None));
    assert_eq!(dropped, ["reasoning_effort"]);
    let mut formed = thinks(Some(Effort::Low), None);
    let schema = raw(r#"{"type":"object","properties":{}}"#);
    formed.format = Some(Format::Schema { name: "answer".into(), description: None, schema, strict: None });
    let config = sent(&formed, "claude-opus-5").0["output_config"].take();
    assert_eq!((&config["effort"], &config["format"]["type"]), (&json!("low"), &json!("json_schema")));
}

#[test]
fn a_model_is_steered_by_the_numbers_that_it_takes() {
    let settings = || {
        vec![
            set(SettingKind::Temperature, "temperature", "0.3"),
            set(SettingKind::TopP, "top_p", "0.9"),
            set(SettingKind::TopK, "top_k", "40"),
        ]
    };
    for (model, kept, dropped) in [
        ("claude-3-5-haiku-latest", &["temperature", "top_p", "top_k"][..], &[][..]),
        ("claude-sonnet-4-20250514", &["temperature", "top_p", "top_k"], &[]),
        ("claude-opus-4-1", &["temperature", "top_k"], &["top_p"]),
        ("claude-haiku-4-5-20251001", &["temperature", "top_k"], &["top_p"]),
        ("claude-unknown", &["temperature", "top_k"], &["top_p"]),
        ("claude-opus-4-7", &[], &["temperature", "top_p", "top_k"]),
    ] {
        let conversation = Conversation { settings: settings(), ..asks([says("a")]) };
        let (body, without) = sent(&conversation, model);
        let sent: Vec<_> =
            ["temperature", "top_p", "top_k"].into_iter().filter(|name| body.get(name).is_some()).collect();
        assert_eq!((sent.as_slice(), without), (kept, dropped.iter().map(ToString::to_string).collect()), "{model}");
    }
    let alone = Conversation { settings: vec![set(SettingKind::TopP, "top_p", "0.9")], ..asks([says("a")]) };
    assert_eq!(sent(&alone, "claude-sonnet-4-5").0["top_p"], 0.9);
    let usual = Conversation { settings: vec![set(SettingKind::Temperature, "temperature", "1")], ..asks([says("a")]) };
    let (body, dropped) = sent(&usual, "claude-opus-4-7");
    assert_eq!((body.get("temperature"), dropped.len()), (None, 0));
}

#[test]
fn schemas_are_closed_and_a_bound_that_cannot_be_kept_is_listed() {
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}"#;
    let format = Format::Schema { name: "answer".into(), description: None, schema: raw(schema), strict: Some(true) };
    let conversation = Conversation {
        format: Some(format),
        tools: vec![Tool { strict: Some(true), ..tool("f", Some(schema)) }, tool("g", Some(schema))],
        ..asks([says("a")])
    };
    let (body, dropped) = sent(&conversation, "claude-sonnet-4-5");
    let closed = json!({
        "type": "object",
        "properties": { "n": { "type": "integer", "description": "{minimum: 1}" } },
        "additionalProperties": false
    });
    assert_eq!(body["output_config"]["format"]["schema"], closed);
    assert_eq!(body["tools"][0]["input_schema"], closed);
    assert_eq!(body["tools"][1]["input_schema"], serde_json::from_str::<Value>(schema).unwrap());
    assert_eq!(dropped, ["response_format.json_schema.schema"]);
}

#[test]
fn no_model_is_asked_for_more_than_it_writes_or_told_a_longer_name_than_it_takes() {
    let conversation =
        Conversation { output_limit: Some(100_000), user: Some("u".repeat(257).into()), ..asks([says("a")]) };
    for (model, most) in [("claude-3-haiku-20240307", 4096), ("claude-opus-4-1", 32_000), ("claude-opus-5", 100_000)] {
        let (body, _) = sent(&conversation, model);
        assert_eq!(body["max_tokens"], most, "{model}");
        assert_eq!(body["metadata"]["user_id"].as_str().unwrap().len(), 64);
    }
}
