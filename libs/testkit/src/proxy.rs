//! A way to the database that breaks at chosen moments.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use store::testing::{RoleName, TestDatabase};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What becomes of statements that are to be cut, over and over: breaks alone, in a row, and with whole answers in
/// between. A program that tries again meets all of them.
const TURNS: [Turn; 8] = [Turn::Cut, Turn::Cut, Turn::Pass, Turn::Early, Turn::Pass, Turn::Cut, Turn::Pass, Turn::Pass];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The answer is whole on this side, so the statement is committed; then the connection breaks.
    Cut,
    /// The connection breaks as soon as the statement has been passed on.
    Early,
    Pass,
}

type ByFunction = BTreeMap<&'static str, Order>;
type Orders = Arc<Mutex<ByFunction>>;

/// Passes connections on to the database's server. Ends with the value, and every connection with it.
pub struct DatabaseProxy {
    address: SocketAddr,
    server: String,
    orders: Orders,
    silence: watch::Sender<Silence>,
    accepting: JoinHandle<()>,
}

/// Which connections are carried.
#[derive(Clone, Copy, Default)]
struct Silence {
    /// Those that were made before this many silences are not, ever again.
    times: u64,
    /// New ones are not either.
    lasts: bool,
}

/// What is to be done with one statement.
#[derive(Default)]
struct Order {
    turn: usize,
    wanted: u64,
    done: u64,
}

impl DatabaseProxy {
    /// A way to the server of a database.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn to(database: &TestDatabase) -> anyhow::Result<Self> {
        let (host, port) = database.config(RoleName::Edge).server().context("the server has no address")?;
        let server = format!("{host}:{port}");
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (orders, silence) = (Orders::default(), watch::Sender::default());
        let accepting = tokio::spawn(accept(listener, server.clone(), Arc::clone(&orders), silence.subscribe()));
        Ok(Self { address, server, orders, silence, accepting })
    }

    /// A role's URL that leads this way.
    ///
    /// # Errors
    /// When the database is on another server.
    pub fn url(&self, database: &TestDatabase, role: RoleName) -> anyhow::Result<String> {
        let direct = database.url(role).expose();
        let (before, after) = direct.split_once(&self.server).context("the database is on another server")?;
        Ok(format!("{before}{}{after}", self.address))
    }

    /// From now on answers to statements that call this function are lost, some at once and some after one that is not,
    /// until that many were lost after the statement had done its work. Statements are those of one message each.
    pub fn lose_answers(&self, function: &'static str, times: u64) {
        locked(&self.orders).entry(function).or_default().wanted += times;
    }

    /// No more answers are lost.
    pub fn heal(&self) {
        for order in locked(&self.orders).values_mut() {
            order.wanted = order.done;
        }
    }

    /// From now on nothing is carried any more, and no connection ends for it, as when a network drops all packets. The
    /// connections of now stay so for good.
    pub fn fall_silent(&self) {
        self.silence.send_modify(|silence| *silence = Silence { times: silence.times + 1, lasts: true });
    }

    /// New connections are carried again.
    pub fn speak_again(&self) {
        self.silence.send_modify(|silence| silence.lasts = false);
    }

    /// How many answers were lost after the statement had done its work.
    #[must_use]
    pub fn lost_answers(&self, function: &str) -> u64 {
        locked(&self.orders).get(function).map_or(0, |order| order.done)
    }
}

impl Drop for DatabaseProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn locked(orders: &Mutex<ByFunction>) -> MutexGuard<'_, ByFunction> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, server: String, orders: Orders, silence: watch::Receiver<Silence>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (server, orders, mut silence) = (server.clone(), Arc::clone(&orders), silence.clone());
        let Silence { times, lasts } = *silence.borrow_and_update();
        connections.spawn(async move {
            let Ok(mut server) = TcpStream::connect(server).await else { return };
            let mut client = client;
            tokio::select! {
                biased;
                _ = async { silence.wait_for(|silence| lasts || silence.times > times).await.is_ok() } => {}
                // However it breaks, both sides see the end of it.
                _ = carry(&mut client, &mut server, &orders) => return,
            }
            // Both sides stay open.
            std::future::pending::<()>().await;
        });
    }
}

/// Carries both directions until one side leaves or the connection is to break.
async fn carry(client: &mut TcpStream, server: &mut TcpStream, orders: &Orders) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut doom: Option<Doom> = None;
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let sent = up.get(..read?).unwrap_or_default();
                if sent.is_empty() {
                    return Ok(());
                }
                if doom.is_none() {
                    doom = Doom::of(sent, orders);
                }
                server.write_all(sent).await?;
                if let Some(doom) = &mut doom && doom.passed_on(sent.len()) {
                    return Ok(());
                }
            }
            read = server.read(&mut down) => {
                let answered = down.get(..read?).unwrap_or_default();
                if answered.is_empty() {
                    return Ok(());
                }
                match &mut doom {
                    None => client.write_all(answered).await?,
                    Some(doom) => if let Some(committed) = doom.answered(answered) {
                        if committed && let Some(order) = locked(orders).get_mut(doom.function) {
                            order.done += 1;
                        }
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// A statement whose answer will not arrive.
struct Doom {
    function: &'static str,
    /// Bytes of the statement that have not been passed on yet, where it is not waited for.
    early: Option<usize>,
    answer: Vec<u8>,
    failed: bool,
}

impl Doom {
    /// Of a simple query ('Q', its length, its text), which clients send in one piece and only when nothing is under way
    /// (PostgreSQL documentation, "Message Formats").
    fn of(sent: &[u8], orders: &Orders) -> Option<Self> {
        let (kind, rest) = sent.split_first()?;
        let (length, text) = rest.split_first_chunk::<4>()?;
        if *kind != b'Q' {
            return None;
        }
        let mut orders = locked(orders);
        let (function, order) = orders.iter_mut().find(|(function, _)| calls(text, function))?;
        if order.done >= order.wanted {
            return None;
        }
        let turn = TURNS.get(order.turn % TURNS.len())?;
        order.turn += 1;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()? + 1;
        match turn {
            Turn::Pass => None,
            Turn::Cut => Some(Self { function, early: None, answer: Vec::new(), failed: false }),
            Turn::Early => Some(Self { function, early: Some(length), answer: Vec::new(), failed: false }),
        }
    }

    /// Whether the connection is to break now that these bytes were passed on.
    fn passed_on(&mut self, bytes: usize) -> bool {
        let Some(left) = &mut self.early else { return false };
        *left = left.saturating_sub(bytes);
        *left == 0
    }

    /// Takes in a piece of the answer. Once it is whole (ReadyForQuery, which comes after the commit): whether the
    /// statement did its work.
    fn answered(&mut self, piece: &[u8]) -> Option<bool> {
        self.answer.extend_from_slice(piece);
        while let Some((kind, rest)) = self.answer.split_first()
            && let Some(length) = rest.first_chunk::<4>()
        {
            let end = usize::try_from(u32::from_be_bytes(*length)).ok()? + 1;
            if self.answer.len() < end {
                return None;
            }
            match kind {
                b'Z' => return Some(!self.failed),
                b'E' => self.failed = true,
                _ => {}
            }
            self.answer.drain(..end);
        }
        None
    }
}

/// Whether a statement of ours begins with a call of that function.
fn calls(text: &[u8], function: &str) -> bool {
    let text = text.strip_prefix(b"SELECT ").unwrap_or(text);
    let text = text.strip_prefix(b"* FROM ").unwrap_or(text);
    text.strip_prefix(function.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'('))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_at_ready_for_query_however_it_is_cut_and_an_error_is_no_commit() {
        let row = b"D\0\0\0\x07Zab".as_slice();
        let ready = b"Z\0\0\0\x05I".as_slice();
        let error = b"E\0\0\0\x05\0".as_slice();
        for (messages, committed) in [([row, ready], true), ([error, ready], false)] {
            let mut doom = Doom { function: "f", early: None, answer: Vec::new(), failed: false };
            let bytes = messages.concat();
            let (last, before) = bytes.split_last().unwrap();
            for byte in before {
                assert_eq!(doom.answered(&[*byte]), None);
            }
            assert_eq!(doom.answered(&[*last]), Some(committed));
        }
    }

    #[test]
    fn only_calls_of_the_function_are_meant() {
        assert!(calls(b"SELECT * FROM admit_v2('x')", "admit_v2"));
        assert!(calls(b"SELECT * FROM flush_v1()", "flush_v1"));
        assert!(!calls(b"SELECT * FROM admit_v22()", "admit_v2"));
        assert!(!calls(b"SELECT 'admit_v2('", "admit_v2"));
    }
}
