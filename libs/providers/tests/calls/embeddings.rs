//! Embeddings, for ourselves and for clients, whole and in parts.

use std::ops::Range;
use std::sync::Arc;

use ragmux_providers::{
    Answered, Attempts, Connection, Destination, EmbeddingsCall, EmbeddingsRequest, Providers, SingleAnswer,
    SingleFailure,
};

use super::attempts;
use super::wire::{Wire, answer, providers};

/// Sends a call to one connection.
pub(super) async fn send(
    providers: &Providers,
    connection: &Connection,
    call: &EmbeddingsCall,
    attempts: &mut Attempts,
) -> Result<SingleAnswer, SingleFailure> {
    let only = [Destination { connection: Arc::new(connection.clone()), group: 0 }];
    providers.embeddings(&only, &mut |_| Ok(call.clone()), attempts).await
}

#[tokio::test]
async fn embeddings_are_had_for_ourselves_and_passed_through_for_clients() {
    let body = r#"{"model":"real","data":[{"index":0,"embedding":"AACAPw=="},{"index":1,"embedding":[2]}],"usage":{"prompt_tokens":3,"total_tokens":3}}"#;
    let wire = Wire::start(vec![answer("200 OK", "", body), answer("200 OK", "", body)]).await;
    let providers = providers();
    let connection = wire.connection();
    let inputs = ["a".to_owned(), "b".to_owned()];
    let got = providers.embed(&connection, &inputs, None, &mut attempts()).await.unwrap();
    assert_eq!(got.vectors, [[1.0], [2.0]]);
    assert_eq!(got.usage.unwrap().prompt_tokens, 3);

    let request = br#"{"model":"asked","input":["a","b"],"encoding_format":"base64"}"#;
    let call =
        EmbeddingsRequest::parse(request).unwrap().call(connection.provider, &connection.model, "asked").unwrap();
    let passed = send(&providers, &connection, &call, &mut attempts()).await.unwrap();
    // The one that came as numbers too is in the form that was asked for.
    assert_eq!(passed.body, body.replace("real", "asked").replace("[2]", "\"AAAAQA==\""));

    let sent = wire.requests();
    assert!(sent[0].starts_with("POST /v1/embeddings ") && sent[0].ends_with(r#"{"model":"real","input":["a","b"]}"#));
    assert!(sent[1].ends_with(r#"{"model":"real","input":["a","b"],"encoding_format":"base64"}"#));
}

/// Which place has answered which inputs, and the tokens that it reported.
fn by_whom(answered: &[Answered]) -> Vec<(usize, Range<usize>, Option<i64>)> {
    answered.iter().map(|part| (part.at, part.inputs.clone(), part.usage.map(|usage| usage.prompt_tokens))).collect()
}

/// An answer to so many inputs.
fn embedded(inputs: usize) -> String {
    let items: Vec<_> = (0..inputs).map(|index| format!(r#"{{"index":{index},"embedding":[{index}]}}"#)).collect();
    format!(
        r#"{{"data":[{}],"model":"real","usage":{{"prompt_tokens":{inputs},"total_tokens":{inputs}}}}}"#,
        items.join(",")
    )
}

#[tokio::test]
async fn embeddings_of_more_inputs_than_a_provider_takes_come_as_one_answer() {
    let request = format!(r#"{{"model":"asked","input":[{}]}}"#, vec!["\"a\""; 2050].join(","));
    let request = EmbeddingsRequest::parse(request.as_bytes()).unwrap();
    let wire = Wire::start(vec![
        answer("200 OK", "", &embedded(2048)),
        answer("503 Service Unavailable", "", "{}"),
        answer("200 OK", "", &embedded(2)),
    ])
    .await;
    let (providers, connection, mut attempts) = (providers(), wire.connection(), attempts());
    let call = request.call(connection.provider, &connection.model, "asked").unwrap();
    let whole = send(&providers, &connection, &call, &mut attempts).await.unwrap();
    assert_eq!(
        (by_whom(&whole.answered), attempts.made()),
        (vec![(0, 0..2048, Some(2048)), (0, 2048..2050, Some(2))], 2)
    );
    let body: serde_json::Value = serde_json::from_slice(&whole.body).unwrap();
    let data = body["data"].as_array().unwrap();
    assert_eq!((data.len(), &data[2049]["index"], &data[2049]["embedding"][0]), (2050, &2049.into(), &1.into()));
    assert_eq!(body["usage"]["total_tokens"], 2050);
    assert!(wire.requests()[2].ends_with(r#""input":["a","a"]}"#));
}

#[tokio::test]
async fn one_part_that_fails_fails_all_and_what_was_used_is_told() {
    let request = format!(r#"{{"model":"asked","input":[{}]}}"#, vec!["\"a\""; 2050].join(","));
    let request = EmbeddingsRequest::parse(request.as_bytes()).unwrap();
    let wire = Wire::start(vec![answer("200 OK", "", &embedded(2048)), answer("400 Bad Request", "", "{}")]).await;
    let (providers, connection) = (providers(), wire.connection());
    let call = request.call(connection.provider, &connection.model, "asked").unwrap();
    let failure = send(&providers, &connection, &call, &mut attempts()).await.unwrap_err();
    assert_eq!((failure.error.status(), by_whom(&failure.answered)), (400, vec![(0, 0..2048, Some(2048))]));
}

#[tokio::test]
async fn a_part_whose_answer_is_of_no_use_is_answered_all_the_same() {
    let request = format!(r#"{{"model":"asked","input":[{}]}}"#, vec!["\"a\""; 2050].join(","));
    let request = EmbeddingsRequest::parse(request.as_bytes()).unwrap();
    let silent = embedded(2048).replace("usage", "more");
    let wire = Wire::start(vec![answer("200 OK", "", &silent), answer("200 OK", "", "{}")]).await;
    let (providers, connection) = (providers(), wire.connection());
    let call = request.call(connection.provider, &connection.model, "asked").unwrap();
    let failure = send(&providers, &connection, &call, &mut attempts()).await.unwrap_err();
    assert_eq!(by_whom(&failure.answered), [(0, 0..2048, None), (0, 2048..2050, None)]);
}

#[tokio::test]
async fn parts_that_are_answered_are_not_asked_for_again_elsewhere() {
    let request = format!(r#"{{"model":"asked","input":[{}]}}"#, vec!["\"a\""; 2050].join(","));
    let request = EmbeddingsRequest::parse(request.as_bytes()).unwrap();
    let failing = Wire::start(vec![answer("200 OK", "", &embedded(2048)), answer("401 Unauthorized", "", "{}")]).await;
    let other = Wire::start(vec![answer("200 OK", "", &embedded(2))]).await;
    let to = |wire: &Wire, id, group| {
        let connection = Connection { id: domain::ConnectionId(id), ..wire.connection() };
        Destination { connection: Arc::new(connection), group }
    };
    let (places, mut attempts) = ([to(&failing, 1, 0), to(&other, 2, 1)], attempts());
    let call = request.call(places[0].connection.provider, "real", "asked").unwrap();
    let whole = providers().embeddings(&places, &mut |_| Ok(call.clone()), &mut attempts).await.unwrap();
    assert_eq!(by_whom(&whole.answered), [(0, 0..2048, Some(2048)), (1, 2048..2050, Some(2))]);
    assert_eq!((attempts.made(), attempts.last()), (2, Some(1)));
    assert_eq!((failing.requests().len(), other.requests().len()), (2, 1));
}
