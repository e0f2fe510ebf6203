//! The ledger as a process keeps it: what was admitted is remembered for its settlement.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{InstanceId, NanoUsd, RequestId};
use store::ledger::{Admission, AdmittedAt, Ask, Entry, LedgerEpoch, LedgerLink, OpenCallRow, Settlement};
use store::{Store, StoreError};

/// One process's side of the ledger.
pub(crate) struct Books {
    pub(crate) link: LedgerLink,
    pub(crate) instance: InstanceId,
    pub(crate) epoch: LedgerEpoch,
    open: HashMap<RequestId, OpenCallRow>,
}

impl Books {
    pub(crate) async fn open(store: &Store) -> anyhow::Result<Self> {
        let mut link = store.ledger_link();
        let instance = InstanceId::new();
        let epoch = link.reassert(instance, &[]).await?;
        Ok(Self { link, instance, epoch, open: HashMap::new() })
    }

    pub(crate) async fn admit(&mut self, asks: &[Ask]) -> Result<Vec<Admission>, StoreError> {
        self.admit_again(asks, false).await
    }

    pub(crate) async fn admit_again(&mut self, asks: &[Ask], again: bool) -> Result<Vec<Admission>, StoreError> {
        let borrowed: Vec<&Ask> = asks.iter().collect();
        let answers = self.link.admit(self.instance, self.epoch, again, &borrowed).await?;
        for (ask, answer) in asks.iter().zip(&answers) {
            if let Admission::Admitted { at, output_tokens, .. } = answer {
                let row = OpenCallRow::held(Arc::new(ask.clone()), Some(*at), *output_tokens);
                self.open.insert(ask.request, row);
            }
        }
        Ok(answers)
    }

    /// The row of an admitted call, as its owner knows it.
    pub(crate) fn row(&self, request: RequestId) -> OpenCallRow {
        self.open[&request].clone()
    }

    /// Forgets when a call was admitted.
    pub(crate) fn forget_time(&mut self, request: RequestId) {
        self.open.get_mut(&request).unwrap().admitted_at = None;
    }

    /// Takes a call for one that was admitted that much earlier.
    pub(crate) fn admitted_earlier(&mut self, request: RequestId, by: Duration) {
        let row = self.open.get_mut(&request).unwrap();
        let by = i64::try_from(by.as_micros()).unwrap();
        row.admitted_at = row.admitted_at.map(|at| AdmittedAt(at.0 - by));
    }

    pub(crate) async fn settle(
        &mut self,
        request: RequestId,
        tokens: i64,
        cost: i64,
    ) -> Result<Vec<RequestId>, StoreError> {
        self.settle_as(request, tokens, cost, Entry { status: 200, ..Entry::default() }).await
    }

    pub(crate) async fn settle_as(
        &mut self,
        request: RequestId,
        tokens: i64,
        cost: i64,
        entry: Entry,
    ) -> Result<Vec<RequestId>, StoreError> {
        let call = self.row(request);
        let counts = call.ask.key.is_some();
        self.link.settle(self.instance, &[Settlement { call, counts, tokens, cost: NanoUsd(cost), entry }]).await
    }
}
