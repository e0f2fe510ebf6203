//! Every other call to `/v1/responses/…`: to see, delete or cancel an answer.

use crate::error::{EdgeError, Failure};

/// Finds nothing, whatever is asked for: no answers are kept.
pub(crate) async fn get() -> Failure {
    EdgeError::NoResponses.into()
}
