use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn call(inputs: &[usize], encoding: Option<Encoding>) -> EmbeddingsCall {
    let parts = inputs.iter().map(|inputs| EmbeddingsPart { body: Bytes::new(), inputs: *inputs }).collect();
    EmbeddingsCall::new(parts, "asked", encoding)
}

struct Merged {
    body: Bytes,
    usage: Usage,
}

fn merged(call: &EmbeddingsCall, answers: &[&str]) -> Result<Merged, UpstreamError> {
    let (mut merge, mut usage) = (Merge::new(call), Usage::default());
    for (part, answer) in call.parts().iter().zip(answers) {
        usage = usage.plus(merge.take(part, Bytes::copy_from_slice(answer.as_bytes()), None)?.unwrap_or_default());
    }
    Ok(Merged { body: merge.finish(false)?, usage })
}

#[test]
fn an_answer_in_one_piece_is_passed_on_with_only_the_models_name_replaced() {
    let answer = r#"{ "object":"list", "data":[{"index":0,"embedding":[1.50, 2e0]}], "model":"real","usage":{"prompt_tokens":3,"total_tokens":3},"x":1 }"#;
    let got = merged(&call(&[1], Some(Encoding::Float)), &[answer]).unwrap();
    assert_eq!(got.body, answer.replace("real", "asked"));
    assert_eq!(got.usage.prompt_tokens, 3);
    // One that nobody needs to change is not even copied.
    let (call, same) = (call(&[1], None), Bytes::from(answer.replace("real", "asked")));
    let mut merge = Merge::new(&call);
    merge.take(&call.parts()[0], same.clone(), None).unwrap();
    assert_eq!(merge.finish(false).unwrap().as_ptr(), same.as_ptr());
}

#[test]
fn parts_are_put_together_in_order_and_numbered_through() {
    let first = r#"{"object":"list","data":[{"object":"embedding","index":1,"embedding":[2]},{"object":"embedding","index":0,"embedding":[1.0]}],"model":"real","usage":{"prompt_tokens":3,"total_tokens":3}}"#;
    let second =
        r#"{"object":"list","data":[{"embedding":[3]}],"model":"real","usage":{"prompt_tokens":4,"total_tokens":5}}"#;
    let got = merged(&call(&[2, 1], Some(Encoding::Float)), &[first, second]).unwrap();
    assert_eq!(
        got.body,
        r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1.0]},{"object":"embedding","index":1,"embedding":[2]},{"index":2,"embedding":[3]}],"model":"asked","usage":{"prompt_tokens":7,"total_tokens":8}}"#
    );
    assert_eq!(got.usage.prompt_tokens, 7);
    let untold = r#"{"data":[{"embedding":[3]}]}"#;
    let got = merged(&call(&[2, 1], Some(Encoding::Float)), &[first, untold]).unwrap();
    assert!(serde_json::from_slice::<Value>(&got.body).unwrap().get("usage").is_none());
}

#[test]
fn parts_that_cannot_be_right_fail_the_whole() {
    let good = r#"{"data":[{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":3}}"#;
    for bad in [
        r#"{"data":[]}"#,
        r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1]}]}"#,
        r#"{"data":[{"index":1,"embedding":[1]}]}"#,
        r#"{"data":[{"index":-1,"embedding":[1]}]}"#,
        r#"{"data":[7]}"#,
        r#"{"data":7}"#,
        "{}",
        r#"{"error":{"message":"no"}}"#,
    ] {
        let call = call(&[1, 1], None);
        let mut merge = Merge::new(&call);
        merge.take(&call.parts()[0], Bytes::from(good), None).unwrap();
        assert!(merge.take(&call.parts()[1], Bytes::from(bad), None).is_err(), "{bad}");
        assert_eq!(merge.taken(), 1);
    }
}

#[test]
fn a_form_that_was_not_asked_for_is_turned_into_the_one_that_was() {
    let floats = r#"{"data":[{"index":0,"embedding":[1, -2.5]}]}"#;
    let packed = r#"{"data":[{"index":0,"embedding":"AACAPwAAIMA="}]}"#;
    let body = |encoding, answer: &str| merged(&call(&[1], encoding), &[answer]).unwrap().body;
    assert_eq!(body(Some(Encoding::Base64), floats), packed);
    assert_eq!(body(Some(Encoding::Float), packed), r#"{"data":[{"index":0,"embedding":[1.0,-2.5]}]}"#);
    assert_eq!(body(Some(Encoding::Base64), packed), packed);
    assert_eq!(body(Some(Encoding::Float), floats), floats);
    assert_eq!(body(None, floats), floats);
    // What cannot be turned stays.
    for odd in [r#"{"data":[{"embedding":"AAA="}]}"#, r#"{"data":[{"embedding":"AADAfw=="}]}"#] {
        assert_eq!(body(Some(Encoding::Float), odd), odd);
    }
}

#[test]
fn inputs_are_split_where_a_limit_is_reached() {
    let limits = Limits { inputs: 3, tokens: Some(10), takes_tokens: true };
    let split = |counts: &[u64]| limits.split(&counts.iter().map(|count| Size::Tokens(*count)).collect::<Vec<_>>());
    assert_eq!(split(&[1, 1, 1]).as_slice(), std::slice::from_ref(&(0..3)));
    assert_eq!(split(&[1, 1, 1, 1]), [0..3, 3..4]);
    assert_eq!(split(&[4, 6, 1]), [0..2, 2..3]);
    assert_eq!(split(&[99, 1, 99]), [0..1, 1..2, 2..3]);
    let long = "word ".repeat(8);
    assert_eq!(limits.split(&[Size::Text(&long), Size::Text("a")]), [0..1, 1..2]);
}

proptest! {
    #[test]
    fn both_forms_hold_the_same_floats(bits in proptest::collection::vec(any::<u32>(), 1..40)) {
        let floats: Vec<f32> = bits.into_iter().map(f32::from_bits).filter(|float| float.is_finite()).collect();
        let given = serde_json::to_string(&json!({ "data": [{ "embedding": 0 }] })).unwrap();
        let given = given.replace('0', &serde_json::to_string(&floats).unwrap());
        let body = |encoding, answer: &[u8]| {
            merged(&call(&[1], Some(encoding)), &[std::str::from_utf8(answer).unwrap()]).unwrap().body
        };
        let packed = body(Encoding::Base64, given.as_bytes());
        let value: Value = serde_json::from_slice(&packed).unwrap();
        let bytes = STANDARD.decode(value["data"][0]["embedding"].as_str().unwrap()).unwrap();
        let back: Vec<u32> =
            bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap()).to_bits()).collect();
        prop_assert_eq!(back, floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>());
        prop_assert_eq!(body(Encoding::Float, &packed), given);
    }

    #[test]
    fn parts_cover_all_inputs_once(counts in proptest::collection::vec(0_u64..20, 1..40)) {
        let limits = Limits { inputs: 4, tokens: Some(15), takes_tokens: true };
        let sizes: Vec<_> = counts.iter().map(|count| Size::Tokens(*count)).collect();
        let parts = limits.split(&sizes);
        prop_assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), (0..counts.len()).collect::<Vec<_>>());
        for part in parts {
            let tokens: u64 = counts[part.clone()].iter().sum();
            prop_assert!(part.len() == 1 || (part.len() <= 4 && tokens <= 15));
        }
    }
}
