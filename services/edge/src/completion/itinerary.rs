//! Where a call may go, and the request as it is put to each place.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use ledger::{OpenCall, PriceBook};
use providers::{
    Answer, AnthropicHeaders, Attempts, ChatCall, ClientDialect, Destination, FetchedImages, Inbound, Outgoing,
    OutputBound, Providers, UpstreamError,
};
use tokens::Family;
use tokio::time::Instant;

use super::prepare::unbounded_output;
use crate::admission::MODEL;
use crate::catalog::{PublicRoute, Target};
use crate::error::EdgeError;
use crate::state::Edge;
use crate::visited;

/// What the gateway has to say in every request of a call.
pub(super) struct Texts {
    /// The model name that the answer shows.
    pub(super) public_model: String,
    /// The passages, fenced.
    pub(super) context: Option<String>,
    pub(super) project_prompt: Option<String>,
    /// The `ragmux` member of the answer, where the client asked for it.
    pub(super) member: Option<String>,
    pub(super) prompt_tokens: u64,
    /// The most tokens of output, where the project keeps its bounds.
    pub(super) output_tokens: Option<u64>,
    /// What a client of Anthropic's API says in headers.
    pub(super) anthropic: AnthropicHeaders,
    /// The images that the request names by URL, as far as they were wanted.
    pub(super) images: FetchedImages,
}

/// The places a call may go, in the order in which they are tried.
pub(super) struct Itinerary {
    destinations: Vec<Destination>,
    requests: Requests,
    prices: Arc<PriceBook>,
}

/// The client's request, made ready for one place after the other.
struct Requests {
    dialect: ClientDialect,
    received: Bytes,
    route: Arc<PublicRoute>,
    /// Places in the route's targets.
    targets: Vec<usize>,
    texts: Texts,
    made: Vec<Option<ChatCall>>,
}

impl Itinerary {
    /// For a request that has been read. What it becomes at the first place is made now, and at others when they are
    /// needed.
    pub(super) fn new(
        route: Arc<PublicRoute>,
        targets: Vec<usize>,
        received: &Bytes,
        inbound: &Inbound<'_>,
        texts: Texts,
        prices: Arc<PriceBook>,
    ) -> Result<Self, EdgeError> {
        let mut destinations = Vec::with_capacity(targets.len());
        for at in &targets {
            let target = route.targets.get(*at).ok_or_else(|| EdgeError::internal("a target is missing"))?;
            destinations.push(Destination { connection: target.connection()?, group: target.group });
        }
        let made = vec![None; targets.len()];
        let dialect = inbound.dialect();
        let mut requests = Requests { dialect, received: received.clone(), route, targets, texts, made };
        let first = requests.make(0, inbound).ok();
        if let Some(place) = requests.made.first_mut() {
            *place = first;
        }
        Ok(Self { destinations, requests, prices })
    }

    /// The attempts that the call has from now on.
    pub(super) fn attempts(&self, edge: &Edge) -> Attempts {
        Attempts::until(Instant::now() + edge.call_limit).replaying_timeouts(self.requests.route.replay_timeouts)
    }

    /// Sends the call until one place answers it.
    pub(super) async fn send(
        &mut self,
        providers: &Providers,
        attempts: &mut Attempts,
    ) -> Result<Answer, UpstreamError> {
        let Self { destinations, requests, .. } = self;
        providers.chat(destinations, &mut |at| requests.call(at), attempts).await
    }

    /// Lets go of everything that only sending needs.
    pub(super) fn sent(&mut self) {
        self.requests.received = Bytes::new();
        self.requests.texts.images = FetchedImages::default();
        for call in self.requests.made.iter_mut().flatten() {
            call.body = Bytes::new();
        }
    }

    /// Tells the ledger and the client where the last attempt went. Returns how output is counted there.
    pub(super) fn note(&self, attempts: &Attempts, call: &mut OpenCall, headers: Option<&mut HeaderMap>) -> Family {
        let requests = &self.requests;
        let at = attempts.last().unwrap_or_default();
        let target = requests.target(at);
        if let Some(target) = target.filter(|_| at > 0) {
            let (snapshot, source) = target.price(&self.prices);
            call.priced(snapshot, source);
        }
        visited::note(target, attempts, self.dropped(at), call, headers);
        target.map_or(Family::Estimated, |target| target.measure.family)
    }

    /// What the client can be told before anybody has answered: where the call goes if it can go to one place only. Of
    /// several nobody knows yet which it will be, so none is named.
    pub(super) fn foretell(&self, headers: &mut HeaderMap) {
        headers.remove(MODEL);
        if let [_] = self.destinations.as_slice() {
            visited::describe(self.requests.target(0), self.dropped(0), headers);
        }
    }

    /// What the place was not told of the request.
    fn dropped(&self, at: usize) -> &[String] {
        let made = self.requests.made.get(at).and_then(Option::as_ref);
        made.map(|call| call.dropped.as_slice()).unwrap_or_default()
    }

    /// The `ragmux` member of the answer.
    pub(super) fn member(&self) -> Option<&str> {
        self.requests.texts.member.as_deref()
    }
}

impl Requests {
    fn target(&self, at: usize) -> Option<&Target> {
        self.route.targets.get(*self.targets.get(at)?)
    }

    fn call(&mut self, at: usize) -> Result<ChatCall, UpstreamError> {
        if let Some(call) = self.made.get(at).and_then(Option::as_ref) {
            return Ok(call.clone());
        }
        let inbound = Inbound::parse(self.dialect, &self.received).map_err(UpstreamError::Unfit)?;
        let call = self.make(at, &inbound)?;
        if let Some(place) = self.made.get_mut(at) {
            *place = Some(call.clone());
        }
        Ok(call)
    }

    fn make(&self, at: usize, inbound: &Inbound<'_>) -> Result<ChatCall, UpstreamError> {
        let target = self.target(at).ok_or(UpstreamError::LeftAlone { retry_after: None })?;
        let texts = &self.texts;
        let bound = texts.output_tokens.zip(target.output_field.member());
        // What is held may be more than this model can write, and some refuse to be asked for that.
        let most = u64::try_from(unbounded_output(target, &self.route, inbound)).unwrap_or(u64::MAX);
        let of_model = match inbound.output_limit() {
            Some(_) => u64::MAX,
            None => most.saturating_mul(inbound.answers()),
        };
        inbound.call(
            target.provider,
            &Outgoing {
                model: &target.model,
                public_model: &texts.public_model,
                context: texts.context.as_deref(),
                placement: self.route.placement(target.provider),
                project_prompt: texts.project_prompt.as_deref(),
                output_bound: bound.map(|(tokens, field)| OutputBound {
                    field,
                    tokens: tokens.min(of_model),
                    family: target.measure.family,
                    prompt_tokens: texts.prompt_tokens,
                }),
                max_output: Some(most),
                member: texts.member.as_deref().map(|member| ("ragmux", member)),
                anthropic: Some(&texts.anthropic),
                images: Some(&texts.images),
            },
        )
    }
}
