use serde_json::{Value, json};

use super::*;

fn read(text: &str) -> Result<RerankRequest<'_>, String> {
    RerankRequest::parse(text.as_bytes()).map_err(|error| error.to_string())
}

/// The body for a provider, and what it has no place for.
fn sent(provider: ProviderType, text: &str) -> (Value, Vec<String>) {
    let call = read(text).unwrap().call(provider, "real", "id").unwrap();
    (serde_json::from_slice(&call.body).unwrap(), call.dropped)
}

#[test]
fn what_a_request_must_have_is_told_by_name() {
    for (text, said) in [
        (r#"{"documents":["a"]}"#, "query is required"),
        (r#"{"query":"","documents":["a"]}"#, "query is required"),
        (r#"{"query":7,"documents":["a"]}"#, "query must be a string"),
        (r#"{"query":"q"}"#, "documents is required"),
        (r#"{"query":"q","documents":[]}"#, "documents is required"),
        (r#"{"query":"q","documents":"a"}"#, "documents must be an array"),
        (r#"{"query":"q","documents":["a",7]}"#, "documents[1] must be a string or an object with a text"),
        (r#"{"query":"q","documents":[{"title":"a"}]}"#, "documents[0] must be a string or an object with a text"),
        (r#"{"query":"q","documents":[{"text":7}]}"#, "documents[0].text must be a string"),
        (r#"{"query":"q","documents":["a"],"top_n":0}"#, "top_n must be a whole number above zero"),
        (
            r#"{"query":"q","documents":["a"],"max_tokens_per_doc":-1}"#,
            "max_tokens_per_doc must be a whole number above zero",
        ),
        (r#"{"query":"q","documents":["a"],"return_documents":1}"#, "return_documents must be true or false"),
        (r#"{"query":"q","Documents":["a"]}"#, "Documents must be written documents"),
    ] {
        assert_eq!(read(text).map(|request| request.query).unwrap_err(), said, "{text}");
    }
    let many = format!(r#"{{"query":"q","documents":[{}]}}"#, vec!["\"\""; MAX_DOCUMENTS + 1].join(","));
    assert_eq!(read(&many).map(|request| request.query).unwrap_err(), "documents must be at most 10000 documents");
}

#[test]
fn cohere_gets_the_clients_bytes() {
    let text = r#"{ "model":"asked","query":"q", "documents" : ["a","b"],"top_n":1,"priority":2.0}"#;
    let call = read(text).unwrap().call(ProviderType::CohereRerank, "real", "id").unwrap();
    assert_eq!(call.body, text.replace("\"asked\"", "\"real\""));
    assert!(call.dropped.is_empty());
}

#[test]
fn cohere_gets_texts_for_objects_and_nothing_that_is_for_us() {
    let text = r#"{"ragmux":{},"return_documents":true,"metadata":{"a":"b"},"query":"q",
        "documents":[{"text":"a\n"},"b"],"max_tokens_per_doc":9}"#;
    let expected = json!({ "model": "real", "query": "q", "documents": ["a\n", "b"], "max_tokens_per_doc": 9 });
    assert_eq!(sent(ProviderType::CohereRerank, text), (expected, Vec::new()));
}

#[test]
fn voyage_gets_its_own_names_and_what_it_lacks_is_listed() {
    let text = r#"{"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":5,"max_tokens_per_doc":9,
        "rank_fields":null,"priority":1}"#;
    let expected = json!({ "model": "real", "query": "q", "documents": ["a", "b"], "top_k": 2, "truncation": true });
    let dropped = vec!["max_tokens_per_doc".to_owned(), "priority".to_owned()];
    assert_eq!(sent(ProviderType::VoyageRerank, text), (expected, dropped));
    let own = RerankDialect::Voyage.own_body("real", "q", &["a"], None);
    assert_eq!(own, r#"{"model":"real","query":"q","documents":["a"],"truncation":true}"#);
    let own = RerankDialect::Cohere.own_body("real", "q", &["a"], Some(3));
    assert_eq!(own, r#"{"model":"real","query":"q","documents":["a"],"top_n":3}"#);
}

#[test]
fn who_does_not_rerank_is_not_asked() {
    for provider in ProviderType::ALL {
        assert_eq!(RerankDialect::of(provider).is_ok(), provider.reranks(), "{provider:?}");
    }
}

fn form(documents: &[&str], top_n: Option<usize>, returned: bool) -> RerankForm {
    let texts: Arc<[String]> = documents.iter().map(|text| (*text).to_owned()).collect();
    RerankForm { id: "ours".to_owned(), documents: documents.len(), top_n, returned: returned.then_some(texts) }
}

fn shown(dialect: RerankDialect, body: &str, form: &RerankForm) -> Value {
    let reranked = dialect.read(&Bytes::from(body.to_owned()), form.documents).unwrap();
    serde_json::from_slice(&answer(&reranked, form)).unwrap()
}

/// Requests and answers as each provider's reference shows them, and what a client of ours has of them.
#[test]
fn a_client_is_told_the_same_by_every_provider() {
    let asked = include_str!("dialect/cohere/golden/request.json");
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (provider, dropped, request, body, told) in [
        (
            ProviderType::CohereRerank,
            &[][..],
            include_str!("dialect/cohere/golden/sent.json"),
            include_str!("dialect/cohere/golden/answer.json"),
            include_str!("dialect/cohere/golden/told.json"),
        ),
        (
            ProviderType::VoyageRerank,
            &["max_tokens_per_doc", "priority"],
            include_str!("dialect/voyage/golden/sent.json"),
            include_str!("dialect/voyage/golden/answer.json"),
            include_str!("dialect/voyage/golden/told.json"),
        ),
    ] {
        let expected = dropped.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        assert_eq!(sent(provider, asked), (json(request), expected));
        let form = form(&["At nine.", "At the quay.\n"], Some(1), true);
        assert_eq!(shown(RerankDialect::of(provider).unwrap(), body, &form), json(told));
    }
}

#[test]
fn the_best_come_first_whatever_the_provider_says() {
    let body = r#"{"data":[{"index":0,"relevance_score":-3.5},{"index":1,"relevance_score":2}]}"#;
    let reranked = RerankDialect::Voyage.read(&Bytes::from_static(body.as_bytes()), 2).unwrap();
    assert_eq!(reranked.results.iter().map(|ranked| ranked.index).collect::<Vec<_>>(), [1, 0]);
    assert_eq!((reranked.usage, reranked.search_units), (None, None));
}

#[test]
fn an_answer_that_cannot_be_right_is_refused() {
    for results in [
        r#"[{"index":2,"relevance_score":1}]"#,
        r#"[{"index":0,"relevance_score":1},{"index":0,"relevance_score":1}]"#,
        r#"[{"index":-1,"relevance_score":1}]"#,
        r#"[{"index":0}]"#,
        r#"[{"index":0,"relevance_score":1e999}]"#,
        "7",
        "null",
    ] {
        for (dialect, member) in [(RerankDialect::Cohere, "results"), (RerankDialect::Voyage, "data")] {
            let body = Bytes::from(format!(r#"{{"{member}":{results}}}"#));
            assert!(matches!(dialect.read(&body, 2), Err(UpstreamError::BadAnswer(_))), "{body:?}");
        }
    }
}

#[test]
fn units_with_a_fraction_are_whole_ones() {
    for (units, read) in [("1", Some(1)), ("1.5", Some(2)), ("-1", Some(0)), ("null", None)] {
        let body = format!(r#"{{"results":[],"meta":{{"billed_units":{{"search_units":{units}}}}}}}"#);
        assert_eq!(RerankDialect::Cohere.read(&Bytes::from(body), 1).unwrap().search_units, read);
    }
    let without = RerankDialect::Cohere.read(&Bytes::from_static(br#"{"results":[],"meta":{}}"#), 1).unwrap();
    assert_eq!(without.search_units, None);
}

#[test]
fn a_unit_is_a_hundred_documents_and_a_long_one_is_several() {
    assert_eq!(search_units(10, &[20; 100], None), 1);
    assert_eq!(search_units(10, &[20; 101], None), 2);
    assert_eq!(search_units(10, &[490; 100], None), 1);
    assert_eq!(search_units(10, &[491; 100], None), 2);
    assert_eq!(search_units(10, &[491; 100], Some(100)), 1);
    assert_eq!(search_units(10, &[1_000_000], None), 1, "no more of it is looked at");
    assert_eq!(search_units(0, &[0], None), 1);
    assert_eq!(search_units(1_000, &[50; 4], None), 2, "a query that leaves no room");
}
