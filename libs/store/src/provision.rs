//! Preparing an empty database: the extension and the three roles, as the deployment's SQL does it.

use domain::Secret;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use url::Url;

use crate::StoreError;

const ROLES: &str = include_str!("../../../deploy/postgres/roles.sql");

/// URLs of one database for the three roles.
#[derive(Clone, Debug)]
pub struct RoleUrls {
    /// For migrations.
    pub owner: Secret,
    /// For the edge.
    pub edge: Secret,
    /// For admin and worker.
    pub backend: Secret,
}

/// Makes the database if it is missing, then the extension and the roles, and sets the roles' password. Running it again
/// changes nothing but the password.
///
/// `superuser` is a URL of any database of the server; `password` consists of letters and digits.
///
/// # Errors
/// [`StoreError::Invalid`] for a name or password with other characters; otherwise as for any statement.
pub async fn provision(superuser: &Secret, database: &str, password: &Secret) -> Result<RoleUrls, StoreError> {
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !plain(database) || !plain(password.expose()) {
        return Err(StoreError::Invalid { constraint: "names and passwords are letters and digits".to_owned() });
    }
    let options: PgConnectOptions = superuser.expose().parse()?;
    let mut server = options.clone().disable_statement_logging().connect().await?;
    let exists =
        sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1) AS "exists!""#, database)
            .fetch_one(&mut server)
            .await?;
    if !exists {
        let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE \"{database}\""))).execute(&mut server).await;
        match made.map_err(StoreError::from) {
            // Somebody else was faster.
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    server.close().await?;

    let mut inside = options.database(database).disable_statement_logging().connect().await?;
    sqlx::raw_sql(ROLES).execute(&mut inside).await?;
    for role in ["ragmux_owner", "ragmux_edge", "ragmux_backend"] {
        let statement = format!("ALTER ROLE {role} PASSWORD '{}'", password.expose());
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut inside).await?;
    }
    inside.close().await?;
    role_urls(superuser, database, password)
}

/// Makes the extension in the database behind the URL if the role may; when it may not, the check that comes before any
/// migration says what is missing and who can make it.
///
/// # Errors
/// When the database cannot be asked at all.
pub async fn offer_extension(url: &Secret) -> Result<(), StoreError> {
    let options: PgConnectOptions = url.expose().parse()?;
    let mut database = options.disable_statement_logging().connect().await?;
    let made = sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS vector").execute(&mut database).await;
    // A close that fails changes nothing about what was committed.
    let _ = database.close().await;
    match made.map_err(StoreError::from) {
        Err(error) if error.is_transient() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The three URLs, for a database that is provisioned already.
///
/// # Errors
/// [`StoreError::Invalid`] when the superuser's URL cannot carry another user.
pub fn role_urls(superuser: &Secret, database: &str, password: &Secret) -> Result<RoleUrls, StoreError> {
    let url_of = |role: &str| {
        let invalid = || StoreError::Invalid { constraint: "the database URL".to_owned() };
        let mut url = Url::parse(superuser.expose()).map_err(|_| invalid())?;
        url.set_username(role).map_err(|()| invalid())?;
        url.set_password(Some(password.expose())).map_err(|()| invalid())?;
        url.set_path(database);
        Ok::<_, StoreError>(Secret::new(url))
    };
    Ok(RoleUrls { owner: url_of("ragmux_owner")?, edge: url_of("ragmux_edge")?, backend: url_of("ragmux_backend")? })
}
