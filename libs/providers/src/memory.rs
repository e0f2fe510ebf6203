//! The memory that bodies in flight may take together.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in units of this size.
const UNIT: usize = 1024;

/// Memory for all bodies of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Semaphore>);

/// Nothing is left of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory for bodies is used up")]
pub struct Full;

/// A part of the memory, given back when it is dropped.
#[derive(Debug, Default)]
pub struct Held(Option<OwnedSemaphorePermit>);

impl Memory {
    /// Room for so many bytes. What is made of a body is about as large again, so this is half of what bodies cost.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        let units = usize::try_from(bytes).unwrap_or(usize::MAX) / UNIT;
        Self(Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))))
    }

    /// Room for everything.
    #[must_use]
    pub fn unbounded() -> Self {
        Self::of(u64::MAX)
    }

    /// Takes memory up to that length.
    ///
    /// # Errors
    /// [`Full`]; what was held before still is.
    pub fn grow(&self, held: &mut Held, length: usize) -> Result<(), Full> {
        let missing =
            length.div_ceil(UNIT).saturating_sub(held.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).map_err(|_| Full)?;
        let more = Arc::clone(&self.0).try_acquire_many_owned(missing).map_err(|_| Full)?;
        held.add(Held(Some(more)));
        Ok(())
    }
}

impl Held {
    /// Gives back what goes beyond that length.
    pub fn shrink(&mut self, length: usize) {
        let units = length.div_ceil(UNIT);
        if units == 0 {
            self.0 = None;
        } else if let Some(held) = &mut self.0
            && let Some(beyond) = held.num_permits().checked_sub(units)
        {
            drop(held.split(beyond));
        }
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    /// Holds another part of the same memory as well.
    pub(crate) fn add(&mut self, more: Self) {
        match (&mut self.0, more.0) {
            (Some(held), Some(more)) => held.merge(more),
            (held @ None, more) => *held = more,
            (Some(_), None) => {}
        }
    }

    /// Holds the memory for as long as there is a clone of the bytes.
    #[must_use]
    pub fn by(self, bytes: Bytes) -> Bytes {
        if self.is_nothing() { bytes } else { Bytes::from_owner(Owner { bytes, _held: self }) }
    }
}

/// Bytes, and what stays for as long as they do.
pub(crate) struct Owner<T> {
    pub(crate) bytes: Bytes,
    pub(crate) _held: T,
}

impl<T> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_with_the_last_clone() {
        let memory = Memory::of(4096);
        let mut held = Held::default();
        memory.grow(&mut held, 1000).unwrap();
        memory.grow(&mut held, 3000).unwrap();
        assert_eq!(memory.grow(&mut held, 5000), Err(Full));
        let bytes = held.by(Bytes::from_static(b"x"));
        let clone = bytes.clone();
        drop(bytes);
        assert_eq!(memory.grow(&mut Held::default(), 2000), Err(Full));
        drop(clone);
        let mut held = Held::default();
        memory.grow(&mut held, 4096).unwrap();
        held.shrink(8192);
        assert_eq!(memory.grow(&mut Held::default(), 1), Err(Full));
        held.shrink(1025);
        let mut rest = Held::default();
        memory.grow(&mut rest, 2048).unwrap();
        assert_eq!(memory.grow(&mut Held::default(), 1), Err(Full));
        held.shrink(0);
        assert!(held.is_nothing());
        memory.grow(&mut held, 2048).unwrap();
        Memory::unbounded().grow(&mut Held::default(), 1 << 40).unwrap();
    }
}
