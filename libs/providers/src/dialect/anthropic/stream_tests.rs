use proptest::prelude::*;
use tokens::Family;

use super::super::reader::MessageReader;
use super::*;
use crate::dialect::golden::{self, cut};
use crate::dialect::openai::OutputBound;
use crate::error::UpstreamError;
use crate::tap::{Passed, Tap};
use crate::usage::Lacks;

const MEMBER: &str = "{\"sources\":[]}";
const GOLDEN: [&str; 6] = [
    include_str!("golden/text.sse"),
    include_str!("golden/tools.sse"),
    include_str!("golden/reasoning.sse"),
    include_str!("golden/cached.sse"),
    include_str!("golden/stopped.sse"),
    include_str!("golden/refused.sse"),
];

fn rules() -> SpliceRules {
    SpliceRules { member: Some(("ragmux", MEMBER.to_owned())), ..golden::rules() }
}

/// What a client gets of a stream that arrives in these pieces.
fn passed(rules: SpliceRules, pieces: &[&[u8]]) -> (String, Result<(), UpstreamError>, Passed) {
    let (mut tap, mut out) =
        (Passed::new(Box::new(MessageReader::new(None)), Box::<PassingMessage>::default(), rules), BytesMut::new());
    for piece in pieces {
        if let Err(error) = tap.push(piece, &mut out) {
            return (String::from_utf8(out.to_vec()).unwrap(), Err(error), tap);
        }
    }
    let ended = tap.finish(&mut out);
    (String::from_utf8(out.to_vec()).unwrap(), ended, tap)
}

/// A stream as the splices leave it.
fn spliced(golden: &str) -> String {
    let own = format!("event: ragmux\ndata: {{\"type\":\"ragmux\",\"ragmux\":{MEMBER}}}\n\nevent: message_stop");
    golden.replace("\"claude-real-1\"", "\"asked\"").replace("event: message_stop", &own)
}

proptest! {
    #[test]
    fn beside_the_splices_every_byte_is_the_providers(
        golden in 0..GOLDEN.len(),
        lines in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        places in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let text = GOLDEN[golden].replace('\n', lines);
        let bytes = text.as_bytes();
        let pieces = cut(bytes, &places);
        let (out, ended, tap) = passed(rules(), &pieces);
        prop_assert!(ended.is_ok() && tap.saw_done() && !tap.is_cut());
        let own = format!("event: ragmux\ndata: {{\"type\":\"ragmux\",\"ragmux\":{MEMBER}}}\n\n");
        prop_assert_eq!(out.matches(&own).count(), 1);
        let expected = spliced(GOLDEN[golden]).replace(&own, "").replace('\n', lines);
        prop_assert_eq!(out.replace(&own, ""), expected);
    }
}

#[test]
fn a_stream_that_needs_no_splice_is_copied_and_told_of() {
    let plain = SpliceRules { public_model: "claude-real-1".to_owned(), member: None, ..rules() };
    for golden in GOLDEN {
        let (out, ended, tap) = passed(plain.clone(), &[golden.as_bytes()]);
        ended.unwrap();
        assert_eq!(out, golden);
        let outcome = tap.outcome();
        assert!(outcome.complete && outcome.usage.is_some() && !outcome.delivered.is_empty());
        assert_eq!(outcome.upstream_model.as_deref(), Some("claude-real-1"));
    }
    assert_eq!(passed(rules(), &[GOLDEN[0].as_bytes()]).0, spliced(GOLDEN[0]));
}

#[test]
fn an_answer_that_breaks_off_is_an_error_and_so_is_one_without_its_last_event() {
    let up_to = |name: &str| GOLDEN[0].split_at(GOLDEN[0].find(name).unwrap()).0;
    let (out, ended, tap) = passed(rules(), &[up_to("event: message_delta").as_bytes()]);
    assert!(matches!(ended, Err(UpstreamError::Truncated)));
    assert!(!out.contains("ragmux"));
    // The prompt is known from the beginning.
    let usage = tap.outcome().usage.unwrap();
    assert!(usage.prompt_tokens > 0 && usage.lacks == Lacks::Completion);
    let (out, ended, tap) = passed(rules(), &[up_to("event: message_stop").trim_end().as_bytes()]);
    assert!(matches!(ended, Err(UpstreamError::Truncated)) && !out.contains("ragmux") && out.ends_with("\n\n"));
    assert!(!tap.is_complete() && !tap.saw_done());
    assert_eq!(tap.outcome().usage.unwrap().lacks, Lacks::Nothing);
    // Half an event is not passed on.
    let half = &GOLDEN[0][..GOLDEN[0].find("The lamp").unwrap()];
    assert!(passed(rules(), &[half.as_bytes()]).0.ends_with("data: {\"type\":\"ping\"}\n\n"));
}

#[test]
fn an_error_before_anything_else_leaves_the_call_open_to_another_try() {
    let overloaded = include_str!("golden/overloaded.sse");
    let (out, ended, tap) = passed(rules(), &[overloaded.as_bytes()]);
    assert_eq!(ended.unwrap_err().status(), 503);
    assert!(tap.saw_event() && !out.contains("error"));
    let first = overloaded.split_at(overloaded.find("event: error").unwrap()).1;
    let pinged = format!("event: ping\ndata: {{\"type\":\"ping\"}}\n\n{first}");
    let (_, ended, tap) = passed(rules(), &[pinged.as_bytes()]);
    assert!(ended.unwrap_err().is_retryable() && !tap.saw_event());
}

#[test]
fn an_answer_is_cut_between_events_and_ends_properly() {
    let bound = |tokens| OutputBound { field: "max_tokens", tokens, family: Family::O200k, prompt_tokens: 7 };
    for golden in GOLDEN {
        let (_, _, tap) = passed(SpliceRules { bound: Some(bound(10_000)), ..rules() }, &[golden.as_bytes()]);
        let all = tap.outcome().counted_output.unwrap();
        for tokens in 0..all {
            let (out, ended, tap) = passed(SpliceRules { bound: Some(bound(tokens)), ..rules() }, &[golden.as_bytes()]);
            ended.unwrap();
            assert!(tap.is_cut() && tap.is_complete() && tap.saw_done());
            let outcome = tap.outcome();
            let counted = outcome.counted_output.unwrap();
            assert!(counted <= tokens);
            // The log and the client have the same figures.
            let usage = outcome.usage.unwrap().filled(0, counted.cast_signed());
            assert!(out.contains(&format!("\"output_tokens\":{}}}", usage.completion_tokens)), "{out}");
            assert_eq!(outcome.finish_reasons, ["length"]);
            assert_eq!(
                out.matches("event: content_block_start").count(),
                out.matches("event: content_block_stop").count()
            );
            let end = out.find("event: message_delta").unwrap();
            assert!(out[end..].contains("\"stop_reason\":\"max_tokens\"") && out[end..].contains("\"input_tokens\":"));
            assert!(out[end..].find("event: ragmux").unwrap() < out[end..].find("event: message_stop").unwrap());
        }
        let (out, _, tap) = passed(SpliceRules { bound: Some(bound(all)), ..rules() }, &[golden.as_bytes()]);
        assert_eq!((out, tap.is_cut()), (spliced(golden), false));
    }
}

#[test]
fn what_is_not_understood_goes_by() {
    let odd = ": hello\n\ndata: [DONE]\n\nevent: news\ndata: {\"type\":\"news\",\"x\": 1}\n\n";
    let text = format!("{odd}{}", GOLDEN[0]);
    let (out, ended, _) = passed(rules(), &[text.as_bytes()]);
    ended.unwrap();
    assert_eq!(out, format!("{odd}{}", spliced(GOLDEN[0])));
}
