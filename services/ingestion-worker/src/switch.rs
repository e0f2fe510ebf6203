//! Stores that get another embedding model: builds the vectors of the new one beside those that searches use.
//!
//! One switch at a time in a process, beside the documents and below them: it takes none of their places, and waits
//! wherever a document would wait. A worker that dies leaves what it has written; whoever claims the switch next goes on
//! from there.

use std::sync::Arc;
use std::time::Duration;

use domain::{ConnectionId, DocumentFailure, DocumentId};
use extract::chunk::{Chunk, embedded_text};
use providers::BreakerState;
use sha2::{Digest, Sha256};
use store::StoreError;
use store::queue::patience;
use store::switches::{BareChunk, Switch, SwitchEnd, SwitchKey, SwitchPause};
use tokens::Family;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::dispatcher::jittered;
use crate::embed::{MAX_WAITING, Payer, back_off};
use crate::job::{JobEnd, Workshop, batches};
use crate::plan::Planned;

/// Chunks read at a time.
const WINDOW: i64 = 256;
/// How long a provider that is left alone is not asked on behalf of a switch.
const LEFT_ALONE: Duration = Duration::from_secs(15);
/// For a statement that the server has ended by then.
const ANSWER: Duration = Duration::from_secs(12);

/// Claims switches and works at them.
pub(crate) struct Switcher {
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) owner: Arc<str>,
    pub(crate) poll_interval: Duration,
}

impl Switcher {
    /// Works until it is told to stop; what it was at is put back then.
    pub(crate) async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // Not given up when told to stop: nobody would know of a claim that was made while nobody listened.
            let claimed = timeout(ANSWER, self.claim()).await.unwrap_or(Err(StoreError::Conflict));
            match claimed {
                Ok(Some((switch, sent))) => {
                    self.work(&switch, sent, &stop).await;
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "no switch of an embedding model could be claimed");
                }
            }
            stop.run_until_cancelled(sleep(jittered(self.poll_interval, 0.1))).await;
        }
    }

    async fn claim(&self) -> Result<Option<(Switch, Instant)>, StoreError> {
        let open =
            |(connection, state): (ConnectionId, BreakerState)| (state == BreakerState::Open).then_some(connection);
        let left_alone: Vec<_> = self.workshop.providers.breakers().states().filter_map(open).collect();
        let sent = Instant::now();
        let claimed = self.workshop.store.claim_embedding_switch(&self.owner, self.workshop.lease, &left_alone).await?;
        Ok(claimed.map(|switch| (switch, sent)))
    }

    async fn work(&self, switch: &Switch, claimed: Instant, stop: &CancellationToken) {
        let store = switch.key.store.0;
        tracing::info!(store, connection = switch.settings.embedding.connection.0, "vectors of a new model are built");
        let result = tokio::select! {
            biased;
            () = stop.cancelled() => Err(JobEnd::GivenUp),
            end = self.keep(switch.key, claimed) => Err(end),
            result = self.build(switch) => result,
        };
        let pause = match result {
            Ok(()) => {
                tracing::info!(store, "a store is searched by the vectors of its new model");
                return;
            }
            Err(JobEnd::Lost) => {
                tracing::info!(store, "the switch of a store was lost; nothing more was written");
                return;
            }
            Err(end) => pause(switch, end),
        };
        match timeout(ANSWER, self.workshop.store.pause_embedding_switch(switch.key, pause)).await {
            Ok(Ok(held)) => tracing::info!(store, ?pause, held, "the switch of a store to a new model pauses"),
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(store, error, "the switch of a store could not be put back; its lease lapses");
            }
            Err(_) => tracing::warn!(store, "the switch of a store was not put back in time; its lease lapses"),
        }
    }

    /// Renews the lease until it is lost: a renewal each third, and no use of it when two have failed. The arithmetic is
    /// that of [`crate::lease`].
    async fn keep(&self, key: SwitchKey, claimed: Instant) -> JobEnd {
        let lease = self.workshop.lease;
        let usable = lease - lease / 6;
        let mut until = claimed + usable;
        loop {
            sleep(lease / 3).await;
            let sent = Instant::now();
            match timeout(patience(lease), self.workshop.store.renew_embedding_switch(key, lease)).await {
                Ok(Ok(true)) => until = sent + usable,
                Ok(Ok(false)) => return JobEnd::Lost,
                Ok(Err(_)) | Err(_) if Instant::now() < until => {}
                Ok(Err(_)) | Err(_) => return JobEnd::Lost,
            }
        }
    }

    /// Writes what is missing, and changes the store over when nothing is.
    async fn build(&self, switch: &Switch) -> Result<(), JobEnd> {
        let store = &self.workshop.store;
        store.ensure_vector_table(switch.settings.width).await?;
        if !store.measure_embedding_switch(switch).await? {
            return Err(JobEnd::Lost);
        }
        let embedder = self.workshop.embedder(&switch.settings, Payer::Switch(switch.key)).await?;
        let mut from = DocumentId(0);
        loop {
            let bare = store.list_bare_chunks(switch, from, WINDOW).await?;
            let Some(last) = bare.last() else {
                if from != DocumentId(0) {
                    // Documents before it may have become live meanwhile.
                    from = DocumentId(0);
                    continue;
                }
                match store.finish_embedding_switch(switch).await? {
                    SwitchEnd::Done => return Ok(()),
                    SwitchEnd::Incomplete => continue,
                    SwitchEnd::Lost => return Err(JobEnd::Lost),
                }
            };
            from = last.document;
            let ids: Vec<i64> = bare.iter().map(|chunk| chunk.id).collect();
            let (contextual, family) = (switch.settings.contextual, Family::of(&switch.settings.embedding.model));
            let planned = tokio::task::spawn_blocking(move || {
                bare.into_iter().map(|chunk| planned(chunk, contextual, family)).collect::<Vec<_>>()
            });
            let planned = planned.await.map_err(|_| JobEnd::Failed(DocumentFailure::Internal))?;
            let mut ids = ids.as_slice();
            for batch in batches(&planned) {
                let Some((these, rest)) = ids.split_at_checked(batch.len()) else { break };
                ids = rest;
                let vectors = embedder.embed(batch).await?;
                if !store.write_switch_vectors(switch, these, &vectors).await? {
                    return Err(JobEnd::Lost);
                }
            }
        }
    }
}

/// What a job's end means for a switch.
fn pause(switch: &Switch, end: JobEnd) -> SwitchPause {
    match end {
        JobEnd::Failed(failure) | JobEnd::ParserDied(failure) => SwitchPause::Failed(failure),
        JobEnd::Unavailable { failure, asked } => {
            let delay = back_off(u32::try_from(switch.retries).unwrap_or(0), asked);
            SwitchPause::Unavailable { failure, delay, max_age: MAX_WAITING }
        }
        JobEnd::OutOfBudget(delay) => SwitchPause::OutOfBudget(delay),
        JobEnd::LeftAlone => SwitchPause::PutBack(LEFT_ALONE),
        JobEnd::GivenUp | JobEnd::Lost | JobEnd::Outdated => SwitchPause::PutBack(Duration::ZERO),
    }
}

/// What is embedded for a chunk that is there. It was embedded with title and headings or without, whatever the store
/// says now: its hash tells.
fn planned(bare: BareChunk, contextual: bool, family: Family) -> Planned {
    let chunk = Chunk {
        ordinal: 0,
        heading_path: if bare.heading_path.is_empty() {
            Vec::new()
        } else {
            bare.heading_path.split(" > ").map(str::to_owned).collect()
        },
        content: bare.content,
        page_from: None,
        page_to: None,
        char_from: 0,
        char_to: 0,
        token_count: 0,
    };
    let hash = |text: &str| Sha256::digest(text.as_bytes()).to_vec();
    let (whole, alone) = (embedded_text(&chunk, bare.title.as_deref()), chunk.content.clone());
    let embedded = if hash(&whole) == bare.content_hash {
        whole
    } else if hash(&alone) == bare.content_hash || !contextual {
        alone
    } else {
        whole
    };
    let tokens = i64::try_from(tokens::count(family, &embedded)).unwrap_or(i64::MAX);
    Planned { hash: hash(&embedded), chunk, embedded, tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(hash_of: &str) -> BareChunk {
        BareChunk {
            id: 1,
            document: DocumentId(1),
            title: Some("Manual".to_owned()),
            heading_path: "Manual > Care > Descaling".to_owned(),
            content: "Use vinegar.".to_owned(),
            content_hash: Sha256::digest(hash_of.as_bytes()).to_vec(),
        }
    }

    #[test]
    fn a_chunk_is_embedded_by_the_new_model_as_it_was_by_the_old_one() {
        let whole = "Manual · Care · Descaling\n\nUse vinegar.";
        for contextual in [true, false] {
            let family = Family::of("demo-embed");
            assert_eq!(planned(bare(whole), contextual, family).embedded, whole);
            assert_eq!(planned(bare("Use vinegar."), contextual, family).embedded, "Use vinegar.");
            let unknown = planned(bare("something else"), contextual, family);
            assert_eq!(unknown.embedded, if contextual { whole } else { "Use vinegar." });
            assert_eq!(unknown.hash, Sha256::digest(unknown.embedded.as_bytes()).to_vec());
        }
    }
}
