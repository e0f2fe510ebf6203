//! Results as a table and as JSON.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::arguments::Run;
use crate::figure::Figure;
use crate::machine;

/// Widest cell of a column, in characters.
const WIDEST: usize = 60;

/// Everything one run found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What was measured, with which settings.
    pub(crate) about: Value,
    /// The figures in the order of measuring.
    pub(crate) figures: Vec<Figure>,
    /// What one should know when reading them.
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// An empty report of a run on this machine.
    pub(crate) fn about(run: &Run) -> Self {
        let about = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "debug": cfg!(debug_assertions),
            "machine": machine::describe(),
            "scale": format!("{:?}", run.scale()),
            "pins": !run.no_pins,
            "nice": run.nice,
        });
        Self { about, ..Self::default() }
    }

    /// All of it for programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "about": self.about,
            "figures": self.figures.iter().map(Figure::json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// Writes the JSON to a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = format!("{:#}\n", self.json());
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Figures that do not reach their bar.
    pub(crate) fn missed(&self) -> usize {
        self.figures.iter().filter(|figure| figure.is_met() == Some(false)).count()
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        say(&table(&self.figures));
        for note in &self.notes {
            say(note);
        }
        let missed = self.missed();
        let judged = self.figures.iter().filter(|figure| figure.is_met().is_some()).count();
        say(&format!("{} of {judged} bars are met", judged - missed));
    }
}

/// Lines for the person at the terminal. When nobody can read them there is nobody to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn table(figures: &[Figure]) -> String {
    let heads = ["figure", "measured", "bar", "", "made of"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(heads).chain(figures.iter().map(Figure::cells)).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).min(WIDEST)
    };
    let widths: Vec<usize> = (0..4).map(width).chain([0]).collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Unit;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let figures = [Figure::new("a", Unit::Count, 5.0).at_most(0.0), Figure::new("longer name", Unit::Count, 12.0)];
        assert_eq!(
            table(&figures),
            "figure       measured  bar          made of\na            5         ≤ 0  MISSED\nlonger name  12"
        );
    }
}
