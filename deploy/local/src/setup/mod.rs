//! Sets an installation up through the admin API, as a user would.
//!
//! Every step first looks whether its outcome is there, so a setup that was killed half-way is completed by the next
//! start, and a complete one costs a few requests.

mod answers;
mod api;
mod samples;

use domain::Secret;
use serde::Serialize;
use serde_json::json;
use url::Url;

use self::answers::{Made, Project, Projects, RagStores, Routes, WithKey};
pub(crate) use self::api::Api;
pub(crate) use self::samples::QUESTION;
use crate::installation::Installation;
use crate::models::{Connection, Models};
use crate::ports::Ports;
use crate::state_dir::StateDir;
use crate::terminal::say;

/// The project that is made.
pub(crate) const PROJECT: &str = "demo";

/// What is to be set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) models: Models,
    pub(crate) ports: Ports,
    /// OPENAI_API_KEY.
    pub(crate) openai_key: Option<&'a Secret>,
    /// Whether to load the sample documents.
    pub(crate) samples: bool,
}

/// What there is afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) store: i64,
}

/// Sets everything up that is not there yet, and remembers in the installation what only it can know.
///
/// # Errors
///
/// One sentence about the step that failed.
pub(crate) async fn run(
    api: &Api,
    dir: &StateDir,
    installation: &mut Installation,
    wanted: Wanted<'_>,
) -> anyhow::Result<Done> {
    let is_change = installation.models != Some(wanted.models);
    let chat = wanted.models.chat(wanted.ports, wanted.openai_key);
    let embed = wanted.models.embed(wanted.ports, wanted.openai_key);
    let (chat_id, embed_id) = (connect(api, &chat).await?, connect(api, &embed).await?);
    let project = project(api, dir, installation).await?;
    let store = store(api, project.id, wanted.models.store_name(), embed_id).await?;
    let route = route(api, project.id, chat.model, chat_id).await?;
    choose(api, &project, route, store, is_change).await?;
    if is_change {
        installation.models = Some(wanted.models);
        installation.save(dir)?;
    }
    if wanted.samples && !installation.samples_in.contains(&store) && samples::load(api, store).await? {
        installation.samples_in.insert(store);
        installation.save(dir)?;
    }
    Ok(Done { store })
}

/// A connection as it is made and changed.
#[derive(Serialize)]
struct ConnectionBody<'a> {
    name: &'a str,
    provider_type: &'a str,
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<&'a str>,
}

/// The connection of that name, led to where it has to lead.
async fn connect(api: &Api, wanted: &Connection) -> anyhow::Result<i64> {
    let body = ConnectionBody {
        name: wanted.name,
        provider_type: wanted.provider.as_str(),
        model_name: wanted.model,
        base_url: wanted.base_url.as_deref(),
        api_key: wanted.credential.as_ref().map(Secret::expose),
    };
    let answers::Models { models } = api.get("models").await?;
    let Some(found) = models.into_iter().find(|model| model.name == wanted.name) else {
        say(&format!("connecting {}", wanted.name));
        return Ok(api.post::<Made>("models", &body).await?.id);
    };
    let leads_elsewhere = wanted.base_url.as_deref().is_some_and(|url| !is_same(&found.base_url, url));
    let lacks_credential = found.api_key_masked.is_none() && wanted.credential.is_some();
    if leads_elsewhere || lacks_credential {
        say(&format!("connecting {} anew", wanted.name));
        api.put(&format!("models/{}", found.id), &body).await?;
    }
    Ok(found.id)
}

fn is_same(found: &str, wanted: &str) -> bool {
    let plain = |text: &str| Url::parse(text).map(|url| url.as_str().trim_end_matches('/').to_owned());
    matches!((plain(found), plain(wanted)), (Ok(found), Ok(wanted)) if found == wanted)
}

/// The project. Its key is remembered at the one time that it is shown.
async fn project(api: &Api, dir: &StateDir, installation: &mut Installation) -> anyhow::Result<Project> {
    let Projects { projects } = api.get("projects").await?;
    let Some(found) = projects.into_iter().find(|project| project.name == PROJECT) else {
        // Noted first: a project that is found without this note was made by somebody else.
        installation.project_begun = true;
        installation.project_key = None;
        installation.save(dir)?;
        say(&format!("making the project {PROJECT}"));
        let made = api.post("projects", &json!({ "name": PROJECT })).await?;
        return remember_key(dir, installation, made);
    };
    let is_current =
        |key: &Secret| found.api_key_prefix.as_deref().is_some_and(|prefix| key.expose().starts_with(prefix));
    match &installation.project_key {
        Some(key) if is_current(key) => Ok(found),
        None if installation.project_begun => {
            // The start that made it was killed before it could write the key down.
            let rotated = api.post(&format!("projects/{}/rotate-key", found.id), &json!({})).await?;
            remember_key(dir, installation, rotated)
        }
        Some(_) => {
            say(&format!("the key of the project {PROJECT} was changed since; it is known to whoever changed it"));
            installation.project_key = None;
            installation.project_begun = false;
            installation.save(dir)?;
            Ok(found)
        }
        None => {
            say(&format!("the project {PROJECT} was not made here; its key is known to whoever made it"));
            Ok(found)
        }
    }
}

fn remember_key(dir: &StateDir, installation: &mut Installation, made: WithKey) -> anyhow::Result<Project> {
    installation.project_key = Some(made.api_key);
    installation.save(dir)?;
    Ok(made.project)
}

async fn store(api: &Api, project: i64, name: &str, embed: i64) -> anyhow::Result<i64> {
    let RagStores { rag_stores } = api.get("rag-stores").await?;
    if let Some(found) = rag_stores.iter().find(|store| store.name == name && store.project_id == project) {
        return Ok(found.id);
    }
    say("making the document store");
    let body = json!({ "name": name, "project_id": project, "embedding_connection_id": embed });
    Ok(api.post::<Made>("rag-stores", &body).await?.id)
}

/// The route under the model's own name.
async fn route(api: &Api, project: i64, name: &str, chat: i64) -> anyhow::Result<i64> {
    let path = format!("projects/{project}/routes");
    let Routes { routes } = api.get(&path).await?;
    if let Some(found) = routes.iter().find(|route| route.name == name) {
        return Ok(found.id);
    }
    say(&format!("making the route {name}"));
    let body = json!({ "name": name, "groups": [[{ "connection_id": chat }]] });
    Ok(api.post::<Made>(&path, &body).await?.id)
}

/// The project's default route and store, as they are written.
#[derive(Default, Serialize)]
struct Choice {
    #[serde(skip_serializing_if = "Option::is_none")]
    default_route_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_id: Option<i64>,
}

/// Makes the route and the store the project's own, unless somebody has chosen others since.
async fn choose(api: &Api, project: &Project, route: i64, store: i64, is_change: bool) -> anyhow::Result<()> {
    let other = |found: Option<i64>, wanted: i64| match found {
        None => Some(wanted),
        Some(found) => (is_change && found != wanted).then_some(wanted),
    };
    let choice =
        Choice { default_route_id: other(project.default_route_id, route), store_id: other(project.store_id, store) };
    if choice.default_route_id.is_none() && choice.store_id.is_none() {
        return Ok(());
    }
    api.put(&format!("projects/{}", project.id), &choice).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_however_it_is_written() {
        assert!(is_same("http://127.0.0.1:8770/v1/", "http://127.0.0.1:8770/v1"));
        assert!(!is_same("http://127.0.0.1:8771/v1", "http://127.0.0.1:8770/v1"));
        assert!(!is_same("", "http://127.0.0.1:8770/v1"));
    }
}
