//! What is sent and what is answered.

use std::net::SocketAddr;

use serde_json::json;
use upstream::{Behaviour, Raw, STAMP};

use crate::load::Target;

/// The model behind every leg: one whose tokens are counted with a real tokenizer.
pub(crate) const MODEL: &str = "gpt-4o-mini";
/// Bytes of a request's body.
pub(crate) const REQUEST_BYTES: usize = 256;
/// Bytes of an answer's body.
pub(crate) const ANSWER_BYTES: usize = 1024;
/// The pause between two events of a paced stream.
pub(crate) const PACE_MS: u64 = 20;
/// The path that every leg is called on.
pub(crate) const PATH: &str = "/v1/chat/completions";

/// Ordinary words, so that counting tokens costs what it does on ordinary text.
const WORDS: &str = "The harbour master wrote down every ship that passed the lighthouse before noon, its flag, its \
                     cargo and the weather, because the insurers in the city asked for it each month. ";

/// A way from the client to the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    /// What it is called in results.
    pub(crate) name: &'static str,
    /// Where the client connects to.
    pub(crate) address: SocketAddr,
    /// The path of chat completions.
    pub(crate) path: String,
    /// The key.
    pub(crate) key: String,
    /// The model asked for.
    pub(crate) model: String,
}

impl Leg {
    /// A call that is answered whole.
    pub(crate) fn chat(&self) -> Target {
        self.target(r#","max_tokens":256"#)
    }

    /// A call that is answered by a stream, with usage.
    pub(crate) fn stream(&self) -> Target {
        self.target(r#","max_tokens":256,"stream":true,"stream_options":{"include_usage":true}"#)
    }

    fn target(&self, members: &str) -> Target {
        let head = format!(r#"{{"model":"{}","messages":[{{"role":"user","content":""#, self.model);
        let tail = format!(r#""}}]{members}}}"#);
        let content = words(REQUEST_BYTES.saturating_sub(head.len() + tail.len()));
        let body = format!("{head}{content}{tail}");
        Target { name: self.name, address: self.address, request: self.request(&self.path, &body) }
    }

    fn request(&self, path: &str, body: &str) -> Vec<u8> {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            self.key,
            body.len()
        )
        .into_bytes()
    }
}

/// So many bytes of words.
fn words(bytes: usize) -> String {
    WORDS.chars().cycle().take(bytes).collect()
}

/// An instant answer of [`ANSWER_BYTES`].
pub(crate) fn instant() -> Behaviour {
    let answer = |content: &str| {
        format!(
            r#"{{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"{MODEL}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{content}","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":48,"completion_tokens":150,"total_tokens":198}}}}"#
        )
    };
    let content = words(ANSWER_BYTES.saturating_sub(answer("").len()));
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: answer(&content) };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

/// A stream of numbered and stamped events, [`PACE_MS`] apart.
pub(crate) fn paced(events: usize) -> Behaviour {
    let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body: transcript(MODEL, events) };
    Behaviour { raw: Some(raw), between_events_ms: PACE_MS, stamp: true, ..Behaviour::default() }
}

/// What a client that asked for usage gets of a stream, byte for byte but for the stamps.
pub(crate) fn transcript(model: &str, events: usize) -> String {
    let event = |choices: &serde_json::Value, usage: &serde_json::Value| {
        format!(
            "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
             \"model\":\"{model}\",\"choices\":{choices},\"usage\":{usage}}}\n\n"
        )
    };
    let piece = |delta: serde_json::Value, reason: Option<&str>| {
        event(&json!([{ "index": 0, "delta": delta, "finish_reason": reason }]), &serde_json::Value::Null)
    };
    let mut text = piece(json!({ "role": "assistant", "content": "" }), None);
    for number in 1..=events {
        text.push_str(&piece(json!({ "content": format!(" #{number:06}{STAMP}") }), None));
    }
    text.push_str(&piece(json!({}), Some("stop")));
    let usage = json!({ "prompt_tokens": 48, "completion_tokens": events, "total_tokens": 48 + events });
    text.push_str(&event(&json!([]), &usage));
    text.push_str("data: [DONE]\n\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg(model: &str) -> Leg {
        Leg {
            name: "x",
            address: ([127, 0, 0, 1], 1).into(),
            path: PATH.to_owned(),
            key: "k".to_owned(),
            model: model.to_owned(),
        }
    }

    #[test]
    fn every_leg_sends_and_gets_the_same_amount() {
        for target in [leg(MODEL).chat(), leg("m").chat(), leg("a-longer-name").stream()] {
            let text = String::from_utf8(target.request).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(body.len(), REQUEST_BYTES);
            assert!(head.contains("content-length: 256"));
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(body["messages"][0]["content"].as_str().unwrap().starts_with("The harbour"));
        }
        let answer = instant().raw.unwrap().body;
        assert_eq!(answer.len(), ANSWER_BYTES);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&answer).unwrap()["usage"]["total_tokens"], 198);
    }

    #[test]
    fn a_stream_is_made_of_json_events() {
        let text = transcript("m", 3);
        let events: Vec<&str> =
            text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
        assert_eq!((events.len(), events[6]), (7, "[DONE]"));
        for event in &events[..6] {
            assert_eq!(serde_json::from_str::<serde_json::Value>(event).unwrap()["model"], "m");
        }
    }
}
