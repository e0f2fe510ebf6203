//! What models cost.

use crate::audit::AuditEntry;
use crate::{Store, StoreError};

/// One row of the price table, in nano-USD per million tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrice {
    /// The provider's type.
    pub provider_type: String,
    /// A model's name, or a prefix of names before a `*`.
    pub model_pattern: String,
    /// Prompt tokens.
    pub input: i64,
    /// Completion tokens.
    pub output: i64,
    /// Prompt tokens read from the provider's cache; `None` for the input price.
    pub cache_read: Option<i64>,
    /// Prompt tokens written to the provider's cache; `None` for the input price.
    pub cache_write: Option<i64>,
    /// Whether it ships with the product.
    pub builtin: bool,
}

impl Store {
    /// All prices.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_model_prices(&self) -> Result<Vec<ModelPrice>, StoreError> {
        Ok(sqlx::query_as!(
            ModelPrice,
            r#"SELECT provider_type, model_pattern, input, output, cache_read, cache_write,
                      source = 'builtin' AS "builtin!"
                 FROM model_prices ORDER BY id"#
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Adds a price of the installation's own, or replaces the one of the same provider and pattern, whoever made it.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a negative price.
    pub async fn set_model_price(&self, price: &ModelPrice, entry: &AuditEntry) -> Result<(), StoreError> {
        sqlx::query!(
            "WITH kept AS (
                 INSERT INTO model_prices AS p (provider_type, model_pattern, input, output, cache_read, cache_write)
                 VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (provider_type, model_pattern) DO UPDATE
                    SET input = excluded.input, output = excluded.output, cache_read = excluded.cache_read,
                        cache_write = excluded.cache_write, source = 'user'
                 RETURNING id)
             SELECT record_change('price', id, $7) FROM kept",
            price.provider_type,
            price.model_pattern,
            price.input,
            price.output,
            price.cache_read,
            price.cache_write,
            entry.to_json()
        )
        .fetch_one(self.pool())
        .await?;
        Ok(())
    }
}
