//! Keys as the database knows them, kept until they change.

use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Until when what the database said holds: not longer than the key or the grace of its old secret.
    pub(crate) ends: Option<Instant>,
}

/// What is known of a key without the database.
pub(crate) enum Recalled {
    Known(Arc<Known>),
    /// There was none a moment ago.
    Unknown,
    Nothing,
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

    /// The key with this hash, in whatever state it is, as far as it is kept here.
    pub(crate) fn recall(&self, hash: &KeyHash) -> Recalled {
        match self.known.get(hash) {
            Some(known) => Recalled::Known(known),
            None if self.unknown.get(hash).is_some() => Recalled::Unknown,
            None => Recalled::Nothing,
        }
    }

    /// Whether nothing was heard since that could make this key another.
    pub(crate) fn holds(&self, hash: &KeyHash, known: &Arc<Known>) -> bool {
        self.known.get(hash).is_some_and(|kept| Arc::ptr_eq(&kept, known))
    }

    /// Asks the database for the key with this hash; `None` when there is none.
    pub(crate) async fn read(&self, store: &Store, hash: KeyHash) -> Result<Option<Arc<Known>>, StoreError> {
        let (reading, reading_unknown) = (self.known.reading(), self.unknown.reading());
        let asked = Instant::now();
        let Some(principal) = store.find_principal(&hash).await? else {
            self.unknown.keep(reading_unknown, hash, (), UNKNOWN_TIME);
            return Ok(None);
        };
        let projects: Vec<ProjectId> = principal.project.into_iter().chain(principal.granted.iter().copied()).collect();
        let grants = if projects.is_empty() { Vec::new() } else { store.list_project_names(&projects).await? };
        let left = principal.expires_in_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        // One that has ended already stays as it is. The seconds are rounded up: in the last of them it is asked for
        // each time, so that it never counts as good for longer than it is.
        let left = left.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds - 1));
        let ends = left.and_then(|left| asked.checked_add(left));
        let known = Arc::new(Known { principal, grants, ends });
        let time = ends.map_or(KNOWN_TIME, |ends| ends.saturating_duration_since(Instant::now()).min(KNOWN_TIME));
        if !time.is_zero() {
            self.known.keep(reading, hash, Arc::clone(&known), time);
        }
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
