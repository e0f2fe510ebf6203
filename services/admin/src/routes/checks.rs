//! Checks that more than one resource makes of what people type.

use crate::error::ApiError;

const MAX_NAME_CHARS: usize = 128;

/// A name without the spaces around it: 1 to 128 characters, none of them a control character.
pub(super) fn name(text: &str) -> Result<String, ApiError> {
    let name = text.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control) {
        return Err(ApiError::invalid("name: expected 1 to 128 characters without control characters"));
    }
    Ok(name.to_owned())
}

/// A model's name, at a provider or in public: it goes into URLs, headers and logs.
pub(super) fn model_name(member: &str, text: &str) -> Result<String, ApiError> {
    let name = text.trim();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    let begins = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if !begins || name.len() > MAX_NAME_CHARS || !name.chars().all(allowed) || name.contains("..") {
        return Err(ApiError::invalid(format!(
            "{member}: expected up to 128 letters, digits and any of . _ : / @ -, beginning with a letter or digit, \
             without \"..\""
        )));
    }
    Ok(name.to_owned())
}

/// A number within a range.
pub(super) fn within<T: PartialOrd + std::fmt::Display>(member: &str, value: T, from: T, to: T) -> Result<T, ApiError> {
    if value < from || value > to {
        return Err(ApiError::invalid(format!("{member}: expected a number from {from} to {to}")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_bounded() {
        assert_eq!(name("  Käse & Co ").unwrap(), "Käse & Co");
        assert!(name(&"ü".repeat(128)).is_ok());
        for bad in ["", "  ", "a\nb", "a\0b", &"x".repeat(129)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn model_names_are_those_that_providers_use() {
        for good in ["gpt-4o", "meta-llama/Llama-3.1-8B@rev", "m:7b", "7b"] {
            assert_eq!(model_name("name", good).unwrap(), good);
        }
        for bad in ["", "-x", "../x", "a..b", "a b", "ü", "a\"b", &"x".repeat(129)] {
            assert!(model_name("name", bad).is_err(), "{bad:?}");
        }
    }
}
