//! One pass over the whole of a body: how deep it is nested, and whether any object in it gives a name twice.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::end_of_string;

/// What is wrong with a body that is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is nested deeper than it may be.
    TooDeep,
    /// An object gives this name twice; as a path.
    Repeated(String),
}

/// An array or object that is open at some place of the text.
struct Level {
    is_object: bool,
    /// How many names were open before its own.
    first_name: usize,
    /// How many commas have passed.
    commas: usize,
}

/// No more of a path, in characters, is said in an error.
const LONGEST_PATH: usize = 200;

/// Checks a text that must be JSON. Names are compared as readers do that mind case, at every level: what is not read
/// here is forwarded, and a name given twice means one thing to one server and another to the next.
pub(crate) fn check(text: &str, deepest: usize) -> Result<(), Fault> {
    let bytes = text.as_bytes();
    let mut levels: Vec<Level> = Vec::with_capacity(8);
    // Of all objects that are open, as they are spelt.
    let mut names: Vec<&str> = Vec::with_capacity(32);
    let (mut at, mut is_name) = (0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => {
                if levels.len() == deepest {
                    return Err(Fault::TooDeep);
                }
                is_name = *byte == b'{';
                levels.push(Level { is_object: is_name, first_name: names.len(), commas: 0 });
            }
            b'}' | b']' => {
                is_name = false;
                let first = levels.pop().map_or(0, |level| level.first_name);
                let own = names.get(first..).unwrap_or_default();
                if let Some(name) = repeated(own) {
                    return Err(Fault::Repeated(path(&levels, names.get(..first).unwrap_or_default(), &name)));
                }
                names.truncate(first);
            }
            b',' => {
                if let Some(level) = levels.last_mut() {
                    level.commas += 1;
                    is_name = level.is_object;
                }
            }
            b'"' => {
                let end = end_of_string(bytes, at);
                if std::mem::take(&mut is_name) {
                    names.push(text.get(at + 1..end).unwrap_or_default());
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The first name that was there before.
fn repeated<'a>(names: &[&'a str]) -> Option<Cow<'a, str>> {
    /// Up to here, looking through all is quicker than a table.
    const FEW: usize = 16;
    if names.iter().any(|name| memchr::memchr(b'\\', name.as_bytes()).is_some()) {
        let mut seen = HashSet::new();
        return names.iter().map(|name| unescaped(name)).find(|name| !seen.insert(name.clone()));
    }
    let found = if names.len() <= FEW {
        let twice = |(at, name): &(usize, &&str)| names.iter().take(*at).any(|earlier| earlier == *name);
        names.iter().enumerate().find(twice).map(|(_, name)| name)
    } else {
        let mut seen = HashSet::with_capacity(names.len());
        names.iter().find(|name| !seen.insert(**name))
    };
    found.map(|name| Cow::Borrowed(*name))
}

/// A name as it is read; one that nobody can read stays as it is spelt.
fn unescaped(name: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', name.as_bytes()).is_none() {
        return Cow::Borrowed(name);
    }
    serde_json::from_str::<String>(&format!("\"{name}\"")).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Where a name is: `levels` are those around its object, `names` those of the objects among them.
fn path(levels: &[Level], names: &[&str], name: &str) -> String {
    let mut path = String::new();
    for (at, level) in levels.iter().enumerate() {
        // The last of its names is the one under which the next level is.
        let own_end = levels.get(at + 1).map_or(names.len(), |next| next.first_name);
        match own_end.checked_sub(1).and_then(|last| names.get(last)).filter(|_| level.is_object) {
            Some(name) => {
                path.push_str(if path.is_empty() { "" } else { "." });
                path.push_str(&unescaped(name));
            }
            None => path.push_str(&format!("[{}]", level.commas)),
        }
    }
    path.push_str(if path.is_empty() { "" } else { "." });
    path.push_str(name);
    path.chars().take(LONGEST_PATH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twice(text: &str) -> Option<String> {
        let _: &serde_json::value::RawValue = serde_json::from_str(text).unwrap();
        match check(text, 128) {
            Ok(()) => None,
            Err(Fault::Repeated(path)) => Some(path),
            Err(Fault::TooDeep) => panic!("{text}"),
        }
    }

    #[test]
    fn a_name_given_twice_is_found_wherever_it_is() {
        for (text, path) in [
            (r#"{"a":1,"a":2}"#, "a"),
            (r#"{"a":1,"b":{"a":2,"c":[1,{"x":"}"},{"d\"":1, "d\"" : 2}]}}"#, "b.c[2].d\""),
            (r#"[[],[{"a":{}},{"b":1,"a":[],"\u0061":{}}]]"#, "[1][1].a"),
            (r#"{"m":{"team":"a","team":"b"}}"#, "m.team"),
            (r#"{"\u006d":{"\ud800":1,"\ud800":2}}"#, r"m.\ud800"),
        ] {
            assert_eq!(twice(text).as_deref(), Some(path), "{text}");
        }
        let long = format!(r#"{{"{}":{{"a":1,"a":2}}}}"#, "k".repeat(1_000));
        assert_eq!(twice(&long), Some("k".repeat(LONGEST_PATH)));
    }

    #[test]
    fn what_is_no_name_of_the_same_object_does_not_count() {
        for text in [
            r#"{"a":{"a":{"a":"a"}},"b":["a","a",{"a":"b"},{"a":"b"}]}"#,
            r#"{"a":"\"a\":1,\"a\"","A":"a"}"#,
            r#" { } "#,
            r#"["a","a"]"#,
            r#""a""#,
        ] {
            assert_eq!(twice(text), None, "{text}");
        }
    }

    #[test]
    fn objects_of_many_names_are_looked_through_as_well() {
        let many: Vec<String> = (0..200_000).map(|number| format!("\"a{number}\":1")).collect();
        let many = many.join(",");
        assert_eq!(twice(&format!("{{{many}}}")), None);
        assert_eq!(twice(&format!("{{{many},\"a7\":1}}")).as_deref(), Some("a7"));
        assert_eq!(twice(&format!("{{{many},\"\\u00617\":1}}")).as_deref(), Some("a7"));
    }

    #[test]
    fn depth_ignores_brackets_in_strings() {
        let nested = format!("{}{}", "[".repeat(128), "]".repeat(128));
        assert_eq!(check(&nested, 128), Ok(()));
        assert_eq!(check(&format!("[{nested}]"), 128), Err(Fault::TooDeep));
        assert_eq!(check(r#"["\"[[[[\\",[]]"#, 2), Ok(()));
    }
}
