//! Which web pages may call the edge from a browser (Fetch standard, CORS protocol).
//!
//! A page sends its key in a header like any other client. Cookies and other credentials of the browser are never
//! allowed: nothing here reads them, and with them `*` would let every page act for whoever looks at it.

use std::str::FromStr;
use std::time::Duration;

use config::Env;
use http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use url::Url;

use crate::header_names::EXPOSED;

const KEY: &str = "CORS_ORIGINS";

/// How long a browser may remember the answer to a preflight.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The pages that may call (`CORS_ORIGINS`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CorsOrigins {
    /// None: the edge says nothing about pages.
    #[default]
    None,
    /// Pages of these origins.
    These(Vec<Origin>),
    /// Every page (`*`).
    Any,
}

/// An origin as browsers write it: scheme, host, and port where it is not the scheme's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// A text is no origin.
#[derive(Debug)]
pub struct NoOrigin;

impl FromStr for Origin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let url = Url::parse(text).map_err(|_| NoOrigin)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(NoOrigin)?;
        let named = !url.username().is_empty() || url.password().is_some();
        let more = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
        if named || more {
            return Err(NoOrigin);
        }
        let written = match (url.scheme(), url.port()) {
            ("http" | "https", _) => url.origin().ascii_serialization(),
            // Schemes that the web knows nothing of: those of browser extensions and apps.
            (scheme, Some(port)) => format!("{scheme}://{host}:{port}"),
            (scheme, None) => format!("{scheme}://{host}"),
        };
        HeaderValue::from_str(&written).map(Self).map_err(|_| NoOrigin)
    }
}

impl CorsOrigins {
    pub(crate) fn read(env: &mut Env) -> Self {
        let items = env.list(KEY);
        if items.is_empty() {
            return Self::None;
        }
        if items.iter().any(|item| item == "*") {
            if items.len() > 1 {
                env.reject(KEY, Some(&items.join(",")), "* allows every page and stands alone");
            }
            return Self::Any;
        }
        Self::These(env.list_of(KEY, "an origin such as https://app.example.com"))
    }

    /// What the edge says of it in its answers.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let origins = match self {
            Self::None => return None,
            Self::These(origins) => AllowOrigin::list(origins.iter().map(|origin| origin.0.clone())),
            Self::Any => AllowOrigin::any(),
        };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            // Client libraries send a dozen headers about themselves, and what is not known here is not read.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            .max_age(REMEMBERED);
        Some(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CorsOrigins, String> {
        let mut env = Env::of([(KEY, text)]);
        let origins = CorsOrigins::read(&mut env);
        env.finish().map(|_| origins).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn origins_are_brought_to_the_form_that_browsers_send() {
        let CorsOrigins::These(origins) =
            read("https://App.example.com, http://localhost:3000/,https://a.example:443,chrome-extension://abc")
                .unwrap()
        else {
            panic!("not a list")
        };
        let written: Vec<&str> = origins.iter().map(|origin| origin.0.to_str().unwrap()).collect();
        assert_eq!(
            written,
            ["https://app.example.com", "http://localhost:3000", "https://a.example", "chrome-extension://abc"]
        );
        assert_eq!(read("*"), Ok(CorsOrigins::Any));
        assert_eq!(read(" "), Ok(CorsOrigins::None));
    }

    #[test]
    fn what_is_no_origin_is_a_mistake_of_the_configuration() {
        for text in [
            "null",
            "app.example.com",
            "https://a.example/path",
            "https://a.example?x",
            "https://u@a.example",
            "data:x",
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains("CORS_ORIGINS") && told.contains("https://app.example.com"), "{told}");
        }
        assert!(read("*,https://a.example").unwrap_err().contains("stands alone"));
    }
}
