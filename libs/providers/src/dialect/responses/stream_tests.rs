use proptest::prelude::*;
use serde_json::json;
use tokens::{Family, count};

use super::super::reader::ResponseReader;
use super::*;
use crate::dialect::golden::{self, cut};
use crate::dialect::openai::OutputBound;
use crate::dialect::responses::ResponsesRequest;
use crate::error::UpstreamError;
use crate::tap::{Passed, Tap};

const GOLDEN: [&str; 3] =
    [include_str!("golden/text.sse"), include_str!("golden/tools.sse"), include_str!("golden/refused.sse")];

fn rules() -> SpliceRules {
    let echo = ResponsesRequest::parse(br#"{"input":"a","instructions":"You are brief."}"#).unwrap().echo();
    SpliceRules { echo: Some(Arc::new(echo)), ..golden::rules() }
}

fn passed(rules: SpliceRules, pieces: &[&[u8]]) -> (String, Result<(), UpstreamError>, Passed) {
    let passing = Box::new(PassingResponse::new(&rules));
    let mut tap = Passed::new(Box::new(ResponseReader::new(None)), passing, rules);
    let mut out = BytesMut::new();
    let mut pushed = Ok(());
    for piece in pieces {
        pushed = pushed.and_then(|()| tap.push(piece, &mut out));
    }
    let ended = pushed.and_then(|()| tap.finish(&mut out));
    (String::from_utf8(out.to_vec()).unwrap(), ended, tap)
}

/// What the client gets of a transcript that is passed on to its end.
fn expected(golden: &str) -> String {
    golden
        .replace("\"gpt-5-mini-2025-08-07\"", "\"asked\"")
        .replace("\"instructions\":\"RULES\\n\\nYou are brief.\"", "\"instructions\":\"You are brief.\"")
        .replace("\"instructions\":null", "\"instructions\":\"You are brief.\"")
}

fn data(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_stream_is_the_providers_bytes_but_for_the_model_and_the_instructions() {
    for golden in GOLDEN {
        let (out, ended, tap) = passed(rules(), &[golden.as_bytes()]);
        assert!(ended.is_ok() && tap.saw_done() && !tap.is_cut());
        assert_eq!(out, expected(golden));
    }
    let (_, _, tap) = passed(rules(), &[GOLDEN[0].as_bytes()]);
    let outcome = tap.outcome();
    let usage = outcome.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (37, 12));
    assert_eq!((usage.completion_tokens, usage.reasoning_tokens), (41, 29));
    assert_eq!((outcome.finish_reasons, outcome.complete), (vec!["stop".to_owned()], true));
    assert_eq!(outcome.delivered.text(), "When is the light lit?It is lit at nine — é.");
}

#[test]
fn our_own_event_comes_before_the_last() {
    let with = SpliceRules { member: Some(("ragmux", "{\"sources\":[]}".to_owned())), ..rules() };
    let (out, ended, _) = passed(with, &[GOLDEN[0].as_bytes()]);
    assert!(ended.is_ok());
    let ours = "event: ragmux.sources\ndata: {\"type\":\"ragmux.sources\",\"ragmux\":{\"sources\":[]}}\n\n";
    assert_eq!(
        out,
        expected(GOLDEN[0]).replace("event: response.completed", &format!("{ours}event: response.completed"))
    );
}

#[test]
fn a_stream_that_breaks_off_fails_with_the_next_number() {
    let golden = GOLDEN[0];
    for (upto, number) in [("event: response.output_text.delta", 11), ("event: response.completed", 16)] {
        let (mut out, ended, mut tap) = passed(rules(), &[&golden.as_bytes()[..golden.find(upto).unwrap() + 30]]);
        assert!(matches!(ended, Err(UpstreamError::Truncated)) && !tap.is_complete());
        let mut end = BytesMut::new();
        tap.fail(&Told { status: 502, kind: "upstream_error", code: Some("truncated"), message: "broke" }, &mut end);
        out.push_str(std::str::from_utf8(&end).unwrap());
        let events = data(&out);
        let last = events.last().unwrap();
        assert_eq!((&last["type"], &last["sequence_number"]), (&json!("response.failed"), &json!(number)));
        let response = &last["response"];
        assert_eq!(response["error"], json!({ "code": "truncated", "message": "broke" }));
        assert_eq!((&response["id"], &response["model"]), (&events[0]["response"]["id"], &json!("asked")));
        assert_eq!((&response["status"], &response["instructions"]), (&json!("failed"), &json!("You are brief.")));
        // What went before is a beginning of the whole.
        assert!(expected(golden).starts_with(out.split_once("event: response.failed").unwrap().0));
    }
    let (_, ended, tap) = passed(rules(), &[include_str!("golden/failed.sse").as_bytes()]);
    assert_eq!((ended.unwrap_err().status(), tap.saw_done()), (429, false));
    let (out, ended, mut tap) = passed(rules(), &[]);
    assert!(ended.is_err() && out.is_empty() && !tap.saw_event());
    let mut end = BytesMut::new();
    tap.fail(&Told { status: 502, kind: "x", code: None, message: "broke" }, &mut end);
    assert_eq!(data(std::str::from_utf8(&end).unwrap())[0]["sequence_number"], 0);
}

fn bound(tokens: u64) -> OutputBound {
    OutputBound { field: "max_tokens", tokens, family: Family::Estimated, prompt_tokens: 3 }
}

/// All that the items of an output say.
fn texts(output: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    for item in output.as_array().unwrap() {
        for name in ["name", "arguments", "input"] {
            texts.extend(item[name].as_str().map(str::to_owned));
        }
        for part in ["summary", "content"].iter().filter_map(|list| item[list].as_array()).flatten() {
            texts.extend(part["text"].as_str().or(part["refusal"].as_str()).map(str::to_owned));
        }
    }
    texts
}

#[test]
fn a_bounded_stream_is_cut_by_the_grammar_of_the_api() {
    for golden in GOLDEN {
        let (_, _, tap) = passed(SpliceRules { bound: Some(bound(10_000)), ..rules() }, &[golden.as_bytes()]);
        let all = tap.outcome().counted_output.unwrap();
        for tokens in 0..all {
            let (out, ended, tap) = passed(SpliceRules { bound: Some(bound(tokens)), ..rules() }, &[golden.as_bytes()]);
            assert!(ended.is_ok() && tap.is_cut() && tap.is_complete());
            let events = data(&out);
            for (number, event) in events.iter().enumerate() {
                assert_eq!(event["sequence_number"], number as u64);
            }
            let last = events.last().unwrap();
            assert_eq!(last["type"], "response.incomplete");
            let response = &last["response"];
            assert_eq!((&response["status"], &response["model"]), (&json!("incomplete"), &json!("asked")));
            assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
            let counted = tap.outcome().counted_output.unwrap();
            assert_eq!(response["usage"]["output_tokens"], counted);
            assert_eq!(response["usage"]["input_tokens"], 3);
            let said: usize = texts(&response["output"]).iter().map(|text| count(Family::Estimated, text)).sum();
            assert!(said as u64 <= counted && counted <= tokens, "{tokens}: {said} {counted}");
            // Whatever was added is done, and as the last event has it.
            let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
            assert_eq!(of("response.output_item.added").len(), of("response.output_item.done").len());
            let done: Vec<&Value> = of("response.output_item.done").iter().map(|event| &event["item"]).collect();
            assert_eq!(json!(done), response["output"]);
            assert_eq!(of("response.content_part.added").len(), of("response.content_part.done").len());
            assert_eq!(
                of("response.reasoning_summary_part.added").len(),
                of("response.reasoning_summary_part.done").len()
            );
            let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
            let in_parts = texts(&response["output"]).concat();
            assert!(deltas.chars().all(|c| in_parts.contains(c)), "{deltas} {in_parts}");
        }
        let (out, _, tap) = passed(SpliceRules { bound: Some(bound(all)), ..rules() }, &[golden.as_bytes()]);
        assert!(!tap.is_cut());
        let begun = data(golden)[0]["response"].to_string().len();
        let said: usize = data(golden).iter().filter_map(|event| event["delta"].as_str()).map(str::len).sum();
        assert!((begun + said..golden.len()).contains(&tap.kept()), "{} of {}", tap.kept(), golden.len());
        assert_eq!(out, expected(golden));
    }
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_bytes(
        which in 0_usize..3,
        places in proptest::collection::vec(any::<usize>(), 0..12),
        line_end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        tokens in prop_oneof![Just(None), (0_u64..40).prop_map(Some)],
    ) {
        let text = GOLDEN[which].replace('\n', line_end);
        let bytes = text.as_bytes();
        let pieces = cut(bytes, &places);
        let rules = || SpliceRules { bound: tokens.map(bound), ..rules() };
        let (out, ended, tap) = passed(rules(), &pieces);
        prop_assert!(ended.is_ok());
        if !tap.is_cut() {
            prop_assert_eq!(&out, &expected(GOLDEN[which]).replace('\n', line_end));
        }
        prop_assert_eq!(out, passed(rules(), &[bytes]).0);
    }
}
