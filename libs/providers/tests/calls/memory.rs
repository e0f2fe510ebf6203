//! What answers take of the memory, and how large they may be.

use ragmux_providers::{
    Answer, Charge, EmbeddingsRequest, Held, HttpOptions, MAX_ANSWER_BYTES, Memory, Providers, UpstreamError,
};

use super::wire::{Step, Wire, answer, chunk, options, providers, stream_end, stream_head};
use super::{CHAT_ANSWER, DONE, STOP, WORD, attempts, call, chat, fails, rest, stream};

/// A whole chat answer that says so many letters.
fn long_answer(letters: usize) -> String {
    CHAT_ANSWER.replace("hi", &"a".repeat(letters))
}

#[tokio::test]
async fn answers_in_memory_have_a_bound_together_until_their_clients_have_them() {
    let wire = Wire::start((0..4).map(|_| answer("200 OK", "", &long_answer(600_000))).collect()).await;
    let memory = Memory::of(1 << 20);
    let providers = Providers::new(HttpOptions { memory: memory.clone(), ..options() }).unwrap();
    let connection = wire.connection();
    let ask = async || match chat(&providers, &connection, &call(false), &mut attempts()).await {
        Ok(Answer::Json(answer)) => Ok(answer),
        Ok(Answer::Stream(_)) => panic!("a stream"),
        Err(error) => Err(error),
    };
    // Its model's name is changed, so it is not the provider's bytes any more.
    let mut first = ask().await.unwrap();
    first.add_member("ragmux", "{}");
    assert!(matches!(ask().await, Err(UpstreamError::Overloaded)));
    let body = first.body.clone();
    drop(first);
    assert!(matches!(ask().await, Err(UpstreamError::Overloaded)));
    drop(body);
    assert!(ask().await.is_ok());
    memory.grow(&mut Held::default(), 1 << 20).unwrap();
}

#[tokio::test]
async fn a_large_event_takes_memory_whole_or_not_and_small_ones_none() {
    let large = WORD.replace("hé", &"a".repeat(600_000));
    let (half, rest_of_it) = large.split_at(300_000);
    let script = || {
        let begin = [WORD, half].map(|text| chunk(text.as_bytes()));
        let end = [rest_of_it, STOP, DONE].map(|text| chunk(text.as_bytes()));
        [vec![stream_head()], begin.into(), vec![Step::Hold], end.into(), vec![stream_end()]].concat()
    };
    let wire = Wire::start(vec![script(), script()]).await;
    let memory = Memory::of(1 << 20);
    let providers = Providers::new(HttpOptions { memory: memory.clone(), ..options() }).unwrap();
    let all_is_free = || memory.grow(&mut Held::default(), 1 << 20).is_ok();
    let mut begun = stream(&wire, &providers).await;
    let first = begun.next().await.unwrap().unwrap();
    assert_eq!(first, WORD.replace("real", "asked"));
    wire.go();
    let mut got = begun.next().await.unwrap().unwrap();
    while got.len() < 600_000 {
        got = begun.next().await.unwrap().unwrap();
    }
    assert!(!all_is_free(), "the client does not have it yet");
    let (_, result) = rest(&mut begun).await;
    result.unwrap();
    drop(got);
    assert!(all_is_free());

    let mut taken = Held::default();
    memory.grow(&mut taken, (1 << 20) - 400_000).unwrap();
    let mut refused = stream(&wire, &providers).await;
    wire.go();
    let (_, result) = rest(&mut refused).await;
    assert!(matches!(result, Err(UpstreamError::Overloaded)), "{result:?}");
}

#[tokio::test]
async fn embeddings_may_be_larger_than_other_answers() {
    let large = usize::try_from(MAX_ANSWER_BYTES).unwrap();
    let vectors = format!(r#"{{"model":"real","data":[{{"index":0,"embedding":"{}"}}]}}"#, "A".repeat(large));
    let wire = Wire::start(vec![answer("200 OK", "", &vectors), answer("200 OK", "", &long_answer(large))]).await;
    let (providers, connection) = (providers(), wire.connection());
    let request = EmbeddingsRequest::parse(br#"{"model":"asked","input":["a"],"encoding_format":"base64"}"#).unwrap();
    let call = request.call(connection.provider, &connection.model, "asked").unwrap();
    let passed = super::embeddings::send(&providers, &connection, &call, &mut attempts()).await.unwrap();
    assert_eq!(passed.body.len(), vectors.len() + 1);
    // The server gives up where its client does.
    let (error, _) = fails(&wire, &providers, false).await;
    assert!(matches!(error, UpstreamError::TooLarge { limit_bytes: MAX_ANSWER_BYTES }), "{error:?}");
    assert_eq!(error.charge(), Charge::Prompt);
}
