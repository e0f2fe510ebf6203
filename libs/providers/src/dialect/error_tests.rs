//! What every provider's errors become: answers with an error status, answers of 200 that hold an error, and errors in the
//! middle of streams, each as the provider's reference shows it.

use std::collections::BTreeMap;

use bytes::BytesMut;
use domain::{ConnectionId, ProviderType};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::golden::rules;
use super::*;
use crate::error::Charge;

const CREDENTIAL: &str = "own-credential-1";

/// One error of a provider's, and what it comes to here.
#[derive(Deserialize)]
struct Case {
    status: Option<u16>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Value>,
    stream: Option<String>,
    /// Whether only clients of another dialect hear of it: a reason to end is passed on to those of the same.
    #[serde(default)]
    translated: bool,
    told: Value,
}

fn connection(provider: ProviderType) -> Connection {
    Connection {
        id: ConnectionId(1),
        provider,
        base_url: Url::parse("http://host.example/v1").unwrap(),
        credential: Some(Secret::new(CREDENTIAL)),
        model: "m".to_owned(),
    }
}

/// All that anybody learns of an error.
fn told(error: &UpstreamError) -> Value {
    let charge = match error.charge() {
        Charge::Nothing => "nothing",
        Charge::Request => "request",
        Charge::Prompt => "prompt",
    };
    serde_json::json!({
        "status": error.status(),
        "type": error.error_type(),
        "code": error.code(),
        "param": error.param(),
        "message": error.message(),
        "retry_after_ms": error.retry_after().map(|wait| wait.as_millis() as u64),
        "again": error.is_retryable(),
        "elsewhere": error.is_of_destination(),
        "charge": charge,
    })
}

/// What a golden says with what it leaves out because most errors have it.
fn expected(golden: &Value) -> Value {
    let mut whole = serde_json::json!({
        "status": 0, "type": "upstream_error", "code": null, "param": null, "message": "", "retry_after_ms": null,
        "again": false, "elsewhere": false, "charge": "request",
    });
    whole.as_object_mut().unwrap().extend(golden.as_object().unwrap().clone());
    whole
}

fn streamed(upstream: UpstreamDialect, client: ClientDialect, text: &str) -> UpstreamError {
    let (mut tap, mut out) = (upstream.tap(client, rules(), Some(Secret::new(CREDENTIAL))), BytesMut::new());
    let error = tap.push(text.as_bytes(), &mut out).unwrap_err();
    assert!(!tap.saw_done() && !tap.is_complete(), "{text}");
    let told = String::from_utf8(out.to_vec()).unwrap();
    for end in ["[DONE]", "message_stop", "response.completed"] {
        assert!(!told.contains(end), "{told}");
    }
    error
}

#[test]
fn every_providers_errors_are_told() {
    use ProviderType::{
        Anthropic, AzureOpenAi, CohereRerank, CustomOpenAi, DeepSeek, Gemini, Groq, Mistral, Ollama, OpenAi,
        OpenRouter, VoyageRerank, XAi,
    };
    let goldens = [
        (OpenAi, include_str!("openai/golden/openai.errors.json")),
        (AzureOpenAi, include_str!("openai/golden/azure.errors.json")),
        (DeepSeek, include_str!("openai/golden/deepseek.errors.json")),
        (Mistral, include_str!("openai/golden/mistral.errors.json")),
        (Groq, include_str!("openai/golden/groq.errors.json")),
        (XAi, include_str!("openai/golden/xai.errors.json")),
        (OpenRouter, include_str!("openai/golden/openrouter.errors.json")),
        (CustomOpenAi, include_str!("openai/golden/custom.errors.json")),
        (Anthropic, include_str!("anthropic/golden/errors.json")),
        (Gemini, include_str!("gemini/golden/errors.json")),
        (Ollama, include_str!("ollama/golden/errors.json")),
        (CohereRerank, include_str!("cohere/golden/errors.json")),
        (VoyageRerank, include_str!("voyage/golden/errors.json")),
    ];
    assert!(ProviderType::ALL.iter().all(|provider| goldens.iter().any(|(of, _)| of == provider)));
    for (provider, golden) in goldens {
        for case in serde_json::from_str::<Vec<Case>>(golden).unwrap() {
            let clients = [ClientDialect::Chat, ClientDialect::Messages].into_iter().skip(usize::from(case.translated));
            let chats = |client| UpstreamDialect::of(provider, client).unwrap();
            let body = case.body.as_ref().map(|body| body.as_str().map_or_else(|| body.to_string(), str::to_owned));
            let errors: Vec<UpstreamError> = match (case.status, body, &case.stream) {
                (Some(200), Some(body), None) => {
                    let body = Bytes::from(body);
                    let read = |client| chats(client).answer(client, &body, &rules(), Some(CREDENTIAL)).unwrap_err();
                    clients.map(read).collect()
                }
                (Some(status), Some(body), None) => {
                    let headers = case.headers.iter().map(|(name, value)| {
                        (HeaderName::try_from(name).unwrap(), HeaderValue::from_str(value).unwrap())
                    });
                    vec![refusal(&connection(provider), status, &headers.collect(), body.as_bytes())]
                }
                (None, None, Some(text)) => clients.map(|client| streamed(chats(client), client, text)).collect(),
                _ => panic!("a case is an answer or a stream"),
            };
            for error in errors {
                assert_eq!(told(&error), expected(&case.told), "{provider:?}");
            }
        }
    }
}
