//! The life of one claimed document, from its bytes to its live version.

use std::sync::Arc;
use std::time::Duration;

use domain::{DocumentFailure, DocumentId};
use extract::{Extracted, Format};
use ledger::Ledger;
use providers::Providers;
use store::ingest::{Finish, IngestSettings, NewChunk};
use store::queue::{Claim, patience};
use store::{Store, StoreError};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use vault::Vault;

use crate::embed::{BATCH_ITEMS, BATCH_TOKENS, Embedder, Payer};
use crate::lease::Lease;
use crate::parser::{ParseError, Parser};
use crate::plan::{Planned, plan};
use crate::progress::{Progress, progress};
use crate::tally::{Counted, Tally};

/// From its claim, whatever the lease.
const JOB_DEADLINE: Duration = Duration::from_secs(15 * 60);
/// A file that kills its parser this often is not tried again.
pub(crate) const MAX_PARSER_DEATHS: i32 = 3;

/// What a job works with.
pub(crate) struct Workshop {
    pub(crate) store: Store,
    pub(crate) providers: Providers,
    pub(crate) ledger: Ledger,
    pub(crate) vault: Arc<Vault>,
    pub(crate) parser: Parser,
    pub(crate) max_chunks: usize,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: i32,
    pub(crate) tally: Arc<Tally>,
}

/// How a job ended, as the queue needs to know it.
#[derive(Debug)]
pub(crate) enum JobEnd {
    /// For good.
    Failed(DocumentFailure),
    /// Something it needs is away; the wait grows with every time.
    Unavailable { failure: DocumentFailure, asked: Option<Duration> },
    /// The project's budget has no room for so long.
    OutOfBudget(Duration),
    /// Its provider is left alone for a while, and was not asked: the document waits as if it had not been begun.
    LeftAlone,
    /// Its store is embedded by another model than the one it was begun with: it begins anew, at no cost.
    Outdated,
    /// The parser died.
    ParserDied(DocumentFailure),
    /// The claim is no longer ours: nothing is written.
    Lost,
    /// This process stops and puts the document back.
    GivenUp,
}

impl JobEnd {
    pub(crate) fn unavailable(failure: DocumentFailure, asked: Option<Duration>) -> Self {
        Self::Unavailable { failure, asked }
    }
}

impl From<StoreError> for JobEnd {
    fn from(error: StoreError) -> Self {
        tracing::warn!(error = &error as &dyn std::error::Error, "a job met a database error");
        if error.is_transient() {
            Self::unavailable(DocumentFailure::Internal, None)
        } else {
            Self::Failed(DocumentFailure::Internal)
        }
    }
}

impl Workshop {
    /// Works a claim to its end and records it. Every record is fenced: if the claim was lost in between, nothing is
    /// changed.
    pub(crate) async fn work(&self, claim: Claim, lease: Lease) {
        let lost = lease.lost().clone();
        let result = tokio::select! {
            biased;
            () = lost.cancelled() => Err(if lease.given_up().is_cancelled() { JobEnd::GivenUp } else { JobEnd::Lost }),
            result = timeout(JOB_DEADLINE, self.ingest(&claim, &lease)) => {
                result.unwrap_or(Err(JobEnd::Failed(DocumentFailure::JobDeadline)))
            }
        };
        let (document, given_up) = (claim.key.document, lease.given_up().clone());
        let Err(end) = result else {
            self.tally.count(Counted::Finished);
            // It is nobody's claim any more: what follows needs no lease.
            drop(lease);
            self.remove_old_versions(document, &given_up).await;
            return;
        };
        lease.ending();
        match end {
            JobEnd::GivenUp => {}
            JobEnd::Lost => self.fenced(&claim),
            end => tokio::select! {
                biased;
                () = lost.cancelled() => if !given_up.is_cancelled() { self.fenced(&claim) },
                () = self.record(&claim, &end) => {}
            },
        }
        drop(lease);
    }

    /// Removes what the document was before, unless the process stops: housekeeping finds what is left.
    async fn remove_old_versions(&self, document: DocumentId, given_up: &CancellationToken) {
        while !given_up.is_cancelled() {
            match self.store.delete_old_versions(document).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        document = document.0,
                        "old versions of a document are left to housekeeping"
                    );
                    return;
                }
            }
        }
    }

    async fn ingest(&self, claim: &Claim, lease: &Lease) -> Result<(), JobEnd> {
        let (progress, display) = progress();
        tokio::select! {
            biased;
            result = self.ingest_telling(claim, lease, &progress) => result,
            never = display.run(&self.store, claim.key) => match never {},
        }
    }

    async fn ingest_telling(&self, claim: &Claim, lease: &Lease, progress: &Progress) -> Result<(), JobEnd> {
        let Some(settings) = self.store.find_ingest_settings(claim.key.document).await? else {
            return Err(JobEnd::Lost);
        };
        progress.at("parsing", 0, 0);
        let extracted = self.parse(claim).await?;
        progress.at("chunking", 0, 0);
        let (extracted, planned) = self.cut(extracted, settings.clone()).await?;
        let resumed_at = self.write((claim, lease), &settings, &planned, progress).await?;
        lease.ending();
        self.finish(claim, &settings, &extracted, planned.len()).await?;
        tracing::info!(document = claim.key.document.0, chunks = planned.len(), resumed_at, "a document is ready");
        Ok(())
    }

    async fn parse(&self, claim: &Claim) -> Result<Extracted, JobEnd> {
        let Some(format) = Format::from_media_type(&claim.media_type) else {
            return Err(JobEnd::Failed(DocumentFailure::UnsupportedType));
        };
        let bytes = self.read(claim).await?;
        // The job as a whole is cancelled by dropping it, which kills the parser too.
        match self.parser.parse(format, &bytes, &CancellationToken::new()).await {
            Ok(parsed) => match parsed.ended_by {
                // It may have been killed from outside: what it sent is taken only when more does not come either.
                Some(failure) if claim.parser_deaths + 1 < MAX_PARSER_DEATHS && claim.attempts < self.max_attempts => {
                    Err(JobEnd::ParserDied(failure))
                }
                _ => Ok(parsed.extracted),
            },
            Err(ParseError::Document(failure)) if is_death(failure) => Err(JobEnd::ParserDied(failure)),
            Err(ParseError::Document(failure)) => Err(JobEnd::Failed(failure)),
            Err(ParseError::Cancelled) => Err(JobEnd::Lost),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a document could not be parsed on this host"
                );
                Err(JobEnd::unavailable(DocumentFailure::Internal, None))
            }
        }
    }

    async fn read(&self, claim: &Claim) -> Result<Vec<u8>, JobEnd> {
        let length = usize::try_from(claim.size).unwrap_or(0);
        let mut bytes = Vec::with_capacity(length);
        for ordinal in 0.. {
            match self.store.find_blob_part(claim.blob, ordinal).await? {
                Some(part) => bytes.extend_from_slice(&part),
                None => break,
            }
        }
        if bytes.len() == length {
            return Ok(bytes);
        }
        // The bytes went with the document, in between.
        tracing::warn!(
            document = claim.key.document.0,
            expected = length,
            found = bytes.len(),
            "a blob is not complete"
        );
        Err(JobEnd::Lost)
    }

    async fn cut(&self, extracted: Extracted, settings: IngestSettings) -> Result<(Extracted, Vec<Planned>), JobEnd> {
        let max_chunks = self.max_chunks;
        let cut = tokio::task::spawn_blocking(move || {
            let planned = plan(&extracted, &settings, max_chunks);
            (extracted, planned)
        });
        let (extracted, planned) = cut.await.map_err(|_| JobEnd::Failed(DocumentFailure::Internal))?;
        Ok((extracted, planned.map_err(JobEnd::Failed)?))
    }

    /// Writes the chunks that are not there yet; returns how many were.
    async fn write(
        &self,
        (claim, lease): (&Claim, &Lease),
        settings: &IngestSettings,
        planned: &[Planned],
        progress: &Progress,
    ) -> Result<usize, JobEnd> {
        self.store.ensure_vector_table(settings.width).await?;
        let written = self.already_written(claim, settings, planned).await?;
        let embedder = self.embedder(settings, Payer::Document(claim.key)).await?;
        let mut done = written;
        progress.at("embedding", done, planned.len());
        for batch in batches(planned.get(written..).unwrap_or_default()) {
            // Nothing is paid for a document that is somebody else's by now.
            if !lease.holds() {
                return Err(JobEnd::Lost);
            }
            let vectors = embedder.embed(batch).await?;
            let chunks: Vec<NewChunk> =
                batch.iter().zip(vectors).map(|(planned, vector)| row(planned, vector)).collect();
            let texts = batch.iter().map(|planned| (ordinal(planned), planned.embedded.as_str()));
            let segment = retrieval::index::segment(texts, settings.language.as_deref());
            if !self.store.write_chunks(claim.key, settings, &chunks, &segment).await? {
                return Err(JobEnd::Lost);
            }
            done += batch.len();
            progress.at("embedding", done, planned.len());
        }
        Ok(written)
    }

    /// What embeds as a store wants it, for whoever keeps the price.
    pub(crate) async fn embedder<'a>(
        &'a self,
        settings: &'a IngestSettings,
        payer: Payer,
    ) -> Result<Embedder<'a>, JobEnd> {
        Embedder::new(&self.store, &self.providers, &self.ledger, &self.vault, settings, payer).await
    }

    async fn finish(
        &self,
        claim: &Claim,
        settings: &IngestSettings,
        extracted: &Extracted,
        chunks: usize,
    ) -> Result<(), JobEnd> {
        let summary = &extracted.summary;
        let finish = Finish {
            chunks: i32::try_from(chunks).unwrap_or(i32::MAX),
            revision: settings.revision,
            pages: (summary.page_count > 0).then(|| i32::try_from(summary.page_count).unwrap_or(i32::MAX)),
            title: summary.title.clone(),
            extraction: serde_json::json!({
                "engine": summary.engine,
                "sanity": summary.sanity,
                "charset": summary.charset,
                "failed_pages": summary.failed_pages,
                "partial_pages": extracted.partial_pages,
            }),
        };
        if self.store.finish_document(claim.key, &finish, patience(self.lease)).await? {
            return Ok(());
        }
        let now = self.store.find_ingest_settings(claim.key.document).await?;
        let outdated = now.is_some_and(|now| now.revision != settings.revision);
        // What is there has vectors that nobody will compare with.
        if outdated && self.store.discard_written_chunks(claim.key).await? {
            return Err(JobEnd::Outdated);
        }
        Err(JobEnd::Lost)
    }

    /// How many chunks, from the first, an earlier claim has written just as they are planned now. If it wrote others,
    /// under other settings or with another model's vectors, they are removed.
    async fn already_written(
        &self,
        claim: &Claim,
        settings: &IngestSettings,
        planned: &[Planned],
    ) -> Result<usize, JobEnd> {
        let written = self.store.list_written_chunks(claim.key, settings).await?;
        let same = written.len() <= planned.len()
            && written.iter().zip(planned).all(|((at, hash, has_vector), planned)| {
                *has_vector && *at == ordinal(planned) && *hash == planned.hash
            });
        if same {
            return Ok(written.len());
        }
        self.store.discard_written_chunks(claim.key).await?;
        Ok(0)
    }
}

fn is_death(failure: DocumentFailure) -> bool {
    matches!(failure, DocumentFailure::ParserCrashed | DocumentFailure::ParserLimit | DocumentFailure::ParserTimeout)
}

fn ordinal(planned: &Planned) -> i32 {
    i32::try_from(planned.chunk.ordinal).unwrap_or(i32::MAX)
}

fn row(planned: &Planned, embedding: Vec<f32>) -> NewChunk {
    let chunk = &planned.chunk;
    let number = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    NewChunk {
        ordinal: ordinal(planned),
        content: chunk.content.replace('\0', ""),
        heading_path: chunk.heading_path.join(" > ").replace('\0', ""),
        page_from: chunk.page_from.map(|page| number(page.into())),
        page_to: chunk.page_to.map(|page| number(page.into())),
        char_from: number(chunk.char_from),
        char_to: number(chunk.char_to),
        token_count: number(chunk.token_count.into()),
        content_hash: planned.hash.clone(),
        embedding,
    }
}

/// Consecutive chunks that fit one call to the provider. A chunk that alone is over the limit goes alone.
pub(crate) fn batches(planned: &[Planned]) -> impl Iterator<Item = &[Planned]> {
    let mut rest = planned;
    std::iter::from_fn(move || {
        let mut tokens = 0_i64;
        let fitting = rest
            .iter()
            .take(BATCH_ITEMS)
            .take_while(|planned| {
                tokens = tokens.saturating_add(planned.tokens);
                tokens <= BATCH_TOKENS
            })
            .count();
        let (batch, after) = rest.split_at_checked(fitting.max(1))?;
        rest = after;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use extract::chunk::Chunk;

    use super::*;

    fn planned(ordinal: u32, tokens: i64) -> Planned {
        let chunk = Chunk {
            ordinal,
            content: String::new(),
            heading_path: Vec::new(),
            page_from: None,
            page_to: None,
            char_from: 0,
            char_to: 0,
            token_count: 0,
        };
        Planned { chunk, embedded: String::new(), hash: Vec::new(), tokens }
    }

    #[test]
    fn batches_hold_every_chunk_once_within_both_limits() {
        let all: Vec<Planned> =
            (0..100).map(|number| planned(number, if number == 40 { 50_000 } else { 900 })).collect();
        let mut next = 0;
        for batch in batches(&all) {
            let tokens: i64 = batch.iter().map(|planned| planned.tokens).sum();
            assert!(batch.len() == 1 || (batch.len() <= BATCH_ITEMS && tokens <= BATCH_TOKENS));
            for planned in batch {
                assert_eq!(planned.chunk.ordinal, next);
                next += 1;
            }
        }
        assert_eq!(next, 100);
        assert_eq!(batches(&[]).count(), 0);
    }
}
