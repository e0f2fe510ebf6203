//! JSON and JSON lines as records: each value with the path of names that leads to it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::plain;
use crate::{BlockKind, ExtractError, Summary, decode, emit::Emitter, emit::Outline};

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let decoded = decode::decode(bytes, None)?;
    let mut outline = Outline::new(emitter);
    match values(&decoded.text) {
        Some(values) => {
            for value in &values {
                record(value, &mut outline)?;
            }
        }
        // With comments, cut off or nested without end: still text.
        None => plain::paragraphs_of(&decoded.text, &mut outline)?,
    }
    outline.finish()?;
    Ok(Summary { charset: Some(decoded.charset.to_owned()), engine: "json".to_owned(), ..Summary::default() })
}

/// One document, or one value after the other; none if anything else is there. The nesting is bounded by the reader.
fn values(text: &str) -> Option<Vec<Value>> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>().collect::<Result<_, _>>().ok()
}

/// The elements of a list are records of their own, and so are those of lists that an object holds.
fn record(value: &Value, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
    let mut lines = Vec::new();
    match value {
        Value::List(items) if items.iter().any(Value::is_nested) => {
            for item in items {
                record(item, outline)?;
            }
            return Ok(());
        }
        Value::Map(members) => {
            for (name, member) in members {
                match member {
                    Value::List(items) if items.iter().any(Value::is_nested) => {
                        write(&mut lines, outline)?;
                        for item in items {
                            item.lines(name, &mut lines);
                            write(&mut lines, outline)?;
                        }
                    }
                    member => member.lines(name, &mut lines),
                }
            }
        }
        value => value.lines("", &mut lines),
    }
    write(&mut lines, outline)
}

fn write(lines: &mut Vec<String>, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
    let text = std::mem::take(lines).join("\n");
    outline.block(BlockKind::Paragraph, &text)
}

/// A value with its members in the order they came in.
enum Value {
    Plain(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    fn is_nested(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    fn lines(&self, path: &str, out: &mut Vec<String>) {
        match self {
            Self::Plain(text) if text.is_empty() => {}
            Self::Plain(text) if path.is_empty() => out.push(text.clone()),
            Self::Plain(text) => out.push(format!("{path}: {text}")),
            Self::List(items) if items.iter().any(Self::is_nested) => {
                for item in items {
                    item.lines(path, out);
                }
            }
            Self::List(items) => {
                let plain: Vec<&str> = items
                    .iter()
                    .filter_map(|item| if let Self::Plain(text) = item { Some(text.as_str()) } else { None })
                    .collect();
                Self::Plain(plain.join(", ")).lines(path, out);
            }
            Self::Map(members) => {
                for (name, member) in members {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    member.lines(&path, out);
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Plain(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Plain(String::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(member) = members.next_entry()? {
            all.push(member);
        }
        Ok(Value::Map(all))
    }
}

#[cfg(test)]
mod tests {
    fn read(source: &str) -> Vec<String> {
        let mut blocks = Vec::new();
        crate::extract(crate::Format::Json, crate::Engine::First, source.as_bytes(), &mut |page| {
            blocks.extend(page.sections.into_iter().flat_map(|s| s.blocks).map(|b| b.text));
            Ok(())
        })
        .unwrap();
        blocks
    }

    #[test]
    fn each_element_is_a_record_with_its_names() {
        let blocks = read(r#"[{"title":"Bolt","size":{"mm":4.5},"tags":["a","b"]},{"title":"Nut","gone":null}]"#);
        assert_eq!(blocks, ["title: Bolt\nsize.mm: 4.5\ntags: a, b", "title: Nut"]);
    }

    #[test]
    fn lines_are_records_too_and_lists_in_an_object_are_taken_apart() {
        assert_eq!(read("{\"a\":1}\n{\"a\":2}\n"), ["a: 1", "a: 2"]);
        assert_eq!(
            read(r#"{"n":"x","items":[{"a":1},{"a":2}],"z":true}"#),
            ["n: x", "items.a: 1", "items.a: 2", "z: true"]
        );
    }

    #[test]
    fn what_is_no_json_is_text() {
        assert_eq!(read("{ // a comment\n a: 1 }"), ["{ // a comment\n a: 1 }"]);
        let deep = "[".repeat(100_000);
        assert_eq!(read(&deep), [deep]);
    }
}
