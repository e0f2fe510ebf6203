//! What of a Messages request counts as prompt.

use serde_json::value::RawValue;

use super::request::{MessagesRequest, is_result};
use crate::countable::Countable;
use crate::dialect::said::{Piece, Said};
use crate::json::{Members, text_of};

impl MessagesRequest<'_> {
    /// Everything that is, or may become, the prompt: the rules, messages with all their blocks, tools, schemas, and
    /// whatever is not known to be something else.
    #[must_use]
    pub fn countable(&self) -> Countable<'_> {
        let mut counted = Countable::with_room_for(self.messages.len() + 2);
        of_said(&self.system, &mut counted);
        for message in &self.messages {
            of_said(&message.content, &mut counted);
            counted.members(&message.members, |name| matches!(name, "role" | "content" | "cache_control"));
        }
        counted.members(&self.members, is_no_prompt);
        counted
    }
}

fn of_said<'a>(said: &'a Said<'_>, counted: &mut Countable<'a>) {
    if let Said::Text(text) = said {
        counted.texts.push(text.as_ref().into());
    }
    for block in said.pieces() {
        of_block(block, counted);
    }
}

fn of_block<'a>(block: &'a Piece<'_>, counted: &mut Countable<'a>) {
    counted.texts.extend(block.text.as_deref().map(Into::into));
    of_said(&block.inner, counted);
    for (name, value) in block.members.iter() {
        match name {
            "type" | "cache_control" => {}
            // Counted above.
            "text" if block.text.is_some() => {}
            "content" if is_result(block) => {}
            "source" if block.kind == "image" => counted.images += 1,
            "source" if block.kind == "document" => of_source(value, counted),
            "signature" if block.kind == "thinking" => counted.sealed(value),
            "data" if block.kind == "redacted_thinking" => counted.sealed(value),
            _ => counted.value(value),
        }
    }
}

/// Documents of plain text are text, all others are not.
fn of_source<'a>(source: &'a RawValue, counted: &mut Countable<'a>) {
    let members = Members::parse(source.get()).ok();
    let kind = members.as_ref().and_then(|source| source.present("type")).and_then(text_of);
    match (members, kind.as_deref()) {
        (Some(source), Some("text" | "content")) => {
            counted.members(&source, |name| matches!(name, "type" | "media_type"));
        }
        (Some(_), Some("base64")) => counted.document(source),
        _ => counted.value(source),
    }
}

/// Top-level members that are no prompt, and those that are counted one by one. Members whose values are numbers or
/// switches need not be here.
fn is_no_prompt(name: &str) -> bool {
    matches!(
        name,
        "model"
            | "messages"
            | "system"
            | "max_tokens"
            | "stream"
            | "stop_sequences"
            | "metadata"
            | "thinking"
            | "temperature"
            | "top_p"
            | "top_k"
            | "service_tier"
            | "speed"
            | "inference_geo"
            | "anthropic_version"
            | "cache_control"
            | "ragmux"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(content: &str, members: &str) -> (Vec<String>, usize, usize) {
        let body =
            format!(r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":{content}}}]{members}}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        let counted = request.countable();
        (counted.texts.iter().map(|text| text.to_string()).collect(), counted.images, counted.media_tokens)
    }

    #[test]
    fn what_is_no_prompt_is_not_counted_and_everything_else_is() {
        let members = r#","stream":true,"stop_sequences":["a"],"metadata":{"user_id":"u"},"temperature":1,
            "thinking":{"type":"enabled","budget_tokens":1024},"service_tier":"auto""#;
        assert_eq!(counted(r#""hi""#, members), (vec!["hi".to_owned()], 0, 0));
        for member in [
            r#""tools":[{"name":"f"}]"#,
            r#""tool_choice":{"type":"auto"}"#,
            r#""output_format":{"type":"json_schema","schema":{}}"#,
            r#""output_config":{"format":{"schema":{}}}"#,
            r#""mcp_servers":[{"name":"a"}]"#,
            r#""unheard_of":"words""#,
        ] {
            let value = member.split_once(':').unwrap().1.trim_matches('"');
            assert_eq!(counted(r#""hi""#, &format!(",{member}")).0, ["hi", value], "{member}");
        }
        assert_eq!(counted(r#""hi""#, r#","system":[{"type":"text","text":"be kind"}]"#).0, ["be kind", "hi"]);
    }

    #[test]
    fn all_blocks_count_by_what_they_are() {
        let data = "A".repeat(4000);
        let picture =
            format!(r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}"#);
        for (block, texts) in [
            (r#"{"type":"thinking","thinking":"hm"}"#.to_owned(), &["hm"][..]),
            (r#"{"type":"tool_use","id":"a","name":"f","input":{"x":1}}"#.to_owned(), &["a", "f", r#"{"x":1}"#]),
            (r#"{"type":"tool_result","tool_use_id":"a","content":"r"}"#.to_owned(), &["r", "a"]),
            (
                r#"{"type":"document","title":"t","source":{"type":"text","media_type":"text/plain","data":"page"}}"#
                    .to_owned(),
                &["t", "page"],
            ),
            (r#"{"type":"document","source":{"type":"content","content":"page"}}"#.to_owned(), &["page"]),
            (
                r#"{"type":"search_result","source":"s","content":[{"text":"r"}]}"#.to_owned(),
                &["s", r#"[{"text":"r"}]"#],
            ),
            (r#"{"type":"unheard_of","what":{"a":1}}"#.to_owned(), &[r#"{"a":1}"#]),
        ] {
            assert_eq!(counted(&format!("[{block}]"), ""), (texts.iter().map(|text| text.to_string()).collect(), 0, 0));
        }
        assert_eq!(counted(&format!("[{picture}]"), ""), (Vec::new(), 1, 0));
        let result = format!(r#"[{{"type":"tool_result","content":[{picture},{{"type":"text","text":"r"}}]}}]"#);
        assert_eq!(counted(&result, ""), (vec!["r".to_owned()], 1, 0));
        for (block, tokens) in [
            (format!(r#"{{"type":"document","source":{{"type":"base64","data":"{data}"}}}}"#), 2000..2100),
            (format!(r#"{{"type":"redacted_thinking","data":"{data}"}}"#), 1000..1010),
            (format!(r#"{{"type":"thinking","thinking":"","signature":"{data}"}}"#), 1000..1010),
        ] {
            let (texts, images, media) = counted(&format!("[{block}]"), "");
            assert!(texts.is_empty() && images == 0 && tokens.contains(&media), "{media} for {block}");
        }
    }
}
