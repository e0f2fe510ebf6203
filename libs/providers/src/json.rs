//! JSON read without copying: the members of an object as slices of the text they came from, and edits of that text.
//!
//! Bodies are forwarded as the bytes they arrived in. What has to change is found by its range in the text and
//! replaced there; everything else, spelling and white space included, stays.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// One member of an object.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) value: &'a RawValue,
}

/// The members of one object, in their order, repeated names included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members<'a> {
    text: &'a str,
    list: Vec<Member<'a>>,
}

impl<'a> Members<'a> {
    /// Reads a text that must be one object. Nothing below the object's own level is kept but its range.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let list = deserializer.deserialize_map(MembersVisitor)?;
        deserializer.end()?;
        Ok(Self { text, list })
    }

    /// The value of that name; of repeated ones the last.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.list.iter().rev().find(|member| member.name == name).map(|member| member.value)
    }

    /// Like [`Members::get`], where `null` counts as absent.
    pub(crate) fn present(&self, name: &str) -> Option<&'a RawValue> {
        self.get(name).filter(|value| value.get() != "null")
    }

    /// The first name that occurs twice, as servers compare names that are not particular about case.
    pub(crate) fn repeated(&self) -> Option<&str> {
        /// Up to here, looking through all is quicker than a table.
        const FEW: usize = 24;
        let names: Vec<_> = self.list.iter().map(|member| folded(&member.name)).collect();
        let mut seen = HashSet::new();
        let at = if names.len() <= FEW {
            names.iter().enumerate().position(|(at, name)| names.iter().take(at).any(|earlier| earlier == name))
        } else {
            names.iter().position(|name| !seen.insert(name))
        }?;
        self.list.get(at).map(|member| member.name.as_ref())
    }

    /// The first name that stands for one of `known`, but is not written like it, and the one it stands for.
    pub(crate) fn misspelt(&self, known: &[&'static str]) -> Option<(&str, &'static str)> {
        self.list.iter().find_map(|member| {
            let name = member.name.as_ref();
            if known.contains(&name) {
                return None;
            }
            let name_folded = folded(name);
            known.iter().find(|known| name_folded == **known).map(|known| (name, *known))
        })
    }

    /// All members in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.list.iter().map(|member| (member.name.as_ref(), member.value))
    }

    /// All values of that name.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &'a RawValue> {
        self.list.iter().filter(move |member| member.name == name).map(|member| member.value)
    }

    /// Whether there is no member.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Where in `outer`, which this object is a part of, a first member can be inserted.
    pub(crate) fn inside(&self, outer: &str) -> usize {
        span(outer, self.text).start + self.text.find('{').map_or(0, |at| at + 1)
    }

    /// Where in `outer`, which this object is a part of, it lies.
    pub(crate) fn range(&self, outer: &str) -> Range<usize> {
        span(outer, self.text)
    }

    /// The ranges of `outer` that hold the members of that name, each with one comma.
    pub(crate) fn ranges_without(&self, outer: &str, name: &str) -> Vec<Range<usize>> {
        self.ranges_without_any(outer, &[name])
    }

    /// The same for members of any of these names: together they leave no comma too many, as one after the other could.
    pub(crate) fn ranges_without_any(&self, outer: &str, names: &[&str]) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let mut end_before = self.inside(outer);
        let mut kept_before = false;
        for member in &self.list {
            let end = span(outer, member.value.get()).end;
            if !names.contains(&member.name.as_ref()) {
                kept_before = true;
            } else if kept_before {
                ranges.push(end_before..end);
            } else {
                ranges.push(end_before..past_comma(outer, end));
            }
            end_before = if kept_before { end } else { past_comma(outer, end) };
        }
        ranges
    }
}

/// A name as servers read it that do not mind case: Go's `encoding/json`, on which many are built, folds a long s and the
/// sign for Kelvin too.
pub(crate) fn folded(name: &str) -> Cow<'_, str> {
    if name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(name);
    }
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    Cow::Owned(name.chars().map(fold).collect())
}

/// The elements of a text that must be one array.
pub(crate) fn elements(text: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
    serde_json::from_str(text)
}

/// The text of a value that is a string.
pub(crate) fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let quoted = value.get();
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str::<String>(quoted).ok().map(Cow::Owned)
}

/// The text of a value that is a string, as models and their servers write it. Half of a surrogate pair, which JSON can
/// spell and no text can hold (RFC 8259, section 8.2), becomes U+FFFD.
pub(crate) fn said_in(value: &RawValue) -> Option<Cow<'_, str>> {
    text_of(value).or_else(|| mended(value.get()).map(Cow::Owned))
}

fn mended(quoted: &str) -> Option<String> {
    let mut out = String::with_capacity(quoted.len());
    let mut rest = quoted;
    while let Some((before, escape)) = rest.find('\\').and_then(|at| rest.split_at_checked(at)) {
        let low = || escape.get(ESCAPE..).and_then(escaped);
        let (is_text, length) = match escaped(escape) {
            Some(0xd800..=0xdbff) if matches!(low(), Some(0xdc00..=0xdfff)) => (true, 2 * ESCAPE),
            Some(0xd800..=0xdfff) => (false, ESCAPE),
            Some(_) => (true, ESCAPE),
            None => (true, 2),
        };
        let (escape, after) = escape.split_at_checked(length)?;
        out.push_str(before);
        out.push_str(if is_text { escape } else { "\u{fffd}" });
        rest = after;
    }
    out.push_str(rest);
    serde_json::from_str(&out).ok()
}

/// The length of a `\u` escape with its four digits.
const ESCAPE: usize = 6;

/// The unit of UTF-16 that a text begins with as an escape.
fn escaped(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

/// Texts that come in pieces, between two of which a surrogate pair may be split.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The first half of a pair, as an escape.
    half: Option<String>,
}

impl Pieces {
    /// The text of the next piece, like [`said_in`], without a half that may become whole with the next.
    pub(crate) fn said_in<'a>(&mut self, value: &'a RawValue) -> Option<Cow<'a, str>> {
        let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
        let (body, half) = without_half(inner);
        if (self.half.is_none() && half.is_none()) || inner.is_empty() {
            return said_in(value);
        }
        let before = std::mem::replace(&mut self.half, half.map(str::to_owned)).unwrap_or_default();
        mended(&format!("\"{before}{body}\"")).map(Cow::Owned)
    }

    /// What is left of a half whose other half has not come.
    pub(crate) fn rest(&mut self) -> Option<&'static str> {
        self.half.take().map(|_| "\u{fffd}")
    }
}

/// A string's inside, and the first half of a surrogate pair at its end.
fn without_half(inner: &str) -> (&str, Option<&str>) {
    let split = inner.len().checked_sub(ESCAPE).and_then(|at| inner.split_at_checked(at));
    match split {
        // A backslash before it could make it a text that only looks like one.
        Some((body, half))
            if matches!(escaped(half), Some(0xd800..=0xdbff))
                && body.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0 =>
        {
            (body, Some(half))
        }
        _ => (inner, None),
    }
}

/// A text as it stands inside a JSON string literal.
pub(crate) fn unquoted(text: &str) -> String {
    let quoted = literal(text);
    quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default().to_owned()
}

/// A string as a JSON literal, quotes included.
pub(crate) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Where `inner` lies in `outer`. `inner` must be a slice of `outer`.
pub(crate) fn span(outer: &str, inner: &str) -> Range<usize> {
    let start = (inner.as_ptr() as usize).saturating_sub(outer.as_ptr() as usize);
    start..start + inner.len()
}

/// The place of the quote that closes the string opened at `open`, or the end of the text.
pub(crate) fn end_of_string(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at;
        }
        at += 2;
    }
    bytes.len()
}

/// The ranges that hold the elements of an array that are to go, each with one comma. `elements` are all of the array's in
/// their order: where each lies, and whether it goes.
pub(crate) fn ranges_of(elements: &[(Range<usize>, bool)]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut kept_before, mut end_before) = (false, 0);
    for (at, (element, goes)) in elements.iter().enumerate() {
        let next = elements.get(at + 1).map_or(element.end, |(next, _)| next.start);
        match goes {
            true if kept_before => ranges.push(end_before..element.end),
            true => ranges.push(element.start..next),
            false => kept_before = true,
        }
        end_before = element.end;
    }
    ranges
}

fn past_comma(text: &str, from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
    if trimmed.starts_with(',') { from + rest.len() - trimmed.len() + 1 } else { from }
}

/// Edits of a text, to be applied at once. Ranges refer to the text before any edit and may touch or overlap.
#[derive(Debug, Default)]
pub(crate) struct Splices {
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Splices {
    pub(crate) fn replace(&mut self, range: Range<usize>, with: impl Into<Vec<u8>>) {
        self.edits.push((range, with.into()));
    }

    pub(crate) fn insert(&mut self, at: usize, what: impl Into<Vec<u8>>) {
        self.edits.push((at..at, what.into()));
    }

    pub(crate) fn remove(&mut self, range: Range<usize>) {
        self.edits.push((range, Vec::new()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The edits in the order of their places.
    pub(crate) fn into_sorted(mut self) -> Vec<(Range<usize>, Vec<u8>)> {
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        self.edits
    }

    /// The edited text.
    pub(crate) fn apply(self, text: &[u8]) -> Vec<u8> {
        let growth: usize = self.edits.iter().map(|(_, with)| with.len()).sum();
        let mut out = Vec::with_capacity(text.len() + growth);
        let mut at = 0;
        for (range, with) in self.into_sorted() {
            out.extend_from_slice(text.get(at..range.start).unwrap_or_default());
            out.extend_from_slice(&with);
            at = at.max(range.end);
        }
        out.extend_from_slice(text.get(at..).unwrap_or_default());
        out
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Vec<Member<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::with_capacity(8);
        while let Some(name) = map.next_key_seed(Name)? {
            list.push(Member { name, value: map.next_value()? });
        }
        Ok(list)
    }
}

struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

/// Reads bytes that must be UTF-8 as one object.
pub(crate) fn object(bytes: &[u8]) -> Result<(&str, Members<'_>), serde_json::Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| serde_json::Error::custom("the text is not UTF-8"))?;
    Ok((text, Members::parse(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(text: &str, name: &str) -> String {
        let members = Members::parse(text).unwrap();
        let mut splices = Splices::default();
        for range in members.ranges_without(text, name) {
            splices.remove(range);
        }
        String::from_utf8(splices.apply(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_member_is_removed_with_exactly_one_comma() {
        for (text, left) in [
            (r#"{"u":1}"#, r#"{}"#),
            (r#"{ "u" : {"a":[1,2]} , "b":2}"#, r#"{ "b":2}"#),
            (r#"{"a":1,"u":null}"#, r#"{"a":1}"#),
            (r#"{"a":1 , "u":3, "b":"x,y"}"#, r#"{"a":1, "b":"x,y"}"#),
            (r#"{"u":1,"u":2,"a":3}"#, r#"{"a":3}"#),
            (r#"{"u":1,"u":2}"#, r#"{}"#),
            (r#"{"u":1,"a":3,"u":2,"b":4,"u":5}"#, r#"{"a":3,"b":4}"#),
            (r#"{"\u0075":1,"a":3}"#, r#"{"a":3}"#),
            (r#"  {"a":3}  "#, r#"  {"a":3}  "#),
        ] {
            assert_eq!(without(text, "u"), left, "{text}");
        }
    }

    #[test]
    fn repeated_names_are_found_however_they_are_spelt() {
        assert_eq!(Members::parse(r#"{"a":1,"b":2,"\u0061":3}"#).unwrap().repeated(), Some("a"));
        assert_eq!(Members::parse(r#"{"a":1,"b":{"a":2}}"#).unwrap().repeated(), None);
        assert_eq!(
            Members::parse("{\"task\":1,\"TA\u{17f}\u{212a}\":2}").unwrap().repeated(),
            Some("TA\u{17f}\u{212a}")
        );
        let many: Vec<String> = (0..200_000).map(|number| format!("\"a{number}\":1")).collect();
        let many = many.join(",");
        assert_eq!(Members::parse(&format!("{{{many}}}")).unwrap().repeated(), None);
        assert_eq!(Members::parse(&format!("{{{many},\"A7\":1}}")).unwrap().repeated(), Some("A7"));
    }

    #[test]
    fn a_name_in_other_letters_is_found() {
        let members = Members::parse(r#"{"model":1,"Max_Tokens":2,"other":3}"#).unwrap();
        assert_eq!(members.misspelt(&["model", "max_tokens"]), Some(("Max_Tokens", "max_tokens")));
        assert_eq!(members.misspelt(&["model"]), None);
    }

    #[test]
    fn what_is_not_one_object_is_refused() {
        for text in ["", "[]", "1", "{", r#"{"a":1} x"#, r#"{"a":}"#, r#"{"a":1,}"#] {
            assert!(Members::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_string_value_is_unescaped() {
        let members = Members::parse(r#"{"a":"x\n\u00e9\ud83d\ude00","b":"plain","c":1}"#).unwrap();
        assert_eq!(text_of(members.get("a").unwrap()).unwrap(), "x\né😀");
        assert_eq!(text_of(members.get("b").unwrap()).unwrap(), "plain");
        assert_eq!(text_of(members.get("c").unwrap()), None);
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn half_a_pair_is_a_mark_of_its_own() {
        for (text, said) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ude00\n\ud83db\ud83d\ud83d\ude00""#, "\u{fffd}\n\u{fffd}b\u{fffd}😀"),
            (r#""\\ud83d \uD83D\"""#, "\\ud83d \u{fffd}\""),
            (r#""ü\ud83d""#, "ü\u{fffd}"),
            (r#""plain""#, "plain"),
        ] {
            assert_eq!(said_in(&raw(text)).unwrap(), said, "{text}");
        }
        assert_eq!(said_in(&raw("1")), None);
        assert_eq!(text_of(&raw(r#""\ud83d""#)), None);
    }

    #[test]
    fn a_pair_that_is_split_between_pieces_is_one() {
        let told = |texts: &[&str]| {
            let mut pieces = Pieces::default();
            let mut told: Vec<String> =
                texts.iter().map(|text| pieces.said_in(&raw(text)).unwrap().into_owned()).collect();
            told.extend(pieces.rest().map(str::to_owned));
            told
        };
        assert_eq!(told(&[r#""a\ud83d""#, r#""""#, r#""\ude00b""#]), ["a", "", "😀b"]);
        assert_eq!(told(&[r#""a\ud83d""#, r#""b""#]), ["a", "\u{fffd}b"]);
        assert_eq!(told(&[r#""\ud83d""#, r#""\ud83d""#]), ["", "\u{fffd}", "\u{fffd}"]);
        assert_eq!(told(&[r#""a\\ud83d""#, r#""\ude00""#]), ["a\\ud83d", "\u{fffd}"]);
    }
}
