//! What user names and passwords have to be.

use domain::Secret;

const NAME_CHARS: std::ops::RangeInclusive<usize> = 3..=64;
const PASSWORD_MIN_CHARS: usize = 12;
const PASSWORD_MAX_BYTES: usize = 128;

/// What is wrong with a user name, if anything.
pub(crate) fn problem_with_name(name: &str) -> Option<&'static str> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    (!NAME_CHARS.contains(&name.len()) || !name.chars().all(allowed))
        .then_some("a user name is 3 to 64 of a-z, 0-9, '.', '_' and '-'")
}

/// What is wrong with a password, if anything.
pub(crate) fn problem_with_password(password: &Secret) -> Option<&'static str> {
    let text = password.expose();
    (text.chars().count() < PASSWORD_MIN_CHARS || text.len() > PASSWORD_MAX_BYTES)
        .then_some("a password has at least 12 characters and at most 128 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["abc", "a.b_c-1", &"x".repeat(64)] {
            assert_eq!(problem_with_name(good), None, "{good}");
        }
        for bad in ["", "ab", "Root", "a b c", "ünü", &"x".repeat(65)] {
            assert!(problem_with_name(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn passwords_are_counted_in_characters_below_and_bytes_above() {
        for (good, text) in [
            (true, "x".repeat(12)),
            (false, "x".repeat(11)),
            (true, "ü".repeat(12)),
            (true, "x".repeat(128)),
            (false, "x".repeat(129)),
            (false, "ü".repeat(65)),
        ] {
            assert_eq!(problem_with_password(&Secret::new(text.clone())).is_none(), good, "{text}");
        }
    }
}
