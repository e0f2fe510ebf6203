//! Collecting the fields of events and spans.

use std::error::Error;
use std::fmt::{self, Write};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

/// A longer text is cut: a line of the log has to stay one that collectors accept.
const LONGEST_TEXT: usize = 8 * 1024;

/// Fields by name. A field that is recorded again replaces the earlier value.
#[derive(Debug, Default)]
pub(crate) struct Fields(pub(crate) Map<String, Value>);

impl Fields {
    /// Takes the message out of the fields of an event.
    pub(crate) fn take_message(&mut self) -> String {
        match self.0.remove("message") {
            Some(Value::String(message)) => message,
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    fn put(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities; they are written as text rather than lost.
        let number = serde_json::Number::from_f64(value);
        self.put(field, number.map_or_else(|| Value::String(value.to_string()), Value::Number));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let mut text = Cut::default();
        text.push(value);
        self.put(field, text.finish());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = Cut::default();
        let mut written = write!(text, "{value}");
        let mut source = value.source();
        while let (Some(error), Ok(())) = (source, written) {
            written = write!(text, ": {error}");
            source = error.source();
        }
        self.put(field, text.finish());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = Cut::default();
        // A value that fails to write itself leaves what it wrote; the log goes on.
        let _ = write!(text, "{value:?}");
        self.put(field, text.finish());
    }
}

/// A text that stops growing at the limit, so that a huge value costs no more than a long one.
#[derive(Default)]
struct Cut {
    text: String,
    full: bool,
}

impl Cut {
    fn push(&mut self, piece: &str) {
        let room = LONGEST_TEXT.saturating_sub(self.text.len());
        match piece.get(..piece.floor_char_boundary(room)) {
            Some(head) if head.len() < piece.len() => {
                self.text.push_str(head);
                self.full = true;
            }
            _ => self.text.push_str(piece),
        }
    }

    fn finish(mut self) -> Value {
        if self.full {
            self.text.push('…');
        }
        Value::String(self.text)
    }
}

impl Write for Cut {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if !self.full {
            self.push(piece);
        }
        if self.full { Err(fmt::Error) } else { Ok(()) }
    }
}
