//! The admin API, spoken by a client that has signed in.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use domain::Secret;
use reqwest::multipart::{Form, Part};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use super::answers::{Document, Login, Refusal};
use crate::installation::Installation;

/// Making a store asks the embedding provider for the width of its vectors.
const PATIENCE: Duration = Duration::from_secs(90);

/// A session of the administrator.
pub(crate) struct Api {
    http: reqwest::Client,
    base: String,
    token: Secret,
}

impl Api {
    /// Signs in.
    ///
    /// # Errors
    ///
    /// One sentence, with what to do when the login is refused.
    pub(crate) async fn sign_in(
        http: reqwest::Client,
        admin_url: &str,
        installation: &Installation,
    ) -> anyhow::Result<Self> {
        let base = format!("{admin_url}/admin/api");
        let body = json!({
            "username": installation.admin_user,
            "password": installation.admin_password.expose(),
            "bearer": true,
        });
        let answer = http.post(format!("{base}/login")).json(&body).timeout(PATIENCE).send().await;
        let answer = answer.context("the admin API does not answer")?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            return Err(anyhow!(
                "the login of {} that this state folder remembers is refused by the database; set ADMIN_USER and \
                 ADMIN_PASSWORD to one that it knows",
                installation.admin_user
            ));
        }
        let Login { token } = read(answer, "login").await?;
        Ok(Self { http, base, token })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(self.request(Method::GET, path), path).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.send(self.request(Method::POST, path).json(body), path).await
    }

    pub(crate) async fn put(&self, path: &str, body: &impl Serialize) -> anyhow::Result<()> {
        let IgnoredAny = self.send(self.request(Method::PUT, path).json(body), path).await?;
        Ok(())
    }

    /// Sends one file to a document store.
    pub(crate) async fn upload(
        &self,
        store: i64,
        name: &'static str,
        bytes: &'static [u8],
    ) -> anyhow::Result<Document> {
        let path = format!("rag-stores/{store}/documents");
        let form = Form::new().part("file", Part::bytes(bytes).file_name(name));
        self.send(self.request(Method::POST, &path).multipart(form), &path).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/{path}", self.base));
        request.bearer_auth(self.token.expose()).timeout(PATIENCE)
    }

    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder, path: &str) -> anyhow::Result<T> {
        let answer = request.send().await.with_context(|| format!("the admin API does not answer ({path})"))?;
        read(answer, path).await
    }
}

/// The body of an answer, or what the API says is wrong.
async fn read<T: DeserializeOwned>(answer: Response, path: &str) -> anyhow::Result<T> {
    let status = answer.status();
    let text = answer.text().await.with_context(|| format!("the answer of the admin API broke off ({path})"))?;
    if status.is_success() {
        return serde_json::from_str(&text)
            .with_context(|| format!("the admin API's answer is not understood ({path})"));
    }
    let message = serde_json::from_str(&text).map_or(text, |refusal: Refusal| refusal.error.message);
    Err(anyhow!("the setup failed: the admin API says {} to {path}: {message}", status.as_u16()))
}
