//! What a call may cost before it runs, and what it did cost after: admission, holds, charges and settlement.
//!
//! [`Ledger::admit`] reserves in PostgreSQL before anything is sent upstream; arrivals that come while a statement is in
//! flight go together in the next one. What it returns, an [`OpenCall`], is the one place a call's figures are gathered,
//! and settles the call when it is finished or dropped: at the end of an answer, on an error, when the client leaves,
//! when a task panics and at shutdown. The place for the settlement is taken before the admission is sent and given back
//! when it is durable, so a full writer slows admission down and loses nothing.
//!
//! What a crash may leave behind is put right here too: a database that has lost commits is told the open calls again
//! before anything new is admitted, admissions whose reply was lost are taken back, and calls of processes that are gone
//! are settled by what they held until their owner, if it comes back, says better.
//!
//! Edge, worker and admin all charge through here.

mod call;
mod charge;
mod denied;
mod error;
mod keeper;
mod lane;
mod live;
mod observer;
mod parked;
mod place;
mod prices;
mod pulse;
mod service;
mod writer;

pub use call::{Ending, OpenCall, Overruling};
pub use charge::{Charge, Usage, charge};
pub use error::LedgerError;
pub use prices::{PriceBook, PriceSource};
pub use service::{CONNECTIONS, Ledger, LedgerTasks, Outcome};
