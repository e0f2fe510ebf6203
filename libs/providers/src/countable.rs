//! What of a request counts as prompt before it is sent.
//!
//! A provider bills whatever its template makes of a request, and what it does with a member that is not known here is
//! not known either. So everything counts except what is known not to become prompt: an estimate that is too high is
//! given back when the call is settled, one that is too low lets a call past its caps.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::json::{Members, text_of};

/// Recordings are billed by their length: 10 tokens a second (OpenAI) to 32 (Google). Speech takes 2 KB a second or more
/// in any usual encoding, so a token has at least that much base64.
const SOUND_CHARS_A_TOKEN: usize = 64;
/// Documents are billed by their text and by a picture of each page. A page of compressed text takes 4 KB or more and
/// gives some 2,000 tokens (Anthropic, PDF support: 1,500 to 3,000 and the picture).
const DOCUMENT_CHARS_A_TOKEN: usize = 2;
/// Sealed thoughts are about as large as their text.
const SEALED_CHARS_A_TOKEN: usize = 4;

/// What of a prompt is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Countable<'a> {
    /// Everything that is text of the prompt, or may become it.
    pub texts: Vec<Cow<'a, str>>,
    /// Pictures that are to be looked at closely, or as the provider likes.
    pub images: usize,
    /// Pictures for which a glance is enough (`detail: low`).
    pub images_at_a_glance: usize,
    /// Tokens of everything that is no text, by its size.
    pub media_tokens: usize,
}

impl<'a> Countable<'a> {
    pub(crate) fn with_room_for(texts: usize) -> Self {
        Self { texts: Vec::with_capacity(texts), ..Self::default() }
    }

    /// Counts a member's value: a text as it reads, a structure as it is written. Numbers and switches are no prompt.
    pub(crate) fn value(&mut self, value: &'a RawValue) {
        let written = value.get();
        let text = match written.as_bytes() {
            [b'"', b'"'] | [b'[', b']'] | [b'{', b'}'] => return,
            [b'"', ..] => text_of(value).unwrap_or(Cow::Borrowed(written)),
            [b'{' | b'[', ..] => Cow::Borrowed(written),
            _ => return,
        };
        self.texts.push(text);
    }

    /// Counts all members but those that `is_known` takes.
    pub(crate) fn members(&mut self, members: &Members<'a>, is_known: impl Fn(&str) -> bool) {
        for (name, value) in members.iter() {
            if !is_known(name) {
                self.value(value);
            }
        }
    }

    /// Counts a picture, given as an object with its address and how closely it is to be looked at, or as its address.
    pub(crate) fn image(&mut self, value: &'a RawValue) {
        let Ok(image) = Members::parse(value.get()) else {
            self.images += 1;
            return;
        };
        let is_low = image.present("detail").and_then(text_of).is_some_and(|detail| detail == "low");
        if is_low {
            self.images_at_a_glance += 1;
        } else {
            self.images += 1;
        }
        self.members(&image, |name| matches!(name, "url" | "detail"));
    }

    /// Counts a recording.
    pub(crate) fn sound(&mut self, value: &RawValue) {
        self.media(value, SOUND_CHARS_A_TOKEN);
    }

    /// Counts a document that is no text. What is only named has no size here, and is counted once the provider tells.
    pub(crate) fn document(&mut self, value: &RawValue) {
        self.media(value, DOCUMENT_CHARS_A_TOKEN);
    }

    /// Counts thoughts that only the provider can read.
    pub(crate) fn sealed(&mut self, value: &RawValue) {
        self.media(value, SEALED_CHARS_A_TOKEN);
    }

    fn media(&mut self, value: &RawValue, chars_a_token: usize) {
        self.media_tokens = self.media_tokens.saturating_add(value.get().len().div_ceil(chars_a_token));
    }
}
