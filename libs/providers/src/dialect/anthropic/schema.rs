//! JSON Schema brought to the part of it that answers can be held to.
//!
//! Anthropic API, Structured outputs, JSON Schema limitations: every object says `additionalProperties: false`, and bounds
//! of numbers, of texts and of lists are refused. As the provider's own libraries do, what is taken out is told to the
//! model in the `description` of its place.

use serde_json::value::{RawValue, to_raw_value};

use crate::tree::Tree;

/// Members that stay as they are.
const KEPT: [&str; 10] =
    ["type", "description", "title", "enum", "const", "default", "required", "pattern", "$ref", "$schema"];
/// Formats of texts that can be kept to.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];
/// Members that are schemas.
const SCHEMAS: [&str; 1] = ["items"];
/// Members that are lists of schemas.
const LISTS: [&str; 3] = ["anyOf", "allOf", "oneOf"];
/// Members whose members are schemas.
const MAPS: [&str; 3] = ["properties", "$defs", "definitions"];

/// A schema that the API takes, and whether something in it had to go.
pub(super) fn closed(schema: &RawValue) -> Option<(Box<RawValue>, bool)> {
    let mut tree: Tree = serde_json::from_str(schema.get()).ok()?;
    let mut is_less = false;
    close(&mut tree, &mut is_less);
    Some((to_raw_value(&tree).ok()?, is_less))
}

/// How deep it goes is bounded by the depth of a body.
fn close(schema: &mut Tree, is_less: &mut bool) {
    let Tree::Object(members) = schema else { return };
    let mut told = Vec::new();
    let mut kept: Vec<(String, Tree)> = Vec::with_capacity(members.len() + 1);
    for (name, mut value) in std::mem::take(members) {
        match name.as_str() {
            "additionalProperties" => {
                // Objects of any names have no form here.
                *is_less |= !matches!(value, Tree::Bool(_));
                continue;
            }
            "format" if value.text().is_some_and(|format| FORMATS.contains(&format)) => {}
            "minItems" if is_number_to(&value, 1) => {}
            name if KEPT.contains(&name) => {}
            name if SCHEMAS.contains(&name) => close(&mut value, is_less),
            name if LISTS.contains(&name) => {
                if let Tree::List(schemas) = &mut value {
                    schemas.iter_mut().for_each(|schema| close(schema, is_less));
                }
            }
            name if MAPS.contains(&name) => {
                if let Tree::Object(schemas) = &mut value {
                    schemas.iter_mut().for_each(|(_, schema)| close(schema, is_less));
                }
            }
            _ => {
                told.push(format!("{name}: {}", serde_json::to_string(&value).unwrap_or_default()));
                continue;
            }
        }
        // The API has no word for exactly one of them.
        let name = if name == "oneOf" { "anyOf".to_owned() } else { name };
        kept.push((name, value));
    }
    let has = |kept: &[(String, Tree)], wanted: &str| kept.iter().any(|(name, _)| name == wanted);
    let is_object = kept.iter().any(|(name, value)| name == "type" && is_of_objects(value))
        || (has(&kept, "properties") && !has(&kept, "type"));
    if is_object {
        kept.push(("additionalProperties".to_owned(), Tree::Bool(false)));
    }
    if !told.is_empty() {
        *is_less = true;
        let told = format!("{{{}}}", told.join(", "));
        match kept.iter_mut().find(|(name, _)| name == "description") {
            Some((_, Tree::Text(description))) => *description = format!("{description}\n\n{told}"),
            _ => kept.push(("description".to_owned(), Tree::Text(told))),
        }
    }
    *members = kept;
}

fn is_of_objects(kind: &Tree) -> bool {
    kind.text() == Some("object") || kind.elements().iter().any(|kind| kind.text() == Some("object"))
}

fn is_number_to(value: &Tree, most: u64) -> bool {
    matches!(value, Tree::Number(number) if number.as_u64().is_some_and(|number| number <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(schema: &str) -> (String, bool) {
        let raw = RawValue::from_string(schema.to_owned()).unwrap();
        let (schema, is_less) = closed(&raw).unwrap();
        (schema.get().to_owned(), is_less)
    }

    #[test]
    fn every_object_is_closed_and_bounds_are_told_in_words() {
        for (schema, expected, is_less) in [
            (
                r#"{"type":"object","properties":{"b":{"type":"object","properties":{}},"a":{"type":["object","null"]}},"required":["b"]}"#,
                r#"{"type":"object","properties":{"b":{"type":"object","properties":{},"additionalProperties":false},"a":{"type":["object","null"],"additionalProperties":false}},"required":["b"],"additionalProperties":false}"#,
                false,
            ),
            (
                r#"{"type":"object","additionalProperties":false,"properties":{"n":{"type":"integer","minimum":1,"maximum":9,"description":"How many."},"t":{"type":"string","maxLength":3,"format":"uuid"}}}"#,
                r#"{"type":"object","properties":{"n":{"type":"integer","description":"How many.\n\n{minimum: 1, maximum: 9}"},"t":{"type":"string","format":"uuid","description":"{maxLength: 3}"}},"additionalProperties":false}"#,
                true,
            ),
            (
                r##"{"$defs":{"p":{"properties":{"x":{"type":"number"}}}},"oneOf":[{"$ref":"#/$defs/p"},{"type":"array","items":{"type":"object"},"minItems":1}]}"##,
                r##"{"$defs":{"p":{"properties":{"x":{"type":"number"}},"additionalProperties":false}},"anyOf":[{"$ref":"#/$defs/p"},{"type":"array","items":{"type":"object","additionalProperties":false},"minItems":1}]}"##,
                false,
            ),
            (
                r#"{"type":"object","additionalProperties":{"type":"string"}}"#,
                r#"{"type":"object","additionalProperties":false}"#,
                true,
            ),
            ("true", "true", false),
        ] {
            assert_eq!(sent(schema), (expected.to_owned(), is_less));
        }
    }

    #[test]
    fn what_is_closed_already_stays_as_it_is() {
        let schema = r#"{"type":"object","properties":{"minimum":{"enum":["a",null]}},"required":["minimum"],"additionalProperties":false}"#;
        assert_eq!(sent(schema), (schema.to_owned(), false));
    }
}
