//! Calls that are answered by one body and have no output to be bounded: embeddings, moderations, reranking. What is
//! done between the request's reading and the answer is the same for all of them.

use std::sync::Arc;

use axum::response::Response;
use domain::{NanoUsd, PriceSnapshot, ProviderType};
use http::StatusCode;
use ledger::{Ending, OpenCall, PriceBook, PriceSource};
use providers::{
    Answered, Attempts, Destination, EmbeddingsCall, Lacks, Providers, SingleAnswer, SingleCall, SingleFailure,
    UpstreamError, Usage,
};
use tokio::time::Instant;

use crate::admission::{
    Admitted, Claim, Model, Tags, admit, interrupted, overruled_by_now, reported, settle_failed, settle_interrupted,
    settle_unsent,
};
use crate::auth::Caller;
use crate::catalog::{Chosen, Project, PublicRoute, Target};
use crate::completion::Asked;
use crate::error::{EdgeError, Failure};
use crate::json;
use crate::state::Edge;
use crate::visited;

/// Where a call may go.
pub(crate) struct Course {
    pub(crate) project: Arc<Project>,
    chosen: Chosen,
    /// Places among the route's targets, in the order in which they are tried.
    places: Vec<usize>,
}

impl Course {
    /// The route that the project has for a model, and its targets as `order` has them.
    ///
    /// # Errors
    /// There is no such route, or none of its targets serves the call.
    pub(crate) async fn of(
        edge: &Edge,
        caller: &Caller,
        model: &str,
        order: impl FnOnce(&PublicRoute) -> Result<Vec<usize>, EdgeError>,
    ) -> Result<Self, EdgeError> {
        let project = edge.catalog.project(caller.project).await?;
        let chosen = project.choose(model, caller)?;
        let places = order(&chosen.route)?;
        Ok(Self { project, chosen, places })
    }

    pub(crate) fn route(&self) -> &PublicRoute {
        &self.chosen.route
    }

    /// The model name that the answer shows.
    pub(crate) fn public_model(&self) -> &str {
        &self.chosen.public_model
    }

    /// The targets, in the order in which they are tried.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.places.iter().filter_map(|at| self.chosen.route.targets.get(*at))
    }

    /// The target that is tried first.
    pub(crate) fn first(&self) -> Result<&Target, EdgeError> {
        self.chosen.route.at(&self.places, 0)
    }
}

/// A call that is read, counted, and knows where it may go.
pub(crate) struct Single<'a> {
    pub(crate) operation: &'static str,
    pub(crate) course: &'a Course,
    pub(crate) tags: Tags,
    /// The prompt's tokens by our count, of each input.
    pub(crate) tokens: Vec<i64>,
    pub(crate) tariff: Tariff,
}

/// Makes a call ready for a target.
pub(crate) type Make<'a, T> = &'a mut (dyn FnMut(&Target) -> Result<T, UpstreamError> + Send);

/// How a call is put to a target.
pub(crate) enum Sending<'a> {
    Whole(Make<'a, SingleCall>),
    /// In the parts that its provider takes.
    Embeddings(Make<'a, EmbeddingsCall>),
}

impl Sending<'_> {
    async fn send(
        self,
        providers: &Providers,
        destinations: &[Destination],
        targets: &[&Target],
        attempts: &mut Attempts,
    ) -> Result<SingleAnswer, SingleFailure> {
        let none = || UpstreamError::LeftAlone { retry_after: None };
        match self {
            Self::Whole(make) => {
                let mut call = |at: usize| targets.get(at).ok_or_else(none).and_then(|target| make(target));
                providers.single(destinations, &mut call, attempts).await
            }
            Self::Embeddings(make) => {
                let mut call = |at: usize| targets.get(at).ok_or_else(none).and_then(|target| make(target));
                providers.embeddings(destinations, &mut call, attempts).await
            }
        }
    }
}

/// What is paid for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tariff {
    /// The prompt's tokens.
    Tokens,
    /// The prompt's tokens, where moderations cost anything.
    Moderations,
    /// The prompt's tokens, or so many search units where the provider bills those.
    SearchUnits(i64),
}

/// The price of a call at one target.
#[derive(Clone, Copy, Debug)]
struct Price {
    /// Of its tokens.
    tokens: PriceSnapshot,
    /// Of a million search units.
    units: PriceSnapshot,
    source: PriceSource,
}

impl Price {
    /// Puts it down for a call that takes so many search units.
    fn put(&self, call: &mut OpenCall, units: i64) {
        call.priced(self.tokens, self.source);
        call.fee(self.of_units(units));
    }

    fn of_units(&self, units: i64) -> NanoUsd {
        self.units.cost(units, 0, 0, 0)
    }
}

impl Tariff {
    fn price(self, target: &Target, prices: &PriceBook) -> Price {
        let (snapshot, source) = target.price(prices);
        match self {
            // Cohere bills searches (Pricing, Rerank): what its models' price is per million of is search units, and the
            // tokens of such a call cost nothing.
            Self::SearchUnits(_) if target.provider == ProviderType::CohereRerank => {
                Price { tokens: PriceSnapshot::default(), units: snapshot, source }
            }
            // OpenAI's own are free (Moderation guide), unless somebody has set a price.
            Self::Moderations if target.provider == ProviderType::OpenAi && source == PriceSource::None => {
                let free = PriceSnapshot::default();
                Price { tokens: free, units: free, source: PriceSource::Builtin }
            }
            Self::Tokens | Self::Moderations | Self::SearchUnits(_) => {
                Price { tokens: snapshot, units: PriceSnapshot::default(), source }
            }
        }
    }

    /// The search units that a call is held for.
    fn units(self) -> i64 {
        match self {
            Self::Tokens | Self::Moderations => 0,
            Self::SearchUnits(units) => units,
        }
    }
}

/// What a target has answered of a call, which is what it is paid for.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    reported: Option<Usage>,
    /// By our count, the tokens of what nothing was reported for.
    counted: Option<i64>,
}

impl Share {
    /// The share of the target at a place; `tokens` are those of each input.
    fn of(answered: &[Answered], at: usize, tokens: &[i64]) -> Self {
        let mut share = Self::default();
        for part in answered.iter().filter(|part| part.at == at) {
            match part.usage.filter(|usage| usage.lacks != Lacks::Prompt) {
                Some(usage) => share.reported = Some(share.reported.map_or(usage, |before| before.plus(usage))),
                None => {
                    let counted = total(tokens.get(part.inputs.clone()).unwrap_or_default());
                    share.counted = Some(share.counted.unwrap_or(0).saturating_add(counted));
                }
            }
        }
        share
    }

    fn is_nothing(&self) -> bool {
        self.reported.is_none() && self.counted.is_none()
    }

    fn total(&self) -> ledger::Usage {
        let reported = self.reported.map(reported).unwrap_or_default();
        ledger::Usage { prompt: reported.prompt.saturating_add(self.counted.unwrap_or(0)), ..reported }
    }

    /// Puts it down as what the call itself has used.
    fn put(&self, call: &mut OpenCall) {
        match (self.reported, self.counted) {
            (None, Some(counted)) => call.counted_prompt(counted),
            (Some(_), Some(_)) => call.usage_in_part(self.total()),
            (_, None) => call.usage(self.total()),
        }
    }
}

/// The tokens of all these inputs.
pub(crate) fn total(tokens: &[i64]) -> i64 {
    tokens.iter().fold(0, |total, tokens| total.saturating_add(*tokens))
}

/// Prices that cover whichever target answers, or the refusal of those that have none where money is counted.
fn hold(single: &Single<'_>, caller: &Caller, prices: &PriceBook) -> Result<(PriceSnapshot, NanoUsd), EdgeError> {
    let (mut dearest, mut fee) = (PriceSnapshot::default(), NanoUsd::ZERO);
    for target in single.course.targets() {
        let price = single.tariff.price(target, prices);
        single.course.project.allow_price(caller, price.source, &single.course.route().name)?;
        dearest = dearest.dearest(price.tokens);
        fee = fee.max(price.of_units(single.tariff.units()));
    }
    Ok((dearest, fee))
}

/// Admits a call, sends it to one target after the other until one answers, and settles it.
pub(crate) async fn answer(
    edge: &Edge,
    asked: Asked,
    single: Single<'_>,
    sending: Sending<'_>,
) -> Result<Response, Failure> {
    let Asked { caller, id, accepted, .. } = asked;
    let Single { course, tariff, .. } = single;
    let tokens = single.tokens.as_slice();
    let (route, targets) = (course.route(), course.targets().collect::<Vec<_>>());
    let destinations = route.destinations(&course.places)?;
    let first = course.first()?;
    let connection = first.connection()?;
    let prices = edge.catalog.prices().await?;
    let (hold_prices, fee) = hold(&single, &caller, &prices)?;
    let claim = Claim {
        route: Some(&route.name),
        model: Some(Model::of(first, &connection)),
        tags: single.tags,
        prompt_tokens: total(&single.tokens),
        prices: hold_prices,
        other_cost: fee,
        ..Claim::of_a_request(single.operation, (id, accepted), &caller, &course.project)
    };
    let Admitted { mut call, mut headers } = admit(edge, claim).await?;
    tariff.price(first, &prices).put(&mut call, tariff.units());
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(edge, &caller, *call, overruling, headers));
    }
    let attempts = Attempts::until(Instant::now() + edge.call_limit).replaying_timeouts(route.replay_timeouts);
    let mut attempts = attempts.telling(call.sent());
    let answer = tokio::select! {
        biased;
        answer = sending.send(&edge.providers, &destinations, &targets, &mut attempts) => Ok(answer),
        interruption = interrupted(&caller, &mut call) => Err(interruption),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(interruption) => {
            return Err(settle_interrupted(edge, &caller, *call, interruption, headers));
        }
    };
    let last = attempts.last().unwrap_or_default();
    let price = |at: usize| targets.get(at).map(|target| tariff.price(target, &prices));
    if let Some(price) = price(last).filter(|_| last > 0) {
        price.put(&mut call, tariff.units());
    }
    let (dropped, answered) = match &answer {
        Ok(answer) => (answer.dropped.as_slice(), answer.answered.as_slice()),
        Err(failure) => (&[] as &[String], failure.answered.as_slice()),
    };
    visited::note(targets.get(last).copied(), &attempts, dropped, &mut call, Some(&mut headers));
    for at in (0..targets.len()).filter(|at| *at != last) {
        let share = Share::of(answered, at, tokens);
        if let Some(price) = price(at).filter(|_| !share.is_nothing()) {
            let usage = share.total();
            let cost = price.tokens.cost(usage.prompt, usage.cached, usage.cache_write, usage.completion);
            call.add_side_charge(usage.prompt.saturating_add(usage.completion), cost, share.counted.is_some());
        }
    }
    if !answered.is_empty() {
        Share::of(answered, last, tokens).put(&mut call);
    }
    let answer = match answer {
        Ok(answer) => answer,
        Err(SingleFailure { error, answered }) if answered.is_empty() => {
            settle_failed(*call, &error);
            return Err(Failure::with(error, headers));
        }
        Err(SingleFailure { error, .. }) => {
            // Providers charge for the parts that they answered, and for nothing else.
            call.first_byte();
            call.finish(Ending::Cut, error.status(), error.code());
            return Err(Failure::with(error, headers));
        }
    };
    call.first_byte();
    if let Some((units, price)) = answer.search_units.zip(price(last)) {
        call.fee(price.of_units(units));
    }
    call.finish(Ending::Complete, 200, None);
    Ok(json::answer(StatusCode::OK, headers, answer.body))
}
