//! Characters written in the escapes of HTML, URLs, JSON and programs.

/// The character that the text begins with in an escape, and how many bytes that takes. An escape that was escaped again
/// (`&amp;lt;`, `%253C`) is still one.
pub(crate) fn escaped(text: &str) -> Option<(char, usize)> {
    let (character, rest) = match text.chars().next()? {
        '&' => reference(text.get(1..)?)?,
        '%' => percent(text.get(1..)?)?,
        '\\' => backslash(text.get(1..)?)?,
        _ => return None,
    };
    Some((character, text.len() - rest.len()))
}

/// A character reference (HTML, 13.5), with as many zeros as anybody likes, and without its semicolon as browsers take it.
fn reference(mut text: &str) -> Option<(char, &str)> {
    while let Some(again) = without(text, "amp;") {
        text = again;
    }
    let (character, rest) = if let Some(rest) = without(text, "lt") {
        ('<', rest)
    } else {
        let digits = text.strip_prefix('#')?;
        match digits.strip_prefix(['x', 'X']) {
            Some(hexadecimal) => number(hexadecimal, 16, usize::MAX)?,
            None => number(digits, 10, usize::MAX)?,
        }
    };
    Some((character, rest.strip_prefix(';').unwrap_or(rest)))
}

/// An octet of a URL (RFC 3986, 2.1).
fn percent(mut text: &str) -> Option<(char, &str)> {
    while let Some(again) = text.strip_prefix("25") {
        text = again;
    }
    exactly(text, 2)
}

/// An escape of JSON (RFC 8259, 7) or of programs: four hexadecimal digits, any in braces, two, or up to three octal ones.
fn backslash(text: &str) -> Option<(char, &str)> {
    if let Some(braced) = without(text, "u{") {
        let (character, rest) = number(braced, 16, usize::MAX)?;
        return Some((character, rest.strip_prefix('}')?));
    }
    if let Some(digits) = without(text, "u") {
        return exactly(digits, 4);
    }
    if let Some(digits) = without(text, "x") {
        return exactly(digits, 2);
    }
    number(text, 8, 3)
}

fn without<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn exactly(text: &str, digits: usize) -> Option<(char, &str)> {
    let (character, rest) = number(text, 16, digits)?;
    (text.len() - rest.len() == digits).then_some((character, rest))
}

/// The character whose number the text begins with, in at most so many digits.
fn number(text: &str, radix: u32, most: usize) -> Option<(char, &str)> {
    let digits = text.bytes().take(most).take_while(|byte| char::from(*byte).is_digit(radix)).count();
    let (digits, rest) = text.split_at(digits);
    let significant = digits.trim_start_matches('0');
    // No character has a number of more digits; more would only be a reason not to read it.
    let number = u32::from_str_radix(significant, radix).ok()?;
    Some((char::from_u32(number)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_character_is_read_whole() {
        for written in [
            "&lt;",
            "&LT",
            "&#60;",
            "&#0060",
            "&#x3C;",
            "&amp;lt;",
            "&amp;amp;#60;",
            "%3c",
            "%253C",
            "%25253c",
            "\\u003c",
            "\\U003C",
            "\\u{3c}",
            "\\u{00003c}",
            "\\x3C",
            "\\74",
            "\\074",
        ] {
            assert_eq!(escaped(&format!("{written}/é")), Some(('<', written.len())), "{written}");
        }
        assert_eq!(escaped("&#111;ntext"), Some(('o', 6)));
    }

    #[test]
    fn what_is_no_escape_is_none() {
        for text in [
            "",
            "<",
            "&",
            "&é",
            "&#;",
            "&#x;",
            "&amp;",
            "&#99999999999;",
            "%",
            "%é",
            "%3",
            "%zz",
            "\\",
            "\\u3c",
            "\\u{3c",
            "\\x3",
            "\\n",
        ] {
            assert_eq!(escaped(text), None, "{text}");
        }
    }
}
