//! `POST /v1/retrieve`.

use std::borrow::Cow;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use domain::{DocumentFilter, FilterError, PriceSnapshot, RequestId};
use ledger::{Ending, PriceSource};
use providers::{RequestError, check_body, text_at};
use retrieval::{Explained, Hit, Plan as Legs};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::admission::{Admitted, Claim, Model, Tags, admit, overruled_by_now, settle_as, settle_ended, settle_unsent};
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::grounding::{Plan, Source};
use crate::json;
use crate::routes::request_id::Arrival;
use crate::state::Shared;

/// The most passages that can be asked for.
const MOST: usize = 100;
const TOP_K: &str = "a whole number from 1 to 100";

/// A question to the project's store.
#[derive(Debug)]
struct Question<'a> {
    query: Cow<'a, str>,
    top_k: Option<usize>,
    filter: Option<DocumentFilter>,
    explain: bool,
    metadata: Option<&'a RawValue>,
    user: Option<Cow<'a, str>>,
}

/// The same as it is sent.
#[derive(Debug, Deserialize)]
struct Sent<'a> {
    #[serde(borrow)]
    query: Option<&'a RawValue>,
    top_k: Option<&'a RawValue>,
    filter: Option<Value>,
    /// Whether it is told how the passages were found.
    explain: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    user: Option<&'a RawValue>,
}

/// The passages that answer it best.
#[derive(Serialize)]
struct Passages<'a> {
    object: &'static str,
    data: Vec<Passage<'a>>,
    /// Parts of the search that failed and were left out.
    degraded: &'a [&'static str],
    /// Whether every vector was compared with the question, and not only those that an index led to.
    exhaustive: bool,
    /// Which legs searched and why, where that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Legs>,
    usage: Usage,
}

#[derive(Serialize)]
struct Passage<'a> {
    object: &'static str,
    #[serde(flatten)]
    source: Source<'a>,
    /// What the model that ordered the passages says, where one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    rerank_score: Option<f64>,
    /// Which legs found it, where that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    legs: Option<Explained>,
    content: &'a str,
}

/// Tokens of the question's embedding.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: i64,
    total_tokens: i64,
}

/// Finds passages, as a chat of the project would.
pub(crate) async fn create(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Extension(Arrival(accepted)): Extension<Arrival>,
    tags: Tags,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let question = read(&received)?;
    let project = edge.catalog.project(caller.project).await?;
    let store = project.store.ok_or(EdgeError::NoStore)?;
    let mut plan = Plan::of(&project, store, &question.query, question.top_k);
    plan.filter = question.filter;
    let prices = edge.catalog.prices().await?;
    let embedding = project.embedding.as_ref();
    let (query_tokens, query_cost) = plan.hold(&project, &caller, &prices, &edge.counter).await?;
    let claim = Claim {
        model: embedding.map(|(provider, model)| Model { name: model, provider: *provider, connection: None }),
        tags: tags.and(question.metadata, question.user.as_deref()),
        other_tokens: query_tokens,
        other_cost: query_cost,
        ..Claim::of_a_request("retrieve", (id, accepted), &caller, &project)
    };
    let Admitted { mut call, headers } = admit(&edge, claim).await?;
    let source = embedding.map_or(PriceSource::None, |(provider, model)| prices.price(*provider, model).1);
    call.priced(PriceSnapshot::default(), source);
    let found = tokio::select! {
        biased;
        found = edge.grounding.search(&plan, &prices, &mut call) => found,
        ended = caller.live().ended() => return Err(Failure::with(settle_ended(*call, ended), headers)),
    };
    let (found, embedded) = match found {
        Ok(found) => found,
        Err(error) => {
            settle_as(*call, Ending::Fault, &error);
            return Err(Failure::with(error, headers));
        }
    };
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, &caller, *call, overruling, headers));
    }
    call.entry_mut().rag_hits = i32::try_from(found.hits.len()).ok();
    // What the search used is a charge beside the call's own, which is nothing.
    call.usage(ledger::Usage::default());
    call.entry_mut().prompt_tokens = embedded.reported;
    call.finish(Ending::Complete, 200, None);
    let answer = Passages {
        object: "list",
        data: found.hits.iter().map(|hit| passage(hit, question.explain)).collect(),
        degraded: &found.degraded,
        exhaustive: found.exhaustive,
        plan: question.explain.then_some(found.plan),
        usage: Usage { prompt_tokens: embedded.tokens, total_tokens: embedded.tokens },
    };
    Ok(json::of(&answer, headers)?)
}

fn passage(hit: &Hit, explain: bool) -> Passage<'_> {
    Passage {
        object: "passage",
        source: Source::of(hit),
        rerank_score: hit.rerank_score,
        legs: explain.then(|| Explained::of(hit)),
        content: &hit.passage.content,
    }
}

fn read(body: &[u8]) -> Result<Question<'_>, EdgeError> {
    check_body(body)?;
    let sent: Sent<'_> = serde_json::from_slice(body).map_err(|error| RequestError::Malformed(error.to_string()))?;
    let query = sent.query.ok_or(RequestError::Missing("query"))?;
    let top_k = sent.top_k.map(|number| number.get().parse().ok().filter(|number| (1..=MOST).contains(number)));
    let question = Question {
        query: text_at(query, || "query".to_owned(), "a string")?,
        top_k: match top_k {
            Some(None) => return Err(RequestError::Invalid { field: "top_k".to_owned(), must: TOP_K }.into()),
            given => given.flatten(),
        },
        filter: sent
            .filter
            .map(|filter| DocumentFilter::parse(&filter, "filter"))
            .transpose()
            .map_err(|FilterError { field, must }| RequestError::Invalid { field, must })?,
        explain: match sent.explain.map(RawValue::get) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(RequestError::Invalid { field: "explain".to_owned(), must: "true or false" }.into()),
        },
        metadata: sent.metadata,
        user: sent.user.map(|user| text_at(user, || "user".to_owned(), "a string")).transpose()?,
    };
    if question.query.trim().is_empty() {
        return Err(RequestError::Missing("query").into());
    }
    Ok(question)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_question_is_told_what_is_wrong_with_it() {
        let refused = |body: &str| read(body.as_bytes()).unwrap_err().to_string();
        assert!(refused("{").starts_with("malformed JSON body: EOF"), "{}", refused("{"));
        assert_eq!(refused("{}"), "query is required");
        assert_eq!(refused(r#"{"query":"a","query":"b"}"#), "query occurs more than once");
        assert_eq!(
            refused(r#"{"query":"a","metadata":{"team":"a","team":"b"}}"#),
            "metadata.team occurs more than once"
        );
        for (body, field) in [(r#"{"query":"\ud800"}"#, "query"), (r#"{"query":"a","user":"\udc00"}"#, "user")] {
            let said = format!("{field} has an invalid Unicode escape: a surrogate that is not one of a pair");
            assert_eq!(refused(body), said);
        }
        assert_eq!(refused(r#"{"query":7}"#), "query must be a string");
        assert_eq!(refused(r#"{"query":" "}"#), "query is required");
        for top_k in ["0", "101", "\"3\"", "1.5", "[]"] {
            let body = format!(r#"{{"query":"a","top_k":{top_k}}}"#);
            assert_eq!(refused(&body), "top_k must be a whole number from 1 to 100");
        }
        assert_eq!(refused(r#"{"query":"a","explain":"yes"}"#), "explain must be true or false");
        assert!(read(br#"{"query":"a","explain":true}"#).unwrap().explain);
        let told = refused(r#"{"query":"a","filter":{"metadata":{"year":{"after":2020}}}}"#);
        assert_eq!(told, "filter.metadata.year.after must be one of eq, in, exists, prefix, gt, gte, lt and lte");
        assert_eq!(
            refused(r#"{"query":"a","filter":[]}"#),
            "filter must be an object with documents, tags or metadata"
        );
        assert!(read(br#"{"query":"a","filter":null}"#).unwrap().filter.is_none());
        assert_eq!(read(br#"{"query":"a","top_k":100}"#).unwrap().top_k, Some(100));
    }
}
