//! What the providers that speak this API do each in their own way, by their published references.

use domain::ProviderType;
use serde_json::Value;

use crate::hub::{Effort, IdRule, Signer};

/// How a provider takes what it is asked for how much the model is to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// `reasoning_effort`, for models that know one.
    Effort,
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
    /// Whether `strict` is known for any schema, and not only for those that leave nothing open.
    pub(super) open_schemas: bool,
    /// Whether the answer can be held to a schema, and not to JSON alone.
    pub(super) schema: bool,
    /// Whether `top_k` is known.
    pub(super) top_k: bool,
    /// Whether a member that the reference does not have is refused, and not passed over.
    pub(super) refuses_unknown: bool,
    /// The name of `seed`.
    pub(super) seed: Option<&'static str>,
    /// The most letters of `user`; `None` where it is not known.
    pub(super) user: Option<usize>,
    /// Whether the model has to speak between the result of a tool and what the user says.
    pub(super) speaks_after_results: bool,
    /// Whether a last message of the model's is only gone on with where it is marked, and then said again.
    pub(super) marks_prefix: bool,
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
    open_schemas: false,
    schema: true,
    top_k: false,
    refuses_unknown: false,
    seed: Some("seed"),
    // The bound is that of `safety_identifier`, which takes its place (API reference, Create chat completion).
    user: Some(64),
    speaks_after_results: false,
    marks_prefix: false,
    stops: 4,
    // Not in its reference; its refusal of a longer one names the number ("maximum length 40").
    call_ids: IdRule::AtMost(40),
    thinking: Thinking::Effort,
    thoughts: Thoughts::None,
    takes_back: Some(&["refusal", "annotations", "audio", "function_call"]),
};

impl Quirks {
    /// Whose signatures a model takes back: OpenRouter passes on those of the provider that it names the model after.
    pub(super) fn signer(self, model: &str) -> Option<Signer> {
        let is_anthropics = self.thoughts == Thoughts::Details && model.starts_with("anthropic/");
        is_anthropics.then_some(Signer::Anthropic)
    }

    /// A detail of what a model thought as OpenRouter told it, where it is of use to the model: of the formats that are
    /// named after a provider (OpenRouter, Reasoning tokens, `format`) its own.
    pub(super) fn detail(self, model: &str, data: &str) -> Option<Value> {
        let detail = Signer::OpenRouter.own(data).filter(|_| self.thoughts == Thoughts::Details)?;
        let detail: Value = serde_json::from_str(detail).ok()?;
        let format = detail.get("format").and_then(Value::as_str).unwrap_or_default();
        let vendors =
            [("google-gemini", "google/"), ("openai-", "openai/"), ("azure-openai-", "openai/"), ("xai-", "x-ai/")];
        let vendor = vendors.iter().find(|(beginning, _)| format.starts_with(beginning));
        vendor.is_none_or(|(_, vendor)| model.starts_with(vendor)).then_some(detail)
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
                user: None,
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
                refuses_unknown: true,
                seed: Some("random_seed"),
                user: None,
                // Its refusal says so ("Unexpected role 'user' after role 'tool'", code 3230: charmbracelet/crush#279).
                speaks_after_results: true,
                // Mistral API, Prefix.
                marks_prefix: true,
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
                takes_back: Some(&["reasoning", "function_call"]),
                ..OPENAI
            },
            // xAI API reference, Chat completions, and its guide, Reasoning, now and when it had the older model: the other
            // models think as they will and refuse to be told.
            ProviderType::XAi => Self {
                files: false,
                call_ids: IdRule::Any,
                takes_back: Some(&["reasoning_content", "refusal"]),
                ..OPENAI
            },
            // OpenRouter API reference, Parameters (`top_k`, `stop` of any number) and Prompt caching
            // (`cache_control`).
            ProviderType::OpenRouter => Self {
                // Where a longer one is refused.
                user: Some(128),
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
                open_schemas: true,
                user: Some(usize::MAX),
                top_k: true,
                stops: usize::MAX,
                call_ids: IdRule::Any,
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
