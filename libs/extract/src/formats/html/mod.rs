//! HTML: a real parser builds the tree, an explicit walk over it finds the content.

mod walk;

use scraper::{Html, Node};

use crate::{
    ExtractError, Summary, decode,
    emit::{Emitter, Outline},
};

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let decoded = decode::decode(bytes, declared_charset(bytes).as_deref())?;
    let mut outline = Outline::new(emitter);
    let title = content(&decoded.text, &mut outline)?;
    outline.finish()?;
    Ok(Summary { title, charset: Some(decoded.charset.to_owned()), engine: "html".to_owned(), ..Summary::default() })
}

/// Writes what is to be read of a page; returns its title.
pub(super) fn content(source: &str, outline: &mut Outline<'_, '_>) -> Result<Option<String>, ExtractError> {
    let html = Html::parse_document(source);
    walk::content(&html, outline)?;
    Ok(title(&html))
}

/// The label of a `meta` element in the first kilobyte (HTML Standard, 13.2.3.2 "prescan a byte stream", simplified:
/// both forms of the element contain `charset=`).
fn declared_charset(bytes: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(bytes.get(..1024).unwrap_or(bytes)).to_ascii_lowercase();
    head.split("<meta").skip(1).find_map(|meta| {
        let meta = meta.split('>').next()?;
        let (_, value) = meta.split_once("charset")?;
        let value = value.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
        let label: String = value.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_:.".contains(*c)).collect();
        (!label.is_empty()).then_some(label)
    })
}

fn title(html: &Html) -> Option<String> {
    let element = html.tree.nodes().find(|n| matches!(n.value(), Node::Element(e) if e.name() == "title"))?;
    let text: String = element.children().filter_map(|n| n.value().as_text().map(|t| t.to_string())).collect();
    let title = crate::emit::clean(&text).split_whitespace().collect::<Vec<_>>().join(" ");
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockKind, Extracted, Format};

    fn read(source: &str) -> Extracted {
        let mut all = Extracted::default();
        let summary = crate::extract(Format::Html, crate::Engine::First, source.as_bytes(), &mut |page| {
            all.push(page);
            Ok(())
        })
        .unwrap();
        all.summary = summary;
        all
    }

    fn text(all: &Extracted) -> String {
        let blocks = all.pages.iter().flat_map(|p| &p.sections).flat_map(|s| &s.blocks);
        blocks.map(|b| b.text.as_str()).collect::<Vec<_>>().join("\n\n")
    }

    #[test]
    fn content_is_kept_and_furniture_is_not() {
        let all = read(
            "<title>My  page</title><style>p{}</style><nav>menu</nav><body><h1>Head</h1><p>One <b>bold</b>\n word.\
             <script>alert(1)</script></p><img alt='a chart'><h2>Sub</h2><div>two<br>lines</div>\
             <footer>imprint</footer><p hidden>secret</p>",
        );
        assert_eq!(all.summary.title.as_deref(), Some("My page"));
        assert_eq!(text(&all), "Head\n\nOne bold word.\n\na chart\n\nSub\n\ntwo\nlines");
        assert_eq!(all.pages[0].sections[1].heading_path, ["Head", "Sub"]);
    }

    #[test]
    fn main_is_preferred_when_it_has_text() {
        assert_eq!(text(&read("<div>around</div><main><p>inside</p></main>")), "inside");
        assert_eq!(text(&read("<div>around</div><main></main>")), "around");
    }

    #[test]
    fn lists_and_tables_keep_their_shape() {
        let all = read(
            "<ul><li>one<li>two<ol start=3><li>deep</ol></ul>\
             <table><tr><th>Name<th>Price</tr><tr><td>Bolt<td>1.00</tr></table><pre>a\n  b</pre>",
        );
        let blocks = &all.pages[0].sections[0].blocks;
        assert_eq!(blocks[0].text, "- one\n- two\n  3. deep");
        assert_eq!(blocks[1].text, "Name | Price\nBolt | 1.00");
        assert_eq!(blocks[1].kind, BlockKind::Table);
        assert_eq!(blocks[2].text, "a\n  b");
    }

    #[test]
    fn a_table_that_only_places_things_is_read_through() {
        let all = read("<table><tr><td><h1>A</h1><p>x</p></td><td><table><tr><td>1<td>2</table></td></tr></table>");
        assert_eq!(text(&all), "A\n\nx\n\n1 | 2");
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = format!("{}deep{}", "<b><i>".repeat(2_000), "</i></b>".repeat(2_000));
        assert_eq!(text(&read(&deep)), "deep");
        let deep = format!("<p>x{}deep", "<span>".repeat(20_000));
        assert_eq!(text(&read(&deep)), "xdeep");
    }

    #[test]
    fn the_declared_charset_is_found() {
        assert_eq!(declared_charset(b"<meta charset=\"koi8-r\">").as_deref(), Some("koi8-r"));
        let long = b"<meta http-equiv='Content-Type' content='text/html; charset=Shift_JIS'>";
        assert_eq!(declared_charset(long).as_deref(), Some("shift_jis"));
        assert_eq!(declared_charset(b"<meta name=x>"), None);
    }
}
