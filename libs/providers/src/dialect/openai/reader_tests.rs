use bytes::BytesMut;

use super::*;
use crate::dialect::golden::rules;
use crate::dialect::openai::{StreamTap, read_chat_answer};
use crate::hub::Part;
use crate::sse::{Event as Sent, Piece, Scanner};
use crate::tap::Tap;

fn stream(text: &str) -> (Result<(), UpstreamError>, Whole, ChatReader) {
    let (mut reader, mut scanner) = (ChatReader::new(None), Scanner::default());
    scanner.push(text.as_bytes());
    let (mut blocks, mut events) = (Vec::new(), Vec::new());
    while let Some(piece) = scanner.next_piece().unwrap() {
        let Piece::Block(block) = piece else { continue };
        blocks.push(Sent::read(&block, false).data.to_vec());
    }
    let mut result = Ok(());
    for data in blocks.iter().filter(|data| !data.is_empty()) {
        result = reader.read(None, data, &mut events);
        if result.is_err() {
            break;
        }
    }
    assert!(!events.iter().skip(1).any(|event| matches!(event, Event::Start { .. })));
    (result, Whole::of(events), reader)
}

fn chunks(deltas: &[&str], reason: &str) -> String {
    let chunk = |delta: &str, reason: &str| {
        format!(
            "data: {{\"id\":\"1\",\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"
        )
    };
    let mut text: String = deltas.iter().map(|delta| chunk(delta, "null")).collect();
    text.push_str(&chunk("{}", &format!("\"{reason}\"")));
    text + "data: [DONE]\n\n"
}

fn parts(deltas: &[&str]) -> Vec<Part> {
    let (result, whole, reader) = stream(&chunks(deltas, "tool_calls"));
    result.unwrap();
    assert!(reader.is_complete() && reader.is_over());
    assert_eq!(whole.finish, Some(Finish::ToolCalls));
    whole.parts
}

fn made(id: &str, name: &str, arguments: &str) -> Part {
    let signature = None;
    Part::ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned(), signature }
}

#[test]
fn pieces_of_a_call_find_each_other_however_they_are_marked() {
    let two = [made("a", "f", "{\"x\":1}"), made("b", "g", "{}")];
    for deltas in [
        // As the reference has it.
        &[
            r#"{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}"#,
        ][..],
        // Everything in every piece.
        &[
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}]}"#,
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"1}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"}"}}]}"#,
        ],
        // One index for all.
        &[
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}},{"index":0,"id":"b","function":{"name":"g","arguments":"{}"}}]}"#,
        ],
        // No index, ids only where a call begins.
        &[
            r#"{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"x\":"}}]}"#,
            r#"{"tool_calls":[{"id":"","function":{"arguments":"1}"}}]}"#,
            r#"{"tool_calls":[{"id":"b","function":{"name":"g","arguments":{}}}]}"#,
        ],
        // The name after the arguments.
        &[
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{\"x\":"}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"1}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}"#,
        ],
    ] {
        assert_eq!(parts(deltas), two, "{deltas:?}");
    }
}

#[test]
fn calls_without_ids_get_their_own() {
    let ids = |deltas: &[&str]| -> Vec<String> {
        let id = |part| match part {
            Part::ToolCall { id, name, arguments, .. } => format!("{id} {name} {arguments}"),
            _ => String::new(),
        };
        parts(deltas).into_iter().map(id).collect()
    };
    let whole = ids(&[
        r#"{"tool_calls":[{"function":{"name":"f","arguments":"1"}},{"function":{"name":"f","arguments":"2"}}]}"#,
    ]);
    assert_eq!(whole.len(), 2);
    assert!(whole[0] != whole[1] && whole[0].ends_with(" f 1") && whole[1].ends_with(" f 2"));
    assert!(whole.iter().all(|call| call.starts_with("call_") && call.len() == "call_".len() + 24 + " f 1".len()));
    let late = ids(&[
        r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"1"}}]}"#,
        r#"{"tool_calls":[{"index":0,"id":"late","function":{"arguments":"2"}}]}"#,
    ]);
    assert_eq!(late.len(), 1);
    assert!(late[0].ends_with(" f 12"));
    let old = ids(&[r#"{"function_call":{"name":"f","arguments":""}}"#, r#"{"function_call":{"arguments":"{}"}}"#]);
    assert!(old.len() == 1 && old[0].ends_with(" f {}"));
}

#[test]
fn a_call_that_is_never_named_is_no_answer() {
    let (result, ..) =
        stream(&chunks(&[r#"{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{}"}}]}"#], "stop"));
    assert!(matches!(result, Err(UpstreamError::BadAnswer(_))));
}

#[test]
fn every_reason_is_understood() {
    for (reason, finish) in [
        ("stop", Finish::Stop),
        ("eos", Finish::Stop),
        ("eos_token", Finish::Stop),
        ("length", Finish::Length),
        ("model_length", Finish::Length),
        ("tool_calls", Finish::ToolCalls),
        ("function_call", Finish::ToolCalls),
        ("content_filter", Finish::ContentFilter),
    ] {
        let (result, whole, _) = stream(&chunks(&[r#"{"content":"a"}"#], reason));
        result.unwrap();
        assert_eq!(whole.finish, Some(finish), "{reason}");
    }
    for (reason, status) in [("error", 502), ("insufficient_system_resource", 503)] {
        let (result, ..) = stream(&chunks(&[r#"{"content":"a"}"#], reason));
        assert_eq!(result.unwrap_err().status(), status);
    }
    let call = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}"#;
    assert_eq!(stream(&chunks(&[call], "stop")).1.finish, Some(Finish::ToolCalls));
    assert_eq!(stream(&chunks(&[call], "length")).1.finish, Some(Finish::Length));
    let stopped = r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop","stop_reason":"END"}]}"#;
    let whole = read_whole(&Bytes::from_static(stopped.as_bytes()), None).unwrap();
    assert_eq!(whole.finish, Some(Finish::StopSequence(Some("END".to_owned()))));
}

#[test]
fn a_stream_without_its_end_is_not_complete_and_an_error_in_it_is_one() {
    let text = chunks(&[r#"{"content":"a"}"#], "stop");
    let (begun, _) = text.split_once("\n\n").unwrap();
    assert!(!stream(&format!("{begun}\n\n")).2.is_complete());
    let (_, whole, reader) = stream(text.strip_suffix("data: [DONE]\n\n").unwrap());
    assert!(reader.is_complete() && !reader.is_over());
    assert_eq!(whole.parts, [Part::Text("a".to_owned())]);
    let (result, ..) = stream("data: {\"error\":{\"message\":\"slow down\",\"code\":429}}\n\n");
    assert_eq!(result.unwrap_err().status(), 429);
    let (result, ..) = stream("data: nothing\n\n");
    assert!(matches!(result, Err(UpstreamError::BadAnswer(_))));
    for body in ["{}", r#"{"choices":[]}"#, r#"{"choices":7}"#] {
        assert!(read_whole(&Bytes::from_static(body.as_bytes()), None).is_err());
    }
}

/// What a golden answer comes to, one line a part.
fn told(whole: &Whole) -> Vec<String> {
    let mut lines: Vec<String> = whole
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => format!("text {text}"),
            Part::Refusal(text) => format!("refusal {text}"),
            Part::Reasoning { text, signature } => {
                format!("thought {text}{}", signature.as_ref().map(|mark| format!(" [{mark}]")).unwrap_or_default())
            }
            Part::RedactedReasoning(data) => format!("dark {data}"),
            Part::ToolCall { id, name, arguments, .. } => format!("call {id} {name} {arguments}"),
        })
        .collect();
    lines.push(format!("finish {}", whole.finish.as_ref().map_or("-", Finish::as_openai)));
    let usage = whole.usage.unwrap_or_default();
    lines.push(format!(
        "usage {} {} cached {} written {} reasoning {}",
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens
    ));
    lines
}

/// What is known of the same answer where it is passed on to a client of this API: usage, model and, of a stream, its id.
fn passed(name: &str, sent: &str) -> (Option<Usage>, Option<String>, Option<String>) {
    if name.ends_with(".json") {
        let answer = read_chat_answer(&Bytes::copy_from_slice(sent.as_bytes()), &rules(), None).unwrap();
        let id = serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap()["id"].as_str().map(str::to_owned);
        return (answer.usage, answer.upstream_model, id);
    }
    let (mut tap, mut out) = (StreamTap::new(rules(), None), BytesMut::new());
    tap.push(sent.as_bytes(), &mut out).unwrap();
    tap.finish(&mut out).unwrap();
    let outcome = tap.outcome();
    assert!(outcome.complete);
    (outcome.usage, outcome.upstream_model, outcome.answer_id)
}

macro_rules! golden {
    ($name:literal) => {
        ($name, include_str!(concat!("golden/", $name)), include_str!(concat!("golden/", $name, ".told")))
    };
}

/// Answers as each provider's reference shows them.
#[test]
fn the_answers_of_every_provider_are_read() {
    for (name, sent, expected) in [
        golden!("openai.sse"),
        golden!("openai.json"),
        golden!("openai.tools.json"),
        golden!("openai.schema.sse"),
        golden!("azure.sse"),
        golden!("azure.json"),
        golden!("azure.tools.sse"),
        golden!("deepseek.sse"),
        golden!("deepseek.json"),
        golden!("deepseek.form.json"),
        golden!("deepseek.tools.sse"),
        golden!("mistral.sse"),
        golden!("mistral.json"),
        golden!("mistral.thinking.json"),
        golden!("mistral.cached.sse"),
        golden!("groq.sse"),
        golden!("groq.json"),
        golden!("groq.tools.sse"),
        golden!("xai.sse"),
        golden!("xai.json"),
        golden!("xai.tools.sse"),
        golden!("openrouter.sse"),
        golden!("openrouter.json"),
        golden!("openrouter.tools.sse"),
        golden!("openrouter.tools.json"),
        golden!("vllm.sse"),
        golden!("vllm.json"),
        golden!("llamacpp.sse"),
        golden!("lmstudio.json"),
    ] {
        let whole = if name.ends_with(".json") {
            read_whole(&Bytes::from_static(sent.as_bytes()), None).unwrap()
        } else {
            let (result, whole, reader) = stream(sent);
            result.unwrap();
            assert!(reader.is_over(), "{name}");
            whole
        };
        assert!(whole.id.is_some() && whole.model.is_some(), "{name}");
        assert_eq!(passed(name, sent), (whole.usage, whole.model.clone(), whole.id.clone()), "{name}");
        assert_eq!(told(&whole), expected.lines().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn text_with_half_a_surrogate_pair_is_not_lost() {
    let told = |deltas: &[&str]| stream(&chunks(deltas, "stop")).1.parts;
    let text = |text: &str| vec![Part::Text(text.to_owned())];
    assert_eq!(told(&[r#"{"content":"a \ud83d"}"#, r#"{"content":"\ude00 b"}"#]), text("a 😀 b"));
    assert_eq!(told(&[r#"{"content":"a\ud83d"}"#]), text("a\u{fffd}"));
    let thought = Part::Reasoning { text: "\u{fffd}".to_owned(), signature: None };
    assert_eq!(told(&[r#"{"reasoning_content":"\ud83d"}"#]), [thought]);
    let body = Bytes::from_static(br#"{"choices":[{"message":{"content":"lone \ud83d"}}]}"#);
    assert_eq!(read_whole(&body, None).unwrap().parts, text("lone \u{fffd}"));
}

#[test]
fn thoughts_that_are_signed_one_by_one_stay_apart() {
    let thought = |text: &str, signature: &str| Part::Reasoning {
        text: text.to_owned(),
        signature: Some(format!("ragmux-signed:anthropic:{signature}")),
    };
    let dark = Part::RedactedReasoning("ragmux-redacted:anthropic:R".to_owned());
    let expected = [thought("first", "S1"), dark, thought("second", "S2"), thought("", "S3")];
    let detail = |members: &str| format!(r#"{{"type":"reasoning.text","format":"anthropic-claude-v1",{members}}}"#);
    let dark = r#"{"type":"reasoning.encrypted","data":"R","index":1}"#;
    // In pieces, with the same text aloud beside it, as OpenRouter has it.
    let pieces = [
        format!(r#"{{"reasoning":"fir","reasoning_details":[{}]}}"#, detail(r#""text":"fir","index":0"#)),
        format!(r#"{{"reasoning":"st","reasoning_details":[{}]}}"#, detail(r#""text":"st","index":0"#)),
        format!(r#"{{"reasoning_details":[{}]}}"#, detail(r#""signature":"S","index":0"#)),
        format!(r#"{{"reasoning_details":[{},{dark}]}}"#, detail(r#""signature":"1","index":0"#)),
        format!(r#"{{"reasoning":"second","reasoning_details":[{}]}}"#, detail(r#""text":"second","index":2"#)),
        format!(r#"{{"reasoning_details":[{}]}}"#, detail(r#""signature":"S2","index":2"#)),
        format!(r#"{{"reasoning_details":[{}]}}"#, detail(r#""text":"","signature":"S3","index":3"#)),
    ];
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    assert_eq!(stream(&chunks(&pieces, "stop")).1.parts, expected);
    // Aloud first and signed after, as this gateway tells it.
    let aloud = [
        r#"{"reasoning_content":"first"}"#.to_owned(),
        format!(r#"{{"reasoning_details":[{}]}}"#, detail(r#""text":"first","signature":"S1","index":0"#)),
        format!(r#"{{"reasoning_details":[{dark}]}}"#),
        r#"{"reasoning_content":"second"}"#.to_owned(),
        format!(r#"{{"reasoning_details":[{}]}}"#, detail(r#""text":"second","signature":"S2","index":2"#)),
        format!(r#"{{"reasoning_details":[{}]}}"#, detail(r#""text":"","signature":"S3","index":3"#)),
    ];
    let aloud: Vec<&str> = aloud.iter().map(String::as_str).collect();
    assert_eq!(stream(&chunks(&aloud, "stop")).1.parts, expected);
    // In one piece, numbered or not.
    for numbered in [true, false] {
        let at = |place: u8| if numbered { format!(r#","index":{place}"#) } else { String::new() };
        let details = [
            detail(&format!(r#""text":"first","signature":"S1"{}"#, at(0))),
            dark.to_owned(),
            detail(&format!(r#""text":"second","signature":"S2"{}"#, at(2))),
            detail(&format!(r#""text":"","signature":"S3"{}"#, at(3))),
        ];
        let body = format!(
            r#"{{"choices":[{{"message":{{"reasoning":"firstsecond","reasoning_details":[{}]}}}}]}}"#,
            details.join(",")
        );
        assert_eq!(read_whole(&Bytes::from(body), None).unwrap().parts, expected);
    }
}
