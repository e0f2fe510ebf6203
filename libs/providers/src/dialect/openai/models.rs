//! What the models of a provider take of a request, by their names.
//!
//! Providers refuse what one of their models does not know, with 400. A name that is not known here is sent all that its
//! provider's reference knows but for efforts, which are refused by most models.

use domain::ProviderType;

use crate::hub::Effort::{self, High, Highest, Low, Medium, Minimal, None as Never};

/// Whether a model takes `temperature` and `top_p`, and OpenAI's also the penalties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Samples {
    Always,
    Never,
    /// Where it is told not to think, and where it is told nothing if it does not think then.
    Thoughtless {
        unasked: bool,
    },
}

/// What one model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// The efforts that it knows; none where it refuses all.
    pub(super) efforts: &'static [Effort],
    pub(super) samples: Samples,
    /// Whether it takes penalties for what has been said.
    pub(super) penalties: bool,
    /// Whether it takes stop sequences.
    pub(super) stops: bool,
    /// The most tokens of an answer, where more is refused.
    pub(super) most_output: Option<u64>,
}

const PLAIN: Model = Model { efforts: &[], samples: Samples::Always, penalties: true, stops: true, most_output: None };
const TO_HIGH: &[Effort] = &[Low, Medium, High];
const ALL: &[Effort] = &[Never, Minimal, Low, Medium, High, Highest];

impl Model {
    pub(super) fn of(provider: ProviderType, name: &str) -> Self {
        match provider {
            // Of Azure's deployments it is known where they are named after their model.
            ProviderType::OpenAi | ProviderType::AzureOpenAi => openai(name),
            ProviderType::XAi => xai(name),
            ProviderType::Groq => Self { efforts: if is_gpt_oss(name) { TO_HIGH } else { &[] }, ..PLAIN },
            ProviderType::DeepSeek => Self { efforts: ALL, ..deepseek(name) },
            ProviderType::CustomOpenAi => Self { efforts: if is_gpt_oss(name) { TO_HIGH } else { ALL }, ..PLAIN },
            // OpenRouter leaves out what a model does not take (API reference, Parameters).
            ProviderType::OpenRouter => Self { efforts: ALL, ..PLAIN },
            ProviderType::Mistral
            | ProviderType::Anthropic
            | ProviderType::Gemini
            | ProviderType::Ollama
            | ProviderType::CohereRerank
            | ProviderType::VoyageRerank => PLAIN,
        }
    }

    /// Whether `temperature` and `top_p` are taken beside an effort.
    pub(super) fn samples_with(self, effort: Option<Effort>) -> bool {
        match (self.samples, effort) {
            (Samples::Always, _) => true,
            (Samples::Never, _) => false,
            (Samples::Thoughtless { unasked }, None) => unasked,
            (Samples::Thoughtless { .. }, Some(effort)) => effort == Never,
        }
    }
}

/// OpenAI's own model with open weights has the efforts of its model card (low, medium and high), whoever serves it.
fn is_gpt_oss(name: &str) -> bool {
    name.contains("gpt-oss")
}

/// OpenAI API: Reasoning models (`reasoning_effort`, and that `temperature`, `top_p` and penalties are not known), Using
/// GPT-5.2 (they are where the effort is none, which it is unasked), the pages of the models (efforts and most tokens).
/// That o3 and all later refuse `stop` is in the reference (Create chat completion, `stop`).
fn openai(name: &str) -> Model {
    // One that was trained further has the ways of the one it comes of.
    let name = name.strip_prefix("ft:").unwrap_or(name);
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
    let thinks = |efforts, stops, most| Model {
        efforts,
        samples: Samples::Never,
        penalties: false,
        stops,
        most_output: Some(most),
    };
    if let Some(version) = gpt_version(name).filter(|version| *version >= 50) {
        return gpt5(name, version);
    }
    if begins(&["o1-mini", "o1-preview"]) {
        return thinks(&[], false, if name.starts_with("o1-mini") { 65_536 } else { 32_768 });
    }
    if begins(&["o1"]) {
        return thinks(TO_HIGH, true, 100_000);
    }
    if begins(&["o3", "o4"]) {
        return thinks(TO_HIGH, false, 100_000);
    }
    let most_output = if begins(&["gpt-4o-2024-05-13", "gpt-4-turbo", "gpt-4-1106", "gpt-4-0125", "gpt-3.5-turbo"]) {
        Some(4096)
    } else if begins(&["gpt-4o", "chatgpt-4o", "gpt-4.5"]) {
        Some(16_384)
    } else if begins(&["gpt-4.1"]) {
        Some(32_768)
    } else if name == "gpt-4" || begins(&["gpt-4-0"]) {
        Some(8192)
    } else {
        None
    };
    Model { most_output, ..PLAIN }
}

/// From the fifth family on.
fn gpt5(name: &str, version: u32) -> Model {
    let is_chat = name.contains("-chat");
    if is_chat && version == 50 {
        return Model { most_output: Some(16_384), ..PLAIN };
    }
    let efforts: &[Effort] = match version {
        // Those that chat think as they see fit.
        _ if is_chat => &[],
        50 if name.contains("-pro") => &[High],
        _ if name.contains("-pro") => &[Medium, High, Highest],
        50 if name.contains("-codex") => TO_HIGH,
        50 => &[Minimal, Low, Medium, High],
        51 if name.contains("-codex-max") => &[Low, Medium, High, Highest],
        51 if name.contains("-codex") => TO_HIGH,
        51 => &[Never, Low, Medium, High],
        _ if name.contains("-codex") => &[Low, Medium, High, Highest],
        _ => &[Never, Low, Medium, High, Highest],
    };
    let samples = match version {
        _ if !efforts.contains(&Never) => Samples::Never,
        // What later ones do unasked differs.
        version => Samples::Thoughtless { unasked: version <= 52 },
    };
    let most_output = (version < 60).then_some(if is_chat { 16_384 } else { 128_000 });
    Model { efforts, samples, penalties: false, stops: false, most_output }
}

/// The version in a name, such as 51 of `gpt-5.1-mini` and 50 of `gpt-5-2025-08-07`.
fn gpt_version(name: &str) -> Option<u32> {
    let number = name.strip_prefix("gpt-")?.split('-').next()?;
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
    Some(major.saturating_mul(10).saturating_add(minor.min(9)))
}

/// xAI API, Reasoning: efforts by model, and that models which reason refuse penalties and `stop`. That others of the
/// fourth family do so too is reported by users (lobehub/lobehub#13332).
fn xai(name: &str) -> Model {
    let reasons = Model { penalties: false, stops: false, ..PLAIN };
    let begins = |beginning: &str| name.starts_with(beginning);
    match name {
        _ if begins("grok-3-mini") => Model { efforts: &[Low, High], ..reasons },
        _ if begins("grok-4.3") => Model { efforts: &[Never, Low, Medium, High], ..reasons },
        _ if begins("grok-4.5") => Model { efforts: TO_HIGH, ..reasons },
        _ if begins("grok-4.6") => Model { efforts: &[Low, Medium, High, Highest], ..reasons },
        _ if begins("grok-2") || begins("grok-3") || begins("grok-beta") => PLAIN,
        _ => reasons,
    }
}

/// DeepSeek API, Models and pricing, Max output. Names of later models tell their own limits nowhere, and theirs are higher.
fn deepseek(name: &str) -> Model {
    let most_output = match name {
        "deepseek-chat" => Some(8192),
        "deepseek-reasoner" => Some(65_536),
        _ => None,
    };
    Model { most_output, ..PLAIN }
}

#[cfg(test)]
mod tests {
    use domain::ProviderType::{CustomOpenAi, DeepSeek, Groq, Mistral, OpenAi, XAi};

    use super::*;

    #[test]
    fn efforts_are_those_of_the_model() {
        for (provider, name, efforts) in [
            (OpenAi, "gpt-5-mini-2025-08-07", &[Minimal, Low, Medium, High][..]),
            (OpenAi, "gpt-5-chat-latest", &[]),
            (OpenAi, "gpt-5-codex", TO_HIGH),
            (OpenAi, "gpt-5-pro", &[High]),
            (OpenAi, "gpt-5.1", &[Never, Low, Medium, High]),
            (OpenAi, "gpt-5.1-codex-max", &[Low, Medium, High, Highest]),
            (OpenAi, "gpt-5.2", &[Never, Low, Medium, High, Highest]),
            (OpenAi, "gpt-5.2-chat-latest", &[]),
            (OpenAi, "gpt-6", &[Never, Low, Medium, High, Highest]),
            (OpenAi, "o4-mini", TO_HIGH),
            (OpenAi, "o1-mini", &[]),
            (OpenAi, "gpt-4o", &[]),
            (OpenAi, "our-deployment", &[]),
            (XAi, "grok-3-mini-fast", &[Low, High]),
            (XAi, "grok-4-0709", &[]),
            (XAi, "grok-4.20-beta", &[]),
            (XAi, "grok-4.6", &[Low, Medium, High, Highest]),
            (Groq, "openai/gpt-oss-120b", TO_HIGH),
            (Groq, "llama-3.3-70b-versatile", &[]),
            (CustomOpenAi, "gpt-oss:20b", TO_HIGH),
            (CustomOpenAi, "house-model", ALL),
            (Mistral, "mistral-large-latest", &[]),
        ] {
            assert_eq!(Model::of(provider, name).efforts, efforts, "{provider:?} {name}");
        }
    }

    #[test]
    fn models_that_reason_are_not_steered() {
        for (provider, name, unasked, thoughtless, penalties, stops) in [
            (OpenAi, "gpt-4o", true, true, true, true),
            (OpenAi, "ft:gpt-4o-mini:us::a", true, true, true, true),
            (OpenAi, "gpt-5-chat-latest", true, true, true, true),
            (OpenAi, "gpt-5", false, false, false, false),
            (OpenAi, "gpt-5.1", true, true, false, false),
            (OpenAi, "gpt-5.4-mini", false, true, false, false),
            (OpenAi, "gpt-5.2-codex", false, false, false, false),
            (OpenAi, "o1", false, false, false, true),
            (OpenAi, "o3-mini", false, false, false, false),
            (XAi, "grok-3", true, true, true, true),
            (XAi, "grok-3-mini", true, true, false, false),
            (XAi, "grok-4", true, true, false, false),
            (XAi, "grok-code-fast-1", true, true, false, false),
        ] {
            let model = Model::of(provider, name);
            assert_eq!(
                (model.samples_with(None), model.samples_with(Some(Never)), model.penalties, model.stops),
                (unasked, thoughtless, penalties, stops),
                "{name}"
            );
        }
        assert!(!Model::of(OpenAi, "gpt-5.1").samples_with(Some(Low)));
    }

    #[test]
    fn the_most_that_a_model_writes_is_known_of_those_that_refuse_more() {
        for (provider, name, most) in [
            (OpenAi, "gpt-4o", Some(16_384)),
            (OpenAi, "gpt-4o-2024-05-13", Some(4096)),
            (OpenAi, "gpt-4.1-nano", Some(32_768)),
            (OpenAi, "gpt-4-turbo-2024-04-09", Some(4096)),
            (OpenAi, "gpt-4-0613", Some(8192)),
            (OpenAi, "gpt-5-nano", Some(128_000)),
            (OpenAi, "gpt-7", None),
            (OpenAi, "our-deployment", None),
            (DeepSeek, "deepseek-chat", Some(8192)),
            (DeepSeek, "deepseek-v4", None),
        ] {
            assert_eq!(Model::of(provider, name).most_output, most, "{name}");
        }
    }
}
