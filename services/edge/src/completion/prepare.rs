//! Everything before the provider: route, admission, passages, and the places the call may go.

use std::sync::Arc;

use bytes::Bytes;
use domain::{Enforcement, NanoUsd, ProjectId, ProviderType, RequestId};
use http::HeaderMap;
use ledger::{Ending, OpenCall};
use providers::{ClientDialect, Inbound, UpstreamError, costly_betas};
use rand::rng;

use super::answer::Asked;
use super::itinerary::{Images, Itinerary, Texts};
use crate::admission::{
    Admitted, Claim, DEFAULT_OUTPUT, LARGEST_OUTPUT, Measure, Model, admit, interrupted, logged_as, settle_as,
    settle_ended, settle_interrupted,
};
use crate::catalog::{PublicRoute, Target, distinct_providers};
use crate::error::{EdgeError, Failure};
use crate::grounding::{Grounded, Plan, Way, sources_member};
use crate::state::Edge;

/// A call that is admitted and ready to be sent.
pub(super) struct Ready {
    pub(super) id: RequestId,
    pub(super) dialect: ClientDialect,
    pub(super) call: Box<OpenCall>,
    pub(super) headers: HeaderMap,
    pub(super) itinerary: Itinerary,
}

pub(super) async fn prepare(
    edge: &Edge,
    asked: Asked,
    received: &Bytes,
    inbound: &Inbound<'_>,
) -> Result<Ready, Failure> {
    let Asked { caller, id, accepted, tags, anthropic } = asked;
    let project = edge.catalog.project(caller.project).await?;
    let chosen = project.choose(inbound.model(), &caller)?;
    let route = &chosen.route;
    let keeps_bounds = project.enforcement == Enforcement::Hard;
    let serves = |target: &Target| inbound.dialect().is_served_by(target.provider);
    let targets = route.order(serves, keeps_bounds, &mut rng())?;
    let first = route.at(&targets, 0)?;
    let connection = first.connection()?;
    let prices = edge.catalog.prices().await?;
    let hold_prices = project.hold_prices(&caller, route, serves, &prices)?;
    for provider in distinct_providers(route.targets.iter().filter(|target| serves(target))) {
        let mut features = inbound.costly_features(provider).map_err(EdgeError::from)?;
        if provider == ProviderType::Anthropic && inbound.dialect() == ClientDialect::Messages {
            features.extend(anthropic.beta.as_deref().map(costly_betas).unwrap_or_default());
        }
        project.allow_features(&caller, route, &features)?;
    }
    // Texts that only go on are given no rules.
    let project_prompt = project.system_prompt.as_deref().filter(|_| inbound.is_conversation());
    let counted = count(edge, project_prompt, route, received, inbound).await?;

    let plan = Plan::for_chat(&project, route, inbound);
    let (other_tokens, other_cost) = match &plan {
        Some(plan) => {
            let (query_tokens, query_cost) = plan.hold(&project, &caller, &prices, &edge.counter).await?;
            let (tokens, cost) = plan.hold_condensing(route, &hold_prices, &edge.counter).await?;
            (query_tokens.saturating_add(tokens), query_cost + cost)
        }
        None => (0, NanoUsd::ZERO),
    };
    let context_budget = if plan.is_some() { route.context_tokens } else { 0 };
    let bound = output_bound(route, inbound);
    let claim = Claim {
        request: id,
        accepted,
        caller: &caller,
        has_limits: project.has_limits,
        operation: if inbound.is_conversation() { "chat" } else { "completions" },
        route: Some(&route.name),
        model: Some(Model::of(first, &connection)),
        tags: tags.and(inbound.metadata(), inbound.user()),
        prompt_tokens: counted.saturating_add(context_budget),
        other_tokens,
        output_tokens: bound,
        min_output: route.min_output.min(bound),
        prices: hold_prices,
        other_cost,
        streamed: inbound.is_streamed(),
    };
    let Admitted { mut call, mut headers } = admit(edge, claim).await?;
    let (snapshot, source) = first.price(&prices);
    call.priced(snapshot, source);

    let family = first.measure.family;
    let grounded = match plan {
        Some(plan) => {
            let way = Way { route, targets: &targets, prices: &prices };
            let ground = edge.grounding.ground(plan, way, context_budget, family, &edge.counter, &mut call);
            let ended = tokio::select! {
                biased;
                grounded = ground => Ok(grounded),
                ended = caller.live().ended() => Err(ended),
            };
            match ended {
                Ok(grounded) => grounded,
                Err(ended) => return Err(Failure::with(settle_ended(*call, ended), headers)),
            }
        }
        None => Grounded::default(),
    };
    let prompt = counted.saturating_add(grounded.block_tokens);
    call.counted_prompt(prompt);
    if project.store.is_some() && inbound.is_conversation() {
        call.entry_mut().rag_hits = i32::try_from(grounded.hits.len()).ok();
        grounded.describe(&mut headers);
    }
    let fetched = tokio::select! {
        biased;
        images = images(edge, caller.project, route, &targets, received, inbound) => Ok(images),
        interruption = interrupted(&caller, &mut call) => Err(interruption),
    };
    let images = match fetched {
        Ok(Ok(images)) => images,
        Ok(Err(error)) => {
            let ending = if logged_as(&error).0 == 400 { Ending::Rejected } else { Ending::Fault };
            settle_as(*call, ending, &error);
            return Err(Failure::with(error, headers));
        }
        Err(interruption) => return Err(settle_interrupted(edge, &caller, *call, interruption, headers)),
    };
    let texts = Texts {
        public_model: chosen.public_model.clone(),
        member: inbound.includes_context().then(|| sources_member(&grounded)),
        context: grounded.block,
        project_prompt: project_prompt.map(str::to_owned),
        prompt_tokens: prompt.unsigned_abs(),
        output_tokens: keeps_bounds.then(|| call.output_tokens().unsigned_abs()),
        anthropic,
        images,
    };
    let itinerary = Itinerary::new(edge, chosen.route, targets, received, inbound, texts, prices).await?;
    Ok(Ready { id, dialect: inbound.dialect(), call, headers, itinerary })
}

/// Fetches the images of a request for the places that want their bytes. A place whose images cannot be had is passed by,
/// as one that fetches them itself may have them all the same; the request fails if that leaves none.
async fn images(
    edge: &Edge,
    project: ProjectId,
    route: &PublicRoute,
    targets: &[usize],
    received: &Bytes,
    inbound: &Inbound<'_>,
) -> Result<Images, EdgeError> {
    let mut images = Images::default();
    let dialect = inbound.dialect();
    let mut asked = distinct_providers(targets.iter().filter_map(|at| route.targets.get(*at)));
    let all = asked.len();
    asked.retain(|provider| Inbound::wants_images(dialect, *provider));
    if asked.is_empty() {
        return Ok(images);
    }
    let providers = asked.clone();
    let look = move |inbound: &Inbound<'_>| inbound.images_to_fetch(&providers);
    let wanted = edge.counter.with(dialect, received, Some(inbound), look).await?;
    let deadline = edge.images.deadline();
    for (provider, wanted) in asked.into_iter().zip(wanted) {
        let Some(wanted) = wanted else { continue };
        match edge.images.fetch_all(project, &wanted.urls, wanted.accepted, deadline).await {
            Ok(fetched) => images.fetched.add(fetched),
            Err(error) => {
                tracing::debug!(code = error.code(), "an image that a provider wants could not be fetched");
                images.missing.push((provider, Arc::new(error)));
            }
        }
    }
    // As many as there are: none is left.
    match images.missing.first() {
        Some((_, error)) if images.missing.len() == all => Err(UpstreamError::Image(Arc::clone(error)).into()),
        _ => Ok(images),
    }
}

/// The prompt's tokens: by the model that takes most for it, of those the route may lead to.
async fn count(
    edge: &Edge,
    project_prompt: Option<&str>,
    route: &PublicRoute,
    received: &Bytes,
    inbound: &Inbound<'_>,
) -> Result<i64, EdgeError> {
    let mut measures: Vec<Measure> = Vec::with_capacity(1);
    let mut most = 0;
    for Target { measure, provider, .. } in &route.targets {
        let measure = *measure;
        if !inbound.dialect().is_served_by(*provider) || measures.contains(&measure) {
            continue;
        }
        measures.push(measure);
        most = most.max(edge.counter.chat(measure, received, inbound, project_prompt).await?);
    }
    Ok(most)
}

/// The most output tokens of all choices together: as the client bounds them, else as the route does, and without either
/// what the model can write, of those the route may lead to the one that can write most.
fn output_bound(route: &PublicRoute, inbound: &Inbound<'_>) -> i64 {
    let asked = inbound.output_limit().map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let of_route = || {
        let served = route.targets.iter().filter(|target| inbound.dialect().is_served_by(target.provider));
        let bounds = served.map(|target| unbounded_output(target, route, inbound));
        bounds.max().unwrap_or(DEFAULT_OUTPUT)
    };
    let each = asked.unwrap_or_else(of_route).clamp(1, LARGEST_OUTPUT);
    each.saturating_mul(i64::try_from(inbound.answers()).unwrap_or(1))
}

/// The most output tokens of one answer that the client does not bound.
pub(super) fn unbounded_output(target: &Target, route: &PublicRoute, inbound: &Inbound<'_>) -> i64 {
    let usual = inbound.usual_output(target.provider).and_then(|tokens| i64::try_from(tokens).ok());
    usual.unwrap_or_else(|| target.output_bound(route.max_output))
}
