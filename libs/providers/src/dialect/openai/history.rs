//! What the model said before, for a provider that did not say it.
//!
//! Clients send an answer back as they got it, and an answer that we wrote, or that another server of this API gave, has
//! members that this provider may refuse: thoughts, their signatures, refusals. What a provider has no place for by its
//! reference is taken out. Of one without a reference only what we wrote is known, by its marks.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::value::RawValue;

use super::quirks::Quirks;
use super::request::{ChatMessage, ChatRequest, Content};
use super::turns::signature_as_sent;
use crate::hub::{Signer, drop_path, is_marked, is_nothing};
use crate::json::{Members, Splices, elements, literal, ranges_of, span, text_of};

/// The members that answers have beside what is said and called.
const BESIDE: [&str; 5] = ["reasoning_content", "reasoning_details", "reasoning", "refusal", "annotations"];
/// Of them, those that we write for a model's thoughts.
const THOUGHTS: [&str; 2] = ["reasoning_content", "reasoning_details"];
/// Members of answers that say something else unless they are null.
const NULLS: [&str; 2] = ["audio", "function_call"];
const DETAILS: &str = "reasoning_details";
const OF_CALLS: &str = "extra_content";

/// What becomes of one of `reasoning_details`.
enum Fate {
    Stays,
    Goes,
    /// Stays with that in place of what bears our mark.
    Unmarked(Range<usize>, String),
}

impl ChatRequest<'_> {
    /// Takes what the provider would refuse out of what the model said. `signer` is whose signatures the model takes.
    pub(super) fn remove_foreign(
        &self,
        quirks: Quirks,
        signer: Option<Signer>,
        splices: &mut Splices,
        dropped: &mut Vec<Cow<'_, str>>,
    ) {
        let mut going = Vec::new();
        for message in &self.messages {
            let is_left = message.role != "assistant" || self.clean(message, quirks, signer, splices, dropped);
            going.push((message.members.range(self.text), !is_left));
        }
        ranges_of(&going).into_iter().for_each(|range| splices.remove(range));
    }

    /// Whether something is left of a message.
    fn clean(
        &self,
        message: &ChatMessage<'_>,
        quirks: Quirks,
        signer: Option<Signer>,
        splices: &mut Splices,
        dropped: &mut Vec<Cow<'_, str>>,
    ) -> bool {
        let (details, is_ours) = self.details(message, signer);
        let is_refused = |name: &str| match quirks.takes_back {
            Some(taken) => !taken.contains(&name),
            None => is_ours && THOUGHTS.contains(&name),
        };
        let nulls = NULLS.into_iter().filter(|name| message.members.present(name).is_none());
        let given = BESIDE.into_iter().chain(nulls).filter(|name| message.members.get(name).is_some());
        let mut going: Vec<&str> = given.filter(|name| is_refused(name)).collect();
        if !going.contains(&DETAILS) && !details.is_empty() {
            let elements: Vec<_> =
                details.iter().map(|(range, fate)| (range.clone(), matches!(fate, Fate::Goes))).collect();
            if elements.iter().all(|(_, goes)| *goes) {
                going.push(DETAILS);
            } else {
                if elements.iter().any(|(_, goes)| *goes) {
                    drop_path(dropped, format!("messages[].{DETAILS}"));
                }
                ranges_of(&elements).into_iter().for_each(|range| splices.remove(range));
                for (_, fate) in details {
                    if let Fate::Unmarked(range, own) = fate {
                        splices.replace(range, own);
                    }
                }
            }
        }
        let mut is_moved = false;
        for name in &going {
            let value = message.members.get(name);
            if *name == "refusal" && self.say_refusal(message, splices) {
                is_moved = true;
            } else if value.is_some_and(|value| !is_nothing(value)) {
                drop_path(dropped, format!("messages[].{name}"));
            }
        }
        let has_calls = self.clean_calls(message, quirks, splices, dropped);
        let says_nothing = match &message.content {
            Content::None => true,
            Content::Text(text) => text.is_empty(),
            Content::Parts(parts) => parts.is_empty(),
        };
        let is_known = |name: &str| matches!(name, "role" | "content" | "name" | "tool_calls") || going.contains(&name);
        let has_more = message.members.iter().any(|(name, value)| !is_known(name) && !is_nothing(value));
        if says_nothing && !is_moved && !has_calls && !has_more && !going.is_empty() {
            // Providers refuse messages of nothing.
            return false;
        }
        for range in message.members.ranges_without_any(self.text, &going) {
            splices.remove(range);
        }
        true
    }

    /// The place and the fate of each detail of a message, and whether one of them is of our writing.
    fn details(&self, message: &ChatMessage<'_>, signer: Option<Signer>) -> (Vec<(Range<usize>, Fate)>, bool) {
        let details = message.members.present(DETAILS).and_then(|value| elements(value.get()).ok());
        let mut is_ours = false;
        let fates = details.unwrap_or_default().into_iter().map(|detail| {
            let seal = seal_of(detail);
            is_ours |= seal.is_some();
            let own = seal.as_ref().map(|(value, text)| (value, signer.and_then(|signer| signer.own(text))));
            let fate = match own {
                None => Fate::Stays,
                Some((value, Some(own))) => Fate::Unmarked(span(self.text, value.get()), literal(own)),
                Some((_, None)) => Fate::Goes,
            };
            (span(self.text, detail.get()), fate)
        });
        let fates = fates.collect();
        (fates, is_ours)
    }

    /// Puts the text of a refusal where the message says nothing else, as the assistant's words.
    fn say_refusal(&self, message: &ChatMessage<'_>, splices: &mut Splices) -> bool {
        let refusal = message.members.present("refusal").filter(|value| !is_nothing(value));
        let Some(refusal) = refusal.filter(|value| value.get().starts_with('"')) else { return false };
        match (&message.content, message.raw_content) {
            (Content::None, Some(raw)) => splices.replace(span(self.text, raw.get()), refusal.get()),
            (Content::None, None) => {
                // A message has a role, so a comma is right.
                splices.insert(message.members.inside(self.text), format!("\"content\":{},", refusal.get()));
            }
            (Content::Text(text), Some(raw)) if text.is_empty() => {
                splices.replace(span(self.text, raw.get()), refusal.get());
            }
            _ => return false,
        }
        true
    }

    /// Takes signatures off the calls of a message. Whether it has calls is returned.
    fn clean_calls(
        &self,
        message: &ChatMessage<'_>,
        quirks: Quirks,
        splices: &mut Splices,
        dropped: &mut Vec<Cow<'_, str>>,
    ) -> bool {
        let calls = message.tool_calls.and_then(|calls| elements(calls.get()).ok()).unwrap_or_default();
        for call in calls.iter().filter(|call| call.get().contains(OF_CALLS)) {
            let Ok(members) = Members::parse(call.get()) else { continue };
            let Some(extra) = members.get(OF_CALLS) else { continue };
            let marked = signature_as_sent(&members).is_some_and(|signature| is_marked(&signature));
            if quirks.takes_back.is_none() && !marked {
                continue;
            }
            if !is_nothing(extra) {
                drop_path(dropped, format!("messages[].tool_calls[].{OF_CALLS}"));
            }
            members.ranges_without(self.text, OF_CALLS).into_iter().for_each(|range| splices.remove(range));
        }
        !calls.is_empty()
    }
}

/// The member of a detail that bears our mark, and its text.
fn seal_of(detail: &RawValue) -> Option<(&RawValue, Cow<'_, str>)> {
    let members = Members::parse(detail.get()).ok()?;
    ["signature", "data"].iter().find_map(|name| {
        let value = members.present(name)?;
        Some((value, text_of(value).filter(|text| is_marked(text))?))
    })
}

#[cfg(test)]
mod tests {
    use domain::ProviderType;

    use super::*;
    use crate::dialect::golden::PLAIN;
    use crate::dialect::openai::Outgoing;

    const ANTHROPICS: &str =
        r#"{"type":"reasoning.text","text":"hm","signature":"ragmux-signed:anthropic:SIG","index":0}"#;
    const REDACTED: &str = r#"{"type":"reasoning.encrypted","data":"ragmux-redacted:anthropic:RED","index":1}"#;
    const SIGNED_CALL: &str = r#"{"id":"D681PevKs","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"ragmux-signed:gemini:G"}}}"#;
    const CALL: &str = r#"{"id":"D681PevKs","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    #[test]
    fn what_answers_have_beside_goes_to_no_provider_that_refuses_it() {
        let theirs = r#"{"role":"assistant","content":"a","refusal":null,"annotations":[],"audio":null,"function_call":null,"reasoning":"r"}"#;
        let keeps = |provider, left: &str, dropped: &[&str]| {
            let (body, listed) = sent(provider, "real", theirs);
            assert_eq!(body, request(&format!(r#"{{"role":"assistant","content":"a"{left}}}"#)), "{provider:?}");
            assert_eq!(listed, dropped);
        };
        keeps(ProviderType::Mistral, "", &["messages[].reasoning"]);
        keeps(ProviderType::Groq, r#","function_call":null,"reasoning":"r""#, &[]);
        let all = r#","refusal":null,"annotations":[],"audio":null,"function_call":null"#;
        keeps(ProviderType::OpenAi, all, &["messages[].reasoning"]);
        keeps(ProviderType::OpenRouter, &format!(r#"{all},"reasoning":"r""#), &[]);
        keeps(ProviderType::XAi, r#","refusal":null"#, &["messages[].reasoning"]);
        keeps(ProviderType::CustomOpenAi, &format!(r#"{all},"reasoning":"r""#), &[]);
    }

    const STRICT: [ProviderType; 4] =
        [ProviderType::OpenAi, ProviderType::AzureOpenAi, ProviderType::Mistral, ProviderType::Groq];

    fn request(assistant: &str) -> String {
        format!(
            r#"{{"model":"real","messages":[{{"role":"user","content":"q"}}, {assistant} , {{"role":"user","content":"\u0061"}}]}}"#
        )
    }

    fn sent(provider: ProviderType, model: &str, assistant: &str) -> (String, Vec<String>) {
        let body = request(assistant);
        let outgoing = Outgoing { model, ..PLAIN };
        let call = ChatRequest::parse(body.as_bytes()).unwrap().call_to(provider, &outgoing);
        serde_json::from_slice::<serde_json::Value>(&call.body).unwrap();
        let sent = String::from_utf8(call.body.to_vec()).unwrap();
        (sent.replace(&literal(model), "\"real\""), call.dropped)
    }

    fn ours() -> String {
        format!(
            r#"{{"role":"assistant","content":"a","refusal":null, "reasoning_content":"hm","reasoning_details":[{ANTHROPICS},{REDACTED}],"tool_calls":[{SIGNED_CALL}]}}"#
        )
    }

    #[test]
    fn what_we_wrote_goes_to_nobody_who_has_no_place_for_it() {
        let bare = format!(r#"{{"role":"assistant","content":"a","tool_calls":[{CALL}]}}"#);
        let calls = "messages[].tool_calls[].extra_content";
        let all = ["messages[].reasoning_content", "messages[].reasoning_details", calls];
        for provider in [ProviderType::Mistral, ProviderType::Groq] {
            assert_eq!(sent(provider, "real", &ours()), (request(&bare), all.map(str::to_owned).to_vec()));
        }
        let with = |members: &str| request(&bare.replace(r#""a","#, &format!(r#""a",{members},"#)));
        for (provider, members, dropped) in [
            (ProviderType::OpenAi, r#""refusal":null"#, &all[..]),
            (ProviderType::AzureOpenAi, r#""refusal":null"#, &all),
            (ProviderType::DeepSeek, r#""reasoning_content":"hm""#, &all[1..]),
            (ProviderType::CustomOpenAi, r#""refusal":null"#, &all),
        ] {
            let (body, listed) = sent(provider, "real", &ours());
            assert_eq!(body.replace(", \"", ",\""), with(members).replace(", \"", ",\""), "{provider:?}");
            assert_eq!(listed, dropped);
        }
    }

    #[test]
    fn a_model_of_the_signers_gets_the_signature_back_by_openrouter() {
        let (body, dropped) = sent(ProviderType::OpenRouter, "anthropic/claude", &ours());
        let own = ours().replace("ragmux-signed:anthropic:", "").replace("ragmux-redacted:anthropic:", "");
        assert_eq!(body, request(&own.replace(SIGNED_CALL, CALL)));
        assert_eq!(dropped, ["messages[].tool_calls[].extra_content"]);
        let (body, dropped) = sent(ProviderType::OpenRouter, "openai/gpt", &ours());
        assert!(body.contains(r#""reasoning_content":"hm","tool_calls""#) && !body.contains("SIG"), "{body}");
        assert_eq!(dropped, ["messages[].reasoning_details", "messages[].tool_calls[].extra_content"]);
        let theirs = r#"{"role":"assistant","content":"a","reasoning_details":[{"type":"reasoning.text","text":"t","signature":"s"}]}"#;
        assert_eq!(sent(ProviderType::OpenRouter, "openai/gpt", theirs), (request(theirs), Vec::new()));
    }

    #[test]
    fn what_a_server_of_its_own_kind_may_know_goes_on_byte_for_byte() {
        let theirs = r#"{"role":"assistant","content":null,"refusal":null,"reasoning_content":"x\u0021","reasoning":"x","reasoning_details":[{"a":1}],"tool_calls":[{"id":"c","extra_content":{"google":{"thought_signature":"own"}}}]}"#;
        assert_eq!(sent(ProviderType::CustomOpenAi, "real", theirs), (request(theirs), Vec::new()));
        let thinks = format!(r#"{{"role":"assistant","content":null,"reasoning_content":"x","tool_calls":[{CALL}]}}"#);
        assert_eq!(sent(ProviderType::DeepSeek, "real", &thinks), (request(&thinks), Vec::new()));
        let groqs = format!(r#"{{"role":"assistant","reasoning":"x","tool_calls":[{CALL}]}}"#);
        assert_eq!(sent(ProviderType::Groq, "real", &groqs), (request(&groqs), Vec::new()));
    }

    #[test]
    fn a_message_of_thoughts_alone_goes_and_a_refusal_is_said() {
        let body = request("X").replace(", X ,", " ,");
        for nothing in [
            r#"{"role":"assistant","content":"","refusal":null,"reasoning_content":"hm"}"#,
            r#"{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":null}"#,
            r#"{"reasoning_content":"hm","role":"assistant","tool_calls":[]}"#,
        ] {
            for provider in STRICT {
                let (sent, dropped) = sent(provider, "real", nothing);
                assert_eq!(sent, body, "{provider:?}");
                assert_eq!(dropped, ["messages[].reasoning_content"]);
            }
        }
        // It was of nothing before.
        let empty = r#"{"role":"assistant","content":""}"#;
        assert_eq!(sent(ProviderType::OpenAi, "real", empty).0, request(empty));
        let refused = r#"{"role":"assistant","content":null,"refusal":"no \"way\""}"#;
        let said = r#"{"role":"assistant","content":"no \"way\""}"#;
        assert_eq!(sent(ProviderType::Mistral, "real", refused), (request(said), Vec::new()));
        assert_eq!(sent(ProviderType::OpenAi, "real", refused), (request(refused), Vec::new()));
        let both = r#"{"role":"assistant","content":"a","refusal":"b"}"#;
        let (sent, dropped) = sent(ProviderType::Groq, "real", both);
        assert_eq!(
            (sent, dropped),
            (request(r#"{"role":"assistant","content":"a"}"#), vec!["messages[].refusal".to_owned()])
        );
    }
}
