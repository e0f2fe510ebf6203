//! Where a call went, as its ledger entry and its client are told.

use http::{HeaderMap, HeaderValue};
use ledger::OpenCall;
use providers::Attempts;

use crate::catalog::Target;
use crate::header_names::{ATTEMPTS, CONNECTION, DROPPED, MODEL};
use crate::header_text;

/// What the header of dropped fields has at most, in bytes.
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
        enter(target, call);
    }
    let Some(headers) = headers else { return };
    headers.insert(ATTEMPTS, HeaderValue::from(attempts.made()));
    if attempts.made() > 0 {
        describe(target, dropped, headers);
    }
}

/// Tells that nobody answered, and that the answer was made here for a target.
pub(crate) fn counted_here(target: &Target, call: &mut OpenCall, headers: &mut HeaderMap) {
    enter(target, call);
    headers.remove(CONNECTION);
    if let Some(model) = header_text::name(&target.model) {
        headers.insert(MODEL, model);
    }
}

fn enter(target: &Target, call: &mut OpenCall) {
    let entry = call.entry_mut();
    entry.model = Some(target.model.clone());
    entry.provider_type = Some(target.provider.as_str().to_owned());
    entry.connection_id = target.connection().ok().map(|connection| connection.id.0);
}

/// Tells what answers, and what it was not told of the request.
pub(crate) fn describe(target: Option<&Target>, dropped: &[String], headers: &mut HeaderMap) {
    if let Some(target) = target {
        for (name, text) in [(MODEL, &target.model), (CONNECTION, &target.name)] {
            if let Some(value) = header_text::name(text) {
                headers.insert(name, value);
            }
        }
    }
    if let Some(list) = header_text::list(dropped, LONGEST_LIST) {
        headers.insert(DROPPED, list);
    }
}
