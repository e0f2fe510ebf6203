//! What is said in a message, as the Messages and the Responses API write it: a text, or pieces of their own kinds.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::fields::invalid;
use super::openai::{RequestError, text_at};
use crate::json::{Members, elements};

/// What is read of an item takes some hundred bytes, whatever its size is in the body.
pub(crate) const MAX_ITEMS: usize = 65_536;

/// How many items a request may still have.
#[derive(Debug)]
pub(crate) struct Room {
    left: usize,
    field: &'static str,
    must: &'static str,
}

impl Room {
    /// Room for 65,536 items, and what is said where they are more.
    pub(crate) fn new(field: &'static str, must: &'static str) -> Self {
        Self { left: MAX_ITEMS, field, must }
    }

    /// Takes room for so many items more.
    pub(crate) fn take(&mut self, items: usize) -> Result<(), RequestError> {
        self.left = self.left.checked_sub(items).ok_or_else(|| invalid(self.field, self.must))?;
        Ok(())
    }
}

/// What a message, an item, the rules or a tool's result say.
#[derive(Clone, Debug)]
pub(crate) enum Said<'a> {
    Nothing,
    Text(Cow<'a, str>),
    Pieces(Vec<Piece<'a>>),
}

/// A block or part of what is said.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) kind: Cow<'a, str>,
    /// Of a kind that is text.
    pub(crate) text: Option<Cow<'a, str>>,
    /// What a tool's result that stands among pieces says.
    pub(crate) inner: Said<'a>,
    pub(crate) members: Members<'a>,
}

impl<'a> Said<'a> {
    /// Reads what must be a text or an array of pieces, each read by `piece`.
    pub(crate) fn read(
        path: &str,
        value: Option<&'a RawValue>,
        must: &'static str,
        room: &mut Room,
        piece: fn(&str, &'a RawValue, &mut Room) -> Result<Piece<'a>, RequestError>,
    ) -> Result<Self, RequestError> {
        let Some(value) = value else { return Ok(Self::Nothing) };
        if value.get().starts_with('"') {
            return text_at(value, || path.to_owned(), must).map(Self::Text);
        }
        let list = elements(value.get()).map_err(|_| invalid(path, must))?;
        room.take(list.len())?;
        let pieces = list.into_iter().enumerate().map(|(at, raw)| piece(&format!("{path}[{at}]"), raw, room));
        pieces.collect::<Result<_, _>>().map(Self::Pieces)
    }

    pub(crate) fn pieces(&self) -> &[Piece<'a>] {
        match self {
            Self::Pieces(pieces) => pieces,
            Self::Nothing | Self::Text(_) => &[],
        }
    }

    /// Its text, pieces joined by a line end.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Nothing => Cow::Borrowed(""),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Pieces(_) => self.joined("\n"),
        }
    }

    /// The texts of its pieces with something between them.
    pub(crate) fn joined(&self, between: &str) -> Cow<'_, str> {
        let texts: Vec<&str> = self.pieces().iter().filter_map(|piece| piece.text.as_deref()).collect();
        Cow::Owned(texts.join(between))
    }
}

impl<'a> Piece<'a> {
    /// A member that must be there and a text: what the piece is, or what it says.
    pub(crate) fn text_of(
        path: &str,
        members: &Members<'a>,
        name: &str,
        must: &'static str,
    ) -> Result<Cow<'a, str>, RequestError> {
        let full = || format!("{path}.{name}");
        text_at(members.present(name).ok_or_else(|| invalid(full(), must))?, full, must)
    }
}
