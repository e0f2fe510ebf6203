//! Models: the routes that a key may call.

mod get;
mod list;

use serde::Serialize;

use crate::catalog::PublicRoute;

pub(crate) use get::get;
pub(crate) use list::list;

/// A model in the shape of the OpenAI API.
#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    /// Seconds since 1970.
    created: i64,
    owned_by: &'static str,
}

impl<'a> Model<'a> {
    fn of(route: &'a PublicRoute) -> Self {
        Self { id: &route.name, object: "model", created: route.created_at.unix_timestamp(), owned_by: route.owner() }
    }
}
