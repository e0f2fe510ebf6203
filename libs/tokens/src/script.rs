//! The kinds of characters that a vocabulary treats alike, and what a run of them costs.

/// A kind of character. Letters and the marks that combine with them are of one kind, so that a word is one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Latin,
    Cyrillic,
    Greek,
    Armenian,
    Georgian,
    Arabic,
    Hebrew,
    Devanagari,
    Indic,
    /// Scripts of India and Sri Lanka that vocabularies hardly know.
    RareIndic,
    Thai,
    /// Lao, Khmer, Burmese.
    Mainland,
    Han,
    Kana,
    Hangul,
    /// Letters of every other script.
    OtherLetter,
    Digit,
    Space,
    /// Punctuation and symbols of ASCII.
    Ascii,
    /// Punctuation and symbols outside ASCII, pictographs.
    Symbol,
    /// Controls, formats, private use, what is not assigned.
    Other,
}

/// Hundredths of a token for a run of `n` characters: a whole token up to `free` characters, then `per_char` for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) free: u64,
    pub(crate) per_char: u64,
}

impl Rate {
    pub(crate) fn cost(self, chars: u64) -> u64 {
        100 + chars.saturating_sub(self.free).saturating_mul(self.per_char)
    }
}

/// A word of small ASCII letters.
pub(crate) const LATIN: Rate = Rate { free: 4, per_char: 20 };
/// A Latin word with letters outside ASCII.
pub(crate) const LATIN_MARKED: Rate = Rate { free: 2, per_char: 38 };
/// A word of small ASCII letters between such words, in a language whose words vocabularies know little.
pub(crate) const LATIN_FOREIGN: Rate = Rate { free: 3, per_char: 32 };
/// A Latin word in capitals.
pub(crate) const LATIN_CAPITALS: Rate = Rate { free: 2, per_char: 38 };
/// Latin letters that follow a digit or mix cases without being a word: identifiers, hexadecimal, base64.
pub(crate) const LATIN_NOISE: Rate = Rate { free: 1, per_char: 48 };

impl Kind {
    /// What a run of this kind costs; for kinds not counted by run, what a character costs.
    pub(crate) fn rate(self) -> Rate {
        let (free, per_char) = match self {
            Self::Latin => return LATIN,
            Self::Cyrillic => (3, 35),
            Self::Greek => (3, 50),
            Self::Armenian | Self::Georgian => (2, 34),
            Self::Arabic => (2, 36),
            Self::Hebrew => (1, 40),
            Self::Devanagari => (2, 41),
            Self::Indic => (2, 45),
            Self::RareIndic => (1, 65),
            Self::Thai => (2, 46),
            Self::Mainland => (1, 64),
            Self::Han => (1, 100),
            Self::Kana => (1, 75),
            Self::Hangul => (1, 76),
            Self::OtherLetter => (1, 200),
            Self::Digit => (3, 34),
            Self::Space => (1, 4),
            Self::Ascii => (1, 50),
            Self::Symbol => (1, 150),
            Self::Other => (1, 200),
        };
        Rate { free, per_char }
    }

    pub(crate) fn of(c: char) -> Self {
        if c.is_ascii() {
            return match c {
                'a'..='z' | 'A'..='Z' => Self::Latin,
                '0'..='9' => Self::Digit,
                ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' => Self::Space,
                _ if c.is_ascii_control() => Self::Other,
                _ => Self::Ascii,
            };
        }
        if c.is_whitespace() {
            return Self::Space;
        }
        match u32::from(c) {
            0xd7 | 0xf7 => Self::Symbol,
            0xaa | 0xba | 0xc0..=0x24f | 0x250..=0x36f | 0x1e00..=0x1eff | 0x2c60..=0x2c7f | 0xa720..=0xa7ff => {
                Self::Latin
            }
            0x370..=0x3ff | 0x1f00..=0x1fff => Self::Greek,
            0x400..=0x52f => Self::Cyrillic,
            0x530..=0x58f => Self::Armenian,
            0x590..=0x5ff | 0xfb1d..=0xfb4f => Self::Hebrew,
            0x600..=0x6ff | 0x750..=0x77f | 0x8a0..=0x8ff | 0xfb50..=0xfdff | 0xfe70..=0xfeff => Self::Arabic,
            0x900..=0x97f => Self::Devanagari,
            0xa00..=0xa7f | 0xb00..=0xb7f | 0xd80..=0xdff => Self::RareIndic,
            0x980..=0xd7f => Self::Indic,
            0xe00..=0xe7f => Self::Thai,
            0xe80..=0xeff | 0x1000..=0x109f | 0x1780..=0x17ff => Self::Mainland,
            0x10a0..=0x10ff | 0x1c90..=0x1cbf => Self::Georgian,
            0x3040..=0x30ff | 0x31f0..=0x31ff | 0xff66..=0xff9f => Self::Kana,
            0x2e80..=0x2fdf | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff => Self::Han,
            0x1100..=0x11ff | 0x3130..=0x318f | 0xac00..=0xd7af => Self::Hangul,
            0x80..=0x9f | 0xe000..=0xf8ff => Self::Other,
            _ if c.is_alphabetic() => Self::OtherLetter,
            0xa0..=0xffff | 0x1f000..=0x1faff => Self::Symbol,
            _ => Self::Other,
        }
    }
}
