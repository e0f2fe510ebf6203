//! Spreadsheets, by way of calamine: a section a sheet, a record a row.
//!
//! The cells of a workbook are streamed, because a sheet with one cell in each far corner would otherwise be a table of
//! billions.

use std::io::Cursor;

use calamine::{Data, DataRef, ExcelDateTime, Reader, Xls, XlsError, XlsOptions, Xlsx, XlsxError};
use domain::DocumentFailure;

use super::records::Records;
use crate::{
    ExtractError, Summary, archive,
    emit::{Emitter, Outline},
};

/// Columns of a sheet (ECMA-376: 16,384); cells beyond are none.
const MAX_COLUMNS: usize = 16_384;

pub(super) fn xlsx(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    if bytes.starts_with(b"PK") {
        archive::check_inflated(bytes)?;
    }
    agree(bytes)?;
    let mut book: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|error| match error {
        XlsxError::Password => DocumentFailure::Encrypted,
        _ => DocumentFailure::Corrupt,
    })?;
    let mut outline = Outline::new(emitter);
    let mut damaged = 0;
    for name in book.sheet_names() {
        let Ok(mut cells) = book.worksheet_cells_reader(&name) else {
            // A sheet of charts has no cells.
            continue;
        };
        let mut rows = Rows { row: 0, cells: Vec::new(), records: Records::under(&name) };
        loop {
            match cells.next_cell() {
                Ok(Some(cell)) => rows.cell(cell.get_position(), shared(cell.get_value()), &mut outline)?,
                Ok(None) => break,
                Err(_) => {
                    damaged += 1;
                    break;
                }
            }
        }
        rows.finish(&mut outline)?;
    }
    outline.finish()?;
    Ok(summary(damaged))
}

pub(super) fn xls(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    agree(bytes)?;
    let open = Xls::new_with_options(Cursor::new(bytes), XlsOptions::default());
    let mut book = open.map_err(|error| match error {
        XlsError::Password => DocumentFailure::Encrypted,
        _ => DocumentFailure::Corrupt,
    })?;
    let mut outline = Outline::new(emitter);
    let mut damaged = 0;
    for name in book.sheet_names() {
        let Ok(range) = book.worksheet_range(&name) else {
            damaged += 1;
            continue;
        };
        let mut records = Records::under(&name);
        for row in range.rows() {
            let cells: Vec<String> = row.iter().map(owned).collect();
            records.row(&cells, &mut outline)?;
        }
        records.finish(&mut outline)?;
    }
    outline.finish()?;
    Ok(summary(damaged))
}

/// Whether the package is a workbook, as far as it says.
fn agree(bytes: &[u8]) -> Result<(), DocumentFailure> {
    match anydoc::Format::from_bytes(bytes) {
        None | Some(anydoc::Format::Excel) => Ok(()),
        Some(_) => Err(DocumentFailure::TypeMismatch),
    }
}

fn summary(damaged: u32) -> Summary {
    Summary { failed_pages: damaged, engine: "calamine".to_owned(), ..Summary::default() }
}

/// Puts cells together into rows.
struct Rows {
    row: u32,
    cells: Vec<String>,
    records: Records,
}

impl Rows {
    fn cell(&mut self, (row, column): (u32, u32), value: String, to: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        if row != self.row {
            self.end_of_row(to)?;
            self.row = row;
        }
        let column = usize::try_from(column).unwrap_or(MAX_COLUMNS);
        if column < MAX_COLUMNS && !value.is_empty() {
            if self.cells.len() <= column {
                self.cells.resize(column + 1, String::new());
            }
            if let Some(cell) = self.cells.get_mut(column) {
                *cell = value;
            }
        }
        Ok(())
    }

    fn end_of_row(&mut self, to: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        let cells = std::mem::take(&mut self.cells);
        self.records.row(&cells, to)
    }

    fn finish(mut self, to: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        self.end_of_row(to)?;
        self.records.finish(to)
    }
}

fn shared(value: &DataRef<'_>) -> String {
    match value {
        DataRef::Int(number) => number.to_string(),
        DataRef::Float(number) => number.to_string(),
        DataRef::String(text) => text.clone(),
        DataRef::SharedString(text) => (*text).to_owned(),
        DataRef::Bool(truth) => truth.to_string(),
        DataRef::DateTime(time) => date_time(time),
        DataRef::DateTimeIso(text) | DataRef::DurationIso(text) => text.clone(),
        DataRef::Error(_) | DataRef::Empty => String::new(),
    }
}

fn owned(value: &Data) -> String {
    match value {
        Data::Int(number) => number.to_string(),
        Data::Float(number) => number.to_string(),
        Data::String(text) => text.clone(),
        Data::Bool(truth) => truth.to_string(),
        Data::DateTime(time) => date_time(time),
        Data::DateTimeIso(text) | Data::DurationIso(text) => text.clone(),
        _ => String::new(),
    }
}

/// ISO 8601, without a time of day where it is midnight and without a date where there is none.
fn date_time(time: &ExcelDateTime) -> String {
    let days = time.as_f64();
    if time.is_duration() {
        let seconds = (days * 86_400.0).round();
        let (hours, rest) = ((seconds / 3600.0).trunc(), seconds.abs() % 3600.0);
        return format!("{hours:.0}:{:02.0}:{:02.0}", (rest / 60.0).trunc(), rest % 60.0);
    }
    let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
    let clock = format!("{hour:02}:{minute:02}:{second:02}");
    match (days < 1.0, (hour, minute, second) == (0, 0, 0)) {
        (true, _) => clock,
        (false, true) => format!("{year:04}-{month:02}-{day:02}"),
        (false, false) => format!("{year:04}-{month:02}-{day:02} {clock}"),
    }
}
