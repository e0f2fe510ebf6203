//! Cutting a whole answer down to its output bound, for providers that do not keep the bound themselves.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokens::{Family, count};

use super::bound::{OutputBound, index_of};
use super::texts::{Part, REASONING, Text, texts};
use crate::json::{Members, Splices, span};

/// No text of that many bytes a token is sensible; a prefix is not looked for beyond it.
const MOST_BYTES_A_TOKEN: u64 = 16;
/// A text is counted in pieces of about that size, of which only the last one is counted again and again.
const PIECE_BYTES: usize = 1024;

/// Cuts every choice that has more than its part of the bound: its texts end there, its finish reason becomes `length`,
/// and whatever else it carried goes, since that could repeat the text (log probabilities, annotations). A choice that
/// needs less leaves the rest to those after it. Returns the tokens of all texts that are left.
pub(super) fn truncate(text: &str, choices: &[&RawValue], bound: &OutputBound, splices: &mut Splices) -> u64 {
    let mut total = 0_u64;
    let choices: Vec<_> = choices.iter().filter_map(|raw| Some((*raw, Members::parse(raw.get()).ok()?))).collect();
    for (at, (raw, choice)) in choices.iter().enumerate() {
        let others = (choices.len() - at - 1) as u64;
        let allowance = bound.tokens.saturating_sub(total) / (others + 1);
        let Some(message) = choice.present("message") else { continue };
        let texts = texts(message);
        let used = texts.iter().fold(0_u64, |sum, text| sum.saturating_add(tokens_of(bound.family, &text.text)));
        if used <= allowance {
            total = total.saturating_add(used);
            continue;
        }
        let (cut, used) = cut(choice, message, &texts, bound.family, allowance);
        total = total.saturating_add(used);
        splices.replace(span(text, raw.get()), cut.to_string());
    }
    total
}

fn cut(choice: &Members<'_>, message: &RawValue, texts: &[Text<'_>], family: Family, allowance: u64) -> (Value, u64) {
    let parsed: Value = serde_json::from_str(message.get()).unwrap_or_default();
    let role = parsed.get("role").cloned().unwrap_or_else(|| "assistant".into());
    let mut kept = Map::from_iter([("role".to_owned(), role), ("content".to_owned(), Value::Null)]);
    let mut calls: Vec<Value> = Vec::new();
    let mut left = allowance;
    for Text { part, text } in texts {
        if left == 0 {
            break;
        }
        let piece = prefix(text, family, left);
        left = left.saturating_sub(tokens_of(family, piece));
        match part {
            Part::Reasoning => {
                // Under the name it came with, if that takes a text.
                let has = |name: &&str| parsed.get(name).is_some_and(Value::is_string);
                let name = REASONING.into_iter().find(has).unwrap_or("reasoning");
                kept.insert(name.to_owned(), piece.into());
            }
            Part::Content => {
                kept.insert("content".to_owned(), piece.into());
            }
            Part::Refusal => {
                kept.insert("refusal".to_owned(), piece.into());
            }
            // The sound cannot be cut where its words are.
            Part::Transcript => {
                kept.insert("audio".to_owned(), json!({ "transcript": piece }));
            }
            Part::FunctionName => {
                kept.insert("function_call".to_owned(), json!({ "name": piece, "arguments": "" }));
            }
            Part::FunctionArguments => {
                if let Some(call) = kept.get_mut("function_call").and_then(Value::as_object_mut) {
                    call.insert("arguments".to_owned(), piece.into());
                }
            }
            Part::ToolName(index) => calls.push(tool_call(&parsed, *index, piece)),
            Part::ToolArguments(_) => {
                let call = calls.last_mut().and_then(Value::as_object_mut);
                if let Some((tool, arguments)) = call.and_then(tool_of) {
                    tool.insert(arguments.to_owned(), piece.into());
                }
            }
        }
        if piece.len() < text.len() {
            break;
        }
    }
    if !calls.is_empty() {
        kept.insert("tool_calls".to_owned(), calls.into());
    }
    let cut = json!({ "index": index_of(choice), "message": kept, "logprobs": null, "finish_reason": "length" });
    (cut, allowance - left)
}

/// The call of that place, without its arguments.
fn tool_call(message: &Value, index: u64, name: &str) -> Value {
    let at = usize::try_from(index).unwrap_or(usize::MAX);
    let own = |member: &str| message.get("tool_calls")?.get(at)?.get(member).cloned();
    let id = own("id");
    if own("custom").is_some() {
        return json!({ "id": id, "type": "custom", "custom": { "name": name, "input": "" } });
    }
    let kind = own("type").unwrap_or_else(|| "function".into());
    json!({ "id": id, "type": kind, "function": { "name": name, "arguments": "" } })
}

/// The tool of a call made by [`tool_call`], and the name of its arguments.
fn tool_of(call: &mut Map<String, Value>) -> Option<(&mut Map<String, Value>, &'static str)> {
    let (tool, arguments) = if call.contains_key("custom") { ("custom", "input") } else { ("function", "arguments") };
    Some((call.get_mut(tool)?.as_object_mut()?, arguments))
}

/// The longest beginning of a text that has at most so many tokens, as near as the few pieces of it tell that are counted:
/// all of it is counted twice at most, however long it is.
pub(crate) fn prefix(text: &str, family: Family, tokens: u64) -> &str {
    let most = usize::try_from(tokens.saturating_mul(MOST_BYTES_A_TOKEN)).unwrap_or(usize::MAX);
    let within = text.get(..text.floor_char_boundary(most.min(text.len()))).unwrap_or_default();
    // Where a piece begins with a space, the tokens of a text are those of its pieces; elsewhere the pieces have more.
    let (mut fits, mut left) = (0, tokens);
    loop {
        let piece = piece_at(within, fits);
        let used = tokens_of(family, piece);
        if piece.is_empty() || used > left {
            fits += longest(piece, family, left);
            break;
        }
        (fits, left) = (fits + piece.len(), left - used);
    }
    let found = within.get(..fits).unwrap_or_default();
    if tokens_of(family, found) <= tokens {
        found
    } else {
        found.get(..longest(found, family, tokens)).unwrap_or_default()
    }
}

/// The piece of a text that begins there: to a word's beginning if one is near the end of the piece.
fn piece_at(text: &str, from: usize) -> &str {
    let end = text.floor_char_boundary((from + PIECE_BYTES).min(text.len()));
    let piece = text.get(from..end).unwrap_or_default();
    match piece.rfind(' ') {
        Some(space) if space > 0 && end < text.len() => piece.get(..space).unwrap_or_default(),
        _ => piece,
    }
}

/// The length of the longest beginning that has at most so many tokens.
fn longest(text: &str, family: Family, tokens: u64) -> usize {
    let first = |bytes: usize| text.get(..text.floor_char_boundary(bytes)).unwrap_or_default();
    let (mut fits, mut too_long) = (0, text.len() + 1);
    while too_long - fits > 1 {
        let middle = fits + (too_long - fits) / 2;
        if tokens_of(family, first(middle)) <= tokens {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    first(fits).len()
}

/// How many tokens a text is worth.
pub(crate) fn tokens_of(family: Family, text: &str) -> u64 {
    count(family, text) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::elements;

    fn cut_to(tokens: u64, family: Family, choices: &Value) -> (Value, u64) {
        let text = choices.to_string();
        let bound = OutputBound { field: "max_tokens", tokens, family, prompt_tokens: 0 };
        let mut splices = Splices::default();
        let total = truncate(&text, &elements(&text).unwrap(), &bound, &mut splices);
        (serde_json::from_slice(&splices.apply(text.as_bytes())).unwrap(), total)
    }

    #[test]
    fn an_answer_within_its_bound_stays_as_it_is() {
        let choices = json!([{ "index": 0, "message": { "content": "one two" }, "finish_reason": "stop", "x": 1 }]);
        assert_eq!(cut_to(2, Family::O200k, &choices), (choices, 2));
    }

    #[test]
    fn what_is_beyond_the_bound_goes_and_whatever_could_repeat_it() {
        let choices = json!([{
            "index": 0, "finish_reason": "stop", "logprobs": { "content": [{ "token": " three" }] },
            "message": { "role": "assistant", "content": "one two three four", "annotations": ["four"] },
        }]);
        let message = json!({ "role": "assistant", "content": "one two" });
        let cut = json!([{ "index": 0, "message": message, "logprobs": null, "finish_reason": "length" }]);
        assert_eq!(cut_to(2, Family::O200k, &choices), (cut, 2));
    }

    #[test]
    fn reasoning_comes_first_and_calls_last() {
        let call =
            |name: &str| json!({ "id": name, "type": "function", "function": { "name": name, "arguments": "{}" } });
        let choices = json!([{
            "message": { "role": "assistant", "reasoning": "hm", "content": "yes", "tool_calls": [call("a"), call("b")] },
        }]);
        let (cut, total) = cut_to(4, Family::O200k, &choices);
        let message = &cut[0]["message"];
        assert_eq!((&message["reasoning"], &message["content"], total), (&json!("hm"), &json!("yes"), 4));
        assert_eq!(message["tool_calls"], json!([call("a")]));
        assert_eq!(cut_to(3, Family::O200k, &choices).0[0]["message"]["tool_calls"][0]["function"]["arguments"], "");
        assert_eq!(cut_to(0, Family::O200k, &choices).0[0]["message"], json!({ "role": "assistant", "content": null }));
    }

    #[test]
    fn what_is_not_plain_content_is_cut_as_well() {
        let cut = |message: Value| cut_to(2, Family::O200k, &json!([{ "message": message }])).0[0]["message"].clone();
        let parts = json!([{ "type": "thinking", "thinking": "one" }, { "type": "text", "text": "two three" }]);
        let kept = json!({ "role": "assistant", "reasoning": "one", "content": "two" });
        assert_eq!(cut(json!({ "content": parts })), kept);
        let kept = json!({ "role": "assistant", "thinking": "one two", "content": null });
        assert_eq!(cut(json!({ "thinking": "one two three" })), kept);
        let kept = json!({ "role": "assistant", "content": null, "audio": { "transcript": "one two" } });
        assert_eq!(cut(json!({ "audio": { "data": "AAAA", "transcript": "one two three" } })), kept);
        let call = |input: &str| json!({ "id": "1", "type": "custom", "custom": { "name": "f", "input": input } });
        let kept = json!({ "role": "assistant", "content": null, "tool_calls": [call("one")] });
        assert_eq!(cut(json!({ "tool_calls": [call("one two three")] })), kept);
    }

    #[test]
    fn a_short_choice_leaves_its_rest_to_the_others() {
        let choice = |index: u64, text: &str| json!({ "index": index, "message": { "content": text } });
        let (cut, total) = cut_to(6, Family::O200k, &json!([choice(0, "one"), choice(1, "a b c d e f g")]));
        assert_eq!((&cut[0]["message"]["content"], total), (&json!("one"), 6));
        assert_eq!((&cut[1]["message"]["content"], &cut[1]["index"]), (&json!("a b c d e"), &json!(1)));
    }

    #[test]
    fn a_long_text_is_cut_where_its_tokens_end() {
        let long = "so many words that nobody reads them ".repeat(20_000);
        for tokens in [0, 1, 1_000, 30_000] {
            let kept = prefix(&long, Family::O200k, tokens);
            let counted = tokens_of(Family::O200k, kept);
            assert!(long.starts_with(kept) && counted <= tokens && counted + 1 >= tokens, "{counted} of {tokens}");
        }
        assert_eq!(prefix("one two", Family::O200k, u64::MAX), "one two");
    }

    proptest! {
        #[test]
        fn no_answer_is_longer_than_its_bound(
            texts in proptest::collection::vec("[a-zA-Z0-9 .\u{e9}\u{6708}\u{1f319}]{0,60}", 1..4),
            bound in 0_u64..40,
        ) {
            let choices: Vec<Value> = texts.iter().map(|text| json!({ "message": { "content": text } })).collect();
            for family in [Family::Estimated, Family::O200k] {
                let (cut, total) = cut_to(bound, family, &json!(choices));
                let mut counted = 0;
                for (choice, whole) in cut.as_array().unwrap().iter().zip(&texts) {
                    let kept = choice["message"]["content"].as_str().unwrap_or_default();
                    prop_assert!(whole.starts_with(kept));
                    prop_assert_eq!(kept == whole, choice["finish_reason"].is_null() || whole.is_empty());
                    counted += tokens_of(family, kept);
                }
                prop_assert_eq!(counted, total);
                prop_assert!(total <= bound);
            }
        }
    }
}
