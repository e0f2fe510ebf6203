//! The connection that ledger calls go over.

use std::collections::HashSet;
use std::time::Duration;

use domain::{ApiKeyId, InstanceId, ProjectId, RequestId};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row};
use tokio::time::timeout;
use uuid::Uuid;

use super::message::{Message, json, read_admission, without_nul};
use super::{Admission, Ask, LedgerEpoch, OpenCallRow, Settlement};
use crate::{Store, StoreError};

/// A connection that has gone silent is given up then. Locks are waited for 1 s each; a batch that takes longer in all, over
/// many busy keys, has an unknown outcome as well, and is asked for again.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection of its own for ledger calls, made when it is first needed and made anew after it was lost. A call that is
/// dropped half-way, or fails by the connection, has an unknown outcome.
pub struct LedgerLink {
    options: PgConnectOptions,
    connect_patience: Duration,
    connection: Option<PgConnection>,
}

impl Store {
    /// A connection for ledger calls. It is one more than the pool has: see `DB_MAX_CONNS`.
    #[must_use]
    pub fn ledger_link(&self) -> LedgerLink {
        let (options, connect_patience) = self.connect_options();
        LedgerLink { options, connect_patience, connection: None }
    }
}

impl LedgerLink {
    /// Admits or denies calls, in order, each against what the admitted ones before it left. The answers are in the
    /// order of the asks. `again` says that an earlier try with these asks has an unknown outcome: what it took is given
    /// back first.
    ///
    /// # Errors
    /// [`StoreError::EpochChanged`] when `epoch` is not the running one, [`StoreError::InstanceLost`] when the others have
    /// given this instance up; nothing is admitted then. Otherwise as for any statement.
    pub async fn admit(
        &mut self,
        instance: InstanceId,
        epoch: LedgerEpoch,
        again: bool,
        asks: &[&Ask],
    ) -> Result<Vec<Admission>, StoreError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let details: Vec<String> = asks.iter().map(|ask| open_details(ask)).collect();
        let each = |value: fn(&Ask) -> i64| asks.iter().map(move |ask| Some(value(ask)));
        let message = Message::call("admit_v2")
            .uuid(instance.0)
            .uuid(epoch.0)
            .flag(again)
            .uuids(asks.iter().map(|ask| ask.request.0))
            .integers(each(|ask| ask.project.0))
            .integers(asks.iter().map(|ask| ask.key.map(i64::from)))
            .integers(each(|ask| ask.prompt_tokens.max(0)))
            .integers(each(|ask| ask.output_tokens.max(0)))
            .integers(each(|ask| ask.min_output.max(0)))
            .integers(each(|ask| ask.input_price.0))
            .integers(each(|ask| ask.output_price.0))
            .integers(each(|ask| ask.fixed_cost.0))
            .integers(each(|ask| ask.cost(ask.output_tokens).0))
            .json(details.iter().map(String::as_str));
        self.run(message.finish()).await?.iter().map(read_admission).collect()
    }

    /// Settles calls. Returns the ids that this changed; the others had been settled before and are as they were. What it
    /// did is durable once [`LedgerLink::flush`], begun afterwards, has returned.
    ///
    /// # Errors
    /// As for any statement. Sending the same batch again is harmless.
    pub async fn settle(
        &mut self,
        instance: InstanceId,
        settlements: &[Settlement],
    ) -> Result<Vec<RequestId>, StoreError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let entries: Vec<String> = settlements
            .iter()
            .map(|settlement| joined(&without_nul(settlement.call.ask.details.clone()), &json(&settlement.entry)))
            .collect();
        let each = |value: fn(&Settlement) -> i64| settlements.iter().map(move |settlement| Some(value(settlement)));
        let message = Message::call("settle_v2")
            .uuid(instance.0)
            .uuids(settlements.iter().map(|settlement| settlement.call.ask.request.0))
            .integers(settlements.iter().map(|settlement| settlement.call.admitted_at.map(|at| at.0)))
            .integers(each(|settlement| settlement.call.ask.project.0))
            .integers(settlements.iter().map(|settlement| settlement.call.ask.key.map(i64::from)))
            .integers(each(|settlement| settlement.call.held_tokens))
            .integers(each(|settlement| settlement.call.held_cost.0))
            .integers(each(|settlement| i64::from(settlement.counts)))
            .integers(each(|settlement| settlement.tokens))
            .integers(each(|settlement| settlement.cost.0))
            .json(entries.iter().map(String::as_str));
        let rows = self.run(message.finish()).await?;
        read_ids(&rows)
    }

    /// Makes everything that was committed before this call durable: the log is flushed in order, so one durable
    /// transaction covers all asynchronous ones before it, on whatever connection. Returns the running epoch: where it is
    /// another one than at the flush before, a crash in between may have lost what was committed in between.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn flush(&mut self) -> Result<LedgerEpoch, StoreError> {
        let rows = self.run(Message::call("flush_v1").finish()).await?;
        Ok(LedgerEpoch(first(&rows)?.try_get::<Uuid, _>(0)?))
    }

    /// Puts open calls back that a crash of the database has lost, and returns the running epoch: whoever has put its
    /// calls back may admit under it. Calls that are there, or settled, stay as they are; no cap refuses any. Calls whose
    /// admission is not known are left out.
    ///
    /// # Errors
    /// As for any statement. Doing it again is harmless.
    pub async fn reassert(&mut self, instance: InstanceId, calls: &[OpenCallRow]) -> Result<LedgerEpoch, StoreError> {
        let known: Vec<&OpenCallRow> = calls.iter().filter(|call| call.admitted_at.is_some()).collect();
        let details: Vec<String> = known.iter().map(|call| open_details(&call.ask)).collect();
        let each = |value: fn(&OpenCallRow) -> i64| known.iter().map(move |call| Some(value(call)));
        let message = Message::call("reassert_v1")
            .uuid(instance.0)
            .uuids(known.iter().map(|call| call.ask.request.0))
            .integers(known.iter().map(|call| call.admitted_at.map(|at| at.0)))
            .integers(each(|call| call.ask.project.0))
            .integers(known.iter().map(|call| call.ask.key.map(i64::from)))
            .integers(each(|call| call.held_tokens))
            .integers(each(|call| call.held_cost.0))
            .integers(each(|call| call.output_tokens))
            .json(details.iter().map(String::as_str));
        let rows = self.run(message.finish()).await?;
        Ok(LedgerEpoch(first(&rows)?.try_get::<Uuid, _>(0)?))
    }

    /// Those of these projects that somebody has locked, or whose key, and does not give back within some milliseconds.
    /// Nothing is locked for it while it waits.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_locked_projects(
        &mut self,
        payers: impl Iterator<Item = (ProjectId, Option<ApiKeyId>)> + Clone,
    ) -> Result<HashSet<ProjectId>, StoreError> {
        let message = Message::call("list_locked_projects_v1")
            .integers(payers.clone().map(|(project, _)| Some(project.0)))
            .integers(payers.map(|(_, key)| key.map(i64::from)));
        let rows = self.run(message.finish()).await?;
        rows.iter().map(|row| Ok(ProjectId(row.try_get(0)?))).collect()
    }

    /// The open calls of an instance that were admitted at least that long ago.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_open_calls(&mut self, instance: InstanceId, age: Duration) -> Result<Vec<RequestId>, StoreError> {
        let message = Message::call("list_open_calls_v1").uuid(instance.0).integer(milliseconds(age));
        let rows = self.run(message.finish()).await?;
        read_ids(&rows)
    }

    /// Takes back admissions whose reply was lost, so that they leave no trace. Returns how many there were.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn forget_calls(&mut self, calls: &[RequestId]) -> Result<i64, StoreError> {
        let message = Message::call("forget_calls_v1").uuids(calls.iter().map(|call| call.0));
        let rows = self.run(message.finish()).await?;
        Ok(first(&rows)?.try_get(0)?)
    }

    /// Instances with open calls that were given up, or that left at least that long ago.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_orphaned_instances(&mut self, after: Duration) -> Result<Vec<InstanceId>, StoreError> {
        let rows = self.run(Message::call("list_orphaned_instances_v1").integer(milliseconds(after)).finish()).await?;
        rows.iter().map(|row| Ok(InstanceId(row.try_get(0)?))).collect()
    }

    /// Settles open calls of such an instance by what they held, at most `limit`, each marked as an estimate. Returns how
    /// many there were; none when the instance may be alive.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn give_up(&mut self, instance: InstanceId, after: Duration, limit: u32) -> Result<i64, StoreError> {
        let message =
            Message::call("give_up_v1").uuid(instance.0).integer(milliseconds(after)).integer(i64::from(limit));
        let rows = self.run(message.finish()).await?;
        Ok(first(&rows)?.try_get(0)?)
    }

    /// Sends one message. Whatever the server did not itself refuse ends the connection: what comes after it on the wire
    /// may belong to the message before.
    async fn run(&mut self, sql: String) -> Result<Vec<PgRow>, StoreError> {
        // Taken out, so that a call that is dropped half-way takes the connection with it.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => timeout(self.connect_patience, self.options.connect()).await.map_err(|_| no_answer())??,
        };
        let answer = timeout(PATIENCE, sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection)).await;
        match answer {
            Err(_) => {
                // Said goodbye to in passing: nothing more is expected of it.
                drop(connection);
                Err(no_answer())
            }
            Ok(Err(error)) if error.as_database_error().is_none() => Err(error.into()),
            Ok(answer) => {
                let answer = answer.map_err(StoreError::from);
                // A server that ends sessions says so in an error of its own.
                if !matches!(answer, Err(StoreError::Unavailable { .. })) {
                    self.connection = Some(connection);
                }
                answer
            }
        }
    }

    /// Whether the last call left a connection behind.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Closes the connection in order.
    pub async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            // A server that does not take the goodbye notices the end of the connection.
            let _ = timeout(PATIENCE, connection.close()).await;
        }
    }
}

fn no_answer() -> StoreError {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()).into()
}

fn first(rows: &[PgRow]) -> Result<&PgRow, StoreError> {
    rows.first().ok_or(StoreError::NotFound)
}

fn read_ids(rows: &[PgRow]) -> Result<Vec<RequestId>, StoreError> {
    rows.iter().map(|row| Ok(RequestId(row.try_get(0)?))).collect()
}

/// What an open row says of a call: the details, and the prices that its hold is made of, whatever becomes of them
/// meanwhile.
fn open_details(ask: &Ask) -> String {
    let (input, output, fixed) = (ask.input_price.0, ask.output_price.0, ask.fixed_cost.0);
    let prices = format!(r#"{{"prices":{{"input":{input},"output":{output},"fixed":{fixed}}}}}"#);
    joined(&without_nul(ask.details.clone()), &prices)
}

/// Two JSON objects as one. Of members with the same name jsonb keeps the last, which is the second object's.
fn joined(first: &str, second: &str) -> String {
    match (first.trim_end().strip_suffix('}'), second.strip_prefix('{')) {
        (Some(first), Some(second)) if !first.ends_with('{') && second != "}" => format!("{first},{second}"),
        _ => second.to_owned(),
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
