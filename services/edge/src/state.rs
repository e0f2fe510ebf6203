//! What all calls of an edge share.

use std::sync::Arc;
use std::time::Duration;

use config::TrustedProxies;
use ledger::Ledger;
use providers::{Images, Providers};
use store::Store;

use crate::admission::{Denials, Tally, TokenCounter};
use crate::auth::{LiveCalls, Principals, Strangers};
use crate::body::Bodies;
use crate::catalog::Catalog;
use crate::grounding::Grounding;
use crate::routes::usage::Reads;

/// The parts of an edge that is ready to work.
pub(crate) struct Edge {
    pub(crate) store: Store,
    pub(crate) ledger: Ledger,
    pub(crate) providers: Providers,
    pub(crate) images: Images,
    pub(crate) principals: Principals,
    /// Who sends keys that do not exist.
    pub(crate) strangers: Strangers,
    /// The calls that run, which end when their key may not go on or this process is ending.
    pub(crate) live: Arc<LiveCalls>,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) catalog: Catalog,
    pub(crate) counter: TokenCounter,
    /// What was denied a moment ago.
    pub(crate) denials: Denials,
    /// What was denied and is not yet in the database.
    pub(crate) tally: Tally,
    pub(crate) bodies: Bodies,
    pub(crate) grounding: Grounding,
    /// Turns to read what was used.
    pub(crate) usage_reads: Reads,
    /// How long a call may last.
    pub(crate) call_limit: Duration,
    /// When a stream's status is sent at the latest; `None` for never before the provider's first event.
    pub(crate) commit_after: Option<Duration>,
    /// After how much silence a stream is sent a comment.
    pub(crate) ping_every: Duration,
    /// After how long without a notification changes of configuration are looked for.
    pub(crate) config_poll: Duration,
}

/// How handlers hold it.
pub(crate) type Shared = Arc<Edge>;
