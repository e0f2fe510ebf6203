//! Routes of a project: its public model names and the connections behind them.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod update;

use std::collections::BTreeSet;

use domain::{ConnectionId, ProjectId, RouteId};
use serde::{Deserialize, Serialize};
use store::routes::{Route, RouteSettings, RouteTarget};
use store::{Reach, StoreError};

use super::checks;
use crate::app::App;
use crate::body::nullable;
use crate::error::ApiError;

const MAX_GROUPS: usize = 8;
const MAX_TARGETS: usize = 16;
const MAX_FEATURES: usize = 64;
const MAX_TOKENS: i64 = 10_000_000;

/// A connection behind a route.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    connection_id: ConnectionId,
    #[serde(default = "one")]
    weight: i32,
}

fn one() -> i32 {
    1
}

/// A route, as the API shows it.
#[derive(Serialize)]
pub(crate) struct View {
    id: RouteId,
    project_id: ProjectId,
    name: String,
    max_output: Option<i64>,
    min_output: i64,
    context_tokens: i64,
    context_placement: Option<String>,
    allowed_features: Vec<String>,
    replay_timeouts: bool,
    /// Tried in order; inside a group a connection is chosen by weight.
    groups: Vec<Vec<Target>>,
    revision: i64,
}

impl From<Route> for View {
    fn from(route: Route) -> Self {
        let settings = route.settings;
        let target = |target: RouteTarget| Target { connection_id: target.connection, weight: target.weight };
        Self {
            id: route.id,
            project_id: route.project,
            name: settings.name,
            max_output: settings.max_output,
            min_output: settings.min_output,
            context_tokens: settings.context_tokens,
            context_placement: settings.context_placement,
            allowed_features: settings.allowed_features,
            replay_timeouts: settings.replay_timeouts,
            groups: settings.groups.into_iter().map(|group| group.into_iter().map(target).collect()).collect(),
            revision: route.revision,
        }
    }
}

/// The members that people may set, in a new route and in a change alike.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Changes {
    name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    max_output: Option<Option<i64>>,
    min_output: Option<i64>,
    context_tokens: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    context_placement: Option<Option<String>>,
    allowed_features: Option<Vec<String>>,
    replay_timeouts: Option<bool>,
    groups: Option<Vec<Vec<Target>>>,
}

impl Changes {
    /// The settings after the changes, checked.
    fn apply(self, now: RouteSettings) -> Result<RouteSettings, ApiError> {
        let max_output = self.max_output.unwrap_or(now.max_output);
        let context_placement = self.context_placement.unwrap_or(now.context_placement);
        if !matches!(context_placement.as_deref(), None | Some("system" | "last_user")) {
            return Err(ApiError::invalid("context_placement: expected system, last_user or null"));
        }
        let min_output = self.min_output.unwrap_or(now.min_output);
        let context_tokens = self.context_tokens.unwrap_or(now.context_tokens);
        Ok(RouteSettings {
            name: checks::model_name("name", self.name.as_deref().unwrap_or(&now.name))?,
            max_output: max_output.map(|tokens| checks::within("max_output", tokens, 1, MAX_TOKENS)).transpose()?,
            min_output: checks::within("min_output", min_output, 1, max_output.unwrap_or(MAX_TOKENS))?,
            context_tokens: checks::within("context_tokens", context_tokens, 0, MAX_TOKENS)?,
            context_placement,
            allowed_features: features(self.allowed_features.unwrap_or(now.allowed_features))?,
            replay_timeouts: self.replay_timeouts.unwrap_or(now.replay_timeouts),
            groups: match self.groups {
                Some(groups) => checked(groups)?,
                None => now.groups,
            },
        })
    }
}

/// Names of features, each once.
fn features(names: Vec<String>) -> Result<Vec<String>, ApiError> {
    let is_name = |name: &String| {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.');
        (1..=64).contains(&name.len()) && name.bytes().all(known)
    };
    if names.len() > MAX_FEATURES || !names.iter().all(is_name) {
        return Err(ApiError::invalid(format!(
            "allowed_features: expected up to {MAX_FEATURES} names such as service_tier or web_search"
        )));
    }
    Ok(names.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
}

fn checked(groups: Vec<Vec<Target>>) -> Result<Vec<Vec<RouteTarget>>, ApiError> {
    let sizes = groups.iter().map(Vec::len);
    if !(1..=MAX_GROUPS).contains(&groups.len()) || sizes.clone().any(|size| !(1..=MAX_TARGETS).contains(&size)) {
        return Err(ApiError::invalid(format!(
            "groups: expected 1 to {MAX_GROUPS} groups of 1 to {MAX_TARGETS} connections"
        )));
    }
    for group in &groups {
        let connections: BTreeSet<ConnectionId> = group.iter().map(|target| target.connection_id).collect();
        if connections.len() < group.len() {
            return Err(ApiError::invalid("groups: a connection is in one group twice"));
        }
        for target in group {
            checks::within("groups: weight", target.weight, 1, 1_000_000)?;
        }
    }
    let target = |target: Target| RouteTarget { connection: target.connection_id, weight: target.weight };
    Ok(groups.into_iter().map(|group| group.into_iter().map(target).collect()).collect())
}

/// Refuses a route that leads to connections which rerank and to others: no call could go to both.
async fn check_kinds(app: &App, groups: &[Vec<RouteTarget>]) -> Result<(), ApiError> {
    let connections: BTreeSet<ConnectionId> = groups.iter().flatten().map(|target| target.connection).collect();
    let mut rerank = BTreeSet::new();
    for connection in connections {
        // One that does not exist is refused when it is written.
        if let Some(target) = app.store.find_connection(connection).await?.and_then(|found| found.target()) {
            rerank.insert(target.provider.reranks());
        }
    }
    if rerank.len() > 1 {
        return Err(ApiError::invalid("groups: a connection that reranks cannot stand beside one that does not"));
    }
    Ok(())
}

/// One route within reach, or the error that there is none.
async fn read(app: &App, reach: Reach, project: ProjectId, id: RouteId) -> Result<Route, ApiError> {
    app.store.list_routes(reach, project, Some(id)).await?.pop().ok_or(ApiError::NotFound)
}

/// What a write that refers to a connection which is not there means here.
fn unknown_connection(error: StoreError) -> ApiError {
    match error {
        StoreError::Referenced { .. } => ApiError::invalid("groups: there is no such connection"),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(text: &str) -> Result<RouteSettings, String> {
        let changes: Changes = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let now = RouteSettings {
            name: "now".to_owned(),
            max_output: Some(100),
            min_output: 64,
            context_tokens: 3000,
            context_placement: Some("system".to_owned()),
            allowed_features: vec!["audio".to_owned()],
            replay_timeouts: true,
            groups: vec![vec![RouteTarget { connection: ConnectionId(1), weight: 1 }]],
        };
        changes.apply(now).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_stays_and_null_takes_away() {
        let kept = apply("{}").unwrap();
        assert_eq!((kept.name.as_str(), kept.max_output), ("now", Some(100)));
        let changed =
            apply(r#"{"max_output":null,"context_placement":null,"groups":[[{"connection_id":2}]]}"#).unwrap();
        assert_eq!((changed.max_output, changed.context_placement), (None, None));
        assert_eq!(changed.allowed_features, ["audio"]);
        assert!(changed.replay_timeouts && !apply(r#"{"replay_timeouts":false}"#).unwrap().replay_timeouts);
        let changed_features = apply(r#"{"allowed_features":["web_search","audio","web_search"]}"#).unwrap();
        assert_eq!(changed_features.allowed_features, ["audio", "web_search"]);
        assert_eq!(changed.groups, [[RouteTarget { connection: ConnectionId(2), weight: 1 }]]);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (body, member) in [
            (r#"{"name":"a b"}"#, "name"),
            (r#"{"max_output":0}"#, "max_output"),
            (r#"{"min_output":101}"#, "min_output"),
            (r#"{"context_placement":"top"}"#, "context_placement"),
            (r#"{"allowed_features":["a b"]}"#, "allowed_features"),
            (r#"{"allowed_features":[""]}"#, "allowed_features"),
            (r#"{"groups":[]}"#, "groups"),
            (r#"{"groups":[[]]}"#, "groups"),
            (r#"{"groups":[[{"connection_id":1},{"connection_id":1}]]}"#, "twice"),
            (r#"{"groups":[[{"connection_id":1,"weight":0}]]}"#, "weight"),
            (r#"{"grups":[]}"#, "grups"),
        ] {
            let refused = apply(body).unwrap_err();
            assert!(refused.contains(member), "{body}: {refused}");
        }
    }
}
