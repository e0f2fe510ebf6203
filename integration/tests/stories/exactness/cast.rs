//! Who calls: projects with a model, prices and a calendar of their own, people's keys with theirs, and who may use which.

use testkit::{ApiKeyId, Cap, ProjectId, Stack, Tier, TierId};

use super::bound::Amount;

/// Of these the first three and their keys are capped as a round's plan says. The last one is not capped at all, except
/// where edges are killed. An edge shares its lanes out by the project's id, so each lane has two of them.
pub(super) const PROJECTS: usize = 4;
pub(super) const KEYS: usize = 3;
pub(super) const CAPPED_PROJECTS: usize = 3;

/// A place in [`Cast`] and in plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Project(usize),
    Key(usize),
}

/// A project and the key that calls in its name; `None` is the project's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) project: usize,
    pub(super) key: Option<usize>,
}

/// Two of the keys call for two projects each, whose calls meet in one lane or come by two.
pub(super) const PARTIES: [Party; 6] = [
    Party { project: 0, key: Some(0) },
    Party { project: 1, key: Some(1) },
    Party { project: 2, key: Some(2) },
    Party { project: 2, key: Some(0) },
    Party { project: 0, key: Some(1) },
    Party { project: 3, key: None },
];

impl Party {
    /// Whether what this one does counts for that one.
    pub(super) fn counts_for(self, who: Who) -> bool {
        match who {
            Who::Project(project) => self.project == project,
            Who::Key(key) => self.key == Some(key),
        }
    }
}

/// What every cap can be set for.
pub(super) fn capped() -> impl Iterator<Item = (Who, Cap)> {
    let projects = (0..CAPPED_PROJECTS).map(Who::Project);
    projects.chain((0..KEYS).map(Who::Key)).flat_map(|who| Cap::ALL.map(|cap| (who, cap)))
}

/// A project as it was made.
pub(super) struct Client {
    pub(super) id: ProjectId,
    pub(super) route: String,
    pub(super) model: String,
    /// Nano-USD for a token, in and out.
    prices: (i64, i64),
    own_key: ApiKeyId,
    own_secret: String,
}

/// All of them.
pub(super) struct Cast {
    pub(super) projects: Vec<Client>,
    pub(super) keys: Vec<(ApiKeyId, String)>,
}

impl Cast {
    pub(super) async fn of(stack: &Stack) -> anyhow::Result<Self> {
        let database = &stack.database;
        let mut projects = Vec::new();
        for (number, zone) in ["America/New_York", "Asia/Tokyo", "UTC", "Australia/Eucla"].into_iter().enumerate() {
            let (route, model) = (format!("chat-{number}"), format!("model-{number}"));
            let connection =
                database.insert_connection(&format!("provider-{number}"), &stack.upstream.base_url(), &model).await?;
            let prices = (150 + 10 * number as i64, 600 + 70 * number as i64);
            database.insert_price(&model, prices.0 * 1_000_000, prices.1 * 1_000_000).await?;
            let id = database.insert_project(&format!("project-{number}"), &format!("time_zone = '{zone}'")).await?;
            database.insert_route(id, &route, connection).await?;
            let (own_key, own_secret) = database.insert_project_key(id).await?;
            let own_secret = own_secret.secret().expose().to_owned();
            projects.push(Client { id, route, model, prices, own_key, own_secret });
        }
        let user = database.insert_user("caller").await?;
        let mut keys = Vec::new();
        for (number, zone) in ["Asia/Kathmandu", "Pacific/Chatham", "UTC"].into_iter().enumerate() {
            let parties = PARTIES.iter().filter(|party| party.key == Some(number));
            let granted: Vec<ProjectId> = parties.map(|party| projects[party.project].id).collect();
            let name = format!("key-{number}");
            let (key, secret) = database.insert_user_key(user, &name, &["chat", "models"], &granted).await?;
            database.change_key(key, &format!("time_zone = '{zone}'")).await?;
            keys.push((key, secret.secret().expose().to_owned()));
        }
        Ok(Self { projects, keys })
    }

    pub(super) fn tier(&self, who: Who) -> TierId {
        match who {
            Who::Project(project) => (Tier::Project, self.projects[project].id.0),
            Who::Key(key) => (Tier::Key, self.keys[key].0.0),
        }
    }

    /// Everybody that counts.
    pub(super) fn tiers(&self) -> Vec<TierId> {
        (0..PROJECTS).map(Who::Project).chain((0..KEYS).map(Who::Key)).map(|who| self.tier(who)).collect()
    }

    pub(super) fn key(&self, party: Party) -> ApiKeyId {
        party.key.map_or(self.projects[party.project].own_key, |key| self.keys[key].0)
    }

    pub(super) fn secret(&self, party: Party) -> &str {
        party.key.map_or(&self.projects[party.project].own_secret, |key| &self.keys[key].1)
    }

    /// So many tokens at the prices of the party's model.
    pub(super) fn amount(&self, party: Party, prompt: i64, completion: i64) -> Amount {
        let (input, output) = self.projects[party.project].prices;
        Amount { tokens: prompt + completion, cost: prompt * input + completion * output }
    }
}
