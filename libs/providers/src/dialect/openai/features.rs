//! Features of a request that cost more than its tokens at the model's price: other prices, fees by call, models of the
//! client's choice. Under a budget of money they are refused unless someone has decided otherwise.

use domain::ProviderType;
use serde_json::value::RawValue;

use super::embeddings::EmbeddingsRequest;
use super::request::{ChatRequest, Part, RequestError, text_at};
use super::strict::strict;
use crate::json::{Members, elements, folded, text_of};

/// A member of a request that adds cost, unless it is `null`, `false`, an empty array or one of these words.
struct Costly {
    name: &'static str,
    free: &'static [&'static str],
}

const fn costly(name: &'static str) -> Costly {
    Costly { name, free: &[] }
}

/// Of the OpenAI API (reference, Create chat completion): predicted output is paid where it is not used, tiers of
/// service and audio have prices of their own, searches a fee.
const OPENAI: &[Costly] = &[
    costly("prediction"),
    // The first is what a request without the field gets.
    Costly { name: "service_tier", free: &["auto", "default"] },
    costly("web_search_options"),
    costly("audio"),
    Costly { name: "modalities", free: &["text"] },
];

/// Of servers that imitate it. A server that does not know a member ignores it, so the list may be long: searches (xAI,
/// Qwen, Groq, Perplexity), plug-ins and other models than the route's (OpenRouter), more answers than are returned
/// (vLLM).
const COMPATIBLE: &[Costly] = &[
    costly("web_search"),
    costly("enable_search"),
    costly("search_options"),
    costly("search_parameters"),
    costly("search_settings"),
    costly("plugins"),
    costly("models"),
    costly("route"),
    costly("provider"),
    costly("preset"),
    costly("best_of"),
    costly("use_beam_search"),
];

/// Tools that the client runs itself.
const OWN_TOOLS: [&str; 2] = ["function", "custom"];

/// Parts of messages that are paid as the prompt's tokens, pictures included. All others, known or not (`input_audio`,
/// `file`, `video_url`), may be paid otherwise.
const PRICED_PARTS: [&str; 4] = ["text", "refusal", "thinking", "image_url"];

/// Members by which servers know a part that cost more, whatever its type says.
const COSTLY_MEMBERS: [&str; 6] = ["input_audio", "audio_url", "audio", "file", "video_url", "video"];

/// No more of a name that a client chose, in characters, is said in an error.
const LONGEST_NAME: usize = 64;

/// A feature that adds cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name, by which it can be allowed: the member of the request, `audio`, or the type of a tool or part.
    pub name: String,
    /// Where it is in the request.
    pub path: String,
}

impl Feature {
    pub(crate) fn new(name: &str, path: impl Into<String>) -> Self {
        Self { name: name.chars().take(LONGEST_NAME).collect(), path: path.into() }
    }
}

/// The fields known to add cost at a provider.
fn lists(provider: ProviderType) -> impl Iterator<Item = &'static Costly> {
    let more = match provider {
        ProviderType::OpenAi | ProviderType::AzureOpenAi => &[],
        // A translation drops what it does not know, but what one provider ignores costs at another of the route's.
        _ => COMPATIBLE,
    };
    OPENAI.iter().chain(more)
}

impl ChatRequest<'_> {
    /// All features of the request that cost more than its tokens.
    ///
    /// # Errors
    /// [`RequestError`] for a tool whose type cannot be told.
    pub fn costly_features(&self, provider: ProviderType) -> Result<Vec<Feature>, RequestError> {
        let mut found = costly_members(&self.members, provider);
        let keeps_caches = matches!(provider, ProviderType::Anthropic | ProviderType::OpenRouter);
        for (at, message) in self.messages.iter().enumerate() {
            if keeps_caches {
                found.extend(long_cache(&message.members, || format!("messages[{at}]")));
                let parts = message.parts().iter().enumerate();
                found
                    .extend(parts.filter_map(|(part, of)| {
                        long_cache(&of.members, || format!("messages[{at}].content[{part}]"))
                    }));
            }
            if message.members.present("audio").is_some() {
                found.push(Feature::new("audio", format!("messages[{at}].audio")));
            }
            let costly = message.parts().iter().enumerate().filter_map(|(at, part)| Some((at, costly_part(part)?)));
            found.extend(costly.map(|(part, name)| Feature::new(name, format!("messages[{at}].content[{part}]"))));
        }
        let tools = match self.tools.map(|tools| elements(tools.get())) {
            None => Vec::new(),
            Some(Ok(tools)) => tools,
            // Whatever a server makes of it.
            Some(Err(_)) => {
                found.push(Feature::new("tools", "tools"));
                Vec::new()
            }
        };
        for (at, tool) in tools.iter().enumerate() {
            let path = format!("tools[{at}]");
            if let Ok(members) = Members::parse(tool.get())
                && keeps_caches
            {
                found.extend(long_cache(&members, || path.clone()));
            }
            if let Some(name) = server_tool(&path, tool)? {
                found.push(Feature::new(&name, path));
            }
        }
        Ok(found)
    }
}

impl EmbeddingsRequest<'_> {
    /// All features of the request that cost more than its tokens.
    #[must_use]
    pub fn costly_features(&self, provider: ProviderType) -> Vec<Feature> {
        costly_members(&self.members, provider)
    }
}

/// The members of a request that add cost.
pub(crate) fn costly_members(members: &Members<'_>, provider: ProviderType) -> Vec<Feature> {
    let mut found = Vec::new();
    for (name, value) in members.iter() {
        let read_as = folded(name);
        if let Some(costly) = lists(provider).find(|costly| read_as == costly.name)
            && !costly.is_free(value)
        {
            found.push(Feature::new(costly.name, name));
        }
    }
    found
}

impl Costly {
    fn is_free(&self, value: &RawValue) -> bool {
        let is_word = |value: &RawValue| text_of(value).is_some_and(|word| self.free.contains(&&*word));
        match value.get() {
            "null" | "false" => true,
            array if array.starts_with('[') => elements(array).is_ok_and(|list| list.into_iter().all(is_word)),
            _ => is_word(value),
        }
    }
}

/// A mark that keeps the prompt in the cache for longer than usual, for which writing it costs more than usual (Anthropic
/// API reference, Prompt caching, Pricing).
pub(crate) fn long_cache(members: &Members<'_>, path: impl FnOnce() -> String) -> Option<Feature> {
    let mark = Members::parse(members.present("cache_control")?.get()).ok()?;
    let lifetime = mark.present("ttl")?;
    if text_of(lifetime).as_deref() == Some("5m") {
        return None;
    }
    let path = path();
    let dot = if path.is_empty() { "" } else { "." };
    Some(Feature::new("cache_control", format!("{path}{dot}cache_control.ttl")))
}

/// Which feature a part is, unless it is paid like text.
fn costly_part<'a>(part: &'a Part<'_>) -> Option<&'a str> {
    let member = || {
        let mut names = part.members.iter().map(|(name, _)| folded(name));
        names.find_map(|name| COSTLY_MEMBERS.into_iter().find(|costly| name == *costly))
    };
    let kind = if PRICED_PARTS.contains(&&*part.kind) { member()? } else { &part.kind };
    Some(if kind == "input_audio" { "audio" } else { kind })
}

/// The type of a tool that the provider runs.
fn server_tool(path: &str, tool: &RawValue) -> Result<Option<String>, RequestError> {
    let Ok(members) = Members::parse(tool.get()) else { return Ok(Some("tools".to_owned())) };
    let members = strict(path, members, &["type", "function"])?;
    Ok(match members.present("type") {
        Some(kind) if kind.get().starts_with('"') => {
            let kind = text_at(kind, || format!("{path}.type"), "a string")?;
            (!OWN_TOOLS.contains(&&*kind)).then(|| kind.into_owned())
        }
        None if members.present("function").is_some() => None,
        Some(_) | None => Some("tools".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(provider: ProviderType, members: &str) -> Vec<String> {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"a"}}]{members}}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let features = request.costly_features(provider).unwrap();
        features.into_iter().map(|feature| format!("{} at {}", feature.name, feature.path)).collect()
    }

    #[test]
    fn what_adds_cost_is_found_wherever_it_stands() {
        for (members, feature) in [
            (r#","prediction":{"type":"content","content":"x"}"#, "prediction at prediction"),
            (r#","service_tier":"priority""#, "service_tier at service_tier"),
            (r#","Service_Tier":"priority""#, "service_tier at Service_Tier"),
            (r#","service_tier":7"#, "service_tier at service_tier"),
            (r#","web_search_options":{}"#, "web_search_options at web_search_options"),
            (r#","modalities":["text","audio"]"#, "modalities at modalities"),
            (r#","audio":{"voice":"a"}"#, "audio at audio"),
            (r#","tools":[{"type":"function","function":{}},{"type":"web_search"}]"#, "web_search at tools[1]"),
            (r#","tools":[{"google_search":{}}]"#, "tools at tools[0]"),
            (r#","tools":[7]"#, "tools at tools[0]"),
            (r#","tools":{"type":"web_search"}"#, "tools at tools"),
            (r#","tools":{"function":{"name":"f"}}"#, "tools at tools"),
            (r#","tools":"web_search""#, "tools at tools"),
        ] {
            assert_eq!(found(ProviderType::OpenAi, members), [feature], "{members}");
        }
        let audio = r#"{"messages":[{"role":"assistant","audio":{"id":"a"}},
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"input_audio","input_audio":{}}]}]}"#;
        let features = ChatRequest::parse(audio.as_bytes()).unwrap().costly_features(ProviderType::OpenAi).unwrap();
        let paths: Vec<&str> = features.iter().map(|feature| feature.path.as_str()).collect();
        assert_eq!(paths, ["messages[0].audio", "messages[1].content[1]"]);
    }

    #[test]
    fn parts_are_paid_like_text_only_where_they_are_known_to_be() {
        let found = |part: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#);
            let features = ChatRequest::parse(body.as_bytes()).unwrap().costly_features(ProviderType::OpenAi).unwrap();
            features.into_iter().map(|feature| feature.name).collect::<Vec<_>>()
        };
        for (part, name) in [
            (r#"{"type":"file","file":{"file_id":"f"}}"#, "file"),
            (r#"{"type":"File","file":{}}"#, "File"),
            (r#"{"type":"input_audio","input_audio":{}}"#, "audio"),
            (r#"{"type":"video_url","video_url":{"url":"x"}}"#, "video_url"),
            (r#"{"type":"document"}"#, "document"),
            (r#"{"type":"text","text":"a","Input_Audio":{}}"#, "audio"),
            (r#"{"type":"image_url","image_url":{"url":"x"},"file":{}}"#, "file"),
        ] {
            assert_eq!(found(part), [name], "{part}");
        }
        for part in [
            r#"{"type":"text","text":"a"}"#,
            r#"{"type":"refusal","refusal":"no"}"#,
            r#"{"type":"thinking","thinking":[]}"#,
            r#"{"type":"image_url","image_url":{"url":"x"}}"#,
        ] {
            assert!(found(part).is_empty(), "{part}");
        }
        let long = format!(r#"{{"type":"{}"}}"#, "x".repeat(1_000));
        assert_eq!(found(&long), ["x".repeat(LONGEST_NAME)]);
    }

    #[test]
    fn a_cache_that_is_kept_longer_costs_more_where_it_is_kept() {
        let mark = r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#;
        let members = format!(r#","tools":[{{"type":"function","function":{{}},{mark}}}]"#);
        assert_eq!(found(ProviderType::Anthropic, &members), ["cache_control at tools[0].cache_control.ttl"]);
        assert!(found(ProviderType::OpenAi, &members).is_empty());
        assert!(found(ProviderType::Anthropic, &members.replace("1h", "5m")).is_empty());
        let body =
            format!(r#"{{"messages":[{{"role":"user",{mark},"content":[{{"type":"text","text":"a",{mark}}}]}}]}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let features = request.costly_features(ProviderType::OpenRouter).unwrap();
        let paths: Vec<&str> = features.iter().map(|feature| feature.path.as_str()).collect();
        assert_eq!(paths, ["messages[0].cache_control.ttl", "messages[0].content[0].cache_control.ttl"]);
    }

    #[test]
    fn what_is_part_of_every_price_is_not() {
        for members in [
            "",
            r#","service_tier":"auto","modalities":["text"],"audio":null,"prediction":null,"web_search_options":false"#,
            r#","service_tier":"default","tools":[],"modalities":[]"#,
            r#","tools":[{"type":"function","function":{}},{"type":"custom"},{"function":{}}]"#,
            r#","reasoning_effort":"high","response_format":{"type":"json_object"},"store":true"#,
        ] {
            assert!(found(ProviderType::OpenAi, members).is_empty(), "{members}");
            assert!(found(ProviderType::CustomOpenAi, members).is_empty(), "{members}");
        }
    }

    #[test]
    fn each_provider_has_its_own() {
        for members in
            [r#","plugins":[{"id":"web"}]"#, r#","models":["a"]"#, r#","enable_search":true"#, r#","best_of":2"#]
        {
            assert_eq!(found(ProviderType::CustomOpenAi, members).len(), 1, "{members}");
            assert!(found(ProviderType::OpenAi, members).is_empty(), "{members}");
        }
        assert!(found(ProviderType::CustomOpenAi, r#","enable_search":false,"plugins":[]"#).is_empty());
        let body = br#"{"input":"a","models":["b"]}"#;
        let features = EmbeddingsRequest::parse(body).unwrap().costly_features(ProviderType::CustomOpenAi);
        assert_eq!(features, [Feature::new("models", "models")]);
    }

    #[test]
    fn a_tool_that_is_two_things_is_refused() {
        for (tool, said) in [
            (r#"{"type":"function","Type":"web_search"}"#, "tools[0].Type occurs more than once"),
            (r#"{"function":{},"Type":"web_search"}"#, "tools[0].Type must be written type"),
            (
                r#"{"type":"\ud800"}"#,
                "tools[0].type has an invalid Unicode escape: a surrogate that is not one of a pair",
            ),
        ] {
            let body = format!(r#"{{"messages":[{{"role":"user"}}],"tools":[{tool}]}}"#);
            let request = ChatRequest::parse(body.as_bytes()).unwrap();
            assert_eq!(request.costly_features(ProviderType::OpenAi).unwrap_err().to_string(), said);
        }
    }
}
