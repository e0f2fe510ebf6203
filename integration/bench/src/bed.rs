//! An installation to measure: PostgreSQL with the settings of one that keeps its data, the edge of the shipped program,
//! and the scripted upstream, each a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use testkit::{ApiKeyId, PrivateServer, ProjectId, Role, Stack, TestDatabase};
use url::Url;

use crate::course::{Course, DIRECT, GOVERNED, NO_LIMITS};
use crate::placement;
use crate::scale::Scale;
use crate::traffic::{Leg, MODEL, PATH};
use crate::upstream_process::UpstreamProcess;

/// The public name of the route; another one than the model's, so that every answer has to be changed.
const ROUTE: &str = "assistant";

/// Every kind of limit and budget of a key, with more room than a run can use.
const LIMITS: &str = "requests_per_minute = 1000000000, tokens_per_minute = 1000000000000, \
                      tokens_per_day = 1000000000000000, tokens_per_month = 1000000000000000, \
                      cost_per_day = 1000000000000000000, cost_per_month = 1000000000000000000";

/// Files a server may have open: a few thousand connections.
const FILES: u64 = 65_536;

/// Everything that runs, in the order in which it ends.
pub(crate) struct Bed {
    pub(crate) course: Course,
    pub(crate) stack: Stack,
    /// The project and key with every limit.
    pub(crate) hot: (ProjectId, ApiKeyId),
    server: PrivateServer,
}

impl Bed {
    /// Starts everything.
    ///
    /// # Errors
    /// When something does not come up, such as the program beside this one that is not there.
    pub(crate) async fn start(scale: Scale) -> anyhow::Result<Self> {
        rlimit::increase_nofile_limit(FILES)?;
        let program = std::env::current_exe()?;
        let folder = program.parent().context("this program is in no folder")?.join("ragmux-bench-pg");
        let server = PrivateServer::start(&folder).await.context("PostgreSQL cannot be started")?;
        let database = server.database().await.context("the database cannot be made")?;
        let upstream = UpstreamProcess::start(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let (open_key, hot, hot_key) = furnish(&database, &upstream.base_url()).await?;
        let stack = Stack::builder().admins(0).edges(1).database(database).start().await?;
        let edge = stack.nth(Role::Edge, 0)?;
        let leg = |name, key: &str| edge_leg(&edge.url(), name, key);
        let legs = vec![direct(upstream.address()), leg(NO_LIMITS, &open_key)?, leg(GOVERNED, &hot_key)?];
        let course = Course {
            scale,
            upstream,
            legs,
            server: edge.pid(),
            database: Some(server.pid()),
            processors: placement::allowed()?,
            keeps_bytes: true,
        };
        Ok(Self { course, stack, hot, server })
    }

    /// Starts one more edge; its legs, without and with limits, and its place among the processes.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(crate) async fn another_edge(&mut self) -> anyhow::Result<(usize, Vec<Leg>)> {
        let place = self.stack.spawn(Role::Edge).await?;
        let http = self.stack.http.clone();
        let edge = self.stack.process(place)?;
        edge.ready(&http).await?;
        let url = edge.url();
        let through = self.course.legs.iter().skip(1);
        let legs = through.map(|leg| edge_leg(&url, leg.name, &leg.key)).collect::<anyhow::Result<_>>()?;
        Ok((place, legs))
    }

    /// Ends everything in order.
    ///
    /// # Errors
    /// When a process did not end well: what it measured is then in doubt.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let edge = self.stack.process(0)?;
        let status = edge.stop(Duration::from_secs(90)).await?;
        anyhow::ensure!(status.success(), "the edge ended with {status}:\n{}", edge.log_tail());
        drop(self.stack);
        self.server.stop().await
    }
}

/// The way without anything in between.
pub(crate) fn direct(address: SocketAddr) -> Leg {
    Leg { name: DIRECT, address, path: PATH.to_owned(), key: "none".to_owned(), model: MODEL.to_owned() }
}

fn edge_leg(url: &str, name: &'static str, key: &str) -> anyhow::Result<Leg> {
    through(&Url::parse(&format!("{url}/v1"))?, name, key, ROUTE)
}

/// The way through a server with this base URL.
///
/// # Errors
/// When it is not an `http` URL of an address.
pub(crate) fn through(base: &Url, name: &'static str, key: &str, model: &str) -> anyhow::Result<Leg> {
    anyhow::ensure!(base.scheme() == "http", "only http is measured, and {base} is not");
    let address = base.socket_addrs(|| None)?.into_iter().find(SocketAddr::is_ipv4).context("no address to call")?;
    let path = format!("{}/chat/completions", base.path().trim_end_matches('/'));
    Ok(Leg { name, address, path, key: key.to_owned(), model: model.to_owned() })
}

/// Two projects with a route each: one without any limit, one whose only user's key has every limit.
async fn furnish(database: &TestDatabase, upstream: &str) -> anyhow::Result<(String, (ProjectId, ApiKeyId), String)> {
    let connection = database.insert_connection("bench", upstream, MODEL).await?;
    database.insert_price(MODEL, 150_000_000, 600_000_000).await?;
    let open = database.insert_project("open", "").await?;
    database.insert_route(open, ROUTE, connection).await?;
    let (_, open_key) = database.insert_project_key(open).await?;
    let governed = database.insert_project("governed", "").await?;
    database.insert_route(governed, ROUTE, connection).await?;
    let user = database.insert_user("caller").await?;
    let (id, key) = database.insert_user_key(user, "hot", &["chat"], &[governed]).await?;
    database.change_key(id, LIMITS).await?;
    let text = |key: &testkit::ApiKey| key.secret().expose().to_owned();
    Ok((text(&open_key), (governed, id), text(&key)))
}
