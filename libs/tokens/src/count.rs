//! Exact counts, and what replaces them for long texts.

use std::sync::atomic::{AtomicBool, Ordering};

use bpe_openai::Tokenizer;

use crate::{Family, estimate};

/// Texts up to this many bytes are counted exactly where the vocabulary is known; longer ones are estimated upward, so
/// that a request of many megabytes cannot hold a core for long.
pub const EXACT_LIMIT_BYTES: usize = 256 * 1024;

/// How many windows of a long text are counted exactly, and how many bytes each has: an eighth of the work at the limit.
const WINDOWS: usize = 32;
const WINDOW_BYTES: usize = 1024;

/// Percent added to what the windows say, for the parts between them.
const MARGIN_PERCENT: usize = 5;

static O200K_IS_LOADED: AtomicBool = AtomicBool::new(false);
static CL100K_IS_LOADED: AtomicBool = AtomicBool::new(false);

/// Whether a text of this family is counted at once: its vocabulary has been loaded, or it needs none.
pub fn is_loaded(family: Family) -> bool {
    match family {
        Family::O200k => O200K_IS_LOADED.load(Ordering::Relaxed),
        Family::Cl100k => CL100K_IS_LOADED.load(Ordering::Relaxed),
        Family::Estimated => true,
    }
}

/// The number of tokens of `text` for a model of `family`.
///
/// Special tokens written out in the text (`<|endoftext|>`) count as the ordinary text they are sent as.
pub fn count(family: Family, text: &str) -> usize {
    let (tokenizer, is_loaded) = match family {
        Family::O200k => (bpe_openai::o200k_base(), &O200K_IS_LOADED),
        Family::Cl100k => (bpe_openai::cl100k_base(), &CL100K_IS_LOADED),
        Family::Estimated => return estimate(text),
    };
    let counted = if text.len() <= EXACT_LIMIT_BYTES { tokenizer.count(text) } else { count_upward(tokenizer, text) };
    is_loaded.store(true, Ordering::Relaxed);
    counted
}

/// The larger of two views of a long text: evenly spread windows scaled up, and the estimate from its characters. The
/// first knows the vocabulary, the second has read every character.
fn count_upward(tokenizer: &Tokenizer, text: &str) -> usize {
    let stride = text.len() / WINDOWS;
    let (mut bytes, mut tokens) = (0_usize, 0_usize);
    for n in 0..WINDOWS {
        let start = text.ceil_char_boundary(n * stride);
        let window = text.get(start..text.ceil_char_boundary(start + WINDOW_BYTES)).unwrap_or_default();
        bytes += window.len();
        tokens += tokenizer.count(window);
    }
    let scaled = tokens.saturating_mul(text.len()) / bytes.max(1);
    let with_margin = scaled.saturating_add(scaled.saturating_mul(MARGIN_PERCENT) / 100);
    with_margin.max(estimate(text)).min(text.len())
}
