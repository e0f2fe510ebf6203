//! The address of a server, which holds its password.

use std::fmt;

/// A `postgres://` URL of a superuser, with its password.
///
/// `Debug` is redacted and there is no `Display`; [`ServerUrl::expose`] is the only way to the text.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl(String);

impl ServerUrl {
    pub(crate) fn new(url: String) -> Self {
        Self(url)
    }

    /// The URL of the database `postgres` on a loopback port.
    pub(crate) fn loopback(port: u16, password: &str) -> Self {
        Self(format!("postgres://postgres:{password}@127.0.0.1:{port}/postgres"))
    }

    /// The URL itself, for the one place that connects.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerUrl(redacted)")
    }
}
