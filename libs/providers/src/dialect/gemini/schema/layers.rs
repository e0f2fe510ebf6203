//! What is said of one value, in one schema or in several.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::Kind;
use crate::json::{Members, elements, text_of};

/// A schema, and all that apply together with it (`$ref`, `allOf`): the first that says something counts.
#[derive(Default)]
pub(super) struct Layers<'a> {
    pub(super) list: Vec<Members<'a>>,
    /// The last part of a reference that leads nowhere, or in a circle.
    pub(super) lost: Option<String>,
}

impl<'a> Layers<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.list.iter().find_map(|members| members.present(name))
    }

    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(text_of)
    }

    pub(super) fn whole(&self, name: &str) -> Option<u64> {
        let number = self.get(name)?.get();
        number.parse().ok().or_else(|| number.strip_suffix(".0")?.parse().ok())
    }

    /// A bound, or the one that is not part of the range itself: the API knows only the first.
    pub(super) fn bound(&self, names: [&str; 2]) -> Option<Box<RawValue>> {
        let number = |name| self.get(name).filter(|value| value.get().parse::<f64>().is_ok());
        names.into_iter().find_map(number).map(ToOwned::to_owned)
    }

    pub(super) fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.get(name).is_some())
    }

    pub(super) fn list(&self, name: &str) -> Vec<&'a RawValue> {
        self.get(name).and_then(|value| elements(value.get()).ok()).unwrap_or_default()
    }

    /// The values there are to choose from.
    pub(super) fn values(&self) -> Vec<&'a RawValue> {
        match self.get("const") {
            Some(value) => vec![value],
            None => self.list("enum"),
        }
    }

    /// The kinds that are named, and whether null is among them.
    pub(super) fn kinds(&self) -> (Vec<Kind>, bool) {
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
    pub(super) fn guess(&self) -> Option<Kind> {
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
