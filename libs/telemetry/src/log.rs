//! The layer that turns events into lines.

use std::io::Write;

use time::OffsetDateTime;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::event::Fields;
use crate::line::{Line, Style};

/// Writes every event, with the fields of the spans around it, to what `output` gives.
pub(crate) struct Log<O> {
    service: &'static str,
    style: Style,
    output: O,
}

impl<O> Log<O> {
    pub(crate) fn new(service: &'static str, style: Style, output: O) -> Self {
        Self { service, style, output }
    }
}

impl<S, W, O> Layer<S> for Log<O>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write,
    O: Fn() -> W + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flatten().collect::<Vec<_>>().iter().rev() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.0.extend(of_span.0.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
        // A span may have a field of this name; it is the event's that is the message.
        fields.0.remove("message");
        event.record(&mut fields);
        let message = fields.take_message();
        let line = Line {
            time: OffsetDateTime::now_utc(),
            level: *event.metadata().level(),
            service: self.service,
            target: event.metadata().target(),
            message: &message,
            fields: fields.0,
        };
        // The log is the only place to report to; whoever reads it having gone away must not end the process.
        let mut output = (self.output)();
        let _ = output.write_all(line.render(self.style).as_bytes());
        let _ = output.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing_subscriber::EnvFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What the given code logs.
    fn lines(level: &str, run: impl FnOnce()) -> Vec<Value> {
        let memory = Memory::default();
        let output = memory.clone();
        let log = Log::new("edge", Style::Json, move || output.clone());
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new(level)).with(log);
        tracing::subscriber::with_default(subscriber, run);
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn an_event_carries_the_fields_of_the_spans_around_it() {
        let lines = lines("info", || {
            let request = tracing::info_span!("request", request_id = "r-1", status = tracing::field::Empty);
            request.in_scope(|| {
                tracing::info_span!("attempt", attempt = 2).in_scope(|| tracing::info!(attempt = 3, "inner"));
                request.record("status", 200);
                tracing::info!("outer");
            });
            tracing::info!("outside");
        });
        assert_eq!(lines[0]["request_id"], "r-1");
        assert_eq!(lines[0]["attempt"], 3, "the event's own field is the nearest");
        assert_eq!((&lines[1]["request_id"], &lines[1]["status"]), (&"r-1".into(), &200.into()));
        assert!(lines[2].get("request_id").is_none());
    }

    #[test]
    fn errors_are_written_with_all_their_sources() {
        #[derive(Debug, thiserror::Error)]
        #[error("call failed")]
        struct Outer(#[source] io::Error);

        let error = Outer(io::Error::other("no route"));
        let lines = lines("info", || {
            tracing::warn!(error = &error as &dyn std::error::Error, "gave up");
        });
        assert_eq!(lines[0]["error"], "call failed: no route");
    }

    #[test]
    fn values_keep_their_type_and_huge_ones_are_cut() {
        let lines = lines("info", || {
            let text = "ü".repeat(1_000_000);
            tracing::info!(count = 5_u64, ratio = f64::NAN, on = true, text, debug = ?vec!["x".repeat(9000)], "m");
        });
        assert_eq!(lines[0]["count"], 5);
        assert_eq!(lines[0]["ratio"], "NaN");
        assert_eq!(lines[0]["on"], true);
        for name in ["text", "debug"] {
            let text = lines[0][name].as_str().unwrap();
            assert!(text.ends_with('…') && text.len() < 9000, "{} bytes of {name}", text.len());
        }
    }

    #[test]
    fn the_level_list_decides_what_is_written() {
        let lines = lines("warn,quiet=off,loud=debug", || {
            tracing::info!("too low");
            tracing::warn!("shown");
            tracing::error!(target: "quiet", "hidden");
            tracing::debug!(target: "loud", "shown as well");
        });
        let messages: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
        assert_eq!(messages, ["shown", "shown as well"]);
    }
}
