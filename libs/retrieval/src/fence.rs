//! Quoted material between tags of ours, which nothing in it can close.

use unicode_normalization::UnicodeNormalization;

use crate::escapes::escaped;

/// Looks like the character that opens a tag, and opens none.
const LOOK_ALIKE: char = '‹';

/// So many characters that are none of a name's are more than anything that would be read as a tag has.
const MOST_BETWEEN: usize = 512;

/// The text with every tag that bears this name, however it is written, made a look-alike. `name` is in small ASCII
/// letters.
#[must_use]
pub fn defused(text: &str, name: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((_, bytes)) = first(rest) {
        let opener = opener(rest);
        let (kept, after) = rest.split_at(opener.unwrap_or(bytes));
        if opener.is_some() && is_named(after, name) {
            safe.push(LOOK_ALIKE);
        } else {
            safe.push_str(kept);
        }
        rest = after;
    }
    safe
}

/// How many bytes of the text open a tag, if any do: the character itself, one that is mistaken for it (Unicode TR 39,
/// confusables), or an escape of either.
fn opener(text: &str) -> Option<usize> {
    let (character, bytes) = escaped(text).or_else(|| first(text))?;
    let plain = std::iter::once(character).nfkd().next()?;
    matches!(plain, '<' | '˂' | 'ᐸ' | 'ᚲ' | '❮' | '〈' | '⟨' | '⧼' | '𝈶').then_some(bytes)
}

fn first(text: &str) -> Option<(char, usize)> {
    text.chars().next().map(|character| (character, character.len_utf8()))
}

/// Whether what follows an opening is the name: in letters of any size, width or style or that only look like them, and
/// with whatever is no letter or digit before it and in it.
fn is_named(after: &str, name: &str) -> bool {
    let mut expected = name.chars();
    let mut next = expected.next();
    let mut between = 0;
    let mut rest = after;
    while let Some((character, bytes)) = escaped(rest).or_else(|| first(rest)) {
        // What opens another tag is nothing between the letters either.
        let (read, skipped) = match opener(rest) {
            Some(bytes) => (None, bytes),
            None => (Some(character), bytes),
        };
        rest = rest.get(skipped..).unwrap_or_default();
        between += usize::from(read.is_none());
        for plain in read.into_iter().nfkd().flat_map(char::to_lowercase) {
            let Some(wanted) = next else { return true };
            if latin(plain) == wanted {
                next = expected.next();
            } else if plain.is_alphanumeric() {
                return false;
            } else {
                between += 1;
            }
        }
        if between > MOST_BETWEEN {
            return true;
        }
    }
    next.is_none()
}

/// The Latin letter that a small letter of another script is mistaken for (Unicode TR 39, confusables), of those that
/// names of fences have.
fn latin(letter: char) -> char {
    match letter {
        'с' | 'ϲ' | 'ᴄ' => 'c',
        'о' | 'ο' | 'օ' | 'ᴏ' => 'o',
        'ո' | 'п' | 'ɴ' => 'n',
        'т' | 'τ' | 'ᴛ' => 't',
        'е' | 'ε' | 'ҽ' | 'ᴇ' => 'e',
        'х' | 'χ' => 'x',
        'ν' | 'ѵ' | 'ᴠ' => 'v',
        'г' | 'ʀ' => 'r',
        'ѕ' | 'ꜱ' => 's',
        'а' | 'α' | 'ᴀ' => 'a',
        'і' | 'ι' | 'ı' | 'ɪ' => 'i',
        other => other,
    }
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;
