//! Embeddings of providers that do not speak OpenAI's API: their answers are brought to its form, numbers digit by digit,
//! and go on from there as everybody's do.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use domain::ProviderType;
use serde_json::value::RawValue;

use super::openai::EMBEDDINGS_PATH;
use super::{gemini, ollama};
use crate::error::UpstreamError;

/// What an answer has.
pub(crate) struct Embedded<'a> {
    /// Arrays of numbers, in the order of the texts.
    pub(crate) vectors: Vec<&'a RawValue>,
    /// The tokens of all texts, where the provider tells.
    pub(crate) tokens: Option<i64>,
}

/// The API a provider is asked for embeddings by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingsDialect {
    /// OpenAI's, for providers that have it or imitate it.
    OpenAi,
    /// Google's Gemini API.
    Gemini,
    /// Ollama's own.
    Ollama,
}

impl EmbeddingsDialect {
    pub(crate) fn of(provider: ProviderType) -> Self {
        match provider {
            ProviderType::Gemini => Self::Gemini,
            ProviderType::Ollama => Self::Ollama,
            _ => Self::OpenAi,
        }
    }

    /// Where a call goes, below the connection's base URL.
    pub(crate) fn path(self, model: &str) -> Cow<'static, str> {
        match self {
            Self::OpenAi => EMBEDDINGS_PATH.into(),
            Self::Gemini => gemini::embed_path(model).into(),
            Self::Ollama => ollama::EMBED_PATH.into(),
        }
    }

    /// The body of a call that has to be written anew; `None` where that of OpenAI's API is understood.
    pub(crate) fn body(self, model: &str, texts: &[&str], dimensions: Option<u64>) -> Option<Bytes> {
        let body = match self {
            Self::OpenAi => return None,
            Self::Gemini => gemini::embed_body(model, texts, dimensions),
            Self::Ollama => ollama::embed_body(model, texts, dimensions),
        };
        body.ok().map(Bytes::from)
    }

    /// An answer in the form of OpenAI's.
    ///
    /// # Errors
    /// It is none, or has more or fewer vectors than there were texts.
    pub(crate) fn answer(self, answer: Bytes, texts: usize, credential: Option<&str>) -> Result<Bytes, UpstreamError> {
        let embedded = match self {
            Self::OpenAi => return Ok(answer),
            Self::Gemini => gemini::read_embedded(&answer, credential)?,
            Self::Ollama => ollama::read_embedded(&answer, credential)?,
        };
        if embedded.vectors.len() != texts {
            return Err(UpstreamError::BadAnswer("it has more or fewer embeddings than inputs"));
        }
        let mut out = String::with_capacity(answer.len() + texts * 48 + 96);
        out.push_str("{\"object\":\"list\",\"data\":[");
        for (index, vector) in embedded.vectors.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(out, "{comma}{{\"object\":\"embedding\",\"index\":{index},\"embedding\":{}}}", vector.get());
        }
        out.push_str("],\"model\":\"\"");
        if let Some(tokens) = embedded.tokens {
            let _ = write!(out, ",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}");
        }
        out.push('}');
        Ok(Bytes::from(out))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::EmbeddingsRequest;
    use crate::dialect::openai::read_vectors;

    const GEMINI: &str = r#"{"embeddings": [{"values": [0.1, -2.5e-3]}, {"values": [1, 0]}]}"#;
    const OLLAMA: &str = r#"{"model":"m","embeddings":[[0.1,-2.5e-3],[1,0]],"total_duration":1,"prompt_eval_count":7}"#;

    #[test]
    fn a_call_is_written_as_the_provider_wants_it() {
        let body = |dialect: EmbeddingsDialect, dimensions| {
            dialect.body("m", &["a\"b", "c"], dimensions).map(|body| serde_json::from_slice::<Value>(&body).unwrap())
        };
        let request = |text: &str| json!({ "model": "models/m", "content": { "parts": [{ "text": text }] }, "outputDimensionality": 8 });
        assert_eq!(body(EmbeddingsDialect::OpenAi, None), None);
        assert_eq!(
            body(EmbeddingsDialect::Gemini, Some(8)),
            Some(json!({ "requests": [request("a\"b"), request("c")] }))
        );
        assert_eq!(body(EmbeddingsDialect::Ollama, None), Some(json!({ "model": "m", "input": ["a\"b", "c"] })));
        assert_eq!(body(EmbeddingsDialect::Ollama, Some(8)).unwrap()["dimensions"], 8);
        assert_eq!(EmbeddingsDialect::Gemini.path("m"), "models/m:batchEmbedContents");
        assert_eq!(EmbeddingsDialect::of(ProviderType::Ollama).path("m"), "embed");
        assert_eq!(EmbeddingsDialect::of(ProviderType::Mistral).path("m"), "embeddings");
    }

    #[test]
    fn an_answer_has_the_same_numbers_and_the_reported_usage() {
        for (dialect, answer, tokens) in
            [(EmbeddingsDialect::Gemini, GEMINI, None), (EmbeddingsDialect::Ollama, OLLAMA, Some(7))]
        {
            let body = dialect.answer(Bytes::from_static(answer.as_bytes()), 2, None).unwrap();
            assert!(std::str::from_utf8(&body).unwrap().contains("-2.5e-3"));
            let vectors = read_vectors(&body, 2, None).unwrap();
            assert_eq!(vectors.vectors, [[0.1, -2.5e-3], [1.0, 0.0]]);
            assert_eq!(vectors.usage.map(|usage| usage.prompt_tokens), tokens);
            for broken in ["{}", "[]", r#"{"embeddings":[{}]}"#, r#"{"error":{"code":400,"message":"no"}}"#, answer] {
                let texts = if broken == answer { 3 } else { 1 };
                let read = dialect.answer(Bytes::from_static(broken.as_bytes()), texts, None);
                assert!(read.and_then(|body| read_vectors(&body, texts, None)).is_err(), "{broken}");
            }
        }
    }

    #[test]
    fn a_clients_call_is_split_and_told_in_its_own_form() {
        let texts: Vec<String> = (0..250).map(|at| format!("text {at}")).collect();
        let body =
            json!({ "model": "asked", "input": texts, "dimensions": 4, "encoding_format": "base64", "user": "u" });
        let body = body.to_string();
        let request = EmbeddingsRequest::parse(body.as_bytes()).unwrap();
        let call = request.call(ProviderType::Gemini, "real", "asked").unwrap();
        let sent: Vec<Value> = call.parts().iter().map(|part| serde_json::from_slice(&part.body).unwrap()).collect();
        let sizes: Vec<_> = sent.iter().map(|sent| sent["requests"].as_array().unwrap().len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        assert_eq!(sent[2]["requests"][49]["content"]["parts"][0]["text"], "text 249");
        let one = EmbeddingsRequest::parse(br#"{"model":"asked","input":"a"}"#).unwrap();
        let call = one.call(ProviderType::Ollama, "real", "asked").unwrap();
        assert_eq!(call.parts()[0].body, r#"{"model":"real","input":["a"]}"#);
        let tokens = EmbeddingsRequest::parse(br#"{"model":"asked","input":[1,2]}"#).unwrap();
        for provider in [ProviderType::Gemini, ProviderType::Ollama] {
            assert_eq!(tokens.call(provider, "real", "asked").unwrap_err().param(), Some("input"));
        }
    }
}
