//! Vectors for a batch of chunks: remembered ones first, the rest from the provider, paid through the ledger.

use std::collections::HashMap;
use std::time::Duration;

use domain::{DocumentFailure, NanoUsd, PriceSnapshot, RequestId};
use ledger::{Ending, Ledger, Outcome, PriceBook, Usage};
use providers::{Attempts, Connection, Providers, UpstreamError};
use store::ingest::{IngestSettings, Paid};
use store::ledger::{Ask, Denial};
use store::queue::ClaimKey;
use store::switches::SwitchKey;
use store::{Store, StoreError};
use tokio::time::Instant;
use vault::Vault;

use crate::job::JobEnd;
use crate::plan::Planned;

/// One batch with all its retries.
const BATCH_DEADLINE: Duration = Duration::from_secs(120);
/// Waits of a document that meets a provider or database that is away, before it fails for good.
pub(crate) const MAX_WAITING: Duration = Duration::from_secs(24 * 3600);
const FIRST_WAIT: Duration = Duration::from_secs(15);
/// How long a document waits for a budget that calls in flight hold, and that may be free when they have ended.
const HELD_WAIT: Duration = Duration::from_secs(30);

/// What a batch may have at most. Providers differ; these are what any of them takes.
pub(crate) const BATCH_ITEMS: usize = 32;
pub(crate) const BATCH_TOKENS: i64 = 16_000;

/// What vectors are paid for: it keeps the price, as long as its claim holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payer {
    /// A document.
    Document(ClaimKey),
    /// A store that gets another embedding model.
    Switch(SwitchKey),
}

/// Embeds for one document, or one store.
pub(crate) struct Embedder<'a> {
    store: &'a Store,
    providers: &'a Providers,
    ledger: &'a Ledger,
    settings: &'a IngestSettings,
    connection: Connection,
    payer: Payer,
    prices: PriceBook,
}

impl<'a> Embedder<'a> {
    pub(crate) async fn new(
        store: &'a Store,
        providers: &'a Providers,
        ledger: &'a Ledger,
        vault: &Vault,
        settings: &'a IngestSettings,
        payer: Payer,
    ) -> Result<Self, JobEnd> {
        let target = &settings.embedding;
        let credential = target.open_credential(vault).map_err(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                connection = target.connection.0,
                "the embedding connection's credential cannot be opened"
            );
            JobEnd::Failed(DocumentFailure::CredentialUnreadable)
        })?;
        let connection = retrieval::connection(target, credential)
            .map_err(|_| JobEnd::Failed(DocumentFailure::EmbeddingRejected))?;
        let prices = PriceBook::new(store.list_model_prices().await.map_err(JobEnd::from)?);
        Ok(Self { store, providers, ledger, settings, connection, payer, prices })
    }

    /// The vectors of a batch, in its order.
    pub(crate) async fn embed(&self, batch: &[Planned]) -> Result<Vec<Vec<f32>>, JobEnd> {
        let hashes: Vec<Vec<u8>> = batch.iter().map(|planned| planned.hash.clone()).collect();
        let (project, revision) = (self.settings.project, self.settings.revision);
        let mut known: HashMap<Vec<u8>, Vec<f32>> = self
            .store
            .find_memoised_embeddings(project, revision, &hashes)
            .await
            .map_err(JobEnd::from)?
            .into_iter()
            .collect();
        let mut missing: Vec<&Planned> = Vec::new();
        for planned in batch {
            // A text that stands twice in a batch is paid once.
            if !known.contains_key(&planned.hash) && !missing.iter().any(|other| other.hash == planned.hash) {
                missing.push(planned);
            }
        }
        if !missing.is_empty() {
            let (mut vectors, paid) = self.pay_for(&missing).await?;
            let mut hashes: Vec<Vec<u8>> = missing.iter().map(|planned| planned.hash.clone()).collect();
            let width = usize::try_from(self.settings.width).unwrap_or(0);
            let fitting = vectors.len() == missing.len() && vectors.iter().all(|vector| vector.len() == width);
            if !fitting {
                // Paid for all the same.
                vectors.clear();
                hashes.clear();
            }
            let held = self.memoise(&hashes, &vectors, paid).await;
            match held.map_err(JobEnd::from)? {
                false => return Err(JobEnd::Lost),
                true if !fitting => return Err(JobEnd::Failed(DocumentFailure::EmbeddingWidthMismatch)),
                true => known.extend(hashes.into_iter().zip(vectors)),
            }
        }
        batch
            .iter()
            .map(|planned| known.get(&planned.hash).cloned().ok_or(JobEnd::Failed(DocumentFailure::Internal)))
            .collect()
    }

    async fn memoise(&self, hashes: &[Vec<u8>], vectors: &[Vec<f32>], paid: Paid) -> Result<bool, StoreError> {
        let settings = self.settings;
        match self.payer {
            Payer::Document(key) => self.store.memoise_embeddings(key, settings, hashes, vectors, paid).await,
            Payer::Switch(key) => self.store.memoise_switch_embeddings(key, settings, hashes, vectors, paid).await,
        }
    }

    /// What the provider answers, not looked at yet, and what it was paid.
    async fn pay_for(&self, missing: &[&Planned]) -> Result<(Vec<Vec<f32>>, Paid), JobEnd> {
        let counted: i64 = missing.iter().map(|planned| planned.tokens).sum();
        let (prices, source) = self.prices.price(self.connection.provider, &self.connection.model);
        let mut call = match self.ledger.admit(self.ask(counted, &prices)).await {
            Ok(Outcome::Open(call)) => call,
            Ok(Outcome::Denied(denial)) => {
                let cost = prices.cost(counted, 0, 0, 0).max(prices.cost(counted, 0, counted, 0));
                return Err(JobEnd::OutOfBudget(budget_wait(&denial, counted, cost)));
            }
            Ok(Outcome::Refused { .. }) => return Err(JobEnd::Lost),
            Err(_) => return Err(JobEnd::unavailable(DocumentFailure::Internal, None)),
        };
        call.priced(prices, source);
        let inputs: Vec<String> = missing.iter().map(|planned| planned.embedded.clone()).collect();
        let mut attempts = Attempts::until(Instant::now() + BATCH_DEADLINE);
        call.sent();
        let answer = self.providers.embed(&self.connection, &inputs, None, &mut attempts).await;
        call.entry_mut().attempts = i32::try_from(attempts.made()).unwrap_or(i32::MAX);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let ending = match error.charge() {
                    providers::Charge::Nothing => Ending::Fault,
                    providers::Charge::Request => Ending::Rejected,
                    providers::Charge::Prompt => Ending::Cut,
                };
                call.finish(ending, error.status(), error.code());
                return Err(end_of(&error));
            }
        };
        if let Some(usage) = answer.usage {
            call.usage(Usage { prompt: usage.prompt_tokens, ..Usage::default() });
        }
        call.finish(Ending::Complete, 200, None);
        // Without a report the ledger charges what was counted, as an estimate.
        let tokens = answer.usage.map_or(counted, |usage| usage.prompt_tokens);
        let paid = Paid { tokens, cost: prices.cost(tokens, 0, 0, 0).0 };
        Ok((answer.vectors, paid))
    }

    fn ask(&self, tokens: i64, prices: &PriceSnapshot) -> Ask {
        let mut details = serde_json::json!({
            "operation": "ingest",
            "model": self.connection.model,
            "provider_type": self.connection.provider.as_str(),
            "connection_id": self.connection.id.0,
        });
        if let (Payer::Document(key), Some(details)) = (self.payer, details.as_object_mut()) {
            details.insert("document_id".to_owned(), key.document.0.into());
        }
        Ask {
            request: RequestId::new(),
            project: self.settings.project,
            key: None,
            prompt_tokens: tokens,
            output_tokens: 0,
            min_output: 0,
            input_price: prices.dearest_input(),
            output_price: prices.output,
            fixed_cost: NanoUsd::ZERO,
            details: details.to_string(),
        }
    }
}

/// A refusal is final; what may pass is waited out.
fn end_of(error: &UpstreamError) -> JobEnd {
    tracing::warn!(status = error.status(), error = error as &dyn std::error::Error, "an embedding call failed");
    match error {
        UpstreamError::LeftAlone { .. } => JobEnd::LeftAlone,
        // Whatever is tried again: neither the address nor the credential nor the request is another then.
        UpstreamError::Refused(_)
        | UpstreamError::Unfit(_)
        | UpstreamError::Auth { .. }
        | UpstreamError::TooLarge { .. } => JobEnd::Failed(DocumentFailure::EmbeddingRejected),
        UpstreamError::Rejected { .. } if !error.is_retryable() => JobEnd::Failed(DocumentFailure::EmbeddingRejected),
        _ => JobEnd::unavailable(DocumentFailure::EmbeddingUnavailable, error.retry_after()),
    }
}

/// How long a document waits whose next call was denied: until the window ends, unless it is only in the way of calls that
/// have not ended yet.
fn budget_wait(denial: &Denial, tokens: i64, cost: NanoUsd) -> Duration {
    let asked = if denial.code.starts_with("cost") { cost.0 } else { tokens };
    if denial.held > 0 && denial.used.saturating_add(asked) <= denial.cap {
        return HELD_WAIT.mul_f64(rand::random_range(0.5..1.0));
    }
    Duration::from_secs(u64::try_from(denial.retry_after_seconds).unwrap_or(1))
}

/// How long a document waits after its nth passing error in a row: doubling from 15 s to an hour, with a random part so
/// that documents that failed together do not return together, and never less than the provider asked for.
pub(crate) fn back_off(retries: u32, asked: Option<Duration>) -> Duration {
    let full = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(retries.min(8))).min(Duration::from_secs(3600));
    let jittered = full.mul_f64(rand::random_range(0.5..1.0));
    asked.map_or(jittered, |asked| asked.max(jittered))
}

#[cfg(test)]
mod tests {
    use domain::Tier;
    use extract::chunk::Chunk;
    use store::ledger::Headroom;
    use tokio::net::TcpListener;
    use upstream::{Behaviour, Options, ReportUsage, Script};

    use super::*;
    use crate::fixture::Fixture;

    fn planned(text: &str, tokens: i64) -> Planned {
        let chunk = Chunk {
            ordinal: 0,
            content: text.to_owned(),
            heading_path: Vec::new(),
            page_from: None,
            page_to: None,
            char_from: 0,
            char_to: 0,
            token_count: 0,
        };
        Planned { chunk, embedded: text.to_owned(), hash: text.as_bytes().repeat(4), tokens }
    }

    #[tokio::test]
    async fn each_batch_is_accounted_as_it_is_paid_and_a_count_of_our_own_is_an_estimate() {
        let upstream = upstream::serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), Options::scripted()).unwrap();
        let silent = Behaviour { usage: ReportUsage::Never, ..Behaviour::default() };
        upstream.script(Script { path: "/v1/embeddings".to_owned(), queue: vec![silent], ..Script::default() });
        let fixture = Fixture::new(&upstream.base_url(), 384).await.unwrap();
        fixture.database.insert_price("demo-embed", 1_000_000_000, 0).await.unwrap();
        let key = fixture.claim().await.unwrap().key;
        let settings = fixture.store.find_ingest_settings(key.document).await.unwrap().unwrap();
        let workshop = &fixture.workshop;
        let (store, providers, ledger) = (&workshop.store, &workshop.providers, &workshop.ledger);
        let embedder =
            Embedder::new(store, providers, ledger, &workshop.vault, &settings, Payer::Document(key)).await.unwrap();

        embedder.embed(&[planned("counted ", 17)]).await.unwrap();
        let facts = fixture.database.document_facts(fixture.document).await.unwrap();
        assert_eq!((facts.embedded_tokens, facts.embedding_cost), (17, 17 * 1_000));
        embedder.embed(&[planned("reported", 17)]).await.unwrap();

        assert!(fixture.ledger_tasks.finish(Duration::from_secs(30)).await, "both calls are settled");
        let calls = fixture.database.logged_calls(fixture.project).await.unwrap();
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].state.as_str(), calls[0].prompt_tokens, calls[0].charged_tokens), ("estimated", None, 17));
        let reported = calls[1].prompt_tokens.unwrap();
        assert_eq!(calls[1].state, "final");
        let facts = fixture.database.document_facts(fixture.document).await.unwrap();
        assert_eq!(facts.embedded_tokens, 17 + reported, "the document has not finished and has its price");
    }

    #[test]
    fn waits_grow_to_an_hour_and_honour_the_provider() {
        for retries in 0..40 {
            let wait = back_off(retries, None);
            assert!(wait >= FIRST_WAIT / 2 && wait <= Duration::from_secs(3600));
        }
        assert!(back_off(0, Some(Duration::from_secs(600))) >= Duration::from_secs(600));
    }

    #[test]
    fn a_budget_is_waited_for_until_its_window_ends_unless_only_running_calls_are_in_the_way() {
        let denial = |code: &str, used, held| Denial {
            code: code.to_owned(),
            tier: Tier::Project,
            cap: 100,
            used,
            held,
            resets_at: None,
            retry_after_seconds: 7200,
            headroom: Headroom::default(),
        };
        let window = Duration::from_secs(7200);
        assert_eq!(budget_wait(&denial("budget_monthly", 95, 0), 10, NanoUsd(1)), window);
        assert_eq!(budget_wait(&denial("budget_monthly", 95, 40), 10, NanoUsd(1)), window);
        assert!(budget_wait(&denial("budget_monthly", 60, 40), 10, NanoUsd(1000)) <= HELD_WAIT);
        assert_eq!(budget_wait(&denial("cost_daily", 60, 40), 10, NanoUsd(1000)), window);
        assert!(budget_wait(&denial("cost_daily", 60, 40), 1000, NanoUsd(10)) <= HELD_WAIT);
    }

    #[test]
    fn what_no_other_try_would_change_fails_at_once() {
        use providers::Words;
        let failed = |error: UpstreamError| match end_of(&error) {
            JobEnd::Failed(failure) => Some(failure),
            JobEnd::Unavailable { .. } | JobEnd::LeftAlone => None,
            end => panic!("{end:?}"),
        };
        let words = Words::default;
        let rejected = |status| UpstreamError::Rejected { status, words: words() };
        let refused = Some(DocumentFailure::EmbeddingRejected);
        assert_eq!(failed(UpstreamError::Auth { status: 401 }), refused);
        assert_eq!(failed(rejected(404)), refused);
        assert_eq!(failed(rejected(408)), None);
        assert_eq!(failed(UpstreamError::RateLimited { words: words(), retry_after: None }), None);
        assert_eq!(failed(UpstreamError::Failed { status: 500, words: words(), retry_after: None }), None);
        assert!(matches!(end_of(&UpstreamError::LeftAlone { retry_after: None }), JobEnd::LeftAlone));
    }
}
