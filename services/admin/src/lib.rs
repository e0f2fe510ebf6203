//! The admin service: people, projects, keys, connections, document stores and their documents, over JSON at
//! `/admin/api`.
//!
//! It is also what migrates the database, makes the first administrator, and keeps house: days of the request log,
//! sessions that have ended, bytes that nobody refers to. No LLM call passes through it.
//!
//! [`main`] is the program, for a binary of its own and for one that has several services. [`app`] builds the state,
//! [`stack`] lists the layers that every request passes, [`routes`] has the one table that names for every route who may
//! use it and what it writes into the audit log, and a file for each verb.

mod app;
mod auth;
mod body;
mod commands;
mod config;
mod error;
mod jobs;
mod path;
mod rescue;
mod routes;
mod stack;

pub use crate::commands::main;
pub use crate::config::Settings;
