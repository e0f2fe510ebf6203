//! Where held calls wait.

use std::{collections::VecDeque, sync::Mutex};

use tokio::sync::oneshot;

/// A queue of held calls, released in order.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<VecDeque<oneshot::Sender<()>>>);

impl Gate {
    /// A ticket that is called by [`Gate::release`]. A dropped ticket is skipped.
    pub(crate) fn enter(&self) -> oneshot::Receiver<()> {
        let (call, ticket) = oneshot::channel();
        self.queue().push_back(call);
        ticket
    }

    /// Calls this many tickets, or all.
    pub(crate) fn release(&self, count: Option<usize>) {
        let mut left = count.unwrap_or(usize::MAX);
        let mut queue = self.queue();
        while left > 0 {
            let Some(call) = queue.pop_front() else { break };
            if call.send(()).is_ok() {
                left -= 1;
            }
        }
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_called_in_order_and_lost_ones_skipped() {
        let gate = Gate::default();
        let mut first = gate.enter();
        drop(gate.enter());
        let mut third = gate.enter();
        gate.release(Some(1));
        assert!(first.try_recv().is_ok());
        assert!(third.try_recv().is_err());
        gate.release(Some(1));
        assert!(third.try_recv().is_ok());
        gate.release(None);
    }
}
