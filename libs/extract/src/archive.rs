//! Checks of ZIP packages before anything in them is parsed.

use std::io::{Cursor, Read};

use domain::DocumentFailure;
use zip::ZipArchive;

/// Entries in one package.
const MAX_ENTRIES: usize = 10_000;
/// Inflated bytes of all entries.
const MAX_INFLATED_BYTES: u64 = 1024 * 1024 * 1024;
/// Inflated bytes for each compressed one.
const MAX_RATIO: u64 = 200;
/// Small entries may compress as well as they like: repeated XML does.
const RATIO_FROM_BYTES: u64 = 1024 * 1024;

/// Looks at the directory of the package. The sizes in it are claims; parsers count what they really inflate.
pub(crate) fn check(bytes: &[u8]) -> Result<ZipArchive<Cursor<&[u8]>>, DocumentFailure> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|_| DocumentFailure::Corrupt)?;
    if archive.len() > MAX_ENTRIES {
        return Err(DocumentFailure::ArchiveBomb);
    }
    let mut inflated = 0u64;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(|_| DocumentFailure::Corrupt)?;
        inflated = inflated.saturating_add(entry.size());
        let bomb = entry.size() > RATIO_FROM_BYTES && entry.size() / entry.compressed_size().max(1) > MAX_RATIO;
        if bomb || inflated > MAX_INFLATED_BYTES {
            return Err(DocumentFailure::ArchiveBomb);
        }
    }
    Ok(archive)
}

/// Inflates every entry to nowhere, for parsers that do not count themselves what they inflate.
pub(crate) fn check_inflated(bytes: &[u8]) -> Result<(), DocumentFailure> {
    let mut archive = check(bytes)?;
    let mut left = MAX_INFLATED_BYTES;
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|_| DocumentFailure::Corrupt)?;
        let allowed = (entry.compressed_size().saturating_mul(MAX_RATIO)).max(RATIO_FROM_BYTES).min(left);
        // A damaged entry is found out by who needs it.
        let read = std::io::copy(&mut entry.take(allowed + 1), &mut std::io::sink()).unwrap_or(0);
        if read > allowed {
            return Err(DocumentFailure::ArchiveBomb);
        }
        left -= read;
    }
    Ok(())
}

/// Reads a small entry; none if it is absent, damaged or larger than `max_bytes`.
pub(crate) fn small_entry(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    archive.by_name(name).ok()?.take(max_bytes + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= max_bytes).then_some(bytes)
}
