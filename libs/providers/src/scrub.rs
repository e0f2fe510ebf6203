//! Provider texts made fit to be shown: nothing key-shaped, and short.

/// The most characters of a provider's message that are shown.
pub const MAX_MESSAGE_CHARS: usize = 512;

/// How much of a message is looked at; far more than can be shown.
const MAX_SCANNED_CHARS: usize = 8 * 1024;
const MASK: &str = "[redacted]";
/// A prefix and how many further characters make it a key rather than a word.
const KEY_PREFIXES: [(&str, usize); 8] =
    [("sk-", 6), ("AIza", 16), ("ya29.", 8), ("gsk_", 8), ("hf_", 8), ("xai-", 8), ("pplx-", 8), ("eyJ", 20)];

/// Removes the connection's own credential and everything that looks like one, then cuts to
/// [`MAX_MESSAGE_CHARS`] characters. Control characters become spaces.
#[must_use]
pub fn scrub(message: &str, credential: Option<&str>) -> String {
    let mut text: String = message
        .chars()
        .take(MAX_SCANNED_CHARS)
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    if let Some(own) = credential.filter(|own| !own.is_empty()) {
        text = text.replace(own, MASK);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let mut mask_next = false;
    while let Some(first) = rest.chars().next() {
        if !is_token(first) {
            out.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let length = rest.find(|character| !is_token(character)).unwrap_or(rest.len());
        let (token, after) = rest.split_at(length);
        if std::mem::take(&mut mask_next) && is_opaque(token) {
            out.push_str(MASK);
        } else {
            out.push_str(&masked(token));
        }
        mask_next = ["bearer", "basic"].iter().any(|scheme| token.trim_end_matches(':').eq_ignore_ascii_case(scheme));
        rest = after;
    }
    let mut short: String = out.trim().chars().take(MAX_MESSAGE_CHARS).collect();
    if out.trim().chars().nth(MAX_MESSAGE_CHARS).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// Characters that can be part of a key or of a URL; others end a token.
fn is_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.~+/=:@%*!$&?#".contains(character)
}

fn masked(token: &str) -> String {
    if let Some((scheme, authority)) = token.split_once("://") {
        let end = authority.find(['/', '?', '#']).unwrap_or(authority.len());
        let (authority, path) = authority.split_at(end);
        let (mask, host) = authority.rsplit_once('@').map_or(("", authority), |(_, host)| ("[redacted]@", host));
        return format!("{}://{mask}{host}{}", masked_words(scheme), masked_words(path));
    }
    masked_words(token)
}

/// Whether what follows "Bearer" or "Basic" is a value rather than the next word of a sentence.
fn is_opaque(token: &str) -> bool {
    let word = token.trim_end_matches(['.', ':', '!', '?']);
    word.len() >= 6 && word.chars().any(|character| !character.is_ascii_lowercase())
}

/// Masks from each key prefix that begins a word to the end of the key.
fn masked_words(token: &str) -> String {
    let mut out = String::with_capacity(token.len());
    let mut rest = token;
    while !rest.is_empty() {
        let key = KEY_PREFIXES.iter().find_map(|(prefix, at_least)| {
            let tail = rest.strip_prefix(prefix)?;
            let length = tail.find(|character: char| !is_key(character)).unwrap_or(tail.len());
            (length >= *at_least).then_some(prefix.len() + length)
        });
        // A prefix counts only where a word begins: "task-" is not a key.
        let length = key.unwrap_or_else(|| {
            let word = rest.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(rest.len());
            word.max(rest.chars().next().map_or(1, char::len_utf8))
        });
        let (taken, after) = rest.split_at(length);
        out.push_str(if key.is_some() { MASK } else { taken });
        rest = after;
    }
    out
}

fn is_key(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.*".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_key_shaped_is_masked() {
        for (text, shown) in [
            ("Incorrect API key provided: sk-abc12345.", "Incorrect API key provided: [redacted]"),
            ("sk-ant-api03-AAAA_bbb-CCC is wrong", "[redacted] is wrong"),
            ("key=AIzaSyA1234567890abcdefg&x=1", "key=[redacted]&x=1"),
            (
                "token ya29.a0AfH6SMBx, hf_abcdefghijk; gsk_0123456789 'xai-0123456789'",
                "token [redacted], [redacted]; [redacted] '[redacted]'",
            ),
            ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
            ("authorization basic dXNlcjpwYXNz!", "authorization basic [redacted]"),
            ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln end", "jwt [redacted] end"),
            (
                "see https://user:pass@host.example/v1?key=sk-abcdefgh",
                "see https://[redacted]@host.example/v1?key=[redacted]",
            ),
            ("masked sk-proj-****abcd", "masked [redacted]"),
        ] {
            assert_eq!(scrub(text, None), shown);
        }
    }

    #[test]
    fn ordinary_words_stay() {
        for text in [
            "the task-list of disk-based models",
            "sk-1 and hf_x",
            "a risk-averse https://host.example/docs?a=b",
            "a basic plan has no bearer token.",
        ] {
            assert_eq!(scrub(text, None), text);
        }
    }

    #[test]
    fn the_own_credential_is_masked_whatever_its_shape() {
        assert_eq!(scrub("key \"p4ss w0rd\" unknown", Some("p4ss w0rd")), "key \"[redacted]\" unknown");
    }

    #[test]
    fn a_long_message_is_cut_and_control_characters_go() {
        let shown = scrub(&"é\n".repeat(2000), None);
        assert_eq!(shown.chars().count(), MAX_MESSAGE_CHARS);
        assert!(shown.ends_with('…') && !shown.contains('\n'));
    }

    #[test]
    fn a_key_across_the_cut_is_not_half_shown() {
        let text = format!("{} sk-{}", "a".repeat(505), "b".repeat(40));
        assert!(!scrub(&text, None).contains("sk-b"));
    }
}
