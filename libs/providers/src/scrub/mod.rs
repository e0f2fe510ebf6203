//! Provider texts made fit to be shown: nothing key-shaped, and short.

mod own;
mod shapes;

use std::ops::Range;

/// The most characters of a provider's message that are shown.
pub const MAX_MESSAGE_CHARS: usize = 512;

/// How much of a message is looked at; far more than can be shown.
const MAX_SCANNED_CHARS: usize = 8 * 1024;
const MASK: &str = "[redacted]";

/// Removes the connection's own credential, also where it is percent-encoded or within base64, and everything that
/// looks like a credential; then cuts to [`MAX_MESSAGE_CHARS`] characters. Control characters become spaces.
#[must_use]
pub fn scrub(message: &str, credential: Option<&str>) -> String {
    let own = credential.filter(|own| !own.is_empty());
    let text = looked_at(message, own);
    let mut found = shapes::find(&text);
    if let Some(own) = own {
        found.extend(own::find(&text, own));
    }
    let clean = masked(&text, found);
    let clean = clean.trim();
    let mut short: String = clean.chars().take(MAX_MESSAGE_CHARS).collect();
    if clean.chars().nth(MAX_MESSAGE_CHARS).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// The beginning of a message, without what nobody sees and what would only part a credential. Where it is cut, a credential may have lost its end and be known no more, so as much as
/// it can take goes too.
fn looked_at(message: &str, own: Option<&str>) -> String {
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    let visible = message.chars().take(MAX_SCANNED_CHARS).filter(|character| !is_invisible(*character));
    let mut text: String = visible.map(plain).collect();
    if message.chars().nth(MAX_SCANNED_CHARS).is_some() {
        let longest = own.map_or(0, |own| own.len().saturating_mul(3));
        text.truncate(text.floor_char_boundary(text.len().saturating_sub(longest)));
        text.truncate(text.rfind(' ').unwrap_or_default());
    }
    text
}

/// Characters without a width (of Unicode's Default_Ignorable_Code_Point those that turn up in texts).
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

fn masked(text: &str, mut found: Vec<Range<usize>>) -> String {
    found.sort_unstable_by_key(|range| range.start);
    let mut out = String::with_capacity(text.len());
    let mut shown = 0;
    for range in found {
        let (start, end) = (text.floor_char_boundary(range.start), text.ceil_char_boundary(range.end));
        if end <= shown {
            continue;
        }
        // What overlaps the one before is one with it.
        if start >= shown {
            out.push_str(text.get(shown..start).unwrap_or_default());
            if start > shown || !out.ends_with(MASK) {
                out.push_str(MASK);
            }
        }
        shown = end;
    }
    out.push_str(text.get(shown..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests;
