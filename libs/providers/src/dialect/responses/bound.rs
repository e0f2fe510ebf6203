//! Cutting a whole answer down to its output bound, for providers that do not keep the bound themselves.

use serde_json::{Value, json};

use crate::dialect::openai::{Meter, OutputBound, TextPart, prefix};

/// Ends the answer where its output comes to the bound. Returns the tokens that are left of it, and whether anything went.
pub(super) fn bound(response: &mut Value, bound: &OutputBound) -> (u64, bool) {
    let mut meter = Meter::new(*bound);
    let Some(output) = response.get_mut("output").and_then(Value::as_array_mut) else { return (0, false) };
    let mut kept = None;
    for (at, item) in output.iter_mut().enumerate() {
        match cut(item, at as u64, bound, &mut meter) {
            Cut::Not => continue,
            Cut::Within => kept = Some(at + 1),
            Cut::Before => kept = Some(at),
        }
        break;
    }
    let Some(kept) = kept else { return (meter.tokens(), false) };
    output.truncate(kept);
    if let Some(response) = response.as_object_mut() {
        response.insert("status".to_owned(), "incomplete".into());
        response.insert("incomplete_details".to_owned(), json!({ "reason": "max_output_tokens" }));
    }
    (meter.tokens(), true)
}

enum Cut {
    Not,
    /// The item ends early.
    Within,
    /// The item has no room at all.
    Before,
}

fn cut(item: &mut Value, at: u64, bound: &OutputBound, meter: &mut Meter) -> Cut {
    if let Some(name) = item.get("name").and_then(Value::as_str)
        && !meter.take_texts([(at, TextPart::ToolName(at), name)])
    {
        return Cut::Before;
    }
    let mut is_cut = false;
    for text in texts(item) {
        let left = if is_cut { 0 } else { bound.tokens.saturating_sub(meter.tokens()) };
        let fits = prefix(text, bound.family, left).len();
        is_cut |= fits < text.len();
        text.truncate(fits);
        meter.take_texts([(at, TextPart::Content, text.as_str())]);
    }
    if !is_cut {
        return Cut::Not;
    }
    if let Some(members) = item.as_object_mut() {
        if members.contains_key("status") {
            members.insert("status".to_owned(), "incomplete".into());
        }
        for list in ["summary", "content"] {
            let Some(parts) = members.get_mut(list).and_then(Value::as_array_mut) else { continue };
            for part in parts.iter_mut().filter_map(Value::as_object_mut) {
                // What could repeat the text.
                for name in ["annotations", "logprobs"] {
                    if part.contains_key(name) {
                        part.insert(name.to_owned(), json!([]));
                    }
                }
            }
        }
    }
    Cut::Within
}

/// Every text of an item, in its order.
fn texts(item: &mut Value) -> Vec<&mut String> {
    let Some(members) = item.as_object_mut() else { return Vec::new() };
    let mut texts = Vec::new();
    for (name, value) in members.iter_mut() {
        match (name.as_str(), value) {
            ("arguments" | "input", Value::String(text)) => texts.push(text),
            ("summary" | "content", Value::Array(parts)) => {
                for part in parts.iter_mut().filter_map(Value::as_object_mut) {
                    let said = part.iter_mut().filter(|(name, _)| matches!(name.as_str(), "text" | "refusal"));
                    texts.extend(said.filter_map(|(_, value)| match value {
                        Value::String(text) => Some(text),
                        _ => None,
                    }));
                }
            }
            _ => {}
        }
    }
    texts
}
