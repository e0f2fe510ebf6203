//! A stream of the same dialect on its way through.

use std::sync::Arc;

use bytes::BytesMut;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answer::splice_response;
use super::echo::Echo;
use super::error::{failure, told_error};
use super::event::{event, own_event, told};
use super::kept::Kept;
use crate::dialect::openai::SpliceRules;
use crate::hub::Told;
use crate::json::{Members, Splices};
use crate::tap::{Member, Passing};
use crate::usage::Usage;

/// Passes a provider's stream of a response on.
#[derive(Debug)]
pub(crate) struct PassingResponse {
    echo: Arc<Echo>,
    /// The number of the event that comes next.
    number: u64,
    /// The answer as the provider's first event had it.
    response: Option<Box<RawValue>>,
    /// Only where the answer may be ended here.
    kept: Option<Kept>,
}

impl PassingResponse {
    pub(crate) fn new(rules: &SpliceRules) -> Self {
        Self {
            echo: rules.echo.clone().unwrap_or_default(),
            number: 0,
            response: None,
            kept: rules.bound.map(|_| Kept::default()),
        }
    }

    /// Tells an end of our own: the provider's answer as it began, with what has become of it since.
    fn last<const N: usize>(
        &mut self,
        status: &str,
        members: [(&str, Value); N],
        public_model: &str,
        out: &mut BytesMut,
    ) {
        let begun = self.response.as_ref().and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let mut response = begun.filter(Value::is_object).unwrap_or_else(|| json!({ "object": "response" }));
        if let Some(response) = response.as_object_mut() {
            response.insert("model".to_owned(), public_model.into());
            let instructions = serde_json::from_str(&self.echo.instructions).unwrap_or_default();
            response.insert("instructions".to_owned(), instructions);
            response.insert("status".to_owned(), status.into());
            let output = self.kept.as_ref().map_or_else(|| json!([]), Kept::output);
            response.insert("output".to_owned(), output);
            response.extend(members.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        event(&format!("response.{status}"), self.number, &format!(",\"response\":{response}"), out);
        self.number += 1;
    }
}

impl Passing for PassingResponse {
    fn pass(&mut self, kind: &str, text: &str, data: &Members<'_>, rules: &SpliceRules) -> Splices {
        let number = data.present("sequence_number").and_then(|value| value.get().parse::<u64>().ok());
        self.number = number.unwrap_or(self.number).saturating_add(1);
        if let Some(kept) = &mut self.kept {
            kept.take(kind, &serde_json::from_str(text).unwrap_or_default(), text.len());
        }
        let mut splices = Splices::default();
        if let Some(raw) = data.present("response")
            && let Ok(response) = Members::parse(raw.get())
        {
            splice_response(&mut splices, text, &response, &rules.public_model, &self.echo);
            self.response.get_or_insert_with(|| raw.to_owned());
        }
        splices
    }

    fn kept(&self) -> usize {
        let begun = self.response.as_ref().map_or(0, |response| response.get().len());
        begun + self.kept.as_ref().map_or(0, Kept::bytes)
    }

    fn tell(&self, (name, value): Member<'_>, out: &mut BytesMut) {
        own_event(name, value, out);
    }

    fn end_at_bound(&mut self, usage: Usage, member: Option<Member<'_>>, rules: &SpliceRules, out: &mut BytesMut) {
        if let Some(kept) = &mut self.kept {
            kept.close(&mut self.number, out);
        }
        if let Some(member) = member {
            self.tell(member, out);
        }
        let details = json!({ "reason": "max_output_tokens" });
        let members = [("incomplete_details", details), ("usage", told(usage))];
        self.last("incomplete", members, &rules.public_model, out);
    }

    fn fail(&mut self, told: &Told<'_>, rules: &SpliceRules, out: &mut BytesMut) {
        if self.response.is_none() {
            out.extend_from_slice(&failure(told));
            return;
        }
        let error = serde_json::from_str(&told_error(told)).unwrap_or_default();
        self.last("failed", [("error", error)], &rules.public_model, out);
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
