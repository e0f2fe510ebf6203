//! Features of a Messages request that cost more than its tokens at the model's price.

use domain::ProviderType;
use serde_json::value::RawValue;

use super::request::MessagesRequest;
use crate::dialect::openai::{Feature, long_cache};
use crate::dialect::said::Piece;
use crate::json::{Members, elements, text_of};

/// Members with prices of their own, unless they say one of these words (Anthropic API reference, Create a Message):
/// tiers of service, containers and what runs in them, servers of tools, faster answers, places of work; prompts that
/// are not in the request (threads), models of the client's choice, and summaries that are written besides the answer.
const MEMBERS: [(&str, &[&str]); 9] = [
    ("service_tier", &["auto", "standard_only"]),
    ("container", &[]),
    ("mcp_servers", &[]),
    ("speed", &["standard"]),
    ("inference_geo", &["global", "not_available"]),
    ("thread", &[]),
    ("fallbacks", &[]),
    ("fallback_credit_token", &[]),
    ("compaction", &[]),
];

/// Blocks that are paid as the prompt's tokens, all of which the request shows. All others, known or not, may be paid
/// otherwise or stand for what is not seen here (`container_upload`).
const PRICED_BLOCKS: [&str; 11] = [
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "tool_reference",
    "server_tool_use",
    "web_search_tool_result",
];

/// Where pictures may come from: each counts as a large one, so its size need not be known.
const IMAGE_SOURCES: [&str; 3] = ["base64", "url", "file"];

/// Tools that the client runs itself: its own, and those whose use the models have learnt.
const OWN_TOOLS: [&str; 6] = ["custom", "bash_", "text_editor_", "computer_", "memory_", "browser_"];

impl MessagesRequest<'_> {
    /// All features of the request that cost more than its tokens. Which ones there are does not depend on the
    /// provider: others than Anthropic are not asked for any of them.
    #[must_use]
    pub fn costly_features(&self, _provider: ProviderType) -> Vec<Feature> {
        let mut found = Vec::new();
        for (name, free) in MEMBERS {
            if self.members.present(name).is_some_and(|value| !is_free(value, free)) {
                found.push(Feature::new(name, name));
            }
        }
        if self.members.present("context_management").is_some_and(|value| !only_clears(value)) {
            found.push(Feature::new("context_management", "context_management"));
        }
        for (at, tool) in self.tools.iter().enumerate() {
            let path = || format!("tools[{at}]");
            match tool.present("type").map(text_of) {
                None => {}
                Some(Some(kind)) if OWN_TOOLS.iter().any(|own| kind.starts_with(own)) => {}
                Some(Some(kind)) => found.push(Feature::new(&kind, path())),
                Some(None) => found.push(Feature::new("tools", path())),
            }
            found.extend(long_cache(tool, path));
        }
        found.extend(long_cache(&self.members, String::new));
        of_blocks(self.system.pieces(), &|| "system".to_owned(), &mut found);
        for (at, message) in self.messages.iter().enumerate() {
            of_blocks(message.content.pieces(), &|| format!("messages[{at}].content"), &mut found);
        }
        found
    }
}

fn is_free(value: &RawValue, free: &[&str]) -> bool {
    match value.get() {
        "false" => true,
        array if array.starts_with('[') => elements(array).is_ok_and(|list| list.is_empty()),
        _ => text_of(value).is_some_and(|word| free.contains(&&*word)),
    }
}

/// A path is written only where something is found: there may be many thousand blocks.
fn of_blocks(blocks: &[Piece<'_>], path: &dyn Fn() -> String, found: &mut Vec<Feature>) {
    for (at, block) in blocks.iter().enumerate() {
        let path = || format!("{}[{at}]", path());
        found.extend(long_cache(&block.members, path));
        if !is_priced(block) {
            found.push(Feature::new(&block.kind, path()));
        }
        of_blocks(block.inner.pieces(), &|| format!("{}.content", path()), found);
    }
}

/// Whether all that a block is paid for can be seen in it. A document can only where it is text: how much of one that
/// is compressed, or kept elsewhere, becomes prompt its size does not tell.
fn is_priced(block: &Piece<'_>) -> bool {
    let source = block.members.present("source").and_then(|source| Members::parse(source.get()).ok());
    let of_source = |name| source.as_ref().and_then(|source| source.present(name));
    let from = of_source("type").and_then(text_of);
    match &*block.kind {
        "image" => from.is_some_and(|from| IMAGE_SOURCES.contains(&&*from)),
        "document" => match from.as_deref() {
            Some("text") => true,
            Some("content") => of_source("content").is_some_and(is_text),
            _ => false,
        },
        kind => PRICED_BLOCKS.contains(&kind),
    }
}

fn is_text(content: &RawValue) -> bool {
    let is_block = |block: &RawValue| {
        let block = Members::parse(block.get()).ok();
        block.and_then(|block| block.present("type").and_then(text_of)).is_some_and(|kind| kind == "text")
    };
    text_of(content).is_some() || elements(content.get()).is_ok_and(|blocks| blocks.into_iter().all(is_block))
}

/// Whether the context is only made smaller. Other edits are work of the model's.
fn only_clears(management: &RawValue) -> bool {
    let clears = |edit: &RawValue| {
        let edit = Members::parse(edit.get()).ok();
        edit.and_then(|edit| edit.present("type").and_then(text_of)).is_some_and(|kind| kind.starts_with("clear_"))
    };
    let Ok(management) = Members::parse(management.get()) else { return false };
    management.iter().all(|(name, value)| {
        name == "edits"
            && (value.get() == "null" || elements(value.get()).is_ok_and(|edits| edits.into_iter().all(clears)))
    })
}

/// Betas that cost more without any other word of the request: prompts over 200,000 tokens (Pricing, Long context).
const COSTLY_BETAS: [&str; 1] = ["context-1m"];

/// The features that `anthropic-beta` asks for and that cost more than their tokens, by the names of the betas.
#[must_use]
pub fn costly_betas(header: &str) -> Vec<Feature> {
    let betas = header.split(',').map(str::trim);
    let costly = betas.filter(|beta| COSTLY_BETAS.iter().any(|costly| beta.starts_with(costly)));
    costly.map(|beta| Feature::new(beta, "anthropic-beta")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(members: &str) -> Vec<String> {
        let body = format!(r#"{{"max_tokens":1,"messages":[{{"role":"user","content":"a"}}]{members}}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        let features = request.costly_features(ProviderType::Anthropic);
        features.into_iter().map(|feature| format!("{} at {}", feature.name, feature.path)).collect()
    }

    #[test]
    fn what_adds_cost_is_found_wherever_it_stands() {
        for (members, feature) in [
            (r#","service_tier":"priority""#, "service_tier at service_tier"),
            (r#","container":"c_1""#, "container at container"),
            (r#","mcp_servers":[{"url":"https://tools.example"}]"#, "mcp_servers at mcp_servers"),
            (r#","speed":"fast""#, "speed at speed"),
            (r#","inference_geo":"us""#, "inference_geo at inference_geo"),
            (
                r#","tools":[{"name":"f"},{"type":"web_search_20250305","name":"web_search"}]"#,
                "web_search_20250305 at tools[1]",
            ),
            (r#","tools":[{"type":7}]"#, "tools at tools[0]"),
            (r#","tools":[{"name":"f","cache_control":{"ttl":"1h"}}]"#, "cache_control at tools[0].cache_control.ttl"),
            (r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#, "cache_control at cache_control.ttl"),
            (
                r#","system":[{"type":"text","text":"a","cache_control":{"ttl":"1h"}}]"#,
                "cache_control at system[0].cache_control.ttl",
            ),
        ] {
            assert_eq!(found(members), [feature], "{members}");
        }
        let nested = br#"{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a",
            "content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}]}"#;
        let features = MessagesRequest::parse(nested).unwrap().costly_features(ProviderType::Anthropic);
        assert_eq!(features[0].path, "messages[0].content[0].content[0].cache_control.ttl");
    }

    fn found_in(content: &str) -> Vec<String> {
        let body = format!(r#"{{"max_tokens":1,"messages":[{{"role":"user","content":{content}}}]}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        let features = request.costly_features(ProviderType::Anthropic);
        features.into_iter().map(|feature| format!("{} at {}", feature.name, feature.path)).collect()
    }

    #[test]
    fn what_is_not_seen_in_the_request_may_cost_anything() {
        for (block, name) in [
            (r#"{"type":"document","source":{"type":"url","url":"https://files.example/a.pdf"}}"#, "document"),
            (r#"{"type":"document","source":{"type":"file","file_id":"file_1"}}"#, "document"),
            (
                r#"{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA=="}}"#,
                "document",
            ),
            (r#"{"type":"document","source":{"type":"content","content":[{"type":"image"}]}}"#, "document"),
            (r#"{"type":"document"}"#, "document"),
            (r#"{"type":"image","source":{"type":"elsewhere"}}"#, "image"),
            (r#"{"type":"container_upload","file_id":"file_1"}"#, "container_upload"),
            (r#"{"type":"compaction","content":null}"#, "compaction"),
            (r#"{"type":"unheard_of"}"#, "unheard_of"),
        ] {
            assert_eq!(found_in(&format!("[{block}]")), [format!("{name} at messages[0].content[0]")], "{block}");
            let result = format!(r#"[{{"type":"tool_result","tool_use_id":"a","content":[{block}]}}]"#);
            assert_eq!(found_in(&result), [format!("{name} at messages[0].content[0].content[0]")], "{block}");
        }
        for (members, feature) in [
            (r#","thread":{"type":"continue","previous_message_id":"msg_1"}"#, "thread at thread"),
            (r#","fallbacks":[{"model":"dear"}]"#, "fallbacks at fallbacks"),
            (r#","compaction":{"type":"auto"}"#, "compaction at compaction"),
            (
                r#","context_management":{"edits":[{"type":"compact_20260112"}]}"#,
                "context_management at context_management",
            ),
            (r#","context_management":{"edits":7}"#, "context_management at context_management"),
            (r#","context_management":{"rules":[]}"#, "context_management at context_management"),
        ] {
            assert_eq!(found(members), [feature], "{members}");
        }
    }

    #[test]
    fn blocks_that_show_all_they_cost_are_part_of_every_price() {
        for block in [
            r#"{"type":"text","text":"a"}"#,
            r#"{"type":"image","source":{"type":"url","url":"https://a.example/b.png"}}"#,
            r#"{"type":"image","source":{"type":"file","file_id":"file_1"}}"#,
            r#"{"type":"document","source":{"type":"text","media_type":"text/plain","data":"page"}}"#,
            r#"{"type":"document","source":{"type":"content","content":"page"}}"#,
            r#"{"type":"document","source":{"type":"content","content":[{"type":"text","text":"page"}]}}"#,
            r#"{"type":"thinking","thinking":"hm","signature":"s"}"#,
            r#"{"type":"redacted_thinking","data":"s"}"#,
            r#"{"type":"search_result","source":"s","title":"t","content":[{"type":"text","text":"r"}]}"#,
            r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#,
        ] {
            assert!(found_in(&format!("[{block}]")).is_empty(), "{block}");
        }
    }

    #[test]
    fn a_beta_may_cost_by_itself() {
        let names = |header| costly_betas(header).into_iter().map(|feature| feature.name).collect::<Vec<_>>();
        assert_eq!(names("tools-2024-04-04, context-1m-2025-08-07"), ["context-1m-2025-08-07"]);
        assert!(names("").is_empty() && names("fine-grained-tool-streaming-2025-05-14").is_empty());
    }

    #[test]
    fn what_is_part_of_every_price_is_not() {
        for members in [
            "",
            r#","service_tier":"auto","speed":"standard","mcp_servers":[],"container":null"#,
            r#","tools":[{"name":"f"},{"type":"custom","name":"g"},{"type":"bash_20250124","name":"bash"}]"#,
            r#","cache_control":{"type":"ephemeral","ttl":"5m"},"thinking":{"type":"enabled","budget_tokens":2000}"#,
            r#","context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},"thread":null,"fallbacks":[]"#,
        ] {
            assert!(found(members).is_empty(), "{members}");
        }
    }
}
