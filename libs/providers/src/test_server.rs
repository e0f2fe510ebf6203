//! A small HTTP server on loopback that answers every request as it is told and closes the connection.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

type Handler = dyn Fn(String) -> Pin<Box<dyn Future<Output = Vec<u8>> + Send>> + Send + Sync;

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TestServer {
    /// `handler` gets the text of a request and gives the bytes of the answer.
    pub(crate) async fn start<F>(handler: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        Self::on("127.0.0.1:0".parse().unwrap(), handler).await.unwrap()
    }

    pub(crate) async fn on<F>(
        address: SocketAddr,
        handler: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> std::io::Result<Self>
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let handler: Arc<Handler> = Arc::new(move |request| Box::pin(handler(request)));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, Arc::clone(&handler), Arc::clone(&log)));
            }
        });
        Ok(Self { address, requests, task })
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn serve(mut socket: TcpStream, handler: Arc<Handler>, log: Arc<Mutex<Vec<String>>>) {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut chunk = [0; 4096];
        match socket.read(&mut chunk).await {
            Ok(read) if read > 0 => bytes.extend_from_slice(&chunk[..read]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&bytes).into_owned();
    log.lock().unwrap().push(request.clone());
    // A client that has seen enough hangs up, which is no fault of the test.
    let _ = socket.write_all(&handler(request).await).await;
    let _ = socket.shutdown().await;
    // Closing with unread bytes would reset the connection before the answer is read.
    let mut rest = [0; 4096];
    while socket.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

/// An answer with a length.
pub(crate) fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n", body.len())
            .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
