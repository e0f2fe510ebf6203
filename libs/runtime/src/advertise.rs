//! The address by which others reach a listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use config::Database;
use tokio::net::{UdpSocket, lookup_host};

/// The address to give to others for a listener: its own, or, when it listens on every address of the host, the one
/// from which this host reaches PostgreSQL, since the others are on that network too. Replicas that share one
/// environment so need no setting of their own. Loopback, when PostgreSQL is reached without a network.
pub async fn advertised(listener: SocketAddr, database: &Database) -> SocketAddr {
    if !listener.ip().is_unspecified() {
        return listener;
    }
    let ip = local_address(database).await.unwrap_or(Ipv4Addr::LOCALHOST.into());
    SocketAddr::new(ip, listener.port())
}

/// Asks the system by which of its addresses it would send to the server. Connecting a datagram socket sends nothing.
async fn local_address(database: &Database) -> Option<IpAddr> {
    let server = lookup_host(database.server()?).await.ok()?.next()?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(server).await.ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use config::Env;

    use super::*;

    async fn advertised_by(url: &str, listener: &str) -> String {
        let mut env = Env::of([("DATABASE_URL", url)]);
        let database = Database::read(&mut env);
        env.finish().unwrap();
        advertised(listener.parse().unwrap(), &database).await.to_string()
    }

    #[tokio::test]
    async fn a_listener_on_one_address_is_reached_there() {
        assert_eq!(advertised_by("postgres://u@127.0.0.1/n", "10.1.2.3:8765").await, "10.1.2.3:8765");
    }

    #[tokio::test]
    async fn a_listener_on_every_address_is_reached_on_the_way_to_the_database() {
        for url in ["postgres://u@127.0.0.1:5433/n", "postgres://u@localhost/n?hostaddr=127.0.0.1"] {
            assert_eq!(advertised_by(url, "0.0.0.0:8765").await, "127.0.0.1:8765", "{url}");
        }
        assert_eq!(advertised_by("postgres://u@%2Frun%2Fpg/n", "0.0.0.0:1").await, "127.0.0.1:1");
    }
}
