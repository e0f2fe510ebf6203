//! Rows of values as records: each value with the name of its column, so that a row can be understood alone.

use crate::{BlockKind, ExtractError, emit::Outline};

/// About half a chunk of the default size.
const GROUP_CHARS: usize = 800;
/// Longer cells are text, not the name of a column.
const MAX_NAME_CHARS: usize = 100;
/// Columns beyond are left out of the names, not of the rows.
const MAX_NAMES: usize = 4096;

/// Takes rows in order and writes records.
#[derive(Default)]
pub(super) struct Records {
    /// The heading that the first row brings.
    title: Option<String>,
    header: Option<Header>,
    /// Lines not yet written.
    group: String,
}

enum Header {
    /// The names of the columns, and whether any row followed.
    Names { names: Vec<String>, used: bool },
    /// The first row was values already.
    None,
}

impl Records {
    /// Rows under a heading, which is only written if there are any.
    pub(super) fn under(title: &str) -> Self {
        Self { title: Some(title.to_owned()), ..Self::default() }
    }

    pub(super) fn row(&mut self, cells: &[String], outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        let filled = cells.iter().filter(|cell| !cell.trim().is_empty()).count();
        if filled == 0 {
            return Ok(());
        }
        if let Some(title) = self.title.take() {
            outline.heading(1, &title)?;
        }
        let line = match &mut self.header {
            // Titles and remarks stand above the table.
            None if filled == 1 => {
                let text: Vec<&str> = cells.iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect();
                return self.line(&text.join(" "), outline);
            }
            None if is_header(cells) => {
                self.flush(outline)?;
                let names = cells.iter().take(MAX_NAMES).map(|cell| flat(cell)).collect();
                self.header = Some(Header::Names { names, used: false });
                return Ok(());
            }
            None => {
                self.header = Some(Header::None);
                joined(cells)
            }
            Some(Header::None) => joined(cells),
            Some(Header::Names { names, used }) => {
                *used = true;
                named(names, cells)
            }
        };
        self.line(&line, outline)
    }

    /// Writes what is left.
    pub(super) fn finish(mut self, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        if let Some(Header::Names { names, used: false }) = &self.header {
            let line = joined(names);
            self.line(&line, outline)?;
        }
        self.flush(outline)
    }

    fn line(&mut self, line: &str, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        if !self.group.is_empty() && self.group.len() + line.len() > GROUP_CHARS {
            self.flush(outline)?;
        }
        if !self.group.is_empty() {
            self.group.push('\n');
        }
        self.group.push_str(line);
        Ok(())
    }

    fn flush(&mut self, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        outline.block(BlockKind::Table, &std::mem::take(&mut self.group))
    }
}

/// Names have letters, are short, and differ.
fn is_header(cells: &[String]) -> bool {
    let names: Vec<&str> = cells.iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect();
    let distinct: std::collections::HashSet<&str> = names.iter().copied().collect();
    distinct.len() == names.len()
        && names.iter().all(|name| name.chars().any(char::is_alphabetic) && name.chars().count() <= MAX_NAME_CHARS)
}

fn named(names: &[String], cells: &[String]) -> String {
    let parts = cells.iter().enumerate().filter(|(_, cell)| !cell.trim().is_empty()).map(|(column, cell)| match names
        .get(column)
        .filter(|name| !name.is_empty())
    {
        Some(name) => format!("{name}: {}", flat(cell)),
        None => flat(cell),
    });
    parts.collect::<Vec<_>>().join(" | ")
}

fn joined(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| flat(cell)).collect();
    cells.join(" | ").trim_matches([' ', '|']).to_owned()
}

fn flat(cell: &str) -> String {
    cell.split_whitespace().collect::<Vec<_>>().join(" ")
}
