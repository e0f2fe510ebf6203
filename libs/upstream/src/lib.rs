//! A small server that needs no model. It speaks OpenAI's APIs, Chat Completions and Responses, and with the same answers
//! Anthropic's Messages, Gemini's and Ollama's; it embeds as all of them do, and reranks as Cohere and Voyage AI do.
//!
//! It has two lives. `cargo run` uses it as a demonstration: `demo-embed` turns texts into vectors by feature hashing,
//! `demo-chat` answers with sentences of the passages it is given. Tests and benchmarks use it as a scripted upstream:
//! with [`Options::script`] it answers at the pace, in the pieces and with the faults that a [`Script`] asks for, holds
//! answers until told to go on, and remembers every call it saw.
//!
//! [`run`] is the process, [`serve`] the same inside another one.

mod answer;
mod call;
mod chat;
mod embed;
mod error;
mod models;
mod moderations;
mod options;
mod plan;
mod rerank;
mod script;
mod server;
mod words;

pub use options::Options;
pub use script::{
    Behaviour, Counters, Figures, LineEnd, Log, Outcome, Raw, Release, ReportUsage, STAMP, Script, ScriptedError,
    SeenCall, Wait,
};
pub use server::{Handle, STOP_GRACE, run, serve};
