//! Pictures that a request names by URL, for providers that want their bytes.
//!
//! The URL is the client's, so this is where anybody with a key could make the gateway call addresses of its own
//! network: private addresses are refused here whatever the installation allows for its connections, and what comes
//! back is bounded in bytes, in time and in number.

mod data_url;
mod error;
mod kept;
mod slots;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use domain::ProjectId;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, Response};
use serde::{Serialize, Serializer};
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

pub(crate) use self::data_url::{checked_data, is_base64};
pub use self::error::ImageError;
use self::kept::Kept;
use self::slots::Slots;
use crate::http::{ClientError, guarded, is_encoded};
use crate::memory::{Held, Memory};
use crate::ssrf::{AddressPolicy, Lookup, may_follow};

/// The most images that are fetched for one request. One that is named again counts again: every place it is named in
/// becomes a copy of it in what goes to the provider.
pub const MAX_IMAGES_PER_REQUEST: usize = 8;
/// So many images of one request are fetched at once; the others have their turn as these come in.
const AT_ONCE: usize = 4;
const MAX_URL_BYTES: usize = 8 * 1024;
/// How long a fetch waits for its turn.
const SLOT_WAIT: Duration = Duration::from_secs(2);

/// What an installation chooses about images.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Whether images are fetched at all (`IMAGE_FETCH`).
    pub enabled: bool,
    /// How long one fetch may take, redirects and body included (`IMAGE_FETCH_TIMEOUT`).
    pub timeout: Duration,
    /// The largest image, in bytes.
    pub max_bytes: usize,
    /// The most fetches at once in this process.
    pub concurrent: usize,
    /// The private addresses that may be asked all the same. No installation has any: it is for tests, whose images are on
    /// their own machine.
    pub addresses: AddressPolicy,
    /// What images that are in use take together with other bodies. Those that are only kept are bounded by themselves.
    pub memory: Memory,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            timeout: Duration::from_secs(10),
            max_bytes: 8 * 1024 * 1024,
            concurrent: 16,
            addresses: AddressPolicy::default(),
            memory: Memory::unbounded(),
        }
    }
}

/// An image and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The media type, in small letters and without parameters, such as `image/png`.
    pub media_type: String,
    /// Its bytes; never empty.
    pub data: Bytes,
}

/// Bytes as the base64 that they are sent as, made when it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ImageText<'a> {
    /// Bytes that were fetched.
    Fetched(&'a [u8]),
    /// What is base64 already.
    Given(&'a str),
}

impl Serialize for ImageText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fetched(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
            Self::Given(text) => serializer.serialize_str(text),
        }
    }
}

/// The images of one request by their URLs, for providers that want the bytes.
#[derive(Clone, Debug, Default)]
pub struct FetchedImages {
    by_url: HashMap<String, Image>,
    written_bytes: usize,
}

impl FetchedImages {
    #[cfg(test)]
    pub(crate) fn of(images: impl IntoIterator<Item = (String, Image)>) -> Self {
        Self { by_url: images.into_iter().collect(), written_bytes: 0 }
    }

    /// The image that a URL leads to, if it was fetched.
    #[must_use]
    pub fn get(&self, url: &str) -> Option<&Image> {
        self.by_url.get(url)
    }

    /// How long they are in base64, each as often as the request names it, or a little longer.
    #[must_use]
    pub fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// Takes over those of another, which are of the same request.
    pub fn add(&mut self, other: Self) {
        self.by_url.extend(other.by_url);
        self.written_bytes += other.written_bytes;
    }
}

/// Fetches images. Cheap to clone; all clones share turns, connections and what is kept.
#[derive(Clone, Debug)]
pub struct Images {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ImageOptions,
    client: Client,
    addresses: Arc<AddressPolicy>,
    slots: Slots,
    kept: Kept,
}

impl Images {
    /// Sets up the HTTP client. Reads the platform's certificate store, so it belongs to start-up.
    ///
    /// # Errors
    /// The TLS or HTTP settings were refused.
    pub fn new(options: ImageOptions) -> Result<Self, ClientError> {
        Self::within(options, Lookup::System)
    }

    fn within(options: ImageOptions, lookup: Lookup) -> Result<Self, ClientError> {
        let addresses = Arc::new(options.addresses.clone());
        // No connection is kept: the next fetch looks its name up and checks it again.
        let client =
            guarded(&addresses, lookup)?.redirect(Policy::custom(redirect)).pool_max_idle_per_host(0).build()?;
        let slots = Slots::new(options.concurrent);
        let kept = Kept::new(options.max_bytes);
        Ok(Self { shared: Arc::new(Shared { options, client, addresses, slots, kept }) })
    }

    /// Fetches one image for a project, or gives out the one that was fetched from this URL within the last ten
    /// minutes, possibly for another project: whoever knows the URL can fetch it. `accepted` are the media types the
    /// provider takes.
    ///
    /// Fetches take turns, see [`ImageError::Saturated`]: when several projects wait, the one with the fewest fetches
    /// under way is next, so that none holds more than half of them while another waits. Dropping the future gives
    /// its turn back. The image holds its memory for as long as there is a clone of it.
    ///
    /// # Errors
    /// See [`ImageError`]. All but [`ImageError::Saturated`] and [`ImageError::Overloaded`] are the client's to repair.
    pub async fn fetch(&self, project: ProjectId, url: &str, accepted: &[&str]) -> Result<Image, ImageError> {
        let shared = &*self.shared;
        if !shared.options.enabled {
            return Err(ImageError::Disabled);
        }
        let url = self.checked(url)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let kept = || shared.kept.get(url.as_str()).map(|image| self.hold(accept(image, accepted, &host)?));
        if let Some(image) = kept() {
            return image;
        }
        let turn = shared.slots.take(project, SLOT_WAIT).await;
        let _turn = turn.ok_or(ImageError::Saturated { retry_after: shared.options.timeout })?;
        // Somebody else may have fetched it meanwhile.
        if let Some(image) = kept() {
            return image;
        }
        let download = self.download(url.clone(), &host, accepted);
        timeout(shared.options.timeout, download).await.map_err(|_| ImageError::Timeout { host: host.clone() })?
    }

    /// When the images of a request that is looked at now have to be there: each of them may take as long as
    /// [`ImageOptions::timeout`], and all of them twice as long.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.shared.options.timeout.saturating_mul(2)
    }

    /// Fetches the images of one request until `deadline`, each URL once and a few at a time.
    ///
    /// # Errors
    /// There are more than [`MAX_IMAGES_PER_REQUEST`], counted as often as they are named, or one of them cannot be had.
    pub async fn fetch_all(
        &self,
        project: ProjectId,
        urls: &[String],
        accepted: &[&str],
        deadline: Instant,
    ) -> Result<FetchedImages, ImageError> {
        if urls.len() > MAX_IMAGES_PER_REQUEST {
            return Err(ImageError::TooMany { limit: MAX_IMAGES_PER_REQUEST });
        }
        let distinct: BTreeSet<&String> = urls.iter().collect();
        let one = async |url: &String| Ok((url.clone(), self.fetch(project, url, accepted).await?));
        let fetches: Vec<_> = distinct.into_iter().map(one).collect();
        let fetches = stream::iter(fetches).buffer_unordered(AT_ONCE).try_collect();
        let by_url: HashMap<String, Image> =
            timeout_at(deadline, fetches).await.map_err(|_| ImageError::LateTogether)??;
        let each = urls.iter().filter_map(|url| by_url.get(url));
        let written_bytes = each.map(|image| image.data.len().div_ceil(3) * 4).sum();
        Ok(FetchedImages { by_url, written_bytes })
    }

    /// The image with the memory that it takes.
    fn hold(&self, image: Image) -> Result<Image, ImageError> {
        let mut held = Held::default();
        self.shared.options.memory.grow(&mut held, image.data.len()).map_err(|_| ImageError::Overloaded)?;
        Ok(Image { data: held.by(image.data), ..image })
    }

    fn checked(&self, text: &str) -> Result<Url, ImageError> {
        if text.len() > MAX_URL_BYTES {
            return Err(ImageError::Malformed);
        }
        let mut url = Url::parse(text).map_err(|_| ImageError::Malformed)?;
        let names_nobody = url.username().is_empty() && url.password().is_none();
        if !matches!(url.scheme(), "https" | "http") || !names_nobody {
            return Err(ImageError::Malformed);
        }
        url.set_fragment(None);
        match self.shared.addresses.check_url(&url) {
            Ok(()) => Ok(url),
            Err(_) => Err(ImageError::Forbidden { host: url.host_str().unwrap_or_default().to_owned() }),
        }
    }

    async fn download(&self, url: Url, host: &str, accepted: &[&str]) -> Result<Image, ImageError> {
        let shared = &*self.shared;
        // What a look-up found is not told: names of this machine's network would answer otherwise than those of nobody.
        let unreachable =
            |error: reqwest::Error| ImageError::Unreachable { host: host.to_owned(), source: error.without_url() };
        let mut response = shared
            .client
            .get(url.clone())
            .header(ACCEPT, HeaderValue::from_static("image/*"))
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
            .send()
            .await
            .map_err(unreachable)?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err(ImageError::Redirect { host: host.to_owned() }),
            status => return Err(ImageError::Status { host: host.to_owned(), status: status.as_u16() }),
        }
        let media_type = media_type(response.headers())
            .filter(|media_type| accepted.contains(&media_type.as_str()) && !is_encoded(response.headers()))
            .ok_or_else(|| unsupported(host, accepted))?;
        let storable = is_storable(response.headers());
        let (data, held) = read(&mut response, &shared.options, host).await?;
        if storable {
            shared.kept.keep(url.into(), Image { media_type: media_type.clone(), data: data.clone() });
        }
        Ok(Image { media_type, data: held.by(data) })
    }
}

/// Reads a body that was announced to be small enough, and is. With it comes the memory that it takes.
async fn read(response: &mut Response, options: &ImageOptions, host: &str) -> Result<(Bytes, Held), ImageError> {
    let too_large = || ImageError::TooLarge { host: host.to_owned(), limit_bytes: options.max_bytes };
    if response.content_length().is_some_and(|length| length > options.max_bytes as u64) {
        return Err(too_large());
    }
    let (mut body, mut held) = (BytesMut::new(), Held::default());
    loop {
        let chunk = response
            .chunk()
            .await
            .map_err(|error| ImageError::Unreachable { host: host.to_owned(), source: error.without_url() })?;
        match chunk {
            Some(chunk) if body.len() + chunk.len() > options.max_bytes => return Err(too_large()),
            Some(chunk) => {
                let length = body.len() + chunk.len();
                options.memory.grow(&mut held, length).map_err(|_| ImageError::Overloaded)?;
                body.extend_from_slice(&chunk);
            }
            None if body.is_empty() => return Err(ImageError::Empty { host: host.to_owned() }),
            None => return Ok((body.freeze(), held)),
        }
    }
}

fn accept(image: Image, accepted: &[&str], host: &str) -> Result<Image, ImageError> {
    if accepted.contains(&image.media_type.as_str()) { Ok(image) } else { Err(unsupported(host, accepted)) }
}

fn unsupported(host: &str, accepted: &[&str]) -> ImageError {
    ImageError::Unsupported { host: host.to_owned(), accepted: accepted.join(", ") }
}

/// The media type of an answer, which nothing else about it can change.
fn media_type(headers: &HeaderMap) -> Option<String> {
    Some(plain_media_type(headers.get(CONTENT_TYPE)?.to_str().ok()?))
}

/// Without parameters and in small letters (RFC 9110, 8.3.1); `image/jpg` is a common mistake.
fn plain_media_type(text: &str) -> String {
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "image/jpg" { "image/jpeg".to_owned() } else { essence }
}

/// Whether a shared cache may keep an answer at all (RFC 9111, 5.2.2.5 and 5.2.2.7). How long it stays fresh is not
/// asked: an image may be up to ten minutes old.
fn is_storable(headers: &HeaderMap) -> bool {
    let mut directives = headers
        .get_all(CACHE_CONTROL)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|directive| directive.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii());
    !directives.any(|name| name.eq_ignore_ascii_case(b"no-store") || name.eq_ignore_ascii_case(b"private"))
}

fn redirect(attempt: Attempt<'_>) -> Action {
    let previous = attempt.previous();
    if previous.first().is_some_and(|first| may_follow(first, previous.len(), attempt.url())) {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

#[cfg(test)]
mod tests;
