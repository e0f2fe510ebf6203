//! What looks like a credential, whoever's it is.

use std::ops::Range;

/// A prefix and how many further characters make it a key rather than a word.
const KEY_PREFIXES: [(&str, usize); 23] = [
    ("sk-", 6), // also sk-ant-, sk-proj-, sk-or-, and the gateway's own sk-user- and sk-mgmt-
    ("sk_", 12),
    ("AIza", 16),
    ("ya29.", 8),
    ("gsk_", 8),
    ("hf_", 8),
    ("xai-", 8),
    ("pplx-", 8),
    ("r8_", 8),
    ("nvapi-", 8),
    ("pa-", 24),
    ("co_", 24),
    ("fw_", 16),
    ("tgp_v1_", 8),
    ("1//0", 20), // a refresh token of Google's
    ("AKIA", 16),
    ("ASIA", 16),
    ("ghp_", 16),
    ("github_pat_", 16),
    ("glpat-", 12),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("eyJ", 20), // a JSON object in base64: a JSON Web Token
];
/// Names whose value is a credential, without `-` and `_`.
const LABELS: [&str; 23] = [
    "key",
    "apikey",
    "xapikey",
    "xgoogapikey",
    "subscriptionkey",
    "accesskey",
    "secretkey",
    "secretaccesskey",
    "privatekey",
    "token",
    "authtoken",
    "accesstoken",
    "refreshtoken",
    "idtoken",
    "secret",
    "clientsecret",
    "password",
    "passwd",
    "credential",
    "signature",
    "session",
    "sessionid",
    "ragmuxsession",
];
const SCHEMES: [&str; 2] = ["bearer", "basic"];

pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let mut found = url_credentials(text);
    let mut previous = "";
    for word in words(text) {
        let name = text.get(word.clone()).unwrap_or_default();
        found.extend(prefixed(text, &word));
        found.extend(named(text, &word, previous));
        previous = name;
    }
    found.extend(starred(text));
    found.extend(sealed(text));
    found
}

/// Runs of letters, digits, `-` and `_`. After an escape such as `%3D` another one begins.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..)?;
        let start = at + rest.find(is_word)?;
        let escape = text.get(..start).is_some_and(|before| before.ends_with('%'))
            && text.get(start..start + 2).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let end = if escape {
            start + 2
        } else {
            start + text.get(start..)?.find(|character| !is_word(character)).unwrap_or(text.len() - start)
        };
        at = end;
        Some(start..end)
    })
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '-' || character == '_'
}

/// Keys that a prefix gives away. It counts where letters and digits begin: "task-" is no key.
fn prefixed(text: &str, word: &Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = word.start;
    while at < word.end {
        let rest = text.get(at..).unwrap_or_default();
        let key = KEY_PREFIXES.iter().find_map(|(prefix, at_least)| {
            let tail = rest.strip_prefix(prefix)?;
            let length = tail.find(|character| !is_key(character)).unwrap_or(tail.len());
            (length >= *at_least).then_some(prefix.len() + length)
        });
        if let Some(length) = key {
            found.push(at..at + length);
            return found;
        }
        let letters = rest.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(rest.len());
        at += letters.max(1);
    }
    found
}

fn is_key(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.*~+/=".contains(character)
}

/// The value that a name announces: `api_key=…`, `"x-api-key": "…"`, `Bearer …`, `key provided: …`, `token '…'`.
fn named(text: &str, word: &Range<usize>, previous: &str) -> Option<Range<usize>> {
    let name: String =
        text.get(word.clone())?.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let is_scheme = SCHEMES.contains(&name.as_str());
    let is_provided = name == "provided" && previous.to_ascii_lowercase().ends_with("key");
    if !is_scheme && !is_provided && !LABELS.contains(&name.as_str()) {
        return None;
    }
    let rest = text.get(word.end..)?;
    let value = rest.trim_start_matches(|character: char| character == ' ' || QUOTES.contains(character));
    let (separator, value) = match value.strip_prefix([':', '=']).or_else(|| strip_escape(value)) {
        Some(after) => {
            (Some(value.starts_with(':')), after.trim_start_matches(|c: char| c == ' ' || QUOTES.contains(c)))
        }
        None => (None, value),
    };
    let start = text.len() - value.len();
    let length = value.find(|character: char| is_end(character)).unwrap_or(value.len());
    let value = value.get(..length)?;
    let is_secret = match separator {
        // Written as a setting or in a query.
        Some(false) => value.len() >= 4,
        Some(true) => is_opaque(value),
        None if is_scheme => start > word.end && is_opaque(value),
        None => start > word.end && is_random(value),
    };
    // "Authorization: Bearer …": the scheme is no value, and has its own turn.
    (is_secret && !SCHEMES.iter().any(|scheme| value.eq_ignore_ascii_case(scheme))).then_some(start..start + length)
}

const QUOTES: &str = "\"'`\\";

/// `=` and `:` as they are in a URL within a URL.
fn strip_escape(text: &str) -> Option<&str> {
    let (escape, rest) = text.split_at_checked(3)?;
    (escape.eq_ignore_ascii_case("%3d") || escape.eq_ignore_ascii_case("%3a")).then_some(rest)
}

fn is_end(character: char) -> bool {
    character.is_whitespace() || "\"'`\\,;&<>(){}[]|".contains(character)
}

/// A value rather than the next word of a sentence.
fn is_opaque(value: &str) -> bool {
    let word = value.trim_end_matches(['.', ':', '!', '?']);
    word.len() >= 16 || (word.len() >= 6 && word.bytes().any(|byte| !byte.is_ascii_lowercase()))
}

/// Nothing that a person would write.
fn is_random(value: &str) -> bool {
    let has = |test: fn(&u8) -> bool| value.as_bytes().iter().any(test);
    value.len() >= 16 && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic) && !value.contains("://")
}

/// What stands before the `@` of a URL's host (RFC 3986, 3.2.1), also with characters that should have been escaped.
fn url_credentials(text: &str) -> Vec<Range<usize>> {
    text.match_indices("://")
        .filter_map(|(at, mark)| {
            let start = at + mark.len();
            let rest = text.get(start..)?;
            let url =
                rest.get(..rest.find(|c: char| c.is_whitespace() || "\"<>`".contains(c)).unwrap_or(rest.len()))?;
            let authority = url.get(..url.find(['/', '?', '#', '\\']).unwrap_or(url.len()))?;
            let has_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
            let is_odd =
                !authority.starts_with('[') && authority.split_once(':').is_some_and(|(_, port)| !has_port(port));
            let end = authority.rfind('@').or_else(|| if is_odd { url.rfind('@') } else { None })?;
            Some(start..start + end)
        })
        .collect()
}

/// What stands in the armour of PEM (RFC 7468), also where its end is missing.
fn sealed(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begins) = text.get(at..).and_then(|rest| rest.find("-----BEGIN ")).map(|found| at + found) {
        let end = text.get(begins..).and_then(|rest| {
            let last = rest.find("-----END ")? + "-----END ".len();
            rest.get(last..)?.find("-----").map(|more| begins + last + more + "-----".len())
        });
        at = end.unwrap_or(text.len());
        found.push(begins..at);
    }
    found
}

/// Keys of which somebody else has starred out the middle: their ends are still too much.
fn starred(text: &str) -> Vec<Range<usize>> {
    text.match_indices("***")
        .filter_map(|(at, _)| {
            let before = text.get(..at)?;
            let start = before.rfind(|character| !is_key(character)).map_or(0, |last| {
                last + before.get(last..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8)
            });
            let rest = text.get(at..)?;
            Some(start..at + rest.find(|character| !is_key(character)).unwrap_or(rest.len()))
        })
        .collect()
}
