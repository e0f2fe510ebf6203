//! What of a chat request counts as prompt.

use super::request::{ChatMessage, ChatRequest, Part};
use crate::countable::Countable;

impl ChatRequest<'_> {
    /// Everything that is, or may become, the prompt: messages with all they carry, tools, schemas, and whatever is not
    /// known to be something else.
    #[must_use]
    pub fn countable(&self) -> Countable<'_> {
        let mut counted = Countable::with_room_for(self.messages.len() + 1);
        for message in &self.messages {
            of_message(message, &mut counted);
        }
        counted.members(&self.members, is_no_prompt);
        counted
    }
}

fn of_message<'a>(message: &'a ChatMessage<'_>, counted: &mut Countable<'a>) {
    counted.texts.push(message.text());
    for part in message.parts() {
        of_part(part, counted);
    }
    for (name, value) in message.members.iter() {
        match name {
            "content" | "cache_control" => {}
            "role" if matches!(&*message.role, "system" | "developer" | "user" | "assistant" | "tool" | "function") => {
            }
            _ => counted.value(value),
        }
    }
}

fn of_part<'a>(part: &'a Part<'_>, counted: &mut Countable<'a>) {
    for (name, value) in part.members.iter() {
        match name {
            "type" | "cache_control" => {}
            // Counted with the message.
            "text" if part.text.is_some() => {}
            "image_url" | "image" => counted.image(value),
            "input_audio" | "audio_url" | "audio" => counted.sound(value),
            "file" | "file_data" | "video_url" | "video" => counted.document(value),
            _ => counted.value(value),
        }
    }
}

/// Top-level members that no provider makes prompt of, and the messages, which are counted one by one. Members whose
/// values are numbers or switches need not be here.
fn is_no_prompt(name: &str) -> bool {
    is_setting(name)
        || matches!(
            name,
            "messages"
                | "max_completion_tokens"
                | "modalities"
                | "prompt_cache_key"
                | "prompt_cache_retention"
                | "reasoning"
                | "reasoning_effort"
                | "safety_identifier"
                | "thinking"
                | "verbosity"
        )
}

/// Members of any of OpenAI's older APIs that are no prompt.
pub(crate) fn is_setting(name: &str) -> bool {
    matches!(
        name,
        "model"
            | "stream"
            | "stream_options"
            | "n"
            | "max_tokens"
            | "temperature"
            | "top_p"
            | "stop"
            | "user"
            | "metadata"
            | "ragmux"
            | "logit_bias"
            | "provider"
            | "service_tier"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(messages: &str, members: &str) -> (Vec<String>, usize, usize, usize) {
        let body = format!(r#"{{"model":"m","messages":[{messages}]{members}}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let counted = request.countable();
        let texts = counted.texts.iter().filter(|text| !text.is_empty()).map(|text| text.to_string()).collect();
        (texts, counted.images, counted.images_at_a_glance, counted.media_tokens)
    }

    #[test]
    fn what_no_provider_makes_prompt_of_is_not_counted() {
        let members = r#","stream":true,"stream_options":{"include_usage":true},"n":2,"temperature":0.5,"stop":["a"],
            "user":"u","metadata":{"team":"a"},"logit_bias":{"50256":-100},"reasoning_effort":"low","seed":7,"x":null,
            "max_tokens":5,"ragmux":{"include_context":true},"parallel_tool_calls":true"#;
        assert_eq!(counted(r#"{"role":"user","content":"hi"}"#, members), (vec!["hi".to_owned()], 0, 0, 0));
    }

    #[test]
    fn every_other_member_counts_known_or_not() {
        for member in [
            r#""tools":[{"type":"function"}]"#,
            r#""functions":[{"name":"f"}]"#,
            r#""tool_choice":"secret words""#,
            r#""response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{}}}"#,
            r#""prediction":{"type":"content","content":"secret words"}"#,
            r#""web_search_options":{"user_location":{"city":"x"}}"#,
            r#""guided_json":{"a":1}"#,
            r#""chat_template":"secret words""#,
            r#""Response_format":{"a":1}"#,
        ] {
            let (texts, ..) = counted(r#"{"role":"user","content":"hi"}"#, &format!(",{member}"));
            let value = member.split_once(':').unwrap().1.trim_matches('"').to_owned();
            assert_eq!(texts, ["hi".to_owned(), value], "{member}");
        }
    }

    #[test]
    fn all_that_a_message_carries_counts() {
        for (member, text) in [
            (r#""name":"bob""#, "bob"),
            (r#""tool_calls":[{"id":"a"}]"#, r#"[{"id":"a"}]"#),
            (r#""tool_call_id":"a""#, "a"),
            (r#""function_call":{"name":"f","arguments":"{}"}"#, r#"{"name":"f","arguments":"{}"}"#),
            (r#""reasoning_content":"h\nm""#, "h\nm"),
            (r#""reasoning":"hm""#, "hm"),
            (r#""reasoning_details":[{"text":"hm"}]"#, r#"[{"text":"hm"}]"#),
            (r#""thinking":"hm""#, "hm"),
            (r#""refusal":"no""#, "no"),
            (r#""audio":{"id":"a"}"#, r#"{"id":"a"}"#),
            (r#""unheard_of":"words""#, "words"),
        ] {
            let (texts, ..) = counted(&format!(r#"{{"role":"assistant","content":"hi",{member}}}"#), "");
            assert_eq!(texts, ["hi", text], "{member}");
        }
        assert_eq!(counted(r#"{"role":"a new one","content":"hi"}"#, "").0, ["hi", "a new one"]);
    }

    #[test]
    fn all_parts_count_by_what_they_are() {
        for (part, text) in [
            (r#"{"type":"refusal","refusal":"no"}"#, "no"),
            (r#"{"type":"input_text","text":"words"}"#, "words"),
            (r#"{"type":"thinking","thinking":[{"text":"hm"}]}"#, r#"[{"text":"hm"}]"#),
            (r#"{"type":"unheard_of","what":{"a":"b"}}"#, r#"{"a":"b"}"#),
            (r#"{"type":"image_url","image_url":{"url":"x"},"text":"words"}"#, "words"),
            (r#"{"type":"text","text":"a","more":"words"}"#, "words"),
        ] {
            let (texts, ..) = counted(&format!(r#"{{"role":"user","content":[{part}]}}"#), "");
            assert_eq!(texts.last().unwrap(), text, "{part}");
        }
        let data = "A".repeat(6400);
        for (part, images, at_a_glance, media) in [
            (format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}"#), 1, 0, 0..1),
            (format!(r#"{{"type":"image_url","image_url":{{"url":"{data}","detail":"low"}}}}"#), 0, 1, 0..1),
            (format!(r#"{{"type":"input_image","image_url":"{data}"}}"#), 1, 0, 0..1),
            (format!(r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#), 0, 0, 100..110),
            (format!(r#"{{"type":"file","file":{{"file_data":"{data}"}}}}"#), 0, 0, 3200..3300),
        ] {
            let (texts, all, low, tokens) = counted(&format!(r#"{{"role":"user","content":[{part}]}}"#), "");
            assert_eq!((texts, all, low), (Vec::new(), images, at_a_glance), "{part}");
            assert!(media.contains(&tokens), "{tokens} for {part}");
        }
    }
}
