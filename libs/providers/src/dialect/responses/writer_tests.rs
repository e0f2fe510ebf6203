use serde_json::{Value, json};

use super::*;
use crate::dialect::responses::ResponsesRequest;
use crate::usage::Usage;

fn writer() -> ResponseWriter {
    let body =
        br#"{"input":"a","instructions":"be \u006bind","temperature":0.5,"tools":[{"type":"function","name":"f"}],
        "text":{"format":{"type":"json_object"}},"metadata":{"team":"a"}}"#;
    let echo = ResponsesRequest::parse(body).unwrap().echo();
    ResponseWriter::new("asked".to_owned(), 7, Arc::new(echo))
}

/// The events of a text, with the checks that hold for all of them.
fn events(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    let read = |(number, event): (usize, &str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        if name.starts_with("response.") {
            assert_eq!(data["sequence_number"], number as u64);
        }
        data
    };
    text.split_terminator("\n\n").enumerate().map(read).collect()
}

fn written(given: &[Event<'_>]) -> Vec<Value> {
    let (mut writer, mut out) = (writer(), BytesMut::new());
    for event in given {
        writer.write(event, &mut out);
    }
    writer.end(None, &mut out);
    events(&out)
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
}

fn start() -> Event<'static> {
    Event::Start { id: Some("chatcmpl-1".into()), model: Some("real".into()) }
}

fn call(index: u64, id: &'static str) -> Event<'static> {
    Event::ToolCall { index, id: id.into(), name: "f".into(), signature: None }
}

fn arguments(index: u64, json: &'static str) -> Event<'static> {
    Event::Arguments { index, json: json.into() }
}

#[test]
fn a_text_is_told_by_the_grammar_of_the_api() {
    let usage =
        Usage { prompt_tokens: 9, completion_tokens: 4, cached_tokens: 2, reasoning_tokens: 1, ..Usage::default() };
    let events = written(&[
        start(),
        Event::Text("Hel".into()),
        Event::Text("lo".into()),
        Event::Finish(Finish::Stop),
        Event::Usage(usage),
    ]);
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let response = &events[0]["response"];
    assert_eq!((&response["id"], &response["model"]), (&json!("resp_chatcmpl-1"), &json!("asked")));
    assert_eq!((&response["status"], &response["output"]), (&json!("in_progress"), &json!([])));
    assert_eq!(response["usage"], Value::Null);
    let id = "msg_chatcmpl-1_0";
    assert_eq!(events[4]["item_id"], id);
    assert_eq!(
        events[4],
        json!({ "type": "response.output_text.delta", "sequence_number": 4, "item_id": id, "output_index": 0,
            "content_index": 0, "delta": "Hel", "logprobs": [] })
    );
    assert_eq!(events[6]["text"], "Hello");
    let part = json!({ "type": "output_text", "text": "Hello", "annotations": [], "logprobs": [] });
    assert_eq!(events[7]["part"], part);
    let message = json!({ "id": id, "type": "message", "status": "completed", "role": "assistant", "content": [part] });
    assert_eq!(events[8]["item"], message);
    let response = &events[9]["response"];
    assert_eq!((&response["status"], &response["output"]), (&json!("completed"), &json!([message])));
    assert_eq!(
        response["usage"],
        json!({ "input_tokens": 9, "input_tokens_details": { "cached_tokens": 2, "cache_write_tokens": 0 }, "output_tokens": 4,
            "output_tokens_details": { "reasoning_tokens": 1 }, "total_tokens": 13 })
    );
}

#[test]
fn an_answer_repeats_its_request() {
    let events = written(&[start()]);
    let response = &events[2]["response"];
    for (name, value) in [
        ("object", json!("response")),
        ("created_at", json!(7)),
        ("error", json!(null)),
        ("incomplete_details", json!(null)),
        ("instructions", json!("be kind")),
        ("metadata", json!({ "team": "a" })),
        ("parallel_tool_calls", json!(true)),
        ("temperature", json!(0.5)),
        ("top_p", json!(null)),
        ("tool_choice", json!("auto")),
        (
            "tools",
            json!([{ "type": "function", "name": "f", "description": null, "parameters": null, "strict": null }]),
        ),
        ("text", json!({ "format": { "type": "json_object" }, "verbosity": "medium" })),
        ("store", json!(false)),
        ("previous_response_id", json!(null)),
        ("truncation", json!("disabled")),
        ("background", json!(false)),
    ] {
        assert_eq!(response[name], value, "{name}");
    }
}

#[test]
fn thoughts_are_items_of_their_own() {
    let events = written(&[
        start(),
        Event::Reasoning("th".into()),
        Event::Reasoning("ink".into()),
        Event::ReasoningSignature("ragmux-signed:anthropic:si".into()),
        Event::ReasoningSignature("gn".into()),
        Event::RedactedReasoning("ragmux-redacted:anthropic:secret".into()),
        Event::Text("so".into()),
    ]);
    assert_eq!(
        kinds(&events)[2..],
        [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
            "output_item.added",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(
        output[0],
        json!({ "id": "rs_chatcmpl-1_0", "type": "reasoning", "summary": [{ "type": "summary_text", "text": "think" }],
            "encrypted_content": "ragmux-signed:anthropic:sign" })
    );
    assert_eq!(output[1]["encrypted_content"], "ragmux-redacted:anthropic:secret");
    assert_eq!((&output[2]["type"], &output[2]["id"]), (&json!("message"), &json!("msg_chatcmpl-1_2")));
}

#[test]
fn calls_keep_their_places_side_by_side() {
    let events = written(&[
        start(),
        Event::Text("wait".into()),
        call(0, "a"),
        call(1, "b"),
        arguments(1, "{\"x\":"),
        arguments(0, "{}"),
        arguments(1, "1}"),
        arguments(7, "{}"),
        call(2, "c"),
        arguments(2, "{\"half"),
        Event::Finish(Finish::Length),
    ]);
    let output = &events.last().unwrap()["response"]["output"];
    let calls: Vec<_> = output.as_array().unwrap()[1..]
        .iter()
        .map(|item| {
            (item["call_id"].as_str().unwrap(), item["arguments"].as_str().unwrap(), item["status"].as_str().unwrap())
        })
        .collect();
    assert_eq!(calls, [("a", "{}", "completed"), ("b", "{\"x\":1}", "completed"), ("c", "{\"half", "incomplete")]);
    for event in events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta") {
        let place = event["output_index"].as_u64().unwrap() as usize;
        assert_eq!(event["item_id"], output[place]["id"]);
    }
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"], json!({ "reason": "max_output_tokens" }));
}

#[test]
fn a_refusal_is_a_part_of_its_own() {
    let events = written(&[
        start(),
        Event::Text("well".into()),
        Event::Refusal("no".into()),
        Event::Finish(Finish::ContentFilter),
    ]);
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["incomplete_details"], json!({ "reason": "content_filter" }));
    let content = &response["output"][0]["content"];
    assert_eq!((&content[0]["text"], &content[1]), (&json!("well"), &json!({ "type": "refusal", "refusal": "no" })));
    let delta = events.iter().find(|event| event["type"] == "response.refusal.delta").unwrap();
    assert_eq!((&delta["content_index"], &delta["delta"]), (&json!(1), &json!("no")));
}

#[test]
fn a_failure_has_the_next_number_and_what_was_whole() {
    let (mut writer, mut out) = (writer(), BytesMut::new());
    for event in [start(), Event::Reasoning("hm".into()), Event::Text("so".into())] {
        writer.write(&event, &mut out);
    }
    writer.fail(&Told { status: 502, kind: "upstream_error", code: None, message: "it broke off" }, &mut out);
    let events = events(&out);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"], json!({ "code": "server_error", "message": "it broke off" }));
    assert_eq!(last["response"]["id"], events[0]["response"]["id"]);
    assert_eq!(last["response"]["output"].as_array().unwrap().len(), 1);
}

#[test]
fn a_failure_before_the_beginning_is_the_only_event() {
    let told = Told { status: 429, kind: "x", code: Some("key_revoked"), message: "gone" };
    let events = events(&super::super::failure(&told));
    assert_eq!((events.len(), &events[0]["response"]["error"]["code"]), (1, &json!("key_revoked")));
}

#[test]
fn our_own_event_comes_before_the_last_and_has_no_number() {
    let (mut writer, mut out) = (writer(), BytesMut::new());
    writer.write(&start(), &mut out);
    writer.end(Some(("ragmux", "{\"sources\":[]}")), &mut out);
    let text = String::from_utf8(out.to_vec()).unwrap();
    let ours = "event: ragmux.sources\ndata: {\"type\":\"ragmux.sources\",\"ragmux\":{\"sources\":[]}}\n\n";
    let (before, after) = text.split_once(ours).unwrap();
    assert_eq!(kinds(&events(before.as_bytes())), ["created", "in_progress"]);
    assert!(
        after.starts_with("event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,")
    );
}

#[test]
fn a_whole_answer_is_what_its_stream_ends_with() {
    let given = [
        start(),
        Event::Reasoning("think".into()),
        Event::ReasoningSignature("ragmux-signed:anthropic:sign".into()),
        Event::Text("a".into()),
        Event::Refusal("b".into()),
        call(0, "a"),
        arguments(0, "{}"),
        Event::Finish(Finish::ToolCalls),
        Event::Usage(Usage { prompt_tokens: 1, completion_tokens: 2, ..Usage::default() }),
    ];
    let streamed = written(&given).pop().unwrap()["response"].take();
    let body = writer().whole(&Whole::of(given), None);
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), streamed);
    let with = writer().whole(&Whole::default(), Some(("ragmux", "{}")));
    assert_eq!(serde_json::from_slice::<Value>(&with).unwrap()["ragmux"], json!({}));
}

#[test]
fn a_call_stays_open_for_its_arguments_beside_what_comes_amid_them() {
    let events = written(&[
        start(),
        call(0, "a"),
        arguments(0, "{\"x\":"),
        Event::Text("mid".into()),
        Event::Reasoning("think".into()),
        Event::RedactedReasoning("data".into()),
        arguments(0, "1}"),
        Event::Finish(Finish::ToolCalls),
    ]);
    let output = &events.last().unwrap()["response"]["output"];
    let kinds: Vec<_> = output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["function_call", "message", "reasoning", "reasoning"]);
    assert_eq!(output[0]["arguments"], "{\"x\":1}");
    let ends = events.iter().filter(|event| event["type"] == "response.output_item.done");
    assert_eq!(ends.count(), 4);
}

#[test]
fn what_is_kept_of_an_answer_is_counted_while_it_is_told_and_after() {
    const PIECE: usize = 1000;
    let piece = "x".repeat(PIECE);
    let (mut writer, mut out) = (writer(), BytesMut::new());
    let mut said = 0;
    let object = format!("{{\"a\":\"{piece}\"}}");
    for event in [
        Event::Reasoning(piece.as_str().into()),
        Event::ReasoningSignature(piece.as_str().into()),
        Event::RedactedReasoning(piece.as_str().into()),
        Event::Text(piece.as_str().into()),
        Event::Text(piece.as_str().into()),
        Event::Refusal(piece.as_str().into()),
        call(0, "a"),
        Event::Arguments { index: 0, json: object.as_str().into() },
    ] {
        let is_call = matches!(event, Event::ToolCall { .. });
        writer.write(&event, &mut out);
        said += if is_call { 0 } else { PIECE };
        assert!(writer.kept() >= said, "{} of {said} after {event:?}", writer.kept());
    }
    writer.write(&Event::Finish(Finish::Stop), &mut out);
    assert!((said..said + 7 * 400).contains(&writer.kept()), "{} of {said}", writer.kept());
}
