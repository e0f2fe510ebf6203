//! What tests tell the server to do, and what it saw.

mod board;
mod gate;
mod routes;
mod types;

pub(crate) use board::{Board, Seen};
pub(crate) use routes::answer;
pub use types::{
    Behaviour, Counters, Figures, LineEnd, Log, Outcome, Raw, Release, ReportUsage, STAMP, Script, ScriptedError,
    SeenCall, Wait,
};
