//! The written form of durations: one or more numbers with a unit, such as `500ms`, `15s`, `1h30m` or `1.5s`.

use std::time::Duration;

const SECOND: u128 = 1_000_000_000;

/// The units in nanoseconds, `ms` before `m` so that it is not taken for minutes.
const UNITS: [(&str, u128); 5] =
    [("ms", SECOND / 1000), ("s", SECOND), ("m", 60 * SECOND), ("h", 3600 * SECOND), ("d", 86_400 * SECOND)];

/// Reads a duration; `None` when the text is none. Only zero may go without a unit.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("0", after), digits);
        // The bounds keep the arithmetic below far from overflow.
        if !(1..=15).contains(&whole.len()) || !(1..=9).contains(&fraction.len()) {
            return None;
        }
        let (unit, after) =
            UNITS.iter().find_map(|(name, unit)| after.strip_prefix(name).map(|after| (*unit, after)))?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        nanos += whole.parse::<u128>().ok()? * unit + fraction.parse::<u128>().ok()? * unit / scale;
        rest = after;
    }
    let seconds = u64::try_from(nanos / SECOND).ok()?;
    let rest = u32::try_from(nanos % SECOND).ok()?;
    Some(Duration::new(seconds, rest))
}

/// Writes a duration with the largest unit that gives a whole number; below a millisecond it is cut.
pub(crate) fn show(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let whole = UNITS.iter().rev().find(|(_, unit)| nanos >= *unit && nanos.is_multiple_of(*unit));
    match whole {
        Some((name, unit)) => format!("{}{name}", nanos / unit),
        None if duration.as_millis() == 0 => "0".to_owned(),
        None => format!("{}ms", duration.as_millis()),
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("2s", 2000),
            ("15m", 900_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1500),
            ("0.25h", 900_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_not_a_duration() {
        for text in
            ["", "5", "s", "-2s", "2 s", "2S", "2s ", "1.s", ".5s", "2sm", "2s3", "1e3s", "2µs", "9999999999999999s"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"9".repeat(600)), None);
        assert_eq!(parse(&format!("{}d", "9".repeat(15))), None, "more seconds than can be counted");
        assert_eq!(parse(&"999999999999999h".repeat(1000)), None);
    }

    #[test]
    fn a_shown_duration_reads_as_the_same() {
        for (text, shown) in [("90s", "90s"), ("60m", "1h"), ("48h", "2d"), ("1500ms", "1500ms"), ("0ms", "0")] {
            let duration = parse(text).unwrap();
            assert_eq!(show(duration), shown);
            assert_eq!(parse(&show(duration)), Some(duration));
        }
    }
}
