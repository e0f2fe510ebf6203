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

use bytes::{Bytes, BytesMut};
use domain::ProjectId;
use http::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, Response};
use tokio::time::timeout;
use url::Url;

pub(crate) use self::data_url::checked_data;
pub use self::data_url::{is_data_url, read_data_url};
pub use self::error::{DataFault, ImageError};
use self::kept::Kept;
use self::slots::Slots;
use crate::http::{ClientError, guarded, is_encoded, refused_address};
use crate::memory::{Held, Memory};
use crate::ssrf::{AddressPolicy, Lookup, may_follow};

/// The most images that are fetched for one request.
pub const MAX_IMAGES_PER_REQUEST: usize = 8;
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
    /// What the images of calls under way take together with other bodies. Those that are kept for later calls have a
    /// bound of their own.
    pub memory: Memory,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            timeout: Duration::from_secs(10),
            max_bytes: 8 * 1024 * 1024,
            concurrent: 16,
            memory: Memory::unbounded(),
        }
    }
}

/// An image and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The media type, in small letters and without parameters, such as `image/png`.
    pub media_type: String,
    /// Its bytes; never empty. They hold memory for as long as a clone of them is there.
    pub data: Bytes,
}

/// The images of one request by their URLs, for providers that want the bytes.
#[derive(Clone, Debug, Default)]
pub struct FetchedImages(HashMap<String, Image>);

impl FetchedImages {
    #[cfg(test)]
    pub(crate) fn of(images: impl IntoIterator<Item = (String, Image)>) -> Self {
        Self(images.into_iter().collect())
    }

    /// The image that a URL leads to, if it was fetched.
    #[must_use]
    pub fn get(&self, url: &str) -> Option<&Image> {
        self.0.get(url)
    }

    /// Takes over those of another.
    pub fn add(&mut self, other: Self) {
        self.0.extend(other.0);
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
        // The default lets no private address through, and there is no setting that would.
        Self::within(options, AddressPolicy::default(), Lookup::System)
    }

    fn within(options: ImageOptions, addresses: AddressPolicy, lookup: Lookup) -> Result<Self, ClientError> {
        let addresses = Arc::new(addresses);
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
    /// its turn back.
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
        let kept = || {
            let image = accept(shared.kept.get(url.as_str())?, accepted, &host);
            Some(image.and_then(|image| {
                let mut held = Held::default();
                grow(&shared.options.memory, &mut held, image.data.len())?;
                Ok(Image { data: held.by(image.data), ..image })
            }))
        };
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

    /// Fetches the images of one request, one after the other, each URL once.
    ///
    /// # Errors
    /// There are more than [`MAX_IMAGES_PER_REQUEST`], or one of them cannot be had.
    pub async fn fetch_all(
        &self,
        project: ProjectId,
        urls: &[String],
        accepted: &[&str],
    ) -> Result<FetchedImages, ImageError> {
        let urls: BTreeSet<&String> = urls.iter().collect();
        if urls.len() > MAX_IMAGES_PER_REQUEST {
            return Err(ImageError::TooMany { limit: MAX_IMAGES_PER_REQUEST });
        }
        let mut images = HashMap::new();
        for url in urls {
            images.insert(url.clone(), self.fetch(project, url, accepted).await?);
        }
        Ok(FetchedImages(images))
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
        let unreachable = |error: reqwest::Error| match refused_address(&error) {
            Some(_) => ImageError::Forbidden { host: host.to_owned() },
            None => ImageError::Unreachable { host: host.to_owned(), source: error.without_url() },
        };
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
        let image = Image { media_type, data };
        if storable {
            shared.kept.keep(url.into(), image.clone());
        }
        Ok(Image { data: held.by(image.data), ..image })
    }
}

/// Reads a body that was announced to be small enough, and is.
async fn read(response: &mut Response, options: &ImageOptions, host: &str) -> Result<(Bytes, Held), ImageError> {
    let max_bytes = options.max_bytes;
    let too_large = || ImageError::TooLarge { host: host.to_owned(), limit_bytes: max_bytes };
    if response.content_length().is_some_and(|length| length > max_bytes as u64) {
        return Err(too_large());
    }
    let (mut body, mut held) = (BytesMut::new(), Held::default());
    loop {
        let chunk = response
            .chunk()
            .await
            .map_err(|error| ImageError::Unreachable { host: host.to_owned(), source: error.without_url() })?;
        match chunk {
            Some(chunk) if body.len() + chunk.len() > max_bytes => return Err(too_large()),
            Some(chunk) => {
                grow(&options.memory, &mut held, body.len() + chunk.len())?;
                body.extend_from_slice(&chunk);
            }
            None if body.is_empty() => return Err(ImageError::Empty { host: host.to_owned() }),
            None => return Ok((body.freeze(), held)),
        }
    }
}

fn grow(memory: &Memory, held: &mut Held, length: usize) -> Result<(), ImageError> {
    memory.grow(held, length).map_err(|_| ImageError::Overloaded)
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
