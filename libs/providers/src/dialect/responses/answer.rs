//! JSON answers of the same dialect.

use bytes::Bytes;
use serde_json::Value;

use super::bound::bound;
use super::echo::Echo;
use super::reader::read_whole;
use crate::dialect::openai::{ChatAnswer, SpliceRules, splice_model, spliced};
use crate::error::UpstreamError;
use crate::hub::Finish;
use crate::json::{Members, Splices, object, span};
use crate::usage::Usage;

/// A provider's answer with the model's name and the client's own instructions in their places. One that is longer than
/// its bound is written anew.
pub(crate) fn read_answer(
    body: &Bytes,
    rules: &SpliceRules,
    credential: Option<&str>,
) -> Result<ChatAnswer, UpstreamError> {
    let whole = read_whole(body, credential)?;
    let (text, members) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    let mut splices = Splices::default();
    splice_response(&mut splices, text, &members, &rules.public_model, &rules.echo.clone().unwrap_or_default());
    let mut body = spliced(body, splices);
    let mut finish = whole.finish.clone();
    let counted_output = rules.bound.map(|limit| {
        let mut response: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (tokens, is_cut) = bound(&mut response, &limit);
        if is_cut {
            finish = Some(Finish::Length);
            body = Bytes::from(response.to_string());
        }
        tokens
    });
    let usage = whole.usage.and_then(Usage::believed);
    Ok(ChatAnswer {
        body,
        usage,
        finish_reasons: finish.iter().map(Finish::as_openai).map(str::to_owned).collect(),
        delivered: whole.delivered(),
        counted_output,
        upstream_model: whole.model,
    })
}

/// Replaces the values of `model` and `instructions`, where they differ: instructions went out with texts of ours.
pub(super) fn splice_response(
    splices: &mut Splices,
    text: &str,
    response: &Members<'_>,
    public_model: &str,
    echo: &Echo,
) {
    splice_model(splices, text, response, public_model);
    if let Some(value) = response.get("instructions")
        && !is_same(value.get(), &echo.instructions)
    {
        splices.replace(span(text, value.get()), echo.instructions.clone());
    }
}

/// Whether two JSON texts are the same string or `null`, however they are escaped.
fn is_same(one: &str, other: &str) -> bool {
    one == other
        || matches!(
            (serde_json::from_str::<Value>(one), serde_json::from_str::<Value>(other)),
            (Ok(one), Ok(other)) if one == other
        )
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
