//! One client connection.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::pieces::Pieces;
use super::{Framing, Head};

const BUFFER: usize = 64 * 1024;

/// A connection that is kept for the next call, and made again when it was lost.
#[derive(Debug)]
pub(crate) struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    buffer: BytesMut,
}

impl Connection {
    /// Prepares a connection; it is made at the first call.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, stream: None, buffer: BytesMut::with_capacity(BUFFER) }
    }

    /// Sends a request as it is and hands over the answer's body piece by piece, each as soon as it is there.
    ///
    /// # Errors
    /// When the connection is lost or the answer is no HTTP. The next call connects anew.
    pub(crate) async fn call(&mut self, request: &[u8], on_body: impl FnMut(&[u8])) -> anyhow::Result<Head> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        stream.write_all(request).await.context("the request cannot be sent")?;
        let head = self.answer(&mut stream, on_body).await?;
        if !head.closes {
            self.stream = Some(stream);
        }
        Ok(head)
    }

    async fn connect(&mut self) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await.with_context(|| format!("no way to {}", self.address))?;
        stream.set_nodelay(true)?;
        self.buffer.clear();
        Ok(stream)
    }

    async fn answer(&mut self, stream: &mut TcpStream, mut on_body: impl FnMut(&[u8])) -> anyhow::Result<Head> {
        let head = loop {
            if let Some((head, length)) = Head::parse(&self.buffer)? {
                self.buffer.advance(length);
                break head;
            }
            if self.read(stream).await? == 0 {
                bail!("the connection was closed before the answer");
            }
        };
        let mut pieces = Pieces::new(head.framing);
        while !pieces.take(&mut self.buffer, &mut on_body)? {
            if self.read(stream).await? == 0 {
                if head.framing == Framing::Close {
                    break;
                }
                bail!("the connection was closed in the middle of the answer");
            }
        }
        Ok(head)
    }

    async fn read(&mut self, stream: &mut TcpStream) -> anyhow::Result<usize> {
        self.buffer.reserve(BUFFER / 4);
        stream.read_buf(&mut self.buffer).await.context("the answer cannot be read")
    }
}
