//! The body that goes upstream: the client's bytes with the few edits the gateway owes.

use std::borrow::Cow;

use bytes::Bytes;
use domain::ProviderType;
use http::HeaderMap;
use serde_json::value::RawValue;

use super::quirks::Quirks;
use super::request::{ChatMessage, ChatRequest, Content, OUTPUT_FIELDS, Part, SERVER_OUTPUT_FIELDS};
use super::{OutputBound, SpliceRules};
use crate::client::ChatCall;
use crate::dialect::anthropic::AnthropicHeaders;
use crate::dialect::{ClientDialect, UpstreamDialect};
use crate::hub::drop_path;
use crate::images::FetchedImages;
use crate::json::{Members, Splices, literal, span, unquoted};

/// Where retrieved passages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextPlacement {
    /// At the head of the system message.
    #[default]
    System,
    /// Before the text of the last user message, so that everything earlier stays the same from call to call and a
    /// provider that caches prompts can use its cache.
    LastUser,
}

/// The placement for a provider where the project chooses none.
#[must_use]
pub fn default_placement(provider: ProviderType) -> ContextPlacement {
    if provider.caches_prompts() { ContextPlacement::LastUser } else { ContextPlacement::System }
}

/// What a request is sent upstream with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// The model's name at the provider.
    pub model: &'a str,
    /// The name the answer shows: what the client asked for.
    pub public_model: &'a str,
    /// The context block, fenced and ready.
    pub context: Option<&'a str>,
    /// Where the context block goes.
    pub placement: ContextPlacement,
    /// The project's own prompt.
    pub project_prompt: Option<&'a str>,
    /// A bound that the output must not pass.
    pub output_bound: Option<OutputBound>,
    /// The most tokens of output that are expected, for APIs that insist on a bound.
    pub max_output: Option<u64>,
    /// A member of ours, name and JSON, that a streamed answer tells before its end.
    pub member: Option<(&'static str, &'a str)>,
    /// Headers of Anthropic's API as the client sent them, for a provider that knows them.
    pub anthropic: Option<&'a AnthropicHeaders>,
    /// The images that the request names by URL, for providers that want their bytes.
    pub images: Option<&'a FetchedImages>,
}

impl ChatRequest<'_> {
    /// The call for a server that knows all of the API.
    #[must_use]
    pub fn call(&self, outgoing: &Outgoing<'_>) -> ChatCall {
        self.call_to(ProviderType::CustomOpenAi, outgoing)
    }

    /// The call for a connection to a provider. All of the client's body stays as it was sent, byte for byte, but for: the value of
    /// `model`; usage, which is always asked for in streams; `ragmux`, which is removed; an output bound that must be
    /// kept; and the text put into one message. What a provider's reference knows under another name only, or refuses, is
    /// named as it knows it: an output limit, the role of a message, and the wish for usage that it grants unasked. What was
    /// said before loses what the provider has no place for.
    #[must_use]
    pub(crate) fn call_to(&self, provider: ProviderType, outgoing: &Outgoing<'_>) -> ChatCall {
        let quirks = Quirks::of(provider);
        let mut splices = Splices::default();
        let mut added = Vec::new();
        match self.members.get("model") {
            Some(value) => splices.replace(span(self.text, value.get()), literal(outgoing.model)),
            None => added.push(format!("\"model\":{}", literal(outgoing.model))),
        }
        if !quirks.stream_options {
            self.remove("stream_options", &mut splices);
        } else if self.stream {
            ask_for_usage(self.text, &self.members, &mut splices, &mut added);
        }
        self.remove("ragmux", &mut splices);
        let bound = outgoing.output_bound.map(|bound| (bound.field, (bound.tokens / self.n.max(1)).max(1)));
        self.put_limits(quirks, bound, &mut splices, &mut added);
        if !quirks.developer {
            let roles = self.messages.iter().filter(|message| message.role == "developer");
            for role in roles.filter_map(|message| message.members.get("role")) {
                splices.replace(span(self.text, role.get()), "\"system\"");
            }
        }
        self.put_texts(outgoing, &mut splices);
        let mut dropped = self.dropped_by(quirks);
        self.rename(quirks, &mut splices, &mut added, &mut dropped);
        self.remove_foreign(quirks, quirks.signer(outgoing.model), &mut splices, &mut dropped);
        self.fit_call_ids(quirks.call_ids, &mut splices);
        if !added.is_empty() {
            // `messages` is always there, so a comma is always right.
            let mut text = added.join(",");
            text.push(',');
            splices.insert(self.members.inside(self.text), text);
        }
        ChatCall {
            body: Bytes::from(splices.apply(self.text.as_bytes())),
            stream: self.stream,
            rules: self.rules(outgoing),
            dropped: dropped.into_iter().map(Cow::into_owned).collect(),
            client: ClientDialect::Chat,
            upstream: UpstreamDialect::Chat,
            headers: HeaderMap::new(),
        }
    }

    /// How the answer is changed on its way back, or written where it comes in another dialect.
    pub(crate) fn rules(&self, outgoing: &Outgoing<'_>) -> SpliceRules {
        SpliceRules {
            strip_usage: self.stream && !self.include_usage,
            functions: self.has_functions(),
            ..SpliceRules::of(outgoing, self.stream)
        }
    }

    /// What was removed and asked for something: usage is told to who asked for it, whoever was asked.
    fn dropped_by(&self, quirks: Quirks) -> Vec<Cow<'_, str>> {
        let options = self.members.present("stream_options").filter(|_| !quirks.stream_options);
        let options = options.and_then(|value| Members::parse(value.get()).ok());
        let names = options.iter().flat_map(Members::iter).map(|(name, _)| name);
        let mut dropped = Vec::new();
        for name in names.filter(|name| *name != "include_usage") {
            drop_path(&mut dropped, format!("stream_options.{name}"));
        }
        dropped
    }

    /// Names `seed` as the provider does, and takes out whom the client asks for where that is refused.
    fn rename(&self, quirks: Quirks, splices: &mut Splices, added: &mut Vec<String>, dropped: &mut Vec<Cow<'_, str>>) {
        if !quirks.refuses_unknown {
            return;
        }
        if let (Some(own), Some(seed)) = (quirks.seed.filter(|own| *own != "seed"), self.members.get("seed")) {
            self.remove("seed", splices);
            if self.members.get(own).is_none() {
                added.push(format!("\"{own}\":{}", seed.get()));
            }
        }
        for name in ["user", "safety_identifier"].into_iter().filter(|_| quirks.user.is_none()) {
            if self.members.present(name).is_some() {
                drop_path(dropped, name.to_owned());
            }
            self.remove(name, splices);
        }
    }

    fn remove(&self, name: &str, splices: &mut Splices) {
        for range in self.members.ranges_without(self.text, name) {
            splices.remove(range);
        }
    }

    /// Lowers every limit above our bound, and adds the bound under its field where that is absent. A limit under a name
    /// that the provider does not know moves to the one it knows, unless that has its own.
    fn put_limits(&self, quirks: Quirks, bound: Option<(&str, u64)>, splices: &mut Splices, added: &mut Vec<String>) {
        const NEWER: &str = "max_completion_tokens";
        const OLDER: &str = "max_tokens";
        let moves = !quirks.max_completion_tokens && bound.is_none_or(|(field, _)| field != NEWER);
        if moves {
            self.remove(NEWER, splices);
        }
        let moved = self.members.present(NEWER).filter(|_| moves);
        for name in OUTPUT_FIELDS.into_iter().chain(SERVER_OUTPUT_FIELDS).filter(|name| !moves || *name != NEWER) {
            let given = self.members.present(name).or(moved.filter(|_| name == OLDER)).map(RawValue::get);
            let limit = match (bound, given) {
                (Some((_, bound)), Some(given)) if !given.parse::<u64>().is_ok_and(|given| given <= bound) => {
                    bound.to_string()
                }
                (_, Some(given)) => given.to_owned(),
                (Some((field, bound)), None) if field == name => bound.to_string(),
                (_, None) => continue,
            };
            match self.members.get(name) {
                Some(value) if value.get() == limit => {}
                Some(value) => splices.replace(span(self.text, value.get()), limit),
                None => added.push(format!("\"{name}\":{limit}")),
            }
        }
    }

    fn put_texts(&self, outgoing: &Outgoing<'_>, splices: &mut Splices) {
        let (in_system, in_user) = match outgoing.placement {
            ContextPlacement::LastUser if self.messages.iter().any(|message| message.role == "user") => {
                (None, outgoing.context)
            }
            ContextPlacement::System | ContextPlacement::LastUser => (outgoing.context, None),
        };
        if let Some(context) = in_user
            && let Some(message) = self.messages.iter().rev().find(|message| message.role == "user")
        {
            self.put_before_question(message, context, splices);
        }
        let texts: Vec<&str> = [in_system, outgoing.project_prompt].into_iter().flatten().collect();
        if texts.is_empty() {
            return;
        }
        let text = texts.join("\n\n");
        match self.messages.first() {
            Some(first) if first.is_system() => {
                self.put_before(first, &text, splices);
                if in_system.is_some() {
                    self.remove_cache_marks(first, splices);
                }
            }
            _ => {
                let message = format!("{{\"role\":\"system\",\"content\":{}}},", literal(&text));
                if let Some(at) = self.members.get("messages").map(|value| after_bracket(self.text, value)) {
                    splices.insert(at, message);
                }
            }
        }
    }

    /// Puts a text before what the user says, but after what the client marks to be cached: the next call has it again,
    /// and the text not.
    fn put_before_question(&self, message: &ChatMessage<'_>, text: &str, splices: &mut Splices) {
        let is_marked = |part: &&Part<'_>| part.members.present("cache_control").is_some();
        match message.parts().iter().rfind(is_marked) {
            Some(marked) => {
                let part = format!(",{{\"type\":\"text\",\"text\":{}}}", literal(text));
                splices.insert(marked.members.range(self.text).end, part);
            }
            None => self.put_before(message, text, splices),
        }
    }

    /// Puts a text before the content of a message: into the string, or as a part of its own.
    fn put_before(&self, message: &ChatMessage<'_>, text: &str, splices: &mut Splices) {
        match (&message.content, message.raw_content) {
            (Content::Text(own), Some(raw)) => {
                let at = span(self.text, raw.get());
                let separator = if own.is_empty() { "" } else { "\n\n" };
                splices.insert(at.start + 1, unquoted(&format!("{text}{separator}")));
            }
            (Content::Parts(parts), Some(raw)) => {
                let comma = if parts.is_empty() { "" } else { "," };
                let part = format!("{{\"type\":\"text\",\"text\":{}}}{comma}", literal(text));
                splices.insert(after_bracket(self.text, raw), part);
            }
            (_, Some(raw)) => splices.replace(span(self.text, raw.get()), literal(text)),
            (_, None) => {
                // A message has a role, so a comma is right.
                splices.insert(message.members.inside(self.text), format!("\"content\":{},", literal(text)));
            }
        }
    }

    /// A prefix that differs with every query can never be read from a provider's cache, so marking it only costs.
    fn remove_cache_marks(&self, message: &ChatMessage<'_>, splices: &mut Splices) {
        let parts = match &message.content {
            Content::Parts(parts) => parts.as_slice(),
            Content::None | Content::Text(_) => &[],
        };
        for members in parts.iter().map(|part| &part.members).chain([&message.members]) {
            for range in members.ranges_without(self.text, "cache_control") {
                splices.remove(range);
            }
        }
    }
}

/// Has a stream tell what it used, whether or not the client asks for it. `members` are those of the body, which is `text`.
pub(crate) fn ask_for_usage(text: &str, members: &Members<'_>, splices: &mut Splices, added: &mut Vec<String>) {
    let Some(value) = members.get("stream_options") else {
        added.push("\"stream_options\":{\"include_usage\":true}".to_owned());
        return;
    };
    let Ok(options) = Members::parse(value.get()) else {
        splices.replace(span(text, value.get()), "{\"include_usage\":true}");
        return;
    };
    match options.get("include_usage") {
        Some(include) => splices.replace(span(text, include.get()), "true"),
        None => {
            let comma = if options.is_empty() { "" } else { "," };
            splices.insert(options.inside(text), format!("\"include_usage\":true{comma}"));
        }
    }
}

fn after_bracket(outer: &str, array: &RawValue) -> usize {
    span(outer, array.get()).start + 1
}

#[cfg(test)]
mod tests {
    use tokens::Family;

    use super::*;
    use crate::dialect::golden::{BOTH, PLAIN};

    fn sent(body: &str, outgoing: &Outgoing<'_>) -> String {
        let call = ChatRequest::parse(body.as_bytes()).unwrap().call(outgoing);
        serde_json::from_slice::<serde_json::Value>(&call.body).unwrap();
        String::from_utf8(call.body.to_vec()).unwrap()
    }

    #[test]
    fn everything_but_the_model_is_sent_as_it_came() {
        let body = "{ \"temperature\" : 1.50,\n\t\"model\": \"asked\" , \"x\":{\"b\" :1e2,\"B\":null},\"messages\":[ {\"role\":\"user\",\"content\":\"\\u0061\"} ] }";
        assert_eq!(sent(body, &PLAIN), body.replace("\"asked\"", "\"real\""));
    }

    #[test]
    fn a_missing_model_is_added_and_our_own_member_removed() {
        assert_eq!(
            sent(r#"{"ragmux":{"include_context":true},"messages":[{"role":"user"}]}"#, &PLAIN),
            r#"{"model":"real","messages":[{"role":"user"}]}"#
        );
        assert_eq!(
            sent(r#"{"model":"a","messages":[{"role":"user"}],"ragmux":{}}"#, &PLAIN),
            r#"{"model":"real","messages":[{"role":"user"}]}"#
        );
    }

    #[test]
    fn usage_is_always_asked_for_in_streams() {
        for (options, expected) in [
            ("", r#""stream_options":{"include_usage":true},"#),
            (r#""stream_options":null,"#, r#""stream_options":{"include_usage":true},"#),
            (r#""stream_options":{},"#, r#""stream_options":{"include_usage":true},"#),
            (r#""stream_options":{"x":1},"#, r#""stream_options":{"include_usage":true,"x":1},"#),
            (r#""stream_options":{"include_usage":false},"#, r#""stream_options":{"include_usage":true},"#),
        ] {
            let body =
                |options: &str| format!(r#"{{{options}"model":"real","stream":true,"messages":[{{"role":"user"}}]}}"#);
            assert_eq!(sent(&body(options), &PLAIN), body(expected));
        }
        assert_eq!(
            sent(r#"{"model":"m","stream":false,"messages":[{"role":"user"}]}"#, &PLAIN),
            r#"{"model":"real","stream":false,"messages":[{"role":"user"}]}"#
        );
    }

    #[test]
    fn what_a_provider_knows_by_another_name_is_named_so() {
        let sent = |provider, members: &str, bound| {
            let body = format!(r#"{{"model":"real",{members}"messages":[{{"role":"developer","content":"a"}}]}}"#);
            let request = ChatRequest::parse(body.as_bytes()).unwrap();
            let call = request.call_to(provider, &Outgoing { output_bound: bound, ..PLAIN });
            (String::from_utf8(call.body.to_vec()).unwrap(), call.dropped, call.rules.strip_usage)
        };
        let system = r#""messages":[{"role":"system","content":"a"}]}"#;
        for (members, expected) in [
            (r#""stream":true,"#, r#"{"model":"real","stream":true,"#),
            (r#""stream_options":{"include_usage":true},"stream":true,"#, r#"{"model":"real","stream":true,"#),
            (r#""max_completion_tokens":9,"#, r#"{"max_tokens":9,"model":"real","#),
            (r#""max_tokens":null,"max_completion_tokens":9,"#, r#"{"model":"real","max_tokens":9,"#),
            (r#""max_completion_tokens":9,"max_tokens":7,"#, r#"{"model":"real","max_tokens":7,"#),
            (r#""max_completion_tokens":null,"#, r#"{"model":"real","#),
        ] {
            let (body, dropped, _) = sent(ProviderType::Mistral, members, None);
            assert_eq!(body, format!("{expected}{system}"));
            assert!(dropped.is_empty());
        }
        let (_, dropped, strip) =
            sent(ProviderType::Mistral, r#""stream":true,"stream_options":{"include_obfuscation":false},"#, None);
        assert_eq!((dropped, strip), (vec!["stream_options.include_obfuscation".to_owned()], true));
        let bound = Some(OutputBound { field: "max_tokens", tokens: 5, family: Family::Estimated, prompt_tokens: 0 });
        let (body, ..) = sent(ProviderType::DeepSeek, r#""max_completion_tokens":9,"#, bound);
        assert_eq!(body, format!(r#"{{"max_tokens":5,"model":"real",{system}"#));
        let (body, ..) = sent(ProviderType::DeepSeek, r#""stream":true,"#, None);
        assert!(body.starts_with(r#"{"stream_options":{"include_usage":true},"model""#));
        for provider in [ProviderType::OpenAi, ProviderType::AzureOpenAi, ProviderType::Groq, ProviderType::XAi] {
            let (body, ..) = sent(provider, r#""max_completion_tokens":9,"#, None);
            assert!(body.ends_with(r#""max_completion_tokens":9,"messages":[{"role":"developer","content":"a"}]}"#));
        }
    }

    #[test]
    fn usage_is_stripped_only_where_the_client_did_not_ask() {
        let strip = |body: &str| ChatRequest::parse(body.as_bytes()).unwrap().call(&PLAIN).rules.strip_usage;
        assert!(strip(r#"{"stream":true,"messages":[{"role":"user"}]}"#));
        assert!(!strip(r#"{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user"}]}"#));
        assert!(!strip(r#"{"messages":[{"role":"user"}]}"#));
    }

    #[test]
    fn context_project_prompt_and_the_clients_rules_are_one_message_in_that_order() {
        for (messages, expected) in [
            (
                r#"[{"role":"user","content":"q"}]"#,
                r#"[{"role":"system","content":"CTX \"1\"\n\nRULES"},{"role":"user","content":"q"}]"#,
            ),
            (
                r#"[{"role":"developer","content":"be \u006bind"},{"role":"user","content":"q"}]"#,
                r#"[{"role":"developer","content":"CTX \"1\"\n\nRULES\n\nbe \u006bind"},{"role":"user","content":"q"}]"#,
            ),
            (
                r#"[{"role":"system","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"q"}]"#,
                r#"[{"role":"system","content":[{"type":"text","text":"CTX \"1\"\n\nRULES"},{"type":"text","text":"a"}]},{"role":"user","content":"q"}]"#,
            ),
            (
                r#"[{"role":"system","content":[]},{"role":"user","content":"q"}]"#,
                r#"[{"role":"system","content":[{"type":"text","text":"CTX \"1\"\n\nRULES"}]},{"role":"user","content":"q"}]"#,
            ),
            (
                r#"[{"role":"system","content":null},{"role":"user","content":"q"}]"#,
                r#"[{"role":"system","content":"CTX \"1\"\n\nRULES"},{"role":"user","content":"q"}]"#,
            ),
            (
                r#"[{"role":"system"},{"role":"user","content":"q"}]"#,
                r#"[{"content":"CTX \"1\"\n\nRULES","role":"system"},{"role":"user","content":"q"}]"#,
            ),
        ] {
            let body = |messages: &str| format!(r#"{{"model":"real","messages":{messages}}}"#);
            assert_eq!(sent(&body(messages), &BOTH), body(expected));
        }
    }

    #[test]
    fn a_project_prompt_alone_keeps_the_clients_cache_marks() {
        let body = r#"{"model":"real","messages":[{"role":"system","content":[{"type":"text","text":"a","cache_control":{}}]}]}"#;
        let only_prompt = Outgoing { context: None, ..BOTH };
        assert_eq!(sent(body, &only_prompt), body.replace(r#"[{"type""#, r#"[{"type":"text","text":"RULES"},{"type""#));
    }

    #[test]
    fn context_for_a_caching_provider_goes_before_the_last_question() {
        let last_user = Outgoing { placement: ContextPlacement::LastUser, ..BOTH };
        assert_eq!(
            sent(
                r#"{"model":"real","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"user","content":"q"},{"role":"assistant","content":"x"}]}"#,
                &last_user
            ),
            r#"{"model":"real","messages":[{"role":"system","content":"RULES\n\ns"},{"role":"user","content":"a"},{"role":"user","content":"CTX \"1\"\n\nq"},{"role":"assistant","content":"x"}]}"#
        );
        assert_eq!(
            sent(r#"{"model":"real","messages":[{"role":"assistant","content":"x"}]}"#, &last_user),
            r#"{"model":"real","messages":[{"role":"system","content":"CTX \"1\"\n\nRULES"},{"role":"assistant","content":"x"}]}"#
        );
    }

    #[test]
    fn context_goes_after_what_the_client_wants_cached() {
        let last_user = Outgoing { placement: ContextPlacement::LastUser, project_prompt: None, ..BOTH };
        let marked = r#"{"type":"text","text":"long","cache_control":{"type":"ephemeral"}}"#;
        let body = |parts: &str| format!(r#"{{"model":"real","messages":[{{"role":"user","content":[{parts}]}}]}}"#);
        let ours = r#"{"type":"text","text":"CTX \"1\""}"#;
        let question = r#"{"type":"text","text":"q"}"#;
        let sent = |parts: &str| sent(&body(parts), &last_user);
        assert_eq!(sent(&format!("{marked} ,{question}")), body(&format!("{marked},{ours} ,{question}")));
        assert_eq!(sent(&format!("{question},{marked}")), body(&format!("{question},{marked},{ours}")));
        assert_eq!(sent(question), body(&format!("{ours},{question}")));
    }

    #[test]
    fn all_before_the_last_question_is_the_same_bytes_from_call_to_call() {
        let first = r#"{"model":"real","messages":[{"role":"system","content":"own"},{"role":"user","content":"one?"}"#;
        let second = format!(r#"{first},{{"role":"assistant","content":"1."}},{{"role":"user","content":"two?"}}"#);
        let with = |context, body: &str| {
            sent(&format!("{body}]}}"), &Outgoing { context, placement: ContextPlacement::LastUser, ..BOTH })
        };
        let [one, two, none] = [with(Some("CTX 1"), &second), with(Some("CTX 2"), &second), with(None, &second)];
        let question = one.find("CTX 1").unwrap();
        assert_eq!(one[..question], two[..question]);
        assert_eq!(one[..question], none[..question]);
        assert!(one[..question].contains("RULES") && one[..question].contains("one?"));
        let earlier = with(Some("CTX 1"), first);
        let its_question = earlier.find("CTX 1").unwrap();
        assert_eq!(earlier[..its_question], two[..its_question]);
    }

    #[test]
    fn an_output_bound_lowers_what_is_above_it_and_is_added_where_missing() {
        let bounded = Outgoing {
            output_bound: Some(OutputBound {
                field: "max_tokens",
                tokens: 50,
                family: Family::Estimated,
                prompt_tokens: 0,
            }),
            ..PLAIN
        };
        for (fields, expected) in [
            ("", r#""max_tokens":50,"#),
            (r#""max_tokens":20,"#, r#""max_tokens":20,"#),
            (r#""max_tokens":90,"n_predict":-1,"#, r#""max_tokens":50,"n_predict":50,"#),
            (r#""max_tokens":null,"#, r#""max_tokens":50,"#),
            (r#""max_completion_tokens":90,"#, r#""max_tokens":50,"max_completion_tokens":50,"#),
        ] {
            let body = |fields: &str| format!(r#"{{{fields}"model":"real","messages":[{{"role":"user"}}]}}"#);
            assert_eq!(sent(&body(fields), &bounded), body(expected));
        }
    }
}
