use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn clean(schema: &Value) -> Value {
    let raw = serde_json::value::to_raw_value(schema).unwrap();
    serde_json::to_value(cleaned(&raw, Kind::String, &mut Room::default())).unwrap()
}

#[test]
fn every_keyword_has_its_place_or_none() {
    let string = || json!({ "type": "STRING" });
    for (schema, taken) in [
        (json!({}), string()),
        (json!(true), string()),
        (json!(7), string()),
        (
            json!({ "type": "integer", "description": "d", "title": "t", "default": 1 }),
            json!({ "type": "INTEGER", "description": "d" }),
        ),
        (json!({ "type": "STRING" }), string()),
        (json!({ "type": "nonsense" }), string()),
        (json!({ "type": ["string", "null"] }), json!({ "type": "STRING", "nullable": true })),
        (
            json!({ "type": ["string", "integer", "null"], "minimum": 1, "description": "d" }),
            json!({ "anyOf": [
                { "type": "STRING", "nullable": true, "description": "d" },
                { "type": "INTEGER", "nullable": true, "description": "d", "minimum": 1 }] }),
        ),
        (json!({ "type": "string", "nullable": true }), json!({ "type": "STRING", "nullable": true })),
        (json!({ "const": "a" }), json!({ "type": "STRING", "enum": ["a"] })),
        (json!({ "const": 4 }), json!({ "type": "INTEGER" })),
        (json!({ "const": 4.5 }), json!({ "type": "NUMBER" })),
        (json!({ "const": true }), json!({ "type": "BOOLEAN" })),
        (
            json!({ "enum": ["a", "", "b", "a", null] }),
            json!({ "type": "STRING", "enum": ["a", "b"], "nullable": true }),
        ),
        (json!({ "type": "integer", "enum": [1, 2] }), json!({ "type": "INTEGER" })),
        (json!({ "type": "string", "enum": ["a", 2] }), string()),
        (
            json!({ "type": "string", "format": "email", "minLength": 1, "maxLength": 9.0, "pattern": "^a" }),
            json!({ "type": "STRING", "minLength": 1, "maxLength": 9, "pattern": "^a" }),
        ),
        (json!({ "format": "date-time" }), json!({ "type": "STRING", "format": "date-time" })),
        (
            json!({ "type": "number", "format": "double", "exclusiveMinimum": 0, "maximum": 1.5, "multipleOf": 0.5 }),
            json!({ "type": "NUMBER", "format": "double", "minimum": 0, "maximum": 1.5 }),
        ),
        (
            json!({ "type": "integer", "format": "date-time", "minimum": 0, "exclusiveMinimum": true, "minLength": -1 }),
            json!({ "type": "INTEGER", "minimum": 0 }),
        ),
        (json!({ "minimum": 0 }), json!({ "type": "NUMBER", "minimum": 0 })),
        (json!({ "type": "array" }), json!({ "type": "ARRAY", "items": { "type": "STRING" } })),
        (
            json!({ "items": { "type": "boolean" }, "minItems": 1, "maxItems": 2, "uniqueItems": true }),
            json!({ "type": "ARRAY", "items": { "type": "BOOLEAN" }, "minItems": 1, "maxItems": 2 }),
        ),
        (
            json!({ "prefixItems": [{ "type": "string" }, { "type": "number" }], "items": false }),
            json!({ "type": "ARRAY", "items": { "anyOf": [{ "type": "STRING" }, { "type": "NUMBER" }] } }),
        ),
        (
            json!({ "properties": { "b": {}, "a": { "type": "number" } }, "required": ["a", "c", "a"], "additionalProperties": false,
                "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] }),
            json!({ "type": "OBJECT", "properties": { "b": { "type": "STRING" }, "a": { "type": "NUMBER" } }, "required": ["a"] }),
        ),
        (json!({ "type": "object" }), json!({ "type": "OBJECT" })),
        (
            json!({ "description": "d", "anyOf": [{ "type": "string" }, { "type": "null" }] }),
            json!({ "type": "STRING", "description": "d", "nullable": true }),
        ),
        (
            json!({ "oneOf": [{ "type": "string", "description": "own" }, { "type": "integer" }], "description": "d" }),
            json!({ "anyOf": [{ "type": "STRING", "description": "own" }, { "type": "INTEGER", "description": "d" }] }),
        ),
        (
            json!({ "oneOf": [{ "const": "a" }, { "const": "b" }, { "enum": ["a", "c"] }] }),
            json!({ "type": "STRING", "enum": ["a", "b", "c"] }),
        ),
        (
            json!({ "type": "integer", "anyOf": [{ "minimum": 3 }, { "maximum": -3 }] }),
            json!({ "anyOf": [{ "type": "NUMBER", "minimum": 3 }, { "type": "NUMBER", "maximum": -3 }] }),
        ),
        (json!({ "anyOf": [{ "type": "null" }] }), json!({ "type": "STRING", "nullable": true })),
        (
            json!({ "anyOf": [{ "anyOf": [{ "type": "string" }, { "type": "number" }] }, { "type": "boolean" }] }),
            json!({ "anyOf": [{ "type": "STRING" }, { "type": "NUMBER" }, { "type": "BOOLEAN" }] }),
        ),
        (
            json!({ "allOf": [
                { "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] },
                { "properties": { "b": { "type": "integer" }, "a": {} }, "required": ["b"] }], "description": "d" }),
            json!({ "type": "OBJECT", "description": "d", "required": ["a", "b"],
                "properties": { "a": { "type": "STRING" }, "b": { "type": "INTEGER" } } }),
        ),
        (json!({ "allOf": [{ "type": "string" }, { "maxLength": 3 }] }), json!({ "type": "STRING", "maxLength": 3 })),
        (json!({ "not": {}, "if": {}, "then": {}, "$comment": "c" }), string()),
    ] {
        assert_eq!(clean(&schema), taken, "{schema}");
    }
}

#[test]
fn references_are_followed_and_circles_end() {
    let schema = json!({
        "type": "object",
        "properties": {
            "one": { "$ref": "#/$defs/point", "description": "mine" },
            "two": { "$ref": "#/$defs/a~1b" },
            "gone": { "$ref": "#/$defs/nothing" },
            "far": { "$ref": "https://host.example/schema.json" },
            "node": { "$ref": "#/$defs/node" },
        },
        "$defs": {
            "point": { "type": "object", "description": "theirs", "properties": { "x": { "type": "number" } } },
            "a/b": { "enum": ["a"] },
            "node": { "type": "object", "properties": { "next": { "$ref": "#/$defs/node" }, "value": { "type": "string" } } },
        },
    });
    assert_eq!(
        clean(&schema),
        json!({ "type": "OBJECT", "properties": {
            "one": { "type": "OBJECT", "description": "mine", "properties": { "x": { "type": "NUMBER" } } },
            "two": { "type": "STRING", "enum": ["a"] },
            "gone": { "type": "STRING", "description": "nothing, as JSON text" },
            "far": { "type": "STRING", "description": "schema.json, as JSON text" },
            "node": { "type": "OBJECT", "properties": {
                "next": { "type": "STRING", "description": "node, as JSON text" }, "value": { "type": "STRING" } } },
        } })
    );
    // Of itself alone.
    assert_eq!(clean(&json!({ "$ref": "#" })), json!({ "type": "STRING", "description": "#, as JSON text" }));
}

#[test]
fn properties_keep_their_order() {
    let raw = RawValue::from_string(
        r#"{"type":"object","properties":{"zeal":{"type":"string"},"age":{"type":"integer"}},"required":["zeal"]}"#
            .to_owned(),
    );
    assert_eq!(
        serde_json::to_string(&answer(&raw.unwrap(), &mut Room::default())).unwrap(),
        r#"{"type":"OBJECT","properties":{"zeal":{"type":"STRING"},"age":{"type":"INTEGER"}},"required":["zeal"]}"#
    );
}

#[test]
fn a_function_without_arguments_has_no_schema() {
    let of = |text: &str| {
        let schema = RawValue::from_string(text.to_owned()).unwrap();
        parameters(&schema, &mut Room::default()).is_some()
    };
    assert!(!of("{}") && !of(r#"{"type":"object","properties":{}}"#) && !of(r#"{"type":"string"}"#));
    assert!(of(r#"{"properties":{"a":{}}}"#));
}

#[test]
fn no_schema_is_too_large_to_be_cleaned() {
    // Each definition names the next one many times.
    let mut definitions = serde_json::Map::new();
    for level in 0..9 {
        let next: serde_json::Map<_, _> =
            (0..40).map(|at| (format!("p{at}"), json!({ "$ref": format!("#/$defs/d{}", level + 1) }))).collect();
        definitions.insert(format!("d{level}"), json!({ "type": "object", "properties": next }));
    }
    let text = clean(&json!({ "$ref": "#/$defs/d0", "$defs": definitions })).to_string();
    assert!(text.len() < 1024 * 1024, "{}", text.len());
    let mut deep = json!({ "type": "string" });
    for _ in 0..60 {
        deep = json!({ "type": "array", "items": deep });
    }
    assert!(clean(&deep).to_string().contains("a value, as JSON text"));
    let many: Vec<_> = (0..500).map(|at| json!({ "properties": { format!("p{at}"): {} } })).collect();
    assert!(clean(&json!({ "allOf": many })).to_string().len() < 10_000);
}

#[test]
fn what_is_said_again_and_again_is_bounded_by_what_there_is() {
    const LONG: usize = 100_000;
    let long = "x".repeat(LONG);
    let named: serde_json::Map<_, _> =
        (0..3000).map(|at| (format!("p{at}"), json!({ "$ref": "#/$defs/long" }))).collect();
    let defined = json!({ "properties": named, "$defs": { "long": { "type": "string", "description": long } } });
    let variants: Vec<_> = (0..3000).map(|_| json!({ "type": "integer" })).collect();
    let described = json!({ "description": long, "anyOf": variants });
    for schema in [defined, described] {
        let length = clean(&schema).to_string().len();
        let most = 2 * schema.to_string().len() + REPEATED_BYTES;
        assert!((5 * LONG..most).contains(&length), "{length}");
    }
    // A way through everything, once for each reference.
    let mut deep = json!({ "type": "string" });
    for _ in 0..MAX_STEPS {
        deep = json!({ "a": deep });
    }
    let far = |steps: usize| json!({ "$ref": format!("#/x{}", "/a".repeat(steps)), "x": deep });
    assert_eq!(clean(&far(MAX_STEPS - 1))["type"], "STRING");
    assert_eq!(clean(&far(MAX_STEPS))["description"], "a, as JSON text");
}

#[test]
fn schemas_have_room_for_so_many_each_and_together() {
    let many = |properties: usize| {
        let properties: serde_json::Map<_, _> = (0..properties).map(|at| (format!("p{at}"), json!({}))).collect();
        let names: Vec<_> = properties.keys().cloned().collect();
        serde_json::value::to_raw_value(&json!({ "properties": properties, "required": names })).unwrap()
    };
    let schema = parameters(&many(MAX_SCHEMAS + 5), &mut Room::default()).unwrap();
    assert_eq!((schema.properties.len(), schema.required.len()), (MAX_SCHEMAS - 1, MAX_SCHEMAS - 1));
    let (schema, mut room) = (many(999), Room::default());
    let taken = (0..100).filter_map(|_| parameters(&schema, &mut room)).map(|schema| schema.properties.len() + 1);
    assert_eq!(taken.sum::<usize>(), MAX_SCHEMAS_TOGETHER);
    let lists = [
        json!({ "anyOf": vec![json!({}); MAX_SCHEMAS + 5] }),
        json!({ "prefixItems": vec![json!({}); MAX_SCHEMAS + 5] }),
    ];
    for list in lists {
        assert!(clean(&list).to_string().matches("STRING").count() <= MAX_SCHEMAS);
    }
}

fn any_schema() -> impl Strategy<Value = Value> {
    let names = || {
        prop::sample::select(vec![
            "type",
            "properties",
            "items",
            "anyOf",
            "oneOf",
            "allOf",
            "$ref",
            "enum",
            "const",
            "required",
            "description",
            "minimum",
            "minItems",
            "format",
            "nullable",
            "$defs",
            "a",
            "prefixItems",
        ])
    };
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        Just(json!(3)),
        Just(json!(-1.5)),
        Just(json!("string")),
        Just(json!("object")),
        Just(json!("array")),
        Just(json!("#")),
        Just(json!("#/$defs/a")),
        Just(json!("date-time")),
        Just(json!([])),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((names(), inner), 0..6).prop_map(|members| Value::Object(
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_it_is_the_same_comes_of_it(schema in any_schema()) {
        let raw = serde_json::value::to_raw_value(&schema).unwrap();
        let [first, second] = [(); 2].map(|()| serde_json::to_string(&answer(&raw, &mut Room::default())).unwrap());
        prop_assert_eq!(&first, &second);
        // Every schema in it has a kind or variants, and an array its items.
        fn check(schema: &Value) {
            assert!(schema.get("type").is_some() != schema.get("anyOf").is_some(), "{schema}");
            assert_eq!(schema["type"] == "ARRAY", schema.get("items").is_some(), "{schema}");
            let properties = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|map| map.values());
            let variants = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
            properties.chain(variants).chain(schema.get("items")).for_each(check);
        }
        check(&serde_json::from_str(&first).unwrap());
    }
}
