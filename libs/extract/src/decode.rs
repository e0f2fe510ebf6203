//! From bytes in an unknown encoding to characters.
//!
//! The order is fixed: byte order mark, declared charset, strict UTF-8, UTF-16 by the position of its zero bytes,
//! statistics, and windows-1252, which can decode anything. The answer is kept with the document.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use domain::DocumentFailure;
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Above this share of control characters bytes are not text. Terminal logs with colours stay below it.
const MAX_CONTROL_SHARE: f64 = 0.10;

/// Decoded text and how it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) text: String,
    /// The name of the encoding (WHATWG Encoding Standard).
    pub(crate) charset: &'static str,
}

/// Decodes `bytes`; `declared` is a charset label from a header or a `meta` element.
pub(crate) fn decode(bytes: &[u8], declared: Option<&str>) -> Result<Decoded, DocumentFailure> {
    let (encoding, skip) = encoding(bytes, declared)?;
    let (text, _) = encoding.decode_without_bom_handling(bytes.get(skip..).unwrap_or_default());
    if !is_text(text.chars()) {
        return Err(DocumentFailure::BinaryContent);
    }
    Ok(Decoded { text: text.into_owned(), charset: encoding.name() })
}

/// Whether the start of a file reads as text in some encoding. The last character may be cut off.
pub(crate) fn looks_like_text(head: &[u8]) -> bool {
    let head = match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            head.get(..error.valid_up_to()).unwrap_or(head)
        }
        _ => head,
    };
    let Ok((encoding, skip)) = encoding(head, None) else { return false };
    let (text, _) = encoding.decode_without_bom_handling(head.get(skip..).unwrap_or_default());
    is_text(text.chars())
}

fn encoding(bytes: &[u8], declared: Option<&str>) -> Result<(&'static Encoding, usize), DocumentFailure> {
    if let Some((encoding, skip)) = Encoding::for_bom(bytes) {
        return Ok((encoding, skip));
    }
    let utf8 = std::str::from_utf8(bytes);
    let declared = declared.and_then(|label| Encoding::for_label(label.trim().as_bytes()));
    if let Some(encoding) = declared
        // A single-byte charset fits any bytes, so its label proves nothing against characters that are UTF-8.
        && !(encoding.is_single_byte() && utf8.is_ok_and(|text| !text.is_ascii()))
        && encoding.decode_without_bom_handling_and_without_replacement(bytes).is_some()
    {
        return Ok((encoding, 0));
    }
    match utf8 {
        Ok(text) if !text.contains('\0') => return Ok((UTF_8, 0)),
        // An error without a length is a sequence cut off by the end of the file.
        Err(error)
            if error.error_len().is_none()
                && bytes.get(..error.valid_up_to()).is_some_and(|before| !before.is_ascii())
                && !bytes.contains(&0) =>
        {
            return Ok((UTF_8, 0));
        }
        _ => {}
    }
    if bytes.contains(&0) {
        return utf16_by_zero_bytes(bytes).map(|e| (e, 0)).ok_or(DocumentFailure::BinaryContent);
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(bytes, true);
    let guess = detector.guess(None, Utf8Detection::Deny);
    let fits = guess.decode_without_bom_handling_and_without_replacement(bytes).is_some();
    // A multi-byte guess with errors in it is worse than the single bytes it would replace.
    Ok((if fits || guess.is_single_byte() { guess } else { WINDOWS_1252 }, 0))
}

/// UTF-16 without a mark: text in it has zero bytes nearly only in its high halves (ASCII, Latin) and hardly ever a
/// zero code unit.
fn utf16_by_zero_bytes(bytes: &[u8]) -> Option<&'static Encoding> {
    let (mut even, mut odd, mut both, mut units) = (0usize, 0usize, 0usize, 0usize);
    for pair in bytes.chunks_exact(2) {
        let (first, second) = (pair.first() == Some(&0), pair.last() == Some(&0));
        units += 1;
        both += usize::from(first && second);
        even += usize::from(first && !second);
        odd += usize::from(second && !first);
    }
    if units < 2 || both * 100 > units {
        return None;
    }
    // Scripts outside Latin have zero bytes only in their spaces and punctuation, but then on one side alone.
    if odd > 0 && even * 20 <= odd {
        Some(UTF_16LE)
    } else if even > 0 && odd * 20 <= even {
        Some(UTF_16BE)
    } else {
        None
    }
}

fn is_text(chars: impl Iterator<Item = char>) -> bool {
    let (mut all, mut control) = (0usize, 0usize);
    for c in chars {
        all += 1;
        let allowed = matches!(c, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}');
        if (c.is_control() && !allowed) || c == '\u{fffd}' {
            control += 1;
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "a share, not a count")]
    let share = control as f64 / all.max(1) as f64;
    share <= MAX_CONTROL_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charset(bytes: &[u8]) -> &'static str {
        decode(bytes, None).unwrap().charset
    }

    #[test]
    fn a_mark_decides() {
        assert_eq!(decode(b"\xEF\xBB\xBFhi", None).unwrap(), Decoded { text: "hi".into(), charset: "UTF-8" });
        assert_eq!(decode(b"\xFF\xFEh\0i\0", None).unwrap(), Decoded { text: "hi".into(), charset: "UTF-16LE" });
        assert_eq!(decode(b"\xFE\xFF\0h\0i", None).unwrap().text, "hi");
    }

    #[test]
    fn a_declared_charset_is_believed_only_if_it_fits() {
        let (koi8, _, _) = encoding_rs::KOI8_R.encode("Привет, мир");
        assert_eq!(decode(&koi8, Some("koi8-r")).unwrap().text, "Привет, мир");
        assert_eq!(decode("Привет".as_bytes(), Some("iso-8859-1")).unwrap().text, "Привет");
        assert_eq!(decode(b"caf\xE9", Some("utf-8")).unwrap().text, "café");
    }

    #[test]
    fn utf16_without_a_mark_is_seen_by_its_zero_bytes() {
        for text in ["plain ascii text, long enough", "Русский текст, с пробелами и знаками", "日本語 と space\n"]
        {
            let le: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            let be: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
            assert_eq!(decode(&le, None).unwrap(), Decoded { text: text.into(), charset: "UTF-16LE" });
            assert_eq!(decode(&be, None).unwrap(), Decoded { text: text.into(), charset: "UTF-16BE" });
        }
    }

    #[test]
    fn legacy_encodings_are_guessed() {
        let text = "黑豹队的防守只丢了三百零八分，在联赛中排名第六，同时也以二十四次拦截领先。";
        let (gbk, _, _) = encoding_rs::GBK.encode(text);
        assert_eq!(decode(&gbk, None).unwrap().text, text);
        let text = "これは日本語の文章です。文字コードを推定します。";
        let (sjis, _, _) = encoding_rs::SHIFT_JIS.encode(text);
        assert_eq!(decode(&sjis, None).unwrap().text, text);
        assert_eq!(decode(b"Stra\xDFe und caf\xE9", None).unwrap().text, "Straße und café");
        assert_eq!(charset(b"plain"), "UTF-8");
    }

    #[test]
    fn binary_is_refused() {
        let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        assert_eq!(decode(&noise, None), Err(DocumentFailure::BinaryContent));
        assert_eq!(decode(b"\x00\x00\x00\x01\x00\x00\x00\x02", None), Err(DocumentFailure::BinaryContent));
        assert!(!looks_like_text(&noise));
    }

    #[test]
    fn a_head_may_end_inside_a_character() {
        let bytes = "текст".as_bytes();
        assert!(looks_like_text(&bytes[..bytes.len() - 1]));
    }
}
