//! Images that are in the request itself (RFC 2397).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{DataFault, Image, ImageError, plain_media_type};

const SCHEME: &str = "data:";

/// Whether a text is a `data:` URL, whatever is wrong with it otherwise.
#[must_use]
pub fn is_data_url(text: &str) -> bool {
    text.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// Reads an image's `data:` URL, which must be in padded standard base64, not empty, and of an accepted media type.
/// `place` says where in the request it stands, such as `messages[2].content[0]`.
///
/// # Errors
/// [`ImageError::Data`] with the place.
pub fn read_data_url(text: &str, accepted: &[&str], place: &str) -> Result<Image, ImageError> {
    read(text, accepted).map_err(|fault| ImageError::Data { place: place.to_owned(), fault })
}

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

fn read(text: &str, accepted: &[&str]) -> Result<Image, DataFault> {
    if !is_data_url(text) {
        return Err(DataFault::Form);
    }
    let (head, data) = text.get(SCHEME.len()..).and_then(|rest| rest.split_once(',')).ok_or(DataFault::Form)?;
    let (media_type, encoding) = head.rsplit_once(';').ok_or(DataFault::Form)?;
    if !encoding.trim().eq_ignore_ascii_case("base64") {
        return Err(DataFault::Form);
    }
    let media_type = plain_media_type(media_type);
    if !accepted.contains(&media_type.as_str()) {
        return Err(DataFault::MediaType(accepted.join(", ")));
    }
    let data = STANDARD.decode(data).map_err(|_| DataFault::Base64)?;
    if data.is_empty() { Err(DataFault::Empty) } else { Ok(Image { media_type, data: data.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: [&str; 2] = ["image/png", "image/jpeg"];

    #[test]
    fn every_usual_spelling_is_read() {
        for (text, media_type, data) in [
            ("data:image/png;base64,AAEC", "image/png", &[0, 1, 2][..]),
            ("DATA:Image/PNG;BASE64,AAECAw==", "image/png", &[0, 1, 2, 3]),
            ("data:image/jpg;base64,/+8=", "image/jpeg", &[255, 239]),
            ("data:image/jpeg;name=a.jpg;base64,AA==", "image/jpeg", &[0]),
        ] {
            let image = read_data_url(text, &ACCEPTED, "p").unwrap();
            assert_eq!((image.media_type.as_str(), &image.data[..]), (media_type, data));
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_place_and_reason() {
        let media_type = || DataFault::MediaType("image/png, image/jpeg".to_owned());
        for (text, fault) in [
            ("", DataFault::Form),
            ("https://host.example/a.png", DataFault::Form),
            ("data:", DataFault::Form),
            ("data:image/png;base64", DataFault::Form),
            ("data:image/png,AAEC", DataFault::Form),
            ("data:image/png;base64;x=1,AAEC", DataFault::Form),
            ("data:;base64,AAEC", media_type()),
            ("data:image/gif;base64,AAEC", media_type()),
            ("data:text/html;base64,AAEC", media_type()),
            ("data:image/png;base64,", DataFault::Empty),
            ("data:image/png;base64,AAE", DataFault::Base64),
            ("data:image/png;base64,AA", DataFault::Base64),
            ("data:image/png;base64,AB==", DataFault::Base64),
            ("data:image/png;base64,AA==AA==", DataFault::Base64),
            ("data:image/png;base64,_-8=", DataFault::Base64),
            ("data:image/png;base64,AA EC", DataFault::Base64),
            ("data:image/png;base64,AAEC\n", DataFault::Base64),
            ("data:image/png;base64,AAEC%3D", DataFault::Base64),
            ("data:image/png;base64,é", DataFault::Base64),
        ] {
            let error = read_data_url(text, &ACCEPTED, "messages[2].content[0]").unwrap_err();
            assert_eq!(error.to_string(), format!("messages[2].content[0]: {fault}"), "{text}");
            assert_eq!((error.status(), error.code()), (400, "invalid_image"));
        }
    }

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

    #[test]
    fn other_texts_are_not_taken_for_data() {
        assert!(is_data_url("Data:x"));
        assert!(!is_data_url("dat") && !is_data_url("daté:") && !is_data_url("https://data:1/"));
    }
}
