//! What a search has to pay for, known however it ends.

use domain::{ConnectionId, ProviderType};
use providers::UpstreamError;
use store::targets::UpstreamTarget;

/// What a model did for a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It embedded the query.
    Embedding,
    /// It put what was found into an order.
    Reranking,
}

/// A call to a provider that has to be paid, for the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUse {
    /// For what.
    pub work: Work,
    /// The connection that was called.
    pub connection: ConnectionId,
    /// Its provider.
    pub provider: ProviderType,
    /// The model's name there.
    pub model: String,
    /// Tokens it reported, or by our count when it reported none.
    pub tokens: i64,
    /// The search units that it reported, or by our count when it reported none; for providers that bill those.
    pub search_units: i64,
    /// Whether what is paid for is our count.
    pub estimated: bool,
}

impl ModelUse {
    /// What a call comes to by our count.
    pub(crate) fn counted(work: Work, target: &UpstreamTarget, tokens: i64, search_units: i64) -> Self {
        Self {
            work,
            connection: target.connection,
            provider: target.provider,
            model: target.model.clone(),
            tokens,
            search_units,
            estimated: true,
        }
    }
}

/// Hears what is owed.
pub(crate) type Owed<'a> = &'a mut (dyn FnMut(ModelUse) + Send);

/// What is owed for a call on its way. Whoever gives up the wait for its answer, or can make nothing of it, owes what we
/// counted.
pub(crate) struct Debt<'a> {
    used: Option<ModelUse>,
    owed: Owed<'a>,
}

impl<'a> Debt<'a> {
    pub(crate) fn new(used: ModelUse, owed: Owed<'a>) -> Self {
        Self { used: Some(used), owed }
    }

    /// The provider has answered; `report` puts in what it reported.
    pub(crate) fn stands(mut self, report: impl FnOnce(&mut ModelUse)) {
        if let Some(used) = &mut self.used {
            report(used);
        }
    }

    /// The call has failed.
    pub(crate) fn ends_with(mut self, error: &UpstreamError) {
        if !error.may_be_billed() {
            self.used = None;
        }
    }
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        if let Some(used) = self.used.take() {
            (self.owed)(used);
        }
    }
}
