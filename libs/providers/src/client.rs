//! Calls to providers: one attempt, attempts with retries, and the answer as it comes.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::ProviderType;
use futures::future::BoxFuture;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use reqwest::Response;
use tokio::time::{Instant, timeout_at};

use crate::breaker::Breakers;
use crate::connection::Connection;
use crate::dialect::anthropic;
use crate::dialect::embeddings::EmbeddingsDialect;
use crate::dialect::openai::{self, ChatAnswer, SpliceRules, StreamOutcome, Vectors, own_embeddings_body};
use crate::dialect::{ClientDialect, UpstreamDialect, refusal};
use crate::error::{UpstreamError, Waited};
use crate::http::{ClientError, HttpClient, HttpOptions, MAX_ANSWER_BYTES, MAX_EMBEDDINGS_BYTES, is_encoded};
use crate::hub::Told;
use crate::journey::{Journey, Stop};
use crate::memory::{Held, Memory};
use crate::retry::Attempts;
use crate::tap::Tap;

const COUNT_TOKENS_PATH: &str = "messages/count_tokens";
const JSON: &str = "application/json";
/// How long a provider may take to close a stream after its `[DONE]`; a connection closed by then can be used again.
const LINGER: Duration = Duration::from_millis(500);
/// What a stream may keep of its events without counting: most events are far smaller.
const UNCOUNTED_BYTES: usize = 64 * 1024;
const EVENT_STREAM: &str = "text/event-stream";

/// A chat call made ready for one connection, by [`crate::Inbound::call`] for any dialect.
#[derive(Clone, Debug)]
pub struct ChatCall {
    /// What goes upstream.
    pub body: Bytes,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// How the answer is changed on its way back.
    pub rules: SpliceRules,
    /// Fields of the client's that the provider has no place for, by path.
    pub dropped: Vec<String>,
    pub(crate) client: ClientDialect,
    pub(crate) upstream: UpstreamDialect,
    /// Headers of the dialect's, beside the credential.
    pub(crate) headers: HeaderMap,
}

/// Makes a chat call ready for the places it may go.
pub trait MakeCalls: Send {
    /// The call for the place of that number.
    ///
    /// # Errors
    /// Nothing can be sent there.
    fn call(&mut self, at: usize) -> BoxFuture<'_, Result<ChatCall, UpstreamError>>;
}

/// For calls that are made in no time.
impl<F: FnMut(usize) -> Result<ChatCall, UpstreamError> + Send> MakeCalls for F {
    fn call(&mut self, at: usize) -> BoxFuture<'_, Result<ChatCall, UpstreamError>> {
        Box::pin(std::future::ready(self(at)))
    }
}

/// A call to count the tokens of a Messages request, made ready by [`crate::MessagesRequest::count_call`].
#[derive(Clone, Debug)]
pub struct CountCall {
    pub(crate) body: Bytes,
    pub(crate) headers: HeaderMap,
}

/// What came of having tokens counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// So many, by the provider that was asked last.
    Tokens(u64),
    /// It was the turn of the destination at that place, where nobody counts.
    Nowhere(usize),
}

/// The answer to a chat call.
#[derive(Debug)]
pub enum Answer {
    /// A whole one.
    Json(ChatAnswer),
    /// One that streams. Its first event has arrived, so its status is certain.
    Stream(Box<ChatStream>),
}

/// A place a chat call may go.
#[derive(Clone, Debug)]
pub struct Destination {
    /// How it is reached.
    pub connection: Arc<Connection>,
    /// Groups are tried in the order in which they stand.
    pub group: i16,
}

/// Calls providers. Cheap to clone; all clones share one pool of connections and the connections' breakers.
#[derive(Clone, Debug)]
pub struct Providers {
    http: Arc<HttpClient>,
    breakers: Breakers,
}

impl Providers {
    /// Sets up the HTTP client. Reads the platform's certificate store, so it belongs to start-up.
    ///
    /// # Errors
    /// The TLS or HTTP settings were refused.
    pub fn new(options: HttpOptions) -> Result<Self, ClientError> {
        Ok(Self { http: Arc::new(HttpClient::new(options)?), breakers: Breakers::new() })
    }

    /// The memory that answers take.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.http.options().memory
    }

    /// What is known of how connections fail.
    #[must_use]
    pub fn breakers(&self) -> &Breakers {
        &self.breakers
    }

    /// Sends a chat call and waits until its status and, for a stream, its first event are known. Until then it is tried
    /// at one destination after the other as `attempts` allows; `calls` makes it ready for the one at a place, as often as
    /// it is asked to. Dropping the future cancels the call.
    ///
    /// # Errors
    /// See [`UpstreamError`]. Nothing was delivered, so [`UpstreamError::charge`] says what is charged.
    pub async fn chat(
        &self,
        destinations: &[Destination],
        calls: &mut dyn MakeCalls,
        attempts: &mut Attempts,
    ) -> Result<Answer, UpstreamError> {
        let mut journey = self.journey(destinations, attempts);
        loop {
            let leg = journey.next().await?;
            let result = match (destinations.get(leg.at), calls.call(leg.at).await) {
                (Some(to), Ok(call)) => self.chat_once(&to.connection, &call, journey.deadline()).await,
                (None, _) => return Err(UpstreamError::LeftAlone { retry_after: None }),
                (_, Err(error)) => Err(error),
            };
            if let Some(answer) = journey.ended(leg, result)? {
                return Ok(answer);
            }
        }
    }

    /// The way of a call through its destinations.
    pub(crate) fn journey<'a>(&'a self, destinations: &[Destination], attempts: &'a mut Attempts) -> Journey<'a> {
        let stops = destinations.iter().map(|to| Stop { group: to.group, connection: to.connection.id }).collect();
        Journey::new(stops, &self.breakers, attempts, self.http.options().patience())
    }

    /// Embeds texts of ours in one call: the caller packs the batch and checks the width. No texts, no call.
    ///
    /// # Errors
    /// See [`UpstreamError`]. One bad vector fails the whole call.
    pub async fn embed(
        &self,
        connection: &Connection,
        inputs: &[String],
        dimensions: Option<u32>,
        attempts: &mut Attempts,
    ) -> Result<Vectors, UpstreamError> {
        if inputs.is_empty() {
            return Ok(Vectors { vectors: Vec::new(), usage: None });
        }
        let dialect = EmbeddingsDialect::of(connection.provider);
        let texts: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let body = match dialect.body(&connection.model, &texts, dimensions.map(u64::from)) {
            Some(body) => body,
            None => own_embeddings_body(&connection.model, inputs, dimensions)
                .map_err(|_| UpstreamError::BadAnswer("the request cannot be written"))?,
        };
        let path = dialect.path(&connection.model);
        let to = (&*path, MAX_EMBEDDINGS_BYTES);
        let (answer, _held) = self.post_json(connection, to, HeaderMap::new(), &body, attempts).await?;
        let answer = dialect.answer(answer, inputs.len(), connection.credential_text())?;
        openai::read_vectors(&answer, inputs.len(), connection.credential_text())
    }

    /// Has the tokens of a Messages request counted at one destination after the other as `attempts` allows; `call` makes
    /// it ready for the one at a place, where there is anybody to ask.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn count_tokens(
        &self,
        destinations: &[Destination],
        call: &mut (dyn FnMut(usize) -> Option<CountCall> + Send),
        attempts: &mut Attempts,
    ) -> Result<Counted, UpstreamError> {
        let mut journey = self.journey(destinations, attempts);
        loop {
            let leg = journey.next().await?;
            let to = destinations.get(leg.at).ok_or(UpstreamError::LeftAlone { retry_after: None })?;
            let Some(call) = call(leg.at) else {
                let at = leg.at;
                journey.passed_by(leg);
                return Ok(Counted::Nowhere(at));
            };
            let path = (COUNT_TOKENS_PATH, MAX_ANSWER_BYTES);
            let sent = self.post_once(&to.connection, path, call.headers, &call.body, journey.deadline()).await;
            let counted = sent.and_then(|(answer, _held)| anthropic::read_count(&answer));
            if let Some(tokens) = journey.ended(leg, counted)? {
                return Ok(Counted::Tokens(tokens));
            }
        }
    }

    /// Posts to a path of one connection, and again as `attempts` allows. An answer of at most so many bytes is taken.
    pub(crate) async fn post_json(
        &self,
        connection: &Connection,
        (path, limit): (&str, u64),
        headers: HeaderMap,
        body: &Bytes,
        attempts: &mut Attempts,
    ) -> Result<(Bytes, Held), UpstreamError> {
        let stop = Stop { group: 0, connection: connection.id };
        let mut journey = Journey::new(vec![stop], &self.breakers, attempts, self.http.options().patience());
        loop {
            let leg = journey.next().await?;
            let deadline = journey.deadline();
            let sent = self.post_once(connection, (path, limit), headers.clone(), body, deadline).await;
            if let Some(answer) = journey.ended(leg, sent)? {
                return Ok(answer);
            }
        }
    }

    /// Posts once and reads the whole answer.
    pub(crate) async fn post_once(
        &self,
        connection: &Connection,
        (path, limit): (&str, u64),
        headers: HeaderMap,
        body: &Bytes,
        deadline: Instant,
    ) -> Result<(Bytes, Held), UpstreamError> {
        let response = self.http.post(connection, (path, None), JSON, headers, body.clone(), deadline).await?;
        let response = self.accepted(connection, response, deadline).await?;
        self.http.read(response, deadline, limit).await
    }

    async fn chat_once(
        &self,
        connection: &Connection,
        call: &ChatCall,
        deadline: Instant,
    ) -> Result<Answer, UpstreamError> {
        let accept = if call.stream { EVENT_STREAM } else { JSON };
        let (path, query) = call.upstream.place(connection, call.stream);
        let response = self
            .http
            .post(connection, (&path, query), accept, call.headers.clone(), call.body.clone(), deadline)
            .await?;
        let response = self.accepted(connection, response, deadline).await?;
        if !call.stream || is_json(response.headers()) {
            let (body, held) = self.http.read(response, deadline, MAX_ANSWER_BYTES).await?;
            let answer = call.upstream.answer(call.client, &body, &call.rules, connection.credential_text())?;
            let usage = answer.usage.map(|usage| usage.of(connection.provider));
            let answer = ChatAnswer { body: held.by(answer.body), usage, ..answer };
            // Only its error would have been of use to a client that waits for events.
            return if call.stream {
                Err(UpstreamError::BadAnswer("it is not a stream"))
            } else {
                Ok(Answer::Json(answer))
            };
        }
        let mut stream = ChatStream {
            response: Some(response),
            tap: call.upstream.tap(call.client, call.rules.clone(), connection.credential.clone()),
            provider: connection.provider,
            http: Arc::clone(&self.http),
            out: BytesMut::new(),
            held: Held::default(),
            kept: Held::default(),
            failed: None,
            ended: false,
            arrived_bytes: 0,
            last_arrival: Instant::now(),
            ends_by: deadline.min(Instant::now() + self.http.options().stream_max_duration),
        };
        match timeout_at(deadline, stream.begin()).await {
            Ok(begun) => begun.map(|()| Answer::Stream(Box::new(stream))),
            Err(_) => Err(UpstreamError::Timeout(Waited::Total)),
        }
    }

    /// The response if its status is a success, else the decision its error asks for.
    async fn accepted(
        &self,
        connection: &Connection,
        response: Response,
        deadline: Instant,
    ) -> Result<Response, UpstreamError> {
        let status = response.status();
        if status.is_success() {
            return if is_encoded(response.headers()) {
                Err(UpstreamError::BadAnswer("it is compressed, which was not asked for"))
            } else {
                Ok(response)
            };
        }
        let headers = response.headers().clone();
        let body = self.http.read_error(response, deadline).await;
        Err(refusal(connection, status.as_u16(), &headers, &body))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with(JSON)
}

/// A chat stream being passed on. Dropping it cancels the upstream call.
#[derive(Debug)]
pub struct ChatStream {
    /// Absent once nothing more is wanted of it.
    response: Option<Response>,
    tap: Box<dyn Tap>,
    provider: ProviderType,
    http: Arc<HttpClient>,
    out: BytesMut,
    /// Memory for what has come of events that are large, whole or not.
    held: Held,
    /// Memory for what is kept of the answer for its end.
    kept: Held,
    failed: Option<UpstreamError>,
    ended: bool,
    arrived_bytes: u64,
    last_arrival: Instant,
    ends_by: Instant,
}

impl ChatStream {
    /// The next bytes for the client, whole events only; `None` once the answer is complete. Between two calls the
    /// client's stream is at an event boundary. Cancel safe: a dropped call loses nothing, and the idle limit goes on
    /// from the last bytes that arrived.
    ///
    /// # Errors
    /// The answer broke off, ran into a limit or carried an error. What was delivered is charged by
    /// [`ChatStream::outcome`]. After an error the stream is over.
    pub async fn next(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        loop {
            if !self.out.is_empty() {
                return Ok(Some(std::mem::take(&mut self.held).by(self.out.split().freeze())));
            }
            if let Some(error) = self.failed.take() {
                self.ended = true;
                return Err(error);
            }
            if self.ended {
                return Ok(None);
            }
            self.read().await;
        }
    }

    /// Whether all of the answer, `[DONE]` included, has been given out: nothing is missing if the client leaves now.
    #[must_use]
    pub fn is_given_out(&self) -> bool {
        self.tap.saw_done() && self.out.is_empty() && self.failed.is_none()
    }

    /// What is known of the answer so far.
    #[must_use]
    pub fn outcome(&self) -> StreamOutcome {
        let outcome = self.tap.outcome();
        StreamOutcome { usage: outcome.usage.map(|usage| usage.of(self.provider)), ..outcome }
    }

    /// Ends the client's stream with what it is told of a failure, in its dialect.
    pub fn fail(&mut self, told: &Told<'_>) -> Bytes {
        self.tap.fail(told, &mut self.out);
        self.out.split().freeze()
    }

    /// Reads until the first event is there. An error before it is the whole call's.
    async fn begin(&mut self) -> Result<(), UpstreamError> {
        while !self.tap.saw_event() && self.failed.is_none() && !self.ended {
            self.read().await;
        }
        match self.failed.take_if(|_| !self.tap.saw_event()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Holds memory for what is here and not yet with the client, or stays, where that is much.
    fn weigh(&mut self) -> Result<(), UpstreamError> {
        let kept = self.tap.kept();
        if kept > UNCOUNTED_BYTES {
            self.http.options().memory.grow(&mut self.kept, kept).map_err(|_| UpstreamError::Overloaded)?;
        }
        let bytes = self.tap.waiting() + self.out.len();
        if bytes > UNCOUNTED_BYTES {
            return self.http.options().memory.grow(&mut self.held, bytes).map_err(|_| UpstreamError::Overloaded);
        }
        if !self.held.is_nothing() {
            self.held = Held::default();
        }
        Ok(())
    }

    /// Takes one read from the network into `out`, `failed` or `ended`.
    async fn read(&mut self) {
        let Some(response) = &mut self.response else {
            self.ended = true;
            return;
        };
        // A wait asks for what it waits for first, so it never runs out on a provider that always has something to say.
        if self.last_arrival >= self.ends_by && !self.tap.saw_done() {
            self.failed = Some(UpstreamError::Timeout(Waited::Total));
            return;
        }
        let options = self.http.options();
        let idle_by = self.last_arrival + options.idle_timeout;
        let linger_by = self.last_arrival + if self.tap.saw_done() { LINGER } else { options.idle_timeout };
        let by = idle_by.min(self.ends_by).min(linger_by);
        let result = match timeout_at(by, response.chunk()).await {
            Err(_) if self.tap.saw_done() => {
                self.ended = true;
                Ok(())
            }
            Err(_) => Err(UpstreamError::Timeout(if by == idle_by { Waited::Idle } else { Waited::Total })),
            Ok(Err(_)) if self.tap.saw_done() => {
                // The answer is whole; how the connection ended no longer matters. Without `[DONE]` it does: another
                // choice, or the usage, may have been to come.
                self.ended = true;
                self.tap.finish(&mut self.out)
            }
            Ok(Err(_)) => Err(UpstreamError::Truncated),
            Ok(Ok(None)) => {
                self.ended = true;
                self.tap.finish(&mut self.out)
            }
            Ok(Ok(Some(chunk))) => {
                self.last_arrival = Instant::now();
                self.arrived_bytes += chunk.len() as u64;
                if self.arrived_bytes > options.stream_max_bytes {
                    Err(UpstreamError::TooLarge { limit_bytes: options.stream_max_bytes })
                } else {
                    self.tap.push(&chunk, &mut self.out).and_then(|()| self.weigh())
                }
            }
        };
        self.failed = result.err();
        if self.tap.is_cut() {
            // The provider goes on writing until the connection is closed.
            self.response = None;
        }
    }
}
