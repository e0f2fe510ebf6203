//! The admin API as an operator's script would use it.

#![allow(clippy::indexing_slicing, reason = "a JSON value that lacks a member answers null")]

use anyhow::Context;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::wait::eventually;

/// A signed-in administrator.
#[derive(Clone)]
pub struct Admin {
    http: reqwest::Client,
    url: String,
    token: String,
}

/// A project that is ready to be called.
#[derive(Clone, Debug)]
pub struct Project {
    /// Its id.
    pub id: i64,
    /// Its key, `sk-proj-…`.
    pub key: String,
    /// Its store.
    pub store: i64,
    /// Its route `chat`.
    pub route: i64,
}

impl Admin {
    /// Signs in.
    ///
    /// # Errors
    /// When that is refused.
    pub async fn sign_in(http: reqwest::Client, url: &str, user: &str, password: &str) -> anyhow::Result<Self> {
        let mut admin = Self { http, url: format!("{url}/admin/api"), token: String::new() };
        let login = json!({ "username": user, "password": password, "bearer": true });
        let answer = admin.send(Method::POST, "/login", Some(login)).await?;
        admin.token = answer["token"].as_str().context("the login has no token")?.to_owned();
        Ok(admin)
    }

    /// A request that must succeed; the answer's body.
    ///
    /// # Errors
    /// When it does not, with what was answered.
    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let (status, answer) = self.try_send(method.clone(), path, body).await?;
        anyhow::ensure!(status.is_success(), "{method} {path} was answered {status}: {answer}");
        Ok(answer)
    }

    /// A request, whatever the answer; a body that is not JSON is `null`.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        Ok((status, serde_json::from_slice(&answer.bytes().await?).unwrap_or_default()))
    }

    /// Uploads one file; whatever the answer.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn try_upload(&self, store: i64, name: &str, bytes: Vec<u8>) -> anyhow::Result<(StatusCode, Value)> {
        self.try_upload_to(&format!("/rag-stores/{store}/documents"), name, bytes).await
    }

    /// Uploads one file to a path, which may say more about it; whatever the answer.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn try_upload_to(&self, path: &str, name: &str, bytes: Vec<u8>) -> anyhow::Result<(StatusCode, Value)> {
        let part = reqwest::multipart::Part::bytes(bytes).file_name(name.to_owned());
        let form = reqwest::multipart::Form::new().part("file", part);
        let answer =
            self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.token).multipart(form).send().await?;
        let status = answer.status();
        Ok((status, serde_json::from_slice(&answer.bytes().await?).unwrap_or_default()))
    }

    /// Uploads one file that must be taken; its document id.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn upload(&self, store: i64, name: &str, bytes: Vec<u8>) -> anyhow::Result<i64> {
        let (status, answer) = self.try_upload(store, name, bytes).await?;
        anyhow::ensure!(status == StatusCode::ACCEPTED, "the upload was answered {status}: {answer}");
        answer["id"].as_i64().with_context(|| format!("the upload's answer has no id: {answer}"))
    }

    /// Uploads a form of files that must all be taken; what is answered. `query` is that of the URL, with its `?`.
    ///
    /// # Errors
    /// When one is refused.
    pub async fn upload_form(&self, store: i64, query: &str, form: reqwest::multipart::Form) -> anyhow::Result<Value> {
        let url = format!("{}/rag-stores/{store}/documents{query}", self.url);
        let answer = self.http.post(url).bearer_auth(&self.token).multipart(form).send().await?;
        let status = answer.status();
        let answer: Value = serde_json::from_slice(&answer.bytes().await?).unwrap_or_default();
        anyhow::ensure!(status == StatusCode::ACCEPTED, "the upload was answered {status}: {answer}");
        Ok(answer)
    }

    /// A document as the API shows it.
    ///
    /// # Errors
    /// When there is none.
    pub async fn document(&self, id: i64) -> anyhow::Result<Value> {
        self.send(Method::GET, &format!("/documents/{id}"), None).await
    }

    /// Waits until a document is ready or has failed.
    ///
    /// # Errors
    /// When it becomes neither in time.
    pub async fn verdict(&self, id: i64) -> anyhow::Result<Value> {
        eventually("the document is ready or has failed", || async {
            let document = self.document(id).await?;
            Ok(matches!(document["status"].as_str(), Some("ready" | "failed")).then_some(document))
        })
        .await
    }

    /// Waits until a document is ready.
    ///
    /// # Errors
    /// When it fails or does not become so in time.
    pub async fn ready(&self, id: i64) -> anyhow::Result<Value> {
        let document = self.verdict(id).await?;
        anyhow::ensure!(document["status"] == "ready", "the document is not ready: {document}");
        Ok(document)
    }

    pub(super) async fn make_project(&self, name: &str, settings: Value, upstream: &str) -> anyhow::Result<Project> {
        let chat = self.connection(&format!("{name} chat"), "demo-chat", upstream).await?;
        let embed = self.connection(&format!("{name} embed"), "demo-embed", upstream).await?;
        let made = self.send(Method::POST, "/projects", Some(json!({ "name": name }))).await?;
        let id = made["project"]["id"].as_i64().context("the project has no id")?;
        let key = made["api_key"].as_str().context("the project has no key")?.to_owned();
        let store = json!({ "name": format!("{name} store"), "project_id": id, "embedding_connection_id": embed });
        let store = number(&self.send(Method::POST, "/rag-stores", Some(store)).await?)?;
        let route = json!({ "name": "chat", "groups": [[{ "connection_id": chat }]] });
        let route = number(&self.send(Method::POST, &format!("/projects/{id}/routes"), Some(route)).await?)?;
        let attach = json!({ "default_route_id": route, "store_id": store });
        self.send(Method::PATCH, &format!("/projects/{id}"), Some(attach)).await?;
        if settings.as_object().is_some_and(|settings| !settings.is_empty()) {
            self.send(Method::PATCH, &format!("/projects/{id}"), Some(settings)).await?;
        }
        Ok(Project { id, key, store, route })
    }

    async fn connection(&self, name: &str, model: &str, upstream: &str) -> anyhow::Result<i64> {
        let connection = json!({
            "name": name, "provider_type": "custom_openai", "base_url": upstream, "model_name": model,
        });
        number(&self.send(Method::POST, "/models", Some(connection)).await?)
    }
}

fn number(answer: &Value) -> anyhow::Result<i64> {
    answer["id"].as_i64().with_context(|| format!("the answer has no id: {answer}"))
}
