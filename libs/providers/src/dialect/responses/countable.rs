//! What of a Responses request counts as prompt.

use super::request::{Input, Item, Kind, ResponsesRequest};
use crate::countable::Countable;
use crate::dialect::said::{Piece, Said};
use crate::json::text_of;

impl ResponsesRequest<'_> {
    /// Everything that is, or may become, the prompt: instructions, items with all they carry, tools, schemas, and
    /// whatever is not known to be something else.
    #[must_use]
    pub fn countable(&self) -> Countable<'_> {
        let mut counted = Countable::with_room_for(self.items().len() + 2);
        if let Input::Text(text) = &self.input {
            counted.texts.push(text.as_ref().into());
        }
        for item in self.items() {
            of_item(item, &mut counted);
        }
        counted.members(&self.members, is_no_prompt);
        counted
    }
}

fn of_item<'a>(item: &'a Item<'_>, counted: &mut Countable<'a>) {
    if let Said::Text(text) = &item.said {
        counted.texts.push(text.as_ref().into());
    }
    for part in item.said.pieces() {
        of_part(part, counted);
    }
    for (name, value) in item.members.iter() {
        match name {
            "type" | "role" | "id" | "status" => {}
            // Counted above.
            _ if item.raw_said.is_some_and(|said| std::ptr::eq(said, value)) => {}
            "encrypted_content" if item.kind == Kind::Reasoning => counted.sealed(value),
            _ => counted.value(value),
        }
    }
}

fn of_part<'a>(part: &'a Piece<'_>, counted: &mut Countable<'a>) {
    counted.texts.extend(part.text.as_deref().map(Into::into));
    let is_low = || part.members.present("detail").and_then(text_of).is_some_and(|detail| detail == "low");
    for (name, value) in part.members.iter() {
        match name {
            "type" | "detail" | "logprobs" => {}
            // Counted above.
            "text" | "refusal" if part.text.is_some() => {}
            "image_url" | "file_id" if part.kind == "input_image" && is_low() => counted.images_at_a_glance += 1,
            "image_url" | "file_id" if part.kind == "input_image" => counted.image(value),
            "input_audio" => counted.sound(value),
            "file_data" => counted.document(value),
            _ => counted.value(value),
        }
    }
}

/// Top-level members that are no prompt, and those that are counted one by one. Members whose values are numbers or
/// switches need not be here.
fn is_no_prompt(name: &str) -> bool {
    matches!(
        name,
        "model"
            | "input"
            | "include"
            | "metadata"
            | "prompt_cache_key"
            | "prompt_cache_retention"
            | "ragmux"
            | "reasoning"
            | "safety_identifier"
            | "service_tier"
            | "stream_options"
            | "truncation"
            | "user"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(body: &str) -> (Vec<String>, usize, usize, usize) {
        let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
        let counted = request.countable();
        let texts = counted.texts.iter().filter(|text| !text.is_empty()).map(|text| text.to_string()).collect();
        (texts, counted.images, counted.images_at_a_glance, counted.media_tokens)
    }

    #[test]
    fn what_is_no_prompt_is_not_counted_and_everything_else_is() {
        let body = r#"{"model":"m","input":"hi","stream":true,"include":["x"],"metadata":{"team":"a"},"temperature":0.5,
            "reasoning":{"effort":"low"},"service_tier":"auto","truncation":"auto","user":"u","store":false}"#;
        assert_eq!(counted(body), (vec!["hi".to_owned()], 0, 0, 0));
        for member in [
            r#""instructions":"be kind""#,
            r#""tools":[{"type":"function","name":"f"}]"#,
            r#""tool_choice":{"type":"function","name":"f"}"#,
            r#""text":{"format":{"type":"json_schema","schema":{}}}"#,
            r#""unheard_of":"words""#,
        ] {
            let value = member.split_once(':').unwrap().1.trim_matches('"');
            assert_eq!(counted(&format!(r#"{{"input":"hi",{member}}}"#)).0, ["hi", value], "{member}");
        }
    }

    #[test]
    fn all_items_count_by_what_they_are() {
        for (item, texts) in [
            (r#"{"role":"user","content":"a"}"#, &["a"][..]),
            (
                r#"{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"new","what":{"b":1}}]}"#,
                &["a", r#"{"b":1}"#],
            ),
            (
                r#"{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[],"logprobs":[{"token":"a"}]},{"type":"refusal","refusal":"no"}]}"#,
                &["a", "no"],
            ),
            (r#"{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]}"#, &["hm"]),
            (r#"{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]}"#, &["hm"]),
            (r#"{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}"}"#, &["c", "f", "{}"]),
            (r#"{"type":"function_call_output","call_id":"c","output":"done"}"#, &["done", "c"]),
            (r#"{"type":"unheard_of","words":"secret"}"#, &["secret"]),
        ] {
            let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
            assert_eq!(counted(&format!(r#"{{"input":[{item}]}}"#)), (texts, 0, 0, 0), "{item}");
        }
        let data = "A".repeat(4000);
        for (part, images, at_a_glance, tokens) in [
            (format!(r#"{{"type":"input_image","image_url":"data:image/png;base64,{data}"}}"#), 1, 0, 0..1),
            (format!(r#"{{"type":"input_image","image_url":"{data}","detail":"low"}}"#), 0, 1, 0..1),
            (format!(r#"{{"type":"input_file","file_data":"{data}"}}"#), 0, 0, 2000..2010),
        ] {
            let (texts, all, low, media) = counted(&format!(r#"{{"input":[{{"role":"user","content":[{part}]}}]}}"#));
            assert_eq!((texts, all, low), (Vec::new(), images, at_a_glance), "{part}");
            assert!(tokens.contains(&media), "{media} for {part}");
        }
        let sealed = format!(r#"{{"input":[{{"type":"reasoning","summary":[],"encrypted_content":"{data}"}}]}}"#);
        assert_eq!(counted(&sealed), (Vec::new(), 0, 0, 1001));
    }
}
