//! Reranking: documents in the order of how well they answer a query. Clients speak Cohere's API; see `dialect/cohere`
//! and `dialect/voyage` for what providers are sent.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use domain::ProviderType;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::dialect::openai::{RequestError, flag, optional_text, read_known, strict, text_at};
use crate::dialect::{cohere, voyage};
use crate::error::UpstreamError;
use crate::json::{Members, elements};
use crate::single::{Reading, SingleCall};
use crate::usage::Usage;

/// As many as Cohere takes in one call, who takes the most (Best Practices for using Rerank, Number of Documents).
const MAX_DOCUMENTS: usize = 10_000;

/// The members of a request that are read.
const KNOWN: [&str; 8] =
    ["model", "query", "documents", "top_n", "return_documents", "max_tokens_per_doc", "ragmux", "metadata"];

/// A client's rerank request, in the shape of Cohere's API. Everything it does not name is kept in the body it borrows
/// from.
#[derive(Clone, Debug)]
pub struct RerankRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// What the documents are to answer.
    pub query: Cow<'a, str>,
    /// The documents' texts; at least one.
    pub documents: Vec<Cow<'a, str>>,
    /// How many documents are wanted.
    pub top_n: Option<usize>,
    /// Whether the answer is to repeat the documents.
    pub return_documents: bool,
    /// The part of a document, in tokens, that is looked at.
    pub max_tokens_per_doc: Option<u64>,
    /// `metadata` as sent, for tags.
    pub metadata: Option<&'a RawValue>,
    /// Whether any document is not a plain string.
    pub(crate) has_objects: bool,
    pub(crate) text: &'a str,
    pub(crate) members: Members<'a>,
}

impl<'a> RerankRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let (text, members) = read_known(body, &KNOWN)?;
        let query = optional_text(&members, "query")?.filter(|query| !query.is_empty());
        let value = members.present("documents").ok_or(RequestError::Missing("documents"))?;
        let list = elements(value.get()).map_err(|_| invalid("documents", "an array"))?;
        if list.is_empty() {
            return Err(RequestError::Missing("documents"));
        }
        if list.len() > MAX_DOCUMENTS {
            return Err(invalid("documents", "at most 10000 documents"));
        }
        let documents = list.iter().enumerate().map(|(at, raw)| document(at, raw)).collect::<Result<_, _>>()?;
        let top_n = positive(&members, "top_n")?.map(|top_n| usize::try_from(top_n).unwrap_or(usize::MAX));
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            query: query.ok_or(RequestError::Missing("query"))?,
            documents,
            top_n,
            return_documents: flag(&members, "return_documents", "return_documents")?,
            max_tokens_per_doc: positive(&members, "max_tokens_per_doc")?,
            metadata: members.present("metadata"),
            has_objects: list.iter().any(|raw| !raw.get().starts_with('"')),
            text,
            members,
        })
    }

    /// The call for a provider. `id` names the answer where the provider gives it no name.
    ///
    /// # Errors
    /// [`UpstreamError::Unfit`] for a provider that does not rerank.
    pub fn call(&self, provider: ProviderType, model: &str, id: &str) -> Result<SingleCall, UpstreamError> {
        let dialect = RerankDialect::of(provider)?;
        let mut dropped = Vec::new();
        let body = match dialect {
            RerankDialect::Cohere => cohere::body(self, model),
            RerankDialect::Voyage => voyage::body(self, model, &mut dropped),
        };
        let returned = || self.documents.iter().map(|text| text.clone().into_owned()).collect();
        let form = RerankForm {
            id: id.to_owned(),
            documents: self.documents.len(),
            top_n: self.top_n,
            returned: self.return_documents.then(returned),
        };
        Ok(SingleCall { body, dropped, path: dialect.path(), reading: Reading::Reranked(dialect, form) })
    }
}

/// A document: a string, or an object with a `text`.
fn document<'a>(at: usize, raw: &'a RawValue) -> Result<Cow<'a, str>, RequestError> {
    const MUST: &str = "a string or an object with a text";
    let path = || format!("documents[{at}]");
    if raw.get().starts_with('"') {
        return text_at(raw, path, MUST);
    }
    let members = Members::parse(raw.get()).map_err(|_| invalid(path(), MUST))?;
    let text = strict(&path(), members, &["text"])?.present("text").ok_or_else(|| invalid(path(), MUST))?;
    text_at(text, || format!("documents[{at}].text"), "a string")
}

fn positive(members: &Members<'_>, name: &'static str) -> Result<Option<u64>, RequestError> {
    match members.present(name).map(|value| value.get().parse::<u64>()) {
        None => Ok(None),
        Some(Ok(number)) if number > 0 => Ok(Some(number)),
        Some(_) => Err(invalid(name, "a whole number above zero")),
    }
}

fn invalid(field: impl Into<String>, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.into(), must }
}

/// Documents of one search unit, and the tokens of one document with the query: a longer document counts as several
/// (Cohere, Pricing, "What is a search unit").
const DOCUMENTS_A_UNIT: i64 = 100;
const TOKENS_A_DOCUMENT: i64 = 500;

/// What is looked at of a document where the request says nothing (Cohere API reference, Rerank, `max_tokens_per_doc`).
const DEFAULT_TOKENS_PER_DOC: i64 = 4096;

/// The search units that a call comes to, by a count of its tokens: the query's, and each document's, of which no more
/// than `most` are looked at.
#[must_use]
pub fn search_units(query: i64, documents: &[i64], most: Option<u64>) -> i64 {
    let most = most.map_or(DEFAULT_TOKENS_PER_DOC, |most| i64::try_from(most).unwrap_or(i64::MAX));
    let room = TOKENS_A_DOCUMENT.saturating_sub(query).max(1);
    let pieces = |tokens: i64| {
        i64::try_from(tokens.min(most).max(1).unsigned_abs().div_ceil(room.unsigned_abs())).unwrap_or(i64::MAX)
    };
    let pieces = documents.iter().fold(0_i64, |sum, tokens| sum.saturating_add(pieces(*tokens)));
    i64::try_from(pieces.unsigned_abs().div_ceil(DOCUMENTS_A_UNIT.unsigned_abs())).unwrap_or(i64::MAX)
}

/// A document's place in an order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Which of the documents that were sent, from 0.
    pub index: usize,
    /// How well it answers the query; larger is better, and nothing more can be compared between models.
    pub score: f64,
}

/// An order of documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reranked {
    /// The provider's name for the answer.
    pub id: Option<String>,
    /// The best first, none twice. A provider may leave documents out.
    pub results: Vec<Ranked>,
    /// What the provider reported, unless it cannot be true; for those that bill tokens.
    pub usage: Option<Usage>,
    /// The search units that the provider bills, for those that bill those.
    pub search_units: Option<i64>,
}

impl Reranked {
    /// Checks an order that a provider gave of so many documents, and sorts it.
    pub(crate) fn checked(mut self, documents: usize) -> Result<Self, UpstreamError> {
        let mut seen = vec![false; documents];
        for result in &self.results {
            match seen.get_mut(result.index) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(UpstreamError::BadAnswer("its results are numbered wrongly")),
            }
        }
        self.results.sort_by(|one, other| other.score.total_cmp(&one.score));
        Ok(self)
    }
}

/// A provider's API of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RerankDialect {
    Cohere,
    Voyage,
}

impl RerankDialect {
    pub(crate) fn of(provider: ProviderType) -> Result<Self, UpstreamError> {
        match provider {
            ProviderType::CohereRerank => Ok(Self::Cohere),
            ProviderType::VoyageRerank => Ok(Self::Voyage),
            _ => Err(UpstreamError::Unfit(invalid("model", "the name of a model that reranks"))),
        }
    }

    /// Where a call goes, below the connection's base URL.
    pub(crate) fn path(self) -> &'static str {
        "rerank"
    }

    /// The body of a call of ours.
    pub(crate) fn own_body(self, model: &str, query: &str, documents: &[&str], top_n: Option<usize>) -> Bytes {
        match self {
            Self::Cohere => cohere::own_body(model, query, documents, top_n),
            Self::Voyage => voyage::own_body(model, query, documents, top_n),
        }
    }

    /// Reads an answer about so many documents.
    pub(crate) fn read(self, body: &Bytes, documents: usize) -> Result<Reranked, UpstreamError> {
        match self {
            Self::Cohere => cohere::read(body),
            Self::Voyage => voyage::read(body),
        }?
        .checked(documents)
    }
}

/// What an answer to a client needs to know of the request.
#[derive(Clone, Debug)]
pub(crate) struct RerankForm {
    /// The answer's name, should the provider give none.
    pub(crate) id: String,
    /// How many documents were sent.
    pub(crate) documents: usize,
    pub(crate) top_n: Option<usize>,
    /// The documents, where the answer is to repeat them.
    pub(crate) returned: Option<Arc<[String]>>,
}

/// An order as our clients get it (Cohere API reference, Rerank).
pub(crate) fn answer(reranked: &Reranked, form: &RerankForm) -> Bytes {
    #[derive(Serialize)]
    struct Answer<'a> {
        id: &'a str,
        results: Vec<Item<'a>>,
        meta: Meta,
    }
    #[derive(Serialize)]
    struct Item<'a> {
        index: usize,
        relevance_score: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        document: Option<Document<'a>>,
    }
    #[derive(Serialize)]
    struct Document<'a> {
        text: &'a str,
    }
    #[derive(Serialize)]
    struct Meta {
        api_version: Version,
        billed_units: Billed,
    }
    #[derive(Serialize)]
    struct Version {
        version: &'static str,
    }
    #[derive(Serialize)]
    struct Billed {
        #[serde(skip_serializing_if = "Option::is_none")]
        search_units: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_tokens: Option<i64>,
    }
    let results = reranked.results.iter().take(form.top_n.unwrap_or(usize::MAX));
    let text = |at: usize| form.returned.as_ref().and_then(|texts| texts.get(at)).map(|text| Document { text });
    let answer = Answer {
        id: reranked.id.as_deref().unwrap_or(&form.id),
        results: results
            .map(|ranked| Item { index: ranked.index, relevance_score: ranked.score, document: text(ranked.index) })
            .collect(),
        meta: Meta {
            api_version: Version { version: "2" },
            billed_units: Billed {
                search_units: reranked.search_units,
                input_tokens: reranked.usage.map(|usage| usage.prompt_tokens),
            },
        },
    };
    // Nothing in it can fail to be written: texts, and numbers that were read from JSON.
    Bytes::from(serde_json::to_vec(&answer).unwrap_or_default())
}

#[cfg(test)]
#[path = "rerank_tests.rs"]
mod tests;
