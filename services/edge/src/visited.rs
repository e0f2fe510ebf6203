//! Where a call went, as its ledger entry and its client are told.

use http::{HeaderMap, HeaderName, HeaderValue};
use ledger::OpenCall;
use providers::Attempts;

use crate::admission::MODEL;
use crate::catalog::Target;

const ATTEMPTS: HeaderName = HeaderName::from_static("x-ragmux-attempts");
const CONNECTION: HeaderName = HeaderName::from_static("x-ragmux-connection");
const DROPPED: HeaderName = HeaderName::from_static("x-ragmux-dropped");

/// What a header lists at most, in bytes; whole names are left out at its end.
const LONGEST_LIST: usize = 1024;

/// Tells of the last attempt, which went to `target`, and of the fields that had no place there. The price is the
/// caller's to tell.
pub(crate) fn note(
    target: Option<&Target>,
    attempts: &Attempts,
    dropped: &[String],
    call: &mut OpenCall,
    headers: Option<&mut HeaderMap>,
) {
    let entry = call.entry_mut();
    entry.attempts = i32::try_from(attempts.made()).unwrap_or(i32::MAX);
    // What the log has without this is the first place.
    if let Some(target) = target.filter(|_| attempts.last().is_some_and(|at| at > 0)) {
        entry.model = Some(target.model.clone());
        entry.provider_type = Some(target.provider.as_str().to_owned());
        entry.connection_id = target.connection().ok().map(|connection| connection.id.0);
    }
    let Some(headers) = headers else { return };
    headers.insert(ATTEMPTS, HeaderValue::from(attempts.made()));
    if attempts.made() > 0 {
        describe(target, dropped, headers);
    }
}

/// Tells what answers, and what it was not told of the request.
pub(crate) fn describe(target: Option<&Target>, dropped: &[String], headers: &mut HeaderMap) {
    if let Some(target) = target {
        for (name, text) in [(MODEL, &target.model), (CONNECTION, &target.name)] {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        }
    }
    if let Some(list) = list(dropped) {
        headers.insert(DROPPED, list);
    }
}

/// Names for a header, separated by commas.
fn list(names: &[String]) -> Option<HeaderValue> {
    let mut list = String::new();
    for name in names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')) {
        if list.len() + name.len() + 2 > LONGEST_LIST {
            break;
        }
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(name);
    }
    HeaderValue::from_str(&list).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_whole_names_that_a_header_can_carry() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            list(&names(&["logit_bias", "a\nb", "ü", "tools[0].strict"])).unwrap(),
            "logit_bias, tools[0].strict"
        );
        assert_eq!(list(&names(&["a,b"])), None);
        let many: Vec<String> = (0..1000).map(|number| format!("field{number}")).collect();
        let value = list(&many).unwrap();
        assert!(
            value.len() <= LONGEST_LIST
                && value.to_str().unwrap().split(", ").all(|name| many.contains(&name.to_owned()))
        );
    }
}
