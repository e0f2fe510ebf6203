//! Whether an answer can be held strictly to a schema.

use std::collections::HashSet;

use serde_json::value::RawValue;

use crate::tree::Tree;

/// The words of a schema that are known (OpenAI API, Structured outputs, Supported schemas).
const KNOWN: [&str; 21] = [
    "$defs",
    "$ref",
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "definitions",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minimum",
    "multipleOf",
    "properties",
    "required",
    "title",
    "type",
];
/// Those of texts, of which `format` has these values.
const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

/// Whether a schema is of the kind that `strict` takes: the whole is an object, every object is closed and has all of its
/// properties, and nothing is said by a word that is not known.
pub(super) fn is_strict(schema: &RawValue) -> bool {
    let Ok(tree) = serde_json::from_str::<Tree>(schema.get()) else { return false };
    tree.get("type").and_then(Tree::text) == Some("object") && fits(&tree)
}

/// How deep it goes is bounded by the depth of a body.
fn fits(schema: &Tree) -> bool {
    let Tree::Object(members) = schema else { return false };
    let is_object = match schema.get("type") {
        Some(kind) => kind.text() == Some("object") || kind.elements().iter().any(|kind| kind.text() == Some("object")),
        None => schema.get("properties").is_some(),
    };
    if is_object {
        let required: HashSet<&str> =
            schema.get("required").map(Tree::elements).unwrap_or_default().iter().filter_map(Tree::text).collect();
        let properties = schema.get("properties").map(Tree::members).unwrap_or_default();
        let is_closed = schema.get("additionalProperties") == Some(&Tree::Bool(false));
        if !is_closed || !properties.iter().all(|(name, _)| required.contains(name.as_str())) {
            return false;
        }
    }
    members.iter().all(|(name, value)| match name.as_str() {
        "format" => value.text().is_some_and(|format| FORMATS.contains(&format)),
        "pattern" => true,
        "properties" | "$defs" | "definitions" => value.members().iter().all(|(_, schema)| fits(schema)),
        "anyOf" => value.elements().iter().all(fits),
        "items" => fits(value),
        name => KNOWN.contains(&name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_schema_that_leaves_nothing_open_is_strict() {
        for (schema, strict) in [
            (r#"{"type":"object","properties":{},"additionalProperties":false}"#, true),
            (
                r##"{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]}},"required":["a"],"additionalProperties":false,"$defs":{"b":{"type":"array","items":{"type":"string","format":"uuid"},"minItems":1}}}"##,
                true,
            ),
            (r#"{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}"#, false),
            (r#"{"type":"object","properties":{"a":{}},"required":["a"]}"#, false),
            (
                r#"{"type":"object","properties":{"a":{"type":["object","null"]}},"required":["a"],"additionalProperties":false}"#,
                false,
            ),
            (
                r#"{"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"],"additionalProperties":false}"#,
                false,
            ),
            (
                r#"{"type":"object","properties":{"a":{"type":"string","format":"uri"}},"required":["a"],"additionalProperties":false}"#,
                false,
            ),
            (
                r#"{"type":"object","properties":{"a":{"oneOf":[]}},"required":["a"],"additionalProperties":false}"#,
                false,
            ),
            (r#"{"type":"array","items":{"type":"string"}}"#, false),
            (r#"{"anyOf":[]}"#, false),
            ("true", false),
        ] {
            assert_eq!(is_strict(&RawValue::from_string(schema.to_owned()).unwrap()), strict, "{schema}");
        }
    }
}
