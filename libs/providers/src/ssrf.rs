//! Which addresses a base URL may lead to.
//!
//! A connection's base URL is typed by a person, and whatever it names is called with the privileges of this machine's
//! network. So names are resolved here, every address is checked, and the checked address is the one dialled: there is
//! no second look-up that could answer differently.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Ranges that are not the public internet (IANA special-purpose address registries, RFC 6890 and its updates).
const REFUSED_V4: [([u8; 4], u32); 18] = [
    ([0, 0, 0, 0], 8),       // this network, unspecified
    ([10, 0, 0, 0], 8),      // private
    ([100, 64, 0, 0], 10),   // carrier-grade NAT
    ([127, 0, 0, 0], 8),     // loopback
    ([169, 254, 0, 0], 16),  // link-local, cloud metadata
    ([172, 16, 0, 0], 12),   // private
    ([192, 0, 0, 0], 24),    // protocol assignments
    ([192, 0, 2, 0], 24),    // documentation
    ([192, 31, 196, 0], 24), // AS112
    ([192, 52, 193, 0], 24), // AMT
    ([192, 88, 99, 0], 24),  // 6to4 relays
    ([192, 168, 0, 0], 16),  // private
    ([192, 175, 48, 0], 24), // AS112
    ([198, 18, 0, 0], 15),   // benchmarks
    ([198, 51, 100, 0], 24), // documentation
    ([203, 0, 113, 0], 24),  // documentation
    ([224, 0, 0, 0], 4),     // multicast
    ([240, 0, 0, 0], 4),     // reserved, broadcast
];

/// Global unicast: the only part of IPv6 in which public addresses are given out (RFC 4291, 2.4; IANA IPv6 address
/// space). All the rest is refused, with it loopback, v4-mapped and v4-compatible addresses, both NAT64 prefixes, unique
/// local, link-local and multicast addresses, and segment routing.
const UNICAST_V6: ([u16; 8], u32) = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// What of it is not the public internet.
const REFUSED_V6: [([u16; 8], u32); 5] = [
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), // protocol assignments, Teredo, benchmarks, ORCHID
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), // 6to4: the IPv4 address inside may be any
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), // AS112
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), // documentation
];

/// The host leads to an address that connections may not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host leads to a private or reserved address")]
pub struct AddressRefused;

/// Whose private addresses may be called.
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    allow_private: bool,
    hosts: HashSet<String>,
}

impl AddressPolicy {
    /// `allow_private` lets every address through (`ALLOW_PRIVATE_UPSTREAMS`); `hosts` names the hosts whose address
    /// is not checked (`PRIVATE_UPSTREAM_ALLOWLIST`), compared whole and ignoring case.
    #[must_use]
    pub fn new(allow_private: bool, hosts: impl IntoIterator<Item = String>) -> Self {
        Self { allow_private, hosts: hosts.into_iter().map(|host| plain(&host)).collect() }
    }

    /// Whether addresses of this host go unchecked.
    #[must_use]
    pub fn trusts(&self, host: &str) -> bool {
        self.allow_private || self.hosts.contains(&plain(host))
    }

    /// Checks a URL for what can be said without a look-up: its host is an address, which is dialled as it is, or a
    /// name that always means this machine.
    ///
    /// # Errors
    /// The host is refused.
    pub fn check_url(&self, url: &Url) -> Result<(), AddressRefused> {
        let passes = match url.host() {
            Some(Host::Ipv4(address)) => is_public(address.into()),
            Some(Host::Ipv6(address)) => is_public(address.into()),
            Some(Host::Domain(name)) => !is_loopback_name(name),
            None => true,
        };
        if passes || self.trusts(url.host_str().unwrap_or_default()) { Ok(()) } else { Err(AddressRefused) }
    }

    /// Checks what a host name was resolved to. One refused address refuses the name: a name with a public and a
    /// private address is how rebinding looks.
    ///
    /// # Errors
    /// An address is refused.
    pub fn check_resolved(&self, host: &str, addresses: &[SocketAddr]) -> Result<(), AddressRefused> {
        let passes = !is_loopback_name(host) && addresses.iter().all(|address| is_public(address.ip()));
        if passes || self.trusts(host) { Ok(()) } else { Err(AddressRefused) }
    }
}

/// A host in one spelling: no brackets, no final dot, small letters, an address as it is usually written.
fn plain(host: &str) -> String {
    let host = host.trim().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    host.parse::<IpAddr>().map_or(host, |address| address.to_string())
}

/// Names that mean this machine whatever a resolver says (RFC 6761, 6.3).
fn is_loopback_name(host: &str) -> bool {
    let host = plain(host);
    host == "localhost" || host.ends_with(".localhost")
}

/// Whether an address is on the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let within = |(network, length): &([u8; 4], u32)| {
                (address.to_bits() ^ Ipv4Addr::from(*network).to_bits()).leading_zeros() >= *length
            };
            !REFUSED_V4.iter().any(within)
        }
        IpAddr::V6(address) => {
            let within = |(network, length): &([u16; 8], u32)| {
                (address.to_bits() ^ Ipv6Addr::from(*network).to_bits()).leading_zeros() >= *length
            };
            within(&UNICAST_V6) && !REFUSED_V6.iter().any(within)
        }
    }
}

/// Who is asked for the addresses of a name.
#[derive(Clone)]
pub(crate) enum Lookup {
    /// The system's resolver.
    System,
    /// Answers that a test makes up.
    #[cfg(test)]
    Scripted(Arc<Script>),
}

#[cfg(test)]
type Script = dyn Fn(&str) -> Vec<SocketAddr> + Send + Sync;

impl Lookup {
    async fn addresses(&self, host: &str) -> std::io::Result<Vec<SocketAddr>> {
        match self {
            Self::System => Ok(tokio::net::lookup_host((host, 0)).await?.collect()),
            #[cfg(test)]
            Self::Scripted(answer) => Ok(answer(host)),
        }
    }
}

/// A resolver that gives out only checked addresses. Whoever asks it dials what it gave out and asks again for the next
/// connection, so an answer that changes is checked again before it is used.
pub(crate) struct GuardedResolver {
    pub(crate) policy: Arc<AddressPolicy>,
    pub(crate) lookup: Lookup,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, lookup) = (Arc::clone(&self.policy), self.lookup.clone());
        Box::pin(async move {
            let host = name.as_str();
            let addresses = lookup.addresses(host).await?;
            policy.check_resolved(host, &addresses)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// The most redirects that are followed.
pub(crate) const MAX_REDIRECTS: usize = 3;

/// Whether a request that says nothing of who we are may go on to where an answer sends it: to the same host and port over
/// TLS, and not for ever. Up from plain HTTP counts where both ports are the usual ones, since one machine answers both.
/// The host was checked, and a name is looked up and checked again for the new connection.
pub(crate) fn may_follow(first: &Url, redirects: usize, next: &Url) -> bool {
    let is_upgrade = first.scheme() == "http" && first.port().is_none() && next.port().is_none();
    let is_same_port = first.port_or_known_default() == next.port_or_known_default();
    redirects <= MAX_REDIRECTS
        && next.scheme() == "https"
        && first.host().is_some()
        && first.host() == next.host()
        && (is_same_port || is_upgrade)
}

/// The same for a request with a credential, which no other origin may see (RFC 6454, 4). So there is no way up from plain
/// HTTP: whoever wants TLS writes it into the base URL.
pub(crate) fn may_follow_with_credential(first: &Url, redirects: usize, next: &Url) -> bool {
    first.origin() == next.origin() && may_follow(first, redirects, next)
}

#[cfg(test)]
#[path = "ssrf_tests.rs"]
mod tests;
