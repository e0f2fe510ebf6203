//! Asking a running process whether it runs.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);

/// Asks `/healthz` of the listener at the given address.
pub(crate) fn ask(listener: SocketAddr) -> Result<(), String> {
    let address = reachable(listener);
    let asked = TcpStream::connect_timeout(&address, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut line = Vec::new();
        stream.take(1024).read_to_end(&mut line)?;
        Ok(line)
    });
    match asked {
        Ok(answer) if answer.starts_with(b"HTTP/1.1 200 ") => Ok(()),
        Ok(_) => Err(format!("{address} does not answer /healthz with 200")),
        Err(error) => Err(format!("{address} does not answer: {error}")),
    }
}

/// The address by which this host reaches a listener that may listen on all of its addresses.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}
