//! The multipart form of an upload, read as it comes.

mod source;

use axum::extract::multipart::Field;
use bytes::Bytes;
use serde_json::{Map, Value};

pub(super) use self::source::{FORM_BYTES, Source};
use crate::error::ApiError;

const MAX_TEXT_BYTES: usize = 16 * 1024;
const MAX_NAME_CHARS: usize = 255;
const MAX_KEY_CHARS: usize = 512;
const MAX_MEMBERS: usize = 64;
const MAX_MEMBER_CHARS: usize = 128;
const MAX_TAGS: usize = 100;
const MAX_TAG_CHARS: usize = 128;
/// The member of the metadata that holds the tags.
const TAGS: &str = "tags";

/// What the fields of text say about the files after them: the key of the next one, and the metadata and tags of all.
pub(super) struct Notes {
    source: Source,
    external_key: Option<String>,
    metadata: Map<String, Value>,
    tags: Option<Value>,
}

/// A file of a form, not read yet.
pub(super) struct File<'a> {
    /// Its name, without folders.
    pub(super) name: String,
    /// The media type the client gives it.
    pub(super) declared_type: Option<String>,
    /// The uploader's own key for it.
    pub(super) external_key: Option<String>,
    /// What the uploader says about it.
    pub(super) metadata: Value,
    source: Source,
    field: Field<'a>,
}

/// Whether a field is a file and not text.
pub(super) fn is_file(field: &Field<'_>) -> bool {
    matches!(field.name(), Some("file" | "files"))
}

impl Notes {
    /// Begins with the key that the query names, if it does.
    pub(super) fn new(source: Source, external_key: Option<String>) -> Result<Self, ApiError> {
        Ok(Self { source, external_key: checked_key(external_key)?, metadata: Map::new(), tags: None })
    }

    /// Takes a field of text.
    pub(super) async fn take(&mut self, mut field: Field<'_>) -> Result<(), ApiError> {
        let name = field.name().unwrap_or_default().to_owned();
        let mut bytes = Vec::new();
        while let Some(chunk) = field.chunk().await.map_err(|error| self.source.failure(&error))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_TEXT_BYTES {
                return Err(ApiError::invalid("a field of text of the form is larger than 16 KiB"));
            }
        }
        let text = String::from_utf8(bytes).map_err(|_| ApiError::invalid("a field of the form is not UTF-8"))?;
        match name.as_str() {
            "external_key" => self.external_key = checked_key(Some(text))?,
            "metadata" => self.metadata = checked_metadata(&text)?,
            TAGS => self.tags = Some(listed_tags(&text)?),
            _ => {
                return Err(ApiError::invalid(
                    "the form has a field that is not known; expected file, files, external_key, metadata or tags",
                ));
            }
        }
        Ok(())
    }

    /// Takes a field that is a file, with what was said about it.
    pub(super) fn file<'a>(&mut self, field: Field<'a>) -> Result<File<'a>, ApiError> {
        let mut metadata = self.metadata.clone();
        if let Some(tags) = &self.tags {
            metadata.insert(TAGS.to_owned(), tags.clone());
        }
        Ok(File {
            name: file_name(field.file_name().unwrap_or_default())?,
            declared_type: field.content_type().map(str::to_owned),
            external_key: self.external_key.take(),
            metadata: Value::Object(metadata),
            source: self.source.clone(),
            field,
        })
    }
}

impl File<'_> {
    /// The next bytes, `None` at the end of the file.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        let chunk = self.field.chunk().await.map_err(|error| self.source.failure(&error))?;
        self.source.delivered(chunk.as_ref().map_or(0, Bytes::len));
        Ok(chunk)
    }
}

/// The last part of a path, as some clients send it, without what would garble a list.
fn file_name(text: &str) -> Result<String, ApiError> {
    let name = text.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let name = name.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
        return Err(ApiError::invalid("a file of the form needs a file name of 1 to 255 characters"));
    }
    Ok(name.to_owned())
}

fn checked_key(key: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.chars().count() > MAX_KEY_CHARS || key.chars().any(char::is_control) {
        return Err(ApiError::invalid("external_key: expected 1 to 512 characters without control characters"));
    }
    Ok(Some(key))
}

fn checked_metadata(text: &str) -> Result<Map<String, Value>, ApiError> {
    let value: Value = serde_json::from_str(text).map_err(|error| ApiError::invalid(format!("metadata: {error}")))?;
    let Value::Object(members) = value else {
        return Err(ApiError::invalid("metadata: expected a JSON object"));
    };
    // PostgreSQL's jsonb has no place for this character.
    if text.contains("\\u0000") {
        return Err(ApiError::invalid("metadata: expected texts without the character U+0000"));
    }
    let is_name = |name: &String| (1..=MAX_MEMBER_CHARS).contains(&name.chars().count());
    if members.len() > MAX_MEMBERS || !members.keys().all(is_name) {
        return Err(ApiError::invalid("metadata: expected at most 64 members with names of 1 to 128 characters"));
    }
    if !members.get(TAGS).is_none_or(are_tags) {
        return Err(ApiError::invalid(BAD_TAGS));
    }
    Ok(members)
}

const BAD_TAGS: &str = "tags: expected at most 100 texts of 1 to 128 characters, as a JSON list or separated by commas";

fn are_tags(value: &Value) -> bool {
    let is_tag = |tag: &Value| {
        tag.as_str().is_some_and(|tag| (1..=MAX_TAG_CHARS).contains(&tag.chars().count()) && !tag.contains('\0'))
    };
    value.as_array().is_some_and(|tags| tags.len() <= MAX_TAGS && tags.iter().all(is_tag))
}

/// Tags as a JSON list, or as people write them down.
fn listed_tags(text: &str) -> Result<Value, ApiError> {
    let tags = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| ApiError::invalid(format!("tags: {error}")))?
    } else {
        Value::from_iter(text.split(',').map(str::trim).filter(|tag| !tag.is_empty()))
    };
    if are_tags(&tags) { Ok(tags) } else { Err(ApiError::invalid(BAD_TAGS)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_name_is_the_end_of_a_path() {
        for (text, name) in [
            ("a.pdf", "a.pdf"),
            ("C:\\Users\\x\\Bericht 1.pdf", "Bericht 1.pdf"),
            ("../../etc/passwd", "passwd"),
            ("a\r\nb.txt", "ab.txt"),
        ] {
            assert_eq!(file_name(text).unwrap(), name);
        }
        for bad in ["", "dir/", "\n", &"x".repeat(256)] {
            assert!(file_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn metadata_is_an_object_that_the_database_can_hold() {
        assert_eq!(Value::Object(checked_metadata(r#"{"a":[1]}"#).unwrap()), json!({"a":[1]}));
        let long = format!(r#"{{"{}":1}}"#, "x".repeat(129));
        let many: Map<String, Value> = (0..65).map(|number| (number.to_string(), json!(1))).collect();
        let many = Value::Object(many).to_string();
        for bad in ["", "[]", "1", "{", r#"{"a":"\u0000"}"#, r#"{"tags":"a"}"#, r#"{"tags":[1]}"#, &long, &many] {
            assert!(checked_metadata(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_are_a_list_however_they_are_written() {
        for text in [r#"["a","b c"]"#, "a, b c", " a ,b c,, "] {
            assert_eq!(listed_tags(text).unwrap(), json!(["a", "b c"]), "{text}");
        }
        assert_eq!(listed_tags("").unwrap(), json!([]));
        for bad in ["[1]", r#"["a""#, r#"["\u0000"]"#, r#"[""]"#, &"x".repeat(129), &"a,".repeat(101)] {
            assert!(listed_tags(bad).is_err(), "{bad}");
        }
    }
}
