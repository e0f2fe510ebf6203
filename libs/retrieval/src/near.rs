//! Whether two passages say the same in nearly the same words.
//!
//! Resemblance of sets of shingles, estimated from sketches (Broder 1997): a text is the set of its runs of three terms,
//! a sketch the smallest hashes of that set, and how many of the smallest hashes of both together are in both tells how
//! much the sets share.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::analyzer::{Language, analyze};

/// Terms of a shingle.
const SHINGLE: usize = 3;
/// Hashes of a sketch: the estimate is off by 3 % or so where it matters.
const SKETCH: usize = 128;
/// From this on two texts are the same.
const SAME: f64 = 0.9;

/// A text, for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sketch {
    /// The smallest hashes, ascending.
    smallest: Vec<u64>,
    /// Its numbers and codes, all of them: texts that differ in one say something else, however much else they share.
    figures: BTreeSet<String>,
}

impl Sketch {
    pub(crate) fn of(text: &str) -> Self {
        let terms: Vec<String> = analyze(text, Language::NONE).into_iter().map(|term| term.text).collect();
        let hashes: BTreeSet<u64> = if terms.len() < SHINGLE {
            BTreeSet::from([hash(&terms)])
        } else {
            terms.windows(SHINGLE).map(hash).collect()
        };
        let figures = terms.into_iter().filter(|term| term.contains(char::is_numeric)).collect();
        Self { smallest: hashes.into_iter().take(SKETCH).collect(), figures }
    }

    /// Whether both texts say the same.
    pub(crate) fn is_near(&self, other: &Self) -> bool {
        self.figures == other.figures && self.resemblance(other) >= SAME
    }

    fn resemblance(&self, other: &Self) -> f64 {
        let (mut mine, mut theirs) = (self.smallest.iter().peekable(), other.smallest.iter().peekable());
        let (mut looked_at, mut shared) = (0_u32, 0_u32);
        while let (Some(a), Some(b), true) = (mine.peek(), theirs.peek(), looked_at < SKETCH as u32) {
            looked_at += 1;
            match a.cmp(b) {
                std::cmp::Ordering::Less => mine.next(),
                std::cmp::Ordering::Greater => theirs.next(),
                std::cmp::Ordering::Equal => {
                    shared += 1;
                    mine.next();
                    theirs.next()
                }
            };
        }
        // What one has left where the other has ended is in one alone, unless the sketch is full.
        let rest = u32::try_from(mine.len() + theirs.len()).unwrap_or(u32::MAX);
        let looked_at = looked_at.saturating_add(rest).min(SKETCH as u32).max(looked_at).max(1);
        f64::from(shared) / f64::from(looked_at)
    }
}

/// The same in one process, which is all that is asked: sketches are kept nowhere.
fn hash(terms: &(impl AsRef<[String]> + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    terms.as_ref().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: &str, b: &str) -> bool {
        let (a, b) = (Sketch::of(a), Sketch::of(b));
        assert_eq!(a.is_near(&b), b.is_near(&a));
        a.is_near(&b)
    }

    /// Distinct words.
    fn words(from: usize, to: usize) -> String {
        let letters = |n: usize| n.to_string().chars().map(|c| char::from(b'a' + c as u8 - b'0')).collect::<String>();
        (from..to).map(|n| format!("w{}", letters(n))).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_same_words_in_another_dress_are_the_same() {
        assert!(near("Descale the boiler every month.", "descale  THE boiler: every month"));
        assert!(near("", " "));
        assert!(near("咖啡机的水箱在后面", "咖啡机的水箱在后面。"));
        let text = words(0, 200);
        assert!(near(&text, &format!("{text} and more")));
    }

    #[test]
    fn texts_that_share_half_or_overlap_are_not() {
        assert!(!near(&words(0, 200), &words(100, 300)));
        assert!(!near(&words(0, 200), &words(0, 150)));
        assert!(!near(&words(0, 40), &words(0, 2000)));
        assert!(!near("a b c", "a b d"));
        assert!(!near("on", "off"));
    }

    #[test]
    fn a_number_makes_another_text() {
        let text = words(0, 300);
        assert!(!near(&format!("{text} error E1001"), &format!("{text} error E1002")));
        assert!(!near(&format!("in 2023 {text}"), &format!("in 2024 {text}")));
        assert!(near(&format!("in 2023 {text}"), &format!("in  2023, {text}")));
    }

    #[test]
    fn the_estimate_is_close_to_what_is_shared() {
        // Of 398 shingles 198 are in both, and each has 100 of its own.
        let estimated = Sketch::of(&words(0, 300)).resemblance(&Sketch::of(&words(100, 400)));
        assert!((estimated - 198.0 / 398.0).abs() < 0.15, "{estimated}");
        assert_eq!(Sketch::of("a b c d").resemblance(&Sketch::of("a b c d")), 1.0);
        assert!((Sketch::of("a b c d").resemblance(&Sketch::of("a b c x")) - 1.0 / 3.0).abs() < 1e-9);
    }
}
