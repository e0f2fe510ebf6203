//! The process as one of the instances that the others see.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use store::instances::{InstanceId, NewInstance, Standing};
use store::{Store, StoreError, schema};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::backoff::Backoff;
use crate::health::Health;
use crate::process::Service;
use crate::stages::Deadline;
use crate::startup::StartError;
use crate::stop::Stop;

/// Between two beats. Others take an instance for dead after 6 s without one.
const BEAT: Duration = Duration::from_secs(2);

/// A beat that takes longer has not reached the database.
const BEAT_PATIENCE: Duration = Duration::from_secs(4);

/// What a process tells the others of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The service and its version.
    pub service: Service,
    /// Listen addresses by name (`http`, `grpc`, `health`), as others reach them; see [`crate::advertised`].
    pub addresses: BTreeMap<&'static str, SocketAddr>,
    /// The ids of the sealing keys that it holds.
    pub key_ids: Vec<String>,
}

/// Where a process is in its life, as the others are to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Joining,
    Active,
    Draining,
    Left,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Left => "left",
        }
    }
}

/// The process's row among the instances. A task beats in it every 2 s, on a connection of its own, and tells
/// [`Health`] by it whether the database is in reach and which schema it has.
///
/// Dropping it ends the beats; [`Membership::leave`] is the orderly way.
pub struct Membership {
    id: watch::Receiver<InstanceId>,
    missed: watch::Receiver<u64>,
    doubts: Arc<Notify>,
    owner: Arc<str>,
    wanted: watch::Sender<State>,
    beats: JoinHandle<()>,
}

impl Membership {
    /// Enters the process, `joining`, and begins to beat. A database that is away is waited for.
    ///
    /// # Errors
    ///
    /// [`StartError::Stopped`], or [`StartError::Register`] when the database refuses the row.
    pub async fn join(store: Store, health: Health, identity: Identity, stop: &Stop) -> Result<Self, StartError> {
        let new = new_instance(identity);
        let owner = Arc::from(new.owner.as_str());
        let mut backoff = Backoff::new();
        loop {
            match timeout(BEAT_PATIENCE, register(&store, &new)).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) if !error.is_transient() => return Err(StartError::Register(error)),
                Ok(Err(_)) | Err(_) => health.database_lost(),
            }
            tokio::select! {
                biased;
                () = stop.begun() => return Err(StartError::Stopped),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
        let (publish, id) = watch::channel(new.id);
        let (wanted, wants) = watch::channel(State::Joining);
        let (count_missed, missed) = watch::channel(0);
        let doubts = Arc::new(Notify::new());
        let beats = Beats {
            store,
            health,
            new,
            publish,
            count_missed,
            doubts: Arc::clone(&doubts),
            recorded: State::Joining,
            lost_since: None,
        };
        Ok(Self { id, missed, doubts, owner, wanted, beats: tokio::spawn(beats.run(wants)) })
    }

    /// The id of this life of the process.
    #[must_use]
    pub fn id(&self) -> InstanceId {
        *self.id.borrow()
    }

    /// The id as it changes: a process that was given up by the others goes on under a new one.
    #[must_use]
    pub fn ids(&self) -> watch::Receiver<InstanceId> {
        self.id.clone()
    }

    /// What the ledger of the process needs to know of all this.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::new(self.id.clone(), self.missed.clone(), Arc::clone(&self.doubts))
    }

    /// `host/pid/` and 8 random hexadecimal digits: what the claims of this process carry.
    #[must_use]
    pub fn owner(&self) -> Arc<str> {
        Arc::clone(&self.owner)
    }

    /// The process does its work.
    pub fn active(&self) {
        self.wanted.send_replace(State::Active);
    }

    /// The process takes no new work.
    pub fn draining(&self) {
        self.wanted.send_replace(State::Draining);
    }

    /// The process is done; its last beat says so, unless the database is away until the deadline.
    pub async fn leave(mut self, deadline: Deadline) {
        self.wanted.send_replace(State::Left);
        tokio::select! {
            _ = &mut self.beats => {}
            () = deadline.reached() => {}
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

fn new_instance(identity: Identity) -> NewInstance {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let addresses = identity.addresses.iter().map(|(name, address)| ((*name).to_owned(), address.to_string().into()));
    NewInstance {
        id: InstanceId::new(),
        service: identity.service.name.to_owned(),
        owner: format!("{host}/{}/{:08x}", std::process::id(), rand::random::<u32>()),
        host,
        version: identity.service.version.to_owned(),
        schema_version: schema::expected(),
        addresses: serde_json::Value::Object(addresses.collect()),
        key_ids: identity.key_ids,
    }
}

/// Enters the row. The answer to an earlier try may have been lost, so a row that is there already is the one.
async fn register(store: &Store, new: &NewInstance) -> Result<(), StoreError> {
    match store.register_instance(new).await {
        Err(StoreError::AlreadyExists { .. }) => Ok(()),
        outcome => outcome,
    }
}

/// The task that beats.
struct Beats {
    store: Store,
    health: Health,
    new: NewInstance,
    publish: watch::Sender<InstanceId>,
    count_missed: watch::Sender<u64>,
    doubts: Arc<Notify>,
    recorded: State,
    lost_since: Option<Instant>,
}

impl Beats {
    async fn run(mut self, mut wants: watch::Receiver<State>) {
        let mut ticks = interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.recorded != State::Left {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.doubts.notified() => {}
                changed = wants.changed() => if changed.is_err() { return },
            }
            let wanted = *wants.borrow_and_update();
            match timeout(BEAT_PATIENCE, self.beat(wanted)).await {
                Ok(Ok(applied)) => self.reached(applied),
                Ok(Err(error)) => self.not_reached(Some(&error)),
                Err(_) => self.not_reached(None),
            }
        }
    }

    /// Beats, moves to the wanted state, and returns the schema version that the database has.
    async fn beat(&mut self, wanted: State) -> Result<i32, StoreError> {
        let held_to_be = self.store.beat_instance(self.new.id).await?;
        if held_to_be.as_deref().is_none_or(|state| state == "lost") && wanted != State::Left {
            self.begin_anew().await?;
        }
        if self.recorded != wanted {
            self.store.set_instance_state(self.new.id, wanted.as_str()).await?;
            self.recorded = wanted;
        }
        self.store.applied_version().await
    }

    /// Takes a new id, because the others have given the old one up and settle what was open under it.
    async fn begin_anew(&mut self) -> Result<(), StoreError> {
        let given_up = self.new.id;
        let new = NewInstance { id: InstanceId::new(), ..self.new.clone() };
        register(&self.store, &new).await?;
        self.new = new;
        self.recorded = State::Joining;
        self.publish.send_replace(self.new.id);
        tracing::warn!(%given_up, id = %self.new.id, "this instance was given up by the others, going on under a new id");
        Ok(())
    }

    fn reached(&mut self, applied: i32) {
        self.health.database_seen(applied);
        if let Some(since) = self.lost_since.take() {
            tracing::info!(away_s = since.elapsed().as_secs(), "the database is in reach again");
        }
    }

    fn not_reached(&mut self, error: Option<&StoreError>) {
        self.health.database_lost();
        self.count_missed.send_modify(|missed| *missed += 1);
        if self.lost_since.is_none() {
            self.lost_since = Some(Instant::now());
            let error = error.map(|error| error as &(dyn std::error::Error + 'static));
            tracing::warn!(error, "the database cannot be reached");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use testkit::{RoleName, TestDatabase, until};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn identity() -> Identity {
        let service = Service { name: "edge", version: "1.2.3" };
        let addresses = BTreeMap::from([("http", SocketAddr::from(([127, 0, 0, 1], 8765)))]);
        Identity { service, addresses, key_ids: vec!["0011aabb".to_owned()] }
    }

    async fn join(store: &Store, health: &Health) -> Membership {
        Membership::join(store.clone(), health.clone(), identity(), &Stop::new()).await.unwrap()
    }

    /// The states of all instances that have not left.
    async fn states(store: &Store) -> Vec<String> {
        store.list_instances().await.unwrap().into_iter().map(|instance| instance.state).collect()
    }

    async fn until_states(store: &Store, expected: &[&str]) {
        until(&format!("the states {expected:?}"), async || Ok(states(store).await == expected)).await.unwrap();
    }

    async fn fixture() -> (TestDatabase, Store, Health) {
        let database = testkit::database().await.unwrap();
        let store = database.store(RoleName::Edge).unwrap();
        (database, store, Health::new(schema::expected()))
    }

    #[tokio::test]
    async fn the_others_see_a_process_from_its_start_to_its_end() {
        let (_database, store, health) = fixture().await;
        let membership = join(&store, &health).await;
        let seen = store.list_instances().await.unwrap().remove(0);
        assert_eq!((seen.id, seen.state.as_str()), (membership.id(), "joining"));
        assert_eq!((seen.service.as_str(), seen.version.as_str()), ("edge", "1.2.3"));
        assert_eq!(seen.addresses, serde_json::json!({ "http": "127.0.0.1:8765" }));
        assert_eq!(seen.owner, *membership.owner());
        let parts: Vec<&str> = seen.owner.split('/').collect();
        assert_eq!(parts[1], std::process::id().to_string());
        assert!(parts.len() == 3 && parts[2].len() == 8, "{}", seen.owner);

        membership.active();
        until_states(&store, &["active"]).await;
        health.started();
        until("beats make it ready", || ready(Ok(health.report().ready))).await.unwrap();
        membership.draining();
        until_states(&store, &["draining"]).await;
        membership.leave(Deadline::default()).await;
        until_states(&store, &[]).await;
    }

    #[tokio::test]
    async fn a_process_that_was_given_up_goes_on_under_a_new_id() {
        let (_database, store, health) = fixture().await;
        let membership = join(&store, &health).await;
        membership.active();
        until_states(&store, &["active"]).await;
        let (first, mut ids) = (membership.id(), membership.ids());
        store.set_instance_state(first, "lost").await.unwrap();
        timeout(testkit::DEADLINE, ids.changed()).await.unwrap().unwrap();
        assert_ne!(membership.id(), first);
        until_states(&store, &["active", "lost"]).await;
    }

    /// A way to the database that can be blocked.
    struct Path {
        address: SocketAddr,
        blocked: watch::Sender<bool>,
        closed: CancellationToken,
    }

    impl Path {
        async fn to(server: (String, u16)) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (blocked, closed) = (watch::Sender::new(false), CancellationToken::new());
            let (mut is_blocked, until_closed) = (blocked.subscribe(), closed.clone());
            tokio::spawn(until_closed.run_until_cancelled_owned(async move {
                loop {
                    let (mut client, _) = listener.accept().await.unwrap();
                    if *is_blocked.borrow_and_update() {
                        continue;
                    }
                    let (server, mut is_blocked) = (server.clone(), is_blocked.clone());
                    tokio::spawn(async move {
                        let mut server = TcpStream::connect(server).await.unwrap();
                        tokio::select! {
                            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                            _ = is_blocked.wait_for(|blocked| *blocked) => {}
                        }
                    });
                }
            }));
            Self { address, blocked, closed }
        }
    }

    #[tokio::test]
    async fn a_database_that_goes_away_and_comes_back_is_noticed() {
        let database = testkit::database().await.unwrap();
        let mut config = database.config(RoleName::Edge);
        let server = config.server().unwrap();
        let path = Path::to(server.clone()).await;
        let by_path = format!("@{}/", path.address);
        config.url = config.url.expose().replace(&format!("@{}:{}/", server.0, server.1), &by_path).into();
        assert!(config.url.expose().contains(&by_path));
        let (store, health) = (Store::new(&config, "test").unwrap(), Health::new(schema::expected()));
        let membership = join(&store, &health).await;
        membership.active();
        health.started();
        until("it is ready", || ready(Ok(health.report().ready))).await.unwrap();

        path.blocked.send_replace(true);
        let degraded = || health.report().degraded.contains(&"database_unreachable");
        until("the loss is noticed", || ready(Ok(degraded()))).await.unwrap();
        assert!(health.report().ready, "within the grace");
        path.blocked.send_replace(false);
        until("the return is noticed", || ready(Ok(!degraded()))).await.unwrap();
        membership.leave(Deadline::default()).await;
        path.closed.cancel();
    }

    #[tokio::test]
    async fn leaving_does_not_wait_for_a_database_beyond_the_deadline() {
        let (_database, store, health) = fixture().await;
        let membership = join(&store, &health).await;
        store.close().await;
        let deadline = Deadline::default();
        deadline.reach();
        timeout(testkit::DEADLINE, membership.leave(deadline)).await.unwrap();
    }
}
