//! Which port each listener has.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::bail;

/// Where the ports begin unless told otherwise: the edge is then on its usual 8765.
pub(crate) const DEFAULT_BASE: u16 = 8764;

/// The last base whose ports all exist.
pub(crate) const HIGHEST_BASE: u16 = u16::MAX - 7;

/// The ports of one installation, all on 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    base: u16,
}

impl Ports {
    pub(crate) fn from_base(base: u16) -> Self {
        Self { base: base.min(HIGHEST_BASE) }
    }

    pub(crate) fn admin(self) -> SocketAddr {
        self.at(0)
    }

    pub(crate) fn edge(self) -> SocketAddr {
        self.at(1)
    }

    pub(crate) fn admin_grpc(self) -> SocketAddr {
        self.at(2)
    }

    pub(crate) fn worker(self) -> SocketAddr {
        self.at(3)
    }

    pub(crate) fn edge_health(self) -> SocketAddr {
        self.at(4)
    }

    pub(crate) fn worker_health(self) -> SocketAddr {
        self.at(5)
    }

    pub(crate) fn upstream(self) -> SocketAddr {
        self.at(6)
    }

    pub(crate) fn database(self) -> SocketAddr {
        self.at(7)
    }

    fn at(self, offset: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.base + offset).into()
    }
}

/// Makes sure, before anything is started, that whatever will listen can.
///
/// # Errors
///
/// One sentence about the first port that is taken.
pub(crate) fn check_free<'a>(wanted: impl IntoIterator<Item = (&'a str, SocketAddr)>) -> anyhow::Result<()> {
    for (name, address) in wanted {
        let port = address.port();
        match TcpListener::bind(address) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => bail!(
                "port {port} on 127.0.0.1 is already in use, so {name} cannot listen there; end what uses it, or choose \
                 other ports with --port-base N"
            ),
            Err(error) => {
                bail!("{name} cannot listen on port {port} of 127.0.0.1: {error}; choose others with --port-base N")
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ports_follow_from_the_usual_base() {
        let ports = Ports::from_base(DEFAULT_BASE);
        assert_eq!(
            [ports.admin(), ports.edge(), ports.admin_grpc(), ports.worker()].map(|address| address.port()),
            [8764, 8765, 8766, 8767]
        );
        assert_eq!(
            [ports.edge_health(), ports.worker_health(), ports.upstream(), ports.database()].map(|a| a.port()),
            [8768, 8769, 8770, 8771]
        );
        assert_eq!(Ports::from_base(HIGHEST_BASE).database().port(), u16::MAX);
    }

    #[test]
    fn a_taken_port_is_named_with_its_service() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        let sentence = check_free([("edge", address)]).unwrap_err().to_string();
        assert!(sentence.contains(&format!("port {}", address.port())), "{sentence}");
        assert!(sentence.contains("edge") && sentence.contains("--port-base"), "{sentence}");
        drop(taken);
        check_free([("edge", address)]).unwrap();
    }
}
