//! Ports to listen on.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;

/// Below what systems give to programs that ask for any port, and to every connection that is made: nobody else gets one of
/// these by chance while nothing listens there.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// Those that this process has given out, to be listened on now or again after a pause.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port that is free, and stays so unless another test process draws the same one.
///
/// # Errors
/// When none is found.
pub(crate) fn quiet_port() -> anyhow::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    (0..100)
        .map(|_| rand::random_range(PORTS))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok() && given.insert(*port))
        .context("no port is free")
}
