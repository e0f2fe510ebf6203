//! JSON Schema brought to the part of it that the API takes (Gemini API reference, Schema).
//!
//! Nothing here fails: what has no place is left out, and what cannot be told becomes a described string. The same schema
//! always gives the same bytes, properties in the client's order, so that a provider's cache of prompts stays of use.
//!
//! What comes of a schema grows with the schema and no faster: references may lead to the same part again and again, so
//! what they repeat is bounded.

mod layers;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use self::layers::Layers;
use crate::json::{Members, elements, text_of};

// Bounds of ours, beyond what schemas of tools have: the API tells none but that of a schema that is too complex, and
// what a client sends must not take for ever to be read.
/// References within references are followed so far.
const MAX_REFERENCES: usize = 8;
/// A reference takes so many steps.
const MAX_STEPS: usize = 16;
/// Schemas within schemas are read so far.
const MAX_DEPTH: usize = 40;
/// So many schemas come of one: references to references may double at every step.
const MAX_SCHEMAS: usize = 4096;
/// So many come of all schemas of a request.
const MAX_SCHEMAS_TOGETHER: usize = 65_536;
/// So many bytes of a request's schemas may be said once more, beyond as many as they have themselves.
const REPEATED_BYTES: usize = 1024 * 1024;
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

/// What all schemas of a request may come to.
#[derive(Debug)]
pub(super) struct Room {
    schemas: usize,
    repeated_bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { schemas: MAX_SCHEMAS_TOGETHER, repeated_bytes: REPEATED_BYTES }
    }
}

impl Room {
    /// Whether so many bytes may be said once more.
    fn repeat(&mut self, bytes: usize) -> bool {
        let left = self.repeated_bytes.checked_sub(bytes);
        self.repeated_bytes = left.unwrap_or(self.repeated_bytes);
        left.is_some()
    }
}

/// The arguments of a function; `None` where it takes none.
pub(super) fn parameters(schema: &RawValue, room: &mut Room) -> Option<Schema> {
    let schema = cleaned(schema, Kind::Object, room);
    let takes_some = !schema.any_of.is_empty() || !schema.properties.is_empty();
    takes_some.then_some(schema)
}

/// The form of an answer.
pub(super) fn answer(schema: &RawValue, room: &mut Room) -> Schema {
    cleaned(schema, Kind::Object, room)
}

fn cleaned(root: &RawValue, fallback: Kind, room: &mut Room) -> Schema {
    room.repeated_bytes = room.repeated_bytes.saturating_add(root.get().len());
    let most = MAX_SCHEMAS.min(room.schemas);
    let mut cleaning = Cleaning {
        root,
        room,
        most,
        schemas: 0,
        references: Vec::new(),
        parts: HashMap::new(),
        left_out: BTreeSet::new(),
    };
    let schema = cleaning.schema(root, fallback, 0);
    cleaning.room.schemas -= cleaning.schemas;
    if !cleaning.left_out.is_empty() {
        tracing::debug!(keywords = ?cleaning.left_out, "a schema has keywords that the provider does not know");
    }
    schema
}

struct Cleaning<'a, 'r> {
    root: &'a RawValue,
    room: &'r mut Room,
    /// The most schemas that come of this one, and how many have.
    most: usize,
    schemas: usize,
    /// The references that led to where we are.
    references: Vec<String>,
    /// What references have led through, by where it stands in the text: each is read once.
    parts: HashMap<*const u8, Part<'a>>,
    left_out: BTreeSet<&'static str>,
}

/// A part of a schema that references lead through.
enum Part<'a> {
    Object(HashMap<String, &'a RawValue>),
    Array(Vec<&'a RawValue>),
    Nothing,
}

impl<'a> Part<'a> {
    fn read(value: &'a RawValue) -> Self {
        match Members::parse(value.get()) {
            Ok(members) => Self::Object(members.iter().map(|(name, value)| (name.to_owned(), value)).collect()),
            Err(_) => elements(value.get()).map_or(Self::Nothing, Self::Array),
        }
    }

    fn get(&self, step: &str) -> Option<&'a RawValue> {
        match self {
            Self::Object(members) => members.get(step).copied(),
            Self::Array(elements) => elements.get(step.parse::<usize>().ok()?).copied(),
            Self::Nothing => None,
        }
    }
}

impl<'a> Cleaning<'a, '_> {
    /// One schema. `fallback` is its kind where nothing tells.
    fn schema(&mut self, value: &'a RawValue, fallback: Kind, depth: usize) -> Schema {
        if depth > MAX_DEPTH || self.is_full() {
            return unknown("a value");
        }
        self.schemas += 1;
        let before = self.references.len();
        let mut layers = Layers::default();
        self.collect(value, &mut layers);
        let schema = self.layered(&layers, fallback, depth);
        self.references.truncate(before);
        schema
    }

    /// Whether no more schemas may come of this one.
    fn is_full(&self) -> bool {
        self.schemas >= self.most
    }

    /// One schema after the other, as far as there is room.
    fn each(&mut self, values: Vec<&'a RawValue>, fallback: Kind, depth: usize) -> Vec<Schema> {
        let mut schemas = Vec::new();
        for value in values {
            if self.is_full() {
                break;
            }
            schemas.push(self.schema(value, fallback, depth));
        }
        schemas
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

    /// Where a reference within the schema leads (RFC 6901), as far as there is room to say it once more.
    fn target(&mut self, reference: &str) -> Option<&'a RawValue> {
        let mut at = self.root;
        let steps = reference.strip_prefix('#')?.split('/').skip(1);
        for (taken, step) in steps.enumerate() {
            if taken == MAX_STEPS {
                return None;
            }
            let step = step.replace("~1", "/").replace("~0", "~");
            at = self.parts.entry(at.get().as_ptr()).or_insert_with(|| Part::read(at)).get(&step)?;
        }
        self.room.repeat(at.get().len()).then_some(at)
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
            one_of(self.each(rest, fallback, depth + 1), fallback)
        };
        self.describe(&mut schema, layers.text("description"), nullable);
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
        let mut names: HashSet<String> = HashSet::new();
        let objects = layers.list.iter().filter_map(|members| members.present("properties"));
        for properties in objects.filter_map(|value| Members::parse(value.get()).ok()) {
            for (name, value) in properties.iter() {
                if self.is_full() {
                    break;
                }
                if names.insert(name.to_owned()) {
                    let schema = self.schema(value, Kind::String, depth + 1);
                    into.properties.push((name.to_owned(), schema));
                }
            }
        }
        let lists = layers.list.iter().filter_map(|members| members.present("required"));
        for name in lists.filter_map(|value| elements(value.get()).ok()).flatten().filter_map(text_of) {
            // The API refuses names that are no properties, and here each counts once.
            if names.remove(&*name) {
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
        one_of(self.each(of, Kind::String, depth + 1), Kind::String)
    }

    /// The API wants nothing beside variants, so what is said of all is said of each, as far as there is room.
    fn describe(&mut self, schema: &mut Schema, description: Option<Cow<'_, str>>, nullable: bool) {
        if schema.any_of.is_empty() {
            schema.description = description.map(Cow::into_owned).or_else(|| schema.description.take());
            schema.nullable |= nullable;
            return;
        }
        for variant in &mut schema.any_of {
            variant.nullable |= nullable;
            if let (None, Some(description)) = (&variant.description, description.as_deref())
                && self.room.repeat(description.len())
            {
                variant.description = Some(description.to_owned());
            }
        }
    }
}

/// One of several schemas; of strings to choose from, one with all of them.
fn one_of(mut schemas: Vec<Schema>, fallback: Kind) -> Schema {
    let is_choice = |schema: &Schema| schema.kind == Some(Kind::String) && !schema.values.is_empty();
    if schemas.len() > 1 && schemas.iter().all(is_choice) {
        let nullable = schemas.iter().any(|schema| schema.nullable);
        let mut known = HashSet::new();
        let mut values: Vec<String> = schemas.into_iter().flat_map(|schema| schema.values).collect();
        values.retain(|value| known.insert(value.clone()));
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
    let mut texts = texts.unwrap_or_default();
    let mut known = HashSet::new();
    texts.retain(|text| !text.is_empty() && known.insert(text.clone()));
    texts.into_iter().map(Cow::into_owned).collect()
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
