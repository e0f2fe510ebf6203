//! Members of requests, whichever client dialect they are of: what is there must be as its API has it, and is named by
//! its path where it is not.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::openai::{RequestError, strict, text_at};
use crate::hub::{Effort, Setting, SettingKind};
use crate::json::{Members, text_of};

pub(crate) fn invalid(field: impl Into<String>, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.into(), must }
}

/// A member that must be an object.
pub(crate) fn object<'a>(path: &str, value: &'a RawValue, known: &[&'static str]) -> Result<Members<'a>, RequestError> {
    strict(path, Members::parse(value.get()).map_err(|_| invalid(path, "an object"))?, known)
}

/// A text that must be there and not be empty.
pub(crate) fn required<'a>(path: &str, members: &Members<'a>, name: &str) -> Result<Cow<'a, str>, RequestError> {
    const MUST: &str = "a string that is not empty";
    let full = || format!("{path}.{name}");
    let text = members.present(name).map(|value| text_at(value, full, MUST)).transpose()?;
    text.filter(|text| !text.is_empty()).ok_or_else(|| invalid(full(), MUST))
}

/// A switch; `None` where nothing is said.
pub(crate) fn switch(members: &Members<'_>, name: &'static str) -> Result<Option<bool>, RequestError> {
    match members.present(name).map(RawValue::get) {
        None => Ok(None),
        Some("false") => Ok(Some(false)),
        Some("true") => Ok(Some(true)),
        Some(_) => Err(invalid(name, "true or false")),
    }
}

/// Whether the passages used are to be returned (`ragmux.include_context`). What else `ragmux` is, is as if it was not.
pub(crate) fn includes_context(members: &Members<'_>) -> Result<bool, RequestError> {
    let ragmux = members.present("ragmux").and_then(|value| Members::parse(value.get()).ok());
    let ragmux = ragmux.map(|ragmux| strict("ragmux", ragmux, &["include_context"])).transpose()?;
    Ok(ragmux.is_some_and(|ragmux| ragmux.get("include_context").is_some_and(|value| value.get() == "true")))
}

/// The numbers that steer the model, of those that an API has.
pub(crate) fn settings<'a>(
    members: &Members<'a>,
    known: &[(&'static str, SettingKind)],
) -> Result<Vec<Setting<'a>>, RequestError> {
    let mut settings = Vec::new();
    for &(name, kind) in known {
        let Some(value) = members.present(name) else { continue };
        if value.get().parse::<f64>().is_err() {
            return Err(invalid(name, "a number"));
        }
        settings.push(Setting { kind, name, value });
    }
    Ok(settings)
}

/// A word of OpenAI's for how much the model is to think.
pub(crate) fn effort(field: &str, value: &RawValue) -> Result<Effort, RequestError> {
    Ok(match text_of(value).as_deref() {
        Some("none") => Effort::None,
        Some("minimal") => Effort::Minimal,
        Some("low") => Effort::Low,
        Some("medium") => Effort::Medium,
        Some("high") => Effort::High,
        Some("xhigh" | "max") => Effort::Highest,
        Some(_) | None => return Err(invalid(field, "none, minimal, low, medium, high or xhigh")),
    })
}
