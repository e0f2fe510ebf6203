//! Requests that another site made a browser send.

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderName, Uri};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Where a request says it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// From a page of this service.
    Same,
    /// From a page of somebody else.
    Other,
    /// It does not say: no browser of today.
    Unsaid,
}

/// Reads `Sec-Fetch-Site` (W3C Fetch Metadata), or else compares `Origin` with the host that was asked.
pub(crate) fn site(parts: &Parts) -> Site {
    if let Some(site) = parts.headers.get(SEC_FETCH_SITE) {
        return if site == "same-origin" { Site::Same } else { Site::Other };
    }
    let Some(origin) = parts.headers.get(ORIGIN) else { return Site::Unsaid };
    let asked = parts.headers.get(HOST).and_then(|host| host.to_str().ok()).or_else(|| {
        // HTTP/2 has it in the request line.
        parts.uri.authority().map(http::uri::Authority::as_str)
    });
    let from = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let from = from.as_ref().and_then(Uri::authority).map(http::uri::Authority::as_str);
    match (from, asked) {
        (Some(from), Some(asked)) if from.eq_ignore_ascii_case(asked) => Site::Same,
        _ => Site::Other,
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_a_page_of_the_same_host_and_port_is_the_same_site() {
        for (headers, expected) in [
            (vec![("sec-fetch-site", "same-origin"), ("origin", "http://evil.example")], Site::Same),
            (vec![("sec-fetch-site", "same-site")], Site::Other),
            (vec![("sec-fetch-site", "cross-site"), ("origin", "http://admin.example:8764")], Site::Other),
            (vec![("sec-fetch-site", "none")], Site::Other),
            (vec![("origin", "https://admin.example:8764")], Site::Same),
            (vec![("origin", "http://Admin.example:8764")], Site::Same),
            (vec![("origin", "http://admin.example")], Site::Other),
            (vec![("origin", "http://evil.example")], Site::Other),
            (vec![("origin", "null")], Site::Other),
            (vec![], Site::Unsaid),
        ] {
            let mut request = Request::post("/x").header("host", "admin.example:8764");
            for (name, value) in &headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(site(&parts), expected, "{headers:?}");
        }
    }
}
