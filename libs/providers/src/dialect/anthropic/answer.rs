//! JSON answers of the same dialect, and counts of tokens.

use bytes::Bytes;

use super::reader::read_whole;
use super::writer::MessageWriter;
use crate::dialect::openai::{ChatAnswer, SpliceRules, splice_model, spliced};
use crate::error::UpstreamError;
use crate::hub::{Finish, Writer};
use crate::json::{Splices, object};
use crate::usage::Usage;

/// A provider's message with the model's name replaced. One that is longer than its bound is written anew.
pub(crate) fn read_answer(
    body: &Bytes,
    rules: &SpliceRules,
    credential: Option<&str>,
) -> Result<ChatAnswer, UpstreamError> {
    let whole = read_whole(body, credential)?;
    let (text, members) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    let mut splices = Splices::default();
    splice_model(&mut splices, text, &members, &rules.public_model);
    let mut body = spliced(body, splices);
    let mut kept = whole.clone();
    let counted_output = rules.bound.map(|bound| kept.bound(&bound));
    if kept != whole {
        body = MessageWriter::new(rules.public_model.clone()).whole(&kept, None);
    }
    let usage = kept.usage.and_then(Usage::believed);
    Ok(ChatAnswer {
        body,
        usage,
        finish_reasons: kept.finish.iter().map(Finish::as_openai).map(str::to_owned).collect(),
        delivered: kept.delivered(),
        counted_output,
        upstream_model: kept.model,
    })
}

/// The tokens that a provider counted.
pub(crate) fn read_count(body: &Bytes) -> Result<u64, UpstreamError> {
    let (_, members) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    let count = members.present("input_tokens").and_then(|value| value.get().parse().ok());
    count.ok_or(UpstreamError::BadAnswer("it has no count of tokens"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokens::Family;

    use super::*;
    use crate::dialect::golden;
    use crate::dialect::openai::OutputBound;

    fn rules(tokens: Option<u64>) -> SpliceRules {
        let bound = |tokens| OutputBound { field: "max_tokens", tokens, family: Family::O200k, prompt_tokens: 0 };
        SpliceRules { bound: tokens.map(bound), ..golden::rules() }
    }

    #[test]
    fn only_the_model_of_an_answer_changes() {
        let body = r#"{ "id":"msg_1", "model" : "claude-real-1","content":[{"type":"text","text":"a\u0062","citations":null}],"x":1e2,"stop_reason":"end_turn","usage":{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":0}}"#;
        let answer = read_answer(&Bytes::from(body), &rules(Some(100)), None).unwrap();
        assert_eq!(answer.body, body.replace("\"claude-real-1\"", "\"asked\""));
        let usage = answer.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (15, 5, 0));
        assert_eq!(answer.finish_reasons, ["stop"]);
        assert_eq!((answer.delivered.text(), answer.counted_output), ("ab", Some(1)));
        let same = body.replace("claude-real-1", "asked");
        assert_eq!(read_answer(&Bytes::from(same.clone()), &rules(None), None).unwrap().body, same);
    }

    #[test]
    fn an_answer_ends_at_its_bound() {
        let body = r#"{"id":"msg_1","model":"real","content":[{"type":"text","text":"one two three four"},
            {"type":"tool_use","id":"a","name":"f","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":9}}"#;
        let answer = read_answer(&Bytes::from_static(body.as_bytes()), &rules(Some(2)), None).unwrap();
        let told: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(told["content"], serde_json::json!([{ "type": "text", "text": "one two" }]));
        assert_eq!((&told["stop_reason"], &told["model"]), (&"max_tokens".into(), &"asked".into()));
        assert_eq!((answer.counted_output, answer.finish_reasons), (Some(2), vec!["length".to_owned()]));
    }

    #[test]
    fn a_count_is_a_number() {
        assert_eq!(read_count(&Bytes::from_static(b"{\"input_tokens\":2095}")).unwrap(), 2095);
        for body in ["{}", "7", "{\"input_tokens\":\"many\"}"] {
            assert!(read_count(&Bytes::from_static(body.as_bytes())).is_err());
        }
    }
}
