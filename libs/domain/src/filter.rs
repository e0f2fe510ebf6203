//! Which documents a search may find: conditions on what their uploaders said of them.
//!
//! ```json
//! {
//!   "documents": [17, 18],
//!   "tags": { "any": ["public"], "all": ["manual"] },
//!   "metadata": {
//!     "team": "support",
//!     "language": { "in": ["de", "fr"] },
//!     "year": { "gte": 2020, "lt": 2024 },
//!     "path": { "prefix": "guides/" },
//!     "reviewed_by": { "exists": true }
//!   }
//! }
//! ```
//!
//! All of it has to hold. A condition on a member that has a list of values holds when it does for one of them, if it asks
//! for equality. Texts are compared by their characters, so that dates as ISO 8601 writes them have the order of time;
//! a text is never compared with a number. Tags are the member `tags` of a document's metadata.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::DocumentId;

const MOST_DOCUMENTS: usize = 1_000;
const MOST_CONDITIONS: usize = 20;
const MOST_VALUES: usize = 100;
const LONGEST_KEY: usize = 128;
const LONGEST_TEXT: usize = 1_024;

/// Which documents a search may find.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocumentFilter {
    /// Only these; empty is no condition.
    pub documents: Vec<DocumentId>,
    /// With at least one of these tags; empty is no condition.
    pub any_tag: Vec<String>,
    /// With all of these tags.
    pub all_tags: Vec<String>,
    /// What their metadata has to be.
    pub metadata: Vec<Condition>,
}

/// What one member of a document's metadata has to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The member's name.
    pub key: String,
    /// What is asked of it.
    pub test: Requirement,
}

/// What is asked of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Requirement {
    /// It is one of these values, or a list with one of them.
    OneOf(Vec<Scalar>),
    /// Whether there is one.
    Exists(bool),
    /// It is a text that begins so.
    Prefix(String),
    /// It is of the kind of the bound and on the right side of it.
    Bound(Side, Scalar),
}

/// On which side of a bound a value has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Greater.
    Above,
    /// Greater or the same.
    From,
    /// Smaller.
    Below,
    /// Smaller or the same.
    UpTo,
}

/// A value that can be compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A number, as it was written.
    Number(serde_json::Number),
    /// A truth value.
    Bool(bool),
}

/// What is wrong with a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {must}")]
pub struct FilterError {
    /// Where.
    pub field: String,
    /// What would be right.
    pub must: &'static str,
}

impl DocumentFilter {
    /// Reads a filter, which stands in a request under the name `at`.
    ///
    /// # Errors
    /// [`FilterError`] with the first thing that is wrong.
    pub fn parse(value: &Value, at: &str) -> Result<Self, FilterError> {
        let members = object(value, at, "an object with documents, tags or metadata")?;
        let mut filter = Self::default();
        for (name, value) in members {
            let at = format!("{at}.{name}");
            match name.as_str() {
                "documents" => filter.documents = documents(value, &at)?,
                "tags" => filter.read_tags(value, &at)?,
                "metadata" => filter.metadata = conditions(value, &at)?,
                _ => return Err(error(at, "left out: a filter has documents, tags and metadata")),
            }
        }
        Ok(filter)
    }

    /// Whether it lets every document through.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty() && self.any_tag.is_empty() && self.all_tags.is_empty() && self.metadata.is_empty()
    }

    fn read_tags(&mut self, value: &Value, at: &str) -> Result<(), FilterError> {
        if value.is_array() {
            self.any_tag = tags(value, at)?;
            return Ok(());
        }
        for (name, value) in object(value, at, "a list of tags, or an object with any or all")? {
            let at = format!("{at}.{name}");
            match name.as_str() {
                "any" => self.any_tag = tags(value, &at)?,
                "all" => self.all_tags = tags(value, &at)?,
                _ => return Err(error(at, "left out: tags has any and all")),
            }
        }
        Ok(())
    }
}

fn error(field: String, must: &'static str) -> FilterError {
    FilterError { field, must }
}

fn object<'a>(value: &'a Value, at: &str, must: &'static str) -> Result<&'a Map<String, Value>, FilterError> {
    value.as_object().ok_or_else(|| error(at.to_owned(), must))
}

/// A list of at least one and at most so many values.
fn list<T>(
    value: &Value,
    (at, most): (&str, usize),
    must: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, FilterError> {
    let values = value.as_array().filter(|values| (1..=most).contains(&values.len()));
    let values = values.and_then(|values| values.iter().map(read).collect());
    values.ok_or_else(|| error(at.to_owned(), must))
}

fn documents(value: &Value, at: &str) -> Result<Vec<DocumentId>, FilterError> {
    let must = "a list of 1 to 1000 document ids";
    list(value, (at, MOST_DOCUMENTS), must, |id| id.as_i64().map(DocumentId))
}

fn tags(value: &Value, at: &str) -> Result<Vec<String>, FilterError> {
    let must = "a list of 1 to 100 tags, each a text of 1 to 128 characters";
    list(value, (at, MOST_VALUES), must, |tag| tag.as_str().filter(|tag| is_name(tag)).map(str::to_owned))
}

/// Whether a text can be a tag or the name of a member.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= LONGEST_KEY && !text.contains('\0')
}

fn conditions(value: &Value, at: &str) -> Result<Vec<Condition>, FilterError> {
    let mut conditions = Vec::new();
    for (key, value) in object(value, at, "an object with a condition for each member")? {
        let at = format!("{at}.{key}");
        if !is_name(key) {
            return Err(error(at, "named with 1 to 128 characters"));
        }
        let mut add = |test| conditions.push(Condition { key: key.clone(), test });
        let Some(tests) = value.as_object() else {
            add(Requirement::OneOf(vec![scalar(value, &at)?]));
            continue;
        };
        if tests.is_empty() {
            return Err(error(at, TESTS));
        }
        for (name, value) in tests {
            add(test(name, value, format!("{at}.{name}"))?);
        }
    }
    if conditions.len() > MOST_CONDITIONS {
        return Err(error(at.to_owned(), "an object with at most 20 conditions"));
    }
    Ok(conditions)
}

const TESTS: &str = "a text, a number, a boolean, or an object with eq, in, exists, prefix, gt, gte, lt or lte";

fn test(name: &str, value: &Value, at: String) -> Result<Requirement, FilterError> {
    let bound = |side| match scalar(value, &at)? {
        Scalar::Bool(_) => Err(error(at.clone(), "a text or a number")),
        bound => Ok(Requirement::Bound(side, bound)),
    };
    match name {
        "eq" => Ok(Requirement::OneOf(vec![scalar(value, &at)?])),
        "in" => {
            let must = "a list of 1 to 100 texts of at most 1024 characters, numbers or booleans";
            Ok(Requirement::OneOf(list(value, (&at, MOST_VALUES), must, |value| scalar(value, "").ok())?))
        }
        "exists" => value.as_bool().map(Requirement::Exists).ok_or_else(|| error(at, "true or false")),
        "prefix" => match scalar(value, &at)? {
            Scalar::Text(text) => Ok(Requirement::Prefix(text)),
            _ => Err(error(at, "a text")),
        },
        "gt" => bound(Side::Above),
        "gte" => bound(Side::From),
        "lt" => bound(Side::Below),
        "lte" => bound(Side::UpTo),
        _ => Err(error(at, "one of eq, in, exists, prefix, gt, gte, lt and lte")),
    }
}

fn scalar(value: &Value, at: &str) -> Result<Scalar, FilterError> {
    let read = match value {
        Value::Bool(value) => Some(Scalar::Bool(*value)),
        Value::Number(value) => Some(Scalar::Number(value.clone())),
        Value::String(value) if value.chars().count() <= LONGEST_TEXT && !value.contains('\0') => {
            Some(Scalar::Text(value.clone()))
        }
        _ => None,
    };
    read.ok_or_else(|| error(at.to_owned(), "a text of at most 1024 characters, a number or a boolean"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> Result<DocumentFilter, String> {
        DocumentFilter::parse(&value, "filter").map_err(|error| error.to_string())
    }

    #[test]
    fn a_filter_is_read_member_by_member() {
        let filter = parse(json!({
            "documents": [7],
            "tags": { "any": ["a", "b"], "all": ["c"] },
            "metadata": { "team": "x", "year": { "gte": 2020, "lt": 2024.5 }, "kind": { "in": ["a", 1, true] },
                          "path": { "prefix": "docs/" }, "by": { "exists": false } },
        }))
        .unwrap();
        assert_eq!(filter.documents, [DocumentId(7)]);
        assert_eq!((filter.any_tag.len(), filter.all_tags.as_slice()), (2, ["c".to_owned()].as_slice()));
        let of = |key: &str| -> Vec<Requirement> {
            filter.metadata.iter().filter(|c| c.key == key).map(|c| c.test.clone()).collect()
        };
        assert_eq!(of("team"), [Requirement::OneOf(vec![Scalar::Text("x".to_owned())])]);
        assert_eq!(
            of("year"),
            [
                Requirement::Bound(Side::From, Scalar::Number(2020.into())),
                Requirement::Bound(Side::Below, Scalar::Number(serde_json::Number::from_f64(2024.5).unwrap()))
            ]
        );
        assert_eq!(of("by"), [Requirement::Exists(false)]);
        assert_eq!(of("path"), [Requirement::Prefix("docs/".to_owned())]);
        assert!(parse(json!({})).unwrap().is_empty() && !filter.is_empty());
        assert_eq!(parse(json!({ "tags": ["a"] })).unwrap().any_tag, ["a"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let long = "x".repeat(1025);
        for (filter, field) in [
            (json!([]), "filter"),
            (json!({ "document": [1] }), "filter.document"),
            (json!({ "documents": [] }), "filter.documents"),
            (json!({ "documents": ["1"] }), "filter.documents"),
            (json!({ "tags": "a" }), "filter.tags"),
            (json!({ "tags": { "none": ["a"] } }), "filter.tags.none"),
            (json!({ "tags": [""] }), "filter.tags"),
            (json!({ "tags": ["\u{0}"] }), "filter.tags"),
            (json!({ "metadata": { "a": null } }), "filter.metadata.a"),
            (json!({ "metadata": { "a": ["x"] } }), "filter.metadata.a"),
            (json!({ "metadata": { "a": {} } }), "filter.metadata.a"),
            (json!({ "metadata": { "a": long } }), "filter.metadata.a"),
            (json!({ "metadata": { "": 1 } }), "filter.metadata."),
            (json!({ "metadata": { "a": { "like": "x" } } }), "filter.metadata.a.like"),
            (json!({ "metadata": { "a": { "in": [] } } }), "filter.metadata.a.in"),
            (json!({ "metadata": { "a": { "in": [[1]] } } }), "filter.metadata.a.in"),
            (json!({ "metadata": { "a": { "prefix": 1 } } }), "filter.metadata.a.prefix"),
            (json!({ "metadata": { "a": { "gt": true } } }), "filter.metadata.a.gt"),
            (json!({ "metadata": { "a": { "exists": 1 } } }), "filter.metadata.a.exists"),
        ] {
            let said = parse(filter.clone()).unwrap_err();
            assert!(said.starts_with(&format!("{field} must be ")), "{filter}: {said}");
        }
        let many: Map<String, Value> = (0..21).map(|n| (format!("k{n}"), json!(1))).collect();
        assert!(parse(json!({ "metadata": many })).unwrap_err().contains("at most 20"));
    }
}
