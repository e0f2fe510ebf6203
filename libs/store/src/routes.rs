//! Routes: the public model names of a project and the connections behind them.

use domain::{ConnectionId, ProjectId, RouteId};

use crate::audit::AuditEntry;
use crate::{Reach, Store, StoreError};

/// A connection behind a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTarget {
    /// Which connection.
    pub connection: ConnectionId,
    /// Its share of its group's calls, relative to the others.
    pub weight: i32,
}

/// What people set of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// The public model name, unique in its project.
    pub name: String,
    /// The most output tokens of a call, `None` for the model's own bound.
    pub max_output: Option<i64>,
    /// The fewest output tokens worth making a call for.
    pub min_output: i64,
    /// The most tokens of passages put into a call.
    pub context_tokens: i64,
    /// Where passages go (`system` or `last_user`), `None` for what suits the model.
    pub context_placement: Option<String>,
    /// Features that cost more than their tokens and are allowed all the same under a budget of money.
    pub allowed_features: Vec<String>,
    /// Whether a request that was sent and not answered in time may be sent again.
    pub replay_timeouts: bool,
    /// Groups in the order they are tried; inside a group a target is chosen by weight.
    pub groups: Vec<Vec<RouteTarget>>,
}

/// A route as stored.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which one.
    pub id: RouteId,
    /// The project it belongs to.
    pub project: ProjectId,
    /// What people set.
    pub settings: RouteSettings,
    /// Counts changes.
    pub revision: i64,
}

/// The targets of a route as columns.
struct Columns {
    groups: Vec<i16>,
    connections: Vec<i64>,
    weights: Vec<i32>,
}

impl Columns {
    fn of(settings: &RouteSettings) -> Self {
        let mut columns = Self { groups: Vec::new(), connections: Vec::new(), weights: Vec::new() };
        for (group, targets) in (0_i16..).zip(&settings.groups) {
            for target in targets {
                columns.groups.push(group);
                columns.connections.push(target.connection.0);
                columns.weights.push(target.weight);
            }
        }
        columns
    }
}

fn groups(numbers: &[i16], connections: &[i64], weights: &[i32]) -> Vec<Vec<RouteTarget>> {
    let mut groups: Vec<Vec<RouteTarget>> = Vec::new();
    let mut last = None;
    for ((number, connection), weight) in numbers.iter().zip(connections).zip(weights) {
        let target = RouteTarget { connection: ConnectionId(*connection), weight: *weight };
        match groups.last_mut() {
            Some(group) if last == Some(number) => group.push(target),
            _ => groups.push(vec![target]),
        }
        last = Some(number);
    }
    groups
}

impl Store {
    /// The routes of a project within reach, by name; one of them when an id is given.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_routes(
        &self,
        reach: Reach,
        project: ProjectId,
        only: Option<RouteId>,
    ) -> Result<Vec<Route>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT r.id, r.name, r.max_output, r.min_output, r.context_tokens, r.context_placement, r.revision,
                      r.allowed_features, r.replay_timeouts,
                      ARRAY(SELECT t.group_number FROM route_targets t WHERE t.route_id = r.id
                             ORDER BY t.group_number, t.connection_id) AS "groups!",
                      ARRAY(SELECT t.connection_id FROM route_targets t WHERE t.route_id = r.id
                             ORDER BY t.group_number, t.connection_id) AS "connections!",
                      ARRAY(SELECT t.weight FROM route_targets t WHERE t.route_id = r.id
                             ORDER BY t.group_number, t.connection_id) AS "weights!"
                 FROM routes r
                WHERE r.project_id = $1 AND can_reach_project($1, $2) AND ($3::bigint IS NULL OR r.id = $3)
                ORDER BY r.name"#,
            project.0,
            reach.member(),
            only.map(|route| route.0)
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Route {
                id: RouteId(row.id),
                project,
                settings: RouteSettings {
                    name: row.name,
                    max_output: row.max_output,
                    min_output: row.min_output,
                    context_tokens: row.context_tokens,
                    context_placement: row.context_placement,
                    allowed_features: row.allowed_features,
                    replay_timeouts: row.replay_timeouts,
                    groups: groups(&row.groups, &row.connections, &row.weights),
                },
                revision: row.revision,
            })
            .collect())
    }

    /// Makes a route of a project within reach.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] for the project, [`StoreError::AlreadyExists`] when it has a route of that name,
    /// [`StoreError::Referenced`] for a connection that does not exist.
    pub async fn create_route(
        &self,
        reach: Reach,
        project: ProjectId,
        settings: &RouteSettings,
        entry: &AuditEntry,
    ) -> Result<RouteId, StoreError> {
        let columns = Columns::of(settings);
        let made = sqlx::query!(
            r#"WITH made AS (
                   INSERT INTO routes (project_id, name, max_output, min_output, context_tokens, context_placement,
                                       allowed_features, replay_timeouts)
                   SELECT id, $3, $4, $5, $6, $7, $12, $13 FROM projects WHERE id = $1 AND can_reach_project(id, $2)
                   RETURNING id),
               targets AS (
                   INSERT INTO route_targets (route_id, group_number, connection_id, weight)
                   SELECT made.id, t.group_number, t.connection_id, t.weight
                     FROM made, unnest($8::smallint[], $9::bigint[], $10::integer[])
                                AS t (group_number, connection_id, weight))
               SELECT id AS "id!", record_change('route', id, $11) AS sequence FROM made"#,
            project.0,
            reach.member(),
            settings.name,
            settings.max_output,
            settings.min_output,
            settings.context_tokens,
            settings.context_placement,
            &columns.groups,
            &columns.connections,
            &columns.weights,
            entry.to_json(),
            &settings.allowed_features,
            settings.replay_timeouts
        )
        .fetch_optional(self.pool())
        .await?;
        made.map(|made| RouteId(made.id)).ok_or(StoreError::NotFound)
    }

    /// Changes a route of a project within reach, all of it.
    ///
    /// # Errors
    /// As for [`Store::create_route`].
    pub async fn update_route(
        &self,
        reach: Reach,
        project: ProjectId,
        id: RouteId,
        settings: &RouteSettings,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let columns = Columns::of(settings);
        let mut transaction = self.begin().await?;
        sqlx::query_scalar!(
            "UPDATE routes
                SET name = $4, max_output = $5, min_output = $6, context_tokens = $7, context_placement = $8,
                    allowed_features = $9, replay_timeouts = $10, revision = revision + 1
              WHERE id = $1 AND project_id = $2 AND can_reach_project($2, $3)
             RETURNING id",
            id.0,
            project.0,
            reach.member(),
            settings.name,
            settings.max_output,
            settings.min_output,
            settings.context_tokens,
            settings.context_placement,
            &settings.allowed_features,
            settings.replay_timeouts
        )
        .fetch_optional(&mut transaction)
        .await?
        .ok_or(StoreError::NotFound)?;
        // Apart from the insert: inside one statement nothing says which of the two comes first.
        sqlx::query!("DELETE FROM route_targets WHERE route_id = $1", id.0).execute(&mut transaction).await?;
        sqlx::query!(
            "INSERT INTO route_targets (route_id, group_number, connection_id, weight)
             SELECT $1, t.group_number, t.connection_id, t.weight
               FROM unnest($2::smallint[], $3::bigint[], $4::integer[]) AS t (group_number, connection_id, weight)",
            id.0,
            &columns.groups,
            &columns.connections,
            &columns.weights
        )
        .execute(&mut transaction)
        .await?;
        sqlx::query_scalar!("SELECT record_change('route', $1, $2)", id.0, entry.to_json())
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes a route of a project within reach. A project whose default it was has none then.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn delete_route(
        &self,
        reach: Reach,
        project: ProjectId,
        id: RouteId,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let deleted = sqlx::query_scalar!(
            "WITH deleted AS (
                 DELETE FROM routes WHERE id = $1 AND project_id = $2 AND can_reach_project($2, $3) RETURNING id)
             SELECT record_change('route', id, $4) + append_config_change('project', $2) FROM deleted",
            id.0,
            project.0,
            reach.member(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        deleted.map(|_| ()).ok_or(StoreError::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_survive_the_way_into_columns_and_back() {
        let target = |connection, weight| RouteTarget { connection: ConnectionId(connection), weight };
        let settings = RouteSettings {
            name: "m".to_owned(),
            max_output: None,
            min_output: 64,
            context_tokens: 3000,
            context_placement: None,
            allowed_features: Vec::new(),
            replay_timeouts: false,
            groups: vec![vec![target(1, 2), target(3, 1)], vec![target(1, 1)]],
        };
        let columns = Columns::of(&settings);
        assert_eq!(groups(&columns.groups, &columns.connections, &columns.weights), settings.groups);
        assert!(groups(&[], &[], &[]).is_empty());
    }
}
