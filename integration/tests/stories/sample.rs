//! The sample documents that ship with the launcher.

use std::path::{Path, PathBuf};

/// A sample document's bytes.
pub(crate) fn read(name: &str) -> anyhow::Result<Vec<u8>> {
    Ok(std::fs::read(folder().join(name))?)
}

/// The manual: a PDF of eight pages.
pub(crate) const MANUAL: &str = "aurora-7-service-manual.pdf";

/// A question that only page 4 of the manual answers, and what it says.
pub(crate) const QUESTION: &str = "At how many degrees does the thermal fuse open?";
pub(crate) const ANSWER: &str = "168 degrees";
pub(crate) const PAGE: i64 = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/local/sample")
}
