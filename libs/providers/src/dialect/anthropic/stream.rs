//! A stream of the same dialect on its way through.

use std::collections::BTreeSet;

use bytes::BytesMut;

use super::error::failure;
use super::writer::{ended, event, own_event};
use crate::dialect::openai::{SpliceRules, splice_model};
use crate::hub::Told;
use crate::json::{Members, Splices};
use crate::tap::{Member, Passing};
use crate::usage::Usage;

/// Passes a provider's stream of a message on.
#[derive(Debug, Default)]
pub(crate) struct PassingMessage {
    /// The blocks that have begun and not ended.
    open: BTreeSet<u64>,
}

impl Passing for PassingMessage {
    fn pass(&mut self, kind: &str, text: &str, data: &Members<'_>, rules: &SpliceRules) -> Splices {
        let mut splices = Splices::default();
        match (kind, data.present("index").and_then(|value| value.get().parse().ok())) {
            ("content_block_start", Some(index)) => {
                self.open.insert(index);
            }
            ("content_block_stop", Some(index)) => {
                self.open.remove(&index);
            }
            ("message_start", _) => {
                if let Some(message) = data.present("message").and_then(|value| Members::parse(value.get()).ok()) {
                    splice_model(&mut splices, text, &message, &rules.public_model);
                }
            }
            _ => {}
        }
        splices
    }

    fn tell(&self, (name, value): Member<'_>, out: &mut BytesMut) {
        own_event(name, value, out);
    }

    fn end_at_bound(&mut self, usage: Usage, member: Option<Member<'_>>, _: &SpliceRules, out: &mut BytesMut) {
        for index in std::mem::take(&mut self.open) {
            event("content_block_stop", &format!(",\"index\":{index}"), out);
        }
        ended("max_tokens", None, Some(usage), member, out);
    }

    fn fail(&mut self, told: &Told<'_>, _: &SpliceRules, out: &mut BytesMut) {
        out.extend_from_slice(&failure(told));
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
