//! Widths of glyphs, spelled out for the first engine.
//!
//! The widths of a composite font come as lists, and as ranges with one width (ISO 32000-1, 9.7.4.3). The engine reads
//! only lists right; with a wrong width every word of the text falls apart. Browsers and office suites write ranges.

use pdf_extract::{Document, Object, ObjectId};

/// Codes of one font: there are no more.
const MAX_CODES: usize = 1 << 16;

/// Turns ranges into lists in all fonts of the document.
pub(super) fn spell_out(document: &mut Document) {
    let mut changes: Vec<(ObjectId, Vec<Object>)> = Vec::new();
    for (id, object) in &document.objects {
        if let Some(widths) = widths(document, object).and_then(|widths| lists(document, widths)) {
            changes.push((*id, widths));
        }
    }
    for (id, widths) in changes {
        if let Some(Object::Dictionary(font)) = document.objects.get_mut(&id) {
            font.set("W", Object::Array(widths));
        }
    }
}

fn widths<'d>(document: &'d Document, object: &'d Object) -> Option<&'d Vec<Object>> {
    let font = object.as_dict().ok()?;
    font.get(b"DescendantFonts").is_err().then_some(())?;
    resolve(document, font.get(b"W").ok()?)?.as_array().ok()
}

/// The same widths as lists only; none if there is nothing to change, or no sense in it.
fn lists(document: &Document, widths: &[Object]) -> Option<Vec<Object>> {
    let mut out = Vec::new();
    let mut codes = 0;
    let mut changed = false;
    let mut rest = widths;
    while let [first, after @ ..] = rest {
        let from = resolve(document, first)?.as_i64().ok()?;
        let (next, after) = after.split_first()?;
        let next_value = resolve(document, next)?;
        let list = if let Object::Array(list) = next_value {
            changed |= matches!(next, Object::Reference(_));
            rest = after;
            list.clone()
        } else {
            let (width, after) = after.split_first()?;
            let to = next_value.as_i64().ok()?;
            let count = usize::try_from(to.checked_sub(from)?.checked_add(1)?).ok()?;
            changed = true;
            rest = after;
            vec![resolve(document, width)?.clone(); count.min(MAX_CODES)]
        };
        codes += list.len();
        if codes > MAX_CODES {
            return None;
        }
        out.extend([Object::Integer(from), Object::Array(list)]);
    }
    changed.then_some(out)
}

/// What a reference stands for; references to references are followed by nobody.
fn resolve<'d>(document: &'d Document, object: &'d Object) -> Option<&'d Object> {
    match object {
        Object::Reference(id) => document.objects.get(id),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use pdf_extract::Dictionary;

    use super::*;

    #[test]
    fn ranges_become_lists_and_nonsense_stays() {
        let font = |widths: Vec<Object>| {
            let mut document = Document::new();
            let id = document.add_object(Dictionary::from_iter([("W", Object::Array(widths))]));
            spell_out(&mut document);
            document.get_dictionary(id).unwrap().get(b"W").unwrap().as_array().unwrap().clone()
        };
        let int = Object::Integer;
        let list = |widths: &[i64]| Object::Array(widths.iter().map(|w| Object::Integer(*w)).collect());
        let mixed = vec![int(1), list(&[7, 8]), int(10), int(12), int(500)];
        assert_eq!(font(mixed), [int(1), list(&[7, 8]), int(10), list(&[500, 500, 500])]);
        for nonsense in [vec![int(5), int(2), int(1)], vec![int(0), int(i64::MAX), int(1)], vec![int(1)]] {
            assert_eq!(font(nonsense.clone()), nonsense);
        }
    }
}
