//! What has been told of an answer, for the case that its end is told here and not by the provider.

use std::collections::BTreeMap;

use bytes::BytesMut;
use serde_json::{Value, json};

use super::event::event;

/// An item of the output.
#[derive(Debug)]
struct Item {
    /// As far as it has been told.
    told: Value,
    is_done: bool,
    /// The part that is open: the list it stands in and its place there.
    part: Option<(&'static str, u64)>,
    /// About what it takes of memory.
    bytes: usize,
}

/// The answer as it was told so far.
#[derive(Debug, Default)]
pub(super) struct Kept {
    items: BTreeMap<u64, Item>,
    /// About what they take of memory.
    bytes: usize,
}

impl Kept {
    /// About the memory that is taken, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes an event of so many bytes that went to the client.
    pub(super) fn take(&mut self, kind: &str, event: &Value, length: usize) {
        let number = |name: &str| event.get(name).and_then(Value::as_u64).unwrap_or(0);
        let place = number("output_index");
        if kind == "response.output_item.added" {
            let told = event.get("item").cloned().unwrap_or_default();
            let before = self.items.insert(place, Item { told, is_done: false, part: None, bytes: length });
            self.bytes = self.bytes.saturating_sub(before.map_or(0, |before| before.bytes)) + length;
            return;
        }
        let Some(item) = self.items.get_mut(&place).filter(|item| !item.is_done) else { return };
        let list = if kind.contains("reasoning_summary") { "summary" } else { "content" };
        let at = number(if list == "summary" { "summary_index" } else { "content_index" });
        let text = match kind {
            "response.output_item.done" => {
                item.told = event.get("item").cloned().unwrap_or_default();
                item.is_done = true;
                self.bytes = self.bytes.saturating_sub(item.bytes) + length;
                item.bytes = length;
                return;
            }
            "response.content_part.added" | "response.reasoning_summary_part.added" => {
                if let Some(parts) = item.told.get_mut(list).and_then(Value::as_array_mut) {
                    parts.push(event.get("part").cloned().unwrap_or_default());
                }
                item.part = Some((list, at));
                item.bytes += length;
                self.bytes += length;
                return;
            }
            "response.content_part.done" | "response.reasoning_summary_part.done" => {
                item.part = None;
                return;
            }
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.reasoning_summary_text.delta" => item.part_member(list, at, "text"),
            "response.refusal.delta" => item.part_member(list, at, "refusal"),
            "response.function_call_arguments.delta" => item.told.get_mut("arguments"),
            "response.custom_tool_call_input.delta" => item.told.get_mut("input"),
            _ => None,
        };
        if let (Some(Value::String(text)), Some(delta)) = (text, event.get("delta").and_then(Value::as_str)) {
            text.push_str(delta);
            item.bytes += delta.len();
            self.bytes += delta.len();
        }
    }

    /// Ends every item that is open, with events of the next numbers.
    pub(super) fn close(&mut self, number: &mut u64, out: &mut BytesMut) {
        for (place, item) in self.items.iter_mut().filter(|(_, item)| !item.is_done) {
            let mut tell = |kind: &str, more: &str| {
                event(kind, *number, more, out);
                *number += 1;
            };
            item.end(*place, &mut tell);
            if let Some(told) = item.told.as_object_mut().filter(|told| told.contains_key("status")) {
                told.insert("status".to_owned(), "incomplete".into());
            }
            item.is_done = true;
            let more = format!(",\"output_index\":{place},\"item\":{}", item.told);
            tell("response.output_item.done", &more);
        }
    }

    /// The items that have ended.
    pub(super) fn output(&self) -> Value {
        self.items.values().filter(|item| item.is_done).map(|item| item.told.clone()).collect()
    }
}

impl Item {
    fn part_member(&mut self, list: &str, at: u64, name: &str) -> Option<&mut Value> {
        self.told.get_mut(list)?.get_mut(usize::try_from(at).ok()?)?.get_mut(name)
    }

    /// Tells the ends of what is open of the item.
    fn end(&mut self, place: u64, tell: &mut dyn FnMut(&str, &str)) {
        let text = |name: &str| self.told.get(name).cloned().unwrap_or_default();
        let about = format!(",\"item_id\":{},\"output_index\":{place}", text("id"));
        match self.told.get("type").and_then(Value::as_str) {
            Some("function_call") => {
                let more = format!("{about},\"name\":{},\"arguments\":{}", text("name"), text("arguments"));
                tell("response.function_call_arguments.done", &more);
            }
            Some("custom_tool_call") => {
                tell("response.custom_tool_call_input.done", &format!("{about},\"input\":{}", text("input")));
            }
            _ => {}
        }
        let Some((list, at)) = self.part.take() else { return };
        let part = usize::try_from(at).ok().and_then(|at| self.told.get(list)?.get(at)).cloned().unwrap_or_default();
        let (index, part_done, kind, name) = match part.get("type").and_then(Value::as_str) {
            Some("summary_text") => ("summary_index", "reasoning_summary_part", "reasoning_summary_text", "text"),
            Some("refusal") => ("content_index", "content_part", "refusal", "refusal"),
            Some("reasoning_text") => ("content_index", "content_part", "reasoning_text", "text"),
            _ => ("content_index", "content_part", "output_text", "text"),
        };
        let logprobs = if kind == "output_text" { ",\"logprobs\":[]" } else { "" };
        let text = part.get(name).cloned().unwrap_or_else(|| json!(""));
        tell(&format!("response.{kind}.done"), &format!("{about},\"{index}\":{at},\"{name}\":{text}{logprobs}"));
        tell(&format!("response.{part_done}.done"), &format!("{about},\"{index}\":{at},\"part\":{part}"));
    }
}
