//! What holds for every text.

use proptest::prelude::*;
use ragmux_tokens::{Family, count, estimate};

/// Texts with words, signs and rare characters side by side.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a-zA-Z ,.\\n]{0,200}",
        "([a-z]{1,9} |[0-9]{1,5}|[一-龥]{1,4}|[а-я]{1,8} |[!-/]{1,3}|\\s){0,60}",
    ]
}

proptest! {
    #[test]
    fn a_count_is_between_nothing_and_the_bytes(text in text()) {
        for family in [Family::O200k, Family::Cl100k, Family::Estimated] {
            let tokens = count(family, &text);
            prop_assert!(tokens <= text.len());
            prop_assert_eq!(tokens == 0, text.is_empty());
        }
    }

    #[test]
    fn an_estimate_grows_with_its_text(a in text(), b in text()) {
        let (both, of_a, of_b) = (estimate(&(a.clone() + &b)), estimate(&a), estimate(&b));
        // A run that goes on over the seam may be cheaper or dearer than its two parts, by what one token is.
        let slack = 2 + seam(&a, &b);
        prop_assert!(both <= of_a + of_b + slack, "{both} > {of_a} + {of_b}");
        prop_assert!(both + slack >= of_a.max(of_b), "{both} < max({of_a}, {of_b})");
    }

    #[test]
    fn a_count_grows_with_its_text(a in text(), b in text()) {
        for family in [Family::O200k, Family::Cl100k] {
            let (both, of_a, of_b) = (count(family, &(a.clone() + &b)), count(family, &a), count(family, &b));
            let slack = 2 + seam(&a, &b);
            prop_assert!(both <= of_a + of_b + slack, "{both} > {of_a} + {of_b}");
            prop_assert!(both + slack >= of_a.max(of_b), "{both} < max({of_a}, {of_b})");
        }
    }

    #[test]
    fn an_estimate_is_linear(text in text(), times in 1_usize..50) {
        let once = estimate(&text);
        let many = estimate(&text.repeat(times));
        let slack = times * (2 + seam(&text, &text));
        prop_assert!(many <= once * times + slack);
        prop_assert!(many + slack >= once * times);
    }

    #[test]
    fn any_name_has_a_family(name in any::<String>()) {
        let _ = Family::of(&name);
    }
}

/// Bytes of the words on both sides of a seam: what a vocabulary may cut differently when they become one.
fn seam(a: &str, b: &str) -> usize {
    let boundary = |c: char| c.is_whitespace();
    let left = a.trim_end_matches(boundary).rsplit(boundary).next().map_or(0, str::len);
    let right = b.trim_start_matches(boundary).split(boundary).next().map_or(0, str::len);
    let white = a.len() - a.trim_end().len() + b.len() - b.trim_start().len();
    left + right + white
}
