//! Every provider's transcripts as clients of the other dialects get them, read back by the client's own dialect.

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokens::Family;

use super::golden::{cut, read_events};
use super::*;
use crate::Inbound;
use crate::hub::Part;
use crate::usage::{Lacks, Usage};
use openai::{Outgoing, OutputBound};

const CHAT: [&str; 10] = [
    include_str!("openai/golden/openai.sse"),
    include_str!("openai/golden/deepseek.sse"),
    include_str!("openai/golden/mistral.sse"),
    include_str!("openai/golden/openrouter.sse"),
    include_str!("openai/golden/groq.sse"),
    include_str!("openai/golden/azure.tools.sse"),
    include_str!("openai/golden/deepseek.tools.sse"),
    include_str!("openai/golden/groq.tools.sse"),
    include_str!("openai/golden/xai.tools.sse"),
    include_str!("openai/golden/llamacpp.sse"),
];
const MESSAGES: [&str; 5] = [
    include_str!("anthropic/golden/text.sse"),
    include_str!("anthropic/golden/tools.sse"),
    include_str!("anthropic/golden/reasoning.sse"),
    include_str!("anthropic/golden/cached.sse"),
    include_str!("anthropic/golden/stopped.sse"),
];
const GEMINI: [&str; 5] = [
    include_str!("gemini/golden/text.sse"),
    include_str!("gemini/golden/cached.sse"),
    include_str!("gemini/golden/refused.sse"),
    include_str!("gemini/golden/blocked.sse"),
    include_str!("gemini/golden/tools.sse"),
];
const OLLAMA: [&str; 3] = [
    include_str!("ollama/golden/text.ndjson"),
    include_str!("ollama/golden/tools.ndjson"),
    include_str!("ollama/golden/reasoning.ndjson"),
];

fn rules(bound: Option<OutputBound>) -> SpliceRules {
    let member = Some(("ragmux", "{\"sources\":[]}".to_owned()));
    SpliceRules { bound, member, ..golden::rules() }
}

fn through(upstream: UpstreamDialect, client: ClientDialect, rules: SpliceRules, pieces: &[&[u8]]) -> String {
    let (mut tap, mut out) = (upstream.tap(client, rules, None), BytesMut::new());
    for piece in pieces {
        tap.push(piece, &mut out).unwrap();
    }
    tap.finish(&mut out).unwrap();
    assert!(tap.is_complete());
    String::from_utf8(out.to_vec()).unwrap()
}

fn reader(upstream: UpstreamDialect) -> Box<dyn Reader> {
    match upstream {
        UpstreamDialect::Chat => Box::new(ChatReader::new(None)),
        UpstreamDialect::Messages => Box::new(MessageReader::new(None)),
        UpstreamDialect::Gemini => Box::new(GeminiReader::new(None)),
        UpstreamDialect::Responses => Box::new(responses::ResponseReader::new(None)),
        UpstreamDialect::Ollama => Box::new(OllamaReader::new(None)),
        UpstreamDialect::Completions => unreachable!("nothing is translated from there"),
    }
}

/// What a stream says, by a reader of its dialect.
fn read(upstream: UpstreamDialect, text: &str) -> Whole {
    if upstream == UpstreamDialect::Ollama {
        let (mut reader, mut events) = (reader(upstream), Vec::new());
        for line in text.lines() {
            reader.read(None, line.as_bytes(), &mut events).unwrap();
        }
        return Whole::of(events);
    }
    let mut reader = reader(upstream);
    // Our own member is an event of its own, which other readers pass over.
    let (whole, ended) = read_events(&mut *reader, text);
    ended.unwrap();
    assert!(reader.is_over() || reader.is_complete());
    whole
}

/// The parts that the dialect of both sides has, in an order that both can keep.
fn said(whole: &Whole) -> Vec<Part> {
    let mut parts = whole.parts.clone();
    parts.retain(|part| !matches!(part, Part::Reasoning { text, signature: None } if text.is_empty()));
    parts
}

fn to_responses() -> impl Iterator<Item = (UpstreamDialect, ClientDialect, UpstreamDialect, &'static str)> {
    let of_chat = CHAT.iter().map(|text| (UpstreamDialect::Chat, *text));
    let of_gemini = GEMINI.iter().map(|text| (UpstreamDialect::Gemini, *text));
    let all = of_chat.chain(MESSAGES.iter().map(|text| (UpstreamDialect::Messages, *text))).chain(of_gemini);
    all.map(|(upstream, text)| (upstream, ClientDialect::Responses, UpstreamDialect::Responses, text))
}

#[test]
fn a_translated_stream_says_what_the_provider_said() {
    let cases = CHAT
        .iter()
        .map(|text| (UpstreamDialect::Chat, ClientDialect::Messages, UpstreamDialect::Messages, *text))
        .chain(GEMINI.iter().map(|text| (UpstreamDialect::Gemini, ClientDialect::Chat, UpstreamDialect::Chat, *text)))
        .chain(OLLAMA.iter().map(|text| (UpstreamDialect::Ollama, ClientDialect::Chat, UpstreamDialect::Chat, *text)))
        .chain(
            // A call's signature is a thought of its own there.
            GEMINI[..4]
                .iter()
                .map(|text| (UpstreamDialect::Gemini, ClientDialect::Messages, UpstreamDialect::Messages, *text)),
        )
        .chain(
            MESSAGES.iter().map(|text| (UpstreamDialect::Messages, ClientDialect::Chat, UpstreamDialect::Chat, *text)),
        )
        .chain(to_responses());
    for (upstream, client, back, text) in cases {
        let (given, got) = (read(upstream, text), through(upstream, client, rules(None), &[text.as_bytes()]));
        let got = read(back, &got);
        assert_eq!(said(&got), said(&given), "{text}");
        // What is not known has a figure on the wire all the same.
        let used = |whole: &Whole| whole.usage.map(|usage| Usage { lacks: Lacks::Nothing, cost: None, ..usage });
        assert_eq!(used(&got), used(&given), "{text}");
        let reason = |whole: &Whole| whole.finish.as_ref().map(Finish::as_openai);
        assert_eq!(reason(&got), reason(&given), "{text}");
        assert_eq!(got.model.as_deref(), Some("asked"));
    }
}

fn texts(part: &Part) -> Vec<&str> {
    match part {
        Part::RedactedReasoning(_) => Vec::new(),
        Part::Reasoning { text, .. } | Part::Text(text) | Part::Refusal(text) => vec![text],
        // How a dialect says that there are none.
        Part::ToolCall { name, arguments, .. } if arguments == "{}" => vec![name],
        Part::ToolCall { name, arguments, .. } => vec![name, arguments],
    }
}

#[test]
fn a_translated_stream_keeps_its_bound_and_ends_well() {
    for (upstream, client, back, text) in [
        (UpstreamDialect::Chat, ClientDialect::Messages, UpstreamDialect::Messages, CHAT[0]),
        (UpstreamDialect::Messages, ClientDialect::Chat, UpstreamDialect::Chat, MESSAGES[1]),
    ]
    .into_iter()
    .chain(to_responses())
    {
        let given = read(upstream, text);
        for tokens in 0..12 {
            let bound = OutputBound { field: "max_tokens", tokens, family: Family::Estimated, prompt_tokens: 3 };
            let got = read(back, &through(upstream, client, rules(Some(bound)), &[text.as_bytes()]));
            let counted: usize =
                got.parts.iter().flat_map(texts).map(|text| tokens::count(Family::Estimated, text)).sum();
            assert!(counted as u64 <= tokens, "{tokens}: {counted}");
            // Some say less than that, and are not cut.
            let said: usize =
                given.parts.iter().flat_map(texts).map(|text| tokens::count(Family::Estimated, text)).sum();
            assert!(got.finish == Some(Finish::Length) || said as u64 <= tokens, "{tokens}: {said}");
        }
    }
}

#[test]
fn a_stream_that_breaks_off_is_no_clean_end_in_any_dialect() {
    for (upstream, client, text) in [
        (UpstreamDialect::Chat, ClientDialect::Messages, CHAT[1]),
        (UpstreamDialect::Messages, ClientDialect::Chat, MESSAGES[0]),
        (UpstreamDialect::Messages, ClientDialect::Responses, MESSAGES[0]),
        (UpstreamDialect::Chat, ClientDialect::Responses, CHAT[0]),
    ] {
        let (mut tap, mut out) = (upstream.tap(client, rules(None), None), BytesMut::new());
        tap.push(&text.as_bytes()[..text.len() / 2], &mut out).unwrap();
        assert!(matches!(tap.finish(&mut out), Err(UpstreamError::Truncated)));
        let told = Told { status: 502, kind: "upstream_error", code: None, message: "it broke off" };
        tap.fail(&told, &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.contains("it broke off") && !text.contains("[DONE]") && !text.contains("message_stop"));
        assert!(!text.contains("response.completed"));
    }
}

#[test]
fn a_request_is_put_to_a_provider_of_another_dialect_with_our_texts() {
    let outgoing = Outgoing {
        model: "real",
        public_model: "asked",
        context: Some("CONTEXT"),
        project_prompt: Some("RULES"),
        ..Outgoing::default()
    };
    let chat = json!({ "model": "asked", "n": 2, "stream": true, "messages": [
        { "role": "system", "content": "own" }, { "role": "user", "content": "q" }] });
    let chat = chat.to_string();
    let inbound = Inbound::parse(ClientDialect::Chat, chat.as_bytes()).unwrap();
    let call = inbound.call(ProviderType::Anthropic, &outgoing).unwrap();
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(body["system"], "CONTEXT\n\nRULES\n\nown");
    assert_eq!(
        (&body["model"], &body["messages"][0]["content"], &body["stream"]),
        (&json!("real"), &json!("q"), &json!(true))
    );
    assert_eq!((call.dropped.as_slice(), call.rules.strip_usage), (&["n".to_owned()][..], true));

    let messages = json!({ "model": "asked", "max_tokens": 9, "top_k": 3, "system": "own", "messages": [
        { "role": "user", "content": "q" }] });
    let messages = messages.to_string();
    let inbound = Inbound::parse(ClientDialect::Messages, messages.as_bytes()).unwrap();
    let call = inbound.call(ProviderType::OpenAi, &outgoing).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&call.body).unwrap(),
        json!({ "model": "real", "max_completion_tokens": 9, "messages": [
            { "role": "system", "content": "CONTEXT\n\nRULES\n\nown" }, { "role": "user", "content": "q" }] })
    );
    assert_eq!(call.dropped, ["top_k"]);
    // The same dialect on both sides is the client's own bytes.
    let call = inbound.call(ProviderType::Anthropic, &Outgoing { model: "asked", ..Outgoing::default() }).unwrap();
    assert_eq!(call.body, messages);
}

/// An answer of OpenRouter's with three signed thoughts and one that is encrypted, and the details it has of them.
fn signed_thoughts() -> (String, Value) {
    let text = |text: &str, signature: &str, index: u8| json!({ "type": "reasoning.text", "text": text, "signature": signature, "format": "anthropic-claude-v1", "index": index });
    let dark = json!({ "type": "reasoning.encrypted", "data": "R", "format": "anthropic-claude-v1", "index": 1 });
    let details = json!([text("first", "S1", 0), dark, text("second", "S2", 2), text("", "S3", 3)]);
    let call = json!({ "id": "toolu_1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let message = json!({ "role": "assistant", "content": "so", "reasoning": "firstsecond", "reasoning_details": details,
        "tool_calls": [call] });
    let body = json!({ "id": "gen-1", "model": "m", "choices": [{ "index": 0, "message": message, "finish_reason": "tool_calls" }] });
    (body.to_string(), details)
}

#[test]
fn thoughts_go_back_to_their_provider_apart_and_as_they_came() {
    let (answer, details) = signed_thoughts();
    let body = bytes::Bytes::from(answer);
    let parameters = json!({ "type": "object" });
    for client in [ClientDialect::Messages, ClientDialect::Responses] {
        let told = UpstreamDialect::Chat.answer(client, &body, &rules(None), None).unwrap();
        let told: Value = serde_json::from_slice(&told.body).unwrap();
        let mut said = vec![json!({ "role": "user", "content": "q" })];
        let request = if client == ClientDialect::Messages {
            let result = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": "r" });
            said.push(json!({ "role": "assistant", "content": told["content"] }));
            said.push(json!({ "role": "user", "content": [result] }));
            json!({ "max_tokens": 9, "messages": said, "tools": [{ "name": "f", "input_schema": parameters }] })
        } else {
            said.extend(told["output"].as_array().unwrap().iter().cloned());
            said.push(json!({ "type": "function_call_output", "call_id": "toolu_1", "output": "r" }));
            json!({ "input": said, "tools": [{ "type": "function", "name": "f", "parameters": parameters }] })
        };
        let request = request.to_string();
        let outgoing = Outgoing { model: "anthropic/claude", ..Outgoing::default() };
        let inbound = Inbound::parse(client, request.as_bytes()).unwrap();
        let call = inbound.call(ProviderType::OpenRouter, &outgoing).unwrap();
        let sent: Value = serde_json::from_slice(&call.body).unwrap();
        assert_eq!(sent["messages"][1]["reasoning_details"], details, "{client:?}");
        assert_eq!(call.dropped, Vec::<String>::new());
    }
}

#[test]
fn streamed_thoughts_are_told_apart_in_every_dialect() {
    let (answer, details) = signed_thoughts();
    let chunk = |delta: &Value, finish: Option<&str>| {
        let chunk = json!({ "id": "gen-1", "model": "m", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
        format!("data: {chunk}\n\n")
    };
    let details = details.as_array().unwrap();
    let deltas = details
        .iter()
        .map(|detail| chunk(&json!({ "reasoning": detail["text"], "reasoning_details": [detail] }), None));
    let stream = format!("{}{}data: [DONE]\n\n", deltas.collect::<String>(), chunk(&json!({}), Some("stop")));
    let expected = openai::read_whole(&bytes::Bytes::from(answer), None).unwrap();
    let is_thought = |part: &&Part| matches!(part, Part::Reasoning { .. } | Part::RedactedReasoning(_));
    let expected: Vec<&Part> = expected.parts.iter().filter(is_thought).collect();
    let to_messages = through(UpstreamDialect::Chat, ClientDialect::Messages, rules(None), &[stream.as_bytes()]);
    let got = read(UpstreamDialect::Messages, &to_messages);
    assert_eq!(got.parts.iter().collect::<Vec<_>>(), expected);
    let to_responses = through(UpstreamDialect::Chat, ClientDialect::Responses, rules(None), &[stream.as_bytes()]);
    let last = to_responses.lines().rfind(|line| line.contains("response.completed") && line.starts_with("data: "));
    let last: Value = serde_json::from_str(last.unwrap().strip_prefix("data: ").unwrap()).unwrap();
    let seals: Vec<&str> = last["response"]["output"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item["encrypted_content"].as_str())
        .collect();
    assert_eq!(
        seals,
        [
            "ragmux-signed:anthropic:S1",
            "ragmux-redacted:anthropic:R",
            "ragmux-signed:anthropic:S2",
            "ragmux-signed:anthropic:S3"
        ]
    );
}

/// What is listed as left out of a request for a provider, in order of the alphabet.
fn listed(client: ClientDialect, request: &Value, provider: ProviderType) -> Vec<String> {
    let request = request.to_string();
    let inbound = Inbound::parse(client, request.as_bytes()).unwrap();
    let outgoing = Outgoing { model: "real", ..Outgoing::default() };
    let mut dropped = inbound.call(provider, &outgoing).unwrap().dropped;
    dropped.sort();
    dropped
}

#[test]
fn what_has_no_place_is_named_as_the_client_wrote_it() {
    use ProviderType as P;
    let parameters = json!({ "type": "object", "additionalProperties": false });
    let messages = json!({
        "max_tokens": 9, "metadata": { "user_id": "u" }, "top_k": 3, "stop_sequences": ["a", "b", "c", "d", "e", " "],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": {} } },
        "tools": [{ "name": "f", "input_schema": parameters, "strict": true, "cache_control": { "type": "ephemeral" } }],
        "messages": [{ "role": "user", "content": "q" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "redacted_thinking", "data": "d" },
                { "type": "tool_use", "id": "1", "name": "f", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "1", "content": "r", "is_error": true }] }],
    });
    let (thinking, redacted) = ("messages[].content[].thinking", "messages[].content[].redacted_thinking");
    let (failure, signature) = ("messages[].content[].is_error", "messages[].content[].signature");
    let one = "tool_choice.disable_parallel_tool_use";
    for (provider, names) in [
        (
            P::OpenAi,
            &["cache_control", failure, redacted, thinking, "output_config.effort", "stop_sequences", "top_k"][..],
        ),
        (
            P::DeepSeek,
            &[
                "cache_control",
                failure,
                redacted,
                signature,
                "metadata.user_id",
                "output_config.format.schema",
                "top_k",
            ],
        ),
        (
            P::Gemini,
            &[
                "cache_control",
                redacted,
                signature,
                "metadata.user_id",
                "output_config.format",
                "stop_sequences",
                one,
                "tools[].strict",
            ],
        ),
        (
            P::Ollama,
            &[
                "cache_control",
                failure,
                redacted,
                signature,
                "metadata.user_id",
                "output_config.effort",
                "tool_choice",
                one,
                "tools[].strict",
            ],
        ),
    ] {
        assert_eq!(listed(ClientDialect::Messages, &messages, provider), names, "{provider:?}");
    }
    let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "low" });
    let responses = json!({
        "safety_identifier": "u", "reasoning": { "effort": "low" }, "tool_choice": "required", "parallel_tool_calls": false,
        "text": { "format": { "type": "json_schema", "name": "n", "description": "d", "schema": {}, "strict": false } },
        "tools": [{ "type": "function", "name": "f", "parameters": parameters, "strict": true }],
        "input": [{ "role": "user", "content": [image] },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "hm" }], "encrypted_content": "ragmux-signed:gemini:s" },
            { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}",
                "extra_content": { "google": { "thought_signature": "ragmux-signed:gemini:g" } } },
            { "type": "function_call_output", "call_id": "1", "output": "r" }],
    });
    for (provider, names) in [
        (
            P::Anthropic,
            &[
                "input[].content[].detail",
                "input[].extra_content",
                "input[].summary",
                "reasoning.effort",
                "text.format.description",
                "text.format.name",
                "text.format.strict",
            ][..],
        ),
        (P::Mistral, &["input[].summary", "reasoning.effort", "safety_identifier"]),
        (
            P::Ollama,
            &[
                "input[].content[].detail",
                "input[].encrypted_content",
                "parallel_tool_calls",
                "reasoning.effort",
                "safety_identifier",
                "tool_choice",
                "tools[].strict",
            ],
        ),
    ] {
        assert_eq!(listed(ClientDialect::Responses, &responses, provider), names, "{provider:?}");
    }
    let chat = json!({
        "safety_identifier": "u", "response_format": { "type": "json_object" }, "functions": [{ "name": "f", "strict": true }],
        "function_call": { "name": "f" }, "messages": [{ "role": "user", "content": "q" },
            { "role": "assistant", "content": "a", "reasoning": "hm" }, { "role": "user", "content": "on" }],
    });
    for (provider, names) in [
        (P::Anthropic, &["messages[].reasoning", "response_format"][..]),
        (P::Gemini, &["functions[].strict", "response_format", "safety_identifier"]),
        (P::Ollama, &["function_call", "functions[].strict", "safety_identifier"]),
    ] {
        assert_eq!(listed(ClientDialect::Chat, &chat, provider), names, "{provider:?}");
    }
}

#[test]
fn what_cannot_be_put_to_a_provider_is_named_as_the_client_wrote_it() {
    let image = "data:image/tiff;base64,QUJD";
    let chat = json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": image } }] }] });
    let responses =
        json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": image }] }] });
    for (client, request, named) in
        [(ClientDialect::Chat, chat, "messages"), (ClientDialect::Responses, responses, "input")]
    {
        let request = request.to_string();
        let inbound = Inbound::parse(client, request.as_bytes()).unwrap();
        let refused = inbound.call(ProviderType::Anthropic, &Outgoing::default()).unwrap_err();
        assert_eq!(refused.param(), Some(named));
    }
}

proptest! {
    #[test]
    fn any_chunking_is_translated_the_same(which in 0_usize..10, places in proptest::collection::vec(any::<usize>(), 0..10)) {
        for (upstream, client, text) in [
            (UpstreamDialect::Chat, ClientDialect::Messages, CHAT[which]),
            (UpstreamDialect::Messages, ClientDialect::Chat, MESSAGES[which % 5]),
            (UpstreamDialect::Gemini, ClientDialect::Chat, GEMINI[which % 5]),
            (UpstreamDialect::Gemini, ClientDialect::Messages, GEMINI[which % 5]),
            (UpstreamDialect::Messages, ClientDialect::Responses, MESSAGES[which % 5]),
            (UpstreamDialect::Chat, ClientDialect::Responses, CHAT[which]),
            (UpstreamDialect::Ollama, ClientDialect::Chat, OLLAMA[which % 3]),
            (UpstreamDialect::Ollama, ClientDialect::Messages, OLLAMA[which % 3]),
        ] {
            let bytes = text.as_bytes();
            let pieces = cut(bytes, &places);
            // `created` is read from the clock when the stream begins.
            // Ids are made up where the provider gives none.
            let undated = |text: String| -> Vec<String> {
                let text = match text.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()) {
                    Some(id) if upstream == UpstreamDialect::Ollama => text.replace(id, "id"),
                    _ => text,
                };
                text.lines().map(|line| match line.split_once("\"created\":").or_else(|| line.split_once("\"created_at\":")) {
                    Some((before, after)) => format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit())),
                    None => line.to_owned(),
                }).collect()
            };
            let whole = through(upstream, client, rules(None), &[bytes]);
            prop_assert_eq!(undated(through(upstream, client, rules(None), &pieces)), undated(whole));
        }
    }
}
