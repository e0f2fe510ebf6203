//! Money as clients see it: US dollars, exactly.

use serde_json::value::RawValue;

/// Nano-USD as a decimal of US dollars.
pub(crate) fn dollars(nano: i64) -> String {
    const NANO: u64 = 1_000_000_000;
    let sign = if nano < 0 { "-" } else { "" };
    let (whole, rest) = (nano.unsigned_abs() / NANO, nano.unsigned_abs() % NANO);
    let text = format!("{sign}{whole}.{rest:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number that is written as it is, without a detour over a float.
pub(crate) fn number(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_exact_decimals() {
        for (nano, shown) in [
            (0, "0"),
            (1, "0.000000001"),
            (-2_500_000_000, "-2.5"),
            (10_000_000_000, "10"),
            (i64::MIN, "-9223372036.854775808"),
        ] {
            assert_eq!(dollars(nano), shown);
            assert_eq!(number(dollars(nano)).get(), shown);
        }
    }
}
