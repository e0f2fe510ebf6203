//! Reads a process's settings from its environment, once, into typed values.
//!
//! [`Env`] offers a getter for each kind of value. A getter never fails: it notes the mistake and hands back the
//! default, so that [`Env::finish`] can report everything that is wrong at once. Every key `NAME` can also be given as
//! `NAME_FILE`, the path of a file that holds the value. A key that is set to nothing counts as not set, because that
//! is what a compose file's `${NAME:-}` leaves behind; the one exception is [`Env::optional_listen`], where the empty
//! text switches the listener off.
//!
//! The sections that more than one service reads ([`Database`], [`SecretKey`], [`Logging`], [`Shutdown`], [`OrphanAfter`]) are here;
//! the keys of one service are read by that service.

mod database;
mod duration;
mod env;
mod logging;
mod mistake;
mod orphans;
mod private_upstreams;
mod secret_key;
mod shutdown;
mod size;
mod trusted_proxies;
mod values;

// The type of this crate's own fields, for those who take a URL or a key from it.
pub use domain::Secret;

pub use database::{Database, Pooler};
pub use env::{Env, Findings};
pub use logging::{LogFormat, Logging};
pub use mistake::{Mistake, Mistakes};
pub use orphans::OrphanAfter;
pub use private_upstreams::PrivateUpstreams;
pub use secret_key::SecretKey;
pub use shutdown::Shutdown;
pub use size::Size;
pub use trusted_proxies::{Cidr, NoCidr, TrustedProxies};
pub use values::Choice;
