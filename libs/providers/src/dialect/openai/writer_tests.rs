use super::*;

fn form(usage: bool, functions: bool) -> ChatForm {
    ChatForm { model: "asked".to_owned(), created_s: 1_700_000_000, usage, functions }
}

fn events<'a>() -> Vec<Event<'a>> {
    vec![
        Event::Start { id: Some("msg_1".into()), model: Some("real".into()) },
        Event::Reasoning("th".into()),
        Event::Reasoning("ink".into()),
        Event::ReasoningSignature("si".into()),
        Event::ReasoningSignature("gn".into()),
        Event::RedactedReasoning("dark".into()),
        Event::Text("a \"b\"".into()),
        Event::ToolCall { index: 1, id: "x".into(), name: "f".into(), signature: Some("g".into()) },
        Event::ToolCall { index: 2, id: "y".into(), name: "h".into(), signature: None },
        Event::Arguments { index: 1, json: "{\"q\":".into() },
        Event::Arguments { index: 1, json: "1}".into() },
        Event::Usage(Usage::default()),
        Event::Finish(Finish::ToolCalls),
        Event::Usage(Usage {
            prompt_tokens: 9,
            completion_tokens: 4,
            cached_tokens: 5,
            cache_write_tokens: 1,
            reasoning_tokens: 2,
            cost: None,
            lacks: crate::usage::Lacks::Nothing,
        }),
    ]
}

fn written(form: ChatForm, events: &[Event<'_>], member: Option<(&str, &str)>) -> Vec<String> {
    let (mut writer, mut out) = (ChatWriter::new(form), BytesMut::new());
    for event in events {
        writer.write(event, &mut out);
    }
    writer.end(member, &mut out);
    let text = String::from_utf8(out.to_vec()).unwrap();
    let blocks = text.strip_suffix("\n\n").unwrap().split("\n\n");
    blocks.map(|block| block.strip_prefix("data: ").unwrap().to_owned()).collect()
}

/// What differs from chunk to chunk.
fn told(chunks: &[String]) -> Vec<String> {
    let head =
        r#"{"id":"chatcmpl-msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked","choices":["#;
    let told = chunks.iter().map(|chunk| match chunk.strip_prefix(head) {
        Some(rest) => rest.replace(r#","logprobs":null"#, ""),
        None => chunk.clone(),
    });
    told.collect()
}

#[test]
fn a_stream_begins_with_the_role_and_ends_with_reason_usage_member_and_done() {
    let chunks = written(form(true, false), &events(), Some(("ragmux", r#"{"sources":[]}"#)));
    let delta = |delta: &str| format!(r#"{{"index":0,"delta":{delta},"finish_reason":null}}],"usage":null}}"#);
    let usage = chunks[chunks.len() - 3].split_once(r#""usage":"#).unwrap().1;
    let usage: Value = serde_json::from_str(usage.strip_suffix('}').unwrap()).unwrap();
    assert_eq!(
        usage,
        json!({ "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
            "prompt_tokens_details": { "cached_tokens": 5, "cache_creation_tokens": 1 },
            "completion_tokens_details": { "reasoning_tokens": 2 } })
    );
    let mut told = told(&chunks);
    let place = told.len() - 3;
    assert!(told.remove(place).starts_with(r#"],"usage":{"#));
    // The order of members inside a detail or a call is serde_json's, so these are compared as values.
    let values = |text: &str| -> Value { serde_json::from_str(&format!(r#"{{"choices":[{text}"#)).unwrap() };
    let expected = [
        delta(r#"{"role":"assistant","content":"","refusal":null}"#),
        delta(r#"{"reasoning_content":"th"}"#),
        delta(r#"{"reasoning_content":"ink"}"#),
        delta(r#"{"reasoning_details":[{"type":"reasoning.text","text":"think","signature":"sign","index":0}]}"#),
        delta(r#"{"reasoning_details":[{"type":"reasoning.encrypted","data":"dark","index":1}]}"#),
        delta(r#"{"content":"a \"b\""}"#),
        delta(
            r#"{"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""},"extra_content":{"google":{"thought_signature":"g"}}}]}"#,
        ),
        delta(r#"{"tool_calls":[{"index":1,"id":"y","type":"function","function":{"name":"h","arguments":""}}]}"#),
        delta(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"q\":"}}]}"#),
        delta(r#"{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#),
        delta(r#"{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}"#),
        r#"{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}"#.to_owned(),
        r#"],"ragmux":{"sources":[]}}"#.to_owned(),
        "[DONE]".to_owned(),
    ];
    assert_eq!(told.len(), expected.len());
    for (told, expected) in told.iter().zip(&expected) {
        if expected == "[DONE]" {
            assert_eq!(told, expected);
        } else {
            assert_eq!(values(told), values(expected));
        }
    }
}

#[test]
fn usage_is_told_only_to_those_who_asked() {
    let chunks = written(form(false, false), &events(), None);
    assert!(chunks.iter().all(|chunk| !chunk.contains("usage")));
    let never = written(form(true, false), &[Event::Text("a".into()), Event::Finish(Finish::Length)], None);
    assert!(never.iter().all(|chunk| !chunk.contains("prompt_tokens")));
    assert!(never[2].contains(r#""finish_reason":"length""#));
}

#[test]
fn every_stream_has_one_id_even_where_the_provider_gives_none() {
    let chunks = written(form(false, false), &[Event::Text("a".into())], None);
    let ids: Vec<Value> =
        chunks.iter().filter_map(|chunk| Some(serde_json::from_str::<Value>(chunk).ok()?["id"].clone())).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| id == &ids[0] && id.as_str().unwrap().len() == "chatcmpl-".len() + 32));
    assert_eq!(answer_id(Some("chatcmpl-7")), "chatcmpl-7");
}

#[test]
fn calls_in_the_old_form_are_one_function_call() {
    let chunks = written(form(false, true), &events(), None);
    let calls: Vec<_> = chunks.iter().filter(|chunk| chunk.contains("function_call\":{")).collect();
    assert_eq!(calls.len(), 3);
    assert!(calls[1].contains(r#"{"function_call":{"arguments":"{\"q\":"}}"#));
    assert!(chunks[chunks.len() - 2].contains(r#""finish_reason":"function_call""#));
    assert!(chunks.iter().all(|chunk| !chunk.contains("tool_calls")));
    let whole = ChatWriter::new(form(false, true)).whole(&Whole::of(events()), None);
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(whole["choices"][0]["message"]["function_call"], json!({ "name": "f", "arguments": "{\"q\":1}" }));
    assert_eq!(whole["choices"][0]["finish_reason"], "function_call");
}

#[test]
fn a_thought_too_long_to_be_signed_is_told_without() {
    let long = "x".repeat(MAX_SIGNED_BYTES);
    let thought = |text: String| vec![Event::Reasoning(text.into()), Event::ReasoningSignature("s".into())];
    let signed = |events: &[Event<'_>]| {
        written(form(false, false), events, None).iter().filter(|chunk| chunk.contains("signature")).count()
    };
    assert_eq!(signed(&thought(long.clone())), 1);
    assert_eq!(signed(&thought(format!("{long}x"))), 0);
    let mut two = thought("a".to_owned());
    two.extend(thought("b".to_owned()));
    assert_eq!(signed(&two), 2);
}

#[test]
fn a_whole_answer_has_everything_in_one_message() {
    let whole = ChatWriter::new(form(false, false)).whole(&Whole::of(events()), Some(("ragmux", r#"{"sources":[]}"#)));
    assert_eq!(
        serde_json::from_slice::<Value>(&whole).unwrap(),
        json!({
            "id": "chatcmpl-msg_1", "object": "chat.completion", "created": 1_700_000_000, "model": "asked",
            "choices": [{ "index": 0, "logprobs": null, "finish_reason": "tool_calls", "message": {
                "role": "assistant", "content": "a \"b\"", "refusal": null, "reasoning_content": "think",
                "reasoning_details": [
                    { "type": "reasoning.text", "text": "think", "signature": "sign", "index": 0 },
                    { "type": "reasoning.encrypted", "data": "dark", "index": 1 },
                ],
                "tool_calls": [
                    { "id": "x", "type": "function", "function": { "name": "f", "arguments": "{\"q\":1}" },
                      "extra_content": { "google": { "thought_signature": "g" } } },
                    { "id": "y", "type": "function", "function": { "name": "h", "arguments": "{}" } },
                ],
            } }],
            "usage": { "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
                "prompt_tokens_details": { "cached_tokens": 5, "cache_creation_tokens": 1 },
                "completion_tokens_details": { "reasoning_tokens": 2 } },
            "ragmux": { "sources": [] },
        })
    );
    let only_calls = Whole::of([Event::ToolCall { index: 0, id: "x".into(), name: "f".into(), signature: None }]);
    assert_eq!(message(&only_calls.parts, false)["content"], Value::Null);
    assert_eq!(message(&[], false), json!({ "role": "assistant", "content": "", "refusal": null }));
    assert_eq!(message(&[Part::Refusal("no".to_owned())], false)["refusal"], "no");
}
