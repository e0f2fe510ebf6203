//! The routes under `/script`.

use std::{sync::Arc, time::Duration};

use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Board, Release, Script, Wait};
use crate::{answer::Answer, error::ApiError};

const WAIT_DEFAULT: Duration = Duration::from_secs(10);
const WAIT_LONGEST: Duration = Duration::from_secs(60);

/// Answers a control request, or `None` if there is no such route.
pub(crate) async fn answer(
    board: &Arc<Board>,
    method: &Method,
    path: &str,
    query: Option<&str>,
    body: &[u8],
) -> Option<Answer> {
    let answer = match (method.as_str(), path) {
        ("POST", "/script") => parse::<Script>(body).and_then(|script| {
            if script.path != "*" && !script.path.starts_with('/') {
                return Err(ApiError::invalid("path", "A path starts with a slash; `*` stands for all others."));
            }
            board.add(script);
            Ok(Answer::json(&json!({})))
        }),
        ("DELETE", "/script") => {
            board.clear();
            Ok(Answer::json(&json!({})))
        }
        ("POST", "/script/release") => parse_or_default::<Release>(body).map(|release| {
            board.release(release.count);
            Answer::json(&json!({}))
        }),
        ("GET", "/script/log") => after(query).map(|after| Answer::json(&board.log(after))),
        ("GET", "/script/counters") => Ok(Answer::json(&board.counters())),
        ("POST", "/script/wait") => match parse::<Wait>(body) {
            Ok(wait) => wait_for(board, wait).await,
            Err(error) => Err(error),
        },
        _ => return None,
    };
    Some(answer.unwrap_or_else(Answer::from))
}

async fn wait_for(board: &Board, wait: Wait) -> Result<Answer, ApiError> {
    let deadline = wait.timeout_ms.map_or(WAIT_DEFAULT, Duration::from_millis).min(WAIT_LONGEST);
    match tokio::time::timeout(deadline, board.wait(&wait)).await {
        Ok(counters) => Ok(Answer::json(&counters)),
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("Not met in time: {wait:?}, the counters are {:?}.", board.counters()),
        )),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))
}

fn parse_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}

/// `?after=17`: only calls with a higher number.
fn after(query: Option<&str>) -> Result<u64, ApiError> {
    let Some(query) = query else { return Ok(0) };
    query
        .strip_prefix("after=")
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| ApiError::invalid("after", "The number of a call is expected: ?after=17."))
}
