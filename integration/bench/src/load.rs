//! Closed-loop load: so many clients, each sending its next call when it has the answer to the last.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::future::join_all;

use crate::http::Connection;
use crate::stats::Samples;

/// How many windows in a row may be void.
const MOST_VOID: usize = 5;

/// Where calls go, and what a call is there.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// What it is called in results.
    pub(crate) name: &'static str,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The request, byte for byte.
    pub(crate) request: Vec<u8>,
}

/// Clients of one target, with their connections.
#[derive(Debug)]
pub(crate) struct Clients {
    target: Target,
    connections: Vec<Connection>,
}

/// What a window saw. One with a failed call is void.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// Seconds from sending a request to having its answer, call by call.
    pub(crate) seconds: Samples,
    /// Why calls failed.
    pub(crate) failures: Vec<String>,
    /// How long it was.
    pub(crate) length: Duration,
}

impl Window {
    /// Calls a second.
    pub(crate) fn rate(&self) -> f64 {
        self.seconds.len() as f64 / self.length.as_secs_f64()
    }
}

impl Clients {
    /// So many clients.
    pub(crate) fn new(target: Target, count: usize) -> Self {
        let connections = (0..count).map(|_| Connection::new(target.address)).collect();
        Self { target, connections }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.target.name
    }

    /// Calls for as long as `length`, after a tenth of it that nobody looks at, in which connections are made.
    /// `around` is asked when the window opens and when it closes.
    pub(crate) async fn window<T>(&mut self, length: Duration, around: impl Fn() -> T) -> (Window, [T; 2]) {
        self.run(length / 10).await;
        let before = around();
        let window = self.run(length).await;
        let after = around();
        (window, [before, after])
    }

    /// The first of a few windows in which no call failed.
    ///
    /// # Errors
    /// When all have failures, with one of them.
    pub(crate) async fn clean_window<T>(
        &mut self,
        length: Duration,
        around: impl Fn() -> T,
    ) -> anyhow::Result<(Window, [T; 2])> {
        let name = self.name();
        without_failures(name, async || {
            let (window, around) = self.window(length, &around).await;
            let failures = window.failures.clone();
            ((window, around), failures)
        })
        .await
    }

    async fn run(&mut self, length: Duration) -> Window {
        let request = self.target.request.as_slice();
        let samples = RefCell::new(Vec::new());
        let failures = RefCell::new(Vec::new());
        let start = Instant::now();
        let end = start + length;
        join_all(self.connections.iter_mut().map(async |connection| {
            loop {
                let begun = Instant::now();
                if begun >= end {
                    return;
                }
                match one(connection, request).await {
                    Ok(()) => samples.borrow_mut().push(begun.elapsed().as_secs_f64()),
                    Err(error) => {
                        failures.borrow_mut().push(format!("{error:#}"));
                        // What listens may be gone; a failure that returns at once must not fill the memory.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        }))
        .await;
        let length = start.elapsed();
        Window { seconds: Samples::new(samples.into_inner()), failures: failures.into_inner(), length }
    }
}

/// One call that must be answered 200.
async fn one(connection: &mut Connection, request: &[u8]) -> anyhow::Result<()> {
    let mut body_bytes = 0;
    let mut told = Vec::new();
    let head = connection
        .call(request, |piece| {
            body_bytes += piece.len();
            if told.is_empty() {
                told.extend_from_slice(piece.get(..piece.len().min(300)).unwrap_or_default());
            }
        })
        .await?;
    if head.status != 200 || body_bytes == 0 {
        bail!("status {} with {body_bytes} bytes: {}", head.status, String::from_utf8_lossy(&told));
    }
    Ok(())
}

/// Measures until no call fails, a few times at most: a window with a failure says nothing about speed.
///
/// # Errors
/// When every window had failures.
pub(crate) async fn without_failures<T>(
    what: &str,
    mut measure: impl AsyncFnMut() -> (T, Vec<String>),
) -> anyhow::Result<T> {
    let mut last = Vec::new();
    for _ in 0..MOST_VOID {
        let (measured, failures) = measure().await;
        if failures.is_empty() {
            return Ok(measured);
        }
        last = failures;
    }
    bail!(
        "{what}: {MOST_VOID} windows in a row had failed calls, the last one {}, such as: {}",
        last.len(),
        last.first().map_or("", String::as_str)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_window_with_a_failed_call_is_repeated() {
        let mut windows = vec![vec!["late".to_owned()], vec![], vec!["never asked for".to_owned()]].into_iter();
        let mut asked = 0;
        let measured = without_failures("x", async || {
            asked += 1;
            (asked, windows.next().unwrap())
        });
        assert_eq!(measured.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn failures_that_do_not_end_are_an_error() {
        let error =
            without_failures("x", async || ((), vec!["status 503".to_owned(); 7])).await.unwrap_err().to_string();
        assert!(error.contains("7, such as: status 503"), "{error}");
    }

    #[test]
    fn a_rate_is_of_the_whole_window() {
        let window = Window { seconds: Samples::new(vec![0.1; 30]), length: Duration::from_secs(2), failures: vec![] };
        assert_eq!(window.rate(), 15.0);
    }
}
