//! A cap as it is set, what a call takes of it, and how many calls it admits.

use testkit::{Cap, Meter, Tier};

use super::caller::Denial;

/// A cap in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) tier: Tier,
    pub(super) cap: Cap,
    pub(super) value: i64,
    /// What every call holds of it.
    pub(super) each: i64,
    /// The most that a call can be charged of it.
    pub(super) most: i64,
    /// What was taken when it was set.
    pub(super) at_first: Meter,
}

impl Bound {
    /// What is left.
    pub(super) fn room(&self, meter: Meter) -> i64 {
        self.value - meter.used - meter.held
    }

    /// How many calls are admitted for certain before one is denied.
    pub(super) fn certain(&self) -> i64 {
        let beyond_one = self.room(self.at_first) - self.each;
        if beyond_one < 0 { 0 } else { beyond_one / self.most + 1 }
    }

    /// How many are admitted if none is settled meanwhile.
    pub(super) fn at_once(&self) -> i64 {
        self.room(self.at_first).max(0) / self.each
    }

    pub(super) fn code(&self) -> &'static str {
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

    /// Whether this denial is one of this cap, and rightly so: with what it says is taken there is no room for a call.
    pub(super) fn justifies(&self, denial: &Denial) -> bool {
        denial.code == self.code()
            && denial.scope == self.tier.as_str()
            && denial.cap == self.value
            && denial.used >= 0
            && denial.held >= 0
            && denial.used + denial.held + self.each > self.value
    }
}
