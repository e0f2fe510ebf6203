//! The document queue: claims under a lease, by the database's clock, and everything that ends a claim.
//!
//! A claim is known by its [`ClaimKey`]: document, token and content version. Every write of a worker carries it and
//! changes nothing when another claim, a newer upload or a verdict has come between; a worker that wakes up late can do
//! no harm.

use std::time::Duration;

use domain::{BlobId, ConnectionId, DocumentFailure, DocumentId, ProjectId, StoreId};

use crate::bounded::Transaction;
use crate::{Store, StoreError, Topic};

/// How long the server works on a statement that claims, renews or finishes under a lease, before it refuses: a quarter
/// of the lease, at most ten seconds.
#[must_use]
pub fn patience(lease: Duration) -> Duration {
    (lease / 4).min(Duration::from_secs(10))
}

/// Claims that ended without a verdict after which a document may be what ended them: a worker died of it, or beside it.
/// So many prove nothing yet, since a worker that dies takes all its documents along.
pub const SUSPECT_AFTER: i32 = 2;

/// What fences the writes of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimKey {
    /// The document.
    pub document: DocumentId,
    /// Rises with every claim.
    pub token: i64,
    /// The content that is being ingested.
    pub content_version: i32,
}

/// A claimed document.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What fences its writes.
    pub key: ClaimKey,
    /// Where it goes.
    pub store: StoreId,
    /// What embeds it.
    pub connection: ConnectionId,
    /// Its bytes.
    pub blob: BlobId,
    /// How many.
    pub size: i64,
    /// The name it was uploaded under.
    pub file_name: String,
    /// The type it was found to have at upload.
    pub media_type: String,
    /// Claims so far, this one included, since the last upload, reprocess or finish.
    pub attempts: i32,
    /// Passing errors in a row that it has waited out.
    pub retries: i32,
    /// How often its parser died.
    pub parser_deaths: i32,
}

impl Claim {
    /// Whether workers have died of this document or beside it, [`SUSPECT_AFTER`] times. What its parser died of is its
    /// own and harms nobody.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.attempts - 1 - self.parser_deaths >= SUSPECT_AFTER
    }
}

/// How to claim.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest<'a> {
    /// Who claims: `host/pid/` and 8 hexadecimal digits.
    pub owner: &'a str,
    /// Stores after this one are looked at.
    pub cursor: StoreId,
    /// How many stores to look at.
    pub window: i32,
    /// How many documents at most.
    pub slots: i64,
    /// How long the lease is.
    pub lease: Duration,
    /// Claims after which a document whose lease lapses again is given up.
    pub max_attempts: i32,
    /// Connections that are left alone: of stores that are embedded by one of them nothing is begun.
    pub left_alone: &'a [ConnectionId],
    /// Connections that are to be tried with one document.
    pub on_trial: &'a [ConnectionId],
    /// How many of the lapsed ones may be suspects ([`Claim::is_suspect`]). A process that never has two of them at a time
    /// does not let one that kills it take a harmless one through all its attempts.
    pub suspects: i64,
}

/// What a claim brought.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// The documents.
    pub documents: Vec<Claim>,
    /// The last store that was looked at and, if the slots were not enough for each, had its turn. `None` when no store after
    /// the cursor has anything waiting.
    pub next_cursor: Option<StoreId>,
    /// Something was due and was not had, because somebody else was at it in the same moment.
    pub contended: bool,
}

/// What the death of a parser came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParserDeath {
    /// How often the document's parser has died.
    pub deaths: i32,
    /// Whether that was the last time: the document has failed.
    pub is_final: bool,
}

/// How often a document is tried again whose parser dies.
#[derive(Clone, Copy, Debug)]
pub struct ParserTries {
    /// Deaths after which it fails.
    pub max_deaths: i32,
    /// Claims without a verdict after which it fails.
    pub max_attempts: i32,
    /// How long it waits in between.
    pub delay: Duration,
}

impl Store {
    /// Claims documents: lapsed leases first, then due ones, fairly between the stores after the cursor. A document whose
    /// lease lapsed at its last attempt gets its final `failed` here. One statement under the database's clock; what
    /// somebody else is claiming is skipped. If the answer is not waited for, nothing was claimed.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when it takes longer than the [`patience`] of the lease; otherwise as for any statement.
    pub async fn claim_documents(&self, request: &ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        let ids = |connections: &[ConnectionId]| connections.iter().map(|connection| connection.0).collect::<Vec<_>>();
        let mut transaction = self.begin_by_index(patience(request.lease)).await?;
        let rows = sqlx::query_file!(
            "src/queries/claim.sql",
            request.cursor.0,
            request.window,
            request.slots,
            request.owner,
            request.max_attempts,
            DocumentFailure::GaveUpAfterAttempts.sentence(),
            milliseconds(request.lease),
            &ids(request.left_alone),
            &ids(request.on_trial),
            SUSPECT_AFTER,
            request.suspects
        )
        .fetch_all(&mut transaction)
        .await?;
        transaction.commit().await?;
        let mut claimed = Claimed::default();
        for row in rows {
            claimed.next_cursor = row.next_cursor.map(StoreId);
            claimed.contended = row.contended;
            let (Some(id), Some(token), Some(content_version)) = (row.id, row.claim_token, row.content_version) else {
                continue;
            };
            claimed.documents.push(Claim {
                key: ClaimKey { document: DocumentId(id), token, content_version },
                store: StoreId(row.store_id.unwrap_or_default()),
                connection: ConnectionId(row.connection_id.unwrap_or_default()),
                blob: BlobId(row.blob_id.unwrap_or_default()),
                size: row.size.unwrap_or_default(),
                file_name: row.file_name.unwrap_or_default(),
                media_type: row.media_type.unwrap_or_default(),
                attempts: row.attempts.unwrap_or_default(),
                retries: row.retries.unwrap_or_default(),
                parser_deaths: row.parser_deaths.unwrap_or_default(),
            });
        }
        Ok(claimed)
    }

    /// A transaction whose statements the server ends after `patience`, whether or not anybody still waits for them.
    pub(crate) async fn begin_within(&self, patience: Duration) -> Result<Transaction, StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query_scalar!("SELECT set_config('statement_timeout', $1, true)", milliseconds(patience).to_string())
            .fetch_one(&mut transaction)
            .await?;
        transaction.beyond(patience);
        Ok(transaction)
    }

    /// The same for a statement of the queue. Its plan is made once and by index alone: planning takes longer than the
    /// work, and the tables are small when the first plan is made and large later.
    pub(crate) async fn begin_by_index(&self, patience: Duration) -> Result<Transaction, StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query!(
            "SELECT set_config('statement_timeout', $1, true) AS timeout,
                    set_config('plan_cache_mode', 'force_generic_plan', true) AS mode,
                    set_config('enable_seqscan', 'off', true) AS scan, set_config('jit', 'off', true) AS jit",
            milliseconds(patience).to_string()
        )
        .fetch_one(&mut transaction)
        .await?;
        transaction.beyond(patience);
        Ok(transaction)
    }

    /// Turns delayed documents whose time has come into pending ones; returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn promote_delayed_documents(&self) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "UPDATE documents SET status = 'pending'
              WHERE id IN (SELECT id FROM documents WHERE status = 'delayed' AND run_at <= clock_timestamp()
                            ORDER BY run_at LIMIT 1000 FOR UPDATE SKIP LOCKED)"
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }

    /// Renews the leases of a process's claims in one statement. Claims missing from the answer are lost.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when it takes longer than the [`patience`] of the lease; otherwise as for any statement.
    pub async fn renew_leases(&self, claims: &[ClaimKey], lease: Duration) -> Result<Vec<DocumentId>, StoreError> {
        let (ids, tokens): (Vec<i64>, Vec<i64>) = claims.iter().map(|key| (key.document.0, key.token)).unzip();
        let mut transaction = self.begin_by_index(patience(lease)).await?;
        let renewed = sqlx::query_scalar!(
            "UPDATE documents d SET lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond'
               FROM unnest($1::bigint[], $2::bigint[]) c (id, token)
              WHERE d.id = c.id AND d.claim_token = c.token AND d.status = 'processing'
             RETURNING d.id",
            &ids,
            &tokens,
            milliseconds(lease)
        )
        .fetch_all(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(renewed.into_iter().map(DocumentId).collect())
    }

    /// Shows how far a claim is. Returns whether the claim still holds.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn set_progress(&self, key: ClaimKey, stage: &str, done: i32, total: i32) -> Result<bool, StoreError> {
        let result = sqlx::query!(
            "UPDATE documents SET stage = $4, progress_done = $5, progress_total = $6
              WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing'",
            key.document.0,
            key.token,
            key.content_version,
            stage,
            done,
            total
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Ends a claim whose parser died. The attempt counts; the document waits to be tried again, or fails with the code
    /// when that was the last try. `None` when the claim is lost.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn record_parser_death(
        &self,
        key: ClaimKey,
        failure: DocumentFailure,
        tries: ParserTries,
    ) -> Result<Option<ParserDeath>, StoreError> {
        let row = sqlx::query!(
            r#"UPDATE documents SET
                   status = CASE WHEN parser_deaths + 1 >= $6 OR attempts >= $7 THEN 'failed' ELSE 'delayed' END,
                   run_at = clock_timestamp() + $8::bigint * interval '1 millisecond',
                   parser_deaths = parser_deaths + 1, error_code = $4, error_text = $5, claimed_by = NULL,
                   claimed_at = NULL, lease_until = NULL, stage = NULL, updated_at = clock_timestamp()
                WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing'
               RETURNING parser_deaths, status = 'failed' AS "is_final!""#,
            key.document.0,
            key.token,
            key.content_version,
            failure.code(),
            failure.sentence(),
            tries.max_deaths,
            tries.max_attempts,
            milliseconds(tries.delay)
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| ParserDeath { deaths: row.parser_deaths, is_final: row.is_final }))
    }

    /// Ends a claim for good with a code and a sentence. Returns whether the claim still held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn fail_document(&self, key: ClaimKey, failure: DocumentFailure) -> Result<bool, StoreError> {
        let result = sqlx::query!(
            "UPDATE documents SET status = 'failed', error_code = $4, error_text = $5, claimed_by = NULL,
                                  claimed_at = NULL, lease_until = NULL, stage = NULL, updated_at = clock_timestamp()
              WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing'",
            key.document.0,
            key.token,
            key.content_version,
            failure.code(),
            failure.sentence()
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Ends a claim that met something passing: the attempt is given back and the document waits, `delayed`. What it
    /// meets `max_age` after the first such end in a row, or later, fails it with the code instead; no wait goes beyond
    /// that moment. Returns whether the claim still held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delay_document(
        &self,
        key: ClaimKey,
        failure: DocumentFailure,
        delay: Duration,
        max_age: Duration,
    ) -> Result<bool, StoreError> {
        let result = sqlx::query!(
            "UPDATE documents SET
                 status = CASE WHEN retrying_since + $7::bigint * interval '1 millisecond' <= clock_timestamp()
                               THEN 'failed' ELSE 'delayed' END,
                 run_at = least(clock_timestamp() + $6::bigint * interval '1 millisecond',
                                coalesce(retrying_since, clock_timestamp()) + $7::bigint * interval '1 millisecond'),
                 attempts = greatest(attempts - 1, 0), retries = retries + 1,
                 retrying_since = coalesce(retrying_since, clock_timestamp()),
                 error_code = $4, error_text = $5, claimed_by = NULL, claimed_at = NULL, lease_until = NULL,
                 stage = NULL, updated_at = clock_timestamp()
              WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing'",
            key.document.0,
            key.token,
            key.content_version,
            failure.code(),
            failure.sentence(),
            milliseconds(delay),
            milliseconds(max_age)
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Ends a claim whose project has no budget left: the attempt is given back and the document waits, `delayed`, for
    /// `delay` or until the project is changed ([`Store::release_budget_waits`]). Such a wait is no retry, and what came
    /// before it is not held against the document any more. Returns whether the claim still held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delay_for_budget(&self, key: ClaimKey, delay: Duration) -> Result<bool, StoreError> {
        let failure = DocumentFailure::Budget;
        let result = sqlx::query!(
            "UPDATE documents SET
                 status = 'delayed', run_at = clock_timestamp() + $6::bigint * interval '1 millisecond',
                 attempts = greatest(attempts - 1, 0), retrying_since = NULL, error_code = $4, error_text = $5,
                 claimed_by = NULL, claimed_at = NULL, lease_until = NULL, stage = NULL,
                 updated_at = clock_timestamp()
              WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing'",
            key.document.0,
            key.token,
            key.content_version,
            failure.code(),
            failure.sentence(),
            milliseconds(delay)
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Makes the documents and switches due that wait for a budget of this project: it may have one now. Returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub(crate) async fn release_budget_waits(&self, project: ProjectId) -> Result<u64, StoreError> {
        let released = sqlx::query!(
            "WITH switches AS (
                 UPDATE embedding_switches SET run_at = clock_timestamp()
                  WHERE status = 'building' AND error_code = $2 AND run_at > clock_timestamp()
                    AND store_id IN (SELECT id FROM document_stores WHERE project_id = $1))
             UPDATE documents SET run_at = clock_timestamp()
              WHERE status = 'delayed' AND error_code = $2 AND run_at > clock_timestamp()
                AND store_id IN (SELECT id FROM document_stores WHERE project_id = $1)",
            project.0,
            DocumentFailure::Budget.code()
        )
        .execute(self.pool())
        .await?
        .rows_affected();
        if released > 0 {
            self.notify(Topic::Documents).await?;
        }
        Ok(released)
    }

    /// Puts claims back, due at once and in the place they had, with their attempts given back: what a clean stop does.
    /// Others are told. Returns how many were put back.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn hand_back_documents(&self, claims: &[ClaimKey]) -> Result<u64, StoreError> {
        let (ids, tokens): (Vec<i64>, Vec<i64>) = claims.iter().map(|key| (key.document.0, key.token)).unzip();
        let result = sqlx::query!(
            "UPDATE documents d
                SET status = 'pending', run_at = least(run_at, clock_timestamp()), attempts = greatest(attempts - 1, 0),
                    claimed_by = NULL, claimed_at = NULL, lease_until = NULL, stage = NULL,
                    updated_at = clock_timestamp()
               FROM unnest($1::bigint[], $2::bigint[]) c (id, token)
              WHERE d.id = c.id AND d.claim_token = c.token AND d.status = 'processing'",
            &ids,
            &tokens
        )
        .execute(self.pool())
        .await?;
        if result.rows_affected() > 0 {
            self.notify(Topic::Documents).await?;
        }
        Ok(result.rows_affected())
    }

    /// Tells whoever listens to a topic to look now. Only a hint.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn notify(&self, topic: Topic) -> Result<(), StoreError> {
        sqlx::query!("SELECT pg_notify(notification_channel($1), '')", topic.as_str()).execute(self.pool()).await?;
        Ok(())
    }

    /// The next bytes of a blob: its part with this ordinal, from 0. `None` past the last.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_blob_part(&self, blob: BlobId, ordinal: i32) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(sqlx::query_scalar!("SELECT bytes FROM blob_parts WHERE blob_id = $1 AND ordinal = $2", blob.0, ordinal)
            .fetch_optional(self.pool())
            .await?)
    }
}

pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
