//! Listing what a translation leaves out.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::json::Members;

/// The most paths that are listed, and the longest one in bytes: names are the client's, and may be any number and length.
const MOST: usize = 128;

/// Whether a value asks for nothing.
pub(crate) fn is_nothing(value: &RawValue) -> bool {
    matches!(&*compact(value), "null" | "false" | "[]" | "{}" | "\"\"")
}

/// A short value without white space.
pub(crate) fn compact(value: &RawValue) -> Cow<'_, str> {
    const SHORT: usize = 64;
    let text = value.get();
    if text.len() > SHORT || !text.contains(char::is_whitespace) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.split_whitespace().collect())
}

/// Lists the members of an object that have no place, unless they ask for nothing.
pub(crate) fn list_rest(path: &str, members: &Members<'_>, placed: &[&str], dropped: &mut Vec<Cow<'_, str>>) {
    for (name, value) in members.iter() {
        if !placed.contains(&name) && !is_nothing(value) {
            drop_path(dropped, format!("{path}.{name}"));
        }
    }
}

/// Lists a path of the client's once, as far as the list is of use to anybody.
pub(crate) fn drop_path(dropped: &mut Vec<Cow<'_, str>>, mut path: String) {
    path.truncate(path.floor_char_boundary(MOST));
    if dropped.len() < MOST && !dropped.iter().any(|listed| *listed == path) {
        dropped.push(Cow::Owned(path));
    }
}

/// What a provider may have no place for, whatever the client calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// A setting that goes about under the name that the client gave it.
    Setting(&'static str),
    /// That the model is to think, by the effort that was named, beside a budget.
    Effort,
    /// How many tokens it may think, beside an effort.
    Budget,
    /// The form of the answer.
    Format,
    /// The schema of the answer.
    Schema,
    /// What is said beside the schema, by its name in the Chat API.
    BesideSchema(&'static str),
    Stop,
    User,
    ToolChoice,
    /// That tools are called one after the other.
    OneAtATime,
    /// That a tool's arguments keep to its schema.
    Strict,
    /// Up to where the prompt may be cached.
    CacheMark,
    /// How closely an image is looked at.
    Detail,
    /// What the model thought.
    Thought,
    /// The same where only its provider can read it.
    Redacted,
    /// The signature of a thought.
    Signature,
    /// The signature of a call.
    CallSignature,
    /// That a tool failed.
    Failure,
}

/// Lists once what a provider has no place for.
pub(crate) fn leave_out(dropped: &mut Vec<Lost>, lost: Lost) {
    if !dropped.contains(&lost) {
        dropped.push(lost);
    }
}
