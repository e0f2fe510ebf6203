//! The text of PDFs beside that of poppler's `pdftotext`: how many of its words came out here, file by file.
//!
//! The parser runs as in production, through the worker's `preview`. Words are compared after NFKC, without case, as bags:
//! the order of columns is a matter of taste. Chinese and Japanese characters count as words.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;
use unicode_normalization::UnicodeNormalization as _;

use crate::arguments::Text;
use crate::report::say;

/// The reference may loop on what the parser must not loop on.
const REFERENCE_LIMIT: Duration = Duration::from_secs(60);
/// Two engines, each with its own limit.
const PARSER_LIMIT: Duration = Duration::from_secs(300);

type Words = HashMap<String, usize>;

/// Prints a line a file, and the mean.
///
/// # Errors
/// Without `pdftotext`, without the program, or with a mean below what was asked for.
pub(crate) async fn run(text: Text) -> anyhow::Result<()> {
    let program = match text.program {
        Some(program) => program,
        None => std::env::current_exe()?.parent().context("this program is in no folder")?.join("ragmux"),
    };
    ensure!(program.exists(), "{} is not there: build it, or name it with --program", program.display());
    say(&format!("{:<44} {:>8} {:>7} {:>9}  result", "file", "words", "recall", "precision"));
    let mut recalls = Vec::new();
    for file in files(&text.paths)? {
        let reference = reference(&file).await?;
        let ours = ours(&program, &file).await?;
        let overlap = Overlap::of(&reference, &words(ours.get("text").and_then(Value::as_str).unwrap_or_default()));
        recalls.extend(overlap.recall());
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        say(&format!("{:<44.44} {} {}", name, overlap.columns(), result(&ours)));
    }
    let mean = recalls.iter().sum::<f64>() / recalls.len().max(1) as f64;
    say(&format!("mean word recall {mean:.4} of {} files in which pdftotext finds words", recalls.len()));
    match text.at_least {
        Some(least) if mean < least => bail!("the mean is below {least}"),
        _ => Ok(()),
    }
}

fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let listed =
                std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
            files.extend(listed.into_iter().filter(|file| file.extension().is_some_and(|e| e == "pdf")));
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    Ok(files)
}

/// No words if the reference cannot read the file either.
async fn reference(file: &Path) -> anyhow::Result<Words> {
    let run = Command::new("pdftotext").args(["-q", "-enc", "UTF-8"]).arg(file).arg("-").kill_on_drop(true).output();
    match timeout(REFERENCE_LIMIT, run).await {
        Ok(output) => {
            let output = output.context("pdftotext cannot be run; Debian has it in poppler-utils")?;
            Ok(words(&String::from_utf8_lossy(&output.stdout)))
        }
        Err(_) => Ok(Words::new()),
    }
}

async fn ours(program: &Path, file: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(program);
    if program.file_name().is_some_and(|name| name == "ragmux") {
        command.arg("ingestion-worker");
    }
    let run = command.arg("preview").arg(file).kill_on_drop(true).output();
    let output = timeout(PARSER_LIMIT, run).await.context("the parser did not end")??;
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!("{} gave no answer: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim())
    })
}

fn result(ours: &Value) -> String {
    match ours.get("code").and_then(Value::as_str) {
        Some(code) => code.to_owned(),
        None => {
            let engine = ours.get("engine").and_then(Value::as_str).unwrap_or_default();
            let sanity = ours.get("sanity").and_then(Value::as_f64).unwrap_or_default();
            format!("{engine} {sanity}")
        }
    }
}

/// Words and how often each is there; words divided at a line's end are joined.
fn words(text: &str) -> Words {
    let text: String = text.nfkc().flat_map(char::to_lowercase).collect();
    let text = text.replace("-\n", "").replace("\u{2010}\n", "");
    let mut words = Words::new();
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        let alone = is_ideograph(c);
        if c.is_alphanumeric() && !alone {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            *words.entry(std::mem::take(&mut word)).or_default() += 1;
        }
        if alone {
            *words.entry(c.to_string()).or_default() += 1;
        }
    }
    words
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

struct Overlap {
    reference: usize,
    ours: usize,
    common: usize,
}

impl Overlap {
    fn of(reference: &Words, ours: &Words) -> Self {
        let common = reference.iter().map(|(word, count)| *count.min(ours.get(word).unwrap_or(&0))).sum();
        Self { reference: reference.values().sum(), ours: ours.values().sum(), common }
    }

    fn recall(&self) -> Option<f64> {
        (self.reference > 0).then(|| self.common as f64 / self.reference as f64)
    }

    fn columns(&self) -> String {
        let share = |of: usize| if of > 0 { format!("{:.4}", self.common as f64 / of as f64) } else { "-".to_owned() };
        format!("{:>8} {:>7} {:>9} ", self.reference, share(self.reference), share(self.ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_as_bags_without_case_or_shape() {
        let overlap = Overlap::of(&words("The ﬁrst, the hyphen-\nated 日本"), &words("THE first hyphenated 日"));
        assert_eq!((overlap.reference, overlap.ours, overlap.common), (6, 4, 4));
        assert_eq!(Overlap::of(&words(""), &words("x")).recall(), None);
    }
}
