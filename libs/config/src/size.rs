//! Sizes of things in bytes.

use std::fmt;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    /// That many bytes.
    #[must_use]
    pub const fn bytes(count: u64) -> Self {
        Self(count)
    }

    /// That many times 1024 bytes, at most what fits.
    #[must_use]
    pub const fn kibibytes(count: u64) -> Self {
        Self(count.saturating_mul(KIB))
    }

    /// That many times 1024² bytes, at most what fits.
    #[must_use]
    pub const fn mebibytes(count: u64) -> Self {
        Self(count.saturating_mul(MIB))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as an index type; the largest one where it does not fit.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes % MIB == 0 => write!(f, "{} MiB", bytes / MIB),
            bytes if bytes > 0 && bytes % KIB == 0 => write!(f, "{} KiB", bytes / KIB),
            bytes => write!(f, "{bytes} B"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits_exactly() {
        assert_eq!(Size::mebibytes(50).to_string(), "50 MiB");
        assert_eq!(Size::kibibytes(256).to_string(), "256 KiB");
        assert_eq!(Size::bytes(1025).to_string(), "1025 B");
        assert_eq!(Size::bytes(0).to_string(), "0 B");
        assert_eq!(Size::mebibytes(2).as_bytes(), 2_097_152);
    }

    #[test]
    fn a_size_too_large_to_count_is_the_largest_one() {
        assert_eq!(Size::mebibytes(u64::MAX).as_bytes(), u64::MAX);
    }
}
