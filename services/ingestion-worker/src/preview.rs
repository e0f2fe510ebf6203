//! What the parser makes of a file, for a person or a benchmark: no database, no queue, the same processes and limits.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use extract::chunk::document_text;
use extract::protocol::SandboxPolicy;
use extract::{Format, HEAD_BYTES, detect};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::parser::{ParseError, Parser, ParserSettings};

/// The argument of the service that asks for a preview; the files follow.
pub(crate) const COMMAND: &str = "preview";

/// Prints one line of JSON for each file: `engine`, `sanity`, `pages`, `text`, or `code` where nothing came out.
pub(crate) fn main(files: impl Iterator<Item = OsString>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(preview(files))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the runtime could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn preview(files: impl Iterator<Item = OsString>) -> anyhow::Result<()> {
    let parser = Parser::new(ParserSettings::own_binary(SandboxPolicy::BestEffort));
    let mut out = std::io::stdout().lock();
    for file in files {
        let said = of_file(&parser, Path::new(&file)).await?;
        writeln!(out, "{said}")?;
    }
    Ok(())
}

async fn of_file(parser: &Parser, file: &Path) -> anyhow::Result<Value> {
    let bytes = std::fs::read(file)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let format: Format = match detect(&name, None, bytes.get(..HEAD_BYTES).unwrap_or(&bytes)) {
        Ok(format) => format,
        Err(failure) => return Ok(json!({ "file": name, "code": failure.code() })),
    };
    Ok(match parser.parse(format, &bytes, &CancellationToken::new()).await {
        Ok(parsed) => json!({
            "file": name,
            "format": format.as_str(),
            "engine": parsed.extracted.summary.engine,
            "sanity": parsed.extracted.summary.sanity,
            "charset": parsed.extracted.summary.charset,
            "title": parsed.extracted.summary.title,
            "pages": parsed.extracted.summary.page_count,
            "failed_pages": parsed.extracted.summary.failed_pages,
            "ended_by": parsed.ended_by.map(|failure| failure.code()),
            "text": document_text(&parsed.extracted),
        }),
        Err(ParseError::Document(failure)) => {
            json!({ "file": name, "format": format.as_str(), "code": failure.code() })
        }
        Err(error) => return Err(error.into()),
    })
}
