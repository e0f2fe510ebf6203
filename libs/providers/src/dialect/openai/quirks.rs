//! What the providers that speak this API do each in their own way, by their published references.

use domain::ProviderType;

use crate::hub::{Effort, IdRule, Signer};

/// How a provider takes what it is asked for how much the model is to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// `reasoning_effort`, for all models.
    Effort,
    /// `reasoning_effort`, for models with these beginnings; the others refuse it.
    EffortOf(&'static [&'static str]),
    /// `reasoning`, with an effort or a budget (OpenRouter, Reasoning tokens).
    Object,
    /// `thinking` with a `type`, and `reasoning_effort` beside it (DeepSeek, Thinking mode).
    Switch,
    /// Not at all.
    None,
}

/// How a provider takes back what its model thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thoughts {
    /// As `reasoning_content` of the turns in which tools were called (DeepSeek, Thinking mode, Tool calls).
    OfCalls,
    /// As `reasoning_details` (OpenRouter, Reasoning tokens, Preserving reasoning).
    Details,
    /// Not at all.
    None,
}

/// One provider's ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quirks {
    /// Whether `stream_options` is known. Where it is not, usage comes unasked.
    pub(super) stream_options: bool,
    /// Whether `max_completion_tokens` is known beside `max_tokens`.
    pub(super) max_completion_tokens: bool,
    /// Whether messages may be of role `developer`.
    pub(super) developer: bool,
    /// Whether `file` parts are known.
    pub(super) files: bool,
    /// Whether parts may carry `cache_control`.
    pub(super) cache_marks: bool,
    /// Whether the answer can be held to a schema, and not to JSON alone.
    pub(super) schema: bool,
    /// Whether `top_k` is known.
    pub(super) top_k: bool,
    /// The name of `seed`.
    pub(super) seed: Option<&'static str>,
    /// Whether `user` is known.
    pub(super) user: bool,
    /// The most stop sequences; of providers whose reference names no number, as many as there are.
    pub(super) stops: usize,
    /// What it takes for the id of a call.
    pub(super) call_ids: IdRule,
    pub(super) thinking: Thinking,
    pub(super) thoughts: Thoughts,
    /// Of the members that answers have beside what is said, those that the provider takes back in the conversation; `None`
    /// where a server is not known.
    ///
    /// No reference has a list. DeepSeek, Mistral, Groq and OpenRouter say which they want or refuse (see below). Of OpenAI
    /// and xAI it is known by their guides to function calling alone, which put the message of an answer back as it came: so
    /// they take the members that their own answers have. Whether they refuse others is not published, and other
    /// providers' are left out for them.
    pub(super) takes_back: Option<&'static [&'static str]>,
}

/// As OpenAI's reference has it (Create chat completion); that efforts are refused by models that do not reason is in
/// its guide (Reasoning models).
const OPENAI: Quirks = Quirks {
    stream_options: true,
    max_completion_tokens: true,
    developer: true,
    files: true,
    cache_marks: false,
    schema: true,
    top_k: false,
    seed: Some("seed"),
    user: true,
    stops: 4,
    // Not in its reference; its refusal of a longer one names the number ("maximum length 40").
    call_ids: IdRule::AtMost(40),
    thinking: Thinking::EffortOf(&["o1", "o3", "o4", "gpt-5", "gpt-6"]),
    thoughts: Thoughts::None,
    takes_back: Some(&["refusal", "annotations", "audio", "function_call"]),
};

impl Quirks {
    /// Whose signatures a model takes back: OpenRouter passes on those of the provider that it names the model after.
    pub(super) fn signer(self, model: &str) -> Option<Signer> {
        let is_anthropics = self.thoughts == Thoughts::Details && model.starts_with("anthropic/");
        is_anthropics.then_some(Signer::Anthropic)
    }

    pub(super) fn of(provider: ProviderType) -> Self {
        match provider {
            // Models have whatever names their deployments have (Azure OpenAI, v1 API); a parameter that a model does
            // not know is refused, so it is only sent where the name says that it is known.
            ProviderType::AzureOpenAi => OPENAI,
            // DeepSeek API, Create chat completion: roles are system, user, assistant and tool; no seed, no user; 16
            // stop sequences; `response_format` is text or json_object.
            ProviderType::DeepSeek => Self {
                max_completion_tokens: false,
                developer: false,
                files: false,
                schema: false,
                seed: None,
                user: false,
                stops: 16,
                call_ids: IdRule::Any,
                thinking: Thinking::Switch,
                thoughts: Thoughts::OfCalls,
                takes_back: Some(&["reasoning_content"]),
                ..OPENAI
            },
            // Mistral API reference, Chat completion: a field the reference does not have is refused with 422, and
            // `stream_options`, `max_completion_tokens`, `seed` and `user` are such; usage comes with the last chunk of
            // every stream. What an id must be is said where another is refused ("must be a-z, A-Z, 0-9, with a length of
            // 9", code 3280).
            ProviderType::Mistral => Self {
                stream_options: false,
                max_completion_tokens: false,
                developer: false,
                files: false,
                seed: Some("random_seed"),
                user: false,
                stops: usize::MAX,
                call_ids: IdRule::Alphanumeric(9),
                thinking: Thinking::None,
                takes_back: Some(&[]),
                ..OPENAI
            },
            // Groq API reference, Create chat completion: no files; efforts for the models of OpenAI's that it serves;
            // thoughts by the name of `reasoning` alone, and any other member of a message is refused.
            ProviderType::Groq => Self {
                files: false,
                call_ids: IdRule::Any,
                thinking: Thinking::EffortOf(&["openai/gpt-oss"]),
                takes_back: Some(&["reasoning", "function_call"]),
                ..OPENAI
            },
            // xAI API reference, Chat completions, and its guide, Reasoning, now and when it had the older model: the other
            // models think as they will and refuse to be told.
            ProviderType::XAi => Self {
                files: false,
                call_ids: IdRule::Any,
                thinking: Thinking::EffortOf(&["grok-3-mini", "grok-4.3"]),
                takes_back: Some(&["reasoning_content", "refusal"]),
                ..OPENAI
            },
            // OpenRouter API reference, Parameters (`top_k`, `stop` of any number) and Prompt caching
            // (`cache_control`).
            ProviderType::OpenRouter => Self {
                cache_marks: true,
                top_k: true,
                stops: usize::MAX,
                call_ids: IdRule::Any,
                thinking: Thinking::Object,
                thoughts: Thoughts::Details,
                takes_back: Some(&[
                    "reasoning_content",
                    "reasoning_details",
                    "reasoning",
                    "refusal",
                    "annotations",
                    "audio",
                    "function_call",
                ]),
                ..OPENAI
            },
            // Whatever it is, it may know more than OpenAI does.
            ProviderType::CustomOpenAi => Self {
                top_k: true,
                stops: usize::MAX,
                call_ids: IdRule::Any,
                thinking: Thinking::Effort,
                takes_back: None,
                ..OPENAI
            },
            ProviderType::OpenAi
            | ProviderType::Anthropic
            | ProviderType::Gemini
            | ProviderType::Ollama
            | ProviderType::CohereRerank
            | ProviderType::VoyageRerank => OPENAI,
        }
    }
}

/// The word of the API.
pub(super) fn word(effort: Effort) -> &'static str {
    match effort {
        Effort::None => "none",
        Effort::Minimal => "minimal",
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
        Effort::Highest => "xhigh",
    }
}

/// The effort that a budget of tokens comes near to. No reference says what an effort is in tokens; the bounds are
/// ours, between the budgets that Gemini's own OpenAI-compatible API gives to efforts (1,024, 8,192 and 24,576: Gemini
/// API, OpenAI compatibility, Thinking).
pub(super) fn effort_of_budget(budget: u64) -> Effort {
    match budget {
        0 => Effort::None,
        1..4096 => Effort::Low,
        4096..16_384 => Effort::Medium,
        _ => Effort::High,
    }
}
