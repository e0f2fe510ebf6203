//! Keys as the database knows them, kept until they change.

use std::sync::Arc;
use std::time::Duration;

use domain::{ApiKeyId, KeyHash, ProjectId, UserId};
use store::principals::Principal;
use store::{Store, StoreError};

use crate::cache::Kept;

/// Keys that exist. Changes are heard of, so this only bounds how wrong a missed one can be.
const KNOWN_TIME: Duration = Duration::from_secs(300);
const KNOWN: usize = 20_000;

/// Keys that do not exist, apart from the others so that guessing cannot push those out.
const UNKNOWN_TIME: Duration = Duration::from_secs(5);
const UNKNOWN: usize = 10_000;

/// A key and the projects it may be used for.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) principal: Principal,
    pub(crate) grants: Vec<(ProjectId, String)>,
}

/// The keys that have called.
pub(crate) struct Principals {
    known: Kept<KeyHash, Arc<Known>>,
    unknown: Kept<KeyHash, ()>,
}

impl Principals {
    pub(crate) fn new() -> Self {
        Self { known: Kept::new(KNOWN), unknown: Kept::new(UNKNOWN) }
    }

    /// The key with this hash, in whatever state it is; `None` when there is none.
    pub(crate) async fn find(&self, store: &Store, hash: KeyHash) -> Result<Option<Arc<Known>>, StoreError> {
        if let Some(known) = self.known.get(&hash) {
            return Ok(Some(known));
        }
        if self.unknown.get(&hash).is_some() {
            return Ok(None);
        }
        let (reading, reading_unknown) = (self.known.reading(), self.unknown.reading());
        let Some(principal) = store.find_principal(&hash).await? else {
            self.unknown.keep(reading_unknown, hash, (), UNKNOWN_TIME);
            return Ok(None);
        };
        let projects: Vec<ProjectId> = principal.project.into_iter().chain(principal.granted.iter().copied()).collect();
        let grants = if projects.is_empty() { Vec::new() } else { store.list_project_names(&projects).await? };
        let ends = principal.expires_in_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        // One that has ended already stays as it is.
        let time = ends.filter(|seconds| *seconds > 0).map_or(KNOWN_TIME, |s| Duration::from_secs(s).min(KNOWN_TIME));
        let known = Arc::new(Known { principal, grants });
        self.known.keep(reading, hash, Arc::clone(&known), time);
        Ok(Some(known))
    }

    /// A key was made, changed or revoked.
    pub(crate) fn key_changed(&self, key: ApiKeyId) {
        self.known.forget(|_, known| known.principal.key == key);
        self.unknown.clear();
    }

    /// A person was changed.
    pub(crate) fn user_changed(&self, user: UserId) {
        self.known.forget(|_, known| known.principal.owner.is_some_and(|owner| owner.user == user));
    }

    /// A project was changed or removed.
    pub(crate) fn project_changed(&self, project: ProjectId) {
        self.known.forget(|_, known| known.grants.iter().any(|(granted, _)| *granted == project));
    }

    /// Anything may have changed.
    pub(crate) fn clear(&self) {
        self.known.clear();
        self.unknown.clear();
    }
}
