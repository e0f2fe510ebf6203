//! Connections to model providers, with their sealed credentials.

use domain::{ConnectionId, OutputField, Secret};
use serde_json::Value;
use time::OffsetDateTime;
use vault::{OpenError, Place, Vault};

use crate::audit::AuditEntry;
use crate::bounded::Transaction;
use crate::targets::UpstreamTarget;
use crate::{Store, StoreError};

/// What people set of a connection, its credential apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Its name, unique in the installation.
    pub name: String,
    /// The API spoken there.
    pub provider_type: String,
    /// Where that API begins.
    pub base_url: String,
    /// The model's name at the provider.
    pub model_name: String,
    /// How its output is bounded, where that differs from the provider's usual way.
    pub output_field: Option<OutputField>,
}

/// A connection as stored.
#[derive(Clone, Debug)]
pub struct ModelConnection {
    /// Which one.
    pub id: ConnectionId,
    /// What people set.
    pub settings: ConnectionSettings,
    /// The credential, sealed; open it with [`ModelConnection::open_credential`].
    pub credential_sealed: Option<Vec<u8>>,
    /// Counts changes.
    pub revision: i64,
    /// The outcome of the last test.
    pub last_test: Option<Value>,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it was changed.
    pub updated_at: OffsetDateTime,
}

impl ModelConnection {
    /// The credential, if there is one.
    ///
    /// # Errors
    /// [`OpenError`] when it was sealed with a key that the vault does not hold, or for another row.
    pub fn open_credential(&self, vault: &Vault) -> Result<Option<Secret>, OpenError> {
        open(self.id, self.credential_sealed.as_deref(), vault)
    }

    /// The connection as the services that call it know it; `None` for a provider this build does not know.
    #[must_use]
    pub fn target(&self) -> Option<UpstreamTarget> {
        let ConnectionSettings { provider_type, base_url, model_name, .. } = &self.settings;
        let sealed = self.credential_sealed.clone();
        UpstreamTarget::new(self.id.0, provider_type, base_url.clone(), model_name.clone(), sealed)
    }
}

/// What happens to the credential when a connection is changed.
#[derive(Clone, Debug)]
pub enum CredentialChange {
    /// It stays.
    Keep,
    /// It is removed.
    Clear,
    /// It is replaced.
    Set(Secret),
}

/// The place that a connection's credential is sealed for.
fn credential_place(id: ConnectionId) -> Place {
    Place::new("model_connections", id, "credential_sealed")
}

macro_rules! select_connections {
    ($tail:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            Row,
            "SELECT id, name, provider_type, base_url, model_name, output_field, credential_sealed, revision, last_test,
                    created_at, updated_at
               FROM model_connections " + $tail
            $(, $argument)*
        )
    };
}

struct Row {
    id: i64,
    name: String,
    provider_type: String,
    base_url: String,
    model_name: String,
    output_field: Option<String>,
    credential_sealed: Option<Vec<u8>>,
    revision: i64,
    last_test: Option<Value>,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl From<Row> for ModelConnection {
    fn from(row: Row) -> Self {
        Self {
            id: ConnectionId(row.id),
            settings: ConnectionSettings {
                name: row.name,
                provider_type: row.provider_type,
                base_url: row.base_url,
                model_name: row.model_name,
                output_field: row.output_field.map(|name| OutputField::parse(&name).unwrap_or(OutputField::None)),
            },
            credential_sealed: row.credential_sealed,
            revision: row.revision,
            last_test: row.last_test,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl Store {
    /// All connections, by name.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_connections(&self) -> Result<Vec<ModelConnection>, StoreError> {
        let rows = select_connections!("ORDER BY name, id LIMIT 10000").fetch_all(self.pool()).await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// One connection.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_connection(&self, id: ConnectionId) -> Result<Option<ModelConnection>, StoreError> {
        Ok(select_connections!("WHERE id = $1", id.0).fetch_optional(self.pool()).await?.map(Into::into))
    }

    /// Makes a connection. Its credential is sealed for its row before the row can be seen.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken.
    pub async fn create_connection(
        &self,
        settings: &ConnectionSettings,
        credential: Option<&Secret>,
        vault: &Vault,
        entry: &AuditEntry,
    ) -> Result<ConnectionId, StoreError> {
        let mut transaction = self.begin().await?;
        let id = sqlx::query_scalar!(
            "INSERT INTO model_connections (name, provider_type, base_url, model_name, output_field)
             VALUES ($1, $2, $3, $4, $5) RETURNING id",
            settings.name,
            settings.provider_type,
            settings.base_url,
            settings.model_name,
            settings.output_field.map(OutputField::as_str)
        )
        .fetch_one(&mut transaction)
        .await?;
        // The id is part of what the credential is bound to, so it cannot be sealed earlier.
        let sealed = seal(ConnectionId(id), credential, vault)?;
        sqlx::query_scalar!(
            "WITH sealed AS (UPDATE model_connections SET credential_sealed = $2 WHERE id = $1 RETURNING id)
             SELECT record_change('connection', id, $3) FROM sealed",
            id,
            sealed,
            entry.to_json()
        )
        .fetch_one(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(ConnectionId(id))
    }

    /// Changes a connection that still has the given revision, and forgets its last test.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken, [`StoreError::Conflict`] when the connection was changed or
    /// deleted meanwhile, [`StoreError::Referenced`] when it is to have another model and a document store uses it.
    pub async fn update_connection(
        &self,
        id: ConnectionId,
        revision: i64,
        settings: &ConnectionSettings,
        credential: &CredentialChange,
        vault: &Vault,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let (keep, credential) = match credential {
            CredentialChange::Keep => (true, None),
            CredentialChange::Clear => (false, None),
            CredentialChange::Set(secret) => (false, Some(secret)),
        };
        let sealed = seal(id, credential, vault)?;
        let mut transaction = self.begin().await?;
        // Locked in a statement of its own: the next one then sees every store that was made with it.
        let other_model = sqlx::query_scalar!(
            r#"SELECT (model_name <> $3 OR provider_type <> $4) AS "differs!" FROM model_connections
                WHERE id = $1 AND revision = $2 FOR UPDATE"#,
            id.0,
            revision,
            settings.model_name,
            settings.provider_type
        )
        .fetch_optional(&mut transaction)
        .await?
        .ok_or(StoreError::Conflict)?;
        if other_model {
            refuse_if_embedding(&mut transaction, id).await?;
        }
        sqlx::query_scalar!(
            "WITH changed AS (
                 UPDATE model_connections
                    SET name = $2, provider_type = $3, base_url = $4, model_name = $5, output_field = $9,
                        credential_sealed = CASE WHEN $6 THEN credential_sealed ELSE $7 END,
                        revision = revision + 1, last_test = NULL, updated_at = clock_timestamp()
                  WHERE id = $1
                 RETURNING id)
             SELECT record_change('connection', id, $8) FROM changed",
            id.0,
            settings.name,
            settings.provider_type,
            settings.base_url,
            settings.model_name,
            keep,
            sealed,
            entry.to_json(),
            settings.output_field.map(OutputField::as_str)
        )
        .fetch_one(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes a connection, with the embedding revisions that nothing uses any more.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Referenced`] while a route or a store uses it, or vectors that it made are there.
    pub async fn delete_connection(&self, id: ConnectionId, entry: &AuditEntry) -> Result<(), StoreError> {
        let deleted = sqlx::query_scalar!(
            "WITH unused AS (
                 DELETE FROM embedding_revisions r
                  WHERE r.connection_id = $1
                    AND NOT EXISTS (SELECT FROM document_stores s WHERE s.embedding_revision_id = r.id)
                    AND NOT EXISTS (SELECT FROM embedding_switches w WHERE w.embedding_revision_id = r.id)
                    AND NOT EXISTS (SELECT FROM retired_embeddings o WHERE o.embedding_revision_id = r.id)),
             deleted AS (DELETE FROM model_connections WHERE id = $1 RETURNING id)
             SELECT record_change('connection', id, $2) FROM deleted",
            id.0,
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        deleted.map(|_| ()).ok_or(StoreError::NotFound)
    }
}

/// Opens a connection's credential, if it has one.
pub(crate) fn open(id: ConnectionId, sealed: Option<&[u8]>, vault: &Vault) -> Result<Option<Secret>, OpenError> {
    sealed.map(|sealed| vault.open(&credential_place(id), sealed)).transpose()
}

/// Vectors of two models cannot be compared, and those that a store has would not be made anew.
async fn refuse_if_embedding(transaction: &mut Transaction, id: ConnectionId) -> Result<(), StoreError> {
    let used = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM document_stores WHERE embedding_connection_id = $1)
                  OR EXISTS (SELECT FROM embedding_switches WHERE connection_id = $1) AS "used!""#,
        id.0
    )
    .fetch_one(transaction)
    .await?;
    if used {
        return Err(StoreError::Referenced { constraint: "document_stores_embedding_connection_id_fkey".to_owned() });
    }
    Ok(())
}

fn seal(id: ConnectionId, credential: Option<&Secret>, vault: &Vault) -> Result<Option<Vec<u8>>, StoreError> {
    credential
        .map(|secret| vault.seal(&credential_place(id), secret))
        .transpose()
        .map_err(|_| StoreError::Invalid { constraint: "the credential is too long to be sealed".to_owned() })
}
