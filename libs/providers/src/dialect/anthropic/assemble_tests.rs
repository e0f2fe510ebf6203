use serde_json::Value;
use tokens::Family;

use super::*;
use crate::dialect::golden::{BOTH, PLAIN};
use crate::dialect::openai::OutputBound;

const AT_USER: Outgoing<'static> = Outgoing { placement: ContextPlacement::LastUser, ..BOTH };

fn sent(body: &str, outgoing: &Outgoing<'_>) -> String {
    let call = MessagesRequest::parse(body.as_bytes()).unwrap().call(outgoing);
    serde_json::from_slice::<Value>(&call.body).unwrap();
    String::from_utf8(call.body.to_vec()).unwrap()
}

fn system(system: &str, outgoing: &Outgoing<'_>) -> Value {
    let body = format!(r#"{{"max_tokens":9{system},"messages":[{{"role":"user","content":"a"}}]}}"#);
    serde_json::from_str::<Value>(&sent(&body, outgoing)).unwrap()["system"].take()
}

fn last(content: &str) -> Value {
    let body = format!(
        r#"{{"max_tokens":9,"messages":[{{"role":"user","content":"first"}},{{"role":"user","content":{content}}},{{"role":"assistant","content":"b"}}]}}"#
    );
    let mut sent: Value = serde_json::from_str(&sent(&body, &AT_USER)).unwrap();
    assert_eq!((&sent["system"], &sent["messages"][0]["content"]), (&"RULES".into(), &"first".into()));
    sent["messages"][1]["content"].take()
}

#[test]
fn everything_but_the_model_is_sent_as_it_came() {
    let body = "{ \"temperature\" : 1.50,\n\t\"model\": \"asked\" , \"x\":{\"b\" :1e2,\"B\":null},\"max_tokens\":9 ,\"messages\":[ {\"role\":\"user\",\"content\":\"\\u0061\"} ] }";
    assert_eq!(sent(body, &PLAIN), body.replace("\"asked\"", "\"real\""));
    assert_eq!(
        sent(
            r#"{"ragmux":{"include_context":true},"max_tokens":9,"messages":[{"role":"user","content":"a"}]}"#,
            &PLAIN
        ),
        r#"{"model":"real","max_tokens":9,"messages":[{"role":"user","content":"a"}]}"#
    );
}

#[test]
fn texts_go_before_the_clients_rules() {
    let all = "CTX \"1\"\n\nRULES";
    for (given, expected) in [
        ("", Value::from(all)),
        (r#","system":null"#, all.into()),
        (r#","system":"""#, all.into()),
        (r#","system":"own \"x\"""#, format!("{all}\n\nown \"x\"").into()),
        (r#","system":[]"#, serde_json::json!([{ "type": "text", "text": all }])),
    ] {
        assert_eq!(system(given, &BOTH), expected, "{given}");
    }
    let blocks = r#","system":[{"type":"text","text":"own","cache_control":{"type":"ephemeral"}}]"#;
    let text = |text: &str| serde_json::json!({ "type": "text", "text": text });
    assert_eq!(system(blocks, &BOTH), Value::from(vec![text(all), text("own")]));
    // The project's prompt is the same every time, so the cache is of use.
    let kept = serde_json::json!({ "type": "text", "text": "own", "cache_control": { "type": "ephemeral" } });
    let only_prompt = Outgoing { context: None, ..BOTH };
    assert_eq!(system(blocks, &only_prompt), Value::from(vec![text("RULES"), kept.clone()]));
    assert_eq!(system(blocks, &AT_USER), Value::from(vec![text("RULES"), kept]));
}

#[test]
fn context_goes_before_the_last_question_and_after_results_and_what_is_cached() {
    assert_eq!(last("\"why?\""), "CTX \"1\"\n\nwhy?");
    assert_eq!(last("\"\""), "CTX \"1\"");
    let text = |text: &str| serde_json::json!({ "type": "text", "text": text });
    let result = serde_json::json!({ "type": "tool_result", "tool_use_id": "a", "content": "r" });
    let marked =
        |text: &str| serde_json::json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    for (given, expected) in [
        (vec![], vec![text("CTX \"1\"")]),
        (vec![text("why?")], vec![text("CTX \"1\""), text("why?")]),
        (vec![result.clone()], vec![result.clone(), text("CTX \"1\"")]),
        (
            vec![result.clone(), result.clone(), text("why?")],
            vec![result.clone(), result.clone(), text("CTX \"1\""), text("why?")],
        ),
        (vec![marked("old"), text("why?")], vec![marked("old"), text("CTX \"1\""), text("why?")]),
        (vec![text("old"), marked("why?")], vec![text("old"), marked("why?"), text("CTX \"1\"")]),
    ] {
        assert_eq!(last(&Value::from(given).to_string()), Value::from(expected));
    }
}

#[test]
fn all_before_the_last_question_is_the_same_bytes_from_call_to_call() {
    let first = r#"{"model":"asked","max_tokens":9,"system":[{"type":"text","text":"own","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"one?"}"#;
    let second = format!(r#"{first},{{"role":"assistant","content":"1."}},{{"role":"user","content":"two?"}}"#);
    let with = |context, body: &str| sent(&format!("{body}]}}"), &Outgoing { context, ..AT_USER });
    let [one, two, none] = [with(Some("CTX 1"), &second), with(Some("CTX 2"), &second), with(None, &second)];
    let question = one.find("CTX 1").unwrap();
    assert_eq!(one[..question], two[..question]);
    assert_eq!(one[..question], none[..question]);
    assert!(one[..question].contains("one?") && one[..question].contains("cache_control"));
    let earlier = with(Some("CTX 1"), first);
    let its_question = earlier.find("CTX 1").unwrap();
    assert_eq!(earlier[..its_question], two[..its_question]);
}

#[test]
fn a_bound_lowers_what_is_above_it() {
    let bounded = |tokens, given: &str| -> Value {
        let bound = OutputBound { field: "max_tokens", tokens, family: Family::Estimated, prompt_tokens: 0 };
        let body = format!(r#"{{{given},"messages":[{{"role":"user","content":"a"}}]}}"#);
        serde_json::from_str(&sent(&body, &Outgoing { output_bound: Some(bound), ..PLAIN })).unwrap()
    };
    assert_eq!(bounded(10, r#""max_tokens":5"#)["max_tokens"], 5);
    assert_eq!(bounded(10, r#""max_tokens":50"#)["max_tokens"], 10);
    let thinks = r#""max_tokens":9000,"thinking":{"type":"enabled","budget_tokens":4000}"#;
    assert_eq!(bounded(5000, thinks)["thinking"]["budget_tokens"], 4000);
    assert_eq!(bounded(4000, thinks)["thinking"]["budget_tokens"], 3999);
    assert_eq!(bounded(1024, thinks)["thinking"], serde_json::json!({ "type": "disabled" }));
}

#[test]
fn headers_of_the_dialect_and_counts_go_along() {
    let sent = |version: Option<&str>, beta: &str| {
        let sent = AnthropicHeaders { version: version.map(str::to_owned), beta: Some(beta.to_owned()) };
        headers(&Outgoing { anthropic: Some(&sent), ..PLAIN })
    };
    let headers = sent(Some("2024-10-22"), "b-1,b-2");
    assert_eq!(headers.get("anthropic-version").unwrap(), "2024-10-22");
    assert_eq!(headers.get("anthropic-beta").unwrap(), "b-1,b-2");
    assert!(sent(None, "line\nend").is_empty());
    let count =
        MessagesRequest::parse_count(br#"{"model":"asked","messages":[{"role":"user","content":"a"}]}"#).unwrap();
    assert_eq!(
        count.count_call(&BOTH).body,
        r#"{"system":"CTX \"1\"\n\nRULES","model":"real","messages":[{"role":"user","content":"a"}]}"#
    );
}
