//! Counting tokens without holding up the runtime.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use providers::{ClientDialect, Countable, Delivered, EmbeddingInput, EmbeddingsRequest, Inbound, MessagesRequest};
use runtime::Blocking;
use tokens::{Family, ImageTokens, count, count_messages, estimate, is_loaded};

use crate::error::EdgeError;

/// Texts up to this size are estimated in place: handing them over would cost more.
const ESTIMATED_IN_PLACE_BYTES: usize = 8 * 1024;

/// Texts up to this size are counted in place once the vocabulary is there, for the same reason: some ten microseconds a
/// KiB.
const COUNTED_IN_PLACE_BYTES: usize = 2 * 1024;

/// Something is done with requests up to this size in place: a millisecond at most, about what handing over costs.
const IN_PLACE_BYTES: usize = 128 * 1024;

/// A count takes milliseconds, so this is only reached by a process that is far beyond what it can do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Delivered text up to this size is counted exactly, longer text is estimated: it is counted where a client's leaving
/// is noticed, and nothing else waits there for long.
const EXACT_DELIVERED_BYTES: usize = 16 * 1024;

/// How a model counts a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) family: Family,
    images: ImageTokens,
}

impl Measure {
    pub(crate) fn of(model: &str) -> Self {
        Self { family: Family::of(model), images: ImageTokens::of(model) }
    }

    /// The tokens of so many pictures.
    pub(crate) fn pictures(self, images: usize) -> i64 {
        whole(self.images.all(images, 0))
    }
}

/// Counts tokens, a few texts at a time. Clones share their turns.
#[derive(Clone)]
pub(crate) struct TokenCounter {
    blocking: Blocking,
}

impl TokenCounter {
    pub(crate) fn new() -> Self {
        Self { blocking: Blocking::per_core(PATIENCE) }
    }

    /// The tokens of a chat request's prompt to a model, and of a text of ours that goes with it.
    pub(crate) async fn chat(
        &self,
        measure: Measure,
        body: &Bytes,
        request: &Inbound<'_>,
        ours: Option<&str>,
    ) -> Result<i64, EdgeError> {
        if is_quick(measure.family, body.len()) {
            return Ok(of_chat(measure, request, ours));
        }
        let (dialect, body, ours) = (request.dialect(), body.clone(), ours.map(str::to_owned));
        self.work(move || Ok(of_chat(measure, &Inbound::parse(dialect, &body)?, ours.as_deref()))).await?
    }

    /// The tokens of a request that asks for nothing but their count, and of a text of ours that goes with them.
    pub(crate) async fn messages(
        &self,
        measure: Measure,
        body: &Bytes,
        request: &MessagesRequest<'_>,
        ours: Option<&str>,
    ) -> Result<i64, EdgeError> {
        if is_quick(measure.family, body.len()) {
            return Ok(of_countable(measure, &request.countable(), ours));
        }
        let (body, ours) = (body.clone(), ours.map(str::to_owned));
        self.work(move || Ok(of_countable(measure, &MessagesRequest::parse_count(&body)?.countable(), ours.as_deref())))
            .await?
    }

    /// The tokens of each of an embeddings request's inputs.
    pub(crate) async fn embeddings(
        &self,
        family: Family,
        body: &Bytes,
        request: &EmbeddingsRequest<'_>,
    ) -> Result<Vec<i64>, EdgeError> {
        if is_quick(family, body.len()) {
            return Ok(of_embeddings(family, request));
        }
        let body = body.clone();
        self.work(move || Ok(of_embeddings(family, &EmbeddingsRequest::parse(&body)?))).await?
    }

    /// The tokens of one text.
    pub(crate) async fn text(&self, family: Family, text: &str) -> Result<i64, EdgeError> {
        if is_quick(family, text.len()) {
            return Ok(whole(count(family, text)));
        }
        let text = text.to_owned();
        self.work(move || whole(count(family, &text))).await
    }

    /// The tokens of each of these texts.
    pub(crate) async fn each(&self, family: Family, texts: &[Cow<'_, str>]) -> Result<Vec<i64>, EdgeError> {
        let of_all =
            move |texts: &[Cow<'_, str>]| texts.iter().map(|text| whole(count(family, text))).collect::<Vec<_>>();
        if is_quick(family, texts.iter().map(|text| text.len()).sum()) {
            return Ok(of_all(texts));
        }
        let texts: Vec<Cow<'static, str>> = texts.iter().map(|text| Cow::Owned(text.clone().into_owned())).collect();
        self.work(move || of_all(&texts)).await
    }

    /// Does something with a request: in place if it is small, else read anew where it may block. `request` is that of
    /// `body`, if it has been read.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        dialect: ClientDialect,
        body: &Bytes,
        request: Option<&Inbound<'_>>,
        work: impl FnOnce(&Inbound<'_>) -> T + Send + 'static,
    ) -> Result<T, EdgeError> {
        if body.len() > IN_PLACE_BYTES {
            let body = body.clone();
            return self.work(move || Ok(work(&Inbound::parse(dialect, &body)?))).await?;
        }
        Ok(match request {
            Some(request) => work(request),
            None => work(&Inbound::parse(dialect, body)?),
        })
    }

    /// Does work of this kind where it may block.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EdgeError> {
        Ok(self.blocking.run(work).await?)
    }
}

fn is_quick(family: Family, bytes: usize) -> bool {
    let limit = if family == Family::Estimated { ESTIMATED_IN_PLACE_BYTES } else { COUNTED_IN_PLACE_BYTES };
    bytes <= limit && is_loaded(family)
}

fn of_chat(measure: Measure, request: &Inbound<'_>, ours: Option<&str>) -> i64 {
    of_countable(measure, &request.countable(), ours)
}

fn of_countable(measure: Measure, counted: &Countable<'_>, ours: Option<&str>) -> i64 {
    let texts = count_messages(measure.family, counted.texts.iter().map(Cow::as_ref).chain(ours));
    let images = measure.images.all(counted.images, counted.images_at_a_glance);
    whole(texts.saturating_add(images).saturating_add(counted.media_tokens))
}

fn of_embeddings(family: Family, request: &EmbeddingsRequest<'_>) -> Vec<i64> {
    match &request.input {
        EmbeddingInput::Texts(texts) => texts.iter().map(|text| whole(count(family, text))).collect(),
        EmbeddingInput::Tokens(lengths) => lengths.iter().map(|length| whole(*length)).collect(),
    }
}

/// The tokens of text that went to a client, and of what was written beside it and not shown, unless they were counted as
/// it went.
pub(crate) fn output(family: Family, delivered: &Delivered, counted: Option<u64>) -> i64 {
    let written = i64::try_from(delivered.written_for_each()).unwrap_or(i64::MAX);
    shown(family, delivered, counted).saturating_mul(written)
}

fn shown(family: Family, delivered: &Delivered, counted: Option<u64>) -> i64 {
    if let Some(counted) = counted {
        return i64::try_from(counted).unwrap_or(i64::MAX);
    }
    let text = delivered.text();
    if text.is_empty() {
        return 0;
    }
    let kept = if text.len() <= EXACT_DELIVERED_BYTES { count(family, text) } else { estimate(text) };
    // What was not kept is taken to be like what was.
    let characters = text.chars().count().max(1);
    let beyond = usize::try_from(delivered.chars_beyond()).unwrap_or(usize::MAX);
    whole(kept.saturating_add(kept.saturating_mul(beyond) / characters))
}

fn whole(tokens: usize) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_count_is_the_same_in_place_and_elsewhere() {
        let counter = TokenCounter::new();
        let body = |text: &str| {
            Bytes::from(serde_json::json!({ "messages": [{ "role": "user", "content": text }] }).to_string())
        };
        let (small, large) = (body("two words"), body(&"two words ".repeat(2_000)));
        for (body, model) in [(small.clone(), "demo"), (large.clone(), "demo"), (large, "gpt-4o"), (small, "gpt-4o")] {
            let (request, measure) = (Inbound::parse(ClientDialect::Chat, &body).unwrap(), Measure::of(model));
            let counted = counter.chat(measure, &body, &request, Some("ours")).await.unwrap();
            assert_eq!(counted, of_chat(measure, &request, Some("ours")));
            assert!(counted > counter.chat(measure, &body, &request, None).await.unwrap());
        }
    }

    #[tokio::test]
    async fn token_inputs_count_by_their_number() {
        let body = Bytes::from_static(br#"{"input":[[1,2,3],[4]]}"#);
        let request = EmbeddingsRequest::parse(&body).unwrap();
        assert_eq!(TokenCounter::new().embeddings(Family::Estimated, &body, &request).await.unwrap(), [3, 1]);
    }
}
