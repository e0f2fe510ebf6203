//! Names in headers. What a header cannot carry everywhere, and what would look like a separator, is percent-encoded as UTF-8
//! (RFC 3986, 2.1).

use std::borrow::Cow;

use http::HeaderValue;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// The separator of a list (RFC 9110, 5.6.1), and the sign of an encoding.
const NOT_AS_IT_IS: &AsciiSet = &CONTROLS.add(b',').add(b'%');

/// Stands at the end of a list that was too long.
const MORE: &str = "...";

/// Whether a header carries a name as it is.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty() && encoded(name) == name && name.trim() == name
}

/// One name; `None` if it is empty.
pub(crate) fn name(name: &str) -> Option<HeaderValue> {
    list([name], usize::MAX)
}

/// Whole names, separated by commas, in at most so many bytes; `None` if there are none.
pub(crate) fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>, longest: usize) -> Option<HeaderValue> {
    let mut list = String::new();
    for name in names {
        let name = encoded(name.as_ref());
        let comma = if list.is_empty() { "" } else { ", " };
        if list.len() + comma.len() + name.len() + ", ".len() + MORE.len() > longest {
            list.extend([comma, MORE]);
            break;
        }
        list.extend([comma, &*name]);
    }
    HeaderValue::from_str(&list).ok().filter(|value| !value.is_empty())
}

fn encoded(name: &str) -> Cow<'_, str> {
    utf8_percent_encode(name, NOT_AS_IT_IS).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_can_be_listed() {
        let names = ["logit_bias", "a\nb, c", "ü 100%", "tools[0].strict"];
        assert_eq!(list(names, 1024).unwrap(), "logit_bias, a%0Ab%2C c, %C3%BC 100%25, tools[0].strict");
        assert_eq!((name("büro").unwrap(), name("")), (HeaderValue::from_static("b%C3%BCro"), None));
        assert_eq!(
            (is_plain("shop 1"), is_plain("büro"), is_plain("a,b"), is_plain(" a")),
            (true, false, false, false)
        );
        assert_eq!(list(std::iter::empty::<&str>(), 9), None);
    }

    #[test]
    fn a_list_that_is_too_long_has_whole_names_and_says_so() {
        let many: Vec<String> = (0..1000).map(|number| format!("field{number}")).collect();
        let value = list(&many, 1024).unwrap();
        let (names, more) = value.to_str().unwrap().rsplit_once(", ").unwrap();
        assert_eq!(more, MORE);
        assert!(value.len() <= 1024 && names.split(", ").zip(&many).all(|(name, one)| name == one));
    }
}
