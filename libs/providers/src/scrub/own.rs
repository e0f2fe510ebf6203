//! The connection's own credential, in the forms in which it travels.

use std::collections::HashSet;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Fewer characters of base64 than this may be part of any word.
const MIN_BASE64: usize = 6;

/// So many bytes of a credential in a row are no accident.
const PIECE: usize = 8;
/// Of a shorter credential a piece would be most of it, or any word.
const LONG: usize = 16;

/// Where the credential stands: whole in any of its forms, or a piece of it as it is.
pub(super) fn find(text: &str, own: &str) -> Vec<Range<usize>> {
    let mut found = whole(text, own);
    found.extend(pieces(text, own));
    found
}

/// Pieces of the credential, which a provider may cut before it says them again.
fn pieces(text: &str, own: &str) -> Vec<Range<usize>> {
    if own.len() < LONG {
        return Vec::new();
    }
    let (text, own) = (text.to_ascii_lowercase(), own.to_ascii_lowercase());
    let windows: HashSet<&[u8]> = own.as_bytes().windows(PIECE).collect();
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, window) in text.as_bytes().windows(PIECE).enumerate().filter(|(_, window)| windows.contains(window)) {
        let end = at + window.len();
        match found.last_mut().filter(|last| at <= last.end) {
            Some(last) => last.end = end,
            None => found.push(at..end),
        }
    }
    found
}

/// Where the whole credential stands: as it is, in other letters' case, percent-encoded in part or whole, or in base64, also
/// when other bytes stand around it there.
fn whole(text: &str, own: &str) -> Vec<Range<usize>> {
    let cores = base64_cores(own.as_bytes());
    let text = text.as_bytes();
    let mut found = Vec::new();
    for at in 0..text.len() {
        let plain = end_of(text, at, own.as_bytes(), |byte, own| byte.eq_ignore_ascii_case(&own));
        found.extend(plain.map(|end| at..end));
        for core in &cores {
            // All of the encoded text is a secret, not only what is the same wherever the credential stands in it.
            found.extend(end_of(text, at, core, |byte, own| byte == own).map(|end| {
                let before = text.iter().take(at).rev().take_while(|byte| is_base64(**byte)).count();
                let after = text.iter().skip(end).take_while(|byte| is_base64(**byte)).count();
                at - before..end + after
            }));
        }
    }
    found
}

/// Where a secret ends that begins at `at`, each byte as it is or as `%` with two hexadecimal digits (RFC 3986, 2.1);
/// the farthest, where a `%` of the secret leaves more than one reading.
fn end_of(text: &[u8], at: usize, secret: &[u8], same: impl Fn(u8, u8) -> bool) -> Option<usize> {
    let mut ends = vec![at];
    for own in secret {
        let mut next = Vec::with_capacity(2);
        for end in ends {
            if text.get(end).is_some_and(|byte| same(*byte, *own)) {
                next.push(end + 1);
            }
            if text.get(end..end + 3).and_then(unescaped).is_some_and(|byte| same(byte, *own)) {
                next.push(end + 3);
            }
        }
        next.dedup();
        ends = next;
        if ends.is_empty() {
            return None;
        }
    }
    ends.into_iter().max()
}

fn unescaped(escape: &[u8]) -> Option<u8> {
    let digits = escape.strip_prefix(b"%").filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Characters of either alphabet, and the `%` of their escapes.
fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/-_=%".contains(&byte)
}

/// The characters that a credential gives to any base64 text it is in. Three bytes become four characters, so what they
/// are depends on how many bytes stand before, modulo three; those at its edges hold bits of its neighbours.
fn base64_cores(own: &[u8]) -> Vec<Vec<u8>> {
    let mut cores = Vec::new();
    for (before, shared) in [(0, 0), (1, 2), (2, 3)] {
        let bytes = [vec![0; before], own.to_vec()].concat();
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let mut core = engine.encode(&bytes).into_bytes();
            if bytes.len() % 3 != 0 {
                core.pop();
            }
            let core = core.get(shared..).unwrap_or_default();
            if core.len() >= MIN_BASE64 {
                cores.push(core.to_vec());
            }
        }
    }
    cores.sort_unstable();
    cores.dedup();
    cores
}
