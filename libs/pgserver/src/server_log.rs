//! Reading the reason of a failure out of what a program wrote.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// How much of a log's end is looked at, in bytes.
const TAIL_BYTES: u64 = 8 * 1024;

/// The end of a log; empty when it cannot be read.
pub(crate) fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The line that says why: the last fatal one, else the last one that is not a hint, without time and severity.
pub(crate) fn reason(text: &str) -> String {
    const GRAVE: [&str; 4] = ["PANIC:", "FATAL:", "ERROR:", "error:"];
    let grave = text
        .lines()
        .rev()
        .find_map(|line| GRAVE.iter().find_map(|mark| line.split_once(mark)).map(|(_, message)| message.trim()));
    let last = || text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    grave.or_else(last).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_fatal_line_is_the_reason_even_when_others_follow() {
        let log = "2026-01-01 10:00:00.1 UTC [7] LOG:  starting\n\
                   2026-01-01 10:00:00.2 UTC [7] FATAL:  could not open file \"x\"\n\
                   2026-01-01 10:00:00.3 UTC [7] LOG:  database system is shut down\n";
        assert_eq!(reason(log), "could not open file \"x\"");
    }

    #[test]
    fn without_a_fatal_line_the_last_words_count() {
        assert_eq!(reason("first\nlast words\n\n"), "last words");
        assert_eq!(reason(""), "it said nothing");
    }
}
