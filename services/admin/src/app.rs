//! The state that requests share.

use std::sync::Arc;
use std::time::Duration;

use config::Size;
use providers::{AddressPolicy, HttpOptions, Providers};
use retrieval::{CredentialUnreadable, Retrieval};
use runtime::Health;
use store::Store;
use store::logins::LoginLimits;
use store::targets::UpstreamTarget;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use vault::Vault;

use crate::auth::Passwords;
use crate::config::Settings;
use crate::routes::documents::Backlog;

/// How long a provider may take when it is asked something for the admin service.
pub(crate) const PROVIDER_PATIENCE: Duration = Duration::from_secs(10);

/// Everything a handler works with.
pub(crate) struct App {
    /// The database, as the backend's role.
    pub(crate) store: Store,
    /// What seals credentials.
    pub(crate) vault: Vault,
    /// What calls providers.
    pub(crate) providers: Providers,
    /// What tries stores out.
    pub(crate) retrieval: Retrieval,
    /// Which addresses connections may lead to.
    pub(crate) addresses: AddressPolicy,
    /// What checks passwords.
    pub(crate) passwords: Passwords,
    /// How many documents wait.
    pub(crate) backlog: Backlog,
    /// Readiness.
    pub(crate) health: Health,
    /// Work that goes on after a request has gone.
    pub(crate) tasks: TaskTracker,
    /// Told when something was deleted whose rows are to be removed.
    pub(crate) deleted: Notify,
    /// How many logins may fail.
    pub(crate) login_limits: LoginLimits,
    /// How long a session lasts.
    pub(crate) session_ttl: Duration,
    /// The most bytes of a file.
    pub(crate) max_upload: Size,
}

impl App {
    /// Builds the state. Nothing is asked of the database yet.
    pub(crate) fn new(settings: &Settings, store: Store, vault: Vault, health: Health) -> anyhow::Result<Arc<Self>> {
        let private = &settings.private_upstreams;
        let addresses = AddressPolicy::new(private.allow_all, private.hosts.iter().cloned());
        let http =
            HttpOptions { header_timeout: PROVIDER_PATIENCE, addresses: addresses.clone(), ..HttpOptions::default() };
        let providers = Providers::new(http)?;
        let opener = vault.clone();
        let open = move |target: &UpstreamTarget| target.open_credential(&opener).map_err(|_| CredentialUnreadable);
        Ok(Arc::new(Self {
            retrieval: Retrieval::new(store.clone(), providers.clone(), Arc::new(open)),
            providers,
            addresses,
            passwords: Passwords::new()?,
            backlog: Backlog::new(store.clone(), settings.max_pending_documents),
            store,
            vault,
            health,
            tasks: TaskTracker::new(),
            deleted: Notify::new(),
            login_limits: settings.login_limits,
            session_ttl: settings.session_ttl,
            max_upload: settings.max_upload,
        }))
    }
}
