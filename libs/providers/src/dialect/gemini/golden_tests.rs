//! Requests and answers as the API's reference shows them.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

use super::*;
use crate::dialect::golden::{
    asks, every_setting, inline, picture, raw, read_events, result, says, text, tool, used, words,
};
use crate::dialect::openai::{Outgoing, OutputBound, RequestError};
use crate::error::UpstreamError;
use crate::hub::{
    Block, Conversation, Effort, Event, Finish, Format, ImageSource, Part, Reader, Reasoning, Role, Signer, Tool,
    ToolChoice, Whole,
};
use crate::images::{FetchedImages, Image};
use crate::usage::Usage;

fn read_stream(transcript: &str) -> (Whole, Result<(), UpstreamError>, GeminiReader) {
    let mut reader = GeminiReader::new(None);
    let (whole, ended) = read_events(&mut reader, transcript);
    (whole, ended, reader)
}

fn call(id: &str, name: &str, arguments: &str, signature: Option<&str>) -> Part {
    let [id, name, arguments] = [id, name, arguments].map(str::to_owned);
    Part::ToolCall { id, name, arguments, signature: signature.map(|own| format!("ragmux-signed:gemini:{own}")) }
}

#[test]
fn an_answer_reads_the_same_streamed_and_whole() {
    let thought = |text: &str, signature: Option<&str>| Part::Reasoning {
        text: text.to_owned(),
        signature: signature.map(|own| format!("ragmux-signed:gemini:{own}")),
    };
    let texts = |own: &str| Part::Reasoning {
        text: String::new(),
        signature: Some(format!("ragmux-signed:gemini-text:{own}")),
    };
    for (stream, whole, parts, finish, usage) in [
        (
            include_str!("golden/text.sse"),
            include_str!("golden/text.json"),
            vec![text("The lamp is lit \u{2014} \u{e0} bient\u{f4}t.")],
            Finish::Stop,
            used(14, 11),
        ),
        (
            include_str!("golden/tools.sse"),
            include_str!("golden/tools.json"),
            vec![
                text("Looking at both."),
                call("fc-tide", "tide_table", r#"{"harbour": "Saint-Malo"}"#, Some("dGlkZQ==")),
                call("fc-now", "clock", "{}", None),
            ],
            Finish::ToolCalls,
            used(412, 63),
        ),
        (
            include_str!("golden/reasoning.sse"),
            include_str!("golden/reasoning.json"),
            vec![thought("Nine times seven.", None), text("63"), texts("c2lnbmVk")],
            Finish::Stop,
            Usage { reasoning_tokens: 19, ..used(30, 25) },
        ),
        (
            include_str!("golden/cached.sse"),
            include_str!("golden/cached.json"),
            vec![text(r#"{"colour":"red"}"#)],
            Finish::Length,
            Usage { cached_tokens: 200, ..used(250, 500) },
        ),
        (
            include_str!("golden/refused.sse"),
            include_str!("golden/refused.json"),
            vec![text("I would")],
            Finish::ContentFilter,
            used(9, 2),
        ),
        (
            include_str!("golden/blocked.sse"),
            include_str!("golden/blocked.json"),
            vec![],
            Finish::ContentFilter,
            used(9, 0),
        ),
    ] {
        let (streamed, ended, reader) = read_stream(stream);
        ended.unwrap();
        assert!(reader.is_complete() && !reader.is_over());
        assert_eq!(streamed.parts, parts);
        assert_eq!((streamed.finish.as_ref(), streamed.usage), (Some(&finish), Some(usage)));
        let whole = read_whole(&Bytes::from_static(whole.as_bytes()), None).unwrap();
        assert_eq!((&whole.id, &whole.model), (&streamed.id, &streamed.model));
        assert_eq!((whole.parts, whole.finish, whole.usage), (parts, Some(finish), Some(usage)));
    }
}

#[test]
fn a_stream_is_whole_with_its_reason_and_not_before() {
    let stream = include_str!("golden/text.sse");
    let (begun, ended, reader) = read_stream(stream.split_at(stream.rfind("data:").unwrap()).0);
    ended.unwrap();
    // Figures of a part of the answer are not those of the answer.
    assert_eq!((begun.usage, begun.finish, reader.is_complete()), (None, None, false));
}

#[test]
fn calls_without_an_id_get_one_of_their_own() {
    let event = |name: &str| {
        json!({ "candidates": [{ "content": { "parts": [{ "functionCall": { "name": name, "args": {} } }] } }] })
            .to_string()
    };
    let (first, second) = (event("a"), event("b"));
    let ids = || {
        let mut reader = GeminiReader::new(None);
        let mut events = Vec::new();
        reader.read(None, first.as_bytes(), &mut events).unwrap();
        reader.read(None, second.as_bytes(), &mut events).unwrap();
        let id = |event: &Event<'_>| match event {
            Event::ToolCall { index, id, .. } => Some((*index, id.to_string())),
            _ => None,
        };
        events.iter().filter_map(id).collect::<Vec<_>>()
    };
    let (one, other) = (ids(), ids());
    assert_eq!(one.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1]);
    let mut all: Vec<_> = one.into_iter().chain(other).map(|(_, id)| id).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4, "{all:?}");
}

#[test]
fn reasons_to_end_are_told() {
    for (reason, finish) in [
        ("STOP", Some(Finish::Stop)),
        ("MAX_TOKENS", Some(Finish::Length)),
        ("RECITATION", Some(Finish::ContentFilter)),
        ("SPII", Some(Finish::ContentFilter)),
        ("SOMETHING_NEW", Some(Finish::Stop)),
        ("MALFORMED_FUNCTION_CALL", None),
        ("UNEXPECTED_TOOL_CALL", None),
    ] {
        let body = json!({ "candidates": [{ "finishReason": reason }] }).to_string();
        let read = read_whole(&Bytes::from(body), None);
        match finish {
            Some(finish) => assert_eq!(read.unwrap().finish, Some(finish), "{reason}"),
            None => assert_eq!(read.unwrap_err().status(), 502, "{reason}"),
        }
    }
    for body in ["{}", "[]", "7", r#"{"candidates":[]}"#, r#"{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}"#] {
        assert!(read_whole(&Bytes::from_static(body.as_bytes()), None).is_err(), "{body}");
    }
}

#[test]
fn an_error_in_a_stream_has_the_status_of_its_code() {
    let (said, ended, reader) = read_stream(include_str!("golden/overloaded.sse"));
    assert_eq!((said.parts, reader.is_complete()), (vec![text("So far")], false));
    let error = ended.unwrap_err();
    assert_eq!((error.status(), error.message().as_str()), (503, "The model is overloaded. Please try again later."));
    let listed = br#"[{"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}]"#;
    let mut events = Vec::new();
    let error = GeminiReader::new(None).read(None, listed, &mut events).unwrap_err();
    assert_eq!((error.status(), error.code()), (429, Some("RESOURCE_EXHAUSTED")));
    assert_eq!(read_whole(&Bytes::from_static(listed), None).unwrap_err().status(), 429);
    assert!(GeminiReader::new(None).read(None, b"[DONE]", &mut events).is_err());
}

#[test]
fn a_wait_in_the_header_counts_and_a_key_stays_here() {
    let body = |message: &str| json!({ "error": { "code": 429, "message": message, "status": "X" } }).to_string();
    let header = HeaderMap::from_iter([(http::header::RETRY_AFTER, "7".parse().unwrap())]);
    let error = refusal(429, &header, body("slow down").as_bytes(), None);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    // From something in front of the API.
    assert_eq!(refusal(502, &HeaderMap::new(), b"<html>", None).status(), 502);
    let key = ["AIza", "SyD-000000000000000000000000000000000"].concat();
    let error = refusal(400, &HeaderMap::new(), body(&format!("bad key {key}")).as_bytes(), Some(&key));
    assert!(!error.message().contains(&key));
}

fn outgoing(model: &str) -> Outgoing<'_> {
    Outgoing { model, public_model: "asked", ..Outgoing::default() }
}

#[track_caller]
fn sends(conversation: &Conversation<'_>, outgoing: &Outgoing<'_>, golden: &str, dropped: &[&str]) {
    let mut without = Vec::new();
    let sent = body(conversation, outgoing, &mut without).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), serde_json::from_str::<Value>(golden).unwrap());
    assert_eq!(words(&without), dropped);
    assert_eq!(sent, body(conversation, outgoing, &mut without).unwrap());
}

#[test]
fn a_question_and_every_setting() {
    let plain = outgoing("gemini-2.5-flash");
    sends(&asks([says("Light the lamp.")]), &plain, include_str!("golden/plain.request.json"), &[]);
    let mut conversation = Conversation {
        system: vec![says("Be brief."), says(""), says("Be kind.")],
        output_limit: Some(300),
        stop: ["1", "2", "3", "4", "5", "6"].map(Cow::Borrowed).to_vec(),
        settings: every_setting(),
        user: Some("u-17".into()),
        format: Some(Format::Json),
        stream: true,
        ..asks([says("Light the lamp.")])
    };
    sends(
        &conversation,
        &plain,
        include_str!("golden/settings.request.json"),
        &["frequency_penalty", "presence_penalty", "stop", "user"],
    );
    let bound = OutputBound { field: "max_tokens", tokens: 20, family: tokens::Family::Estimated, prompt_tokens: 0 };
    let bounded = Outgoing { output_bound: Some(bound), ..plain };
    for (asked, sent) in [(Some(300), 20), (Some(7), 7), (None, 20)] {
        conversation.output_limit = asked;
        let body: Value = serde_json::from_slice(&body(&conversation, &bounded, &mut Vec::new()).unwrap()).unwrap();
        assert_eq!(body["generationConfig"]["maxOutputTokens"], sent);
    }
    let nothing = Conversation::default();
    assert!(matches!(body(&nothing, &plain, &mut Vec::new()), Err(RequestError::Invalid { .. })));
}

fn called<'a>(id: &'a str, name: &'a str, arguments: &'a str, signature: Option<&'a str>) -> Block<'a> {
    let signature = signature.map(|own| Signer::Gemini.signed(own.into()));
    Block::ToolCall { id: id.into(), name: name.into(), arguments: arguments.into(), signature }
}

#[test]
fn tools_calls_and_results() {
    let mut conversation = asks([says("Tide?")]);
    conversation.say(
        Role::Assistant,
        [
            Block::Reasoning { text: "A table.".into(), signature: Some("ragmux-signed:gemini:c2ln".into()) },
            Block::RedactedReasoning { data: "ZGF0YQ==".into() },
            called("call_1", "tide_table", r#"{"harbour": "Saint-Malo"}"#, None),
            called("call_2", "clock", "", Some("b3du")),
            called("call_3", "clock", "[not json", None),
        ],
    );
    let picture = picture(inline("image/png", "iVBORw0KGgo="), None);
    conversation.say(
        Role::User,
        [
            says("And now?"),
            result("call_1", vec![says(r#"{"high": "at nine"}"#)], false),
            result("call_2", vec![says("late"), picture], true),
            result("call_3", vec![says("[12]"), says("noon")], false),
        ],
    );
    let schema = r#"{"type":"object","properties":{"harbour":{"type":"string"}},"required":["harbour"],"additionalProperties":false}"#;
    conversation.tools = vec![
        Tool {
            description: Some("When the tide is high.".into()),
            strict: Some(true),
            ..tool("tide_table", Some(schema))
        },
        tool("clock", Some(r#"{"type":"object","properties":{}}"#)),
    ];
    conversation.tool_choice = Some(ToolChoice::Named("clock".into()));
    conversation.parallel_tools = Some(false);
    let plain = outgoing("gemini-2.5-flash");
    let dropped = ["reasoning", "strict", "parallel_tool_calls"];
    sends(&conversation, &plain, include_str!("golden/tools.request.json"), &dropped);
    let sent = |conversation: &Conversation<'_>, outgoing: &Outgoing<'_>| -> Value {
        serde_json::from_slice(&body(conversation, outgoing, &mut Vec::new()).unwrap()).unwrap()
    };
    for (choice, mode) in [
        (Some(ToolChoice::Auto), json!("AUTO")),
        (Some(ToolChoice::None), json!("NONE")),
        (Some(ToolChoice::Required), json!("ANY")),
        (None, Value::Null),
    ] {
        conversation.tool_choice = choice;
        assert_eq!(sent(&conversation, &plain)["toolConfig"]["functionCallingConfig"]["mode"], mode);
    }
    conversation.turns[1].blocks.truncate(2);
    conversation.say(Role::User, [result("call_9", vec![], false)]);
    assert!(body(&conversation, &plain, &mut Vec::new()).is_err());
}

#[test]
fn signatures_go_back_to_where_they_came_from() {
    let sent = |model: &str, blocks: Vec<Block<'_>>| -> Value {
        let mut conversation = asks([says("q")]);
        conversation.say(Role::Assistant, blocks);
        let body = body(&conversation, &outgoing(model), &mut Vec::new()).unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()["contents"][1]["parts"].take()
    };
    let thought = |text: &'static str| Block::Reasoning {
        text: text.into(),
        signature: Some("ragmux-signed:gemini:c2ln".into()),
    };
    let call =
        |signature| json!({ "functionCall": { "id": "1", "name": "f", "args": {} }, "thoughtSignature": signature });
    let old = "gemini-2.5-flash";
    assert_eq!(sent(old, vec![thought(""), called("1", "f", "", None)]), json!([call("c2ln")]));
    assert_eq!(sent(old, vec![thought(""), says("a")]), json!([{ "text": "a", "thoughtSignature": "c2ln" }]));
    assert_eq!(
        sent(old, vec![says("a"), thought("")]),
        json!([{ "text": "a" }, { "text": "", "thoughtSignature": "c2ln" }])
    );
    assert_eq!(
        sent(old, vec![thought("t"), says("a")]),
        json!([{ "text": "t", "thought": true }, { "text": "a", "thoughtSignature": "c2ln" }])
    );
    // A text's own stays with it, wherever a client keeps it, and a thought's before a call that has one of its own.
    let texts = || Block::Reasoning { text: "".into(), signature: Some("ragmux-signed:gemini-text:dGV4dA==".into()) };
    let own = |id: &str, signature| json!({ "functionCall": { "id": id, "name": "f", "args": {} }, "thoughtSignature": signature });
    let unsigned = |id: &str| json!({ "functionCall": { "id": id, "name": "f", "args": {} } });
    let signed_text = json!({ "text": "a", "thoughtSignature": "dGV4dA==" });
    assert_eq!(
        sent(old, vec![says("a"), texts(), called("1", "f", "", Some("b3du")), called("2", "f", "", None)]),
        json!([signed_text, own("1", "b3du"), unsigned("2")])
    );
    assert_eq!(
        sent(old, vec![says("a"), texts(), thought(""), called("1", "f", "", None), called("2", "f", "", None)]),
        json!([signed_text, own("1", "c2ln"), unsigned("2")])
    );
    assert_eq!(
        sent(old, vec![texts(), says("a"), called("1", "f", "", Some("b3du"))]),
        json!([signed_text, own("1", "b3du")])
    );
    assert_eq!(
        sent(old, vec![thought("t"), called("1", "f", "", Some("b3du")), called("2", "f", "", None)]),
        json!([{ "text": "t", "thought": true }, { "text": "", "thoughtSignature": "c2ln" }, own("1", "b3du"), unsigned("2")])
    );
    assert_eq!(sent(old, vec![texts()]), json!([{ "text": "", "thoughtSignature": "dGV4dA==" }]));
    let lost = || vec![called("1", "f", "{}", None), called("2", "f", "{}", None)];
    assert_eq!(sent(old, lost())[0].get("thoughtSignature"), None);
    let marked = sent("gemini-3-pro-preview", lost());
    assert_eq!(marked[0], call("skip_thought_signature_validator"));
    assert_eq!(marked[1].get("thoughtSignature"), None);
    assert_eq!(sent("gemini-3-pro-preview", vec![called("1", "f", "", Some("b3du"))]), json!([call("b3du")]));
}

#[test]
fn pictures_and_documents() {
    let far = |url: &'static str| ImageSource::Url(url.into());
    let conversation = asks([
        picture(inline("image/jpg", "iVBORw0KGgo="), Some("high")),
        picture(far("https://pictures.example/a"), None),
        picture(far("https://generativelanguage.googleapis.com/v1beta/files/abc"), None),
        Block::Document {
            media_type: "application/pdf".into(),
            data: "JVBERi0xLjc=".into(),
            name: Some("log.pdf".into()),
            cache: Some(raw(r#"{"type":"ephemeral"}"#)),
        },
        says("What is this?"),
    ]);
    let webp = Image { media_type: "image/webp".to_owned(), data: Bytes::from_static(b"light") };
    let images = FetchedImages::of([("https://pictures.example/a".to_owned(), webp)]);
    let with = Outgoing { images: Some(&images), ..outgoing("gemini-2.5-flash") };
    sends(&conversation, &with, include_str!("golden/vision.request.json"), &["detail", "cache_control"]);
    for refused in [inline("image/gif", "AAAA"), far("https://pictures.example/b")] {
        let conversation = asks([picture(refused.clone(), None)]);
        assert!(body(&conversation, &with, &mut Vec::new()).is_err(), "{refused:?}");
    }
    assert!(body(&asks([picture(far("https://pictures.example/a"), None)]), &outgoing("m"), &mut Vec::new()).is_err());
}

#[test]
fn an_answer_in_a_form_and_after_thought() {
    let schema = r#"{"type":"object","properties":{"shade":{"anyOf":[{"type":"string"},{"type":"null"}]},"colour":{"enum":["red","blue"]}},"required":["colour"],"additionalProperties":false}"#;
    let conversation = Conversation {
        format: Some(Format::Schema {
            name: "colour".into(),
            description: None,
            schema: raw(schema),
            strict: Some(true),
        }),
        reasoning: Some(Reasoning { name: "reasoning_effort", effort: Some(Effort::Low), budget: None }),
        ..asks([says("Which colour?")])
    };
    sends(&conversation, &outgoing("gemini-2.5-flash"), include_str!("golden/schema.request.json"), &[]);
    let mut dropped = Vec::new();
    body(&conversation, &outgoing("gemini-2.0-flash"), &mut dropped).unwrap();
    assert_eq!(words(&dropped), ["reasoning_effort"]);
}

#[test]
fn a_model_is_a_resource() {
    assert_eq!(path("gemini-2.5-flash", "generateContent"), "models/gemini-2.5-flash:generateContent");
    assert_eq!(path("tunedModels/mine", "generateContent"), "tunedModels/mine:generateContent");
}

#[test]
fn tools_and_a_form_go_together_where_the_model_takes_both() {
    let schema = r#"{"type":"object","properties":{"lit":{"type":"boolean"}}}"#;
    let mut conversation = Conversation {
        format: Some(Format::Schema { name: "lamp".into(), description: None, schema: raw(schema), strict: None }),
        tools: vec![tool("look", None)],
        ..asks([says("Is it lit?")])
    };
    let sent = |conversation: &Conversation<'_>, model| {
        let mut lost = Vec::new();
        let body = body(conversation, &outgoing(model), &mut lost).unwrap();
        (serde_json::from_slice::<Value>(&body).unwrap(), words(&lost))
    };
    let (both, dropped) = sent(&conversation, "gemini-3-flash-preview");
    assert_eq!((&both["generationConfig"]["responseMimeType"], dropped.len()), (&json!("application/json"), 0));
    assert!(both.get("tools").is_some() && both.get("systemInstruction").is_none());
    let (one, dropped) = sent(&conversation, "gemini-2.5-flash");
    assert_eq!((one.get("generationConfig"), dropped), (None, vec!["response_format".to_owned()]));
    let told = one["systemInstruction"]["parts"][0]["text"].as_str().unwrap();
    assert!(one.get("tools").is_some() && told.contains(schema));
    // Tools that may not be called anyway go first.
    conversation.tool_choice = Some(ToolChoice::None);
    let (one, dropped) = sent(&conversation, "gemini-2.5-flash");
    assert_eq!((one.get("tools"), one.get("toolConfig"), dropped.len()), (None, None, 0));
    assert_eq!(one["generationConfig"]["responseMimeType"], "application/json");
}
