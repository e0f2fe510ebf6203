//! Turns at something scarce, shared fairly between projects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ProjectId;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// More waiters than this are turned away at once.
const MAX_WAITING: usize = 1024;

/// A number of slots. A free one goes to the waiting project that holds the fewest, the earlier one of two.
///
/// So no project takes more than half while another waits: of two that wait, the one that is served holds no more than
/// the other, and both together hold at least one slot less than there are. What a project took while nobody waited it
/// keeps until it is done.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    free: usize,
    held: HashMap<ProjectId, usize>,
    /// In order of arrival.
    waiting: Vec<Waiter>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    project: ProjectId,
    served: oneshot::Sender<()>,
}

/// A place in the queue or, from when it is served, a slot. Dropping it gives up either.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    project: ProjectId,
    ticket: u64,
}

impl Slots {
    pub(super) fn new(total: usize) -> Self {
        let state = State { free: total.max(1), held: HashMap::new(), waiting: Vec::new(), next_ticket: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Waits for a slot, at most so long.
    pub(super) async fn take(&self, project: ProjectId, at_most: Duration) -> Option<Slot> {
        let (slot, served) = self.queue_up(project)?;
        timeout(at_most, served).await.ok()?.ok()?;
        Some(slot)
    }

    fn queue_up(&self, project: ProjectId) -> Option<(Slot, oneshot::Receiver<()>)> {
        let mut state = self.state();
        if state.waiting.len() >= MAX_WAITING {
            return None;
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let (served, wait) = oneshot::channel();
        state.waiting.push(Waiter { ticket, project, served });
        state.serve();
        drop(state);
        Some((Slot { slots: self.clone(), project, ticket }, wait))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn serve(&mut self) {
        while self.free > 0 {
            let held = |waiter: &Waiter| self.held.get(&waiter.project).copied().unwrap_or_default();
            // The first of equals.
            let Some((index, _)) = self.waiting.iter().enumerate().min_by_key(|(_, waiter)| held(waiter)) else {
                return;
            };
            let waiter = self.waiting.remove(index);
            self.free -= 1;
            *self.held.entry(waiter.project).or_default() += 1;
            // Whoever does not listen any more gives the slot back by being dropped.
            let _ = waiter.served.send(());
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        if let Some(index) = state.waiting.iter().position(|waiter| waiter.ticket == self.ticket) {
            state.waiting.remove(index);
            return;
        }
        state.free += 1;
        if let Some(held) = state.held.get_mut(&self.project) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&self.project);
            }
        }
        state.serve();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use proptest::prelude::*;

    use super::*;

    const A: ProjectId = ProjectId(1);
    const B: ProjectId = ProjectId(2);
    const C: ProjectId = ProjectId(3);
    const WAIT: Duration = Duration::from_secs(2);

    type Taking = Pin<Box<dyn Future<Output = Option<Slot>>>>;

    fn queue(slots: &Slots, project: ProjectId) -> Taking {
        let slots = slots.clone();
        let mut taking: Taking = Box::pin(async move { slots.take(project, WAIT).await });
        assert!(now(&mut taking).is_none(), "there was a slot");
        taking
    }

    fn now(taking: &mut Taking) -> Option<Slot> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(slot) => Some(slot.expect("turned away")),
            std::task::Poll::Pending => None,
        }
    }

    async fn take(slots: &Slots, project: ProjectId, count: usize) -> Vec<Slot> {
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(slots.take(project, WAIT).await.unwrap());
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn one_project_may_have_all_while_nobody_else_waits() {
        let slots = Slots::new(16);
        let mut held = take(&slots, A, 16).await;
        let mut next = queue(&slots, A);
        held.pop();
        assert!(now(&mut next).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_holds_more_than_half_gets_none_while_another_waits() {
        let slots = Slots::new(16);
        let mut held = take(&slots, A, 16).await;
        let mut more: Vec<_> = (0..20).map(|_| queue(&slots, A)).collect();
        let mut others: Vec<_> = (0..9).map(|_| queue(&slots, B)).collect();
        let mut theirs = Vec::new();
        for other in others.iter_mut().take(8) {
            held.pop();
            theirs.push(now(other).expect("the other project is not served"));
            assert!(more.iter_mut().all(|more| now(more).is_none()));
        }
        // Both hold eight, and the project that queued first is next.
        held.pop();
        assert!(now(&mut more[0]).is_some() && now(&mut others[8]).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_third_project_does_not_wait_behind_the_queue_of_others() {
        let slots = Slots::new(4);
        let (mut held, _others) = (take(&slots, A, 2).await, take(&slots, B, 2).await);
        let _queued: Vec<_> = (0..50).map(|index| queue(&slots, if index % 2 == 0 { A } else { B })).collect();
        let mut third = queue(&slots, C);
        held.pop();
        assert!(now(&mut third).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_after_its_time_and_leaves_nothing_behind() {
        let slots = Slots::new(1);
        let held = take(&slots, A, 1).await;
        assert!(slots.take(B, WAIT).await.is_none());
        assert!(slots.state().waiting.is_empty());
        drop(held);
        let state = slots.state();
        assert_eq!((state.free, state.held.len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_gives_its_place_or_its_slot_to_the_next() {
        let slots = Slots::new(1);
        let held = take(&slots, A, 1).await;
        let (first, second, mut third) = (queue(&slots, B), queue(&slots, B), queue(&slots, C));
        drop(first);
        // The second is served and goes without having heard of it.
        drop(held);
        assert!(now(&mut third).is_none());
        drop(second);
        assert!(now(&mut third).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_full_turns_away_at_once() {
        let slots = Slots::new(1);
        let _held = take(&slots, A, 1).await;
        let _queued: Vec<_> = (0..MAX_WAITING).map(|_| queue(&slots, A)).collect();
        assert!(slots.queue_up(B).is_none());
    }

    proptest! {
        #[test]
        fn no_slot_is_lost_or_idle_and_no_project_is_served_past_half_while_another_waits(
            total in 1_usize..9,
            steps in prop::collection::vec((0_i64..4, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let slots = Slots::new(total);
            let mut places: Vec<(Slot, oneshot::Receiver<()>)> = Vec::new();
            for (project, index, arrives) in steps {
                let before = slots.state().held.clone();
                if arrives {
                    places.push(slots.queue_up(ProjectId(project)).unwrap());
                } else if !places.is_empty() {
                    drop(places.swap_remove(index.index(places.len())));
                }
                let state = slots.state();
                prop_assert_eq!(state.free + state.held.values().sum::<usize>(), total);
                prop_assert_eq!(state.held.values().sum::<usize>() + state.waiting.len(), places.len());
                prop_assert!(state.free == 0 || state.waiting.is_empty());
                for (project, held) in &state.held {
                    let grew = *held > before.get(project).copied().unwrap_or_default();
                    let others_wait = state.waiting.iter().any(|waiter| waiter.project != *project);
                    prop_assert!(!(grew && others_wait) || *held <= total.div_ceil(2));
                }
            }
        }
    }
}
