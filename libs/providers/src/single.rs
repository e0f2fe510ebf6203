//! Calls that are answered by one body: embeddings, moderations, reranking.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use crate::client::{Destination, Providers};
use crate::connection::Connection;
use crate::dialect::embeddings::EmbeddingsDialect;
use crate::dialect::openai::{self, EmbeddingsCall, Merge};
use crate::error::{Charge, UpstreamError};
use crate::http::{MAX_ANSWER_BYTES, MAX_EMBEDDINGS_BYTES};
use crate::json::{Members, Splices, literal, span};
use crate::memory::Held;
use crate::rerank::{RerankDialect, RerankForm, Reranked, answer};
use crate::retry::Attempts;
use crate::usage::Usage;

/// A call made ready for one connection.
#[derive(Clone, Debug)]
pub struct SingleCall {
    /// What goes upstream.
    pub body: Bytes,
    /// Fields of the client's that the provider has no place for, by path.
    pub dropped: Vec<String>,
    /// Where it goes, below the connection's base URL.
    pub(crate) path: &'static str,
    pub(crate) reading: Reading,
}

/// How the answer to a call becomes what the client gets.
#[derive(Clone, Debug)]
pub(crate) enum Reading {
    /// The provider's bytes, but for the model's name.
    Passed {
        public_model: String,
        /// A member that every such answer has.
        member: &'static str,
        /// What is wrong with one that has not.
        without: &'static str,
    },
    /// An order of documents, as our clients know it.
    Reranked(RerankDialect, RerankForm),
}

/// Inputs of a call that a destination has answered, which it charges for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The destination, as its place.
    pub at: usize,
    /// Which inputs. A call that is not made of several has one.
    pub inputs: Range<usize>,
    /// What was reported for them, unless it cannot be true.
    pub usage: Option<Usage>,
}

/// An answer for a client.
#[derive(Clone, Debug)]
pub struct SingleAnswer {
    /// What the client gets.
    pub body: Bytes,
    /// What was answered and by whom, in this order. An input that was asked for again elsewhere stands there twice.
    pub answered: Vec<Answered>,
    /// Search units the provider bills, where it bills those.
    pub search_units: Option<i64>,
    /// As in [`SingleCall::dropped`].
    pub dropped: Vec<String>,
}

/// A call that failed.
#[derive(Debug)]
pub struct SingleFailure {
    /// Why.
    pub error: UpstreamError,
    /// As in [`SingleAnswer::answered`], the parts of a call that were answered before, and one whose answer is of no use:
    /// that is charged. Of a call that is sent whole it says nothing, as [`UpstreamError::charge`] does.
    pub answered: Vec<Answered>,
}

impl From<UpstreamError> for SingleFailure {
    fn from(error: UpstreamError) -> Self {
        Self { error, answered: Vec::new() }
    }
}

impl SingleCall {
    fn read(self, at: usize, body: &Bytes, connection: &Connection) -> Result<SingleAnswer, UpstreamError> {
        let credential = connection.credential_text();
        let (body, usage, search_units) = match self.reading {
            Reading::Passed { public_model, member, without } => {
                let (body, usage) = openai::read_passed(body, &public_model, member, without, credential)?;
                (body, usage, None)
            }
            Reading::Reranked(dialect, form) => {
                let reranked = dialect.read(body, form.documents)?;
                (answer(&reranked, &form), reranked.usage, reranked.search_units)
            }
        };
        Ok(SingleAnswer {
            body,
            answered: vec![Answered { at, inputs: 0..1, usage: usage.map(|usage| usage.of(connection.provider)) }],
            search_units,
            dropped: self.dropped,
        })
    }
}

impl Providers {
    /// Sends a call that is answered by one body. It is tried at one destination after the other as `attempts` allows;
    /// `call` makes it ready for the one at a place, as often as it is asked to. Dropping the future cancels the call.
    ///
    /// # Errors
    /// See [`UpstreamError`]. Nothing was delivered, so [`UpstreamError::charge`] says what is charged.
    pub async fn single(
        &self,
        destinations: &[Destination],
        call: &mut (dyn FnMut(usize) -> Result<SingleCall, UpstreamError> + Send),
        attempts: &mut Attempts,
    ) -> Result<SingleAnswer, SingleFailure> {
        let mut journey = self.journey(destinations, attempts);
        loop {
            let leg = journey.next().await?;
            let result = match (destinations.get(leg.at), call(leg.at)) {
                (Some(to), Ok(call)) => {
                    let deadline = journey.deadline();
                    let path = (call.path, MAX_ANSWER_BYTES);
                    let sent = self.post_once(&to.connection, path, HeaderMap::new(), &call.body, deadline).await;
                    sent.and_then(|(body, held)| {
                        let answer = call.read(leg.at, &body, &to.connection)?;
                        Ok(SingleAnswer { body: held.by(answer.body), ..answer })
                    })
                }
                (None, _) => return Err(UpstreamError::LeftAlone { retry_after: None }.into()),
                (_, Err(error)) => Err(error),
            };
            if let Some(answer) = journey.ended(leg, result)? {
                return Ok(answer);
            }
        }
    }

    /// Sends a client's embeddings call likewise, part after part where a provider does not take it whole. What was
    /// answered before a part fails is not asked for again, there or elsewhere.
    ///
    /// # Errors
    /// See [`SingleFailure`]. One part that fails is the failure of all.
    pub async fn embeddings(
        &self,
        destinations: &[Destination],
        call: &mut (dyn FnMut(usize) -> Result<EmbeddingsCall, UpstreamError> + Send),
        attempts: &mut Attempts,
    ) -> Result<SingleAnswer, SingleFailure> {
        let mut journey = self.journey(destinations, attempts);
        let (mut progress, mut answered) = (None, Vec::new());
        loop {
            let leg = match journey.next().await {
                Ok(leg) => leg,
                Err(error) => return Err(SingleFailure { error, answered }),
            };
            let result = match (destinations.get(leg.at), call(leg.at)) {
                (Some(to), Ok(call)) => {
                    let deadline = journey.deadline();
                    self.embed_parts((leg.at, &to.connection), &call, &mut progress, &mut answered, deadline).await
                }
                (None, _) => Err(UpstreamError::LeftAlone { retry_after: None }),
                (_, Err(error)) => Err(error),
            };
            if !answered.is_empty() {
                journey.owes();
            }
            match journey.ended(leg, result) {
                Ok(Some(body)) => return Ok(SingleAnswer { body, answered, search_units: None, dropped: Vec::new() }),
                Ok(None) => {}
                Err(error) => return Err(SingleFailure { error, answered }),
            }
        }
    }

    /// Sends the parts that are not answered yet.
    async fn embed_parts(
        &self,
        (at, connection): (usize, &Connection),
        call: &EmbeddingsCall,
        progress: &mut Option<(Merge, Held)>,
        answered: &mut Vec<Answered>,
        deadline: Instant,
    ) -> Result<Bytes, UpstreamError> {
        // A provider that takes other parts is asked for all of them.
        let (merge, held) = match progress {
            Some((merge, held)) if merge.fits(call) => (merge, held),
            progress => {
                let (merge, held) = progress.insert((Merge::new(call), Held::default()));
                (merge, held)
            }
        };
        let dialect = EmbeddingsDialect::of(connection.provider);
        let path = dialect.path(&connection.model);
        let mut before = call.parts().iter().take(merge.taken()).map(|part| part.inputs).sum();
        for part in call.parts().iter().skip(merge.taken()) {
            let inputs = before..before + part.inputs;
            before = inputs.end;
            let to = (&*path, MAX_EMBEDDINGS_BYTES);
            let sent = self.post_once(connection, to, HeaderMap::new(), &part.body, deadline).await;
            let taken = sent.and_then(|(answer, more)| {
                let answer = dialect.answer(answer, part.inputs, connection.credential_text())?;
                held.add(more);
                merge.take(part, answer, connection.credential_text())
            });
            match taken {
                Ok(usage) => {
                    let usage = usage.map(|usage| usage.of(connection.provider));
                    answered.push(Answered { at, inputs, usage });
                }
                Err(error) => {
                    if error.charge() == Charge::Prompt {
                        answered.push(Answered { at, inputs, usage: None });
                    }
                    return Err(error);
                }
            }
        }
        Ok(std::mem::take(held).by(merge.finish(dialect != EmbeddingsDialect::OpenAi)?))
    }

    /// Has documents put into the order of how well they answer a query, the best first: all of them, or the first
    /// `top_n`. No documents, no call.
    ///
    /// # Errors
    /// See [`UpstreamError`]; [`UpstreamError::Unfit`] for a connection that does not rerank.
    pub async fn rerank(
        &self,
        connection: &Connection,
        query: &str,
        documents: &[&str],
        top_n: Option<usize>,
        attempts: &mut Attempts,
    ) -> Result<Reranked, UpstreamError> {
        let dialect = RerankDialect::of(connection.provider)?;
        if documents.is_empty() {
            return Ok(Reranked::default());
        }
        let body = dialect.own_body(&connection.model, query, documents, top_n);
        let to = (dialect.path(), MAX_ANSWER_BYTES);
        let (answer, _held) = self.post_json(connection, to, HeaderMap::new(), &body, attempts).await?;
        dialect.read(&answer, documents.len())
    }
}

/// A client's body with the model's name replaced and `ragmux` removed. It must have a member beside those.
pub(crate) fn with_model(text: &str, members: &Members<'_>, model: &str) -> Bytes {
    let mut splices = Splices::default();
    match members.get("model") {
        Some(value) => splices.replace(span(text, value.get()), literal(model)),
        None => splices.insert(members.inside(text), format!("\"model\":{},", literal(model))),
    }
    for range in members.ranges_without(text, "ragmux") {
        splices.remove(range);
    }
    Bytes::from(splices.apply(text.as_bytes()))
}
