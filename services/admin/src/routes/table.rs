//! The table of routes: for each, who may use it and what it writes into the audit log.

use std::sync::Arc;

use axum::routing::{MethodFilter, MethodRouter, on};
use domain::Role::{Admin, Editor, Viewer};
use http::Method;

use super::{documents, fleet, models, prices, project_routes, projects, rag_stores, session, setup};
use crate::app::App;
use crate::auth::{Access, Floor};

type Row = (Access, MethodRouter<Arc<App>>);

macro_rules! rows {
    ($($method:ident $path:literal, $floor:expr, $action:expr => $handler:path;)+) => {
        vec![$((
            Access {
                method: Method::$method,
                path: $path,
                floor: $floor,
                action: $action,
            },
            on(MethodFilter::$method, $handler),
        ),)+]
    };
}

const PUBLIC: Floor = Floor::Public;
const VIEWER: Floor = Floor::Role(Viewer);
const EDITOR: Floor = Floor::Role(Editor);
const ADMIN: Floor = Floor::Role(Admin);
const NOTHING: Option<&str> = None;

/// All routes. Rows of viewers and editors that are about a project, a store or a document reach only those of projects
/// the caller is a member of; what is out of reach is not found.
#[rustfmt::skip]
pub(crate) fn rows() -> Vec<Row> {
    rows! {
        POST   "/login",  PUBLIC, Some("login")  => session::login::handle;
        POST   "/logout", VIEWER, Some("logout") => session::logout::handle;
        GET    "/me",     VIEWER, NOTHING        => session::me::handle;

        GET    "/setup", PUBLIC, NOTHING                => setup::show::handle;
        POST   "/setup", PUBLIC, Some("setup.complete") => setup::complete::handle;

        // Connections carry credentials that everybody's calls are made with.
        GET    "/models",      VIEWER, NOTHING              => models::list::handle;
        POST   "/models",      ADMIN,  Some("model.create") => models::create::handle;
        GET    "/models/{id}", VIEWER, NOTHING              => models::get::handle;
        PUT    "/models/{id}", ADMIN,  Some("model.update") => models::update::handle;
        PATCH  "/models/{id}", ADMIN,  Some("model.update") => models::update::handle;
        DELETE "/models/{id}", ADMIN,  Some("model.delete") => models::delete::handle;

        GET    "/rag-stores",      VIEWER, NOTHING                  => rag_stores::list::handle;
        POST   "/rag-stores",      EDITOR, Some("rag_store.create") => rag_stores::create::handle;
        GET    "/rag-stores/{id}", VIEWER, NOTHING                  => rag_stores::get::handle;
        PUT    "/rag-stores/{id}", EDITOR, Some("rag_store.update") => rag_stores::update::handle;
        PATCH  "/rag-stores/{id}", EDITOR, Some("rag_store.update") => rag_stores::update::handle;
        DELETE "/rag-stores/{id}", EDITOR, Some("rag_store.delete") => rag_stores::delete::handle;
        // Both have questions embedded, at nobody's charge.
        POST   "/rag-stores/{id}/search",    EDITOR, NOTHING                   => rag_stores::search::handle;
        POST   "/rag-stores/{id}/calibrate", EDITOR, Some("rag_store.calibrate") => rag_stores::calibrate::handle;

        POST   "/rag-stores/{id}/reprocess", EDITOR, Some("rag_store.reprocess_all") => rag_stores::reprocess::handle;

        GET    "/rag-stores/{id}/documents", VIEWER, NOTHING                    => documents::list::handle;
        POST   "/rag-stores/{id}/documents", EDITOR, Some("document.upload")    => documents::upload::handle;
        GET    "/documents/{id}",            VIEWER, NOTHING                    => documents::get::handle;
        DELETE "/documents/{id}",            EDITOR, Some("document.delete")    => documents::delete::handle;
        POST   "/documents/{id}/reprocess",  EDITOR, Some("document.reprocess") => documents::reprocess::handle;

        GET    "/projects",                 VIEWER, NOTHING                    => projects::list::handle;
        POST   "/projects",                 EDITOR, Some("project.create")     => projects::create::handle;
        GET    "/projects/{id}",            VIEWER, NOTHING                    => projects::get::handle;
        PUT    "/projects/{id}",            EDITOR, Some("project.update")     => projects::update::handle;
        PATCH  "/projects/{id}",            EDITOR, Some("project.update")     => projects::update::handle;
        DELETE "/projects/{id}",            EDITOR, Some("project.delete")     => projects::delete::handle;
        POST   "/projects/{id}/rotate-key", EDITOR, Some("project.rotate_key") => projects::rotate_key::handle;

        GET    "/projects/{id}/routes",            VIEWER, NOTHING              => project_routes::list::handle;
        POST   "/projects/{id}/routes",            EDITOR, Some("route.create") => project_routes::create::handle;
        PUT    "/projects/{id}/routes/{route_id}", EDITOR, Some("route.update") => project_routes::update::handle;
        PATCH  "/projects/{id}/routes/{route_id}", EDITOR, Some("route.update") => project_routes::update::handle;
        DELETE "/projects/{id}/routes/{route_id}", EDITOR, Some("route.delete") => project_routes::delete::handle;

        GET    "/prices", VIEWER, NOTHING           => prices::list::handle;
        POST   "/prices", ADMIN,  Some("price.set") => prices::set::handle;

        GET    "/fleet", ADMIN, NOTHING => fleet::list::handle;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_there_once_and_every_write_is_audited() {
        let mut seen = BTreeSet::new();
        for (access, _) in rows() {
            assert!(seen.insert((access.method.to_string(), access.path)), "{access:?} is there twice");
            // A question is in a body because it has no place in a URL, and changes nothing.
            let reads = access.method == Method::GET || access.path == "/rag-stores/{id}/search";
            assert_eq!(reads, access.action.is_none(), "{access:?}");
        }
    }

    #[test]
    fn viewers_write_nothing_but_the_end_of_their_session() {
        for (access, _) in rows() {
            if access.action.is_some() && !matches!(access.floor, Floor::Role(Editor | Admin)) {
                assert!(["/login", "/logout", "/setup"].contains(&access.path), "{access:?}");
            }
        }
    }
}
