//! A cap as it is set, what a call takes of it, and whether a denial was right.

use testkit::{Cap, Meter, Tier, TierId, WatchedCall};

use super::caller::Denial;
use super::cast::Who;

/// What a call holds or is charged, as one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) tokens: i64,
    /// Nano-USD.
    pub(super) cost: i64,
}

/// A cap in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) who: Who,
    pub(super) tier: TierId,
    pub(super) cap: Cap,
    pub(super) value: i64,
    /// What was taken when it was set.
    pub(super) at_first: Meter,
}

/// What this much takes of a cap.
pub(super) fn share(cap: Cap, amount: Amount) -> i64 {
    match cap {
        Cap::RequestsPerMinute | Cap::ConcurrentRequests => 1,
        Cap::TokensPerMinute | Cap::TokensPerDay | Cap::TokensPerMonth => amount.tokens,
        Cap::CostPerDay | Cap::CostPerMonth => amount.cost,
    }
}

impl Bound {
    /// Whether there is room for this much beside what is taken.
    pub(super) fn has_room(&self, meter: Meter, amount: Amount) -> bool {
        meter.used + meter.held + share(self.cap, amount) <= self.value
    }

    /// Whether there must have been room for this much at any time, whatever of these calls was under way or over then:
    /// none of them ever took more than the larger one of its hold and its charge.
    pub(super) fn had_room(&self, amount: Amount, admitted: &[WatchedCall]) -> bool {
        let most = |call: &WatchedCall| {
            let charged = call
                .row
                .as_ref()
                .map_or(0, |row| share(self.cap, Amount { tokens: row.charged_tokens, cost: row.charged_cost }));
            held(self.cap, call).max(charged)
        };
        self.is_within(amount, admitted, most)
    }

    /// Whether there is room for this much beside the holds of all these calls.
    pub(super) fn has_room_beside(&self, amount: Amount, admitted: &[WatchedCall]) -> bool {
        self.is_within(amount, admitted, |call| held(self.cap, call))
    }

    fn is_within(&self, amount: Amount, admitted: &[WatchedCall], of: impl Fn(&WatchedCall) -> i64) -> bool {
        let taken: i64 = admitted.iter().filter(|call| self.counts(call)).map(of).sum();
        let meter = Meter { used: self.at_first.used + taken, ..self.at_first };
        self.has_room(meter, amount)
    }

    fn counts(&self, call: &WatchedCall) -> bool {
        match self.tier {
            (Tier::Project, id) => call.project.0 == id,
            (Tier::Key, id) => call.key.is_some_and(|key| key.0 == id),
        }
    }

    fn code(&self) -> &'static str {
        match self.cap {
            Cap::RequestsPerMinute => "rate_limit_rpm",
            Cap::TokensPerMinute => "rate_limit_tpm",
            Cap::TokensPerDay => "budget_daily",
            Cap::TokensPerMonth => "budget_monthly",
            Cap::CostPerDay => "cost_daily",
            Cap::CostPerMonth => "cost_monthly",
            Cap::ConcurrentRequests => "concurrency_limit",
        }
    }

    /// Whether this denial is one of this cap, and rightly so: with what it says is taken there is no room for the call.
    pub(super) fn justifies(&self, denial: &Denial, amount: Amount) -> bool {
        denial.code == self.code()
            && denial.scope == self.tier.0.as_str()
            && denial.cap == self.value
            && denial.used >= 0
            && denial.held >= 0
            && denial.used + denial.held + share(self.cap, amount) > self.value
    }
}

fn held(cap: Cap, call: &WatchedCall) -> i64 {
    share(cap, Amount { tokens: call.held_tokens, cost: call.held_cost })
}
