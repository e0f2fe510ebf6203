//! The one HTTP client all upstream calls go through.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, ClientBuilder, Response};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::connection::Connection;
use crate::dialect::{credential_headers, usual_headers};
use crate::error::{UpstreamError, Waited};
use crate::memory::{Held, Memory};
use crate::ssrf::{AddressPolicy, AddressRefused, GuardedResolver, Lookup, may_follow_with_credential};

/// The largest JSON answer, in bytes.
pub const MAX_ANSWER_BYTES: u64 = 32 * 1024 * 1024;
/// The largest answer of embeddings, in bytes: 2,048 vectors of 3,072 numbers each, as many as OpenAI gives at once, are
/// 32 MiB in base64 and some 130 MB as decimals.
pub const MAX_EMBEDDINGS_BYTES: u64 = 256 * 1024 * 1024;
/// The largest error answer that is read, in bytes.
const MAX_ERROR_BYTES: u64 = 1024 * 1024;
/// How long an error answer's words are waited for once its status is known.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const POOL_IDLE: Duration = Duration::from_secs(90);
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// What an installation chooses about upstream calls.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The wait for an answer's status and headers (`UPSTREAM_TIMEOUT`).
    pub header_timeout: Duration,
    /// The longest silence within an answer.
    pub idle_timeout: Duration,
    /// The longest a stream may last (`STREAM_MAX_DURATION`).
    pub stream_max_duration: Duration,
    /// The most bytes a stream may have (`STREAM_MAX_BYTES_MB`).
    pub stream_max_bytes: u64,
    /// Which addresses may be called.
    pub addresses: AddressPolicy,
    /// What answers that are in memory take together with other bodies.
    pub memory: Memory,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(5 * 60),
            idle_timeout: Duration::from_secs(5 * 60),
            stream_max_duration: Duration::from_secs(30 * 60),
            stream_max_bytes: 256 * 1024 * 1024,
            addresses: AddressPolicy::default(),
            memory: Memory::unbounded(),
        }
    }
}

impl HttpOptions {
    /// How long a provider may leave a call without an answer before that is its fault, whoever waits.
    pub(crate) fn patience(&self) -> Duration {
        self.header_timeout.min(self.stream_max_duration)
    }
}

/// The HTTP client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The TLS settings were refused.
    #[error("the TLS client cannot be set up")]
    Tls(#[from] rustls::Error),
    /// The client was refused.
    #[error("the HTTP client cannot be set up")]
    Http(#[from] reqwest::Error),
}

#[derive(Debug)]
pub(crate) struct HttpClient {
    client: Client,
    addresses: Arc<AddressPolicy>,
    options: HttpOptions,
}

impl HttpClient {
    pub(crate) fn new(options: HttpOptions) -> Result<Self, ClientError> {
        Self::with_lookup(options, Lookup::System)
    }

    pub(crate) fn with_lookup(options: HttpOptions, lookup: Lookup) -> Result<Self, ClientError> {
        let addresses = Arc::new(options.addresses.clone());
        let client = guarded(&addresses, lookup)?
            .redirect(Policy::custom(redirect))
            .http2_keep_alive_interval(KEEP_ALIVE)
            .build()?;
        Ok(Self { client, addresses, options })
    }

    pub(crate) fn options(&self) -> &HttpOptions {
        &self.options
    }

    /// Sends a JSON body and waits for the answer's headers, at most until `deadline`.
    pub(crate) async fn post(
        &self,
        connection: &Connection,
        (path, query): (&str, Option<&'static str>),
        accept: &'static str,
        headers: HeaderMap,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Response, UpstreamError> {
        let url = connection.endpoint_with(path, query);
        self.addresses.check_url(&url).map_err(UpstreamError::Refused)?;
        let credential = credential_headers(connection)?;
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(ACCEPT, HeaderValue::from_static(accept))
            // Nothing here decodes, and a compressed stream could not be passed on event by event.
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
            // The later ones take the place of the earlier.
            .headers(usual_headers(connection.provider))
            .headers(headers)
            .headers(credential)
            .body(body);
        let limit = deadline.min(Instant::now() + self.options.header_timeout);
        match timeout_at(limit, request.send()).await {
            Err(_) if limit == deadline => Err(UpstreamError::Timeout(Waited::Total)),
            Err(_) => Err(UpstreamError::Timeout(Waited::Headers)),
            Ok(Err(error)) => Err(from_transport(error)),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Reads what can be had of an error answer. Its status has been seen, so whatever goes wrong now changes nothing.
    pub(crate) async fn read_error(&self, response: Response, deadline: Instant) -> Bytes {
        let deadline = deadline.min(Instant::now() + ERROR_BODY_WAIT);
        self.read(response, deadline, MAX_ERROR_BYTES).await.map(|(body, _)| body).unwrap_or_default()
    }

    /// Reads a whole answer of at most `limit` bytes. With it comes the memory that it holds.
    pub(crate) async fn read(
        &self,
        mut response: Response,
        deadline: Instant,
        limit: u64,
    ) -> Result<(Bytes, Held), UpstreamError> {
        let mut body = BytesMut::new();
        let mut held = Held::default();
        loop {
            let idle = Instant::now() + self.options.idle_timeout;
            let chunk = timeout_at(idle.min(deadline), response.chunk())
                .await
                .map_err(|_| UpstreamError::Timeout(if idle < deadline { Waited::Idle } else { Waited::Total }))?
                .map_err(|_| UpstreamError::Truncated)?;
            let Some(chunk) = chunk else { return Ok((body.freeze(), held)) };
            let length = body.len() + chunk.len();
            if length as u64 > limit {
                return Err(UpstreamError::TooLarge { limit_bytes: limit });
            }
            self.options.memory.grow(&mut held, length).map_err(|_| UpstreamError::Overloaded)?;
            body.extend_from_slice(&chunk);
        }
    }
}

/// TLS with the platform's roots, so that an operator's own certificate authority counts, or with the built-in ones
/// where the platform has none (a bare container).
fn tls() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A client that dials nothing but what `addresses` lets through, and that no environment variable sends elsewhere.
pub(crate) fn guarded(addresses: &Arc<AddressPolicy>, lookup: Lookup) -> Result<ClientBuilder, ClientError> {
    Ok(Client::builder()
        .tls_backend_preconfigured(tls()?)
        .dns_resolver(Arc::new(GuardedResolver { policy: Arc::clone(addresses), lookup }))
        .referer(false)
        .no_proxy()
        .user_agent(concat!("ragmux/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
        .tcp_nodelay(true)
        .tcp_keepalive(KEEP_ALIVE))
}

/// Follows only a redirect that repeats the request as it was.
fn redirect(attempt: Attempt<'_>) -> Action {
    let previous = attempt.previous();
    let repeats = matches!(attempt.status().as_u16(), 307 | 308);
    let may_follow = |first: &Url| may_follow_with_credential(first, previous.len(), attempt.url());
    if repeats && previous.first().is_some_and(may_follow) { attempt.follow() } else { attempt.stop() }
}

pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// The refusal that a transport error comes from, if it does.
pub(crate) fn refused_address(error: &reqwest::Error) -> Option<&AddressRefused> {
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(refused) = cause.downcast_ref::<AddressRefused>() {
            return Some(refused);
        }
        source = cause.source();
    }
    None
}

fn from_transport(error: reqwest::Error) -> UpstreamError {
    if let Some(refused) = refused_address(&error) {
        return UpstreamError::Refused(refused.clone());
    }
    // The URL is configuration, and errors end up in logs.
    let error = error.without_url();
    if error.is_connect() { UpstreamError::Connect(error) } else { UpstreamError::Lost(error) }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
