//! The languages that change how words are cut.

use rust_stemmers::{Algorithm, Stemmer};
use whatlang::{Lang, Script};

/// A language with a stemmer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Language(Option<Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Arabic,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Greek,
    Hungarian,
    Italian,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Tamil,
    Turkish,
}

/// ISO 639-1 code, the detector's name, and the stemmer of each.
const KNOWN: &[(Known, &str, Lang, Algorithm)] = &[
    (Known::Arabic, "ar", Lang::Ara, Algorithm::Arabic),
    (Known::Danish, "da", Lang::Dan, Algorithm::Danish),
    (Known::Dutch, "nl", Lang::Nld, Algorithm::Dutch),
    (Known::English, "en", Lang::Eng, Algorithm::English),
    (Known::Finnish, "fi", Lang::Fin, Algorithm::Finnish),
    (Known::French, "fr", Lang::Fra, Algorithm::French),
    (Known::German, "de", Lang::Deu, Algorithm::German),
    (Known::Greek, "el", Lang::Ell, Algorithm::Greek),
    (Known::Hungarian, "hu", Lang::Hun, Algorithm::Hungarian),
    (Known::Italian, "it", Lang::Ita, Algorithm::Italian),
    (Known::Norwegian, "no", Lang::Nob, Algorithm::Norwegian),
    (Known::Portuguese, "pt", Lang::Por, Algorithm::Portuguese),
    (Known::Romanian, "ro", Lang::Ron, Algorithm::Romanian),
    (Known::Russian, "ru", Lang::Rus, Algorithm::Russian),
    (Known::Spanish, "es", Lang::Spa, Algorithm::Spanish),
    (Known::Swedish, "sv", Lang::Swe, Algorithm::Swedish),
    (Known::Tamil, "ta", Lang::Tam, Algorithm::Tamil),
    (Known::Turkish, "tr", Lang::Tur, Algorithm::Turkish),
];

/// The detector reads at most this much; more says nothing new.
const DETECT_BYTES: usize = 4096;

impl Language {
    /// No stemming: words are compared as they are written.
    pub const NONE: Self = Self(None);
    /// English.
    pub const ENGLISH: Self = Self(Some(Known::English));

    /// The language of an ISO 639-1 code, with or without a region (`pt-BR`); [`Self::NONE`] if there is no stemmer
    /// for it, which is right for languages that need none.
    #[must_use]
    pub fn from_code(code: &str) -> Self {
        let code = code.split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
        // Both written standards of Norwegian share the stemmer.
        let code = if matches!(code.as_str(), "nb" | "nn") { "no" } else { code.as_str() };
        Self(KNOWN.iter().find(|k| k.1 == code).map(|k| k.0))
    }

    /// The language of a text of at least a sentence or two; [`Self::NONE`] when in doubt.
    #[must_use]
    pub fn detect(text: &str) -> Self {
        let start = text.get(..text.floor_char_boundary(DETECT_BYTES)).unwrap_or_default();
        let found = whatlang::detect(start).filter(whatlang::Info::is_reliable);
        Self(found.and_then(|info| KNOWN.iter().find(|k| k.2 == info.lang())).map(|k| k.0))
    }

    /// The languages a short query may be in when its store names none: the detected one if that is certain, else all
    /// that share its script. Always with [`Self::NONE`], which finds words of documents in no certain language.
    #[must_use]
    pub fn candidates(query: &str) -> Vec<Self> {
        let detected = Self::detect(query);
        if detected != Self::NONE {
            return vec![detected, Self::NONE];
        }
        let script = whatlang::detect_script(query);
        let mut all = vec![Self::NONE];
        all.extend(KNOWN.iter().filter(|k| script == Some(script_of(k.0))).map(|k| Self(Some(k.0))));
        all
    }

    /// The ISO 639-1 code; none for [`Self::NONE`].
    #[must_use]
    pub fn code(self) -> Option<&'static str> {
        self.entry().map(|k| k.1)
    }

    /// Whether articles and pronouns are written onto the next word with an apostrophe.
    pub(super) fn elides(self) -> bool {
        matches!(self.0, Some(Known::French | Known::Italian))
    }

    pub(super) fn stemmer(self) -> Option<Stemmer> {
        self.entry().map(|k| Stemmer::create(k.3))
    }

    fn entry(self) -> Option<&'static (Known, &'static str, Lang, Algorithm)> {
        KNOWN.iter().find(|k| Some(k.0) == self.0)
    }
}

fn script_of(language: Known) -> Script {
    match language {
        Known::Arabic => Script::Arabic,
        Known::Greek => Script::Greek,
        Known::Russian => Script::Cyrillic,
        Known::Tamil => Script::Tamil,
        _ => Script::Latin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_with_their_regions() {
        assert_eq!(Language::from_code("en-GB"), Language::ENGLISH);
        assert_eq!(Language::from_code("PT_br").code(), Some("pt"));
        assert_eq!(Language::from_code("nn").code(), Some("no"));
        assert_eq!(Language::from_code("zh"), Language::NONE);
        for (_, code, _, _) in KNOWN {
            assert_eq!(Language::from_code(code).code(), Some(*code));
        }
    }

    #[test]
    fn a_paragraph_is_recognised_and_a_word_is_not_guessed() {
        let german = "Der Vertrag beginnt am ersten Tag des Monats und läuft auf unbestimmte Zeit, sofern er nicht \
                      schriftlich gekündigt wird. Die Kündigungsfrist beträgt drei Monate zum Ende des Jahres.";
        assert_eq!(Language::detect(german).code(), Some("de"));
        assert_eq!(Language::detect("x"), Language::NONE);
        assert!(Language::candidates("Häuser").contains(&Language::from_code("de")));
        assert!(!Language::candidates("дом").contains(&Language::ENGLISH));
        assert!(Language::candidates("дом").contains(&Language::from_code("ru")));
    }
}
