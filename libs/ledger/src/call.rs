//! One admitted call, from its admission to its settlement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use domain::{NanoUsd, PriceSnapshot, RequestId};
use store::ledger::{Denial, Entry, Headroom, OpenCallRow, Settlement};
use tokio::sync::watch;

use crate::charge::{Usage, charge};
use crate::place::Place;
use crate::prices::PriceSource;

/// How a call ended, as far as the charge depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The answer is complete.
    Complete,
    /// The client left.
    ClientGone,
    /// We or the provider failed before the first byte of an answer.
    Fault,
    /// The provider refused the request (its 4xx, except 401, 403, 408 and 429, which are faults).
    Rejected,
    /// The answer broke off after its first byte, or is of no use although the provider bills it.
    Cut,
}

/// What became of an admission that was not waited for.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Pending,
    /// The row as it is held.
    Admitted(OpenCallRow),
    Overruled(Overruling),
}

/// Why a call that was begun without waiting may not run after all: its key or its caps have changed in between.
#[derive(Clone, Debug)]
pub enum Overruling {
    /// A cap has no room.
    Denied(Denial),
    /// The key or project may not call at all; the code says why.
    Refused(String),
}

/// With room left for fewer calls like it, what a call gives back is wanted at once.
const ROOM_FOR: i64 = 32;

/// A settlement on its way to the writer, and what it has to wait for.
pub(crate) struct Handed {
    pub(crate) settlement: Settlement,
    pub(crate) verdict: Option<watch::Receiver<Verdict>>,
    /// Whether others may be waiting for the room it gives back, wherever they are.
    pub(crate) is_wanted: bool,
}

/// A call that holds part of a budget.
///
/// Its figures are kept up to date while it runs, so that dropping it at any moment settles it correctly: as left by the
/// client (status 499) unless it was finished, or as a fault of ours (500) where a panic drops it.
pub struct OpenCall {
    place: Option<Place>,
    row: OpenCallRow,
    verdict: Option<watch::Receiver<Verdict>>,
    counted_prompt: i64,
    headroom: Headroom,
    accepted: Instant,
    sent: bool,
    /// Whether what was sent may stand in the provider's bill, as far as nothing is reported.
    is_owed: Arc<AtomicBool>,
    delivered: i64,
    usage: Option<Usage>,
    usage_in_part: bool,
    /// None where the model has no price.
    prices: Option<PriceSnapshot>,
    fee: NanoUsd,
    side_tokens: i64,
    side_cost: NanoUsd,
    side_estimated: bool,
    entry: Entry,
}

impl OpenCall {
    pub(crate) fn new(
        place: Place,
        row: OpenCallRow,
        headroom: Headroom,
        verdict: Option<watch::Receiver<Verdict>>,
    ) -> Self {
        Self {
            place: Some(place),
            counted_prompt: row.ask.prompt_tokens,
            row,
            verdict,
            headroom,
            accepted: Instant::now(),
            sent: false,
            is_owed: Arc::default(),
            delivered: 0,
            usage: None,
            usage_in_part: false,
            prices: None,
            fee: NanoUsd::ZERO,
            side_tokens: 0,
            side_cost: NanoUsd::ZERO,
            side_estimated: false,
            entry: Entry { status: 499, ..Entry::default() },
        }
    }

    /// The call.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.row.ask.request
    }

    /// The output bound that is held.
    #[must_use]
    pub fn output_tokens(&self) -> i64 {
        self.row.output_tokens
    }

    /// What the caps have left after this hold.
    #[must_use]
    pub fn headroom(&self) -> &Headroom {
        &self.headroom
    }

    /// Waits until it turns out that the call may not run after all. A call whose admission was waited for never is
    /// overruled, and one that was admitted in the meantime is not any more.
    pub async fn overruled(&mut self) -> Overruling {
        if let Some(verdict) = &mut self.verdict {
            let decided = verdict.wait_for(|verdict| !matches!(verdict, Verdict::Pending)).await;
            if let Ok(verdict) = decided
                && let Verdict::Overruled(overruling) = &*verdict
            {
                return overruling.clone();
            }
        }
        std::future::pending().await
    }

    /// Whether the request was sent upstream, and the provider may bill it.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.sent && self.is_owed.load(Ordering::Relaxed)
    }

    /// The rest of the log row.
    pub fn entry_mut(&mut self) -> &mut Entry {
        &mut self.entry
    }

    /// Counts latency from an earlier moment than the admission.
    pub fn accepted_at(&mut self, accepted: Instant) {
        self.accepted = accepted;
    }

    /// Says which model is asked, and at which price.
    pub fn priced(&mut self, prices: PriceSnapshot, source: PriceSource) {
        self.prices = Some(prices).filter(|_| source != PriceSource::None);
        self.entry.cost_source = Some(source.as_str().to_owned());
    }

    /// Replaces the counted prompt, once the prompt is assembled.
    pub fn counted_prompt(&mut self, tokens: i64) {
        self.counted_prompt = tokens;
    }

    /// The counted prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> i64 {
        self.counted_prompt
    }

    /// The request goes upstream now: from here on a client that leaves pays the prompt. Whoever tries it more than once
    /// can say with what this returns that nobody bills it at the moment: each try has failed at no cost, and the next one
    /// has not begun. A client that leaves then pays nothing, and the request is given back.
    pub fn sent(&mut self) -> Arc<AtomicBool> {
        self.sent = true;
        self.is_owed.store(true, Ordering::Relaxed);
        self.entry.attempts += 1;
        Arc::clone(&self.is_owed)
    }

    /// The first byte of the answer is on its way to the client.
    pub fn first_byte(&mut self) {
        if self.entry.first_byte_ms.is_none() {
            self.entry.first_byte_ms = Some(elapsed_ms(self.accepted));
        }
    }

    /// Output tokens delivered so far, by our own count.
    pub fn delivered(&mut self, tokens: i64) {
        self.delivered = tokens;
    }

    /// The provider reported usage; a later report replaces an earlier one.
    pub fn usage(&mut self, usage: Usage) {
        self.usage_in_part = false;
        let usage = usage.sanitised();
        self.usage = Some(usage);
        self.entry.prompt_tokens = Some(usage.prompt);
        self.entry.completion_tokens = Some(usage.completion);
        self.entry.cached_tokens = Some(usage.cached);
        self.entry.cache_write_tokens = Some(usage.cache_write);
        self.entry.reasoning_tokens = Some(usage.reasoning);
        self.entry.reported_cost = usage.cost;
    }

    /// The provider reported a part of the usage, and the rest was counted: the charge is an estimate then.
    pub fn usage_in_part(&mut self, usage: Usage) {
        self.usage(usage);
        self.usage_in_part = true;
    }

    /// Says what the call costs beside its tokens, where a provider bills calls; a later figure replaces an earlier one. It
    /// is charged whenever tokens are, were there any.
    pub fn fee(&mut self, fee: NanoUsd) {
        self.fee = fee;
    }

    /// Adds what was paid besides the model that answers: the query's embedding, reranking. It is charged however the
    /// call ends, and makes the whole charge an estimate if it is one.
    pub fn add_side_charge(&mut self, tokens: i64, cost: NanoUsd, estimated: bool) {
        self.side_tokens = self.side_tokens.saturating_add(tokens.max(0));
        self.side_cost = self.side_cost + cost;
        self.side_estimated |= estimated;
    }

    /// Ends the call: `status` is the HTTP status the client got.
    pub fn finish(mut self, ending: Ending, status: u16, error_code: Option<&str>) {
        self.entry.status = i32::from(status);
        self.entry.error_code = error_code.map(str::to_owned);
        self.settle(ending);
    }

    fn settle(&mut self, ending: Ending) {
        let Some(place) = self.place.take() else { return };
        // Who leaves between two tries leaves after a fault of the provider's.
        let has_failed = ending == Ending::ClientGone && self.sent && !self.is_owed();
        let ending = if has_failed { Ending::Fault } else { ending };
        let charge = charge(ending, self.sent, self.counted_prompt, self.delivered, self.usage, self.prices.as_ref());
        let fee = if charge.free { NanoUsd::ZERO } else { self.fee };
        let mut entry = std::mem::take(&mut self.entry);
        if self.prices.is_none() && entry.reported_cost.is_some() {
            entry.cost_source = Some(PriceSource::Reported.as_str().to_owned());
        }
        entry.estimated = charge.estimated || self.usage_in_part || self.side_estimated;
        entry.latency_ms = elapsed_ms(self.accepted);
        let settlement = Settlement {
            // Work of our own holds no request, so it cannot use one.
            counts: charge.counts && self.row.ask.key.is_some(),
            tokens: charge.tokens.saturating_add(self.side_tokens),
            cost: charge.cost + fee + self.side_cost,
            call: self.row.clone(),
            entry,
        };
        let is_wanted = self.headroom.holds_fewer_than(ROOM_FOR, &self.row);
        place.hand_in(Handed { settlement, verdict: self.verdict.take(), is_wanted });
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.settle(Ending::ClientGone);
            return;
        }
        // A fault of ours, which its client is told unless the answer has begun.
        self.entry.status = 500;
        self.entry.error_code = Some("internal_error".to_owned());
        let has_begun = self.delivered > 0 || self.entry.first_byte_ms.is_some();
        self.settle(if has_begun { Ending::Cut } else { Ending::Fault });
    }
}

fn elapsed_ms(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
}
