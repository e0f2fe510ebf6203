//! How to reach PostgreSQL.

use std::time::Duration;

use domain::Secret;
use url::Url;

use crate::{Choice, Env};

/// What stands between the process and PostgreSQL, as far as it changes what a session can be relied on for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// A direct connection.
    #[default]
    None,
    /// A pooler that gives every client connection a server connection of its own.
    Session,
    /// A pooler that gives out a server connection for one transaction: no LISTEN, no session locks, no statement
    /// that outlives its transaction.
    Transaction,
}

impl Choice for Pooler {
    const NAMES: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("session", Self::Session), ("transaction", Self::Transaction)];
}

/// The database section.
#[derive(Clone, Debug)]
pub struct Database {
    /// `DATABASE_URL`, reduced to the parameters that the driver understands. It may hold a password.
    pub url: Secret,
    /// `DB_POOLER`, or what the URL says in the words of other drivers.
    pub pooler: Pooler,
    /// `DB_MAX_CONNS`: all the connections that the process opens, those outside the pool included.
    pub max_connections: u32,
    /// `DB_ACQUIRE_TIMEOUT`: how long to wait for a free connection.
    pub acquire_timeout: Duration,
    /// `DB_SCHEMA`: the schema that holds this installation.
    pub schema: String,
}

/// The pool, the connections that beat and listen, and the four of a ledger.
const FEWEST_CONNECTIONS: u32 = 8;

impl Database {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        let pooler = env.optional_choice("DB_POOLER");
        let address = Address::read(env, "DATABASE_URL").unwrap_or_else(|| {
            env.missing("DATABASE_URL");
            Address::default()
        });
        let schema = env.text("DB_SCHEMA", "public");
        if !is_plain_name(&schema) {
            let allowed = "expected a name of at most 63 of a-z, 0-9 and _, not starting with a digit or pg_";
            env.reject("DB_SCHEMA", Some(&schema), allowed);
        }
        Self {
            pooler: address.pooler("DATABASE_URL", env, pooler),
            url: address.url,
            max_connections: env.number("DB_MAX_CONNS", 10, FEWEST_CONNECTIONS..=1000),
            acquire_timeout: env.duration(
                "DB_ACQUIRE_TIMEOUT",
                Duration::from_secs(2),
                Duration::from_millis(100)..=Duration::from_secs(60),
            ),
            schema,
        }
    }

    /// The same section with the address that another key names, such as `MIGRATE_DATABASE_URL`; unchanged when that
    /// key is not set. `DB_POOLER` speaks of `DATABASE_URL` only: the other address is taken to be direct unless its
    /// own parameters say something else.
    #[must_use]
    pub fn with_url_from(&self, env: &mut Env, key: &'static str) -> Self {
        match Address::read(env, key) {
            Some(address) => Self { pooler: address.pooler(key, env, None), url: address.url, ..self.clone() },
            None => self.clone(),
        }
    }

    /// The same section for a process that opens `connections` beside those of its store.
    #[must_use]
    pub fn keeping(&self, connections: u32) -> Self {
        Self { max_connections: self.max_connections.saturating_sub(connections), ..self.clone() }
    }

    /// The host (a name or an address) and port of the server; `None` when it is reached by a socket in the file system.
    #[must_use]
    pub fn server(&self) -> Option<(String, u16)> {
        let url = Url::parse(self.url.expose()).ok()?;
        let parameter =
            |name: &str| url.query_pairs().filter(|(key, _)| key == name).last().map(|(_, value)| value.into_owned());
        // Parameters win over the rest of the URL, as they do in the driver.
        let host = parameter("hostaddr").or_else(|| parameter("host")).or_else(|| url.host_str().map(str::to_owned))?;
        let port = parameter("port").and_then(|port| port.parse().ok()).or(url.port()).unwrap_or(DEFAULT_PORT);
        let is_path = host.starts_with('/') || host.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("%2f"));
        (!is_path).then(|| (host.trim_matches(['[', ']']).to_owned(), port))
    }
}

/// The port of PostgreSQL where the URL names none.
const DEFAULT_PORT: u16 = 5432;

/// A database URL and what its parameters say about a pooler.
struct Address {
    url: Secret,
    transaction_pooling: bool,
}

impl Default for Address {
    fn default() -> Self {
        Self { url: Secret::new(""), transaction_pooling: false }
    }
}

impl Address {
    /// Reads the address behind a key; `None` when it is absent or wrong.
    fn read(env: &mut Env, key: &'static str) -> Option<Self> {
        let text = env.secret(key)?;
        let Some(mut url) = Url::parse(text.expose().trim())
            .ok()
            .filter(|url| matches!(url.scheme(), "postgres" | "postgresql") && url.host_str().is_some())
        else {
            env.reject(
                key,
                None,
                "expected postgres://user:password@host:port/database (a special character in the \
                password is written as %XX)",
            );
            return None;
        };
        let mut transaction_pooling = false;
        let mut kept: Vec<(String, String)> = Vec::new();
        for (name, value) in url.query_pairs() {
            match Parameter::named(&name) {
                Parameter::Driver => kept.push((name.into_owned(), value.into_owned())),
                Parameter::StatementCache => transaction_pooling |= value == "0",
                Parameter::ExecMode => transaction_pooling |= matches!(&*value, "exec" | "simple_protocol"),
                Parameter::Unknown => {
                    env.warn(format!("{key} has a parameter that is not known and not used: {name}"));
                }
            }
        }
        if let Some((name, value)) = kept.iter().find(|(name, value)| !is_usable(name, value)) {
            env.reject(key, None, format!("its parameter {name} cannot be {value:?}"));
        }
        if kept.is_empty() {
            url.set_query(None);
        } else {
            url.query_pairs_mut().clear().extend_pairs(kept);
        }
        Some(Self { url: Secret::new(url), transaction_pooling })
    }

    /// The kind of pooler, given what `DB_POOLER` says.
    fn pooler(&self, key: &str, env: &mut Env, stated: Option<Pooler>) -> Pooler {
        match stated {
            Some(stated) if self.transaction_pooling && stated != Pooler::Transaction => {
                env.reject(
                    "DB_POOLER",
                    None,
                    format!(
                        "contradicts {key}, whose parameters switch prepared statements off: set it to transaction"
                    ),
                );
                stated
            }
            Some(stated) => stated,
            None if self.transaction_pooling => Pooler::Transaction,
            None => Pooler::None,
        }
    }
}

/// What a parameter of a database URL is for.
enum Parameter {
    /// One that the driver reads.
    Driver,
    /// How many prepared statements are kept; 0 is how other drivers say "behind a transaction pooler".
    StatementCache,
    /// How another driver is told to do without prepared statements.
    ExecMode,
    Unknown,
}

impl Parameter {
    fn named(name: &str) -> Self {
        match name {
            "sslmode" | "ssl-mode" | "sslrootcert" | "ssl-root-cert" | "ssl-ca" | "sslcert" | "ssl-cert" | "sslkey"
            | "ssl-key" | "host" | "hostaddr" | "port" | "dbname" | "user" | "password" | "application_name" => {
                Self::Driver
            }
            "statement_cache_capacity" | "statement-cache-capacity" => Self::StatementCache,
            "default_query_exec_mode" => Self::ExecMode,
            // `options` is among these: a pooler refuses it, so roles carry such settings instead.
            _ => Self::Unknown,
        }
    }
}

/// Whether the driver will accept the value of one of its parameters.
fn is_usable(name: &str, value: &str) -> bool {
    match name {
        "sslmode" | "ssl-mode" => {
            ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"].contains(&value)
        }
        "port" => value.parse::<u16>().is_ok(),
        "hostaddr" => value.parse::<std::net::IpAddr>().is_ok(),
        _ => true,
    }
}

/// Whether a name means the same quoted and unquoted in SQL, and is not reserved.
fn is_plain_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("pg_")
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Database, Result<crate::Findings, crate::Mistakes>) {
        let mut env = Env::of(pairs.iter().copied());
        let database = Database::read(&mut env);
        (database, env.finish())
    }

    #[test]
    fn only_the_address_is_required() {
        let (database, end) = read(&[("DATABASE_URL", "postgres://u:p%40ss@db:5433/name?sslmode=require")]);
        assert_eq!(database.url.expose(), "postgres://u:p%40ss@db:5433/name?sslmode=require");
        assert_eq!(database.pooler, Pooler::None);
        assert_eq!(database.max_connections, 10);
        assert_eq!(database.acquire_timeout, Duration::from_secs(2));
        assert_eq!(database.schema, "public");
        assert!(end.unwrap().warnings.is_empty());
        let message = read(&[]).1.unwrap_err().to_string();
        assert_eq!(
            message,
            "one setting is wrong:\n  DATABASE_URL: is required; set DATABASE_URL or DATABASE_URL_FILE"
        );
    }

    #[test]
    fn a_socket_folder_is_an_address_too() {
        let url = "postgres://u@%2Frun%2Fpostgresql:5433/name";
        let (database, end) = read(&[("DATABASE_URL", url)]);
        end.unwrap();
        assert_eq!(database.url.expose(), url);
    }

    #[test]
    fn the_words_of_other_drivers_mean_transaction_pooling_and_are_cut() {
        for parameter in
            ["statement_cache_capacity=0", "default_query_exec_mode=exec", "statement-cache-capacity=0&sslmode=prefer"]
        {
            let url = format!("postgresql://u@db/name?{parameter}");
            let (database, end) = read(&[("DATABASE_URL", &url)]);
            assert!(end.unwrap().warnings.is_empty());
            assert_eq!(database.pooler, Pooler::Transaction, "{parameter}");
            assert!(!database.url.expose().contains("cache"), "{parameter}");
        }
        let (database, _) = read(&[("DATABASE_URL", "postgres://u@db/name?statement_cache_capacity=100")]);
        assert_eq!((database.pooler, database.url.expose()), (Pooler::None, "postgres://u@db/name"));
    }

    #[test]
    fn a_pooler_that_contradicts_the_address_is_a_mistake() {
        let url = "postgres://u:hidden@db/name?statement_cache_capacity=0";
        let (_, end) = read(&[("DATABASE_URL", url), ("DB_POOLER", "session")]);
        assert!(end.unwrap_err().to_string().contains("DB_POOLER: contradicts DATABASE_URL"));
        let (database, end) = read(&[("DATABASE_URL", url), ("DB_POOLER", "transaction")]);
        end.unwrap();
        assert_eq!(database.pooler, Pooler::Transaction);
    }

    #[test]
    fn unknown_parameters_are_named_and_not_passed_on() {
        let url = "postgres://u@db/name?pool_max_conns=5&options=-c%20x%3D1&application_name=edge";
        let (database, end) = read(&[("DATABASE_URL", url)]);
        assert_eq!(database.url.expose(), "postgres://u@db/name?application_name=edge");
        let warnings = end.unwrap().warnings;
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].contains("pool_max_conns") && warnings[1].contains("options"), "{warnings:?}");
    }

    #[test]
    fn a_wrong_address_is_not_shown() {
        for url in [
            "host=db user=u password=hunter2",
            "mysql://u:hunter2@db/name",
            "postgres://u:hunter2@db:port/name",
            "postgres:///hunter2",
            "postgres://u:hunter2@db/name?sslmode=maybe",
            "postgres://u:hunter2@db/name?port=x",
        ] {
            let message = read(&[("DATABASE_URL", url)]).1.unwrap_err().to_string();
            assert!(message.starts_with("one setting is wrong:\n  DATABASE_URL: "), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn a_schema_is_a_plain_name() {
        let long = "s".repeat(64);
        for name in ["Public", "1st", "a-b", "pg_temp", "a;b", "a\"b", long.as_str()] {
            let end = read(&[("DATABASE_URL", "postgres://u@db/n"), ("DB_SCHEMA", name)]).1;
            assert!(end.unwrap_err().to_string().contains("DB_SCHEMA"), "{name}");
        }
        let (database, end) = read(&[("DATABASE_URL", "postgres://u@db/n"), ("DB_SCHEMA", "ragmux_2")]);
        end.unwrap();
        assert_eq!(database.schema, "ragmux_2");
    }

    #[test]
    fn the_server_is_named_unless_it_is_a_socket() {
        for (url, expected) in [
            ("postgres://u@db/n", Some(("db", 5432))),
            ("postgres://u@db:6432/n", Some(("db", 6432))),
            ("postgres://u@[::1]:1/n", Some(("::1", 1))),
            ("postgres://u@db/n?host=other&port=2", Some(("other", 2))),
            ("postgres://u@db/n?host=other&hostaddr=10.0.0.1", Some(("10.0.0.1", 5432))),
            ("postgres://u@%2Frun%2Fpostgresql/n", None),
            ("postgres://u@db/n?host=/run/postgresql", None),
        ] {
            let (database, end) = read(&[("DATABASE_URL", url)]);
            end.unwrap();
            assert_eq!(database.server(), expected.map(|(host, port)| (host.to_owned(), port)), "{url}");
        }
    }

    #[test]
    fn another_key_may_name_another_address() {
        let mut env = Env::of([
            ("DATABASE_URL", "postgres://app@db/name?statement_cache_capacity=0"),
            ("MIGRATE_DATABASE_URL", "postgres://owner@db/name"),
        ]);
        let database = Database::read(&mut env);
        let migrating = database.with_url_from(&mut env, "MIGRATE_DATABASE_URL");
        assert_eq!((migrating.url.expose(), migrating.pooler), ("postgres://owner@db/name", Pooler::None));
        let same = database.with_url_from(&mut env, "UNSET_URL");
        assert_eq!((same.url.expose(), same.pooler), (database.url.expose(), Pooler::Transaction));
        env.finish().unwrap();
    }
}
