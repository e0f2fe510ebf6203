//! What Gemini's models take of a request, by the version that their name tells.
//!
//! A name that tells no version, such as that of the latest, stands for a model that takes what all of them do.

/// The family's number in the name of a model, such as 25 of `gemini-2.5-flash`; `None` where the name does not tell.
pub(super) fn version(model: &str) -> Option<u32> {
    let rest = model.rsplit('/').next()?.strip_prefix("gemini-")?;
    let mut numbers = rest.split('-').next()?.split('.').map(str::parse::<u32>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next().and_then(Result::ok).unwrap_or(0));
    Some(major.saturating_mul(10).saturating_add(minor))
}

/// Whether the model refuses calls of tools in the conversation that have lost the signature of their thought
/// (Gemini API, Thought signatures).
pub(super) fn insists_on_signatures(model: &str) -> bool {
    version(model).is_some_and(|version| version >= 30)
}

/// Whether the model takes no penalties for what has been said. The reference has them for all models (GenerationConfig);
/// that they are refused from 2.5 on ("Penalty is not enabled for …") is reported by users
/// (PublicAffairs/openai-gemini#63).
pub(super) fn refuses_penalties(model: &str) -> bool {
    version(model).is_none_or(|version| version >= 25)
}

/// Whether the model can have tools and be held to a form of its answer (Gemini API, Structured outputs, With tools: from
/// the third family on). That others refuse it is reported by users (googleapis/python-genai#867).
pub(super) fn takes_tools_with_form(model: &str) -> bool {
    version(model).is_some_and(|version| version >= 30)
}

/// The most tokens of an answer (Gemini API, Models, Output token limit).
pub(super) fn most_output(model: &str) -> Option<u64> {
    match version(model)? {
        ..25 => Some(8192),
        25..40 => Some(65_536),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_a_model_takes() {
        for (model, signs, penalties, both, most) in [
            ("gemini-3-pro-preview", true, false, true, Some(65_536)),
            ("models/gemini-3.1-pro", true, false, true, Some(65_536)),
            ("gemini-2.5-flash-lite", false, false, false, Some(65_536)),
            ("gemini-2.0-flash", false, true, false, Some(8192)),
            ("gemini-1.5-pro-002", false, true, false, Some(8192)),
            ("gemini-flash-latest", false, false, false, None),
            ("gemma-3-27b-it", false, false, false, None),
        ] {
            let known = (insists_on_signatures(model), !refuses_penalties(model), takes_tools_with_form(model));
            assert_eq!((known, most_output(model)), ((signs, penalties, both), most), "{model}");
        }
    }
}
