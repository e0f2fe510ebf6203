//! Tags: what a client says a call is for, kept in the log and added up by day.
//!
//! They come from the header `x-ragmux-tags`, from the request's `metadata` and from its `user`, in this order where a
//! key occurs twice. The header is for Ragmux and is refused when it is malformed; the two others are for the provider,
//! who judges them, so whatever is no tag in them is passed over.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use providers::RequestError;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{EdgeError, Failure};

const HEADER: HeaderName = HeaderName::from_static("x-ragmux-tags");

/// The bounds of the OpenAI API's `metadata`, which are those of the header as well. Lengths are in characters.
const MOST: usize = 16;
const LONGEST_KEY: usize = 64;
const LONGEST_VALUE: usize = 512;

/// A character takes at most this many bytes of JSON: two escapes of UTF-16 halves.
const JSON_BYTES_PER_CHAR: usize = 12;

/// The tags of one call by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tags(BTreeMap<String, String>);

impl<S: Sync> FromRequestParts<S> for Tags {
    type Rejection = Failure;

    /// Those of the header.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self::of_header(&parts.headers).map_err(EdgeError::from)?)
    }
}

impl Tags {
    fn of_header(headers: &HeaderMap) -> Result<Self, RequestError> {
        let mut tags = BTreeMap::new();
        for value in headers.get_all(HEADER) {
            let text = std::str::from_utf8(value.as_bytes()).map_err(|_| malformed(MUST_BE_TEXT))?.trim();
            let pairs = if text.starts_with('{') { of_json(text)? } else { of_list(text)? };
            for (key, value) in pairs {
                if !fits(&key, &value) || tags.len() == MOST {
                    return Err(malformed(MUST_FIT));
                }
                if key.chars().chain(value.chars()).any(char::is_control) {
                    return Err(malformed(MUST_BE_TEXT));
                }
                if tags.insert(key, value).is_some() {
                    return Err(malformed(MUST_DIFFER));
                }
            }
        }
        Ok(Self(tags))
    }

    /// With those of the body: of `metadata`, as far as its members are strings within the bounds, and of `user`.
    pub(crate) fn and(mut self, metadata: Option<&RawValue>, user: Option<&str>) -> Self {
        for (key, value) in metadata.and_then(|raw| members(raw.get(), MOST).ok()).unwrap_or_default() {
            if let Some(value) = string(value) {
                self.add(key, value);
            }
        }
        if let Some(user) = user.filter(|user| !user.is_empty()) {
            self.add("user".into(), user.into());
        }
        self
    }

    fn add(&mut self, key: Cow<'_, str>, value: Cow<'_, str>) {
        if fits(&key, &value) {
            self.0.entry(key.into_owned()).or_insert_with(|| value.into_owned());
        }
    }

    /// As the log keeps them; `None` when there is none.
    pub(crate) fn json(&self) -> Option<serde_json::Value> {
        let object = || self.0.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
        (!self.0.is_empty()).then(|| serde_json::Value::Object(object()))
    }
}

const MUST_BE_PAIRS: &str = "key=value pairs separated by commas, or a JSON object of strings";
const MUST_BE_TEXT: &str = "UTF-8 without control characters, values percent-encoded where needed";
const MUST_FIT: &str = "at most 16 tags, with keys of 1 to 64 and values of at most 512 characters";
const MUST_DIFFER: &str = "tags of different keys";

fn malformed(must: &'static str) -> RequestError {
    RequestError::Invalid { field: HEADER.as_str().to_owned(), must }
}

fn fits(key: &str, value: &str) -> bool {
    (1..=LONGEST_KEY).contains(&key.chars().count()) && value.chars().count() <= LONGEST_VALUE
}

fn of_list(text: &str) -> Result<Vec<(String, String)>, RequestError> {
    // Empty elements of a list are none (RFC 9110, 5.6.1.2).
    let elements = text.split(',').map(str::trim).filter(|element| !element.is_empty());
    let pair = |element: &str| {
        let (key, value) = element.split_once('=').ok_or_else(|| malformed(MUST_BE_PAIRS))?;
        let value = percent_decoded(value.trim()).ok_or_else(|| malformed(MUST_BE_TEXT))?;
        Ok((key.trim().to_owned(), value))
    };
    elements.map(pair).collect()
}

fn of_json(text: &str) -> Result<Vec<(String, String)>, RequestError> {
    let members = members(text, usize::MAX).map_err(|_| malformed(MUST_BE_PAIRS))?;
    let pair = |(key, value): (Cow<'_, str>, &RawValue)| {
        let value: String = serde_json::from_str(value.get()).map_err(|_| malformed(MUST_BE_PAIRS))?;
        Ok((key.into_owned(), value))
    };
    members.into_iter().map(pair).collect()
}

/// RFC 3986, 2.1; `None` for an escape that is none, and for what is no UTF-8 afterwards.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The text of a JSON string that is not too long for a tag.
fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let text = value.get();
    if text.len() > LONGEST_VALUE * JSON_BYTES_PER_CHAR + 2 {
        return None;
    }
    serde_json::from_str::<String>(text).ok().map(Cow::Owned)
}

/// The first members of a JSON object. The rest is read and not kept, however much it is.
fn members(text: &str, most: usize) -> Result<Vec<(Cow<'_, str>, &RawValue)>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let found = First(most).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

struct First(usize);

impl<'de> DeserializeSeed<'de> for First {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for First {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some((key, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            if found.len() < self.0 {
                found.push((key, value));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn of(lines: &[&str]) -> Result<serde_json::Value, String> {
        let headers = lines.iter().map(|line| (HEADER, HeaderValue::from_bytes(line.as_bytes()).unwrap())).collect();
        let tags = Tags::of_header(&headers).map_err(|error| {
            assert_eq!(error.param(), Some("x-ragmux-tags"));
            error.to_string()
        })?;
        Ok(tags.json().unwrap_or_default())
    }

    #[test]
    fn the_header_has_pairs_or_a_json_object() {
        for (lines, tags) in [
            (&[][..], json!(null)),
            (&[""], json!(null)),
            (&["{}"], json!(null)),
            (&["team=search"], json!({ "team": "search" })),
            (
                &[" team = search ,, customer=ACME%2C%20Inc%2e,empty="],
                json!({ "team": "search", "customer": "ACME, Inc.", "empty": "" }),
            ),
            (&["a=b=c+d"], json!({ "a": "b=c+d" })),
            (&["stadt=M%C3%BCnchen,büro=1"], json!({ "stadt": "München", "büro": "1" })),
            (&["a=1", "b=2"], json!({ "a": "1", "b": "2" })),
            (&[r#" {"team": "search", "q": "50%25, a=b \u00e4"}"#], json!({ "team": "search", "q": "50%25, a=b ä" })),
            (&["a=1", r#"{"b":"2"}"#], json!({ "a": "1", "b": "2" })),
        ] {
            assert_eq!(of(lines), Ok(tags), "{lines:?}");
        }
    }

    #[test]
    fn a_malformed_header_is_told_what_is_wrong_with_it() {
        let long_key = format!("{}=1", "k".repeat(65));
        let long_value = format!("k={}", "v".repeat(513));
        let many = (0..17).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        for (line, must) in [
            ("team", MUST_BE_PAIRS),
            (r#"{"a":1}"#, MUST_BE_PAIRS),
            (r#"{"a":"b""#, MUST_BE_PAIRS),
            (r#"{"a":"b"}, c=d"#, MUST_BE_PAIRS),
            ("a=%", MUST_BE_TEXT),
            ("a=%4", MUST_BE_TEXT),
            ("a=%+4", MUST_BE_TEXT),
            ("a=%C3", MUST_BE_TEXT),
            ("a=%00", MUST_BE_TEXT),
            (r#"{"a":"\n"}"#, MUST_BE_TEXT),
            ("=v", MUST_FIT),
            (&long_key, MUST_FIT),
            (&long_value, MUST_FIT),
            (&many, MUST_FIT),
            ("a=1,a=2", MUST_DIFFER),
            (r#"{"a":"1","a":"1"}"#, MUST_DIFFER),
        ] {
            assert_eq!(of(&[line]), Err(format!("x-ragmux-tags must be {must}")), "{line}");
        }
        let not_text = [(HEADER, HeaderValue::from_bytes(b"a=\xff").unwrap())].into_iter().collect();
        assert!(Tags::of_header(&not_text).is_err());
        // At the bounds, counted in characters.
        let edge = format!("{}={}", "ü".repeat(64), "ä".repeat(512));
        assert!(of(&[&edge]).is_ok());
    }

    #[test]
    fn what_is_no_tag_in_the_body_is_passed_over() {
        let with = |metadata: serde_json::Value, user: Option<&str>| {
            let raw = serde_json::value::to_raw_value(&metadata).unwrap();
            Tags::default().and(Some(&raw), user).json().unwrap_or_default()
        };
        assert_eq!(with(json!({ "team": "search" }), Some("u1")), json!({ "team": "search", "user": "u1" }));
        assert_eq!(with(json!([1]), None), json!(null));
        assert_eq!(with(json!("text"), Some("")), json!(null));
        let mixed =
            json!({ "n": 1, "o": {}, "": "x", "k".repeat(65): "x", "long": "v".repeat(513), "ok": "\u{1F600}" });
        assert_eq!(with(mixed, Some(&"u".repeat(513))), json!({ "ok": "\u{1F600}" }));
        let many: serde_json::Map<_, _> = (10..40).map(|at| (format!("k{at}"), json!("v"))).collect();
        assert_eq!(with(many.into(), None).as_object().unwrap().len(), 16);
        let escaped = RawValue::from_string(format!("{{\"k\":\"{}\"}}", "\\ud83d\\ude00".repeat(512))).unwrap();
        assert_eq!(Tags::default().and(Some(&escaped), None).json().unwrap()["k"], "\u{1F600}".repeat(512));
    }

    #[test]
    fn the_header_wins_over_metadata_and_that_over_user() {
        let headers = [(HEADER, HeaderValue::from_static("team=header"))].into_iter().collect();
        let metadata = RawValue::from_string(r#"{"team":"metadata","user":"metadata"}"#.to_owned()).unwrap();
        let tags = Tags::of_header(&headers).unwrap().and(Some(&metadata), Some("field"));
        assert_eq!(tags.json(), Some(json!({ "team": "header", "user": "metadata" })));
    }
}
