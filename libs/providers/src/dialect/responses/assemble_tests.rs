use domain::ProviderType;
use serde_json::Value;
use tokens::Family;

use super::*;
use crate::Inbound;
use crate::dialect::golden::{BOTH, PLAIN};
use crate::dialect::openai::OutputBound;

fn call(body: &str, outgoing: &Outgoing<'_>) -> (String, Vec<String>) {
    let call = Inbound::parse(ClientDialect::Responses, body.as_bytes()).unwrap().call(ProviderType::OpenAi, outgoing);
    let call = call.unwrap();
    serde_json::from_slice::<Value>(&call.body).unwrap();
    (String::from_utf8(call.body.to_vec()).unwrap(), call.dropped)
}

fn sent(body: &str, outgoing: &Outgoing<'_>) -> String {
    call(body, outgoing).0
}

#[test]
fn everything_but_the_model_and_store_is_sent_as_it_came() {
    let body = "{ \"temperature\" : 1.50,\n\t\"store\":true,\"model\": \"asked\" , \"x\":{\"b\" :1e2},\"input\":[ {\"role\":\"user\",\"content\":\"\\u0061\",\"y\":1} ],\"ragmux\":{} }";
    let expected = body.replace("\"asked\"", "\"real\"").replace("true", "false").replace(",\"ragmux\":{}", "");
    assert_eq!(call(body, &PLAIN), (expected, vec!["store".to_owned()]));
    assert_eq!(sent(r#"{"input":"a"}"#, &PLAIN), r#"{"model":"real","store":false,"input":"a"}"#);
    let body = r#"{"store":false,"model":"real","input":"a"}"#;
    assert_eq!(call(body, &PLAIN), (body.to_owned(), Vec::new()));
}

#[test]
fn texts_go_before_the_clients_own() {
    let last_user = Outgoing { placement: ContextPlacement::LastUser, ..BOTH };
    for (outgoing, given, expected) in [
        (&BOTH, r#""input":"q""#, r#""instructions":"CTX \"1\"\n\nRULES","input":"q""#),
        (&BOTH, r#""instructions":"own","input":"q""#, r#""instructions":"CTX \"1\"\n\nRULES\n\nown","input":"q""#),
        (&BOTH, r#""instructions":"","input":"q""#, r#""instructions":"CTX \"1\"\n\nRULES","input":"q""#),
        (&BOTH, r#""instructions":null,"input":"q""#, r#""instructions":"CTX \"1\"\n\nRULES","input":"q""#),
        (&last_user, r#""input":"q""#, r#""instructions":"RULES","input":"CTX \"1\"\n\nq""#),
        (
            &last_user,
            r#""input":[{"role":"user","content":"a"},{"role":"user","content":"q"},{"role":"assistant","content":"x"}]"#,
            r#""instructions":"RULES","input":[{"role":"user","content":"a"},{"role":"user","content":"CTX \"1\"\n\nq"},{"role":"assistant","content":"x"}]"#,
        ),
        (
            &last_user,
            r#""input":[{"role":"user","content":[{"type":"input_text","text":"q"}]}]"#,
            r#""instructions":"RULES","input":[{"role":"user","content":[{"type":"input_text","text":"CTX \"1\""},{"type":"input_text","text":"q"}]}]"#,
        ),
        (
            &last_user,
            r#""input":[{"role":"assistant","content":"x"}]"#,
            r#""instructions":"CTX \"1\"\n\nRULES","input":[{"role":"assistant","content":"x"}]"#,
        ),
    ] {
        let body = |members: &str| format!(r#"{{"model":"real","store":false,{members}}}"#);
        let sent: Value = serde_json::from_str(&sent(&body(given), outgoing)).unwrap();
        assert_eq!(sent, serde_json::from_str::<Value>(&body(expected)).unwrap());
    }
}

#[test]
fn a_bound_lowers_what_is_above_it_and_is_never_less_than_the_api_takes() {
    let bound = |tokens| Outgoing {
        output_bound: Some(OutputBound {
            field: "max_completion_tokens",
            tokens,
            family: Family::Estimated,
            prompt_tokens: 0,
        }),
        ..PLAIN
    };
    let body = |limit: &str| format!(r#"{{{limit}"model":"real","store":false,"input":"a"}}"#);
    for (given, tokens, expected) in [
        ("", 50, r#""max_output_tokens":50,"#),
        (r#""max_output_tokens":90,"#, 50, r#""max_output_tokens":50,"#),
        (r#""max_output_tokens":null,"#, 50, r#""max_output_tokens":50,"#),
        (r#""max_output_tokens":20,"#, 50, r#""max_output_tokens":20,"#),
        (r#""max_output_tokens":90,"#, 3, r#""max_output_tokens":16,"#),
    ] {
        assert_eq!(sent(&body(given), &bound(tokens)), body(expected));
    }
}

#[test]
fn what_refers_to_answers_that_were_not_kept_is_taken_out() {
    let thought = |seal: &str| format!(r#"{{"type":"reasoning","id":"rs_1","summary":[]{seal}}}"#);
    let rest = |id: &str| {
        format!(
            r#"{{{id}"type":"function_call","call_id":"c","name":"f","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"c","output":"x"}}"#
        )
    };
    let body = |items: &[String]| {
        format!(r#"{{"model":"real","store":false,"input":[{{"role":"user","content":"q"}},{}]}}"#, items.join(","))
    };
    let id = rest(r#""id":"fc_1","#);
    for seal in ["", r#","encrypted_content":null"#, r#","encrypted_content":"ragmux-signed:x""#] {
        let (sent, dropped) = call(&body(&[thought(seal), thought(seal), id.clone()]), &PLAIN);
        assert_eq!((sent, dropped), (body(&[rest("")]), vec!["input[1]".to_owned(), "input[2]".to_owned()]));
    }
    // What the provider can read goes back as it came.
    let kept = body(&[thought(r#","encrypted_content":"gAAA""#), id]);
    assert_eq!(call(&kept, &PLAIN), (kept.clone(), Vec::new()));
    let first =
        format!(r#"{{"model":"real","store":false,"input":[{},{{"role":"user","content":"q"}}]}}"#, thought(""));
    assert_eq!(sent(&first, &PLAIN), r#"{"model":"real","store":false,"input":[{"role":"user","content":"q"}]}"#);
    let signed = rest(r#""id":"fc_1","extra_content":{"google":{"thought_signature":"g"}},"#);
    assert_eq!(sent(&body(&[thought(""), signed]), &PLAIN), body(&[rest("")]));
}

#[test]
fn other_providers_are_asked_in_their_own_dialect() {
    let body = r#"{"model":"asked","instructions":"own","store":true,"input":"q"}"#;
    let inbound = Inbound::parse(ClientDialect::Responses, body.as_bytes()).unwrap();
    for (provider, upstream) in [
        (ProviderType::OpenAi, UpstreamDialect::Responses),
        (ProviderType::AzureOpenAi, UpstreamDialect::Responses),
        (ProviderType::Mistral, UpstreamDialect::Chat),
        (ProviderType::CustomOpenAi, UpstreamDialect::Chat),
        (ProviderType::Anthropic, UpstreamDialect::Messages),
    ] {
        let call = inbound.call(provider, &BOTH).unwrap();
        assert_eq!((call.upstream, call.dropped.as_slice()), (upstream, &["store".to_owned()][..]));
        assert!(String::from_utf8(call.body.to_vec()).unwrap().contains("CTX \\\"1\\\"\\n\\nRULES\\n\\nown"));
    }
}
