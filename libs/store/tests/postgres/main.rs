//! The store on a real server, through the roles the services use.

mod admission;
mod schema;
