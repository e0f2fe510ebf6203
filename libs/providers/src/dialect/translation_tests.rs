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
