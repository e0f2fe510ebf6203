use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::test_server::{TestServer, reply};

const PROJECT: ProjectId = ProjectId(1);
const ACCEPTED: [&str; 2] = ["image/png", "image/jpeg"];
const SECRET_PATH: &str = "/s3cret/path?signature=s3cret";

/// Images that may be fetched from this machine, as no installation may.
fn local(options: ImageOptions) -> Images {
    let addresses = AddressPolicy::new(false, ["127.0.0.1".to_owned()]);
    Images::within(ImageOptions { addresses, ..options }, Lookup::System).unwrap()
}

fn png(body: &[u8]) -> Vec<u8> {
    reply("200 OK", "content-type: image/png\r\n", body)
}

async fn answering(answer: Vec<u8>) -> TestServer {
    TestServer::start(move |_| std::future::ready(answer.clone())).await
}

async fn fails(images: &Images, server: &TestServer) -> ImageError {
    let error = images.fetch(PROJECT, &server.url(SECRET_PATH), &ACCEPTED).await.unwrap_err();
    assert!(!error.to_string().contains("s3cret") && !format!("{error:?}").contains("s3cret"), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    assert_eq!(error.status(), 400);
    error
}

#[tokio::test]
async fn an_image_is_fetched_as_what_its_host_says_it_is() {
    for (header, media_type) in [
        ("content-type: image/png\r\n", "image/png"),
        ("content-type: IMAGE/JPEG; charset=binary\r\n", "image/jpeg"),
        ("content-type: image/jpg\r\n", "image/jpeg"),
    ] {
        let server = answering(reply("200 OK", header, b"<html>")).await;
        let image = local(ImageOptions::default()).fetch(PROJECT, &server.url("/a.gif"), &ACCEPTED).await.unwrap();
        assert_eq!((image.media_type.as_str(), &image.data[..]), (media_type, &b"<html>"[..]));
        let request = server.requests().remove(0).to_ascii_lowercase();
        assert!(request.starts_with("get /a.gif http/1.1\r\n"), "{request}");
        for header in ["accept: image/*\r\n", "accept-encoding: identity\r\n", "user-agent: ragmux/"] {
            assert!(request.contains(header), "{header} is not in {request}");
        }
        for header in ["authorization", "cookie", "referer"] {
            assert!(!request.contains(header), "{header} is in {request}");
        }
    }
}

#[tokio::test]
async fn what_is_no_image_of_an_accepted_type_is_refused_and_not_read() {
    for header in [
        "",
        "content-type: image/gif\r\n",
        "content-type: text/html; image/png\r\n",
        "content-type: application/octet-stream\r\n",
        "content-type: image/png\r\ncontent-encoding: gzip\r\n",
    ] {
        let server = answering(reply("200 OK", header, b"bytes")).await;
        let error = fails(&local(ImageOptions::default()), &server).await;
        assert!(matches!(error, ImageError::Unsupported { .. }), "{header}: {error:?}");
        assert!(error.to_string().contains("image/png, image/jpeg"));
    }
}

#[tokio::test]
async fn other_statuses_and_empty_bodies_are_refused() {
    for (status, number) in [("404 Not Found", 404), ("500 Oops", 500), ("206 Partial Content", 206), ("403 No", 403)] {
        let server = answering(reply(status, "content-type: image/png\r\n", b"x")).await;
        let error = fails(&local(ImageOptions::default()), &server).await;
        assert!(matches!(error, ImageError::Status { status, .. } if status == number), "{error:?}");
    }
    let server = answering(png(b"")).await;
    assert!(matches!(fails(&local(ImageOptions::default()), &server).await, ImageError::Empty { .. }));
}

#[tokio::test]
async fn an_image_is_as_large_as_allowed_and_no_larger_however_it_comes() {
    let images = local(ImageOptions { max_bytes: 1000, ..ImageOptions::default() });
    let server = answering(png(&[1; 1000])).await;
    assert_eq!(images.fetch(PROJECT, &server.url("/"), &ACCEPTED).await.unwrap().data.len(), 1000);

    // Announced, then not: a server that would send for ever.
    let announced = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 1001\r\n\r\n".to_vec();
    let mut chunked = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..100 {
        chunked.extend_from_slice(b"20\r\n01234567890123456789012345678901\r\n");
    }
    let mut until_closed = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\nconnection: close\r\n\r\n".to_vec();
    until_closed.extend_from_slice(&[1; 1001]);
    for answer in [announced, chunked, until_closed] {
        let error = fails(&images, &answering(answer).await).await;
        assert!(matches!(error, ImageError::TooLarge { limit_bytes: 1000, .. }), "{error:?}");
        assert_eq!(error.code(), "image_too_large");
    }
}

#[tokio::test]
async fn a_host_that_hangs_up_or_stays_silent_is_told_apart() {
    let mut half = png(&[1; 100]);
    half.truncate(half.len() - 1);
    let images = local(ImageOptions::default());
    for answer in [half, Vec::new(), b"nonsense\r\n\r\n".to_vec()] {
        assert!(matches!(fails(&images, &answering(answer).await).await, ImageError::Unreachable { .. }));
    }
    let images = local(ImageOptions { timeout: Duration::from_millis(50), ..ImageOptions::default() });
    let server = TestServer::start(|_| std::future::pending()).await;
    assert!(matches!(fails(&images, &server).await, ImageError::Timeout { .. }));
}

#[tokio::test]
async fn redirects_to_other_hosts_and_to_plain_http_are_not_followed() {
    let inner = TestServer::on("127.0.0.2:0".parse().unwrap(), |_| std::future::ready(png(b"inner"))).await.unwrap();
    let inner_url = inner.url("/");
    let inner_port = inner.address.port();
    for to in [
        inner_url,
        format!("http://localhost:{inner_port}/"),
        format!("//127.0.0.2:{inner_port}/"),
        "https://169.254.169.254/latest".to_owned(),
        "/same/host/but/plain".to_owned(),
    ] {
        for status in [301, 302, 303, 307, 308] {
            let server = answering(reply(&format!("{status} Moved"), &format!("location: {to}\r\n"), b"")).await;
            let error = fails(&local(ImageOptions::default()), &server).await;
            assert!(matches!(error, ImageError::Redirect { .. }), "{to}: {error:?}");
            assert_eq!(server.requests().len(), 1);
        }
    }
    assert_eq!(inner.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn private_addresses_are_refused_whatever_connections_may_call() {
    let server = answering(png(b"secret")).await;
    let port = server.address.port();
    let mixed: [SocketAddr; 2] = ["8.8.8.8:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
    let lookup = move |name: &str| if name == "mixed.example" { mixed.to_vec() } else { Vec::new() };
    let lookup = Lookup::Scripted(Arc::new(lookup));
    let scripted = Images::within(ImageOptions::default(), lookup).unwrap();
    // A name that leads inside is answered like one that leads nowhere.
    for host in ["mixed.example", "nobody.example"] {
        let error = scripted.fetch(PROJECT, &format!("http://{host}:{port}/"), &ACCEPTED).await.unwrap_err();
        assert!(matches!(error, ImageError::Unreachable { .. }), "{error:?}");
        assert_eq!((error.status(), error.code()), (400, "image_fetch_failed"));
        assert_eq!(error.to_string(), format!("the image could not be fetched from {host}"));
    }
    for images in [Images::new(ImageOptions::default()).unwrap(), scripted] {
        for host in ["127.0.0.1", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "localhost", "a.localhost."] {
            let error = images.fetch(PROJECT, &format!("http://{host}:{port}/a.png"), &ACCEPTED).await.unwrap_err();
            assert!(matches!(error, ImageError::Forbidden { .. }), "{host}: {error:?}");
            assert_eq!((error.status(), error.code()), (400, "invalid_image_url"));
        }
    }
    assert_eq!(server.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_no_usable_url_is_refused_before_anything_is_sent() {
    let images = local(ImageOptions::default());
    let long = format!("https://host.example/{}", "a".repeat(MAX_URL_BYTES));
    for url in [
        "",
        "a.png",
        "ftp://host.example/a",
        "file:///etc/passwd",
        "data:image/png;base64,AA==",
        "gopher://127.0.0.1/",
        "http://u:p@127.0.0.1/",
        "http://u@127.0.0.1/",
        "http://",
        &long,
    ] {
        let error = images.fetch(PROJECT, url, &ACCEPTED).await.unwrap_err();
        assert!(matches!(error, ImageError::Malformed), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn an_image_is_fetched_once_and_kept_unless_its_host_forbids_it() {
    for (header, fetches) in [
        ("", 1),
        ("cache-control: max-age=0\r\n", 1),
        ("cache-control: no-store\r\n", 2),
        ("cache-control: max-age=60, No-Store\r\n", 2),
        ("cache-control: public\r\ncache-control: private=\"x\"\r\n", 2),
    ] {
        let server = answering(reply("200 OK", &format!("content-type: image/png\r\n{header}"), b"x")).await;
        let images = local(ImageOptions::default());
        for (project, url) in [(PROJECT, "/a#one"), (ProjectId(2), "/a#two")] {
            assert_eq!(images.fetch(project, &server.url(url), &ACCEPTED).await.unwrap().data, "x");
        }
        assert_eq!(server.requests().len(), fetches, "{header}");
        // What another provider takes says nothing about this one.
        let error = images.fetch(PROJECT, &server.url("/a"), &["image/webp"]).await.unwrap_err();
        assert!(matches!(error, ImageError::Unsupported { .. }));
        // Another query is another image, and failures are not kept.
        images.fetch(PROJECT, &server.url("/a?b"), &ACCEPTED).await.unwrap();
    }
    let turn = Arc::new(AtomicUsize::new(0));
    let server = TestServer::start(move |_| {
        let first = turn.fetch_add(1, Ordering::SeqCst) == 0;
        std::future::ready(if first { reply("503 Later", "", b"") } else { png(b"x") })
    })
    .await;
    let images = local(ImageOptions::default());
    images.fetch(PROJECT, &server.url("/"), &ACCEPTED).await.unwrap_err();
    images.fetch(PROJECT, &server.url("/"), &ACCEPTED).await.unwrap();
}

#[tokio::test]
async fn too_many_at_once_are_told_when_to_come_again_and_a_dropped_fetch_gives_its_turn_back() {
    let gate = Arc::new(Semaphore::new(0));
    let inside = Arc::new(Semaphore::new(0));
    let (door, entered) = (Arc::clone(&gate), Arc::clone(&inside));
    let server = TestServer::start(move |_| {
        let (door, entered) = (Arc::clone(&door), Arc::clone(&entered));
        async move {
            entered.add_permits(1);
            door.acquire().await.unwrap().forget();
            png(b"x")
        }
    })
    .await;
    let options = ImageOptions { concurrent: 2, timeout: Duration::from_secs(40), ..ImageOptions::default() };
    let images = local(options);
    let fetch = |path: &str| {
        let (images, url) = (images.clone(), server.url(path));
        tokio::spawn(async move { images.fetch(PROJECT, &url, &ACCEPTED).await })
    };
    let (first, second) = (fetch("/1"), fetch("/2"));
    let both = tokio::time::timeout(Duration::from_secs(20), inside.acquire_many(2)).await;
    both.expect("the fetches do not arrive").unwrap().forget();

    let error = fetch("/3").await.unwrap().unwrap_err();
    assert_eq!((error.status(), error.code()), (429, "image_fetch_saturated"));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(40)));

    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let third = fetch("/3");
    let next = tokio::time::timeout(Duration::from_secs(20), inside.acquire()).await;
    next.expect("the turn of the dropped fetch is lost").unwrap().forget();
    gate.add_permits(3);
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
}

async fn fetch_all(images: &Images, urls: &[String]) -> Result<FetchedImages, ImageError> {
    images.fetch_all(PROJECT, urls, &ACCEPTED, images.deadline()).await
}

#[tokio::test]
async fn a_request_names_at_most_eight_and_each_is_fetched_once() {
    let server = TestServer::start(|request| async move { png(request.split(' ').nth(1).unwrap().as_bytes()) }).await;
    let images = local(ImageOptions::default());
    let urls: Vec<String> = (0..9).map(|index| server.url(&format!("/{index}"))).collect();
    let nine_times_one = vec![urls[0].clone(); 9];
    for urls in [&urls, &nine_times_one] {
        let error = fetch_all(&images, urls).await.unwrap_err();
        assert!(matches!(error, ImageError::TooMany { limit: 8 }));
    }
    assert_eq!(server.requests().len(), 0);
    let twice: Vec<String> = urls[..4].iter().chain(&urls[..4]).cloned().collect();
    let got = fetch_all(&images, &twice).await.unwrap();
    for (index, url) in urls.iter().enumerate() {
        let data = got.get(url).map(|image| image.data.to_vec());
        assert_eq!(data, (index < 4).then(|| format!("/{index}").into_bytes()));
    }
    assert_eq!((server.requests().len(), got.written_bytes()), (4, 8 * 4));
}

#[tokio::test]
async fn images_of_a_request_are_fetched_side_by_side_and_each_is_waited_for_no_longer_than_all() {
    let inside = Arc::new(Semaphore::new(0));
    let entered = Arc::clone(&inside);
    // Answers once four are there.
    let server = TestServer::start(move |_| {
        let entered = Arc::clone(&entered);
        async move {
            entered.add_permits(1);
            let _four = entered.acquire_many(4).await.unwrap();
            png(b"x")
        }
    })
    .await;
    let urls: Vec<String> = (0..8).map(|index| server.url(&format!("/{index}"))).collect();
    let got = fetch_all(&local(ImageOptions::default()), &urls).await.unwrap();
    assert!(urls.iter().all(|url| got.get(url).is_some()));

    let silent = TestServer::start(|_| std::future::pending()).await;
    let images = local(ImageOptions::default());
    let by = Instant::now() + Duration::from_millis(20);
    let error = images.fetch_all(PROJECT, &[silent.url("/")], &ACCEPTED, by).await.unwrap_err();
    assert!(matches!(error, ImageError::LateTogether), "{error:?}");
    assert_eq!((error.status(), error.code()), (400, "image_fetch_failed"));
}

#[tokio::test]
async fn images_in_use_take_memory_and_those_only_kept_take_none() {
    let server = answering(png(&[1; 4096])).await;
    let memory = Memory::of(10 * 1024);
    let images = local(ImageOptions { memory: memory.clone(), ..ImageOptions::default() });
    let urls: Vec<String> = (0..3).map(|index| server.url(&format!("/{index}"))).collect();
    let two = fetch_all(&images, &urls[..2]).await.unwrap();
    // Whether it is fetched anew or was kept.
    for url in [&urls[2], &urls[0]] {
        let error = fetch_all(&images, std::slice::from_ref(url)).await.unwrap_err();
        assert!(matches!(error, ImageError::Overloaded), "{error:?}");
        assert_eq!((error.status(), error.code()), (503, "overloaded"));
    }
    let clone = two.get(&urls[0]).unwrap().data.clone();
    drop(two);
    memory.grow(&mut Held::default(), 7 * 1024).unwrap_err();
    drop(clone);
    memory.grow(&mut Held::default(), 10 * 1024).unwrap();
    fetch_all(&images, &urls[1..]).await.unwrap();
}

#[tokio::test]
async fn an_installation_can_fetch_none() {
    let images = local(ImageOptions { enabled: false, ..ImageOptions::default() });
    let error = images.fetch(PROJECT, "https://host.example/a.png", &ACCEPTED).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (400, "image_fetch_disabled"));
}

#[tokio::test]
async fn images_of_calls_under_way_share_their_memory_and_kept_ones_take_none() {
    let memory = Memory::of(16 * 1024);
    let server = answering(png(&[7; 10 * 1024])).await;
    let images = local(ImageOptions { memory: memory.clone(), ..ImageOptions::default() });
    let url = server.url("/a.png");
    let fetch = || images.fetch(PROJECT, &url, &ACCEPTED);
    let image = fetch().await.unwrap();
    // It is kept, and a second call would have it in memory a second time.
    let error = fetch().await.unwrap_err();
    assert!(matches!(error, ImageError::Overloaded), "{error:?}");
    assert_eq!((error.status(), error.code(), error.retry_after().is_some()), (503, "overloaded", true));
    let other = answering(png(&[7; 10 * 1024])).await;
    let error = images.fetch(PROJECT, &other.url("/b.png"), &ACCEPTED).await.unwrap_err();
    assert!(matches!(error, ImageError::Overloaded), "{error:?}");
    drop(image);
    fetch().await.unwrap();
    assert_eq!(server.requests().len(), 1);
    memory.grow(&mut Held::default(), 16 * 1024).unwrap();
}
