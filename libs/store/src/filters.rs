//! The documents that a filter leaves.
//!
//! The statement is put together at run time from the fixed parts below; what comes from outside, the names of members
//! included, is a parameter.

use std::collections::HashMap;
use std::time::Duration;

use domain::{Condition, DocumentFilter, DocumentId, Requirement, Scalar, Side, StoreId};
use sqlx::{Postgres, QueryBuilder};

use crate::{Store, StoreError};

/// The documents of a store that a filter leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Within {
    /// Which, in ascending order.
    pub documents: Vec<DocumentId>,
    /// How many chunks are live in them.
    pub chunks: i64,
}

impl Within {
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.documents.iter().map(|document| document.0).collect()
    }
}

impl Store {
    /// The documents of a store that can be found and that a filter leaves.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] past the deadline; otherwise as for any statement.
    pub async fn list_documents_within(
        &self,
        store: StoreId,
        filter: &DocumentFilter,
        deadline: Duration,
    ) -> Result<Within, StoreError> {
        let mut transaction = self.begin_within(deadline).await?;
        let rows: Vec<(i64, i32)> = statement(store, filter).build_query_as().fetch_all(&mut transaction).await?;
        transaction.commit().await?;
        Ok(Within {
            chunks: rows.iter().map(|(_, chunks)| i64::from(*chunks)).sum(),
            documents: rows.into_iter().map(|(id, _)| DocumentId(id)).collect(),
        })
    }

    /// What a filter leaves of segments of a store's lexical index, by segment. Those of which it leaves nothing are not
    /// among them.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_segment_parts(
        &self,
        store: StoreId,
        segments: &[i64],
        within: &Within,
    ) -> Result<HashMap<i64, SegmentPart>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT p.id AS "id!", s.id IS NULL AS "moved!",
                      CASE WHEN s.chunk_ids IS NOT NULL THEN
                          ARRAY(SELECT (n.place - 1)::int
                                  FROM unnest(s.chunk_ids) WITH ORDINALITY n (chunk, place)
                                       JOIN chunks c ON c.id = n.chunk
                                 WHERE c.document_id = ANY ($3) ORDER BY n.place) END AS places
                 FROM unnest($2::bigint[]) p (id)
                      LEFT JOIN posting_segments s ON s.id = p.id AND s.store_id = $1
                WHERE s.id IS NULL OR s.document_id IS NULL OR s.document_id = ANY ($3)"#,
            store.0,
            segments,
            &within.ids()
        )
        .fetch_all(self.pool())
        .await?;
        let part = |moved, places: Option<Vec<i32>>| match places {
            _ if moved => SegmentPart::Moved,
            Some(places) => SegmentPart::Places(places),
            None => SegmentPart::Whole,
        };
        Ok(rows.into_iter().map(|row| (row.id, part(row.moved, row.places))).collect())
    }
}

/// What a filter leaves of a segment of the lexical index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentPart {
    /// All of it.
    Whole,
    /// The chunks at these ordinals, which ascend.
    Places(Vec<i32>),
    /// The segment is not there any more.
    Moved,
}

fn statement(store: StoreId, filter: &DocumentFilter) -> QueryBuilder<Postgres> {
    let mut sql = QueryBuilder::new(
        "SELECT d.id, d.chunk_count FROM documents d WHERE d.live_version IS NOT NULL AND d.store_id = ",
    );
    sql.push_bind(store.0);
    if !filter.documents.is_empty() {
        let ids: Vec<i64> = filter.documents.iter().map(|document| document.0).collect();
        sql.push(" AND d.id = ANY (").push_bind(ids).push(")");
    }
    if !filter.any_tag.is_empty() {
        sql.push(" AND (d.metadata -> 'tags') ?| ").push_bind(filter.any_tag.clone());
    }
    if !filter.all_tags.is_empty() {
        sql.push(" AND (d.metadata -> 'tags') ?& ").push_bind(filter.all_tags.clone());
    }
    for Condition { key, test } in &filter.metadata {
        match test {
            Requirement::OneOf(values) => one_of(&mut sql, key, values),
            Requirement::Exists(true) => {
                sql.push(" AND d.metadata ? ").push_bind(key.clone());
            }
            Requirement::Exists(false) => {
                sql.push(" AND NOT d.metadata ? ").push_bind(key.clone());
            }
            Requirement::Prefix(text) => {
                of_kind(&mut sql, key, "string");
                sql.push("starts_with(d.metadata ->> ").push_bind(key.clone()).push(", ").push_bind(text.clone());
                sql.push(") ELSE false END");
            }
            Requirement::Bound(side, bound) => bounded(&mut sql, key, *side, bound),
        }
    }
    sql.push(" ORDER BY d.id");
    sql
}

/// Containment is equality for a single value, and being an element for a list.
fn one_of(sql: &mut QueryBuilder<Postgres>, key: &str, values: &[Scalar]) {
    let values: Vec<String> = values.iter().map(json).collect();
    sql.push(" AND (d.metadata -> ").push_bind(key.to_owned()).push(") @> ANY (").push_bind(values);
    sql.push("::text[]::jsonb[])");
}

fn bounded(sql: &mut QueryBuilder<Postgres>, key: &str, side: Side, bound: &Scalar) {
    let sign = match side {
        Side::Above => " > ",
        Side::From => " >= ",
        Side::Below => " < ",
        Side::UpTo => " <= ",
    };
    if let Scalar::Text(text) = bound {
        of_kind(sql, key, "string");
        sql.push("(d.metadata ->> ").push_bind(key.to_owned()).push(") COLLATE \"C\"").push(sign);
        sql.push_bind(text.clone());
    } else {
        of_kind(sql, key, "number");
        sql.push("(d.metadata ->> ").push_bind(key.to_owned()).push(")::numeric").push(sign);
        sql.push_bind(json(bound)).push("::text::numeric");
    }
    sql.push(" ELSE false END");
}

/// Opens a condition that holds only for members of a kind, which decides before the value is read as that.
fn of_kind(sql: &mut QueryBuilder<Postgres>, key: &str, kind: &'static str) {
    sql.push(" AND CASE WHEN jsonb_typeof(d.metadata -> ").push_bind(key.to_owned());
    sql.push(") = '").push(kind).push("' THEN ");
}

fn json(value: &Scalar) -> String {
    // A text, a number or a truth value always has a form.
    serde_json::to_string(value).unwrap_or_default()
}
