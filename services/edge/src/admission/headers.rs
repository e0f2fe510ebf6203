//! What is left of the limits, as headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use store::ledger::Headroom;

use crate::money::dollars;

const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REMAINING_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const RESET_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");
const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
const REMAINING_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");
const RESET_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-reset-tokens");
const DAILY: HeaderName = HeaderName::from_static("x-ragmux-budget-daily-remaining");
const MONTHLY: HeaderName = HeaderName::from_static("x-ragmux-budget-monthly-remaining");
// Names of their own, so that nobody takes dollars for tokens.
const DAILY_COST: HeaderName = HeaderName::from_static("x-ragmux-cost-budget-daily-remaining");
const MONTHLY_COST: HeaderName = HeaderName::from_static("x-ragmux-cost-budget-monthly-remaining");

/// Adds a header for each limit that exists.
pub(super) fn describe(headroom: &Headroom, headers: &mut HeaderMap) {
    let reset = openai_duration(headroom.minute_resets_in_ms);
    let windows = [
        (headroom.requests, LIMIT_REQUESTS, REMAINING_REQUESTS, RESET_REQUESTS),
        (headroom.tokens, LIMIT_TOKENS, REMAINING_TOKENS, RESET_TOKENS),
    ];
    for (window, limit, remaining, resets) in windows {
        let Some((cap, rest)) = window else { continue };
        headers.insert(limit, HeaderValue::from(cap));
        headers.insert(remaining, HeaderValue::from(rest));
        if let Ok(value) = HeaderValue::from_str(&reset) {
            headers.insert(resets, value);
        }
    }
    for (rest, name) in [(headroom.day_tokens, DAILY), (headroom.month_tokens, MONTHLY)] {
        if let Some(rest) = rest {
            headers.insert(name, HeaderValue::from(rest));
        }
    }
    for (rest, name) in [(headroom.day_cost, DAILY_COST), (headroom.month_cost, MONTHLY_COST)] {
        if let Some(value) = rest.and_then(|rest| HeaderValue::from_str(&dollars(rest.0)).ok()) {
            headers.insert(name, value);
        }
    }
}

/// A duration as the OpenAI API writes it in these headers: `120ms`, `8.64s`, `6m0s`.
fn openai_duration(milliseconds: i64) -> String {
    let milliseconds = milliseconds.max(0);
    if milliseconds < 1000 {
        return format!("{milliseconds}ms");
    }
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let (seconds, fraction) = (rest / 1000, rest % 1000);
    let mut text = if minutes > 0 { format!("{minutes}m{seconds}") } else { seconds.to_string() };
    if fraction > 0 {
        text.push_str(format!(".{fraction:03}").trim_end_matches('0'));
    }
    text.push('s');
    text
}

#[cfg(test)]
mod tests {
    use domain::NanoUsd;

    use super::*;

    #[test]
    fn durations_are_written_as_the_api_does() {
        for (milliseconds, text) in [
            (-5, "0ms"),
            (0, "0ms"),
            (120, "120ms"),
            (1000, "1s"),
            (8640, "8.64s"),
            (59_001, "59.001s"),
            (60_000, "1m0s"),
        ] {
            assert_eq!(openai_duration(milliseconds), text);
        }
    }

    #[test]
    fn only_limits_that_exist_are_shown() {
        let mut headers = HeaderMap::new();
        describe(&Headroom::default(), &mut headers);
        assert!(headers.is_empty());
        let headroom = Headroom {
            minute_resets_in_ms: 1500,
            requests: Some((2, 1)),
            month_tokens: Some(9),
            day_cost: Some(NanoUsd(1_500_000_000)),
            month_cost: Some(NanoUsd::ZERO),
            ..Headroom::default()
        };
        describe(&headroom, &mut headers);
        let mut shown: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        shown.sort();
        assert_eq!(
            shown,
            [
                "x-ragmux-budget-monthly-remaining: 9",
                "x-ragmux-cost-budget-daily-remaining: 1.5",
                "x-ragmux-cost-budget-monthly-remaining: 0",
                "x-ratelimit-limit-requests: 2",
                "x-ratelimit-remaining-requests: 1",
                "x-ratelimit-reset-requests: 1.5s",
            ]
        );
    }
}
