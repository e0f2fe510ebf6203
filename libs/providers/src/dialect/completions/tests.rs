use bytes::{Bytes, BytesMut};
use domain::ProviderType;
use proptest::prelude::*;
use tokens::{Family, count};

use super::*;
use crate::client::ChatCall;
use crate::dialect::golden::PLAIN;
use crate::dialect::openai::{ChatAnswer, Outgoing, OutputBound, RequestError, StreamTap};
use crate::error::UpstreamError;
use crate::tap::Tap;

fn parse(body: &str) -> Result<CompletionRequest<'_>, RequestError> {
    CompletionRequest::parse(body.as_bytes())
}

fn call(body: &str, outgoing: &Outgoing<'_>) -> ChatCall {
    let call = parse(body).unwrap().call(outgoing).unwrap();
    serde_json::from_slice::<serde_json::Value>(&call.body).unwrap();
    call
}

fn sent(body: &str, outgoing: &Outgoing<'_>) -> String {
    String::from_utf8(call(body, outgoing).body.to_vec()).unwrap()
}

fn bounded(tokens: u64, field: &'static str) -> Outgoing<'static> {
    let bound = OutputBound { field, tokens, family: Family::O200k, prompt_tokens: 7 };
    Outgoing { output_bound: Some(bound), ..PLAIN }
}

#[test]
fn texts_and_tokens_go_on_one_or_many() {
    let text = |text: &'static str| Prompt::Text(text.into());
    for (prompt, read) in [
        (r#","prompt":"a\n""#, vec![text("a\n")]),
        (r#","prompt":["a","b"]"#, vec![text("a"), text("b")]),
        (r#","prompt":[1,2,3]"#, vec![Prompt::Tokens(3)]),
        (r#","prompt":[[1,2],[3]]"#, vec![Prompt::Tokens(2), Prompt::Tokens(1)]),
        (r#","prompt":["a",[7]]"#, vec![text("a"), Prompt::Tokens(1)]),
        (r#","prompt":null"#, vec![Prompt::Tokens(1)]),
        ("", vec![Prompt::Tokens(1)]),
    ] {
        let body = format!(r#"{{"model":"m"{prompt}}}"#);
        assert_eq!(parse(&body).unwrap().prompts, read, "{prompt}");
    }
    for (members, said) in [
        (r#""prompt":[]"#, "prompt is required"),
        (
            r#""prompt":7"#,
            "prompt must be a string, an array of strings, an array of token numbers or an array of those",
        ),
        (
            r#""prompt":{}"#,
            "prompt must be a string, an array of strings, an array of token numbers or an array of those",
        ),
        (
            r#""prompt":["a",1]"#,
            "prompt must be a string, an array of strings, an array of token numbers or an array of those",
        ),
        (
            r#""prompt":[-1]"#,
            "prompt must be a string, an array of strings, an array of token numbers or an array of those",
        ),
        (r#""prompt":["\ud800"]"#, "prompt[0] has an invalid Unicode escape: a surrogate that is not one of a pair"),
        (r#""prompt":"a","prompt":"b""#, "prompt occurs more than once"),
        (r#""prompt":"a","x":{"y":1,"y":2}"#, "x.y occurs more than once"),
        (r#""prompt":"a","Best_Of":2"#, "Best_Of must be written best_of"),
        (r#""prompt":"a","best_of":0"#, "best_of must be a whole number from 1 to 128"),
        (r#""prompt":"a","n":1000"#, "n must be a whole number from 1 to 128"),
        (r#""prompt":"a","echo":1"#, "echo must be true or false"),
        (r#""prompt":"a","max_tokens":-2"#, "max_tokens must be a whole number, zero or more"),
        (r#""prompt":"a","stream":true,"stream_options":7"#, "stream_options must be an object"),
    ] {
        assert_eq!(parse(&format!("{{{members}}}")).unwrap_err().to_string(), said, "{members}");
    }
}

#[test]
fn every_answer_that_is_written_is_paid() {
    for (members, answers) in [
        ("", 1),
        (r#","n":3"#, 3),
        (r#","best_of":4"#, 4),
        (r#","n":2,"best_of":5"#, 5),
        (r#","n":3,"best_of":2"#, 3),
        (r#","n":2,"prompt":["a","b","c"]"#, 6),
    ] {
        let body = format!(r#"{{"model":"m"{members}}}"#);
        assert_eq!(parse(&body).unwrap().answers(), answers, "{members}");
    }
}

#[test]
fn what_may_become_prompt_is_counted() {
    let body = r#"{"model":"m","prompt":["one",[1,2,3]],"suffix":"after","stop":["x"],"user":"u","logit_bias":{"5":1},
        "guided_json":{"a":1},"max_tokens":5,"n":2,"echo":true,"metadata":{"team":"a"},"temperature":0.5,"logprobs":5}"#;
    let request = parse(body).unwrap();
    let counted = request.countable();
    assert_eq!((counted.texts, counted.media_tokens), (vec!["one".into(), "after".into(), r#"{"a":1}"#.into()], 3));
}

#[test]
fn what_costs_more_is_found_and_more_answers_are_not_more() {
    let found = |members: &str, provider| {
        let body = format!(r#"{{"prompt":"a"{members}}}"#);
        let features = parse(&body).unwrap().costly_features(provider);
        features.into_iter().map(|feature| feature.name).collect::<Vec<_>>()
    };
    assert!(found(r#","best_of":3,"logprobs":5,"echo":true"#, ProviderType::CustomOpenAi).is_empty());
    assert_eq!(found(r#","service_tier":"priority""#, ProviderType::OpenAi), ["service_tier"]);
    assert_eq!(
        found(r#","use_beam_search":true,"models":["b"]"#, ProviderType::OpenRouter),
        ["use_beam_search", "models"]
    );
}

#[test]
fn everything_but_the_model_is_sent_as_it_came() {
    let body =
        "{ \"temperature\" : 1.50,\n\t\"model\": \"asked\" , \"prompt\":[ 1,2 ], \"x\":{\"b\" :1e2}, \"logprobs\":5 }";
    assert_eq!(sent(body, &PLAIN), body.replace("\"asked\"", "\"real\""));
    for (body, expected) in [
        (r#"{"ragmux":{},"prompt":"a"}"#, r#"{"model":"real","prompt":"a"}"#),
        (r#"{"ragmux":{}}"#, r#"{"model":"real"}"#),
        ("{}", r#"{"model":"real"}"#),
        (
            r#"{"model":"real","prompt":"a","stream":true}"#,
            r#"{"stream_options":{"include_usage":true},"model":"real","prompt":"a","stream":true}"#,
        ),
    ] {
        assert_eq!(sent(body, &PLAIN), expected);
    }
}

#[test]
fn a_bound_goes_to_each_answer_that_is_written() {
    for (members, field, expected) in [
        ("", "max_tokens", r#"{"max_tokens":12,"model":"real","prompt":"a"}"#),
        // A name that the API does not have.
        ("", "max_completion_tokens", r#"{"max_tokens":12,"model":"real","prompt":"a"}"#),
        ("", "n_predict", r#"{"n_predict":12,"model":"real","prompt":"a"}"#),
        (r#","max_tokens":5"#, "max_tokens", r#"{"model":"real","prompt":"a","max_tokens":5}"#),
        (r#","max_tokens":50"#, "max_tokens", r#"{"model":"real","prompt":"a","max_tokens":12}"#),
        (r#","max_tokens":null"#, "max_tokens", r#"{"model":"real","prompt":"a","max_tokens":12}"#),
        (r#","n_predict":-1"#, "max_tokens", r#"{"max_tokens":12,"model":"real","prompt":"a","n_predict":12}"#),
        (r#","n":2,"best_of":3"#, "max_tokens", r#"{"max_tokens":4,"model":"real","prompt":"a","n":2,"best_of":3}"#),
    ] {
        let body = format!(r#"{{"model":"m","prompt":"a"{members}}}"#);
        assert_eq!(sent(&body, &bounded(12, field)), expected, "{members}");
    }
    // Of three that are written two are shown.
    let call = call(r#"{"prompt":"a","n":2,"best_of":3}"#, &bounded(12, "max_tokens"));
    assert_eq!(call.rules.bound.unwrap().tokens, 8);
}

fn answer(body: &str, request: &str, outgoing: &Outgoing<'_>) -> ChatAnswer {
    read_answer(&Bytes::copy_from_slice(body.as_bytes()), &call(request, outgoing).rules, None).unwrap()
}

#[test]
fn a_whole_answer_is_the_providers_with_the_models_name_replaced() {
    let body = r#"{ "id":"cmpl-1","object":"text_completion","model" : "real","choices":[{"text":" one two","index":0,"logprobs":{"tokens":[" one"]},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2} }"#;
    let read = answer(body, r#"{"prompt":"a"}"#, &PLAIN);
    assert_eq!(read.body, body.replace("\"real\"", "\"asked\""));
    assert_eq!((read.delivered.text(), read.finish_reasons.as_slice()), (" one two", ["stop".to_owned()].as_slice()));
    assert_eq!((read.usage.unwrap().completion_tokens, read.upstream_model.as_deref()), (2, Some("real")));
    let bad = |body: &'static str| read_answer(&Bytes::from_static(body.as_bytes()), &call("{}", &PLAIN).rules, None);
    assert!(matches!(bad(r#"{"model":"m"}"#), Err(UpstreamError::BadAnswer(_))));
    assert_eq!(bad(r#"{"error":{"message":"busy","code":503}}"#).unwrap_err().status(), 503);
}

#[test]
fn a_prompt_that_is_repeated_is_no_output() {
    let choice = |index: u8, text: &str| format!(r#"{{"text":"{text}","index":{index},"finish_reason":"stop"}}"#);
    let body = format!(
        r#"{{"choices":[{},{},{},{}]}}"#,
        choice(0, "Hé\\nlo one"),
        choice(1, "Hé\\nlo two"),
        choice(2, "Bye three"),
        // It does not begin with its prompt.
        choice(3, "By four"),
    );
    let request = r#"{"prompt":["H\u00e9\nlo","Bye"],"n":2,"echo":true,"best_of":5}"#;
    let read = answer(&body, request, &PLAIN);
    assert_eq!((read.delivered.text(), read.delivered.written_for_each()), (" one two three four", 3));
    assert_eq!(
        answer(&body, &request.replace("true", "false"), &PLAIN).delivered.text(),
        "Hé\nlo oneHé\nlo twoBye threeBy four"
    );
}

#[test]
fn a_whole_answer_over_its_bound_is_cut_and_keeps_its_prompt() {
    let body = r#"{"choices":[{"text":"one two","index":0,"logprobs":{"tokens":[]},"finish_reason":"stop","x":1},{"text":"Why? one two three four five","index":1,"logprobs":{"tokens":[]},"finish_reason":"stop"}]}"#;
    let read = answer(body, r#"{"prompt":["a","Why?"],"echo":true}"#, &bounded(5, "max_tokens"));
    let expected = r#"{"choices":[{"text":"one two","index":0,"logprobs":{"tokens":[]},"finish_reason":"stop","x":1},{"finish_reason":"length","index":1,"logprobs":null,"text":"Why? one two"}]}"#;
    let (is, should): (serde_json::Value, serde_json::Value) =
        (serde_json::from_slice(&read.body).unwrap(), serde_json::from_str(expected).unwrap());
    assert_eq!((is, read.counted_output), (should, Some(4)));
}

#[test]
fn what_cannot_be_told_from_output_is_not_repeated_where_bounds_are_kept() {
    let body = r#"{"prompt":[1,2],"echo":true}"#;
    let refused = parse(body).unwrap().call(&bounded(5, "max_tokens")).unwrap_err();
    assert!(
        matches!(&refused, UpstreamError::Unfit(RequestError::Invalid { field, .. }) if field == "echo"),
        "{refused:?}"
    );
    assert_eq!(sent(body, &PLAIN), r#"{"model":"real","prompt":[1,2],"echo":true}"#);
    let long = format!(r#"{{"prompt":"{}","echo":true}}"#, "a".repeat(1024 * 1024 + 1));
    assert!(parse(&long).unwrap().call(&bounded(5, "max_tokens")).is_err());
}

fn chunk(index: u64, text: &str, reason: Option<&str>) -> String {
    let reason = reason.map_or("null".to_owned(), |reason| format!("\"{reason}\""));
    format!(
        r#"data: {{"id":"cmpl-1","object":"text_completion","created":17,"model":"real","choices":[{{"text":"{text}","index":{index},"logprobs":null,"finish_reason":{reason}}}]}}"#
    ) + "\n\n"
}

fn pass(request: &str, outgoing: &Outgoing<'_>, stream: &str, pieces: usize) -> (String, StreamTap, bool) {
    let mut tap = StreamTap::new(call(request, outgoing).rules, None);
    let mut out = BytesMut::new();
    for piece in stream.as_bytes().chunks(pieces) {
        tap.push(piece, &mut out).unwrap();
    }
    let whole = tap.finish(&mut out).is_ok();
    (String::from_utf8(out.to_vec()).unwrap(), tap, whole)
}

const USAGE: &str =
    "data: {\"model\":\"real\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";

#[test]
fn a_stream_is_the_providers_without_the_usage_that_nobody_asked_for() {
    let words = format!("{}{}{}", chunk(0, "one", None), chunk(0, " two", None), chunk(0, "", Some("stop")));
    let stream = format!("{words}{USAGE}data: [DONE]\n\n");
    let (out, tap, whole) = pass(r#"{"prompt":"a","stream":true}"#, &PLAIN, &stream, 11);
    assert_eq!(out, format!("{words}data: [DONE]\n\n").replace("\"real\"", "\"asked\""));
    let outcome = tap.outcome();
    assert_eq!((outcome.delivered.text(), outcome.usage.unwrap().completion_tokens, whole), ("one two", 2, true));
    let asked = r#"{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}"#;
    assert_eq!(pass(asked, &PLAIN, &stream, 5).0, stream.replace("\"real\"", "\"asked\""));
    // Whole without its last event where every answer has ended, and not before.
    assert!(pass(asked, &PLAIN, &words, 100).2);
    assert!(!pass(asked, &PLAIN, &chunk(0, "one", None), 100).2);
}

#[test]
fn a_stream_over_its_bound_is_cut_and_its_prompt_does_not_count() {
    let stream = [
        chunk(0, "A long ", None),
        chunk(0, "prompt one", None),
        chunk(0, " two", None),
        chunk(0, " three", None),
        chunk(0, "", Some("stop")),
    ];
    let request = r#"{"model":"asked","prompt":"A long prompt","echo":true,"stream":true,"stream_options":{"include_usage":true}}"#;
    let (out, tap, whole) = pass(request, &bounded(2, "max_tokens"), &stream.concat(), 100);
    let kept = stream[..3].concat().replace("\"real\"", "\"asked\"");
    let ended = concat!(
        r#"data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"asked","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"usage":null}"#,
        "\n\n",
        r#"data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"asked","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}"#,
        "\n\ndata: [DONE]\n\n"
    );
    assert_eq!(out, format!("{kept}{ended}"));
    let outcome = tap.outcome();
    assert_eq!((outcome.delivered.text(), outcome.counted_output, whole), (" one two", Some(2), true));
}

proptest! {
    #[test]
    fn a_prompt_comes_off_however_it_is_cut(
        prompt in "[a-c\u{e9}\u{6708}]{0,12}", own in "[a-c\u{e9}\u{6708}]{0,12}", places in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        let text: Vec<char> = format!("{prompt}{own}").chars().collect();
        let mut places: Vec<usize> = places.into_iter().map(|place| place % (text.len() + 1)).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| chunk(0, &text[pair[0]..pair[1]].iter().collect::<String>(), None));
        let request = serde_json::json!({ "prompt": prompt, "echo": true, "stream": true }).to_string();
        let bound = count(Family::O200k, &own) as u64;
        let (_, tap, _) = pass(&request, &bounded(bound.max(1) + 20, "max_tokens"), &pieces.collect::<String>(), 1000);
        let outcome = tap.outcome();
        prop_assert_eq!(outcome.delivered.text(), own.as_str());
        prop_assert_eq!(outcome.counted_output, Some(bound));
    }
}
