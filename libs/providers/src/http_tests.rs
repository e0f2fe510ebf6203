use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;

use domain::{ConnectionId, ProviderType};
use url::Url;

use super::*;
use crate::test_server::{TestServer, reply};

fn client(addresses: AddressPolicy, lookup: Lookup) -> HttpClient {
    HttpClient::with_lookup(HttpOptions { addresses, ..HttpOptions::default() }, lookup).unwrap()
}

async fn post(client: &HttpClient, base_url: &str) -> Result<u16, UpstreamError> {
    let connection = Connection {
        id: ConnectionId(1),
        provider: ProviderType::CustomOpenAi,
        base_url: Url::parse(base_url).unwrap(),
        credential: None,
        model: "m".to_owned(),
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let response = client
        .post(
            &connection,
            ("embeddings", None),
            "application/json",
            http::HeaderMap::new(),
            Bytes::from_static(b"{}"),
            deadline,
        )
        .await?;
    Ok(response.status().as_u16())
}

async fn ok(_: String) -> Vec<u8> {
    reply("200 OK", "", b"{}")
}

/// Two servers on one port of two loopback addresses.
async fn two_servers() -> (TestServer, TestServer) {
    loop {
        let first = TestServer::on("127.0.0.2:0".parse().unwrap(), ok).await.unwrap();
        let address = SocketAddr::new("127.0.0.3".parse().unwrap(), first.address.port());
        if let Ok(second) = TestServer::on(address, ok).await {
            return (first, second);
        }
    }
}

/// Gives out one answer after the other, and counts what was asked.
fn answers(list: &[&[&str]]) -> (Lookup, Arc<Mutex<VecDeque<Vec<SocketAddr>>>>) {
    let parse = |address: &&str| SocketAddr::new(address.parse().unwrap(), 0);
    let left: VecDeque<Vec<SocketAddr>> = list.iter().map(|answer| answer.iter().map(parse).collect()).collect();
    let left = Arc::new(Mutex::new(left));
    let script = Arc::clone(&left);
    (Lookup::Scripted(Arc::new(move |_: &str| script.lock().unwrap().pop_front().unwrap())), left)
}

#[tokio::test]
async fn the_address_that_is_dialled_is_the_one_that_was_checked() {
    let (first, second) = two_servers().await;
    let (lookup, left) = answers(&[&["127.0.0.2"], &["127.0.0.3"]]);
    let client = client(AddressPolicy::new(false, ["rebind.example".to_owned()]), lookup);
    let base = format!("http://rebind.example:{}", first.address.port());
    assert_eq!(post(&client, &base).await.unwrap(), 200);
    // One question a connection: nobody asked again between the check and the dialling.
    assert_eq!((first.requests().len(), second.requests().len(), left.lock().unwrap().len()), (1, 0, 1));
    assert_eq!(post(&client, &base).await.unwrap(), 200);
    assert_eq!((first.requests().len(), second.requests().len(), left.lock().unwrap().len()), (1, 1, 0));
}

#[tokio::test]
async fn a_name_that_turns_private_is_refused_at_the_next_connection() {
    let resolver = |lookup| GuardedResolver { policy: Arc::new(AddressPolicy::default()), lookup };
    let (lookup, _) =
        answers(&[&["8.8.8.8"], &["127.0.0.1"], &["8.8.8.8", "10.0.0.1"], &["8.8.8.8", "fe80::1"], &["::1"]]);
    let resolver = resolver(lookup);
    let ask = || reqwest::dns::Resolve::resolve(&resolver, "rebind.example".parse().unwrap());
    let given: Vec<SocketAddr> = ask().await.unwrap().collect();
    assert_eq!(given, ["8.8.8.8:0".parse().unwrap()]);
    for _ in 0..4 {
        assert!(ask().await.err().unwrap().is::<AddressRefused>());
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_refused_address_by_name_or_by_number() {
    let server = TestServer::start(ok).await;
    let port = server.address.port();
    let (lookup, _) = answers(&[&["127.0.0.1"], &["8.8.8.8", "127.0.0.1"], &["::ffff:127.0.0.1"]]);
    let client = client(AddressPolicy::default(), lookup);
    for host in
        ["private.example", "mixed.example", "mapped.example", "127.0.0.1", "127.1", "0x7f000001", "[::1]", "localhost"]
    {
        let error = post(&client, &format!("http://{host}:{port}")).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Refused(_)), "{host}: {error:?}");
    }
    assert_eq!(server.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_redirect_to_a_private_host_or_to_plain_http_is_not_followed() {
    let inner = TestServer::on("127.0.0.2:0".parse().unwrap(), ok).await.unwrap();
    let inner_port = inner.address.port();
    let outer = TestServer::start(move |request| async move {
        let path = request.split(' ').nth(1).unwrap().trim_end_matches("/embeddings");
        let (status, to) = path.trim_start_matches('/').split_once('/').unwrap();
        let host = request.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let to = match to {
            "literal" => format!("http://127.0.0.2:{inner_port}/"),
            "name" => format!("http://inner.example:{inner_port}/"),
            "localhost" => format!("http://localhost:{inner_port}/"),
            "metadata" => "https://169.254.169.254/latest".to_owned(),
            "self" => format!("http://{host}/again/self/embeddings"),
            _ => panic!("no such redirect"),
        };
        reply(&format!("{status} Moved"), &format!("location: {to}\r\n"), b"")
    })
    .await;
    let inner_address = SocketAddr::new("127.0.0.2".parse().unwrap(), 0);
    let lookup = Lookup::Scripted(Arc::new(move |_: &str| vec![inner_address]));
    let client = client(AddressPolicy::new(false, ["127.0.0.1".to_owned()]), lookup);
    for to in ["literal", "name", "localhost", "metadata", "self"] {
        for status in [301, 302, 303, 307, 308] {
            assert_eq!(post(&client, &outer.url(&format!("/{status}/{to}"))).await.unwrap(), status, "{to}");
        }
    }
    assert_eq!(inner.requests(), Vec::<String>::new());
    assert_eq!(outer.requests().len(), 25);
}
