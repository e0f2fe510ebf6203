//! `POST /v1/embeddings`.

pub(crate) mod native;
mod vector;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::Value;
use tokens::Family;

pub(crate) use self::vector::{DIMENSIONS, cosine, vector};
use crate::{
    Options,
    answer::Answer,
    error::ApiError,
    models,
    script::{Behaviour, ReportUsage},
};

/// Most inputs of a request and most dimensions of a vector, as OpenAI documents them.
const MOST_INPUTS: usize = 2048;
const MOST_DIMENSIONS: u64 = 4096;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Floats(Vec<f32>),
    /// Little-endian single precision, in base64.
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// Answers a request.
pub(crate) fn answer(body: &Value, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let model = body
        .get("model")
        .and_then(Value::as_str)
        .ok_or_else(|| ApiError::invalid("model", "You must provide a model parameter."))?;
    models::check(model, models::EMBED, options)?;
    let inputs = inputs(body)?;
    let dimensions = dimensions(body, model)?;
    let base64 = match body.get("encoding_format") {
        None | Some(Value::Null) => false,
        Some(Value::String(format)) if format == "float" => false,
        Some(Value::String(format)) if format == "base64" => true,
        Some(_) => return Err(ApiError::invalid("encoding_format", "Expected 'float' or 'base64'.")),
    };
    let family = Family::of(model);
    let counted: usize =
        inputs.iter().map(|input| input.tokens.unwrap_or_else(|| tokens::count(family, &input.text))).sum();
    let prompt_tokens = behaviour.figures.map_or(counted as u64, |figures| figures.prompt_tokens);
    let data = inputs.iter().enumerate().map(|(index, input)| {
        let vector = vector(&input.text, dimensions);
        let embedding = if base64 { Numbers::Base64(in_base64(&vector)) } else { Numbers::Floats(vector) };
        Embedding { object: "embedding", index, embedding }
    });
    Ok(Answer::json(&List {
        object: "list",
        data: data.collect(),
        model,
        usage: (behaviour.usage != ReportUsage::Never).then_some(Usage { prompt_tokens, total_tokens: prompt_tokens }),
    }))
}

/// A text to embed and, if it came as token numbers, how many.
struct Input {
    text: String,
    tokens: Option<usize>,
}

fn inputs(body: &Value) -> Result<Vec<Input>, ApiError> {
    let inputs = match body.get("input") {
        Some(Value::String(text)) => vec![input(text)?],
        Some(Value::Array(items)) if items.first().is_some_and(Value::is_number) => vec![from_tokens(items)?],
        Some(Value::Array(items)) if (1..=MOST_INPUTS).contains(&items.len()) => {
            let each = items.iter().map(|item| match item {
                Value::String(text) => input(text),
                Value::Array(tokens) => from_tokens(tokens),
                _ => Err(wrong_input("must be a string, an array of strings, or tokens")),
            });
            each.collect::<Result<_, _>>()?
        }
        Some(Value::Array(_)) => return Err(wrong_input(&format!("must have 1 to {MOST_INPUTS} items"))),
        _ => return Err(wrong_input("must be a string, an array of strings, or tokens")),
    };
    Ok(inputs)
}

fn input(text: &str) -> Result<Input, ApiError> {
    if text.is_empty() {
        return Err(wrong_input("cannot be an empty string"));
    }
    Ok(Input { text: text.to_owned(), tokens: None })
}

/// Clients send the numbers of `cl100k_base`, the vocabulary of OpenAI's embedding models.
fn from_tokens(tokens: &[Value]) -> Result<Input, ApiError> {
    let numbers = tokens.iter().map(|token| token.as_u64().and_then(|token| u32::try_from(token).ok()));
    let numbers: Vec<u32> =
        numbers.collect::<Option<_>>().ok_or_else(|| wrong_input("has a token that is no token"))?;
    if numbers.is_empty() {
        return Err(wrong_input("cannot be an empty array"));
    }
    let text = tokens::decode(Family::Cl100k, &numbers).ok_or_else(|| wrong_input("has tokens that are no text"))?;
    Ok(Input { text, tokens: Some(numbers.len()) })
}

fn wrong_input(what: &str) -> ApiError {
    ApiError::invalid("input", format!("'$.input' is invalid: it {what}."))
}

fn dimensions(body: &Value, model: &str) -> Result<usize, ApiError> {
    let asked = match body.get("dimensions") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_u64().filter(|n| (1..=MOST_DIMENSIONS).contains(n)).ok_or_else(|| {
            ApiError::invalid("dimensions", format!("Expected an integer from 1 to {MOST_DIMENSIONS}."))
        })?),
    };
    let own = match model {
        "text-embedding-3-small" | "text-embedding-ada-002" => 1536,
        "text-embedding-3-large" => 3072,
        _ => DIMENSIONS,
    };
    Ok(asked.and_then(|asked| usize::try_from(asked).ok()).unwrap_or(own))
}

fn in_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}
