//! Writing one event as one line.

use std::fmt::Write;

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use tracing::Level;

/// The members that every line has. A field of one of these names is written with an underscore after it.
const STANDARD: [&str; 5] = ["ts", "level", "service", "target", "message"];

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// One JSON object.
    Json,
    /// Text for people.
    Text {
        /// Whether the terminal understands colours.
        colour: bool,
    },
}

/// An event with everything that its line shows.
pub(crate) struct Line<'a> {
    pub(crate) time: OffsetDateTime,
    pub(crate) level: Level,
    pub(crate) service: &'a str,
    pub(crate) target: &'a str,
    pub(crate) message: &'a str,
    pub(crate) fields: Map<String, Value>,
}

impl Line<'_> {
    /// The line with its line end.
    pub(crate) fn render(self, style: Style) -> String {
        let mut line = match style {
            Style::Json => self.json(),
            Style::Text { colour } => self.text(colour),
        };
        line.push('\n');
        line
    }

    fn json(self) -> String {
        let level = self.level.as_str().to_ascii_lowercase();
        let time = self.time.format(&Rfc3339).unwrap_or_default();
        let mut line = String::from("{");
        for (name, value) in STANDARD.iter().zip([&time, &level, self.service, self.target, self.message]) {
            let separator = if line.len() > 1 { "," } else { "" };
            // Writing to a String does not fail.
            let _ = write!(line, "{separator}\"{name}\":{}", Value::from(value));
        }
        for (name, value) in self.fields {
            let mark = if STANDARD.contains(&name.as_str()) { "_" } else { "" };
            let _ = write!(line, ",{}:{value}", Value::from(format!("{name}{mark}")));
        }
        line.push('}');
        line
    }

    fn text(self, colour: bool) -> String {
        let (on, dim, off) = if colour { (level_colour(self.level), "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
        let time = self.time.format(format_description!("[hour]:[minute]:[second].[subsecond digits:3]"));
        let time = time.unwrap_or_default();
        let mut line = format!("{dim}{time}{off} {on}{:>5}{off} ", self.level.as_str());
        push_visible(&mut line, self.message);
        for (name, value) in self.fields {
            let _ = write!(line, " {dim}{name}={off}");
            match value {
                Value::String(text) if !text.is_empty() && !text.contains([' ', '"', '=']) => {
                    push_visible(&mut line, &text);
                }
                other => push_visible(&mut line, &other.to_string()),
            }
        }
        line
    }
}

const fn level_colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}

/// Adds a text with its control characters escaped: what comes from outside must not steer the terminal or begin a line
/// of its own.
fn push_visible(line: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn line(message: &str, fields: Value) -> Line<'_> {
        Line {
            time: datetime!(2026-03-01 12:30:05.25 UTC),
            level: Level::WARN,
            service: "edge",
            target: "ragmux_edge::stack",
            message,
            fields: fields.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn a_json_line_has_the_standard_members_first_and_values_as_members() {
        let fields = serde_json::json!({"attempts": 3, "wait_ms": 1.5, "route": "a\"b\n", "level": "x", "ok": true});
        let text = line("upstream call failed", fields).render(Style::Json);
        let standard = "{\"ts\":\"2026-03-01T12:30:05.25Z\",\"level\":\"warn\",\"service\":\"edge\",\
                        \"target\":\"ragmux_edge::stack\",\"message\":\"upstream call failed\",";
        assert!(text.starts_with(standard), "{text}");
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
        let parsed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["level"], "warn");
        assert_eq!(parsed["level_"], "x");
        assert_eq!(parsed["attempts"], 3);
        assert_eq!(parsed["wait_ms"], 1.5);
        assert_eq!(parsed["route"], "a\"b\n");
        assert_eq!(parsed["ok"], true);
    }

    #[test]
    fn a_text_line_stays_one_line_and_cannot_steer_the_terminal() {
        let fields = serde_json::json!({"a": "plain", "b": "two words", "c": "\u{1b}[2Jx", "d": "", "e": 5});
        let text = line("first\nsecond", fields).render(Style::Text { colour: false });
        assert_eq!(text, "12:30:05.250  WARN first\\nsecond a=plain b=\"two words\" c=\\u{1b}[2Jx d=\"\" e=5\n");
    }

    #[test]
    fn colour_ends_where_it_began() {
        let text = line("m", serde_json::json!({"a": 1})).render(Style::Text { colour: true });
        assert_eq!(text, "\x1b[2m12:30:05.250\x1b[0m \x1b[33m WARN\x1b[0m m \x1b[2ma=\x1b[0m1\n");
    }
}
