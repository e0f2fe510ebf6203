//! Whether a call may run: what it can cost is reserved before anything is sent.

mod count;
mod denials;
mod headers;
mod tags;
mod tally;

use std::borrow::Cow;
use std::time::Instant;

use domain::{ConnectionId, NanoUsd, PriceSnapshot, ProviderType, RequestId, Tier};
use futures::FutureExt;
use http::{HeaderMap, HeaderValue};
use ledger::{Ending, OpenCall, Outcome, Overruling};
use providers::{Charge, Connection, Lacks, UpstreamError, Usage};
use store::ledger::{Ask, Denial};

use crate::auth::{Caller, Ended};
use crate::catalog::{Project, Target};
use crate::error::{EdgeError, Failure, KeyState};
use crate::header_names::MODEL;
use crate::state::Edge;

pub(crate) use count::{Measure, TokenCounter, output};
pub(crate) use denials::Denials;
pub(crate) use headers::limits_of_messages;
pub(crate) use tags::Tags;
pub(crate) use tally::{Tally, keep_writing};

/// The output bound of a call that brings none, on a route that has none, to a model of which none is known.
pub(crate) const DEFAULT_OUTPUT: i64 = 4096;

/// Above what any model gives; larger bounds only say that there is to be none.
pub(crate) const LARGEST_OUTPUT: i64 = 10_000_000;

/// What a call wants to reserve.
pub(crate) struct Claim<'a> {
    pub(crate) request: RequestId,
    pub(crate) accepted: Instant,
    pub(crate) caller: &'a Caller,
    /// Whether the project has any limit.
    pub(crate) has_limits: bool,
    pub(crate) operation: &'static str,
    pub(crate) route: Option<&'a str>,
    /// The model that is paid.
    pub(crate) model: Option<Model<'a>>,
    pub(crate) tags: Tags,
    pub(crate) prompt_tokens: i64,
    /// Tokens of other models, which are paid at prices of their own.
    pub(crate) other_tokens: i64,
    pub(crate) output_tokens: i64,
    pub(crate) min_output: i64,
    pub(crate) prices: PriceSnapshot,
    pub(crate) other_cost: NanoUsd,
    pub(crate) streamed: bool,
}

/// A model at a provider, as the log names it.
pub(crate) struct Model<'a> {
    pub(crate) name: &'a str,
    pub(crate) provider: ProviderType,
    pub(crate) connection: Option<ConnectionId>,
}

impl<'a> Model<'a> {
    /// The model that a route leads to.
    pub(crate) fn of(target: &'a Target, connection: &Connection) -> Self {
        Self { name: &target.model, provider: target.provider, connection: Some(connection.id) }
    }
}

impl<'a> Claim<'a> {
    /// A request and nothing else. A call names what it takes beside it.
    pub(crate) fn of_a_request(
        operation: &'static str,
        (request, accepted): (RequestId, Instant),
        caller: &'a Caller,
        project: &Project,
    ) -> Self {
        Self {
            request,
            accepted,
            caller,
            has_limits: project.has_limits,
            operation,
            route: None,
            model: None,
            tags: Tags::default(),
            prompt_tokens: 0,
            other_tokens: 0,
            output_tokens: 0,
            min_output: 0,
            prices: PriceSnapshot::default(),
            other_cost: NanoUsd::ZERO,
            streamed: false,
        }
    }

    /// What is held beside the price of tokens. The ledger prices all tokens alike, so those of other models come off
    /// again at that price; rounded so that the whole is never too little.
    fn fixed_cost(&self) -> NanoUsd {
        const PER: i128 = 1_000_000;
        let priced = i128::from(self.other_tokens.max(0)) * i128::from(self.prices.dearest_input().0.max(0)) / PER;
        NanoUsd(self.other_cost.0.saturating_sub(i64::try_from(priced).unwrap_or(i64::MAX)))
    }

    /// What every answer to it carries, a denial as well.
    fn headers(&self) -> HeaderMap {
        let value = self.model.as_ref().and_then(|model| HeaderValue::from_str(model.name).ok());
        value.map(|value| (MODEL, value)).into_iter().collect()
    }
}

/// A call that may run, and the headers that every answer to it carries.
pub(crate) struct Admitted {
    pub(crate) call: Box<OpenCall>,
    pub(crate) headers: HeaderMap,
}

/// Reserves for a call, or says why not.
pub(crate) async fn admit(edge: &Edge, claim: Claim<'_>) -> Result<Admitted, Failure> {
    let (project, key) = (claim.caller.project, claim.caller.key());
    let mut ask = Ask {
        request: claim.request,
        project,
        key: Some(key),
        prompt_tokens: claim.prompt_tokens.saturating_add(claim.other_tokens),
        output_tokens: claim.output_tokens,
        min_output: claim.min_output,
        input_price: claim.prices.dearest_input(),
        output_price: claim.prices.output,
        fixed_cost: claim.fixed_cost(),
        details: String::new(),
    };
    let least = ask.cost(ask.min_output.min(ask.output_tokens));
    if let Some(denial) = edge.denials.recall(project, key, least == NanoUsd::ZERO) {
        return Err(denied(edge, claim.caller, denial, claim.headers()));
    }
    ask.details = serde_json::json!({
        "operation": claim.operation,
        "route": claim.route,
        "model": claim.model.as_ref().map(|model| model.name),
        "provider_type": claim.model.as_ref().map(|model| model.provider.as_str()),
        "connection_id": claim.model.as_ref().and_then(|model| model.connection).map(|connection| connection.0),
        "streamed": claim.streamed,
        "tags": claim.tags.json(),
        // Stands until the call is settled, and for good if this process dies before.
        "status": 499,
    })
    .to_string();
    let asking = edge.denials.asking();
    // Where nothing limits a call there is nothing to wait for: its row is written meanwhile.
    let outcome = if claim.has_limits || claim.caller.has_limits() {
        edge.ledger.admit(ask).await
    } else {
        edge.ledger.admit_unlimited(ask).await
    };
    match outcome? {
        Outcome::Open(mut call) => {
            let mut headers = claim.headers();
            headers::describe(call.headroom(), &mut headers);
            call.accepted_at(claim.accepted);
            Ok(Admitted { call, headers })
        }
        Outcome::Denied(denial) => {
            edge.denials.remember(asking, project, key, &denial);
            Err(denied(edge, claim.caller, denial, claim.headers()))
        }
        Outcome::Refused { code } => Err(refused(edge, claim.caller, &code).into()),
    }
}

/// Counts a denial and answers it.
fn denied(edge: &Edge, caller: &Caller, denial: Denial, mut headers: HeaderMap) -> Failure {
    let whose = match denial.tier {
        Tier::Project => caller.project.0,
        Tier::Key => caller.key().0,
    };
    edge.tally.count(denial.tier, whose, &denial.code);
    headers::describe(&denial.headroom, &mut headers);
    Failure::with(EdgeError::Denied(Box::new(denial)), headers)
}

/// What a caller is told whose key the database refuses.
fn refused(edge: &Edge, caller: &Caller, code: &str) -> EdgeError {
    // The database knows something newer of this key than was kept here.
    edge.principals.key_changed(caller.key());
    edge.tally.count(Tier::Key, caller.key().0, code);
    match code {
        "key_revoked" => EdgeError::KeyState(KeyState::Revoked),
        "key_expired" => EdgeError::KeyState(KeyState::Expired),
        "key_owner_inactive" => EdgeError::KeyState(KeyState::OwnerInactive),
        _ => EdgeError::ProjectNotGranted,
    }
}

/// What ends a call from our side before the first byte of its answer.
pub(crate) enum Interruption {
    /// Its key may not go on, or this process is ending.
    Ended(Ended),
    /// The call was begun without waiting for its admission, and may not run after all.
    Overruled(Box<Overruling>),
}

/// Whether it has turned out by now that a call, begun without waiting for its admission, may not run.
pub(crate) fn overruled_by_now(call: &mut OpenCall) -> Option<Overruling> {
    call.overruled().now_or_never()
}

/// Settles a call that was overruled before it was sent, and says what its client is told. What was paid besides, such as
/// a search, is charged all the same.
pub(crate) fn settle_unsent(
    edge: &Edge,
    caller: &Caller,
    call: OpenCall,
    overruling: Overruling,
    headers: HeaderMap,
) -> Failure {
    settle_overruled(edge, caller, call, overruling, Ending::Fault, headers)
}

/// Waits for what ends a call before its first byte.
pub(crate) async fn interrupted(caller: &Caller, call: &mut OpenCall) -> Interruption {
    tokio::select! {
        biased;
        overruling = call.overruled() => Interruption::Overruled(Box::new(overruling)),
        ended = caller.live().ended() => Interruption::Ended(ended),
    }
}

/// Settles a call that ended so, and says what its client is told.
pub(crate) fn settle_interrupted(
    edge: &Edge,
    caller: &Caller,
    call: OpenCall,
    interruption: Interruption,
    headers: HeaderMap,
) -> Failure {
    match interruption {
        Interruption::Ended(ended) => Failure::with(settle_ended(call, ended), headers),
        Interruption::Overruled(overruling) => {
            // Of one that was sent the provider may bill the prompt.
            let ending = if call.is_owed() { Ending::Cut } else { Ending::Fault };
            settle_overruled(edge, caller, call, *overruling, ending, headers)
        }
    }
}

fn settle_overruled(
    edge: &Edge,
    caller: &Caller,
    call: OpenCall,
    overruling: Overruling,
    ending: Ending,
    headers: HeaderMap,
) -> Failure {
    let failure = match overruling {
        Overruling::Denied(denial) => denied(edge, caller, denial, headers),
        Overruling::Refused(code) => Failure::with(refused(edge, caller, &code), headers),
    };
    settle_as(call, ending, &failure.error);
    failure
}

/// Settles a call as its client is told of it.
pub(crate) fn settle_as(call: OpenCall, ending: Ending, error: &EdgeError) {
    let (status, code) = logged_as(error);
    call.finish(ending, status, code.as_deref());
}

/// Settles a call that failed before the first byte of an answer.
pub(crate) fn settle_failed(call: OpenCall, error: &UpstreamError) {
    let ending = match error.charge() {
        Charge::Nothing => Ending::Fault,
        Charge::Request => Ending::Rejected,
        Charge::Prompt => Ending::Cut,
    };
    call.finish(ending, error.status(), error.code());
}

/// Settles a call that has to end before the first byte of its answer, and says what its client is told. It is free
/// where it is this process that is ending, and where nothing was sent for it that is owed for.
pub(crate) fn settle_ended(call: OpenCall, ended: Ended) -> EdgeError {
    let ending = if ended == Ended::Stopping || !call.is_owed() { Ending::Fault } else { Ending::Cut };
    let error = EdgeError::from(ended);
    settle_as(call, ending, &error);
    error
}

/// The status and the code that the log has of a call that failed so.
pub(crate) fn logged_as(error: &EdgeError) -> (u16, Option<String>) {
    let face = error.face();
    let status = if matches!(error, EdgeError::ShuttingDown) { 499 } else { face.status.as_u16() };
    (status, face.code.map(Cow::into_owned))
}

/// Tells the call what it used: what the provider reported, and our own count of what it did not.
pub(crate) fn used(call: &mut OpenCall, usage: Option<Usage>, counted: impl FnOnce() -> i64) {
    match usage {
        None => call.delivered(counted()),
        Some(usage) => match usage.lacks {
            Lacks::Nothing => call.usage(reported(usage)),
            Lacks::Prompt => call.usage_in_part(reported(usage.filled(call.prompt_tokens(), 0))),
            Lacks::Completion => call.usage_in_part(reported(usage.filled(0, counted()))),
        },
    }
}

/// Usage as the ledger takes it.
pub(crate) fn reported(usage: Usage) -> ledger::Usage {
    ledger::Usage {
        prompt: usage.prompt_tokens,
        completion: usage.completion_tokens,
        cached: usage.cached_tokens,
        cache_write: usage.cache_write_tokens,
        reasoning: usage.reasoning_tokens,
        cost: usage.cost,
    }
}
