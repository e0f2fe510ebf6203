//! What waits until somebody gives a project back that is locked, or the database is there again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use domain::ProjectId;
use tokio::time::{Instant, sleep_until};

/// Work that is put aside, project by project, so that it does not keep the others waiting: one piece of one project is
/// tried again at a time.
pub(crate) struct Parked<T> {
    projects: VecDeque<(ProjectId, Vec<T>)>,
    retry_at: Option<Instant>,
}

impl<T> Parked<T> {
    pub(crate) fn new() -> Self {
        Self { projects: VecDeque::new(), retry_at: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.projects.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.projects.iter().map(|(_, work)| work.len()).sum()
    }

    /// Whether something of this project waits.
    pub(crate) fn holds(&self, project: ProjectId) -> bool {
        self.projects.iter().any(|(parked, _)| *parked == project)
    }

    /// Puts work behind what waits already. The next try is after the pause.
    pub(crate) fn park(&mut self, project: ProjectId, work: impl IntoIterator<Item = T>, pause: Duration) {
        self.join(project, work);
        self.retry_at = Some(Instant::now() + pause);
    }

    /// Puts work behind what waits already, and leaves the time of the next try as it is.
    pub(crate) fn join(&mut self, project: ProjectId, work: impl IntoIterator<Item = T>) {
        match self.projects.iter_mut().find(|(parked, _)| *parked == project) {
            Some((_, waiting)) => waiting.extend(work),
            None => self.projects.push_back((project, work.into_iter().collect())),
        }
        self.retry_at.get_or_insert_with(Instant::now);
    }

    /// When something may be tried again.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Waits until something may be tried again; for ever where nothing waits.
    pub(crate) async fn due(&self) {
        match self.retry_at {
            Some(retry_at) => sleep_until(retry_at).await,
            None => std::future::pending().await,
        }
    }

    /// Takes at most so many of the project that has waited longest. Unless they are parked again, the rest is due.
    pub(crate) fn take(&mut self, at_most: usize) -> Vec<T> {
        let Some((project, mut work)) = self.projects.pop_front() else { return Vec::new() };
        let rest = work.split_off(work.len().min(at_most));
        if !rest.is_empty() {
            self.projects.push_front((project, rest));
        }
        self.retry_at = (!self.projects.is_empty()).then(Instant::now);
        work
    }
}

/// Whether a batch has work of several projects.
pub(crate) fn is_mixed<T>(batch: &[T], project: impl Fn(&T) -> ProjectId) -> bool {
    batch.first().is_some_and(|first| batch.iter().any(|work| project(work) != project(first)))
}

/// Parts a batch by the project of each piece of work.
pub(crate) fn by_project<T>(batch: Vec<T>, project: impl Fn(&T) -> ProjectId) -> HashMap<ProjectId, Vec<T>> {
    let mut parts: HashMap<ProjectId, Vec<T>> = HashMap::new();
    for work in batch {
        parts.entry(project(&work)).or_default().push(work);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn one_piece_of_one_project_is_due_at_a_time() {
        let mut parked = Parked::new();
        let (first, second) = (ProjectId(1), ProjectId(2));
        parked.park(first, [1, 2, 3], PAUSE);
        parked.park(second, [4], PAUSE);
        parked.join(first, [5]);
        assert!(parked.holds(first) && !parked.holds(ProjectId(3)) && parked.len() == 5);
        assert!(tokio::time::timeout(PAUSE / 2, parked.due()).await.is_err(), "not before the pause is over");
        parked.due().await;
        assert_eq!(parked.take(3), [1, 2, 3]);
        parked.due().await;
        assert_eq!(parked.take(3), [5]);
        // Still locked: the other one is next, after the pause.
        parked.park(first, [5], PAUSE);
        parked.due().await;
        assert_eq!((parked.take(3), parked.take(3)), (vec![4], vec![5]));
        assert!(parked.is_empty() && tokio::time::timeout(PAUSE, parked.due()).await.is_err());
    }
}
