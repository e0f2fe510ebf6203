//! `POST /v2/rerank` as Cohere has it and `POST /v1/rerank` as Voyage AI has it (API references, Rerank and Rerankers). How
//! well a document answers a query is how near their demonstration vectors are.

use hyper::StatusCode;
use serde_json::{Value, json};
use tokens::Family;

use crate::{
    answer::Answer,
    embed::{DIMENSIONS, cosine, vector},
    error::ApiError,
    script::{Behaviour, ReportUsage},
};

/// Whose API a call is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Cohere,
    Voyage,
}

impl Api {
    /// The API that a path belongs to.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/v2/rerank" => Some(Self::Cohere),
            "/v1/rerank" => Some(Self::Voyage),
            _ => None,
        }
    }

    /// An error in the shape of this API.
    pub(crate) fn error(self, message: &Value) -> Value {
        match self {
            Self::Cohere => json!({ "message": message }),
            Self::Voyage => json!({ "detail": message }),
        }
    }
}

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(api: Api, body: &Value, id: u64, behaviour: &Behaviour) -> Result<Answer, ApiError> {
    let text = |name: &'static str| {
        let text = body.get(name).and_then(Value::as_str);
        text.ok_or_else(|| ApiError::invalid(name, format!("{name} must be a string")))
    };
    let (model, query) = (text("model")?, text("query")?);
    let wrong = || ApiError::invalid("documents", "documents must be an array of strings");
    let documents = body.get("documents").and_then(Value::as_array).ok_or_else(wrong)?;
    let documents: Vec<&str> =
        documents.iter().map(|text| text.as_str().ok_or_else(wrong)).collect::<Result<_, _>>()?;
    let (known, most): (&[&str], _) = match api {
        Api::Cohere => (&["top_n", "max_tokens_per_doc", "priority"], "top_n"),
        Api::Voyage => (&["top_k", "return_documents", "truncation"], "top_k"),
    };
    let own =
        |name: &&String| !["model", "query", "documents"].contains(&name.as_str()) && !known.contains(&name.as_str());
    if let Some(name) = body.as_object().and_then(|body| body.keys().find(own)) {
        let message = format!("Argument '{name}' is not supported by our API");
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let most =
        body.get(most).and_then(Value::as_u64).map_or(documents.len(), |most| usize::try_from(most).unwrap_or(0));
    let asked = vector(query, DIMENSIONS);
    let mut ranked: Vec<(usize, f32)> =
        documents.iter().map(|text| cosine(&asked, &vector(text, DIMENSIONS))).enumerate().collect();
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ranked.truncate(most);
    let results: Vec<Value> =
        ranked.iter().map(|(index, score)| json!({ "index": index, "relevance_score": score })).collect();
    let reports = behaviour.usage != ReportUsage::Never;
    let figure = |counted: u64| behaviour.figures.map_or(counted, |figures| figures.prompt_tokens);
    Ok(Answer::json(&match api {
        Api::Cohere => {
            let units = figure((documents.len() as u64).div_ceil(100));
            let billed = reports.then(|| json!({ "search_units": units }));
            let meta = json!({ "api_version": { "version": "2" }, "billed_units": billed });
            json!({ "id": format!("{id:032x}"), "results": results, "meta": meta })
        }
        Api::Voyage => {
            let count = |text: &str| tokens::count(Family::Estimated, text) as u64;
            let tokens = documents.iter().map(|text| count(query) + count(text)).sum();
            let usage = reports.then(|| json!({ "total_tokens": figure(tokens) }));
            json!({ "object": "list", "data": results, "model": model, "usage": usage })
        }
    }))
}
