//! Ids of calls as a provider takes them.
//!
//! A conversation may have been with other providers before, and their ids may be none to this one. Those are changed on
//! their way there, in call and result alike, and in every request to the same: what a provider has cached of the
//! conversation stays the same too. Nothing is changed on the way back: the client keeps the ids that it knows, and
//! answers name no calls but their own.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;

use crate::json::{Splices, literal, span, text_of};

/// What a provider takes for the id of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdRule {
    /// Any text.
    Any,
    /// Letters and digits of ASCII, `_` and `-`, of any number.
    Word,
    /// So many letters and digits of ASCII, neither more nor fewer.
    Alphanumeric(usize),
    /// At most so many characters.
    AtMost(usize),
    /// The same, where what is cut off is to be told by what is left.
    Shortened(usize),
}

impl IdRule {
    pub(crate) fn takes(self, id: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Word => !id.is_empty() && id.bytes().all(is_of_word),
            Self::Alphanumeric(length) => id.len() == length && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            Self::AtMost(most) | Self::Shortened(most) => id.len() <= most || id.chars().count() <= most,
        }
    }

    /// An id that is taken, made of one that is not. Whoever has that id already tries again.
    fn fitted(self, id: &str, attempt: u64) -> String {
        match self {
            Self::Any => id.to_owned(),
            Self::Word => {
                let mut fitted = escaped(id);
                if attempt > 0 || fitted.is_empty() {
                    fitted.push_str(&format!("_{attempt}"));
                }
                fitted
            }
            Self::Alphanumeric(length) => {
                let mut digest = digest(id, attempt);
                let mut letters = String::with_capacity(length);
                for _ in 0..length {
                    let place = usize::try_from(digest % 62).unwrap_or_default();
                    letters.push(char::from(ALPHANUMERICS.get(place).copied().unwrap_or(b'0')));
                    digest /= 62;
                }
                letters
            }
            Self::Shortened(most) => {
                let digest = format!("_{:016x}", digest(id, attempt));
                let begins: String = id.chars().take(most.saturating_sub(digest.len())).collect();
                begins + &digest
            }
            Self::AtMost(_) => format!("call_{:016x}", digest(id, attempt)),
        }
    }
}

const ALPHANUMERICS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Other letters by their numbers, so that an id can still be told from others by eye.
fn escaped(id: &str) -> String {
    let mut escaped = String::with_capacity(id.len() + 8);
    for letter in id.chars() {
        match u8::try_from(letter) {
            Ok(byte) if is_of_word(byte) => escaped.push(letter),
            _ => escaped.push_str(&format!("_{:x}_", u32::from(letter))),
        }
    }
    escaped
}

/// The same for the same id in every process and version: FNV-1a with the end of SplitMix64, which spreads it over all bits.
/// Every attempt begins with a state of its own, so that ids which have the same at one have not at the next.
fn digest(id: &str, attempt: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in id.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The ids of a request that are not taken, and what stands for them.
#[derive(Debug, Default)]
pub(crate) struct FittedIds<'a>(HashMap<Cow<'a, str>, String>);

impl<'a> FittedIds<'a> {
    /// For the ids of all calls and results. Ids that differ still do.
    pub(crate) fn new(rule: IdRule, ids: impl IntoIterator<Item = Cow<'a, str>>) -> Self {
        let (mut known, mut others) = (HashSet::new(), Vec::new());
        if rule == IdRule::Any {
            return Self::default();
        }
        for id in ids {
            if rule.takes(&id) {
                known.insert(id);
            } else {
                others.push(id);
            }
        }
        let mut fitted: HashMap<Cow<'a, str>, String> = HashMap::with_capacity(others.len());
        for id in others {
            if fitted.contains_key(&id) {
                continue;
            }
            let own = (0..).map(|attempt| rule.fitted(&id, attempt)).find(|own| !known.contains(own.as_str()));
            if let Some(own) = own {
                known.insert(Cow::Owned(own.clone()));
                fitted.insert(id, own);
            }
        }
        Self(fitted)
    }

    /// What stands for an id that is not taken.
    pub(crate) fn instead_of(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }

    /// An id, or what stands for it.
    pub(crate) fn fit<'i>(&self, id: &'i str) -> Cow<'i, str> {
        self.instead_of(id).map_or(Cow::Borrowed(id), |own| Cow::Owned(own.to_owned()))
    }

    /// Whether all are taken as they are.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Puts ids that a provider takes in place of those that it does not, in a request's bytes. `places` are all ids of calls
/// and results in `text`.
pub(crate) fn fit_ids(rule: IdRule, text: &str, places: &[&RawValue], splices: &mut Splices) {
    let ids = FittedIds::new(rule, places.iter().filter_map(|place| text_of(place)));
    if ids.is_empty() {
        return;
    }
    for place in places {
        if let Some(own) = text_of(place).and_then(|id| ids.instead_of(&id).map(literal)) {
            splices.replace(span(text, place.get()), own);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: [IdRule; 4] = [IdRule::Word, IdRule::Alphanumeric(9), IdRule::AtMost(40), IdRule::Shortened(40)];

    fn fitted<'a>(rule: IdRule, ids: &[&'a str]) -> FittedIds<'a> {
        FittedIds::new(rule, ids.iter().map(|id| Cow::Borrowed(*id)))
    }

    #[test]
    fn an_id_that_is_taken_stays_and_another_is_the_same_in_every_request() {
        for (rule, taken, other, own) in [
            (IdRule::Word, "toolu_01-a", "call:1", "call_3a_1".to_owned()),
            (IdRule::Alphanumeric(9), "D681PevKs", "toolu_01", fitted(RULES[1], &["toolu_01"]).fit("toolu_01").into()),
            (
                IdRule::AtMost(40),
                "call_1",
                &"x".repeat(41),
                fitted(RULES[2], &[&"x".repeat(41)]).fit(&"x".repeat(41)).into(),
            ),
        ] {
            let ids = fitted(rule, &[taken, other, "toolu_02", other]);
            assert_eq!((ids.instead_of(taken), ids.instead_of(other)), (None, Some(own.as_str())));
            assert!(rule.takes(&own), "{own}");
        }
        assert!(fitted(IdRule::Any, &["", "ü"]).is_empty());
        assert_eq!(fitted(IdRule::Word, &[""]).fit(""), "_0");
    }

    #[test]
    fn an_id_that_somebody_has_already_is_given_to_nobody_else() {
        let ids = fitted(IdRule::Word, &["call:1", "call_3a_1", "call_3a_1_1"]);
        assert_eq!((ids.fit("call:1"), ids.instead_of("call_3a_1")), ("call_3a_1_2".into(), None));
        for rule in RULES {
            let long = "an id that nobody takes: ".repeat(3);
            let own = fitted(rule, &[&long]).fit(&long).into_owned();
            let ids = fitted(rule, &[&long, &own]);
            assert!(ids.instead_of(&own).is_none() && ids.fit(&long) != own && rule.takes(&ids.fit(&long)), "{rule:?}");
        }
    }

    proptest! {
        #[test]
        fn ids_that_differ_still_do_and_all_are_taken(ids in proptest::collection::hash_set("[a-c:_0-9é]{0,12}|.{38,44}", 1..20)) {
            for rule in RULES {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                let map = fitted(rule, &ids);
                let made: HashSet<String> = ids.iter().map(|id| map.fit(id).into_owned()).collect();
                prop_assert_eq!(made.len(), ids.len());
                prop_assert!(made.iter().all(|id| rule.takes(id)));
            }
        }
    }
}
