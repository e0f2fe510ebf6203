//! Who is calling, and whether they may.

mod authorize;
mod caller;
mod cross_site;
mod passwords;
pub(crate) mod policy;
pub(crate) mod tokens;

pub(crate) use authorize::{Access, Floor, authorize};
pub(crate) use caller::{Caller, ClientAddress, Deed, Form};
pub(crate) use passwords::Passwords;
