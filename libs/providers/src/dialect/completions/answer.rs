//! Whole answers: the provider's bytes with the model's name replaced, cut where their bound must be kept.

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;

use super::echo::Echoed;
use crate::dialect::openai::{
    ChatAnswer, OutputBound, Piece, REASONING, SpliceRules, TextPart, choices_in, pieces, prefix, splice_model,
    spliced, success, tokens_of,
};
use crate::error::UpstreamError;
use crate::json::{Members, Splices, said_in, span, text_of};
use crate::usage::Usage;

pub(crate) fn read_answer(
    body: &Bytes,
    rules: &SpliceRules,
    credential: Option<&str>,
) -> Result<ChatAnswer, UpstreamError> {
    let (text, members) = success(body, credential)?;
    let choices = choices_in(&members)?;
    let mut pieces = pieces(&choices);
    let mut delivered = Default::default();
    if let Some(repeats) = &rules.repeats {
        let mut echoed = Echoed::new(repeats.clone());
        pieces.iter_mut().for_each(|piece| echoed.strip(piece));
        delivered = echoed.delivered();
    }
    pieces.iter().flat_map(|piece| &piece.texts).for_each(|text| delivered.add(&text.text));
    let mut splices = Splices::default();
    splice_model(&mut splices, text, &members, &rules.public_model);
    let counted_output = rules.bound.map(|bound| truncate(text, &choices, &pieces, &bound, &mut splices));
    Ok(ChatAnswer {
        body: spliced(body, splices),
        counted_output,
        usage: members.present("usage").and_then(Usage::read_believed),
        finish_reasons: pieces.into_iter().filter_map(|piece| piece.finish_reason).collect(),
        delivered,
        upstream_model: members.present("model").and_then(text_of).map(Into::into),
    })
}

/// Cuts every choice that has more than its part of the bound: its texts end there, its finish reason becomes `length`,
/// and its log probabilities go, which repeat the text. A choice that needs less leaves the rest to those after it.
/// Returns the tokens of what is left.
fn truncate(
    text: &str,
    choices: &[&RawValue],
    pieces: &[Piece<'_>],
    bound: &OutputBound,
    splices: &mut Splices,
) -> u64 {
    let mut total = 0_u64;
    for (at, piece) in pieces.iter().enumerate() {
        let allowance = bound.tokens.saturating_sub(total) / (pieces.len() - at) as u64;
        let used: u64 = piece.texts.iter().map(|text| tokens_of(bound.family, &text.text)).sum();
        let Some(raw) = choices.get(at).filter(|_| used > allowance) else {
            total = total.saturating_add(used);
            continue;
        };
        let mut left = allowance;
        let mut cut = json!({ "text": "", "index": piece.index, "logprobs": null, "finish_reason": "length" });
        let choice = Members::parse(raw.get()).unwrap_or_default();
        for own in &piece.texts {
            let kept = prefix(&own.text, bound.family, left);
            left = left.saturating_sub(tokens_of(bound.family, kept));
            let name = match own.part {
                TextPart::Content => "text",
                TextPart::Reasoning => {
                    REASONING.into_iter().find(|name| choice.present(name).is_some()).unwrap_or("reasoning")
                }
                _ => continue,
            };
            // With the prompt that it begins with.
            let all = choice.present(name).and_then(said_in).unwrap_or_default();
            let prompt = all.strip_suffix(own.text.as_ref()).unwrap_or_default();
            if let Some(members) = cut.as_object_mut() {
                members.insert(name.to_owned(), format!("{prompt}{kept}").into());
            }
        }
        total = total.saturating_add(allowance - left);
        splices.replace(span(text, raw.get()), cut.to_string());
    }
    total
}
