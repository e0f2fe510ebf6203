//! What the admin API answers, as far as the setup reads it.

use domain::Secret;
use serde::{Deserialize, Deserializer};

/// `POST /login`.
#[derive(Deserialize)]
pub(crate) struct Login {
    #[serde(deserialize_with = "secret")]
    pub(crate) token: Secret,
}

/// Anything that was made.
#[derive(Deserialize)]
pub(crate) struct Made {
    pub(crate) id: i64,
}

/// `GET /models`.
#[derive(Deserialize)]
pub(crate) struct Models {
    pub(crate) models: Vec<Model>,
}

#[derive(Deserialize)]
pub(crate) struct Model {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) base_url: String,
    /// `null` without a credential.
    pub(crate) api_key_masked: Option<String>,
}

/// `GET /projects`.
#[derive(Deserialize)]
pub(crate) struct Projects {
    pub(crate) projects: Vec<Project>,
}

#[derive(Deserialize)]
pub(crate) struct Project {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) default_route_id: Option<i64>,
    pub(crate) store_id: Option<i64>,
    pub(crate) api_key_prefix: Option<String>,
}

/// `POST /projects` and `POST /projects/{id}/rotate-key`.
#[derive(Deserialize)]
pub(crate) struct WithKey {
    pub(crate) project: Project,
    #[serde(deserialize_with = "secret")]
    pub(crate) api_key: Secret,
}

/// `GET /rag-stores`.
#[derive(Deserialize)]
pub(crate) struct RagStores {
    pub(crate) rag_stores: Vec<RagStore>,
}

#[derive(Deserialize)]
pub(crate) struct RagStore {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) project_id: i64,
}

/// `GET /projects/{id}/routes`.
#[derive(Deserialize)]
pub(crate) struct Routes {
    pub(crate) routes: Vec<Route>,
}

#[derive(Deserialize)]
pub(crate) struct Route {
    pub(crate) id: i64,
    pub(crate) name: String,
}

/// `GET /documents/{id}`.
#[derive(Clone, Default, Deserialize)]
pub(crate) struct Document {
    pub(crate) id: i64,
    pub(crate) status: String,
    pub(crate) stage: Option<String>,
    pub(crate) chunk_count: i64,
    pub(crate) page_count: Option<i64>,
    pub(crate) error: Option<Failure>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: Option<String>,
}

/// Any failure.
#[derive(Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: Told,
}

#[derive(Deserialize)]
pub(crate) struct Told {
    pub(crate) message: String,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Secret::new)
}
