//! One call of a client, and what it came to know.

use anyhow::Context;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::plan::{Caller, Leave};

/// A call that is about to be made.
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) caller: Caller,
    pub(super) url: String,
    pub(super) secret: String,
    /// The project it says it is for.
    pub(super) project: String,
    pub(super) route: String,
}

/// A call that is over.
pub(super) struct Over {
    pub(super) number: i64,
    pub(super) caller: Caller,
    pub(super) outcome: Outcome,
}

/// How a call ended for its client.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// The whole answer, and the prompt and completion tokens it says it took.
    Served(Option<(i64, i64)>),
    /// An answer that the provider broke off.
    CutShort,
    /// The client left, after the answer's head or before it.
    Left {
        began: bool,
    },
    Denied(Denial),
    /// The connection broke.
    Broken(String),
    /// Anything else.
    Failed(String),
}

/// A denial as it is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Denial {
    pub(super) code: String,
    pub(super) scope: String,
    pub(super) cap: i64,
    pub(super) used: i64,
    pub(super) held: i64,
}

/// The number in the prompt of a call, which every call has at the same length.
pub(super) fn number_in(body: &Value) -> Option<i64> {
    let text = body["messages"][0]["content"].as_str()?;
    text.strip_prefix("Call ")?.get(..9)?.parse().ok()
}

impl Call {
    pub(super) async fn make(self, http: &Client) -> Over {
        let (number, caller) = (self.number, self.caller);
        Over { number, caller, outcome: self.send(http).await }
    }

    async fn send(self, http: &Client) -> Outcome {
        let caller = self.caller;
        let padding = " and then".repeat(caller.padding);
        let mut body = json!({
            "model": self.route,
            "max_tokens": caller.output,
            "messages": [{ "role": "user", "content": format!("Call {:09}: what is new{padding}?", self.number) }],
        });
        if caller.streamed {
            body["stream"] = json!(true);
        }
        let request = http
            .post(format!("{}/chat/completions", self.url))
            .bearer_auth(&self.secret)
            .header("x-ragmux-project", &self.project)
            .header("x-ragmux-tags", format!("call={}", self.number))
            .json(&body)
            .send();
        let answer = match caller.leave {
            Leave::Before(time) => match timeout(time, request).await {
                Ok(answer) => answer,
                Err(_) => return Outcome::Left { began: false },
            },
            _ => request.await,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Outcome::Broken(format!("{error:?}")),
        };
        let limit = match caller.leave {
            Leave::At(bytes) if answer.status() == StatusCode::OK => Some(bytes),
            _ => None,
        };
        read(answer, caller.streamed, limit).await.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
    }
}

async fn read(mut answer: Response, streamed: bool, leave_at: Option<usize>) -> anyhow::Result<Outcome> {
    let status = answer.status();
    let mut bytes = Vec::new();
    loop {
        if leave_at.is_some_and(|limit| bytes.len() >= limit) {
            return Ok(Outcome::Left { began: true });
        }
        match answer.chunk().await {
            Ok(Some(more)) => bytes.extend_from_slice(&more),
            Ok(None) => break,
            Err(error) => return Ok(Outcome::Broken(format!("{error:?}"))),
        }
    }
    let text = String::from_utf8(bytes)?;
    if status != StatusCode::OK {
        return denial(status, &text);
    }
    if streamed {
        let is_whole = text.trim_end().ends_with("data: [DONE]");
        return Ok(if is_whole { Outcome::Served(None) } else { Outcome::CutShort });
    }
    let body: Value = serde_json::from_str(&text)?;
    let told = |name: &str| body["usage"][name].as_i64().with_context(|| format!("an answer without {name}"));
    Ok(Outcome::Served(Some((told("prompt_tokens")?, told("completion_tokens")?))))
}

fn denial(status: StatusCode, text: &str) -> anyhow::Result<Outcome> {
    if status != StatusCode::TOO_MANY_REQUESTS {
        return Ok(Outcome::Failed(format!("{status}: {text}")));
    }
    let body: Value = serde_json::from_str(text)?;
    let error = &body["error"];
    let code = error["code"].as_str().context("a denial without a code")?.to_owned();
    let amount = |name: &str| {
        let amount = &error[name];
        // Money is told in US dollars.
        let nano = code.starts_with("cost_").then(|| amount.as_f64().map(|dollars| (dollars * 1e9).round() as i64));
        nano.unwrap_or_else(|| amount.as_i64()).with_context(|| format!("a denial without {name}: {text}"))
    };
    let (cap, used, held) = (amount("cap")?, amount("used")?, amount("held")?);
    let scope = error["scope"].as_str().context("a denial without a scope")?.to_owned();
    let kind = if code.starts_with("rate_") || code.starts_with("conc") {
        "rate_limit_exceeded"
    } else {
        "insufficient_quota"
    };
    anyhow::ensure!(error["type"] == kind, "a denial of another type: {text}");
    Ok(Outcome::Denied(Denial { code, scope, cap, used, held }))
}
