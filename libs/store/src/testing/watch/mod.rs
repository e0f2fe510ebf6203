//! A watch over a test's ledger: every commit is checked as it is made; see `install.sql`.

use domain::{ApiKeyId, InstanceId, ProjectId, RouteId, Tier};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgPool, Row};
use uuid::Uuid;

use super::TestDatabase;

/// What can be capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cap {
    /// Requests of a minute.
    RequestsPerMinute,
    /// Tokens of a minute.
    TokensPerMinute,
    /// Tokens of a day.
    TokensPerDay,
    /// Tokens of a month.
    TokensPerMonth,
    /// Nano-USD of a day.
    CostPerDay,
    /// Nano-USD of a month.
    CostPerMonth,
    /// Calls in flight.
    ConcurrentRequests,
}

impl Cap {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::RequestsPerMinute,
        Self::TokensPerMinute,
        Self::TokensPerDay,
        Self::TokensPerMonth,
        Self::CostPerDay,
        Self::CostPerMonth,
        Self::ConcurrentRequests,
    ];

    /// The column of projects and keys.
    #[must_use]
    pub fn column(self) -> &'static str {
        match self {
            Self::RequestsPerMinute => "requests_per_minute",
            Self::TokensPerMinute => "tokens_per_minute",
            Self::TokensPerDay => "tokens_per_day",
            Self::TokensPerMonth => "tokens_per_month",
            Self::CostPerDay => "cost_per_day",
            Self::CostPerMonth => "cost_per_month",
            Self::ConcurrentRequests => "concurrent_requests",
        }
    }

    /// The window and what is measured in it, as the watch names them.
    fn measured(self) -> (&'static str, &'static str) {
        match self {
            Self::RequestsPerMinute => ("minute", "requests"),
            Self::TokensPerMinute => ("minute", "tokens"),
            Self::TokensPerDay => ("day", "tokens"),
            Self::TokensPerMonth => ("month", "tokens"),
            Self::CostPerDay => ("day", "cost"),
            Self::CostPerMonth => ("month", "cost"),
            Self::ConcurrentRequests => ("flight", "requests"),
        }
    }
}

/// A tier and its id.
pub type TierId = (Tier, i64);

/// A cap of a tier; 0 is none.
pub type TierCap = (TierId, Cap, i64);

/// What is taken of something that a cap limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// When the window of now began, in microseconds since 1970.
    pub window_us: i64,
    /// What is used in it, with excess.
    pub used: i64,
    /// What calls in flight hold.
    pub held: i64,
}

/// A call that was admitted, as its client's number names it, and its log row, once there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedCall {
    /// The tag `call`; `None` for a call without.
    pub number: Option<i64>,
    /// The process that took it.
    pub instance: InstanceId,
    /// Whose it was when it was admitted.
    pub project: ProjectId,
    /// The key it came with then.
    pub key: Option<ApiKeyId>,
    /// Tokens it held.
    pub held_tokens: i64,
    /// Nano-USD it held.
    pub held_cost: i64,
    /// Its row in the log.
    pub row: Option<WatchedRow>,
}

/// What the log says of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedRow {
    /// The tag `call`.
    pub number: Option<i64>,
    /// Whose it is.
    pub project: ProjectId,
    /// The key it came with.
    pub key: Option<ApiKeyId>,
    /// The public model name.
    pub route: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The status the client got.
    pub status: i32,
    /// Why it failed.
    pub error_code: Option<String>,
    /// `final` or `estimated`.
    pub state: String,
    /// Whether it was streamed.
    pub streamed: bool,
    /// Reported prompt tokens.
    pub prompt_tokens: Option<i64>,
    /// Reported completion tokens.
    pub completion_tokens: Option<i64>,
    /// Requests charged.
    pub charged_requests: i64,
    /// Tokens charged.
    pub charged_tokens: i64,
    /// Nano-USD charged.
    pub charged_cost: i64,
}

impl WatchedRow {
    fn of(row: &PgRow, first: usize) -> Result<Option<Self>, sqlx::Error> {
        let Some(status) = row.try_get(first)? else { return Ok(None) };
        Ok(Some(Self {
            status,
            number: row.try_get(first + 1)?,
            project: ProjectId(row.try_get(first + 2)?),
            key: row.try_get::<Option<i64>, _>(first + 3)?.map(ApiKeyId),
            route: row.try_get(first + 4)?,
            model: row.try_get(first + 5)?,
            error_code: row.try_get(first + 6)?,
            state: row.try_get(first + 7)?,
            streamed: row.try_get(first + 8)?,
            prompt_tokens: row.try_get(first + 9)?,
            completion_tokens: row.try_get(first + 10)?,
            charged_requests: row.try_get(first + 11)?,
            charged_tokens: row.try_get(first + 12)?,
            charged_cost: row.try_get(first + 13)?,
        }))
    }
}

/// A watch over the ledger of a database. Cheap to clone.
#[derive(Clone)]
pub struct LedgerWatch {
    pool: PgPool,
}

impl TestDatabase {
    /// Begins to watch the ledger, which must be at rest.
    ///
    /// # Errors
    /// When it is watched already, or the server cannot be reached.
    pub async fn watch_ledger(&self) -> anyhow::Result<LedgerWatch> {
        let pool = self.superuser_pool().await?;
        sqlx::raw_sql(include_str!("install.sql")).execute(&pool).await?;
        Ok(LedgerWatch { pool })
    }
}

impl LedgerWatch {
    /// What was not as it must be at a commit: the rule, and what was found.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn breaches(&self) -> anyhow::Result<Vec<(String, Value)>> {
        Ok(sqlx::query_as("SELECT rule, detail FROM watch.breaches ORDER BY place LIMIT 100")
            .fetch_all(&self.pool)
            .await?)
    }

    /// How many commits were checked.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn commits(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM watch.commits").fetch_one(&self.pool).await?)
    }

    /// Where the sums of the ledger differ now: used, excess and held of every window there ever was from what the log
    /// charges and open calls hold, and calls that have neither an open row nor a log row.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn differences(&self) -> anyhow::Result<Vec<Value>> {
        Ok(sqlx::query_scalar("SELECT watch.differences() LIMIT 100").fetch_all(&self.pool).await?)
    }

    /// What is taken of a tier's cap.
    ///
    /// # Errors
    /// When there is no such tier.
    pub async fn meter(&self, (tier, id): TierId, cap: Cap) -> anyhow::Result<Meter> {
        let (kind, measure) = cap.measured();
        let (window_us, used, held) = sqlx::query_as(
            "SELECT (extract(epoch FROM label) * 1000000)::bigint, used, held FROM watch.meters($1, $2)
              WHERE kind = $3 AND measure = $4",
        )
        .bind(if tier == Tier::Project { 1_i16 } else { 2 })
        .bind(id)
        .bind(kind)
        .bind(measure)
        .fetch_one(&self.pool)
        .await?;
        Ok(Meter { window_us, used, held })
    }

    /// The place of the latest admission among all.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn last_place(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("SELECT coalesce(max(place), 0) FROM watch.calls").fetch_one(&self.pool).await?)
    }

    /// The calls that were admitted after that place, in the order in which they were.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn admitted_after(&self, place: i64) -> anyhow::Result<Vec<WatchedCall>> {
        self.select("c.place > $1[1] ORDER BY c.place", &[place]).await
    }

    /// The calls with these numbers that were admitted, by number.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn calls(&self, numbers: &[i64]) -> anyhow::Result<Vec<WatchedCall>> {
        self.select("c.number = ANY ($1) ORDER BY c.number", numbers).await
    }

    async fn select(&self, condition: &str, values: &[i64]) -> anyhow::Result<Vec<WatchedCall>> {
        let sql = format!(
            "SELECT c.number, c.instance_id, c.project_id, c.api_key_id, c.held_tokens, c.held_cost, l.status,
                    (l.tags ->> 'call')::bigint, l.project_id, l.api_key_id, l.route, l.model, l.error_code, l.state,
                    l.streamed, l.prompt_tokens, l.completion_tokens, l.charged_requests, l.charged_tokens, l.charged_cost
               FROM watch.calls c LEFT JOIN request_logs l USING (request_id, admitted_at)
              WHERE {condition}"
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(values);
        let call = |row: &PgRow| {
            Ok(WatchedCall {
                number: row.try_get(0)?,
                instance: InstanceId(row.try_get(1)?),
                project: ProjectId(row.try_get(2)?),
                key: row.try_get::<Option<i64>, _>(3)?.map(ApiKeyId),
                held_tokens: row.try_get(4)?,
                held_cost: row.try_get(5)?,
                row: WatchedRow::of(row, 6)?,
            })
        };
        rows.fetch_all(&self.pool).await?.iter().map(call).collect()
    }

    /// How many calls are open, those of these processes left out.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn open_calls(&self, without: &[InstanceId]) -> anyhow::Result<i64> {
        let without: Vec<Uuid> = without.iter().map(|instance| instance.0).collect();
        let open = sqlx::query_scalar("SELECT count(*) FROM requests_open WHERE instance_id <> ALL ($1)");
        Ok(open.bind(without).fetch_one(&self.pool).await?)
    }

    /// The processes that run as far as the others know, and listen at this port for HTTP.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn instances_at(&self, port: u16) -> anyhow::Result<Vec<InstanceId>> {
        let instances: Vec<Uuid> = sqlx::query_scalar(
            "SELECT id FROM instances WHERE addresses ->> 'http' LIKE $1 AND state NOT IN ('left', 'lost')",
        )
        .bind(format!("%:{port}"))
        .fetch_all(&self.pool)
        .await?;
        Ok(instances.into_iter().map(InstanceId).collect())
    }

    /// Sets these caps of these tiers and no others, the projects' enforcement, and the name of a route by which it can be
    /// seen who has heard of it: its change is logged last.
    ///
    /// # Errors
    /// When the name is taken.
    pub async fn set_caps(
        &self,
        tiers: &[TierId],
        enforcement: &str,
        caps: &[TierCap],
        (route, name): (RouteId, &str),
    ) -> anyhow::Result<()> {
        let mut transaction = self.pool.begin().await?;
        for tier in tiers {
            let value = |cap: Cap| {
                let set = caps.iter().find(|(of, which, _)| of == tier && *which == cap);
                format!("{} = {}", cap.column(), set.map_or(0, |(_, _, value)| *value))
            };
            let columns = Cap::ALL.map(value).join(", ");
            let (sql, kind) = match tier.0 {
                Tier::Project => (format!("UPDATE projects SET {columns}, enforcement = $2 WHERE id = $1"), "project"),
                Tier::Key => (format!("UPDATE api_keys SET {columns} WHERE id = $1 AND $2 <> ''"), "api_key"),
            };
            sqlx::query(AssertSqlSafe(sql)).bind(tier.1).bind(enforcement).execute(&mut *transaction).await?;
            sqlx::query("SELECT append_config_change($1, $2)")
                .bind(kind)
                .bind(tier.1)
                .execute(&mut *transaction)
                .await?;
        }
        sqlx::query("UPDATE routes SET name = $2 WHERE id = $1")
            .bind(route.0)
            .bind(name)
            .execute(&mut *transaction)
            .await?;
        sqlx::query("SELECT append_config_change('route', $1)").bind(route.0).execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    /// Builds an index of a busy table, as an operator would, and waits for it. Without writers being kept out
    /// (`concurrently`) it waits for every transaction that is open.
    ///
    /// # Errors
    /// When there is one of that name.
    pub async fn build_index(&self, name: &str, concurrently: bool) -> anyhow::Result<()> {
        let sql = if concurrently {
            format!("CREATE INDEX CONCURRENTLY {name} ON requests_open (admitted_at)")
        } else {
            format!("CREATE INDEX {name} ON request_logs (settled_at, status)")
        };
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await?;
        Ok(())
    }
}
