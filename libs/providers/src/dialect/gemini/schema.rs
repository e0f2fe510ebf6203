//! JSON Schema brought to the part of it that the API takes (Gemini API reference, Schema).
//!
//! Nothing here fails: what has no place is left out, and what cannot be told becomes a described string. The same schema
//! always gives the same bytes, properties in the client's order, so that a provider's cache of prompts stays of use.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::json::{Members, elements, text_of};

// Bounds of ours, beyond what schemas of tools have: the API tells none but that of a schema that is too complex, and
// what a client sends must not take for ever to be read.
/// References within references are followed so far.
const MAX_REFERENCES: usize = 8;
/// Schemas within schemas are read so far.
const MAX_DEPTH: usize = 40;
/// So many schemas come of one: references to references may double at every step.
const MAX_SCHEMAS: usize = 4096;
/// So many schemas are read as one.
const MAX_LAYERS: usize = 64;

/// What is left out, for the log. Other names may be anything.
const LEFT_OUT: [&str; 24] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "default",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "else",
    "examples",
    "if",
    "maxProperties",
    "minProperties",
    "multipleOf",
    "not",
    "patternProperties",
    "propertyNames",
    "readOnly",
    "then",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    String,
    Number,
    Integer,
    Boolean,
    Array,
    Object,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "string" => Self::String,
            "number" => Self::Number,
            "integer" => Self::Integer,
            "boolean" => Self::Boolean,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    /// The kind of a value; `None` for null.
    fn of_value(value: &RawValue) -> Option<Self> {
        let text = value.get();
        Some(match text.as_bytes().first()? {
            b'"' => Self::String,
            b't' | b'f' => Self::Boolean,
            b'[' => Self::Array,
            b'{' => Self::Object,
            b'n' => return None,
            _ if text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) => Self::Integer,
            _ => Self::Number,
        })
    }
}

/// A schema as the API takes it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Schema {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    nullable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<String>,
    #[serde(rename = "enum", skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    properties: Vec<(String, Schema)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    required: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<Box<Schema>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    any_of: Vec<Schema>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maximum: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_items: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_items: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
}

fn as_map<S: Serializer>(properties: &[(String, Schema)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(properties.len()))?;
    for (name, schema) in properties {
        map.serialize_entry(name, schema)?;
    }
    map.end()
}

/// The arguments of a function; `None` where it takes none.
pub(super) fn parameters(schema: &RawValue) -> Option<Schema> {
    let schema = cleaned(schema, Kind::Object);
    let takes_some = !schema.any_of.is_empty() || !schema.properties.is_empty();
    takes_some.then_some(schema)
}

/// The form of an answer.
pub(super) fn answer(schema: &RawValue) -> Schema {
    cleaned(schema, Kind::Object)
}

fn cleaned(root: &RawValue, fallback: Kind) -> Schema {
    let mut cleaning = Cleaning { root, schemas: 0, references: Vec::new(), left_out: BTreeSet::new() };
    let schema = cleaning.schema(root, fallback, 0);
    if !cleaning.left_out.is_empty() {
        tracing::debug!(keywords = ?cleaning.left_out, "a schema has keywords that the provider does not know");
    }
    schema
}

struct Cleaning<'a> {
    root: &'a RawValue,
    schemas: usize,
    /// The references that led to where we are.
    references: Vec<String>,
    left_out: BTreeSet<&'static str>,
}

/// A schema, and all that apply together with it (`$ref`, `allOf`): the first that says something counts.
#[derive(Default)]
struct Layers<'a> {
    list: Vec<Members<'a>>,
    /// The last part of a reference that leads nowhere, or in a circle.
    lost: Option<String>,
}

impl<'a> Layers<'a> {
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.list.iter().find_map(|members| members.present(name))
    }

    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(text_of)
    }

    fn whole(&self, name: &str) -> Option<u64> {
        let number = self.get(name)?.get();
        number.parse().ok().or_else(|| number.strip_suffix(".0")?.parse().ok())
    }

    /// A bound, or the one that is not part of the range itself: the API knows only the first.
    fn bound(&self, names: [&str; 2]) -> Option<Box<RawValue>> {
        let number = |name| self.get(name).filter(|value| value.get().parse::<f64>().is_ok());
        names.into_iter().find_map(number).map(ToOwned::to_owned)
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.get(name).is_some())
    }

    fn list(&self, name: &str) -> Vec<&'a RawValue> {
        self.get(name).and_then(|value| elements(value.get()).ok()).unwrap_or_default()
    }

    /// The values there are to choose from.
    fn values(&self) -> Vec<&'a RawValue> {
        match self.get("const") {
            Some(value) => vec![value],
            None => self.list("enum"),
        }
    }

    /// The kinds that are named, and whether null is among them.
    fn kinds(&self) -> (Vec<Kind>, bool) {
        let names = match self.get("type") {
            Some(value) if value.get().starts_with('[') => elements(value.get()).unwrap_or_default(),
            Some(value) => vec![value],
            None => Vec::new(),
        };
        let (mut kinds, mut nullable) = (Vec::new(), false);
        for name in names.into_iter().filter_map(text_of) {
            let name = name.to_ascii_lowercase();
            nullable |= name == "null";
            kinds.extend(Kind::of(&name).filter(|kind| !kinds.contains(kind)));
        }
        (kinds, nullable)
    }

    /// The kind that fits what is said about it.
    fn guess(&self) -> Option<Kind> {
        if self.has(&["properties", "required", "additionalProperties", "patternProperties"]) {
            Some(Kind::Object)
        } else if self.has(&["items", "prefixItems", "minItems", "maxItems", "uniqueItems"]) {
            Some(Kind::Array)
        } else if let Some(kind) = self.values().into_iter().find_map(Kind::of_value) {
            Some(kind)
        } else if self.has(&["pattern", "minLength", "maxLength", "format"]) {
            Some(Kind::String)
        } else if self.has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
            Some(Kind::Number)
        } else {
            None
        }
    }
}

impl<'a> Cleaning<'a> {
    /// One schema. `fallback` is its kind where nothing tells.
    fn schema(&mut self, value: &'a RawValue, fallback: Kind, depth: usize) -> Schema {
        self.schemas += 1;
        if depth > MAX_DEPTH || self.schemas > MAX_SCHEMAS {
            return unknown("a value");
        }
        let before = self.references.len();
        let mut layers = Layers::default();
        self.collect(value, &mut layers);
        let schema = self.layered(&layers, fallback, depth);
        self.references.truncate(before);
        schema
    }

    fn collect(&mut self, value: &'a RawValue, layers: &mut Layers<'a>) {
        let Ok(members) = Members::parse(value.get()) else { return };
        if layers.list.len() >= MAX_LAYERS {
            return;
        }
        self.left_out.extend(LEFT_OUT.iter().filter(|name| members.get(name).is_some()));
        let reference = members.present("$ref").and_then(text_of);
        let parts = members.present("allOf").and_then(|value| elements(value.get()).ok()).unwrap_or_default();
        layers.list.push(members);
        if let Some(reference) = reference {
            let is_new = !self.references.iter().any(|known| *known == *reference);
            let target = if is_new && self.references.len() < MAX_REFERENCES { self.target(&reference) } else { None };
            match target {
                Some(target) => {
                    self.references.push(reference.into_owned());
                    self.collect(target, layers);
                }
                None => layers.lost = reference.rsplit('/').next().map(str::to_owned),
            }
        }
        for part in parts {
            self.collect(part, layers);
        }
    }

    /// Where a reference within the schema leads (RFC 6901).
    fn target(&self, reference: &str) -> Option<&'a RawValue> {
        let mut at = self.root;
        for step in reference.strip_prefix('#')?.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            at = match Members::parse(at.get()) {
                Ok(members) => members.get(&step)?,
                Err(_) => elements(at.get()).ok()?.get(step.parse::<usize>().ok()?).copied()?,
            };
        }
        Some(at)
    }

    fn layered(&mut self, layers: &Layers<'a>, fallback: Kind, depth: usize) -> Schema {
        let (kinds, mut nullable) = layers.kinds();
        nullable |= layers.get("nullable").is_some_and(|value| value.get() == "true");
        nullable |= layers.list("enum").iter().any(|value| value.get() == "null");
        let variants = if layers.has(&["anyOf"]) { layers.list("anyOf") } else { layers.list("oneOf") };
        let mut schema = if variants.is_empty() || layers.has(&["properties"]) {
            // Of an object that has properties, variants are further conditions.
            match (kinds.as_slice(), layers.guess()) {
                ([], None) => match &layers.lost {
                    Some(name) => unknown(name),
                    None => self.of_kind(fallback, layers, depth),
                },
                ([], Some(kind)) => self.of_kind(kind, layers, depth),
                ([kind], _) => self.of_kind(*kind, layers, depth),
                (kinds, _) => {
                    let any_of = kinds.iter().map(|kind| self.of_kind(*kind, layers, depth)).collect();
                    Schema { any_of, ..Schema::default() }
                }
            }
        } else {
            let count = variants.len();
            let rest: Vec<_> = variants.into_iter().filter(|variant| !is_null(variant)).collect();
            nullable |= rest.len() < count;
            let fallback = kinds.first().copied().or_else(|| layers.guess()).unwrap_or(fallback);
            let schemas: Vec<_> = rest.into_iter().map(|variant| self.schema(variant, fallback, depth + 1)).collect();
            one_of(schemas, fallback)
        };
        schema.describe(layers.text("description"), nullable);
        schema
    }

    fn of_kind(&mut self, kind: Kind, layers: &Layers<'a>, depth: usize) -> Schema {
        let mut schema = Schema { kind: Some(kind), ..Schema::default() };
        let formats: &[&str] = match kind {
            Kind::String => &["enum", "date-time"],
            Kind::Number => &["float", "double"],
            Kind::Integer => &["int32", "int64"],
            Kind::Boolean | Kind::Array | Kind::Object => &[],
        };
        schema.format = layers.text("format").filter(|format| formats.contains(&&**format)).map(Cow::into_owned);
        match kind {
            Kind::String => {
                schema.values = strings(&layers.values());
                schema.min_length = layers.whole("minLength");
                schema.max_length = layers.whole("maxLength");
                schema.pattern = layers.text("pattern").map(Cow::into_owned);
            }
            Kind::Number | Kind::Integer => {
                schema.minimum = layers.bound(["minimum", "exclusiveMinimum"]);
                schema.maximum = layers.bound(["maximum", "exclusiveMaximum"]);
            }
            Kind::Array => {
                schema.items = Some(Box::new(self.items(layers, depth)));
                schema.min_items = layers.whole("minItems");
                schema.max_items = layers.whole("maxItems");
            }
            Kind::Object => self.object(layers, &mut schema, depth),
            Kind::Boolean => {}
        }
        schema
    }

    fn object(&mut self, layers: &Layers<'a>, into: &mut Schema, depth: usize) {
        let objects = layers.list.iter().filter_map(|members| members.present("properties"));
        for properties in objects.filter_map(|value| Members::parse(value.get()).ok()) {
            for (name, value) in properties.iter() {
                if !into.properties.iter().any(|(known, _)| known == name) {
                    let schema = self.schema(value, Kind::String, depth + 1);
                    into.properties.push((name.to_owned(), schema));
                }
            }
        }
        let lists = layers.list.iter().filter_map(|members| members.present("required"));
        for name in lists.filter_map(|value| elements(value.get()).ok()).flatten().filter_map(text_of) {
            // The API refuses names that are no properties.
            let is_property = into.properties.iter().any(|(known, _)| *known == name);
            if is_property && !into.required.iter().any(|known| *known == *name) {
                into.required.push(name.into_owned());
            }
        }
    }

    fn items(&mut self, layers: &Layers<'a>, depth: usize) -> Schema {
        let mut of = layers.list("prefixItems");
        match layers.get("items") {
            Some(items) if items.get().starts_with('[') => of.extend(layers.list("items")),
            Some(items) if items.get().starts_with('{') => of.push(items),
            _ => {}
        }
        let schemas: Vec<_> = of.into_iter().map(|items| self.schema(items, Kind::String, depth + 1)).collect();
        one_of(schemas, Kind::String)
    }
}

impl Schema {
    /// The API wants nothing beside variants, so what is said of all is said of each.
    fn describe(&mut self, description: Option<Cow<'_, str>>, nullable: bool) {
        if self.any_of.is_empty() {
            self.description = description.map(Cow::into_owned).or_else(|| self.description.take());
            self.nullable |= nullable;
            return;
        }
        for variant in &mut self.any_of {
            let own = variant.description.take();
            variant.description = own.or_else(|| description.as_deref().map(str::to_owned));
            variant.nullable |= nullable;
        }
    }
}

/// One of several schemas; of strings to choose from, one with all of them.
fn one_of(mut schemas: Vec<Schema>, fallback: Kind) -> Schema {
    let is_choice = |schema: &Schema| schema.kind == Some(Kind::String) && !schema.values.is_empty();
    if schemas.len() > 1 && schemas.iter().all(is_choice) {
        let nullable = schemas.iter().any(|schema| schema.nullable);
        let mut values: Vec<String> = Vec::new();
        for value in schemas.into_iter().flat_map(|schema| schema.values) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        return Schema { kind: Some(Kind::String), nullable, values, ..Schema::default() };
    }
    match (schemas.len(), schemas.pop()) {
        (_, None) => Schema { kind: Some(fallback), ..Schema::default() },
        (1, Some(only)) => only,
        (_, Some(last)) => {
            schemas.push(last);
            // Variants of variants are variants.
            let flat = schemas.into_iter().flat_map(|schema| match schema.any_of.is_empty() {
                true => vec![schema],
                false => schema.any_of,
            });
            Schema { any_of: flat.collect(), ..Schema::default() }
        }
    }
}

/// Strings to choose from, if all of the values are; the API refuses empty ones.
fn strings(values: &[&RawValue]) -> Vec<String> {
    let texts: Option<Vec<_>> =
        values.iter().filter(|value| value.get() != "null").map(|value| text_of(value)).collect();
    let mut kept: Vec<String> = Vec::new();
    for text in texts.unwrap_or_default() {
        if !text.is_empty() && !kept.iter().any(|known| *known == *text) {
            kept.push(text.into_owned());
        }
    }
    kept
}

fn is_null(variant: &RawValue) -> bool {
    let Ok(members) = Members::parse(variant.get()) else { return false };
    let named = members.get("type").and_then(text_of).is_some_and(|name| name == "null");
    named || members.get("const").is_some_and(|value| value.get() == "null")
}

fn unknown(name: &str) -> Schema {
    let description = Some(format!("{name}, as JSON text"));
    Schema { kind: Some(Kind::String), description, ..Schema::default() }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
