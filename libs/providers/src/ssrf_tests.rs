use super::*;

/// Addresses that may not be called, with what they are.
const PRIVATE: [(&str, &[&str]); 26] = [
    ("this network", &["0.0.0.0", "0.1.2.3", "0.255.255.255"]),
    ("private", &["10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255"]),
    ("carrier-grade NAT", &["100.64.0.1", "100.127.255.255"]),
    ("loopback", &["127.0.0.1", "127.255.255.254", "::1"]),
    ("link-local and metadata", &["169.254.0.1", "169.254.169.254", "fe80::1", "febf::1"]),
    ("protocol assignments", &["192.0.0.1", "192.0.0.170", "192.0.0.255", "2001::", "2001:1ff:ffff::1"]),
    ("documentation", &["192.0.2.1", "198.51.100.7", "203.0.113.7", "2001:db8::1", "3fff::1", "3fff:fff::1"]),
    ("AS112", &["192.31.196.1", "192.175.48.1", "2620:4f:8000::1"]),
    ("AMT", &["192.52.193.1"]),
    ("6to4 relays", &["192.88.99.1"]),
    ("benchmarks", &["198.18.0.1", "198.19.255.255", "2001:2::1"]),
    ("multicast", &["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"]),
    ("reserved", &["240.0.0.1", "254.1.1.1"]),
    ("broadcast", &["255.255.255.255"]),
    ("unspecified", &["::"]),
    ("v4-compatible", &["::127.0.0.1", "::7f00:1", "::10.0.0.1", "::8.8.8.8"]),
    ("v4-mapped", &["::ffff:127.0.0.1", "::ffff:a00:1", "::ffff:169.254.169.254", "::ffff:8.8.8.8"]),
    ("v4-translated", &["::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"]),
    ("NAT64", &["64:ff9b::a00:1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::808:808"]),
    ("local NAT64", &["64:ff9b:1::1", "64:ff9b:1:ffff::10.0.0.1"]),
    ("6to4", &["2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::1", "2002:a9fe:a9fe::", "2002:808:808::1"]),
    ("Teredo", &["2001:0:0:0:0:0:f5ff:fffe", "2001::1", "2001:0:4136:e378:8000:63bf:80ff:fffe"]),
    ("unique local", &["fc00::1", "fd12:3456::1", "fd00:ec2::254", "fdff:ffff::1"]),
    ("site-local", &["fec0::1", "feff::1"]),
    ("discard and dummy", &["100::1", "100:0:0:1::1"]),
    ("outside global unicast", &["1::1", "200::1", "400::1", "5f00::1", "4000::1", "8000::1", "e000::1"]),
];

const PUBLIC: [&str; 28] = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "192.0.3.1",
    "192.167.255.255",
    "192.169.0.1",
    "198.17.255.255",
    "198.20.0.1",
    "198.51.99.255",
    "203.0.114.1",
    "223.255.255.255",
    "2000::1",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2003::1",
    "2606:4700::1111",
    "2a00:1450:4001::1",
    "3ffe::1",
];

#[test]
fn every_special_range_is_refused_and_its_neighbours_are_not() {
    for (kind, addresses) in PRIVATE {
        for address in addresses {
            assert!(!is_public(address.parse().unwrap()), "{kind}: {address}");
        }
    }
    for address in PUBLIC {
        assert!(is_public(address.parse().unwrap()), "{address}");
    }
}

#[test]
fn an_address_is_refused_the_same_in_a_url_and_as_the_answer_of_a_resolver() {
    let policy = AddressPolicy::default();
    let all = PRIVATE.iter().flat_map(|(_, addresses)| addresses.iter()).map(|address| (address, false));
    for (address, public) in all.chain(PUBLIC.iter().map(|address| (address, true))) {
        let ip: IpAddr = address.parse().unwrap();
        let socket = SocketAddr::new(ip, 443);
        // As getaddrinfo gives out a link-local address, with the interface it belongs to.
        let scoped = match socket {
            SocketAddr::V6(mut socket) => {
                socket.set_scope_id(2);
                socket.into()
            }
            SocketAddr::V4(_) => socket,
        };
        let url = Url::parse(&format!("https://{socket}/v1")).unwrap();
        assert_eq!(policy.check_url(&url).is_ok(), public, "{url}");
        for dialled in [socket, scoped] {
            assert_eq!(policy.check_resolved("api.example", &[dialled]).is_ok(), public, "{dialled}");
        }
    }
}

#[test]
fn disguised_spellings_of_an_address_are_seen_through() {
    let policy = AddressPolicy::default();
    for host in [
        // Decimal, octal and hexadecimal, whole and in parts, mixed, and with parts left out.
        "127.0.0.1",
        "2130706433",
        "017700000001",
        "0x7f000001",
        "0X7F000001",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "127.0x0.0.01",
        "127.1",
        "127.0.1",
        "127.0.257",
        "127.65537",
        "0x7f.1",
        "0177.1",
        "0",
        "0x0",
        "10.1",
        "167772161",
        "012.0.0.1",
        "0xa.0.0.1",
        "172.1048577",
        "192.168.257",
        "3232235777",
        "0xc0a80101",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "0x64400001",
        "4294967295",
        // A final dot, other digits and dots of Unicode, and escapes.
        "127.0.0.1.",
        "127.1.",
        "0x7f000001.",
        "１２７.0.0.1",
        "127。0。0。1",
        "127．0．0．1",
        "127｡1",
        "①②⑦.⓪.⓪.①",
        "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
        "%31%32%37.0.0.1",
        "127.0.0.%31",
        "０ｘ７ｆ.1",
        "１６９.２５４.１６９.２５４",
        // IPv6 in every way of writing the same.
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[0000::0001]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::FFFF:7F00:1]",
        "[0:0:0:0:0:ffff:a9fe:a9fe]",
        "[64:ff9b::169.254.169.254]",
        "[2002:7f00:0001::]",
        "[FE80::1]",
        "[fd00:ec2::254]",
        // Names of this machine.
        "localhost",
        "localhost.",
        "LOCALHOST",
        "LocalHost.",
        "api.localhost",
        "a.b.localhost.",
        "ｌｏｃａｌｈｏｓｔ",
        "loc%61lhost",
        "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
        "x。localhost",
    ] {
        let url = Url::parse(&format!("http://{host}/v1")).unwrap();
        assert_eq!(policy.check_url(&url), Err(AddressRefused), "{host} became {url}");
    }
    for host in ["8.8.8.8", "[2606:4700::1111]", "api.example", "localhost.example", "notlocalhost", "134744072"] {
        assert_eq!(policy.check_url(&Url::parse(&format!("https://{host}/")).unwrap()), Ok(()), "{host}");
    }
}

#[test]
fn what_only_some_readers_take_for_an_address_is_no_url() {
    for host in [
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "[fe80::1%252]",
        "[::1]x",
        "[::1",
        "127.0.0.1.5",
        "1.2.3.256",
        "256.0.0.1",
        "4294967296",
        "0x100000000",
        "127.0.0.08",
        "127..0.1",
        "0x7g.0.0.1",
        "127.0.0.1%00.example",
        "127.0.0.1%0a",
        "a b",
        "",
    ] {
        assert!(Url::parse(&format!("http://{host}/")).is_err(), "{host}");
    }
}

#[test]
fn only_the_host_part_counts() {
    let policy = AddressPolicy::default();
    for url in [
        "http://api.example@127.0.0.1/",
        "http://api.example:80@127.0.0.1/",
        "http://127.0.0.1\\@api.example/",
        "http:\\\\127.0.0.1/",
        "http:/127.0.0.1/",
        "http://127.0.0.1:80#@api.example/",
        "http://127.0.0.1?@api.example/",
        "\thttp://127.0.0.1\n/",
        "http://127.0.\t0.1/",
    ] {
        assert_eq!(policy.check_url(&Url::parse(url).unwrap()), Err(AddressRefused), "{url:?}");
    }
    assert_eq!(policy.check_url(&Url::parse("http://api.example/?to=http://127.0.0.1/").unwrap()), Ok(()));
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
    let hosts = ["Ollama.Internal", "127.0.0.1", "0:0:0:0:0:0:0:1", "[FD00::5]", "gpu.localhost"];
    let policy = AddressPolicy::new(false, hosts.map(str::to_owned));
    let private = ["10.0.0.1:0".parse().unwrap()];
    for host in ["ollama.internal.", "OLLAMA.internal", "gpu.localhost"] {
        assert_eq!(policy.check_resolved(host, &private), Ok(()), "{host}");
    }
    for host in ["x.ollama.internal", "internal", "localhost", "x.gpu.localhost"] {
        assert_eq!(policy.check_resolved(host, &private), Err(AddressRefused), "{host}");
    }
    for (url, passes) in [
        ("http://127.0.0.1:11434/", true),
        ("http://0x7f.1:11434/", true),
        ("http://[::1]:11434/", true),
        ("http://[fd00:0::5]/", true),
        ("http://gpu.localhost:8000/", true),
        ("http://127.0.0.2/", false),
        ("http://[::ffff:127.0.0.1]/", false),
        ("http://localhost/", false),
    ] {
        assert_eq!(policy.check_url(&Url::parse(url).unwrap()).is_ok(), passes, "{url}");
    }
}

#[test]
fn a_redirect_stays_on_its_host_and_on_tls_and_ends() {
    let url = |text: &str| Url::parse(text).unwrap();
    let first = url("https://api.example/v1/chat");
    for (next, follows) in [
        ("https://api.example/v2/chat", true),
        ("https://api.example:443/v2/chat", true),
        ("https://api.example:8443/v1/chat", false),
        ("http://api.example/v1/chat", false),
        ("https://example/v1/chat", false),
        ("https://x.api.example/", false),
        ("https://api.example./", false),
        ("https://api.example@10.0.0.1/", false),
        ("https://127.0.0.1/", false),
        ("file:///etc/passwd", false),
    ] {
        assert_eq!(may_follow(&first, 1, &url(next)), follows, "{next}");
        assert_eq!(may_follow_with_credential(&first, 1, &url(next)), follows, "{next}");
    }
    assert!(may_follow(&first, MAX_REDIRECTS, &first));
    assert!(!may_follow(&first, MAX_REDIRECTS + 1, &first));
}

#[test]
fn up_to_tls_goes_only_what_carries_no_credential_and_only_between_the_usual_ports() {
    let url = |text: &str| Url::parse(text).unwrap();
    for (first, next, follows) in [
        ("http://api.example/v1", "https://api.example/v1", true),
        ("http://api.example:80/v1", "https://api.example:443/v1", true),
        ("http://api.example:8080/v1", "https://api.example/v1", false),
        ("http://api.example/v1", "https://api.example:8443/v1", false),
        ("http://api.example:8443/v1", "https://api.example:8443/v1", true),
        ("http://api.example/v1", "http://api.example/v1", false),
    ] {
        assert_eq!(may_follow(&url(first), 1, &url(next)), follows, "{first} to {next}");
        assert!(!may_follow_with_credential(&url(first), 1, &url(next)), "{first} to {next}");
    }
}

#[tokio::test]
async fn the_systems_resolver_gives_out_nothing_for_a_name_of_this_machine() {
    let resolver = |policy| GuardedResolver { policy: Arc::new(policy), lookup: Lookup::System };
    let error = resolver(AddressPolicy::default()).resolve("localhost".parse().unwrap()).await.err().unwrap();
    assert!(error.is::<AddressRefused>());
    let open = resolver(AddressPolicy::new(false, ["localhost".to_owned()]));
    assert!(open.resolve("localhost".parse().unwrap()).await.unwrap().count() > 0);
}
