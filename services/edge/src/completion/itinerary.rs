//! Where a call may go, and the request as it is put to each place.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use domain::ProviderType;
use futures::future::BoxFuture;
use http::HeaderMap;
use ledger::{OpenCall, PriceBook};
use providers::{
    Answer, AnthropicHeaders, Attempts, ChatCall, ClientDialect, Destination, FetchedImages, Held, ImageError, Inbound,
    MakeCalls, Memory, Outgoing, OutputBound, Providers, UpstreamError,
};
use tokens::Family;
use tokio::time::Instant;

use super::prepare::unbounded_output;
use crate::admission::TokenCounter;
use crate::catalog::{PublicRoute, Target};
use crate::error::EdgeError;
use crate::header_names::MODEL;
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
    /// The images that the request names by URL.
    pub(super) images: Images,
}

/// The images of a request, for the providers that want their bytes.
#[derive(Default)]
pub(super) struct Images {
    pub(super) fetched: FetchedImages,
    /// The providers that cannot have theirs, and why.
    pub(super) missing: Vec<(ProviderType, Arc<ImageError>)>,
}

impl Images {
    /// Why a provider cannot have what it wants.
    pub(super) fn missed_by(&self, provider: ProviderType) -> Option<UpstreamError> {
        let missed = self.missing.iter().find(|(of, _)| *of == provider);
        missed.map(|(_, error)| UpstreamError::Image(Arc::clone(error)))
    }
}

/// The places a call may go, in the order in which they are tried.
pub(super) struct Itinerary {
    destinations: Vec<Destination>,
    requests: Requests,
    prices: Arc<PriceBook>,
}

/// The client's request, made ready for one place after the other.
struct Requests {
    /// Until nothing has to be made of it any more.
    source: Option<Arc<Source>>,
    route: Arc<PublicRoute>,
    /// Places in the route's targets.
    targets: Vec<usize>,
    member: Option<String>,
    made: Vec<Option<Result<ChatCall, UpstreamError>>>,
    counter: TokenCounter,
}

/// What requests are made of.
struct Source {
    dialect: ClientDialect,
    received: Bytes,
    route: Arc<PublicRoute>,
    targets: Vec<usize>,
    texts: Texts,
    memory: Memory,
}

impl Itinerary {
    /// For a request that has been read. What it becomes at the first place is made now, and at others when they are
    /// needed.
    pub(super) async fn new(
        edge: &Edge,
        route: Arc<PublicRoute>,
        targets: Vec<usize>,
        received: &Bytes,
        inbound: &Inbound<'_>,
        texts: Texts,
        prices: Arc<PriceBook>,
    ) -> Result<Self, EdgeError> {
        let destinations = route.destinations(&targets)?;
        let made = targets.iter().map(|_| None).collect();
        let member = texts.member.clone();
        let source = Source {
            dialect: inbound.dialect(),
            received: received.clone(),
            route: Arc::clone(&route),
            targets: targets.clone(),
            texts,
            memory: edge.providers.memory().clone(),
        };
        let source = Some(Arc::new(source));
        let mut requests = Requests { source, route, targets, member, made, counter: edge.counter.clone() };
        let first = requests.make(0, Some(inbound)).await;
        if let Some(place) = requests.made.first_mut() {
            *place = Some(first);
        }
        Ok(Self { destinations, requests, prices })
    }

    /// The attempts that the call has from now on, and that say whether anything is owed for it.
    pub(super) fn attempts(&self, edge: &Edge, is_owed: Arc<AtomicBool>) -> Attempts {
        let attempts = Attempts::until(Instant::now() + edge.call_limit).telling(is_owed);
        attempts.replaying_timeouts(self.requests.route.replay_timeouts)
    }

    /// Sends the call until one place answers it.
    pub(super) async fn send(
        &mut self,
        providers: &Providers,
        attempts: &mut Attempts,
    ) -> Result<Answer, UpstreamError> {
        let Self { destinations, requests, .. } = self;
        providers.chat(destinations, requests, attempts).await
    }

    /// Lets go of everything that only sending needs.
    pub(super) fn sent(&mut self) {
        self.requests.source = None;
        for call in self.requests.made.iter_mut().flatten().flatten() {
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
        let made = self.requests.made.get(at).and_then(|made| made.as_ref()?.as_ref().ok());
        made.map(|call| call.dropped.as_slice()).unwrap_or_default()
    }

    /// The `ragmux` member of the answer.
    pub(super) fn member(&self) -> Option<&str> {
        self.requests.member.as_deref()
    }
}

impl Requests {
    fn target(&self, at: usize) -> Option<&Target> {
        self.route.targets.get(*self.targets.get(at)?)
    }

    async fn make(&self, at: usize, inbound: Option<&Inbound<'_>>) -> Result<ChatCall, UpstreamError> {
        let source = self.source.as_ref().ok_or(UpstreamError::NoRoom)?;
        let (from, dialect) = (Arc::clone(source), source.dialect);
        let make = move |inbound: &Inbound<'_>| from.make(at, inbound);
        match self.counter.with(dialect, &source.received, inbound, make).await {
            Ok(made) => made,
            Err(EdgeError::Request(error)) => Err(UpstreamError::Unfit(error)),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "a request could not be made for a provider");
                Err(UpstreamError::NoRoom)
            }
        }
    }
}

impl MakeCalls for Requests {
    fn call(&mut self, at: usize) -> BoxFuture<'_, Result<ChatCall, UpstreamError>> {
        Box::pin(async move {
            let made = match self.made.get_mut(at) {
                // A failure is told once.
                Some(made @ Some(Err(_))) => made.take(),
                Some(Some(Ok(call))) => return Ok(call.clone()),
                Some(None) | None => None,
            };
            let call = match made {
                Some(made) => made?,
                None => self.make(at, None).await?,
            };
            if let Some(place) = self.made.get_mut(at) {
                *place = Some(Ok(call.clone()));
            }
            Ok(call)
        })
    }
}

impl Source {
    /// Makes the request for a place. It holds the memory that it takes, but for what the client's own body stands for:
    /// as much again as it is long.
    fn make(&self, at: usize, inbound: &Inbound<'_>) -> Result<ChatCall, UpstreamError> {
        let target = self.targets.get(at).and_then(|at| self.route.targets.get(*at));
        let target = target.ok_or(UpstreamError::LeftAlone { retry_after: None })?;
        if let Some(missed) = self.texts.images.missed_by(target.provider) {
            return Err(missed);
        }
        let stood_for = if at == 0 { self.received.len() } else { 0 };
        let pictures = match Inbound::wants_images(self.dialect, target.provider) {
            true => self.texts.images.fetched.written_bytes(),
            false => 0,
        };
        let mut held = Held::default();
        let mut hold = |length: usize| {
            self.memory.grow(&mut held, length.saturating_sub(stood_for)).map_err(|_| UpstreamError::NoRoom)
        };
        hold(self.received.len().saturating_add(pictures))?;
        let mut call = self.write(target, inbound)?;
        hold(call.body.len())?;
        held.shrink(call.body.len().saturating_sub(stood_for));
        call.body = held.by(call.body);
        Ok(call)
    }

    fn write(&self, target: &Target, inbound: &Inbound<'_>) -> Result<ChatCall, UpstreamError> {
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
                images: Some(&texts.images.fetched),
            },
        )
    }
}
