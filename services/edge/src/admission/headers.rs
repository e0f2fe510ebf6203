//! What is left of the limits, as headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use store::ledger::Headroom;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::header_names::{
    DAILY, DAILY_COST, LIMIT_REQUESTS, LIMIT_TOKENS, MESSAGES_LIMIT_REQUESTS, MESSAGES_LIMIT_TOKENS,
    MESSAGES_REMAINING_REQUESTS, MESSAGES_REMAINING_TOKENS, MESSAGES_RESET_REQUESTS, MESSAGES_RESET_TOKENS, MONTHLY,
    MONTHLY_COST, REMAINING_REQUESTS, REMAINING_TOKENS, RESET_REQUESTS, RESET_TOKENS,
};
use crate::money::dollars;

/// What stands for a limit in answers of the Messages API.
const MESSAGES: [(HeaderName, HeaderName); 4] = [
    (LIMIT_REQUESTS, MESSAGES_LIMIT_REQUESTS),
    (REMAINING_REQUESTS, MESSAGES_REMAINING_REQUESTS),
    (LIMIT_TOKENS, MESSAGES_LIMIT_TOKENS),
    (REMAINING_TOKENS, MESSAGES_REMAINING_TOKENS),
];
const MESSAGES_RESETS: [(HeaderName, HeaderName); 2] =
    [(RESET_REQUESTS, MESSAGES_RESET_REQUESTS), (RESET_TOKENS, MESSAGES_RESET_TOKENS)];

const JUST_UNDER_A_SECOND: time::Duration = time::Duration::nanoseconds(999_999_999);

/// Puts Anthropic's names for limits in place of OpenAI's, with times in place of durations. They are told to a client
/// alone; what is limited until when is the database's affair.
pub(crate) fn limits_of_messages(headers: &mut HeaderMap, now: OffsetDateTime) {
    for (name, other) in MESSAGES {
        if let Some(value) = headers.remove(&name) {
            headers.insert(other, value);
        }
    }
    for (name, other) in MESSAGES_RESETS {
        let Some(value) = headers.remove(&name) else { continue };
        let wait = value.to_str().ok().and_then(milliseconds_of).map(time::Duration::milliseconds);
        // Whole seconds, and none too early.
        let at = wait.and_then(|wait| now.checked_add(wait + JUST_UNDER_A_SECOND));
        let at = at.and_then(|at| at.replace_nanosecond(0).ok());
        let text = at.and_then(|at| at.format(&Rfc3339).ok());
        if let Some(value) = text.and_then(|text| HeaderValue::from_str(&text).ok()) {
            headers.insert(other, value);
        }
    }
}

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

/// What [`openai_duration`] wrote.
fn milliseconds_of(text: &str) -> Option<i64> {
    if let Some(milliseconds) = text.strip_suffix("ms") {
        return milliseconds.parse().ok();
    }
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m').unwrap_or(("0", text.strip_suffix('s')?));
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let fraction: i64 = format!("{fraction:0<3}").parse().ok()?;
    let seconds: i64 = minutes.parse::<i64>().ok()? * 60 + whole.parse::<i64>().ok()?;
    Some(seconds * 1000 + fraction)
}

#[cfg(test)]
mod tests {
    use domain::NanoUsd;
    use time::macros::datetime;

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
            assert_eq!(milliseconds_of(text), Some(milliseconds.max(0)));
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

    #[test]
    fn the_messages_api_has_names_and_times_of_its_own() {
        let mut headers = HeaderMap::new();
        let headroom = Headroom {
            minute_resets_in_ms: 59_001,
            requests: Some((2, 1)),
            tokens: Some((900, 30)),
            day_tokens: Some(9),
            ..Headroom::default()
        };
        describe(&headroom, &mut headers);
        limits_of_messages(&mut headers, datetime!(2026-03-01 11:59:30.5 UTC));
        let mut shown: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        shown.sort();
        assert_eq!(
            shown,
            [
                "anthropic-ratelimit-requests-limit: 2",
                "anthropic-ratelimit-requests-remaining: 1",
                "anthropic-ratelimit-requests-reset: 2026-03-01T12:00:30Z",
                "anthropic-ratelimit-tokens-limit: 900",
                "anthropic-ratelimit-tokens-remaining: 30",
                "anthropic-ratelimit-tokens-reset: 2026-03-01T12:00:30Z",
                "x-ragmux-budget-daily-remaining: 9",
            ]
        );
    }
}
