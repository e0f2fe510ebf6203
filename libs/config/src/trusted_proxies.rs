//! Which reverse proxies are believed when they say where a request comes from.

use std::net::IpAddr;
use std::str::FromStr;

use crate::Env;

/// The section. Without it the address of a client is that of its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    /// `TRUSTED_PROXY_CIDRS`: the networks they are in.
    pub networks: Vec<Cidr>,
}

/// A network: an address and how many of its leading bits count (RFC 4632, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u32,
}

/// A text that is no network.
#[derive(Debug, thiserror::Error)]
#[error("not an address or a network such as 10.0.0.0/8")]
pub struct NoCidr;

impl TrustedProxies {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        Self { networks: env.list_of("TRUSTED_PROXY_CIDRS", "an address or a network such as 10.0.0.0/8 or fd00::/8") }
    }

    /// Where a request comes from: whoever the last of the trusted proxies says it had it from. `peer` is the other end
    /// of the connection, `forwarded` are the entries of `X-Forwarded-For`, the nearest last. What a client writes there
    /// itself is left of what the proxies add, and is never reached.
    #[must_use]
    pub fn client<'a>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'a str>) -> IpAddr {
        let mut client = peer.to_canonical();
        for entry in forwarded.rev() {
            if !self.networks.iter().any(|network| network.contains(client)) {
                break;
            }
            let Some(address) = address(entry) else { break };
            client = address;
        }
        client
    }
}

/// The address of an entry. Some proxies write the port as well.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bare = || entry.parse::<IpAddr>().ok();
    let with_port = || entry.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || entry.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    bare().or_else(with_port).or_else(in_brackets).map(|address| address.to_canonical())
}

impl Cidr {
    /// Whether an address is in it. An IPv4 address in IPv6 notation is the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()).leading_zeros() >= self.prefix
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                (network.to_bits() ^ address.to_bits()).leading_zeros() >= self.prefix
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = NoCidr;

    fn from_str(text: &str) -> Result<Self, NoCidr> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| NoCidr)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NoCidr)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(bits, u32::from);
        if prefix > bits {
            return Err(NoCidr);
        }
        Ok(Self { address, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(networks: &str, peer: &str, forwarded: &str) -> String {
        let mut env = Env::of([("TRUSTED_PROXY_CIDRS", networks)]);
        let proxies = TrustedProxies::read(&mut env);
        env.finish().unwrap();
        proxies.client(peer.parse().unwrap(), forwarded.split(',')).to_string()
    }

    #[test]
    fn without_trusted_proxies_nobody_is_believed() {
        assert_eq!(client("", "192.0.2.9", "198.51.100.1"), "192.0.2.9");
        assert_eq!(client("10.0.0.0/8", "192.0.2.9", "198.51.100.1"), "192.0.2.9");
    }

    #[test]
    fn the_client_is_who_the_last_trusted_proxy_had_the_request_from() {
        let networks = "10.0.0.0/8, 2001:db8::/32";
        for (peer, forwarded, told) in [
            ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
            ("10.0.0.1", "1.1.1.1, 198.51.100.1 , 10.9.9.9", "198.51.100.1"),
            ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
            ("2001:db8::1", "::ffff:198.51.100.1", "198.51.100.1"),
            ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
            ("10.0.0.1", "[2001:4860::1]:4711", "2001:4860::1"),
            ("10.0.0.1", "[2001:4860::1]", "2001:4860::1"),
            // All of them are ours: the one farthest away is the client.
            ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
            // What is no address is nobody, and what is left of it cannot be believed.
            ("10.0.0.1", "198.51.100.1, unknown", "10.0.0.1"),
            ("10.0.0.1", "198.51.100.1, unknown, 10.0.0.2", "10.0.0.2"),
            ("10.0.0.1", "", "10.0.0.1"),
        ] {
            assert_eq!(client(networks, peer, forwarded), told, "{peer} {forwarded}");
        }
    }

    #[test]
    fn networks_have_their_bounds() {
        let contains =
            |network: &str, address: &str| network.parse::<Cidr>().unwrap().contains(address.parse().unwrap());
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.200/25", "192.0.2.128", "192.0.2.127"),
            ("fd00::/8", "fdff::1", "fe00::"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    #[test]
    fn what_is_no_network_is_a_mistake() {
        for network in ["10.0.0.0/33", "10.0.0/8", "proxy", "fd00::/129", "10.0.0.0/", "10.0.0.0/-1"] {
            let mut env = Env::of([("TRUSTED_PROXY_CIDRS", network)]);
            TrustedProxies::read(&mut env);
            let told = env.finish().unwrap_err().to_string();
            assert!(told.contains("TRUSTED_PROXY_CIDRS") && told.contains(network), "{told}");
        }
    }
}
