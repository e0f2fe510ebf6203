//! Images that are in the request itself (RFC 2397).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::plain_media_type;

/// The media type and data of an image that is in the request itself, if it is of an accepted type. Whether the data is
/// base64 was seen when the request was read.
pub(crate) fn checked_data<'a>(
    media_type: &str,
    data: &'a str,
    accepted: &'static [&'static str],
) -> Option<(&'static str, &'a str)> {
    let media_type = plain_media_type(media_type);
    let accepted = accepted.iter().find(|accepted| **accepted == media_type)?;
    Some((*accepted, data))
}

/// Whether a text is padded standard base64 (RFC 4648, 4) of at least a byte. It may be large, so nothing is made of it.
pub(crate) fn is_base64(text: &str) -> bool {
    const GROUP: usize = 4;
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    // Only the last group has padding, and bits that must be nothing.
    let last = text.len().checked_sub(GROUP).filter(|_| text.len().is_multiple_of(GROUP));
    let parts = last.and_then(|last| text.as_bytes().split_at_checked(last));
    parts.is_some_and(|(digits, last)| digits.iter().all(is_digit) && STANDARD.decode(last).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_told_without_decoding_it() {
        for text in [
            "", "AA==", "AAE=", "AAEC", "AAECAA==", "AAE", "AA", "AB==", "AA==AA==", "_-8=", "AA EC", "====", "AAEC\n",
            "AAEC%3D", "é", "ééAA", "AAECAAEC", "A===", "AAEC====", "/+8=",
        ] {
            let decoded = STANDARD.decode(text).is_ok_and(|data| !data.is_empty());
            assert_eq!(is_base64(text), decoded, "{text}");
        }
    }
}
