//! Type 3 fonts whose glyphs have names of their author's own.
//!
//! The glyphs of such a font are drawings (ISO 32000-1, 9.6.5), and a drawing called `triangle` may be the letter that
//! its code says. The engine goes by the names; where it makes a sign of what has the code of a letter or digit, the code
//! is believed, as other readers do.

use std::collections::HashMap;

use pdf_oxide::PdfDocument;
use pdf_oxide::fonts::FontInfo;
use pdf_oxide::object::Object;

/// Signs of a page's Type 3 fonts, and the letters that are meant.
pub(super) struct Drawn(HashMap<char, char>);

impl Drawn {
    /// Looks at the fonts of a page, counted from 0.
    pub(super) fn of_page(document: &PdfDocument, index: usize) -> Self {
        let mut meant = HashMap::new();
        for font in fonts(document, index).unwrap_or_default() {
            for (sign, letter) in signs(document, &font).unwrap_or_default() {
                meant.insert(sign, letter);
            }
        }
        Self(meant)
    }

    /// The text with the letters in the place of the signs.
    pub(super) fn read(&self, text: String) -> String {
        if self.0.is_empty() {
            return text;
        }
        text.chars().map(|c| self.0.get(&c).copied().unwrap_or(c)).collect()
    }
}

fn fonts(document: &PdfDocument, index: usize) -> Option<Vec<Object>> {
    let page = document.get_page(index).ok()?;
    let resources = document.resolve_object(page.as_dict()?.get("Resources")?).ok()?;
    let fonts = document.resolve_object(resources.as_dict()?.get("Font")?).ok()?;
    Some(fonts.as_dict()?.values().filter_map(|font| document.resolve_object(font).ok()).collect())
}

/// The codes of letters and digits for which the engine goes by a name and makes a sign of it.
fn signs(document: &PdfDocument, font: &Object) -> Option<Vec<(char, char)>> {
    let dictionary = font.as_dict()?;
    if dictionary.get("Subtype")?.as_name() != Some("Type3") || dictionary.contains_key("ToUnicode") {
        return None;
    }
    let read = FontInfo::from_dict(font, document).ok()?;
    let letters = (0..=127u8).map(char::from).filter(char::is_ascii_alphanumeric);
    let signs = letters.filter_map(|letter| {
        let sign = read.char_to_unicode(u32::from(letter))?.chars().next()?;
        (!sign.is_alphanumeric() && !sign.is_ascii()).then_some((sign, letter))
    });
    Some(signs.collect())
}
