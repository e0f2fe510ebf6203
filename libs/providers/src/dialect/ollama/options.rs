//! How a model is run.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::dialect::openai::{Outgoing, RequestError};
use crate::hub::{Conversation, SettingKind};
use crate::json::Members;

const BOUND: &str = "num_predict";

/// The options of a call (Ollama API, Modelfile, Valid parameters and values): those that the client sends as they are, and
/// in their place what it says by its own API's names.
#[derive(Debug, Default)]
pub(super) struct Options<'a> {
    own: Vec<(&'static str, Cow<'a, RawValue>)>,
    given: Vec<(String, &'a RawValue)>,
}

impl<'a> Options<'a> {
    /// # Errors
    /// `options` is there and no object.
    pub(super) fn of(conversation: &'a Conversation<'_>, outgoing: &Outgoing<'_>) -> Result<Self, RequestError> {
        let mut options = Self::default();
        let extra = |wanted| conversation.extras.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        let given = extra("options").map(|value| Members::parse(value.get())).transpose().map_err(|_| {
            RequestError::Invalid { field: "options".to_owned(), must: "an object, as Ollama's API has it" }
        })?;
        let given = given.unwrap_or_default();
        for setting in &conversation.settings {
            let name = match setting.kind {
                SettingKind::Temperature => "temperature",
                SettingKind::TopP => "top_p",
                SettingKind::TopK => "top_k",
                SettingKind::Seed => "seed",
                SettingKind::FrequencyPenalty => "frequency_penalty",
                SettingKind::PresencePenalty => "presence_penalty",
            };
            options.own.push((name, Cow::Borrowed(setting.value)));
        }
        let stops: Vec<&str> = conversation.stop.iter().map(AsRef::as_ref).filter(|stop| !stop.is_empty()).collect();
        if !stops.is_empty() {
            options.put("stop", &stops)?;
        }
        // A bound of the client's may be lower than ours; a negative one is none.
        let bound = given.present(BOUND).and_then(|value| value.get().parse::<u64>().ok());
        let kept = conversation.output_within(outgoing.output_bound.map(|bound| bound.tokens));
        if let Some(bound) = bound.into_iter().chain(kept).min() {
            options.put(BOUND, &bound)?;
        }
        options.own.extend(extra("num_ctx").map(|value| ("num_ctx", Cow::Borrowed(value))));
        let is_own = |name: &str| options.own.iter().any(|(own, _)| *own == name);
        options.given =
            given.iter().filter(|(name, _)| !is_own(name)).map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(options)
    }

    fn put(&mut self, name: &'static str, value: &impl Serialize) -> Result<(), RequestError> {
        let value = serde_json::value::to_raw_value(value);
        let value = value.map_err(|error| RequestError::Malformed(error.to_string()))?;
        self.own.push((name, Cow::Owned(value)));
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.given.is_empty()
    }
}

impl Serialize for Options<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.own.len() + self.given.len()))?;
        for (name, value) in &self.own {
            map.serialize_entry(name, value.as_ref())?;
        }
        for (name, value) in &self.given {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokens::Family;

    use super::super::body;
    use super::*;
    use crate::dialect::golden::PLAIN;
    use crate::dialect::openai::{ChatRequest, OutputBound};

    fn sent(members: Value, bound: Option<u64>) -> Result<Value, RequestError> {
        let mut request = json!({ "messages": [{ "role": "user", "content": "q" }] });
        request.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let text = request.to_string();
        let request = ChatRequest::parse(text.as_bytes()).unwrap();
        let conversation = request.conversation().unwrap();
        assert!(conversation.dropped.is_empty());
        let output_bound = bound.map(|tokens| OutputBound {
            field: "max_tokens",
            tokens,
            family: Family::Estimated,
            prompt_tokens: 0,
        });
        let mut lost = Vec::new();
        let body = body(&conversation, &Outgoing { output_bound, ..PLAIN }, &mut lost)?;
        assert!(lost.is_empty());
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn what_clients_of_ollama_send_beside_the_api_is_honoured() {
        let extras = json!({ "keep_alive": "10m", "num_ctx": 8192, "options": { "mirostat": 2, "temperature": 0.1, "num_ctx": 4096 } });
        let body = sent(extras, None).unwrap();
        assert_eq!(body["keep_alive"], "10m");
        assert_eq!(body["options"], json!({ "num_ctx": 8192, "mirostat": 2, "temperature": 0.1 }));
        let body =
            sent(json!({ "temperature": 0.5, "options": { "temperature": 0.1 }, "keep_alive": 0 }), None).unwrap();
        assert_eq!((&body["options"], &body["keep_alive"]), (&json!({ "temperature": 0.5 }), &json!(0)));
        let refused = sent(json!({ "options": [] }), None).unwrap_err();
        assert_eq!(refused.param(), Some("options"));
    }

    #[test]
    fn no_option_lifts_a_bound() {
        for (members, bound, sent_bound) in [
            (json!({ "options": { "num_predict": -1 } }), Some(20), json!(20)),
            (json!({ "options": { "num_predict": 100 } }), Some(20), json!(20)),
            (json!({ "options": { "num_predict": 10 } }), Some(20), json!(10)),
            (json!({ "max_tokens": 5, "options": { "num_predict": 10 } }), None, json!(5)),
            (json!({ "options": { "num_predict": -1 } }), None, json!(-1)),
        ] {
            assert_eq!(sent(members.clone(), bound).unwrap()["options"]["num_predict"], sent_bound, "{members}");
        }
    }
}
