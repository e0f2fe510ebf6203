//! Session tokens and the cookie they travel in.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::Secret;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

const COOKIE_NAME: &str = "ragmux_session";
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A new session token: 256 random bits.
pub(crate) fn generate() -> Secret {
    let bits: [u8; 32] = rand::random();
    Secret::new(format!("rms_{}", URL_SAFE_NO_PAD.encode(bits)))
}

/// What a request says about who sends it.
#[derive(Debug)]
pub(crate) enum Credential {
    /// A bearer token.
    Bearer(Secret),
    /// The session cookie.
    Cookie(Secret),
}

/// The credential of a request. The header counts before the cookie: whoever sets it means it.
pub(crate) fn credential(headers: &HeaderMap) -> Option<Credential> {
    if let Some(header) = headers.get(AUTHORIZATION) {
        let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| Credential::Bearer(Secret::new(token.trim())));
    }
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE_NAME)
        .map(|(_, token)| Credential::Cookie(Secret::new(token)))
}

/// The header that gives a browser its session.
pub(crate) fn cookie(token: &Secret, lasts: Duration, request: &HeaderMap) -> Option<HeaderValue> {
    set_cookie(token.expose(), lasts.as_secs(), request)
}

/// The header that takes it away.
pub(crate) fn no_cookie(request: &HeaderMap) -> Option<HeaderValue> {
    set_cookie("", 0, request)
}

fn set_cookie(value: &str, max_age: u64, request: &HeaderMap) -> Option<HeaderValue> {
    // A client that lies about the scheme only keeps its own cookie from itself.
    let secure = request.get(FORWARDED_PROTO).is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    let secure = if secure { "; Secure" } else { "" };
    let text = format!("{COOKIE_NAME}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{secure}");
    let mut header = HeaderValue::from_str(&text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(HeaderName, &'static str)]) -> Option<(bool, String)> {
        let headers = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        credential(&headers).map(|credential| match credential {
            Credential::Bearer(token) => (true, token.expose().to_owned()),
            Credential::Cookie(token) => (false, token.expose().to_owned()),
        })
    }

    #[test]
    fn the_credential_is_found_where_clients_put_it() {
        assert_eq!(of(&[(AUTHORIZATION, "bearer  t")]), Some((true, "t".to_owned())));
        assert_eq!(of(&[(COOKIE, "a=b; ragmux_session=t; c=d")]), Some((false, "t".to_owned())));
        assert_eq!(of(&[(COOKIE, "ragmux_session=c"), (AUTHORIZATION, "Bearer t")]), Some((true, "t".to_owned())));
        assert_eq!(of(&[(COOKIE, "ragmux_session=c"), (AUTHORIZATION, "Basic x")]), None);
        assert_eq!(of(&[(COOKIE, "xragmux_session=c; ragmux_sessionx=d")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_cookie_is_for_browsers_of_this_site_only() {
        let token = generate();
        let plain = cookie(&token, Duration::from_secs(60), &HeaderMap::new()).unwrap();
        let text = plain.to_str().unwrap();
        assert!(text.ends_with("; Path=/; Max-Age=60; HttpOnly; SameSite=Lax"), "{text}");
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
        assert!(no_cookie(&headers).unwrap().to_str().unwrap().ends_with("; Secure"));
        assert_ne!(generate().expose(), token.expose());
    }
}
