//! What a call is charged, given how it ended.

use domain::{NanoUsd, PriceSnapshot};

use crate::call::Ending;

/// More than any call can use: a larger report is a provider's fault and must not break the sums of a project.
const MOST_TOKENS: i64 = 1_000_000_000_000;
/// A million US dollars, for the same reason.
const MOST_COST: NanoUsd = NanoUsd(1_000_000_000_000_000);

/// Usage as a provider reports it. Figures below zero count as zero, and none counts above 10¹².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached and written ones included.
    pub prompt: i64,
    /// Completion tokens, reasoning included.
    pub completion: i64,
    /// Prompt tokens read from the provider's cache.
    pub cached: i64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write: i64,
    /// Completion tokens spent on reasoning.
    pub reasoning: i64,
    /// What the call has cost, where the provider tells.
    pub cost: Option<NanoUsd>,
}

impl Usage {
    /// The same with every figure within its bounds.
    #[must_use]
    pub fn sanitised(self) -> Self {
        let bounded = |figure: i64| figure.clamp(0, MOST_TOKENS);
        Self {
            prompt: bounded(self.prompt),
            completion: bounded(self.completion),
            cached: bounded(self.cached),
            cache_write: bounded(self.cache_write),
            reasoning: bounded(self.reasoning),
            cost: self.cost.map(|cost| cost.clamp(NanoUsd::ZERO, MOST_COST)),
        }
    }
}

/// What a call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Whether it counts as a request.
    pub counts: bool,
    /// Prompt and completion tokens.
    pub tokens: i64,
    /// What they cost.
    pub cost: NanoUsd,
    /// Whether this rests on an estimate of ours.
    pub estimated: bool,
    /// Whether the rules have it cost nothing, whatever it used.
    pub free: bool,
}

/// Applies the rules: reported usage is charged however the call ended; a fault of ours or the provider's before the
/// first byte is free and gives the request back; a refusal by the provider is free but counts; otherwise what was sent
/// and delivered is charged by our own count. Tokens cost what `prices` say, and without any what the provider says.
#[must_use]
pub fn charge(
    ending: Ending,
    sent: bool,
    counted_prompt: i64,
    delivered: i64,
    usage: Option<Usage>,
    prices: Option<&PriceSnapshot>,
) -> Charge {
    let cost = |prompt, cached, written, completion| {
        prices.map(|prices| prices.cost(prompt, cached, written, completion).min(MOST_COST))
    };
    if let Some(usage) = usage.map(Usage::sanitised) {
        return Charge {
            counts: true,
            tokens: usage.prompt.saturating_add(usage.completion),
            cost: cost(usage.prompt, usage.cached, usage.cache_write, usage.completion)
                .or(usage.cost)
                .unwrap_or_default(),
            estimated: false,
            free: false,
        };
    }
    let free = |counts| Charge { counts, tokens: 0, cost: NanoUsd::ZERO, estimated: false, free: true };
    match ending {
        Ending::Fault => free(false),
        Ending::Rejected => free(true),
        Ending::ClientGone if !sent => free(true),
        Ending::Complete | Ending::ClientGone | Ending::Cut => Charge {
            counts: true,
            tokens: counted_prompt.saturating_add(delivered),
            cost: cost(counted_prompt, 0, 0, delivered).unwrap_or_default(),
            estimated: true,
            free: false,
        },
    }
}

#[cfg(test)]
mod tests {
    use domain::Price;

    use super::*;

    fn prices() -> PriceSnapshot {
        PriceSnapshot { input: Price(1_000_000), output: Price(2_000_000), ..PriceSnapshot::default() }
    }

    fn of(ending: Ending, sent: bool, delivered: i64, usage: Option<Usage>) -> Charge {
        charge(ending, sent, 100, delivered, usage, Some(&prices()))
    }

    #[test]
    fn reported_usage_is_charged_however_the_call_ended() {
        let usage = Some(Usage { prompt: 7, completion: 3, ..Usage::default() });
        for ending in [Ending::Complete, Ending::ClientGone, Ending::Cut, Ending::Fault, Ending::Rejected] {
            let charge = of(ending, true, 50, usage);
            assert_eq!((charge.tokens, charge.cost, charge.estimated, charge.free), (10, NanoUsd(13), false, false));
        }
    }

    #[test]
    fn a_reported_cost_is_charged_where_there_is_no_price() {
        let usage = Some(Usage { prompt: 7, completion: 3, cost: Some(NanoUsd(99)), ..Usage::default() });
        let charged = |prices: Option<&PriceSnapshot>, usage| charge(Ending::Complete, true, 0, 0, usage, prices).cost;
        assert_eq!((charged(None, usage), charged(Some(&prices()), usage)), (NanoUsd(99), NanoUsd(13)));
        assert_eq!(charged(None, Some(Usage::default())), NanoUsd::ZERO);
        let absurd = Some(Usage { cost: Some(NanoUsd(i64::MAX)), ..Usage::default() });
        assert_eq!(charged(None, absurd), MOST_COST);
    }

    #[test]
    fn a_fault_before_the_first_byte_gives_the_request_back() {
        assert_eq!(
            of(Ending::Fault, true, 0, None),
            Charge { counts: false, tokens: 0, cost: NanoUsd(0), estimated: false, free: true }
        );
    }

    #[test]
    fn a_refusal_by_the_provider_counts_but_is_free() {
        let charge = of(Ending::Rejected, true, 0, None);
        assert!(charge.counts && charge.tokens == 0 && !charge.estimated && charge.free);
    }

    #[test]
    fn a_client_that_leaves_pays_for_what_was_sent_and_delivered() {
        assert!(of(Ending::ClientGone, false, 0, None).free && !of(Ending::ClientGone, true, 0, None).free);
        assert_eq!(of(Ending::ClientGone, true, 0, None).tokens, 100);
        let charge = of(Ending::ClientGone, true, 5, None);
        assert_eq!((charge.tokens, charge.cost, charge.estimated), (105, NanoUsd(110), true));
    }

    #[test]
    fn an_absurd_report_stays_within_what_sums_can_hold() {
        let usage = Some(Usage { prompt: i64::MAX, completion: i64::MAX, ..Usage::default() });
        let dear = PriceSnapshot { output: Price(i64::MAX), ..prices() };
        let charge = charge(Ending::Complete, true, 0, 0, usage, Some(&dear));
        assert_eq!((charge.tokens, charge.cost), (2 * MOST_TOKENS, MOST_COST));
    }

    #[test]
    fn negative_reports_charge_nothing() {
        let usage = Some(Usage { prompt: -5, completion: -5, ..Usage::default() });
        assert_eq!(of(Ending::Complete, true, 0, usage).tokens, 0);
    }
}
