//! Chunks of our own in a provider's stream.

use crate::json::literal;

/// What all chunks of an answer have in common.
pub(super) struct Head<'a> {
    id: &'a str,
    created_s: i64,
    model: &'a str,
    /// Whether the answer is of the API from before chats.
    is_bare: bool,
}

impl<'a> Head<'a> {
    /// `id` and `created_s` as the provider gave them, if it did.
    pub(super) fn new(id: Option<&'a str>, created_s: Option<i64>, model: &'a str) -> Self {
        Self { id: id.unwrap_or_default(), created_s: created_s.unwrap_or(0), model, is_bare: false }
    }

    /// The same where the answer may be of the API from before chats.
    pub(super) fn bare(self, is_bare: bool) -> Self {
        Self { is_bare, ..self }
    }

    /// Brings the next piece of a choice, or the reason of its end. `delta` must be JSON; `usage` as for [`Head::ended`].
    pub(super) fn delta(&self, delta: &str, reason: Option<&str>, usage: bool) -> Vec<u8> {
        let usage = if usage { ",\"usage\":null" } else { "" };
        let reason = reason.map_or_else(|| "null".to_owned(), literal);
        let choice = format!("{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason}}}");
        self.event(&choice, usage)
    }

    /// Ends a choice for its length. `usage` says whether the chunk has that member, as all have where the client asked
    /// for usage.
    pub(super) fn ended(&self, index: u64, usage: bool) -> Vec<u8> {
        let usage = if usage { ",\"usage\":null" } else { "" };
        let nothing = if self.is_bare { "\"text\":\"\"" } else { "\"delta\":{}" };
        let choice = format!("{{\"index\":{index},{nothing},\"logprobs\":null,\"finish_reason\":\"length\"}}");
        self.event(&choice, usage)
    }

    /// Tells what was used, as the provider told it. `usage` must be JSON.
    pub(super) fn reported(&self, usage: &str) -> Vec<u8> {
        self.event("", &format!(",\"usage\":{usage}"))
    }

    /// Tells what was used.
    pub(super) fn usage(&self, prompt: u64, completion: u64) -> Vec<u8> {
        let total = prompt.saturating_add(completion);
        let usage = format!(
            ",\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{total}}}"
        );
        self.event("", &usage)
    }

    /// Carries a member of ours and no choice. `value` must be JSON.
    pub(super) fn member(&self, name: &str, value: &str) -> Vec<u8> {
        self.event("", &format!(",{}:{value}", literal(name)))
    }

    fn event(&self, choices: &str, more: &str) -> Vec<u8> {
        let (id, model) = (literal(self.id), literal(self.model));
        let created = self.created_s;
        let object = if self.is_bare { "text_completion" } else { "chat.completion.chunk" };
        format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
             \"choices\":[{choices}]{more}}}\n\n"
        )
        .into_bytes()
    }
}
