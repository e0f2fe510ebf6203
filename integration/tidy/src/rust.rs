//! As much of Rust's grammar as the rules need.

use std::str::FromStr;

use anyhow::anyhow;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// What the production part of a file says.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// String literals without prefix, quotes and escapes, outside attributes and doc comments.
    pub(crate) strings: Vec<Spot>,
    /// Identifiers, outside attributes.
    pub(crate) identifiers: Vec<Spot>,
    /// Modules in files of their own that only tests compile.
    pub(crate) test_modules: Vec<String>,
}

/// A piece of text and its line, from 1.
#[derive(Debug)]
pub(crate) struct Spot {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Reads a file, leaving out every item that only tests compile.
pub(crate) fn parse(text: &str) -> anyhow::Result<Parsed> {
    let tokens = TokenStream::from_str(text).map_err(|error| anyhow!("the file is no Rust: {error}"))?;
    let mut parsed = Parsed::default();
    walk(tokens, &mut parsed);
    Ok(parsed)
}

fn walk(tokens: TokenStream, parsed: &mut Parsed) {
    let mut tokens = tokens.into_iter().peekable();
    let mut is_test_item = false;
    let mut last_word = String::new();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                // An inner attribute has an exclamation mark in between.
                let is_inner = matches!(tokens.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
                if is_inner {
                    tokens.next();
                }
                if let Some(TokenTree::Group(group)) = tokens.peek()
                    && group.delimiter() == Delimiter::Bracket
                {
                    is_test_item |= !is_inner && is_cfg_test(group);
                    tokens.next();
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => is_test_item = false,
            TokenTree::Group(group) if is_test_item => is_test_item = group.delimiter() != Delimiter::Brace,
            TokenTree::Group(group) => walk(group.stream(), parsed),
            TokenTree::Ident(name) => {
                let line = name.span().start().line;
                let name = name.to_string();
                let ends = matches!(tokens.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == ';');
                if is_test_item && last_word == "mod" && ends {
                    parsed.test_modules.push(name.clone());
                }
                last_word.clone_from(&name);
                if !is_test_item {
                    parsed.identifiers.push(Spot { line, text: name });
                }
            }
            TokenTree::Literal(literal) if !is_test_item => {
                let line = literal.span().start().line;
                if let Some(text) = string_of(&literal.to_string()) {
                    parsed.strings.push(Spot { line, text });
                }
            }
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Whether an attribute is `cfg(test)`, or `cfg(…)` of a combination with `test` in it that is not negated.
fn is_cfg_test(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// The text of a string literal as it stands in the source; `None` for characters and numbers.
fn string_of(literal: &str) -> Option<String> {
    let (prefix, rest) = literal.split_once('"')?;
    if !prefix.chars().all(|c| "brc#".contains(c)) {
        return None;
    }
    let (inner, _) = rest.rsplit_once('"')?;
    Some(inner.replace("\\n", " ").replace(['\\', '\n'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_strings_of_production_code_are_found() {
        let parsed = parse(
            "//! doc \"no\"
             #![allow(x, reason = \"no\")]
             /// also \"no\"
             #[doc = \"no\"]
             fn f<'a>(x: &'a str) -> char { g(\"yes\", b\"bytes\", r#\"raw \"x\"\"#, 'c', '\"', 1.0); 'n' }
             #[cfg(test)]
             mod tests { fn t() { g(\"no\"); } }
             #[cfg(test)]
             #[path = \"x.rs\"]
             mod more;
             #[cfg(test)] const X: &str = \"no\";
             fn h() { g(\"yes too\"); }",
        )
        .unwrap();
        let texts: Vec<&str> = parsed.strings.iter().map(|spot| spot.text.as_str()).collect();
        assert_eq!(texts, ["yes", "bytes", "raw \"x\"", "yes too"]);
        assert_eq!(parsed.strings.last().unwrap().line, 12);
        assert_eq!(parsed.test_modules, ["more"]);
    }

    #[test]
    fn a_test_only_function_hides_nothing_after_it() {
        let parsed = parse("#[cfg(test)] fn t(a: [u8; 2]) -> u8 { \"no\" } fn p() { \"yes\" }").unwrap();
        assert_eq!(parsed.strings.len(), 1);
    }

    #[test]
    fn what_is_no_rust_is_an_error() {
        assert!(parse("fn f( {").is_err());
    }
}
