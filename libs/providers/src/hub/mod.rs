//! What all dialects have in common, for answers that one dialect asks for and another gives.
//!
//! A request that goes to a provider of its own dialect stays the client's bytes and never comes here. One that does not
//! is read into a [`Conversation`] by the client's dialect and written by the provider's; what the provider answers is
//! read into [`Event`]s by its dialect and written by the client's. So each dialect knows itself and this form, and no
//! other dialect.

mod call_ids;
mod conversation;
mod dropped;
mod effort;
mod event;
mod format;
mod signer;
mod tally;
mod tool_names;
mod user;
mod whole;

pub(crate) use call_ids::{FittedIds, IdRule, fit_ids};
pub(crate) use conversation::{
    Block, Conversation, Effort, Format, ImageSource, Reasoning, Role, Setting, SettingKind, Tool, ToolChoice, Turn,
    file_of, input_object, joined_text, text_of_document,
};
pub(crate) use dropped::{Lost, compact, drop_path, is_nothing, leave_out, list_rest};
pub use event::Told;
pub(crate) use event::{CallIds, Event, Finish, Reader, Writer};
pub(crate) use format::in_words;
pub(crate) use signer::{REDACTED, SIGNED, Signer, is_marked};
pub(crate) use tally::Tally;
pub(crate) use user::short_user;
pub(crate) use whole::{Part, Whole};
