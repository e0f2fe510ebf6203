//! Counting the text operators of a page, to be compared with what an engine showed of it.

/// Longer content is not looked through.
const MAX_CONTENT_BYTES: usize = 32 * 1024 * 1024;

/// How many operators in a content stream show text (ISO 32000-1, 9.4.3).
pub(super) fn count(content: &[u8]) -> u32 {
    let mut scan = Scan { rest: content.get(..MAX_CONTENT_BYTES).unwrap_or(content) };
    let mut shown = 0u32;
    while let Some(token) = scan.token() {
        match token {
            b"Tj" | b"TJ" | b"'" | b"\"" => shown = shown.saturating_add(1),
            b"ID" => scan.skip_image(),
            _ => {}
        }
    }
    shown
}

struct Scan<'c> {
    rest: &'c [u8],
}

impl<'c> Scan<'c> {
    /// The next word outside of strings and comments.
    fn token(&mut self) -> Option<&'c [u8]> {
        loop {
            let (first, after) = self.rest.split_first()?;
            match first {
                b'(' => self.skip_string(),
                b'<' if !after.starts_with(b"<") => self.skip_past(b'>'),
                b'%' => self.skip_past(b'\n'),
                c if is_word(*c) => {
                    let end = self.rest.iter().position(|c| !is_word(*c)).unwrap_or(self.rest.len());
                    let (word, rest) = self.rest.split_at_checked(end)?;
                    self.rest = rest;
                    return Some(word);
                }
                _ => self.rest = after,
            }
        }
    }

    fn skip_past(&mut self, end: u8) {
        let at = self.rest.iter().position(|c| *c == end).map_or(self.rest.len(), |at| at + 1);
        self.rest = self.rest.get(at..).unwrap_or_default();
    }

    /// A string ends at the bracket that closes its first one; a backslash takes a byte's meaning away.
    fn skip_string(&mut self) {
        let mut depth = 0u32;
        let mut escaped = false;
        for (at, c) in self.rest.iter().enumerate() {
            match c {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'(' => depth += 1,
                b')' => {
                    depth -= 1;
                    if depth == 0 {
                        self.rest = self.rest.get(at + 1..).unwrap_or_default();
                        return;
                    }
                }
                _ => {}
            }
        }
        self.rest = &[];
    }

    /// The data of an inline image ends with `EI` between white space.
    fn skip_image(&mut self) {
        let end = self.rest.windows(4).position(
            |w| matches!(w, [before, b'E', b'I', after] if before.is_ascii_whitespace() && after.is_ascii_whitespace()),
        );
        self.rest = end.and_then(|at| self.rest.get(at + 3..)).unwrap_or_default();
    }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'\'' | b'"' | b'*' | b'.' | b'-' | b'+' | b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_counted_and_their_look_alikes_are_not() {
        assert_eq!(count(b"BT /F 12 Tf (a) Tj [(b)-3(c)]TJ (d)' 1 2 (e)\" ET"), 4);
        assert_eq!(count(br"(Tj \) (Tj) Tj) Tj % Tj"), 1);
        assert_eq!(count(b"<544A> Tj /Tj gs"), 1);
        assert_eq!(count(b"BI /W 1 /H 1 ID x Tj y Tj\nEI (a) Tj"), 1);
        assert_eq!(count(b"(never closed Tj"), 0);
        assert_eq!(count(b""), 0);
    }
}
