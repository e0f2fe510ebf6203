use std::sync::Arc;

use serde_json::json;
use tokens::Family;

use super::*;
use crate::dialect::golden;
use crate::dialect::openai::OutputBound;
use crate::dialect::responses::ResponsesRequest;

fn rules(tokens: Option<u64>) -> SpliceRules {
    let echo = ResponsesRequest::parse(br#"{"input":"a","instructions":"own"}"#).unwrap().echo();
    let bound = |tokens| OutputBound { field: "max_tokens", tokens, family: Family::O200k, prompt_tokens: 0 };
    SpliceRules { bound: tokens.map(bound), echo: Some(Arc::new(echo)), ..golden::rules() }
}

const BODY: &str = r#"{ "id":"resp_1","object":"response","model" : "gpt-real-1","instructions":"RULES\n\nown","status":"completed","error":null,"incomplete_details":null,"output":[
    {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gAAA"},
    {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"one two three four","annotations":[7],"logprobs":[]}]},
    {"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}","status":"completed"}],
    "x":1e2,"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":5},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":10}}"#;

#[test]
fn only_the_model_and_the_instructions_of_an_answer_change() {
    let answer = read_answer(&Bytes::from_static(BODY.as_bytes()), &rules(Some(100)), None).unwrap();
    let expected = BODY.replace("\"gpt-real-1\"", "\"asked\"").replace("RULES\\n\\nown", "own");
    assert_eq!(answer.body, expected);
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (10, 5, 0));
    assert_eq!(
        (answer.finish_reasons, answer.upstream_model.as_deref()),
        (vec!["tool_calls".to_owned()], Some("gpt-real-1"))
    );
    assert_eq!(answer.delivered.text(), "hmone two three fourf{}");
    let answer = read_answer(&Bytes::from(expected.clone()), &rules(None), None).unwrap();
    assert_eq!((answer.body, answer.counted_output), (Bytes::from(expected), None));
}

#[test]
fn an_answer_ends_at_its_bound() {
    let cut = |tokens| {
        let answer = read_answer(&Bytes::from_static(BODY.as_bytes()), &rules(Some(tokens)), None).unwrap();
        assert!(answer.counted_output.unwrap() <= tokens);
        let told: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&told["status"], answer.finish_reasons), (&json!("incomplete"), vec!["length".to_owned()]));
        assert_eq!(told["incomplete_details"], json!({ "reason": "max_output_tokens" }));
        assert_eq!((&told["model"], &told["usage"]["input_tokens"]), (&json!("asked"), &json!(10)));
        told["output"].clone()
    };
    let output = cut(3);
    assert_eq!(output.as_array().unwrap().len(), 2);
    let part = json!({ "type": "output_text", "text": "one two", "annotations": [], "logprobs": [] });
    assert_eq!((&output[1]["content"], &output[1]["status"]), (&json!([part]), &json!("incomplete")));
    assert_eq!(cut(5).as_array().unwrap().len(), 2);
    assert_eq!(cut(0)[0]["summary"][0]["text"], "");
}

#[test]
fn a_200_that_is_no_answer_is_an_error() {
    for body in ["", "[]", "{}", r#"{"output":7}"#] {
        let error = read_answer(&Bytes::from_static(body.as_bytes()), &rules(None), None).unwrap_err();
        assert!(matches!(error, UpstreamError::BadAnswer(_)), "{body}");
    }
    let failed = r#"{"status":"failed","error":{"code":"rate_limit_exceeded","message":"slow down"},"output":[]}"#;
    let error = read_answer(&Bytes::from_static(failed.as_bytes()), &rules(None), None).unwrap_err();
    assert_eq!((error.status(), error.message()), (429, "slow down".to_owned()));
}
