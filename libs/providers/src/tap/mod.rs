//! A stream on its way through: fed with bytes as they arrive, it gives out whole events only, so that between two calls
//! the client's stream is at an event boundary, where comments and events of ours may be written.

mod lines;
mod passed;
mod retold;
mod translated;

use std::fmt;

use bytes::BytesMut;

use crate::dialect::openai::StreamOutcome;
use crate::error::UpstreamError;
use crate::hub::Told;

pub(crate) use lines::Lines;
pub(crate) use passed::{Member, Passed, Passing};
pub(crate) use retold::Retelling;
pub(crate) use translated::{Framing, Translated};

/// One stream, whichever dialects it goes between.
pub(crate) trait Tap: fmt::Debug + Send {
    /// Takes what arrived and appends to `out` what the client gets for it.
    ///
    /// # Errors
    /// The provider reported an error in the stream, or sent an event over 8 MiB. Everything before it is in `out`; the
    /// event itself is not.
    fn push(&mut self, arrived: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError>;

    /// The provider closed the stream.
    ///
    /// # Errors
    /// [`UpstreamError::Truncated`] when the answer is not whole, or what [`Tap::push`] reports. `out` is at an event
    /// boundary then too.
    fn finish(&mut self, out: &mut BytesMut) -> Result<(), UpstreamError>;

    /// Appends what tells the client that the answer failed.
    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut);

    /// The bytes of an event that has not arrived whole.
    fn waiting(&self) -> usize;

    /// The bytes that are kept of the answer for its end.
    fn kept(&self) -> usize {
        0
    }

    /// Whether an event with data has passed; one that carries an error has not.
    fn saw_event(&self) -> bool;

    /// Whether the last event of the dialect has passed; nothing is expected after it.
    fn saw_done(&self) -> bool;

    /// Whether the answer was ended here because its output reached the bound. The client has all of it then, and what
    /// the provider still sends is not wanted.
    fn is_cut(&self) -> bool;

    /// Whether the answer is whole if its body ends here, in order.
    fn is_complete(&self) -> bool;

    /// What is known so far.
    fn outcome(&self) -> StreamOutcome;
}
