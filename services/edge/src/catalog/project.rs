//! A project as the calls of its keys see it.

use std::sync::Arc;

use domain::{
    Enforcement, OutputField, PriceSnapshot, ProjectId, ProviderType, RerankSettings, RetrievalSettings, RouteId,
    StoreId,
};
use ledger::{PriceBook, PriceSource};
use providers::{Connection, ContextPlacement, Destination, Feature, default_placement, order};
use rand::Rng;
use store::routing::{ProjectRouting, Route};
use store::targets::UpstreamTarget;
use time::OffsetDateTime;
use tokens::most_output;

use crate::admission::{DEFAULT_OUTPUT, Measure};
use crate::auth::Caller;
use crate::error::{EdgeError, shown};

/// Why a connection cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Its credential does not open with the keys of this process.
    Credential,
    /// Its base URL is none.
    Address,
}

/// A project and all that its calls need.
#[derive(Debug)]
pub(crate) struct Project {
    pub(crate) id: ProjectId,
    pub(crate) store: Option<StoreId>,
    /// The model that embeds queries, where there is a store.
    pub(crate) embedding: Option<(ProviderType, String)>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) enforcement: Enforcement,
    pub(crate) retrieval: RetrievalSettings,
    pub(crate) rerank: Option<Arc<Rerank>>,
    /// Whether somebody is to order them who is gone, or cannot.
    pub(crate) lacks_reranker: bool,
    has_cost_budget: bool,
    /// Whether any limit is set.
    pub(crate) has_limits: bool,
    allows_unpriced: bool,
    strict_models: bool,
    default_route: Option<RouteId>,
    routes: Vec<Arc<PublicRoute>>,
}

/// Who orders what searches of a project find.
#[derive(Debug)]
pub(crate) struct Rerank {
    pub(crate) target: UpstreamTarget,
    /// How many passages it is shown.
    pub(crate) candidates: usize,
}

impl Rerank {
    fn of(routing: &ProjectRouting) -> Option<Self> {
        let target = routing.reranker.clone().filter(|target| target.provider.reranks())?;
        let candidates = routing.retrieval.rerank?.candidates.clamp(1, RerankSettings::MOST_CANDIDATES);
        Some(Self { target, candidates: usize::try_from(candidates).unwrap_or(usize::MAX) })
    }
}

/// A model name and what is behind it.
#[derive(Debug)]
pub(crate) struct PublicRoute {
    pub(crate) name: String,
    pub(crate) max_output: Option<i64>,
    pub(crate) min_output: i64,
    pub(crate) context_tokens: i64,
    /// Whether a request that was sent and not answered in time may be sent again.
    pub(crate) replay_timeouts: bool,
    pub(crate) created_at: OffsetDateTime,
    id: RouteId,
    placement: Option<ContextPlacement>,
    allowed_features: Vec<String>,
    pub(crate) targets: Vec<Target>,
}

/// A model at a provider.
#[derive(Debug)]
pub(crate) struct Target {
    /// The connection's name.
    pub(crate) name: String,
    /// Groups are tried in this order.
    pub(crate) group: i16,
    weight: u32,
    pub(crate) provider: ProviderType,
    pub(crate) model: String,
    pub(crate) output_field: OutputField,
    /// How the model counts.
    pub(crate) measure: Measure,
    /// The most tokens of an answer that the model is known to write.
    most_output: Option<i64>,
    connection: Result<Arc<Connection>, Unusable>,
}

/// The route of one call.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) route: Arc<PublicRoute>,
    /// The model name that the answer shows.
    pub(crate) public_model: String,
}

impl Project {
    pub(crate) fn new(
        routing: ProjectRouting,
        embedding: Option<UpstreamTarget>,
        connect: &dyn Fn(&UpstreamTarget) -> Result<Connection, Unusable>,
    ) -> Self {
        let rerank = Rerank::of(&routing).map(Arc::new);
        let lacking = routing.retrieval.rerank.filter(|_| rerank.is_none());
        if let Some(RerankSettings { connection_id, .. }) = lacking {
            // Here and not where it is searched: once for all calls until the project or a connection changes.
            tracing::warn!(
                project_id = routing.project.0,
                connection_id = connection_id.0,
                "passages keep the order of the search: the connection that is to rerank them is gone or does not rerank"
            );
        }
        Self {
            id: routing.project,
            lacks_reranker: lacking.is_some(),
            store: routing.store,
            embedding: embedding.map(|target| (target.provider, target.model)),
            system_prompt: Some(routing.system_prompt).filter(|prompt| !prompt.trim().is_empty()),
            enforcement: routing.enforcement,
            rerank,
            retrieval: routing.retrieval,
            has_cost_budget: routing.has_cost_budget,
            has_limits: routing.has_limits,
            allows_unpriced: routing.allow_unpriced,
            strict_models: routing.strict_models,
            default_route: routing.default_route,
            routes: routing.routes.into_iter().map(|route| Arc::new(PublicRoute::new(route, connect))).collect(),
        }
    }

    /// The routes that a key may call, by name.
    pub(crate) fn routes_for<'a>(&'a self, caller: &'a Caller) -> impl Iterator<Item = &'a Arc<PublicRoute>> {
        self.routes.iter().filter(|route| caller.may_call(&route.name))
    }

    /// The route for the model name asked for, else the default route unless the project is strict. A route that the
    /// key may not call does not exist for it, and the call ends when its key may not call this one any more.
    pub(crate) fn choose(&self, asked: &str, caller: &Caller) -> Result<Chosen, EdgeError> {
        let named = self.routes_for(caller).find(|route| route.name == asked);
        let default = || self.routes_for(caller).find(|route| Some(route.id) == self.default_route);
        let strict = self.strict_models && !asked.is_empty();
        let route = match named {
            Some(route) => route,
            None if strict => return Err(no_model(asked)),
            None => default().ok_or_else(|| no_model(asked))?,
        };
        caller.live().goes_by(&route.name);
        let public_model = if asked.is_empty() { &route.name } else { asked };
        Ok(Chosen { route: Arc::clone(route), public_model: public_model.to_owned() })
    }

    /// Whether a budget of money applies to a caller, the project's or the key's own.
    fn counts_cost(&self, caller: &Caller) -> bool {
        self.has_cost_budget || caller.has_cost_budget()
    }

    /// Refuses a model without a price where money is counted and the project does not say otherwise.
    pub(crate) fn allow_price(&self, caller: &Caller, source: PriceSource, model: &str) -> Result<(), EdgeError> {
        if source == PriceSource::None && self.counts_cost(caller) && !self.allows_unpriced {
            return Err(EdgeError::ModelUnpriced { model: model.to_owned() });
        }
        Ok(())
    }

    /// Refuses features whose cost cannot be seen where money is counted, unless the route allows them.
    pub(crate) fn allow_features(
        &self,
        caller: &Caller,
        route: &PublicRoute,
        found: &[Feature],
    ) -> Result<(), EdgeError> {
        if !self.counts_cost(caller) {
            return Ok(());
        }
        match found.iter().find(|feature| !route.allowed_features.contains(&feature.name)) {
            Some(feature) => Err(EdgeError::UnpricedFeature { name: feature.name.clone(), path: feature.path.clone() }),
            None => Ok(()),
        }
    }

    /// The price that covers whichever target of the route answers that serves the call, or the refusal of a route that has none where money
    /// is counted.
    pub(crate) fn hold_prices(
        &self,
        caller: &Caller,
        route: &PublicRoute,
        serves: impl Fn(&Target) -> bool,
        prices: &PriceBook,
    ) -> Result<PriceSnapshot, EdgeError> {
        let mut dearest = PriceSnapshot::default();
        for target in route.targets.iter().filter(|target| serves(target)) {
            let (snapshot, source) = target.price(prices);
            self.allow_price(caller, source, &route.name)?;
            dearest = dearest.dearest(snapshot);
        }
        Ok(dearest)
    }
}

/// The providers that targets are at, each once.
pub(crate) fn distinct_providers<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Vec<ProviderType> {
    let mut providers = Vec::with_capacity(1);
    for target in targets {
        if !providers.contains(&target.provider) {
            providers.push(target.provider);
        }
    }
    providers
}

impl PublicRoute {
    fn new(route: Route, connect: &dyn Fn(&UpstreamTarget) -> Result<Connection, Unusable>) -> Self {
        let placement = match route.context_placement.as_deref() {
            Some("system") => Some(ContextPlacement::System),
            Some("last_user") => Some(ContextPlacement::LastUser),
            Some(_) | None => None,
        };
        Self {
            id: route.id,
            name: route.name,
            max_output: route.max_output,
            min_output: route.min_output,
            context_tokens: route.context_tokens,
            replay_timeouts: route.replay_timeouts,
            created_at: route.created_at,
            placement,
            allowed_features: route.allowed_features,
            targets: route
                .targets
                .into_iter()
                .map(|target| Target {
                    name: target.connection_name,
                    group: target.group,
                    weight: u32::try_from(target.weight).unwrap_or(0),
                    provider: target.upstream.provider,
                    output_field: target.output_field,
                    connection: connect(&target.upstream).map(Arc::new),
                    measure: Measure::of(&target.upstream.model),
                    most_output: most_output(&target.upstream.model).and_then(|tokens| i64::try_from(tokens).ok()),
                    model: target.upstream.model,
                })
                .collect(),
        }
    }

    /// The targets that a call with an output may go to, as places among all, in the order in which they are tried: those
    /// that serve it, that can be called at all, and whose output can be bounded where bounds are kept.
    pub(crate) fn order(
        &self,
        serves: impl Fn(&Target) -> bool,
        keeps_bounds: bool,
        random: &mut impl Rng,
    ) -> Result<Vec<usize>, EdgeError> {
        let is_bounded = |target: &Target| target.output_field.member().is_some();
        let can = |target: &Target| serves(target) && is_bounded(target);
        if keeps_bounds && self.targets.iter().any(&serves) && !self.targets.iter().any(can) {
            return Err(EdgeError::HardLimitUnsupported { model: self.name.clone() });
        }
        self.order_of(|target| serves(target) && (!keeps_bounds || is_bounded(target)), random)
    }

    /// The targets that serve a call, as places among all, in the order in which they are tried: those that can be called
    /// at all.
    pub(crate) fn order_of(
        &self,
        serves: impl Fn(&Target) -> bool,
        random: &mut impl Rng,
    ) -> Result<Vec<usize>, EdgeError> {
        let lots: Vec<(i16, u32)> = self.targets.iter().map(|target| (target.group, target.weight)).collect();
        let mut order = order(&lots, random);
        if order.is_empty() {
            return Err(EdgeError::NoConnection { model: self.name.clone() });
        }
        order.retain(|at| self.targets.get(*at).is_some_and(&serves));
        let Some(first) = order.first().and_then(|at| self.targets.get(*at)) else {
            return Err(EdgeError::UnsupportedForModel { model: self.name.clone() });
        };
        order.retain(|at| self.targets.get(*at).is_some_and(|target| target.connection.is_ok()));
        if order.is_empty() {
            // It says why.
            first.connection()?;
        }
        Ok(order)
    }

    /// The targets that embed, in the order in which they are tried. All have the model of the first: what another model
    /// makes of a text cannot be compared with it, so that any answer would be worse than none.
    pub(crate) fn order_of_embedders(&self, random: &mut impl Rng) -> Result<Vec<usize>, EdgeError> {
        let model = self.targets.iter().find(|target| target.provider.embeds()).map(|target| target.model.as_str());
        self.order_of(|target| target.provider.embeds() && Some(target.model.as_str()) == model, random)
    }

    /// The target at a place of an order.
    pub(crate) fn at(&self, order: &[usize], place: usize) -> Result<&Target, EdgeError> {
        let target = order.get(place).and_then(|at| self.targets.get(*at));
        target.ok_or_else(|| EdgeError::NoConnection { model: self.name.clone() })
    }

    /// Where the places of an order are reached.
    pub(crate) fn destinations(&self, order: &[usize]) -> Result<Vec<Destination>, EdgeError> {
        let reached = |place| {
            let target = self.at(order, place)?;
            Ok(Destination { connection: target.connection()?, group: target.group })
        };
        (0..order.len()).map(reached).collect()
    }

    /// Who offers the model, as lists show it.
    pub(crate) fn owner(&self) -> &'static str {
        self.targets.first().map_or("ragmux", |target| target.provider.as_str())
    }

    /// Where passages go for a provider.
    pub(crate) fn placement(&self, provider: ProviderType) -> ContextPlacement {
        self.placement.unwrap_or_else(|| default_placement(provider))
    }
}

impl Target {
    /// The connection, if it can be used.
    pub(crate) fn connection(&self) -> Result<Arc<Connection>, EdgeError> {
        match &self.connection {
            Ok(connection) => Ok(Arc::clone(connection)),
            Err(Unusable::Credential) => Err(EdgeError::CredentialUnreadable),
            Err(Unusable::Address) => Err(EdgeError::NoConnection { model: self.model.clone() }),
        }
    }

    /// The most output tokens of one answer where the client does not bound it: the route's bound, at most what the model
    /// can write.
    pub(crate) fn output_bound(&self, of_route: Option<i64>) -> i64 {
        match (of_route, self.most_output) {
            (Some(of_route), Some(of_model)) => of_route.min(of_model),
            (of_route, of_model) => of_route.or(of_model).unwrap_or(DEFAULT_OUTPUT),
        }
    }

    pub(crate) fn price(&self, prices: &PriceBook) -> (PriceSnapshot, PriceSource) {
        prices.price(self.provider, &self.model)
    }
}

/// The refusal of a model name.
fn no_model(asked: &str) -> EdgeError {
    let none_named = "(none was named, and the project has no default)";
    EdgeError::ModelNotFound { model: if asked.is_empty() { none_named.to_owned() } else { shown(asked) } }
}
