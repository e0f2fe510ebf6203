//! What an answer comes to: its usage, its end, and the text that went to the client.

use super::event::{Event, Finish};
use super::whole::{Part, Whole};
use crate::dialect::openai::{Delivered, Meter, OutputBound, StreamOutcome, TextPart, prefix};
use crate::usage::Usage;

/// Keeps account of the events of one answer.
#[derive(Debug)]
pub(crate) struct Tally {
    meter: Option<Meter>,
    delivered: Delivered,
    usage: Option<Usage>,
    has_doubts: bool,
    finish: Option<Finish>,
    id: Option<String>,
    model: Option<String>,
}

impl Tally {
    pub(crate) fn new(bound: Option<OutputBound>) -> Self {
        Self {
            meter: bound.map(Meter::new),
            delivered: Delivered::default(),
            usage: None,
            has_doubts: false,
            finish: None,
            id: None,
            model: None,
        }
    }

    /// Takes an event, unless the output would pass its bound with it: then all stays as it was.
    pub(crate) fn take(&mut self, event: &Event<'_>) -> bool {
        let (part, text) = match event {
            Event::Start { id, model } => {
                self.id = id.as_deref().map(str::to_owned);
                self.model = model.as_deref().map(str::to_owned);
                return true;
            }
            Event::Usage(usage) => {
                // Once for an answer: some servers report again and again.
                if !usage.is_possible() && !std::mem::replace(&mut self.has_doubts, true) {
                    usage.warn_of_doubt();
                }
                self.usage = Some(*usage).filter(Usage::is_possible);
                return true;
            }
            Event::Finish(finish) => {
                self.finish = Some(finish.clone());
                return true;
            }
            // Not of the model's making.
            Event::ReasoningSignature(_) | Event::NextThought | Event::RedactedReasoning(_) => return true,
            Event::Reasoning(text) => (TextPart::Reasoning, text),
            Event::Text(text) => (TextPart::Content, text),
            Event::Refusal(text) => (TextPart::Refusal, text),
            Event::ToolCall { index, name, .. } => (TextPart::ToolName(*index), name),
            Event::Arguments { index, json } => (TextPart::ToolArguments(*index), json),
        };
        if self.meter.as_mut().is_some_and(|meter| !meter.take_texts([(0, part, text.as_ref())])) {
            return false;
        }
        self.delivered.add(text);
        true
    }

    /// The tokens of what was delivered, where they are counted.
    pub(crate) fn counted(&self) -> Option<u64> {
        self.meter.as_ref().map(Meter::tokens)
    }

    /// What an answer used that is ended at its bound, since nobody else says so: what the provider has reported, `so_far`
    /// or for good, and our own counts for the rest. None where nothing is bounded.
    pub(crate) fn usage_at_bound(&self, so_far: Option<Usage>) -> Option<Usage> {
        let meter = self.meter.as_ref()?;
        let whole = |tokens| i64::try_from(tokens).unwrap_or(i64::MAX);
        let (prompt, completion) = (whole(meter.bound().prompt_tokens), whole(meter.tokens()));
        let counted = Usage { prompt_tokens: prompt, completion_tokens: completion, ..Usage::default() };
        Some(self.usage.or(so_far).map_or(counted, |usage| usage.filled(prompt, completion)))
    }

    pub(crate) fn outcome(&self, complete: bool) -> StreamOutcome {
        StreamOutcome {
            usage: self.usage,
            finish_reasons: self.finish.iter().map(|finish| finish.as_openai().to_owned()).collect(),
            delivered: self.delivered.clone(),
            counted_output: self.counted(),
            complete,
            upstream_model: self.model.clone(),
            answer_id: self.id.clone(),
            created_s: None,
        }
    }
}

impl Whole {
    /// Ends the answer where its output comes to the bound. Returns the tokens that are left of it.
    pub(crate) fn bound(&mut self, bound: &OutputBound) -> u64 {
        let mut meter = Meter::new(*bound);
        let mut kept = Vec::with_capacity(self.parts.len());
        for (index, mut part) in (0_u64..).zip(std::mem::take(&mut self.parts)) {
            let (kind, text) = match &mut part {
                Part::RedactedReasoning(_) => {
                    kept.push(part);
                    continue;
                }
                Part::Reasoning { text, .. } => (TextPart::Reasoning, text),
                Part::Text(text) => (TextPart::Content, text),
                Part::Refusal(text) => (TextPart::Refusal, text),
                Part::ToolCall { name, arguments, .. } => {
                    if !meter.take_texts([(index, TextPart::ToolName(index), name.as_str())]) {
                        self.finish = Some(Finish::Length);
                        break;
                    }
                    (TextPart::ToolArguments(index), arguments)
                }
            };
            let left = bound.tokens.saturating_sub(meter.tokens());
            let fits = prefix(text, bound.family, left).len();
            let is_cut = fits < text.len();
            text.truncate(fits);
            meter.take_texts([(index, kind, text.as_str())]);
            kept.push(part);
            if is_cut {
                self.finish = Some(Finish::Length);
                break;
            }
        }
        self.parts = kept;
        meter.tokens()
    }

    /// The text of the answer, for an estimate of its tokens.
    pub(crate) fn delivered(&self) -> Delivered {
        let mut delivered = Delivered::default();
        for part in &self.parts {
            match part {
                Part::RedactedReasoning(_) => {}
                Part::Reasoning { text, .. } | Part::Text(text) | Part::Refusal(text) => delivered.add(text),
                Part::ToolCall { name, arguments, .. } => {
                    delivered.add(name);
                    delivered.add(arguments);
                }
            }
        }
        delivered
    }
}

#[cfg(test)]
mod tests {
    use tokens::{Family, count};

    use super::*;

    fn bound(tokens: u64) -> OutputBound {
        OutputBound { field: "max_tokens", tokens, family: Family::Estimated, prompt_tokens: 0 }
    }

    #[test]
    fn what_would_pass_the_bound_is_not_taken() {
        let text = "one two three";
        let fits = count(Family::Estimated, text) as u64;
        let mut tally = Tally::new(Some(bound(fits)));
        assert!(tally.take(&Event::Text(text.into())));
        assert!(!tally.take(&Event::Reasoning("and many more words".into())));
        assert!(tally.take(&Event::Usage(Usage::default())));
        let outcome = tally.outcome(true);
        assert_eq!((outcome.delivered.text(), outcome.counted_output), (text, Some(fits)));
    }

    #[test]
    fn usage_that_cannot_be_is_none() {
        let mut tally = Tally::new(None);
        let mut told = |completion_tokens| {
            tally.take(&Event::Usage(Usage { completion_tokens, ..Usage::default() }));
            tally.outcome(true).usage.map(|usage| usage.completion_tokens)
        };
        assert_eq!((told(5), told(1_000_000_000_000_000), told(7)), (Some(5), None, Some(7)));
    }

    #[test]
    fn a_whole_answer_is_cut_to_its_bound() {
        let call = Event::ToolCall { index: 0, id: "a".into(), name: "look".into(), signature: None };
        let arguments = Event::Arguments { index: 0, json: "{\"words\":\"many and many more\"}".into() };
        let whole = || {
            Whole::of([
                Event::Text("five words of plain text".into()),
                call.clone(),
                arguments.clone(),
                Event::Finish(Finish::ToolCalls),
            ])
        };
        let mut all = whole();
        let tokens = all.bound(&bound(1000));
        assert_eq!(all, whole());
        for allowed in 0..tokens {
            let mut cut = whole();
            assert!(cut.bound(&bound(allowed)) <= allowed);
            assert_eq!(cut.finish, Some(Finish::Length));
            assert!(whole().delivered().text().starts_with(cut.delivered().text()));
        }
    }
}
