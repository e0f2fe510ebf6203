use proptest::prelude::*;

use super::*;
use crate::dialect::golden::{self, cut};

pub(super) fn tap(strip_usage: bool) -> StreamTap {
    StreamTap::new(SpliceRules { strip_usage, ..golden::rules() }, None)
}

pub(super) fn run(mut tap: StreamTap, chunks: &[&[u8]]) -> (String, Result<(), UpstreamError>, StreamOutcome) {
    let mut out = BytesMut::new();
    let mut result = Ok(());
    for chunk in chunks {
        result = tap.push(chunk, &mut out);
        if result.is_err() {
            break;
        }
    }
    let result = result.and_then(|()| tap.finish(&mut out));
    (String::from_utf8_lossy(&out).into_owned(), result, tap.outcome())
}

pub(super) fn pass(text: &str, strip_usage: bool) -> (String, StreamOutcome) {
    let (out, result, outcome) = run(tap(strip_usage), &[text.as_bytes()]);
    result.unwrap();
    (out, outcome)
}

pub(super) const ROLE: &str = r#"{"id":"1","created":1700000000,"model":"real","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
pub(super) const WORD: &str =
    r#"{"id":"1", "model":"real" ,"choices":[{"index":0,"delta":{"content":"h\u00e9llo"},"finish_reason":null}]}"#;
pub(super) const STOP: &str = r#"{"id":"1","model":"real","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
pub(super) const USAGE: &str =
    r#"{"id":"1","model":"real","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}"#;

pub(super) fn stream(events: &[&str], end: &str) -> String {
    events.iter().map(|event| format!("data: {event}{end}{end}")).collect()
}

#[test]
fn a_piece_that_is_larger_than_what_is_kept_is_kept_in_part() {
    let word = "h\u{e9}llo ";
    let long = word.repeat(MAX_KEPT_BYTES / 4);
    let event = WORD.replace(r"h\u00e9llo", &long);
    let (_, outcome) = pass(&stream(&[&event, WORD, STOP, "[DONE]"], "\n"), false);
    let kept = outcome.delivered.text();
    assert!(long.starts_with(kept) && MAX_KEPT_BYTES - kept.len() < 4, "{}", kept.len());
    let all = long.chars().count() + 5;
    assert_eq!(kept.chars().count() as u64 + outcome.delivered.chars_beyond(), all as u64);
}

#[test]
fn a_stream_without_splices_is_copied() {
    let text = format!(": hello\n\n{}", stream(&[ROLE, WORD, STOP, USAGE, "[DONE]"], "\n")).replace("real", "asked");
    let (out, outcome) = pass(&text, false);
    assert_eq!(out, text);
    assert!(outcome.complete);
    assert_eq!(outcome.usage.unwrap().completion_tokens, 2);
    assert_eq!(outcome.finish_reasons, ["stop"]);
    assert_eq!(outcome.delivered.text(), "héllo");
    assert_eq!(outcome.upstream_model.as_deref(), Some("asked"));
    assert_eq!((outcome.answer_id.as_deref(), outcome.created_s), (Some("1"), Some(1_700_000_000)));
}

#[test]
fn the_models_name_is_replaced_where_it_stands_and_nowhere_else() {
    let event = r#"{"model":"real","choices":[{"index":0,"delta":{"content":"\"model\":\"real\""},"finish_reason":"stop","model":"real"}]}"#;
    let (out, _) = pass(&stream(&[event, "[DONE]"], "\r\n"), false);
    assert_eq!(out, stream(&[&event.replacen("real", "asked", 1), "[DONE]"], "\r\n"));
}

#[test]
fn usage_that_only_we_asked_for_is_taken_out() {
    let beside = r#"{"model":"asked","choices":[{"index":0,"delta":{"content":"a"}}],"usage":null,"x":1}"#;
    let with_content = r#"{"model":"asked","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let filter = r#"{"model":"asked","choices":[],"prompt_filter_results":[],"usage":null}"#;
    let text = stream(&[filter, beside, with_content, USAGE, "[DONE]"], "\n");
    let (out, outcome) = pass(&text, true);
    let kept = [
        r#"{"model":"asked","choices":[],"prompt_filter_results":[]}"#,
        r#"{"model":"asked","choices":[{"index":0,"delta":{"content":"a"}}],"x":1}"#,
        r#"{"model":"asked","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    assert_eq!(out, stream(&kept, "\n"));
    assert_eq!(outcome.usage.unwrap().prompt_tokens, 7, "the last usage wins");
    assert_eq!(pass(&text, false).0, text.replace("real", "asked"), "nothing is taken from a client that asked");
    // Some servers leave `choices` out where there are none.
    for bare in [r#"{"usage":{"prompt_tokens":7}}"#, r#"{"id":"1","choices":null,"usage":{"prompt_tokens":7}}"#] {
        let (out, outcome) = pass(&stream(&[with_content, bare, "[DONE]"], "\n"), true);
        assert_eq!(out, stream(&kept[2..], "\n"), "{bare}");
        assert_eq!(outcome.usage.unwrap().prompt_tokens, 7);
    }
}

#[test]
fn usage_that_cannot_be_is_none_unless_a_better_one_follows() {
    let absurd = USAGE.replace("\"completion_tokens\":2", "\"completion_tokens\":1000000000000000");
    for (events, believed) in
        [([ROLE, USAGE, &absurd], None), ([ROLE, &absurd, USAGE], Some(2)), ([ROLE, &absurd, &absurd], None)]
    {
        let (out, outcome) = pass(&stream(&[&events[..], &[STOP, "[DONE]"]].concat(), "\n"), false);
        assert_eq!(outcome.usage.map(|usage| usage.completion_tokens), believed);
        assert!(out.contains("1000000000000000"), "the client gets what the provider said");
    }
}

#[test]
fn a_comment_in_a_dropped_event_stays() {
    let text = format!(": ping\ndata: {USAGE}\n\ndata: [DONE]\n\n");
    assert_eq!(pass(&text, true).0, ": ping\ndata: [DONE]\n\n");
}

#[test]
fn our_event_comes_before_the_end() {
    let ours = r#"data: {"id":"1","object":"chat.completion.chunk","created":0,"model":"asked","choices":[],"ragmux":{"a":1}}"#;
    for (text, expected) in [
        (stream(&[STOP, "[DONE]"], "\n"), format!("data: {STOP}\n\n{ours}\n\ndata: [DONE]\n\n")),
        (stream(&[STOP], "\n"), format!("data: {STOP}\n\n{ours}\n\n")),
        (format!("data: {STOP}"), format!("data: {STOP}\n\n{ours}\n\n")),
    ] {
        let member = Some(("ragmux", "{\"a\":1}".to_owned()));
        let rules = SpliceRules { member, ..golden::rules() };
        let (out, result, _) = run(StreamTap::new(rules, None), &[text.as_bytes()]);
        result.unwrap();
        assert_eq!(out, expected.replace("real", "asked"));
    }
}

#[test]
fn a_stream_that_breaks_off_is_an_error_and_half_an_event_is_not_passed_on() {
    for (text, passed) in [
        (String::new(), String::new()),
        (stream(&[ROLE, WORD], "\n"), stream(&[ROLE, WORD], "\n")),
        (format!("data: {ROLE}\n\ndata: {{\"id\":\"1\",\"cho"), stream(&[ROLE], "\n")),
        (format!("data: {STOP}\n\ndata: {{\"usage\":{{\"pro"), stream(&[STOP], "\n")),
        (format!("data: {ROLE}"), stream(&[ROLE], "\n")),
    ] {
        let (out, result, _) = run(tap(true), &[text.as_bytes()]);
        assert!(matches!(result, Err(UpstreamError::Truncated)), "{text}");
        assert_eq!(out, passed.replace("real", "asked"));
    }
}

#[test]
fn a_stream_is_whole_with_done_or_with_every_finish_reason() {
    let second = STOP.replace("\"index\":0", "\"index\":1");
    let began = ROLE.replace("\"index\":0", "\"index\":1");
    for (events, whole) in [
        (vec![ROLE, "[DONE]"], true),
        (vec![ROLE, STOP], true),
        (vec![ROLE, &began, STOP], false),
        (vec![ROLE, &began, STOP, &second], true),
        (vec![USAGE], false),
    ] {
        let (_, result, outcome) = run(tap(false), &[stream(&events, "\n").as_bytes()]);
        assert_eq!((result.is_ok(), outcome.complete), (whole, whole), "{events:?}");
    }
}

#[test]
fn a_last_event_without_its_blank_line_still_counts() {
    for end in ["", "\n", "\r"] {
        let text = format!("data: {STOP}\n\ndata: {USAGE}{end}");
        let (out, outcome) = pass(&text, false);
        assert_eq!(out, text.replace("real", "asked"));
        assert!(outcome.usage.is_some());
        let text = format!("data: {WORD}\n\ndata: [DONE]{end}");
        assert_eq!(pass(&text, false).0, text.replace("real", "asked"));
    }
}

#[test]
fn an_error_in_the_stream_ends_it_with_what_came_before() {
    let secret = domain::Secret::new("very-own-secret");
    let tap = StreamTap::new(golden::rules(), Some(secret));
    let error = r#"{"error":{"message":"overloaded very-own-secret","code":529}}"#;
    let (out, result, _) = run(tap, &[stream(&[WORD, error, "[DONE]"], "\n").as_bytes()]);
    let error = result.unwrap_err();
    assert_eq!((error.status(), error.message()), (503, "overloaded [redacted]".to_owned()));
    assert_eq!(out, stream(&[WORD], "\n").replace("real", "asked"));
}

#[test]
fn delivered_text_includes_tools_and_reasoning_and_is_kept_to_a_bound() {
    let event = r#"{"choices":[{"delta":{"reasoning_content":"hm","tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}],"refusal":"no","content":null}}]}"#;
    let (_, outcome) = pass(&stream(&[event, "[DONE]"], "\n"), false);
    assert_eq!(outcome.delivered.text(), "hmnof{}");
    for delta in [
        r#"{"reasoning":"said"}"#,
        r#"{"thinking":"said"}"#,
        r#"{"reasoning_details":[{"type":"reasoning.text","text":"said"}]}"#,
        r#"{"audio":{"transcript":"said","data":"AAAA"}}"#,
        r#"{"content":[{"type":"text","text":"said"}]}"#,
        r#"{"tool_calls":[{"index":0,"custom":{"input":"said"}}]}"#,
    ] {
        let event = format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#);
        let (_, outcome) = pass(&stream(&[&event, "[DONE]"], "\n"), false);
        assert_eq!(outcome.delivered.text(), "said", "{delta}");
    }
    let long = format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "é".repeat(100 * 1024));
    let (_, outcome) = pass(&stream(&[&long, &long, "[DONE]"], "\n"), false);
    assert_eq!(outcome.delivered.text().len(), 256 * 1024);
    assert_eq!(outcome.delivered.chars_beyond(), 72 * 1024);
}

/// An event as some provider may write it.
fn event() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(ROLE.to_owned()),
        Just(STOP.to_owned()),
        Just(USAGE.to_owned()),
        Just(r#"{"choices":[],"usage":null,"model":"real"}"#.to_owned()),
        Just(r#"{"usage":{"prompt_tokens":1},"model":"asked","choices":[{"delta":{}}]}"#.to_owned()),
        Just("not json".to_owned()),
        "[a-zé\u{1F600}\"\\\\ ]{0,6}".prop_map(|word| {
            let content = serde_json::Value::from(word);
            format!(r#"{{"model":"real","choices":[{{"index":0,"delta":{{"content":{content}}}}}]}}"#)
        }),
    ]
}

/// A stream: a byte order mark or none, and events with any line ends, some split over several data lines, some with
/// comments and other fields.
fn transcript() -> impl Strategy<Value = String> {
    let block = (event(), "data: ?", "(: ping|event: x|id: 1)?", prop_oneof![Just("\n"), Just("\r\n"), Just("\r")]);
    let blocks = proptest::collection::vec((block, any::<bool>()), 0..8).prop_map(|blocks| {
        let mut text = String::new();
        for ((event, data, extra, end), split) in blocks {
            if !extra.is_empty() {
                text.push_str(&format!("{extra}{end}"));
            }
            let event = if split { event.replace(",\"", &format!(",{end}{data}\"")) } else { event };
            text.push_str(&format!("{data}{event}{end}{end}"));
        }
        text
    });
    ("\u{feff}?", blocks, prop_oneof![Just(""), Just("data: [DONE]\n\n"), Just("data: [DONE]"), Just("data: {\"a")])
        .prop_map(|(bom, blocks, last)| format!("{bom}{blocks}{last}"))
}

fn data_of(text: &str) -> Vec<Vec<u8>> {
    let mut scanner = Scanner::default();
    scanner.push(text.as_bytes());
    let (mut events, mut first) = (Vec::new(), true);
    while let Some(piece) = scanner.next_piece().unwrap() {
        if let Piece::Block(block) = piece {
            let event = Event::read(&block, std::mem::take(&mut first));
            if event.has_data() {
                events.push(event.data.to_vec());
            }
        }
    }
    events
}

fn as_value(data: &[u8]) -> serde_json::Value {
    serde_json::from_slice(data).unwrap_or_else(|_| String::from_utf8(data.to_vec()).unwrap().into())
}

/// What the rules say an event becomes, by way of a parsed value instead of bytes; `None` when it is dropped.
fn by_value(data: &[u8]) -> Option<serde_json::Value> {
    let mut value = as_value(data);
    let Some(members) = value.as_object_mut() else { return Some(value) };
    let usage = members.remove("usage").unwrap_or_default();
    if !usage.is_null() && value["choices"].as_array().is_some_and(Vec::is_empty) {
        return None;
    }
    if value["model"].is_string() {
        value["model"] = "asked".into();
    }
    Some(value)
}

proptest! {
    #[test]
    fn any_chunking_of_any_transcript_gives_the_same(
        text in transcript(),
        places in proptest::collection::vec(any::<usize>(), 0..16),
        strip in any::<bool>(),
    ) {
        let bytes = text.as_bytes();
        let chunks = cut(bytes, &places);
        let whole = run(tap(strip), &[bytes]);
        let cut = run(tap(strip), &chunks);
        prop_assert_eq!(&cut.0, &whole.0);
        prop_assert_eq!(cut.1.is_ok(), whole.1.is_ok());
        prop_assert_eq!(cut.2.usage, whole.2.usage);
        prop_assert_eq!(cut.2.delivered.text(), whole.2.delivered.text());
    }

    #[test]
    fn the_splices_do_what_the_rules_say_and_nothing_else(text in transcript()) {
        let (out, _, _) = run(tap(true), &[text.as_bytes()]);
        let expected: Vec<_> = data_of(&text).iter().filter_map(|data| by_value(data)).collect();
        let passed: Vec<_> = data_of(&out).iter().map(|data| as_value(data)).collect();
        prop_assert_eq!(passed, expected);
    }

    #[test]
    fn without_splices_every_byte_passes(text in transcript()) {
        let text = text.replace("real", "asked");
        let (out, result, _) = run(tap(false), &[text.as_bytes()]);
        if result.is_ok() {
            prop_assert_eq!(out, text);
        } else {
            let whole = out.trim_end_matches(['\r', '\n']);
            prop_assert!(text.starts_with(whole), "{:?} is no beginning of {:?}", out, text);
        }
    }
}

/// A JSON event as sent and as passed on where usage is taken out; `None` when all of it is. `@` is where a line of data
/// may end.
fn spliced_event() -> impl Strategy<Value = (String, Option<String>)> {
    let gap = || prop_oneof![Just(""), Just(" "), Just("\t ")];
    let content = "[a-z\u{e9}\u{1F600}\"\\\\ ,}{]{0,6}".prop_map(|text| serde_json::Value::from(text).to_string());
    let usage = || {
        prop_oneof![
            Just("null"),
            Just(r#"{"prompt_tokens":1,"x":[1,{"usage":"}\",{"}]}"#),
            Just(r#"{ "completion_tokens" : 0 }"#)
        ]
    };
    let model = prop_oneof![Just("\"real\""), Just("\"asked\""), Just(r#""r\u00e9\"al""#), Just("null")];
    let place = prop_oneof![Just(0_u8), Just(1), Just(2)];
    let chunk = (gap(), gap(), model, content, usage(), place).prop_map(|(a, b, model, content, usage, place)| {
        let seen = if model == "null" { model } else { "\"asked\"" };
        let chunk = |model: &str, first: &str, last: &str| {
            format!(
                r#"{{{first}"id":"1",@"model"{a}:{b}{model}{a},"choices":[{{"index":0,"delta":{{"content":{content}}}}}]{last}{b}}}"#
            )
        };
        let (first, last) = match place {
            0 => (String::new(), String::new()),
            1 => (format!(r#"{a}"usage"{b}:{a}{usage}{b},"#), String::new()),
            _ => (String::new(), format!(r#"{a},{b}"usage"{a}:{b}{usage}"#)),
        };
        (chunk(model, &first, &last), Some(chunk(seen, "", "")))
    });
    let hidden = (gap(), usage()).prop_map(|(gap, usage)| {
        let sent = format!(r#"{{{gap}"choices":[],@"usage":{usage}}}"#);
        // Some servers have the member in every chunk: without figures there is nothing to hide but the member. Lines
        // stay, whatever is taken out of them.
        (sent, (usage == "null").then(|| format!(r#"{{{gap}"choices":[]@}}"#)))
    });
    let other = prop_oneof![Just("no json"), Just("[1,@2]"), Just("7"), Just("")]
        .prop_map(|text| (text.to_owned(), Some(text.to_owned())));
    prop_oneof![4 => chunk, 2 => hidden, 1 => other]
}

/// A transcript and what becomes of it, by construction and not by a parser.
fn spliced_transcript() -> impl Strategy<Value = (String, String)> {
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let extra = prop_oneof![Just(""), Just(": note"), Just(":"), Just("event: x"), Just("id"), Just("retry: 1")];
    let block = (spliced_event(), prop_oneof![Just("data:"), Just("data: ")], extra, end, any::<bool>());
    (any::<bool>(), proptest::collection::vec(block, 0..8)).prop_map(|(bom, blocks)| {
        let (mut sent, mut got) = (String::new(), String::new());
        for (number, ((before, after), data, extra, end, split)) in blocks.into_iter().enumerate() {
            let mark = if bom && number == 0 { "\u{feff}" } else { "" };
            let extra = if extra.is_empty() { String::new() } else { format!("{extra}{end}") };
            let line = |json: &str| {
                let json = json.replace('@', &if split { format!("{end}{data}") } else { String::new() });
                format!("{mark}{extra}{data}{json}{end}{end}")
            };
            sent.push_str(&line(&before));
            match &after {
                Some(after) => got.push_str(&line(after)),
                // Comments are not part of the event.
                None if extra.starts_with(':') => got.push_str(&extra),
                None => {}
            }
        }
        let done = "data: [DONE]\n\n";
        (sent + done, got + done)
    })
}

proptest! {
    #[test]
    fn outside_the_spliced_ranges_both_sides_are_identical(
        (sent, expected) in spliced_transcript(),
        places in proptest::collection::vec(any::<usize>(), 0..24),
    ) {
        let bytes = sent.as_bytes();
        let chunks = cut(bytes, &places);
        let (got, result, _) = run(tap(true), &chunks);
        prop_assert!(result.is_ok());
        prop_assert_eq!(got, expected);
    }
}
