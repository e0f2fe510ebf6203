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
const REFUSED_V4: [([u8; 4], u32); 17] = [
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
    ([198, 18, 0, 0], 15),   // benchmarks
    ([198, 51, 100, 0], 24), // documentation
    ([203, 0, 113, 0], 24),  // documentation
    ([224, 0, 0, 0], 4),     // multicast
    ([240, 0, 0, 0], 4),     // reserved, broadcast
];

const REFUSED_V6: [([u16; 8], u32); 14] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 96),          // unspecified, loopback, v4-compatible
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96),     // v4-mapped
    ([0, 0, 0, 0, 0xffff, 0, 0, 0], 96),     // v4-translated
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96),  // NAT64
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48),  // local NAT64
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64),      // discard
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),     // protocol assignments, Teredo, benchmarks
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),     // 6to4
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),     // documentation
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),      // unique local
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),     // link-local
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10),     // site-local
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),      // multicast
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

    /// Checks a URL whose host is an address; such a URL is dialled without any look-up.
    ///
    /// # Errors
    /// The address is refused.
    pub fn check_literal(&self, url: &Url) -> Result<(), AddressRefused> {
        let address: IpAddr = match url.host() {
            Some(Host::Ipv4(address)) => address.into(),
            Some(Host::Ipv6(address)) => address.into(),
            Some(Host::Domain(_)) | None => return Ok(()),
        };
        if is_public(address) || self.trusts(url.host_str().unwrap_or_default()) { Ok(()) } else { Err(AddressRefused) }
    }

    /// Checks what a host name was resolved to. One refused address refuses the name: a name with a public and a
    /// private address is how rebinding looks.
    ///
    /// # Errors
    /// An address is refused.
    pub fn check_resolved(&self, host: &str, addresses: &[SocketAddr]) -> Result<(), AddressRefused> {
        if self.trusts(host) || addresses.iter().all(|address| is_public(address.ip())) {
            Ok(())
        } else {
            Err(AddressRefused)
        }
    }
}

fn plain(host: &str) -> String {
    host.trim().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

/// Whether an address is on the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            !REFUSED_V4
                .iter()
                .any(|(network, length)| (bits ^ Ipv4Addr::from(*network).to_bits()).leading_zeros() >= *length)
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            !REFUSED_V6
                .iter()
                .any(|(network, length)| (bits ^ Ipv6Addr::from(*network).to_bits()).leading_zeros() >= *length)
        }
    }
}

/// A resolver that gives out only checked addresses.
#[derive(Debug)]
pub(crate) struct GuardedResolver {
    pub(crate) policy: Arc<AddressPolicy>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = Arc::clone(&self.policy);
        Box::pin(async move {
            let host = name.as_str();
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            policy.check_resolved(host, &addresses)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_special_range_is_refused_and_its_neighbours_are_not() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b::a00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2002:a00:1::",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.0.1",
            "169.255.0.1",
            "172.15.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.1.1",
            "192.169.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2001:200::1",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "2003::1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn disguised_spellings_of_an_address_are_seen_through() {
        let policy = AddressPolicy::default();
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[::ffff:a00:1]/",
            "http://１２７.0.0.1/",
        ] {
            assert_eq!(policy.check_literal(&Url::parse(url).unwrap()), Err(AddressRefused), "{url}");
        }
        assert_eq!(policy.check_literal(&Url::parse("https://8.8.8.8/").unwrap()), Ok(()));
        assert_eq!(policy.check_literal(&Url::parse("https://api.example/").unwrap()), Ok(()));
    }

    #[test]
    fn one_private_address_among_public_ones_refuses_the_name() {
        let addresses: Vec<SocketAddr> = ["8.8.8.8:0", "10.0.0.1:0"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(AddressPolicy::default().check_resolved("api.example", &addresses), Err(AddressRefused));
        assert_eq!(AddressPolicy::default().check_resolved("api.example", &addresses[..1]), Ok(()));
        assert_eq!(AddressPolicy::new(true, []).check_resolved("api.example", &addresses), Ok(()));
    }

    #[test]
    fn only_the_listed_hosts_are_trusted() {
        let policy =
            AddressPolicy::new(false, ["Ollama.Internal".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]);
        let private = ["10.0.0.1:0".parse().unwrap()];
        assert_eq!(policy.check_resolved("ollama.internal.", &private), Ok(()));
        assert_eq!(policy.check_resolved("x.ollama.internal", &private), Err(AddressRefused));
        assert_eq!(policy.check_literal(&Url::parse("http://127.0.0.1:11434/").unwrap()), Ok(()));
        assert_eq!(policy.check_literal(&Url::parse("http://[::1]:11434/").unwrap()), Ok(()));
        assert_eq!(policy.check_literal(&Url::parse("http://127.0.0.2/").unwrap()), Err(AddressRefused));
    }

    #[tokio::test]
    async fn the_resolver_gives_out_nothing_for_a_name_of_this_machine() {
        let resolver = GuardedResolver { policy: Arc::new(AddressPolicy::default()) };
        let error = resolver.resolve("localhost".parse().unwrap()).await.err().unwrap();
        assert!(error.is::<AddressRefused>());
        let open = GuardedResolver { policy: Arc::new(AddressPolicy::new(false, ["localhost".to_owned()])) };
        assert!(open.resolve("localhost".parse().unwrap()).await.unwrap().count() > 0);
    }
}
