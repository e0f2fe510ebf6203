//! An HTTP client for tests.

use std::time::Duration;

/// A client that follows no redirects, uses no proxy and gives up after a minute.
///
/// # Errors
/// When the TLS settings are refused.
pub fn http_client() -> anyhow::Result<reqwest::Client> {
    // An error says that there is a provider already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(60))
        .build()?)
}
