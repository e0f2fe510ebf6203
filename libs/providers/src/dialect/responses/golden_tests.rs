//! What the provider's transcripts say, and what the request of a client becomes.

use bytes::Bytes;
use domain::Secret;

use super::reader::{ResponseReader, read_whole};
use crate::dialect::golden::{call, read_events};
use crate::error::UpstreamError;
use crate::hub::{Finish, Part, Reader, Whole};
use crate::usage::Usage;

fn streamed(text: &str) -> Result<Whole, UpstreamError> {
    let mut reader = ResponseReader::new(Some(Secret::new("sk-own")));
    let (whole, ended) = read_events(&mut reader, text);
    ended?;
    assert!(reader.is_over());
    Ok(whole)
}

/// The answer that the last event of a stream carries.
fn whole(text: &str) -> Whole {
    let data = text.lines().rfind(|line| line.starts_with("data: ")).unwrap().trim_start_matches("data: ");
    let event: serde_json::Value = serde_json::from_str(data).unwrap();
    read_whole(&Bytes::from(event["response"].to_string()), None).unwrap()
}

#[test]
fn a_transcript_says_the_same_in_pieces_and_whole() {
    let usage = |prompt, completion, cached, reasoning| Usage {
        prompt_tokens: prompt,
        completion_tokens: completion,
        cached_tokens: cached,
        reasoning_tokens: reasoning,
        ..Usage::default()
    };
    for (text, parts, finish, reported) in [
        (
            include_str!("golden/text.sse"),
            vec![
                Part::Reasoning { text: "When is the light lit?".to_owned(), signature: None },
                Part::Text("It is lit at nine — é.".to_owned()),
            ],
            Finish::Stop,
            usage(37, 41, 12, 29),
        ),
        (
            include_str!("golden/tools.sse"),
            vec![call("call_9aX", "tide", "{\"port\":\"Brest\"}"), call("call_9aY", "shell", "ls -l")],
            Finish::ToolCalls,
            usage(61, 27, 0, 0),
        ),
        (
            include_str!("golden/refused.sse"),
            vec![Part::Refusal("I will not help with that.".to_owned())],
            Finish::ContentFilter,
            usage(14, 8, 0, 0),
        ),
    ] {
        let read = streamed(text).unwrap();
        assert_eq!((&read.parts, &read.finish, &read.usage), (&parts, &Some(finish), &Some(reported)));
        assert_eq!(read.model.as_deref(), Some("gpt-5-mini-2025-08-07"));
        assert!(read.id.as_deref().is_some_and(|id| id.starts_with("resp_")));
        assert_eq!(whole(text), read);
    }
}

#[test]
fn an_error_in_a_stream_is_a_decision_and_keeps_no_credential() {
    let error = streamed(include_str!("golden/failed.sse")).unwrap_err();
    assert_eq!((error.status(), error.message()), (429, "Slow down, [redacted].".to_owned()));
    for (event, status, message) in [
        (
            r#"{"type":"error","code":"server_error","message":"broken","param":null,"sequence_number":3}"#,
            502,
            "broken",
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","code":"invalid_prompt","message":"no"}}"#,
            400,
            "no",
        ),
    ] {
        let error = streamed(&format!("event: error\ndata: {event}\n\n")).unwrap_err();
        assert_eq!((error.status(), error.message()), (status, message.to_owned()), "{event}");
    }
}
