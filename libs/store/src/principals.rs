//! Who an API key is, for the edge.

use std::time::Duration;

use domain::{ApiKeyId, KeyHash, KeyKind, ProjectId, Role, Scope, UserId};

use crate::{Store, StoreError};

/// A key as the database knows it, in whatever state it is.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Which key.
    pub key: ApiKeyId,
    /// What it is for.
    pub kind: KeyKind,
    /// The name its owner gave it.
    pub name: String,
    /// Whose it is; none for a project's key.
    pub owner: Option<Owner>,
    /// The project of a project's key.
    pub project: Option<ProjectId>,
    /// The project a person's key uses when the call names none.
    pub default_project: Option<ProjectId>,
    /// What it may be used for; scopes unknown to this build are left out.
    pub scopes: Vec<Scope>,
    /// The routes it may call; `None` for all.
    pub allowed_routes: Option<Vec<String>>,
    /// Whether it was revoked.
    pub revoked: bool,
    /// Whether its time is over.
    pub expired: bool,
    /// Seconds until the key, or the grace of the old secret that was used, ends.
    pub expires_in_seconds: Option<i64>,
    /// The projects a person's key is granted to.
    pub granted: Vec<ProjectId>,
    /// Whether it has limits of its own, beside those of its project.
    pub has_limits: bool,
    /// Whether the key has a budget of money of its own.
    pub has_cost_budget: bool,
}

/// The person a key belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Who.
    pub user: UserId,
    /// Their role now.
    pub role: Role,
    /// Whether they may act at all.
    pub active: bool,
}

/// Whether a key may go on with the calls it has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which key.
    pub key: ApiKeyId,
    /// Whether it was revoked.
    pub revoked: bool,
    /// Whether its time is over.
    pub expired: bool,
    /// Whether it is nobody's or its owner may act.
    pub owner_active: bool,
    /// How long it will be good yet, where it has an end.
    pub expires_in: Option<Duration>,
    /// The projects it may be used for.
    pub projects: Vec<ProjectId>,
    /// What it is for.
    pub kind: KeyKind,
    /// As in [`Principal::scopes`].
    pub scopes: Vec<Scope>,
    /// As in [`Principal::allowed_routes`].
    pub allowed_routes: Option<Vec<String>>,
}

impl Store {
    /// Finds the key with this hash, or whose previous secret has it and is within its grace.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_principal(&self, hash: &KeyHash) -> Result<Option<Principal>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT api_key_id AS "api_key_id!", kind AS "kind!", name AS "name!", owner_user_id, owner_role,
                      owner_active, project_id, default_project_id, scopes AS "scopes!", allowed_routes,
                      revoked AS "revoked!", expired AS "expired!", expires_in_seconds,
                      granted_projects AS "granted_projects!", has_limits AS "has_limits!", has_cost_budget AS "has_cost_budget!"
                 FROM find_principal_v2($1)"#,
            hash.as_bytes().as_slice()
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        // A kind or role that this build does not know belongs to a newer schema: it is not for this build to honour.
        let Some(kind) = KeyKind::parse(&row.kind) else { return Ok(None) };
        let owner = row.owner_user_id.map(|user| Owner {
            user: UserId(user),
            role: row.owner_role.as_deref().and_then(Role::parse).unwrap_or(Role::Viewer),
            active: row.owner_active.unwrap_or(false),
        });
        Ok(Some(Principal {
            key: ApiKeyId(row.api_key_id),
            kind,
            name: row.name,
            owner,
            project: row.project_id.map(ProjectId),
            default_project: row.default_project_id.map(ProjectId),
            scopes: row.scopes.iter().filter_map(|scope| Scope::parse(scope)).collect(),
            allowed_routes: row.allowed_routes,
            revoked: row.revoked,
            expired: row.expired,
            expires_in_seconds: row.expires_in_seconds,
            granted: row.granted_projects.into_iter().map(ProjectId).collect(),
            has_limits: row.has_limits,
            has_cost_budget: row.has_cost_budget,
        }))
    }

    /// How keys stand now, whichever secret their calls began with. One that is gone is left out.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_key_standings(&self, keys: &[ApiKeyId]) -> Result<Vec<Standing>, StoreError> {
        let keys: Vec<i64> = keys.iter().map(|key| key.0).collect();
        let rows = sqlx::query!(
            r#"SELECT api_key_id AS "api_key_id!", kind AS "kind!", revoked AS "revoked!", expired AS "expired!",
                      owner_active AS "owner_active!", expires_in_ms, project_ids AS "project_ids!",
                      scopes AS "scopes!", allowed_routes
                 FROM find_key_standings_v2($1)"#,
            &keys
        )
        .fetch_all(self.pool())
        .await?;
        let standings = rows.into_iter().filter_map(|row| {
            Some(Standing {
                key: ApiKeyId(row.api_key_id),
                // As for principals: one that this build does not know is not for it to honour.
                kind: KeyKind::parse(&row.kind)?,
                revoked: row.revoked,
                expired: row.expired,
                owner_active: row.owner_active,
                expires_in: row.expires_in_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
                projects: row.project_ids.into_iter().map(ProjectId).collect(),
                scopes: row.scopes.iter().filter_map(|scope| Scope::parse(scope)).collect(),
                allowed_routes: row.allowed_routes,
            })
        });
        Ok(standings.collect())
    }
}
