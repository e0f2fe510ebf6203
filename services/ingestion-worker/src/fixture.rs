//! What the tests of this crate work with: a database with one document, and a workshop of real parts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use domain::{DocumentId, ProjectId, Secret, StoreId};
use extract::protocol::SandboxPolicy;
use ledger::{Ledger, LedgerTasks};
use providers::{AddressPolicy, HttpOptions, Providers};
use store::Store;
use store::queue::Claim;
use testkit::{RoleName, TestDatabase, work};
use vault::Vault;

use crate::job::Workshop;
use crate::parser::{Parser, ParserSettings};

pub(crate) use testkit::work::LEASE;

pub(crate) struct Fixture {
    pub(crate) database: TestDatabase,
    pub(crate) store: Store,
    pub(crate) project: ProjectId,
    pub(crate) document: DocumentId,
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) ledger_tasks: LedgerTasks,
}

impl Fixture {
    /// A document that waits in a store whose embeddings come from `base_url`.
    pub(crate) async fn new(base_url: &str, width: i32) -> anyhow::Result<Self> {
        let database = testkit::database().await?;
        let store = database.store(RoleName::Backend)?;
        let project = database.insert_project("p", "").await?;
        let embedding = database.insert_connection("embed", base_url, "demo-embed").await?;
        let documents = database.insert_document_store(project, embedding, width).await?;
        let document = database.insert_document(documents, "a.txt").await?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (ledger, ledger_tasks) = Ledger::start(&store, &testkit::standing(&store).await?, Duration::from_secs(60));
        let addresses = AddressPolicy::new(true, []);
        let workshop = Arc::new(Workshop {
            store: store.clone(),
            providers: Providers::new(HttpOptions { addresses, ..HttpOptions::default() })?,
            ledger,
            vault: Arc::new(Vault::load(Some(&Secret::new("01".repeat(32))), None, Path::new(""))?),
            parser: Parser::new(ParserSettings::own_binary(SandboxPolicy::BestEffort)),
            max_chunks: 10,
            lease: LEASE,
            max_attempts: 3,
            tally: Arc::default(),
        });
        Ok(Self { database, store, project, document, workshop, ledger_tasks })
    }

    pub(crate) async fn claim(&self) -> anyhow::Result<Claim> {
        let claimed = self.store.claim_documents(&work::claim_request("w", StoreId(0), 1)).await?.documents;
        claimed.into_iter().next().ok_or_else(|| anyhow::anyhow!("nothing waits"))
    }
}
