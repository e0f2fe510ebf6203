//! A stream on its way to the client.
//!
//! The client pulls: nothing is read from the provider before the client has taken what came before. When the client
//! leaves, the relay is dropped, which ends the upstream call and settles the ledger entry with what was delivered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use domain::RequestId;
use futures::Stream;
use ledger::{Ending, OpenCall};
use providers::{Answer, Attempts, ChatStream, ClientDialect, Told, UpstreamError};
use tokens::Family;
use tokio::time::{Instant, sleep_until};

use super::itinerary::Itinerary;
use crate::admission::{logged_as, output, settle_failed, used};
use crate::auth::{Caller, Ended, LiveCall};
use crate::error::EdgeError;
use crate::state::Edge;

/// A comment (WHATWG HTML, 9.2.6): clients skip it.
const PING: Bytes = Bytes::from_static(b": ping\n\n");

/// A call on its way to the provider's first event.
pub(super) type Connecting = Pin<Box<dyn Future<Output = Connected> + Send>>;

/// Where it went, and what came of it.
pub(super) type Connected = (Itinerary, Attempts, Result<Answer, UpstreamError>);

/// Sends a call, and keeps it known whether anything is owed for it. The client's body is let go as soon as the provider has begun to answer.
pub(super) fn connect(edge: &Arc<Edge>, mut itinerary: Itinerary, is_owed: Arc<AtomicBool>) -> Connecting {
    let providers = edge.providers.clone();
    let mut attempts = itinerary.attempts(edge, is_owed);
    Box::pin(async move {
        let answer = itinerary.send(&providers, &mut attempts).await;
        itinerary.sent();
        (itinerary, attempts, answer)
    })
}

/// One stream and the call it belongs to.
pub(super) struct Relay {
    phase: Phase,
    call: Option<Box<OpenCall>>,
    id: RequestId,
    dialect: ClientDialect,
    family: Family,
    live: LiveCall,
    ping_every: Duration,
    ping_due: Instant,
}

enum Phase {
    Connecting(Connecting),
    Streaming(Box<ChatStream>),
    Over,
}

enum Step {
    Connected(Box<Connected>),
    Next(Result<Option<Bytes>, UpstreamError>),
    Silent,
    Ended(Ended),
}

impl Relay {
    /// A stream whose first event is there.
    pub(super) fn streaming(
        edge: &Edge,
        caller: &Caller,
        id: RequestId,
        dialect: ClientDialect,
        call: Box<OpenCall>,
        family: Family,
        stream: Box<ChatStream>,
    ) -> Self {
        Self::new(edge, caller, id, dialect, call, family, Phase::Streaming(stream))
    }

    /// A stream that the client is told of before the provider has said anything.
    pub(super) fn connecting(
        edge: &Edge,
        caller: &Caller,
        id: RequestId,
        dialect: ClientDialect,
        call: Box<OpenCall>,
        connecting: Connecting,
    ) -> Self {
        // Which family counts turns out with where the call goes.
        let mut relay = Self::new(edge, caller, id, dialect, call, Family::Estimated, Phase::Connecting(connecting));
        // The first ping goes out with the status.
        relay.ping_due = Instant::now();
        relay
    }

    fn new(
        edge: &Edge,
        caller: &Caller,
        id: RequestId,
        dialect: ClientDialect,
        call: Box<OpenCall>,
        family: Family,
        phase: Phase,
    ) -> Self {
        let ping_every = edge.ping_every;
        let ping_due = Instant::now() + ping_every;
        Self { phase, call: Some(call), id, dialect, family, live: caller.live().clone(), ping_every, ping_due }
    }

    /// The bytes for the client, whole events each.
    pub(super) fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        futures::stream::unfold(self, async |mut relay| {
            let bytes = relay.next().await?;
            relay.ping_due = Instant::now() + relay.ping_every;
            Some((bytes, relay))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.step().await? {
                Step::Silent => return Some(PING),
                Step::Connected(connected) => {
                    let (itinerary, attempts, answer) = *connected;
                    if let Some(call) = &mut self.call {
                        self.family = itinerary.note(&attempts, call, None);
                    }
                    match answer {
                        Ok(Answer::Stream(stream)) => self.phase = Phase::Streaming(stream),
                        Ok(Answer::Json(_)) => return self.refused(UpstreamError::BadAnswer("it is not a stream")),
                        Err(error) => return self.refused(error),
                    }
                }
                Step::Next(Ok(Some(bytes))) => {
                    if let Some(call) = &mut self.call {
                        call.first_byte();
                    }
                    if matches!(&self.phase, Phase::Streaming(stream) if stream.is_given_out()) {
                        // Before the client can see the end and ask for what this call holds.
                        self.finish(Ending::Complete, 200, None);
                    }
                    return Some(bytes);
                }
                Step::Next(Ok(None)) => {
                    self.settle(Ending::Complete, 200, None);
                    return None;
                }
                // The answer was whole already.
                Step::Next(Err(_)) | Step::Ended(_) if self.call.is_none() => {
                    self.phase = Phase::Over;
                    return None;
                }
                Step::Next(Err(error)) => {
                    self.finish(Ending::Cut, error.status(), error.code());
                    return Some(self.tell(error.into()));
                }
                Step::Ended(ended) => {
                    let is_connecting = matches!(self.phase, Phase::Connecting(_));
                    let is_owed = self.call.as_ref().is_some_and(|call| call.is_owed());
                    let is_free = is_connecting && (ended == Ended::Stopping || !is_owed);
                    let error = EdgeError::from(ended);
                    let (status, code) = logged_as(&error);
                    self.finish(if is_free { Ending::Fault } else { Ending::Cut }, status, code.as_deref());
                    return Some(self.tell(error));
                }
            }
        }
    }

    async fn step(&mut self) -> Option<Step> {
        let silent = sleep_until(self.ping_due);
        Some(match &mut self.phase {
            Phase::Over => return None,
            Phase::Connecting(connecting) => tokio::select! {
                biased;
                connected = connecting => Step::Connected(Box::new(connected)),
                ended = self.live.ended() => Step::Ended(ended),
                () = silent => Step::Silent,
            },
            // Of a provider that never pauses nothing else would be heard.
            Phase::Streaming(_) if let Some(ended) = self.live.has_ended() => Step::Ended(ended),
            // A read that is given up loses nothing.
            Phase::Streaming(stream) => tokio::select! {
                biased;
                next = stream.next() => Step::Next(next),
                ended = self.live.ended() => Step::Ended(ended),
                () = silent => Step::Silent,
            },
        })
    }

    /// The provider refused after the status was sent: the client hears of it in the stream.
    fn refused(&mut self, error: UpstreamError) -> Option<Bytes> {
        if let Some(call) = self.call.take() {
            settle_failed(*call, &error);
        }
        Some(self.tell(error.into()))
    }

    /// Ends the stream with an error as its last event.
    fn tell(&mut self, error: EdgeError) -> Bytes {
        let (face, cause): (_, &dyn std::error::Error) = (error.face(), &error);
        let status = face.status.as_u16();
        tracing::warn!(error = cause, status, request_id = %self.id, "a stream broke off");
        let told = Told { status, kind: &face.kind, code: face.code.as_deref(), message: &face.message };
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Streaming(mut stream) => stream.fail(&told),
            Phase::Connecting(_) | Phase::Over => self.dialect.failure(&told),
        }
    }

    /// Ends the call, and with it the upstream call.
    fn settle(&mut self, ending: Ending, status: u16, code: Option<&str>) {
        self.finish(ending, status, code);
        self.phase = Phase::Over;
    }

    /// Ends the call; what the upstream still says is read to its end, so that its connection can be used again.
    fn finish(&mut self, ending: Ending, status: u16, code: Option<&str>) {
        self.tally();
        if let Some(call) = self.call.take() {
            call.finish(ending, status, code);
        }
    }

    /// Hands what went by to the call.
    fn tally(&mut self) {
        let (Some(call), Phase::Streaming(stream)) = (&mut self.call, &self.phase) else { return };
        let outcome = stream.outcome();
        used(call, outcome.usage, || output(self.family, &outcome.delivered, outcome.counted_output));
    }
}

impl Drop for Relay {
    /// The client has left, or the task panicked: what was delivered until now is what counts. The call settles itself
    /// as left, unless the answer was whole: many clients leave at `[DONE]` and do not wait for the end of the body.
    fn drop(&mut self) {
        if matches!(&self.phase, Phase::Streaming(stream) if stream.is_given_out()) {
            self.settle(Ending::Complete, 200, None);
        } else {
            self.tally();
        }
    }
}
