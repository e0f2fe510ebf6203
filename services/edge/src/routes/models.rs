//! Models: the routes that a key may call.

mod get;
mod list;

use serde::Serialize;
use time::OffsetDateTime;

use crate::catalog::PublicRoute;

pub(crate) use get::get;
pub(crate) use list::list;

/// A model in the shape of the OpenAI API, with the members that clients of Anthropic's look for beside them.
#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    /// Seconds since 1970.
    created: i64,
    owned_by: &'static str,
    r#type: &'static str,
    display_name: &'a str,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl<'a> Model<'a> {
    fn of(route: &'a PublicRoute) -> Self {
        Self {
            id: &route.name,
            object: "model",
            created: route.created_at.unix_timestamp(),
            owned_by: route.owner(),
            r#type: "model",
            display_name: &route.name,
            created_at: route.created_at,
        }
    }
}
