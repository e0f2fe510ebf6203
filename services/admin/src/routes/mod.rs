//! The routes below `/admin/api`: one table, and a file for each verb.
//!
//! An update changes the members its body has and leaves the others as they are, under `PUT` and `PATCH` alike.

mod checks;
pub(crate) mod documents;
mod fleet;
mod models;
mod prices;
mod project_routes;
mod projects;
mod rag_stores;
mod session;
mod setup;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;

use crate::app::App;
use crate::auth::authorize;

/// The router of the table. Each row stands behind its own check.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let router = table::rows().into_iter().fold(Router::new(), |router, (access, handler)| {
        let path = access.path;
        let check = from_fn_with_state((Arc::clone(app), Arc::new(access)), authorize);
        router.route(path, handler.route_layer(check))
    });
    // Every handler that reads a body has a limit of its own.
    router.layer(DefaultBodyLimit::disable()).with_state(Arc::clone(app))
}
