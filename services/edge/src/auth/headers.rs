//! Where a call says who it comes from.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROJECT: HeaderName = HeaderName::from_static("x-ragmux-project");

/// The key's text: a bearer token (RFC 6750, 2.1), else `x-api-key`.
pub(super) fn key_text(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    let plain = || headers.get(API_KEY).and_then(|value| value.to_str().ok()).map(str::trim);
    bearer.or_else(plain).filter(|text| !text.is_empty())
}

/// The project asked for, by name or id. A value that is not text names none that exists.
pub(super) fn asked_project(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(PROJECT)?;
    // Names may be in any script, and HTTP libraries send them as UTF-8.
    Some(std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim())
}

/// The addresses that proxies have noted, the nearest last. A header that is not text is an entry that is no address.
pub(super) fn forwarded_for(headers: &HeaderMap) -> impl DoubleEndedIterator<Item = &str> {
    headers.get_all(FORWARDED_FOR).into_iter().flat_map(|value| value.to_str().unwrap_or_default().split(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pairs: &[(&'static str, &'static str)]) -> Option<String> {
        let headers: HeaderMap =
            pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        key_text(&headers).map(str::to_owned)
    }

    #[test]
    fn a_key_comes_as_bearer_or_as_x_api_key() {
        assert_eq!(key(&[("authorization", "Bearer k")]).as_deref(), Some("k"));
        assert_eq!(key(&[("authorization", "bearer  k ")]).as_deref(), Some("k"));
        assert_eq!(key(&[("x-api-key", " k")]).as_deref(), Some("k"));
        assert_eq!(key(&[("authorization", "Basic dTpw"), ("x-api-key", "k")]).as_deref(), Some("k"));
        assert_eq!(key(&[("authorization", "Basic dTpw")]), None);
        assert_eq!(key(&[("authorization", "Bearer ")]), None);
        assert_eq!(key(&[]), None);
    }
}
