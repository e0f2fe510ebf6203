//! Everything before the provider: route, admission, passages, and the body that goes upstream.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use domain::{Enforcement, NanoUsd, RequestId};
use http::HeaderMap;
use ledger::OpenCall;
use providers::{ChatCall, ChatRequest, Connection, Outgoing, OutputBound};
use tokens::Family;

use crate::admission::{Admitted, Claim, DEFAULT_OUTPUT, LARGEST_OUTPUT, Model, Tags, admit};
use crate::auth::Caller;
use crate::catalog::{Project, PublicRoute, Target};
use crate::error::{EdgeError, Failure};
use crate::grounding::{Grounded, Plan, sources_member};
use crate::state::Edge;

/// A call that is admitted and ready to be sent.
pub(super) struct Ready {
    pub(super) id: RequestId,
    pub(super) call: Box<OpenCall>,
    pub(super) headers: HeaderMap,
    pub(super) connection: Arc<Connection>,
    pub(super) upstream: ChatCall,
    pub(super) family: Family,
    /// The `ragmux` member of the answer, where the client asked for it.
    pub(super) member: Option<String>,
}

pub(super) async fn prepare(
    edge: &Edge,
    caller: &Caller,
    id: RequestId,
    accepted: Instant,
    body: &Bytes,
    request: &ChatRequest<'_>,
    tags: Tags,
) -> Result<Ready, Failure> {
    let project = edge.catalog.project(caller.project).await?;
    let chosen = project.choose(&request.model, caller)?;
    let route = &chosen.route;
    let target = route.target()?;
    let connection = target.connection()?;
    let bounding = bounding(&project, target, &route.name)?;
    let prices = edge.catalog.prices().await?;
    let hold_prices = project.hold_prices(caller, route, &prices)?;
    project.allow_features(caller, route, &request.costly_features(target.provider).map_err(EdgeError::from)?)?;
    let family = Family::of(&target.model);
    let counted = edge.counter.chat(family, body, request, project.system_prompt.as_deref()).await?;

    let plan = Plan::for_chat(&project, route, request);
    let (query_tokens, query_cost) = match &plan {
        Some(plan) => plan.hold(&project, caller, &prices, &edge.counter).await?,
        None => (0, NanoUsd::ZERO),
    };
    let context_budget = if plan.is_some() { route.context_tokens } else { 0 };
    let bound = output_bound(route, request);
    let claim = Claim {
        request: id,
        accepted,
        caller,
        has_limits: project.has_limits,
        operation: "chat",
        route: Some(&route.name),
        model: Some(Model::of(target, &connection)),
        tags: tags.and(request.metadata, request.user.as_deref()),
        prompt_tokens: counted.saturating_add(context_budget).saturating_add(query_tokens),
        output_tokens: bound,
        min_output: route.min_output.min(bound),
        prices: hold_prices,
        fixed_cost: query_cost,
        streamed: request.stream,
    };
    let Admitted { mut call, mut headers } = admit(edge, claim).await?;
    let (snapshot, source) = target.price(&prices);
    call.priced(snapshot, source);

    let grounded = match &plan {
        Some(plan) => edge.grounding.ground(plan, context_budget, family, &prices, &edge.counter, &mut call).await,
        None => Grounded::default(),
    };
    let prompt = counted.saturating_add(grounded.block_tokens);
    call.counted_prompt(prompt);
    if project.store.is_some() {
        call.entry_mut().rag_hits = i32::try_from(grounded.hits.len()).ok();
        grounded.describe(&mut headers);
    }
    let member = request.include_context.then(|| sources_member(&grounded));
    let upstream = request.call(&Outgoing {
        model: &connection.model,
        public_model: &chosen.public_model,
        context: grounded.block.as_deref(),
        placement: route.placement(connection.provider),
        project_prompt: project.system_prompt.as_deref(),
        output_bound: bounding.map(|field| OutputBound {
            field,
            tokens: call.output_tokens().unsigned_abs(),
            family,
            prompt_tokens: prompt.unsigned_abs(),
        }),
        max_output: u64::try_from(bound / i64::try_from(request.n).unwrap_or(1).max(1)).ok(),
        member: member.as_deref().map(|member| ("ragmux", member)),
        anthropic_beta: None,
    });
    Ok(Ready { id, call, headers, connection, upstream, family, member })
}

/// The most output tokens of all choices together.
fn output_bound(route: &PublicRoute, request: &ChatRequest<'_>) -> i64 {
    let asked = request.output_limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let each = asked.or(route.max_output).unwrap_or(DEFAULT_OUTPUT).clamp(1, LARGEST_OUTPUT);
    each.saturating_mul(i64::try_from(request.n).unwrap_or(1))
}

/// The field that bounds the output at a target, where the project keeps its bounds.
fn bounding(project: &Project, target: &Target, asked: &str) -> Result<Option<&'static str>, EdgeError> {
    if project.enforcement == Enforcement::Soft {
        return Ok(None);
    }
    let field = target.output_field.member();
    field.map(Some).ok_or_else(|| EdgeError::HardLimitUnsupported { model: asked.to_owned() })
}
