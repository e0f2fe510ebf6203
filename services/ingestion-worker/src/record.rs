//! What a job came to, in the queue. Every record is fenced: if the claim was lost in between, nothing is changed.

use std::time::Duration;

use store::StoreError;
use store::queue::{Claim, ParserTries};
use tokio::time::{sleep, timeout};

use crate::embed::{MAX_WAITING, back_off};
use crate::job::{JobEnd, MAX_PARSER_DEATHS, Workshop};
use crate::tally::Counted;

/// How long a document whose parser died waits.
const PARSER_PAUSE: Duration = Duration::from_secs(1);
/// After this long a job that cannot be recorded is left to its lease.
const DEADLINE: Duration = Duration::from_secs(120);
/// Between tries to record, doubling up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Workshop {
    /// Records how a job ended, if need be again and again: as long as the claim is kept, a database that comes back costs
    /// the document no attempt.
    pub(crate) async fn record(&self, claim: &Claim, end: &JobEnd) {
        match timeout(DEADLINE, self.keep_recording(claim, end)).await {
            Ok(Some(true)) => {}
            Ok(Some(false)) => self.fenced(claim),
            Ok(None) | Err(_) => {
                let document = claim.key.document.0;
                tracing::warn!(document, "the end of a job was not recorded; the document is claimed again");
            }
        }
    }

    /// Says and counts that a job changed nothing.
    pub(crate) fn fenced(&self, claim: &Claim) {
        tracing::info!(
            document = claim.key.document.0,
            claim_token = claim.key.token,
            fenced = self.tally.count(Counted::Fenced),
            "a job ended after its claim was lost; nothing was written"
        );
    }

    /// Returns whether the claim still held; `None` when it cannot be recorded at all.
    async fn keep_recording(&self, claim: &Claim, end: &JobEnd) -> Option<bool> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.record_once(claim, end).await {
                Ok(held) => return Some(held),
                Err(error) => {
                    let again = error.is_transient();
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        document = claim.key.document.0,
                        again,
                        "the end of a job could not be recorded"
                    );
                    if !again {
                        return None;
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns whether the claim still held.
    async fn record_once(&self, claim: &Claim, end: &JobEnd) -> Result<bool, StoreError> {
        let (key, document) = (claim.key, claim.key.document.0);
        let (held, counted) = match end {
            JobEnd::GivenUp | JobEnd::Lost => return Ok(false),
            JobEnd::Failed(failure) => {
                let held = self.store.fail_document(key, *failure).await?;
                tracing::info!(document, code = failure.code(), held, "a document failed");
                (held, Counted::Failed)
            }
            JobEnd::OutOfBudget(wait) => {
                let held = self.store.delay_for_budget(key, *wait).await?;
                let wait_ms = wait.as_millis() as u64;
                tracing::info!(document, wait_ms, held, "a document waits for its project's budget");
                (held, Counted::Delayed)
            }
            JobEnd::LeftAlone => {
                let held = self.store.hand_back_documents(&[key]).await? == 1;
                tracing::info!(document, held, "a document waits until its provider is asked again");
                (held, Counted::PutBack)
            }
            JobEnd::Outdated => {
                let held = self.store.hand_back_documents(&[key]).await? == 1;
                tracing::info!(document, held, "a document is begun anew with its store's new embedding model");
                (held, Counted::PutBack)
            }
            JobEnd::Unavailable { failure, asked } => {
                let wait = back_off(u32::try_from(claim.retries).unwrap_or(0), *asked);
                let held = self.store.delay_document(key, *failure, wait, MAX_WAITING).await?;
                let wait_ms = wait.as_millis() as u64;
                tracing::info!(document, code = failure.code(), wait_ms, held, "a document waits to be tried again");
                (held, Counted::Delayed)
            }
            JobEnd::ParserDied(failure) => {
                let tries =
                    ParserTries { max_deaths: MAX_PARSER_DEATHS, max_attempts: self.max_attempts, delay: PARSER_PAUSE };
                let Some(death) = self.store.record_parser_death(key, *failure, tries).await? else {
                    return Ok(false);
                };
                let (code, deaths) = (failure.code(), death.deaths);
                if death.is_final {
                    tracing::info!(document, code, deaths, "a document failed");
                    (true, Counted::Failed)
                } else {
                    tracing::info!(document, code, deaths, "a parser died; the document is tried again");
                    (true, Counted::Delayed)
                }
            }
        };
        if held {
            self.tally.count(counted);
        }
        Ok(held)
    }
}
