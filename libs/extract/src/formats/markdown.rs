//! Markdown: its own source is the text, its headings make the sections.

use std::ops::Range;

use pulldown_cmark::{Event, HeadingLevel, MetadataBlockKind, Options, Parser, Tag};

use crate::{
    BlockKind, ExtractError, Summary, decode,
    emit::{Emitter, Outline, table_blocks},
};

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let decoded = decode::decode(bytes, None)?;
    let source = decoded.text.as_str();
    let mut outline = Outline::new(emitter);
    let mut title = None;
    for block in blocks(source) {
        let text = source.get(block.range.clone()).unwrap_or_default();
        match block.kind {
            Kind::Heading(level, name) => {
                if level == 1 && title.is_none() && !name.trim().is_empty() {
                    title = Some(name.trim().to_owned());
                }
                outline.heading(level, &name)?;
            }
            Kind::Metadata => title = title.or_else(|| metadata_title(text)),
            Kind::Table => {
                let rows: Vec<String> = text.trim_end().lines().map(str::to_owned).collect();
                // The second line is the rule below the header.
                for group in table_blocks(&rows, 2) {
                    outline.block(BlockKind::Table, &group)?;
                }
            }
            Kind::Other(kind) => outline.block(kind, text)?,
        }
    }
    outline.finish()?;
    let charset = Some(decoded.charset.to_owned());
    Ok(Summary { title, charset, engine: "markdown".to_owned(), ..Summary::default() })
}

enum Kind {
    Heading(u8, String),
    Metadata,
    Table,
    Other(BlockKind),
}

struct Top {
    kind: Kind,
    range: Range<usize>,
}

/// The outermost blocks, in order. Source between them that the parser gives no event for (link definitions) belongs
/// to a block of its own, so that no text is lost.
fn blocks(source: &str) -> Vec<Top> {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS
        | Options::ENABLE_PLUSES_DELIMITED_METADATA_BLOCKS;
    let mut tops: Vec<Top> = Vec::new();
    let mut depth = 0usize;
    let mut covered = 0;
    let gap = |tops: &mut Vec<Top>, from: usize, to: usize| {
        if source.get(from..to).is_some_and(|s| !s.trim().is_empty()) {
            tops.push(Top { kind: Kind::Other(BlockKind::Paragraph), range: from..to });
        }
    };
    for (event, range) in Parser::new_ext(source, options).into_offset_iter() {
        match event {
            Event::Start(tag) => {
                if depth == 0 {
                    gap(&mut tops, covered, range.start);
                    covered = range.end;
                    tops.push(Top { kind: kind(&tag), range });
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(text) | Event::Code(text) => {
                if let Some(Top { kind: Kind::Heading(_, name), .. }) = tops.last_mut() {
                    name.push_str(&text);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some(Top { kind: Kind::Heading(_, name), .. }) = tops.last_mut() {
                    name.push(' ');
                }
            }
            // A thematic break is a line, not text.
            Event::Rule if depth == 0 => {
                gap(&mut tops, covered, range.start);
                covered = range.end;
            }
            _ => {}
        }
    }
    gap(&mut tops, covered, source.len());
    tops
}

fn kind(tag: &Tag<'_>) -> Kind {
    match tag {
        Tag::Heading { level, .. } => Kind::Heading(level_number(*level), String::new()),
        Tag::MetadataBlock(MetadataBlockKind::YamlStyle | MetadataBlockKind::PlusesStyle) => Kind::Metadata,
        Tag::Table(_) => Kind::Table,
        Tag::List(_) => Kind::Other(BlockKind::List),
        Tag::CodeBlock(_) => Kind::Other(BlockKind::Code),
        Tag::FootnoteDefinition(_) => Kind::Other(BlockKind::Note),
        _ => Kind::Other(BlockKind::Paragraph),
    }
}

fn level_number(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

/// The `title` of a front matter in YAML or TOML, read by its line alone.
fn metadata_title(block: &str) -> Option<String> {
    block.lines().find_map(|line| {
        let value = line.strip_prefix("title")?.trim_start();
        let value = value.strip_prefix([':', '='])?.trim().trim_matches(['"', '\'']).trim();
        (!value.is_empty()).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extracted, Format};

    fn read(source: &str) -> Extracted {
        let mut all = Extracted::default();
        let summary = crate::extract(Format::Markdown, crate::Engine::First, source.as_bytes(), &mut |page| {
            all.push(page);
            Ok(())
        })
        .unwrap();
        all.summary = summary;
        all
    }

    #[test]
    fn headings_make_sections_and_code_does_not() {
        let all = read("intro\n\n# One\n\ntext\n\n```sh\n# not a heading\n```\n\nTwo\n---\n\nmore *text*\n");
        let sections = &all.pages[0].sections;
        let paths: Vec<String> = sections.iter().map(|s| s.heading_path.join("/")).collect();
        assert_eq!(paths, ["", "One", "One/Two"]);
        assert_eq!(sections[1].blocks[2].kind, BlockKind::Code);
        assert_eq!(sections[2].blocks[1].text, "more *text*");
        assert_eq!(all.summary.title.as_deref(), Some("One"));
    }

    #[test]
    fn front_matter_names_the_document_and_is_not_text() {
        let all = read("---\ntitle: \"A guide\"\ndate: 2020\n---\n\nhello\n");
        assert_eq!(all.summary.title.as_deref(), Some("A guide"));
        assert_eq!(all.pages[0].sections[0].blocks.len(), 1);
    }

    #[test]
    fn link_definitions_and_tables_are_kept() {
        let all = read("see [x]\n\n[x]: https://example.com/spec\n\n| a | b |\n|---|---|\n| 1 | 2 |\n");
        let blocks = &all.pages[0].sections[0].blocks;
        assert!(blocks.iter().any(|b| b.text.contains("example.com/spec")));
        assert!(blocks.iter().any(|b| b.kind == BlockKind::Table && b.text.ends_with("| 1 | 2 |")));
    }
}
