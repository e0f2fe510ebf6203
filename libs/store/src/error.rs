//! Failures as decisions a caller can make, and the one place where driver errors become them.

use domain::Kind;

/// Why a statement did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such row, or it is not the caller's.
    #[error("not found")]
    NotFound,
    /// A unique value is taken; `constraint` says which.
    #[error("already exists ({constraint})")]
    AlreadyExists {
        /// The unique constraint or index.
        constraint: String,
    },
    /// Something else still refers to the row, or the row refers to something that is not there.
    #[error("still referenced, or refers to something that does not exist ({constraint})")]
    Referenced {
        /// The foreign key.
        constraint: String,
    },
    /// A value is outside what its column allows.
    #[error("a value is not allowed ({constraint})")]
    Invalid {
        /// The check constraint, or the kind of value.
        constraint: String,
    },
    /// The row is not in the state the statement needs, or somebody holds it for too long. Trying again may help.
    #[error("the row is busy or has changed")]
    Conflict,
    /// The ledger is on another history than the caller knew: its calls have to be put back first.
    #[error("the ledger may have lost commits since")]
    EpochChanged,
    /// The others have given this instance up: it has to take a new id first.
    #[error("the instance was given up by the others")]
    InstanceLost,
    /// The database cannot be reached, is starting or shutting down, or has no free connection.
    #[error("the database is not available")]
    Unavailable {
        /// What the driver says.
        source: Box<sqlx::Error>,
    },
    /// The statement took longer than it may.
    #[error("the database did not answer in time")]
    Timeout {
        /// What the driver says.
        source: Box<sqlx::Error>,
    },
    /// Anything else: a fault of ours.
    #[error("the database refused a statement")]
    Unexpected {
        /// What the driver says.
        source: Box<sqlx::Error>,
    },
}

impl StoreError {
    /// What a face makes of it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound => Kind::NotFound,
            Self::AlreadyExists { .. } => Kind::AlreadyExists,
            Self::Referenced { .. } | Self::Conflict => Kind::Conflict,
            Self::Invalid { .. } => Kind::Invalid,
            Self::EpochChanged | Self::InstanceLost | Self::Unavailable { .. } => Kind::Unavailable,
            Self::Timeout { .. } => Kind::Timeout,
            Self::Unexpected { .. } => Kind::Internal,
        }
    }

    /// Whether the values of the statement are at fault, so that it will never succeed as it is.
    #[must_use]
    pub fn is_about_values(&self) -> bool {
        matches!(self, Self::AlreadyExists { .. } | Self::Referenced { .. } | Self::Invalid { .. })
    }

    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::EpochChanged | Self::InstanceLost | Self::Unavailable { .. } | Self::Timeout { .. }
        )
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let Some(database) = error.as_database_error() else {
            return match error {
                sqlx::Error::RowNotFound => Self::NotFound,
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed => Self::Unavailable { source: Box::new(error) },
                _ => Self::Unexpected { source: Box::new(error) },
            };
        };
        let code = database.code().unwrap_or_default().into_owned();
        let constraint = database.constraint().unwrap_or_default().to_owned();
        // Classes and codes of PostgreSQL's Appendix A, "PostgreSQL Error Codes".
        match code.as_str() {
            "23505" => Self::AlreadyExists { constraint },
            "23503" => Self::Referenced { constraint },
            "23514" | "23502" => Self::Invalid { constraint },
            code if code.starts_with("22") => Self::Invalid { constraint: "its type".to_owned() },
            "40001" | "40P01" | "55P03" => Self::Conflict,
            // Our own, raised by the ledger's functions.
            "RM001" => Self::EpochChanged,
            "RM002" => Self::InstanceLost,
            "57014" => Self::Timeout { source: Box::new(error) },
            // A database or role that does not exist (yet), a server that has turned read-only, a session that was ended
            // for idling in a transaction.
            "3D000" | "28000" | "28P01" | "25006" | "25P03" => Self::Unavailable { source: Box::new(error) },
            // Dropped connections; a full disk, memory or connection table; shutdown, recovery and start; faults of the
            // system below. All of it passes, and none of it says anything about the statement.
            code if ["08", "53", "57P", "58"].iter().any(|class| code.starts_with(class)) => {
                Self::Unavailable { source: Box::new(error) }
            }
            _ => Self::Unexpected { source: Box::new(error) },
        }
    }
}

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The server is too old.
    #[error("PostgreSQL 14 or newer is needed; this server is {found}")]
    ServerTooOld {
        /// Its version.
        found: String,
    },
    /// pgvector is missing.
    #[error(
        "the extension vector (pgvector 0.8 or newer) is not installed in this database; as a superuser run: \
         CREATE EXTENSION vector"
    )]
    ExtensionMissing,
    /// pgvector is too old.
    #[error("pgvector 0.8 or newer is needed, found {found}; as a superuser run: ALTER EXTENSION vector UPDATE")]
    ExtensionTooOld {
        /// Its version.
        found: String,
    },
    /// The role's search path leads elsewhere.
    #[error(
        "the database role works in schema {found}, but DB_SCHEMA says {expected}; as a superuser run: \
         ALTER ROLE … SET search_path = {expected}"
    )]
    WrongSchema {
        /// What `current_schema()` says.
        found: String,
        /// What `DB_SCHEMA` says.
        expected: String,
    },
    /// A migration in the database is not the one this build has under that number.
    #[error("migration {version} in the database is not the one this build was made with")]
    Diverged {
        /// Its number.
        version: i32,
    },
    /// A migration that can only ship whole was not asked for.
    #[error("migration {version} needs a maintenance window: stop the services and run migrate --maintenance")]
    NeedsMaintenance {
        /// Its number.
        version: i32,
    },
    /// The database said no.
    #[error("migration {version} failed")]
    Failed {
        /// Its number; 0 before the first.
        version: i32,
        /// Why.
        source: StoreError,
    },
    /// The database could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}
