//! Room for a call in the memory of its process, from before its admission until its settlement is durable.

use std::sync::Arc;

use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::call::Handed;
use crate::error::LedgerError;

/// Where places are given out. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places {
    inbox: mpsc::Sender<Handed>,
    room: Room,
}

/// What is left of the room. Whoever takes settlements gives it back when it has forgotten them.
#[derive(Clone)]
pub(crate) struct Room(Arc<Semaphore>);

/// A place: its settlement can be handed in at any time, without waiting.
pub(crate) struct Place {
    inbox: OwnedPermit<Handed>,
    room: OwnedSemaphorePermit,
}

impl Places {
    /// So many places, and where what is handed in arrives.
    pub(crate) fn new(count: usize) -> (Self, mpsc::Receiver<Handed>, Room) {
        let (inbox, handed) = mpsc::channel(count);
        let room = Room(Arc::new(Semaphore::new(count)));
        (Self { inbox, room: room.clone() }, handed, room)
    }

    /// Waits for a place.
    pub(crate) async fn take(&self) -> Result<Place, LedgerError> {
        let room = Arc::clone(&self.room.0).acquire_owned().await.map_err(|_| LedgerError::ShuttingDown)?;
        // Whoever has one of these has room too, so there is one left.
        let inbox = self.inbox.clone().reserve_owned().await.map_err(|_| LedgerError::ShuttingDown)?;
        Ok(Place { inbox, room })
    }
}

impl Place {
    /// Hands a settlement in. The room stays taken until the other side gives it back.
    pub(crate) fn hand_in(self, handed: Handed) {
        self.room.forget();
        self.inbox.send(handed);
    }
}

impl Room {
    /// Gives the room of so many settlements back.
    pub(crate) fn give_back(&self, count: usize) {
        self.0.add_permits(count);
    }
}
