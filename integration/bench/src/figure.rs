//! A measured figure and the bar it has to reach.

use serde_json::{Map, Value, json};

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Microseconds.
    Micros,
    /// Mebibytes.
    MiB,
    /// A ratio; shown in percent.
    Share,
    /// A ratio; shown as a factor.
    Times,
    /// From 0 to 1, shown as it is.
    Score,
    /// So many a second.
    PerSecond,
    /// So many.
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Micros => "µs",
            Self::MiB => "MiB",
            Self::Share => "share",
            Self::Times => "times",
            Self::Score => "score",
            Self::PerSecond => "per second",
            Self::Count => "count",
        }
    }

    /// A value as people read it.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Micros if value.abs() >= 100.0 => format!("{value:.0} µs"),
            Self::Micros => format!("{value:.1} µs"),
            Self::MiB => format!("{value:.1} MiB"),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Times => format!("{value:.2} ×"),
            Self::Score => format!("{value:.4}"),
            Self::PerSecond => format!("{value:.0}/s"),
            Self::Count => format!("{value:.0}"),
        }
    }
}

/// What a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bar {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

impl Bar {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(bar) => value <= bar,
            Self::AtLeast(bar) => value >= bar,
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Self::AtMost(bar) => format!("≤ {}", unit.show(bar)),
            Self::AtLeast(bar) => format!("≥ {}", unit.show(bar)),
        }
    }
}

/// One line of the results.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    name: String,
    unit: Unit,
    value: f64,
    bar: Option<Bar>,
    /// What it is made of.
    details: Map<String, Value>,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: Unit, value: f64) -> Self {
        Self { name: name.into(), unit, value, bar: None, details: Map::new() }
    }

    pub(crate) fn at_most(mut self, bar: f64) -> Self {
        self.bar = Some(Bar::AtMost(bar));
        self
    }

    pub(crate) fn at_least(mut self, bar: f64) -> Self {
        self.bar = Some(Bar::AtLeast(bar));
        self
    }

    /// Something the value is made of, or that helps to judge it.
    pub(crate) fn with(mut self, name: &str, unit: Unit, value: f64) -> Self {
        self.details.insert(name.to_owned(), json!({ "value": value, "unit": unit.name(), "shown": unit.show(value) }));
        self
    }

    /// Whether the bar is met; `None` without one.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.bar.map(|bar| bar.is_met_by(self.value))
    }

    /// Name, value, bar, verdict and details, for a table.
    pub(crate) fn cells(&self) -> [String; 5] {
        let verdict = match self.is_met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let details = self.details.iter().map(|(name, value)| {
            let shown = value.get("shown").and_then(Value::as_str).unwrap_or_default();
            format!("{name} {shown}")
        });
        [
            self.name.clone(),
            self.unit.show(self.value),
            self.bar.map(|bar| bar.show(self.unit)).unwrap_or_default(),
            verdict.to_owned(),
            details.collect::<Vec<_>>().join(" · "),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        let bar = self.bar.map(|bar| match bar {
            Bar::AtMost(bar) => json!({ "at_most": bar }),
            Bar::AtLeast(bar) => json!({ "at_least": bar }),
        });
        json!({
            "name": self.name, "value": self.value, "unit": self.unit.name(), "bar": bar, "met": self.is_met(),
            "details": self.details,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_when_it_is_reached_exactly() {
        let figure = |value| Figure::new("x", Unit::Micros, value);
        assert_eq!(figure(150.0).at_most(150.0).is_met(), Some(true));
        assert_eq!(figure(150.1).at_most(150.0).is_met(), Some(false));
        assert_eq!(figure(0.7).at_least(0.7).is_met(), Some(true));
        assert_eq!(figure(0.69).at_least(0.7).is_met(), Some(false));
        assert_eq!(figure(1.0).is_met(), None);
    }

    #[test]
    fn a_line_says_what_was_asked_for_and_what_was_found() {
        let figure = Figure::new("kept", Unit::Share, 0.7512).at_least(0.7).with("governed", Unit::PerSecond, 900.4);
        assert_eq!(figure.cells(), ["kept", "75.1 %", "≥ 70.0 %", "met", "governed 900/s"]);
        let json = figure.json();
        assert_eq!((&json["met"], &json["bar"]["at_least"]), (&json!(true), &json!(0.7)));
    }
}
