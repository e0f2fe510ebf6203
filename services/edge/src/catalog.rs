//! Where calls may go: projects with their routes, connections and prices, kept until they change.

mod project;

use std::sync::Arc;
use std::time::Duration;

use domain::{ProjectId, Secret};
use ledger::PriceBook;
use providers::Connection;
use store::routing::ProjectRouting;
use store::targets::UpstreamTarget;
use store::{Store, StoreError};
use vault::Vault;

use crate::cache::Kept;
use crate::error::EdgeError;

pub(crate) use project::{Chosen, Project, PublicRoute, Rerank, Target, Unusable, distinct_providers};

/// Changes are heard of, so this only bounds how wrong a missed one can be.
const TIME: Duration = Duration::from_secs(300);
const PROJECTS: usize = 10_000;

/// What an edge knows of the installation's projects.
pub(crate) struct Catalog {
    store: Store,
    vault: Vault,
    projects: Kept<ProjectId, Arc<Project>>,
    prices: Kept<(), Arc<PriceBook>>,
}

impl Catalog {
    pub(crate) fn new(store: Store, vault: Vault) -> Self {
        Self { store, vault, projects: Kept::new(PROJECTS), prices: Kept::new(1) }
    }

    /// A project as it is now, or was when it last changed.
    pub(crate) async fn project(&self, id: ProjectId) -> Result<Arc<Project>, EdgeError> {
        if let Some(project) = self.projects.get(&id) {
            return Ok(project);
        }
        let reading = self.projects.reading();
        // A key that leads to a project which is gone leads nowhere.
        let (routing, embedding) = self.store.in_time(self.read(id)).await?.ok_or(EdgeError::ProjectNotGranted)?;
        let project = Arc::new(Project::new(routing, embedding, &|target| connect(&self.vault, target)));
        self.projects.keep(reading, id, Arc::clone(&project), TIME);
        Ok(project)
    }

    async fn read(&self, id: ProjectId) -> Result<Option<(ProjectRouting, Option<UpstreamTarget>)>, StoreError> {
        let Some(routing) = self.store.find_project_routing(id).await? else { return Ok(None) };
        let embedding = match routing.store {
            Some(store) => self.store.find_search_settings(store).await?.map(|settings| settings.embedding),
            None => None,
        };
        Ok(Some((routing, embedding)))
    }

    /// All prices.
    pub(crate) async fn prices(&self) -> Result<Arc<PriceBook>, EdgeError> {
        if let Some(prices) = self.prices.get(&()) {
            return Ok(prices);
        }
        let reading = self.prices.reading();
        let prices = Arc::new(PriceBook::new(self.store.in_time(self.store.list_model_prices()).await?));
        self.prices.keep(reading, (), Arc::clone(&prices), TIME);
        Ok(prices)
    }

    /// A project was changed or removed.
    pub(crate) fn project_changed(&self, project: ProjectId) {
        self.projects.forget(|id, _| *id == project);
    }

    /// Something that any project may use was changed: a route, a connection, a store.
    pub(crate) fn projects_changed(&self) {
        self.projects.clear();
    }

    /// A price was changed.
    pub(crate) fn prices_changed(&self) {
        self.prices.clear();
    }
}

/// Opens the credential of a connection, if it has one.
pub(crate) fn open_credential(vault: &Vault, target: &UpstreamTarget) -> Result<Option<Secret>, Unusable> {
    target.open_credential(vault).map_err(|error| {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, connection_id = target.connection.0, "a credential cannot be opened");
        Unusable::Credential
    })
}

/// Makes a connection of what the database holds.
fn connect(vault: &Vault, target: &UpstreamTarget) -> Result<Connection, Unusable> {
    let credential = open_credential(vault, target)?;
    retrieval::connection(target, credential).map_err(|error| {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, connection_id = target.connection.0, "a connection has no usable base URL");
        Unusable::Address
    })
}
