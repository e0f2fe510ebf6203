use super::super::OutputBound;
use super::tests::{ROLE, STOP, USAGE, WORD, run, stream};
use super::*;
use crate::dialect::golden;

fn bounded(tokens: u64, tells_usage: bool) -> StreamTap {
    let bound = OutputBound { field: "max_tokens", tokens, family: tokens::Family::O200k, prompt_tokens: 7 };
    let member = Some(("ragmux", "{}".to_owned()));
    let rules = SpliceRules { strip_usage: !tells_usage, bound: Some(bound), member, ..golden::rules() };
    StreamTap::new(rules, None)
}

#[test]
fn a_stream_is_cut_at_the_event_before_its_bound() {
    let two = r#"{"id":"1","model":"asked","choices":[{"index":0,"delta":{"content":"one two"}}]}"#;
    let more =
        r#"{"id":"1","model":"asked","choices":[{"index":1,"delta":{"content":"three"},"finish_reason":"stop"}]}"#;
    let text = stream(&[&ROLE.replace("real", "asked"), two, more, USAGE, "[DONE]"], "\n");
    let chunk = |choices: &str, more: &str| {
        format!(
            r#"{{"id":"1","object":"chat.completion.chunk","created":1700000000,"model":"asked","choices":[{choices}]{more}}}"#
        )
    };
    let ended = |index: u8| format!(r#"{{"index":{index},"delta":{{}},"logprobs":null,"finish_reason":"length"}}"#);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for event in [ROLE.replace("real", "asked"), two.to_owned()] {
        with.push(event.clone());
        without.push(event);
    }
    for index in [0, 1] {
        with.push(chunk(&ended(index), r#","usage":null"#));
        without.push(chunk(&ended(index), ""));
    }
    with.push(chunk("", r#","usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}"#));
    for events in [&mut with, &mut without] {
        events.extend([chunk("", r#","ragmux":{}"#), "[DONE]".to_owned()]);
    }
    for (tells_usage, expected) in [(true, with), (false, without)] {
        let mut tap = bounded(2, tells_usage);
        let mut out = BytesMut::new();
        tap.push(text.as_bytes(), &mut out).unwrap();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        assert_eq!(String::from_utf8_lossy(&out), stream(&expected, "\n"));
        let outcome = tap.outcome();
        assert!(tap.is_cut() && outcome.complete);
        assert_eq!((outcome.counted_output, outcome.usage), (Some(2), None));
        assert_eq!((outcome.delivered.text(), outcome.finish_reasons), ("one two", vec!["length".to_owned(); 2]));
    }
}

#[test]
fn a_stream_within_its_bound_is_copied() {
    let text = stream(&[ROLE, WORD, STOP, USAGE], "\n").replace("real", "asked");
    let (out, result, outcome) = run(bounded(100, true), &[format!("{text}data: [DONE]\n\n").as_bytes()]);
    result.unwrap();
    assert!(out.starts_with(&text));
    assert_eq!((outcome.counted_output, outcome.usage.unwrap().completion_tokens), (Some(2), 2));
}

#[test]
fn usage_that_was_reported_before_a_cut_is_what_the_client_is_told() {
    let event = |text: &str, tokens: u8| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":5,"completion_tokens":{tokens}}}}}"#
        )
    };
    let (out, _, outcome) =
        run(bounded(2, true), &[stream(&[&event("one two", 2), &event(" three", 3)], "\n").as_bytes()]);
    assert!(out.contains(r#""usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}"#), "{out}");
    assert_eq!(outcome.usage.unwrap().completion_tokens, 3);
}
