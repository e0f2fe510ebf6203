//! The walk. It follows the tree's own links and keeps its state in the walker, so depth costs memory and no stack.

use scraper::{ElementRef, Html, Node, node::Element};

use crate::{
    BlockKind, ExtractError,
    emit::{Outline, table_blocks},
};

/// Elements whose content is not the page's text.
const SKIPPED: &[&str] = &[
    "aside", "audio", "button", "canvas", "datalist", "dialog", "embed", "footer", "head", "iframe", "input", "math",
    "menu", "nav", "noscript", "object", "script", "select", "style", "svg", "template", "textarea", "title", "video",
];

/// Elements that flow within a line of text; all others start a new block.
const INLINE: &[&str] = &[
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup",
    "time", "tt", "u", "var", "wbr",
];

pub(super) fn content(html: &Html, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
    let mains: Vec<ElementRef<'_>> = html
        .tree
        .nodes()
        .filter(|n| matches!(n.value(), Node::Element(e) if e.name() == "main" || e.attr("role") == Some("main")))
        .filter_map(ElementRef::wrap)
        .collect();
    let mut walker = Walker::default();
    let has_text = mains.iter().any(|main| main.text().any(|t| !t.trim().is_empty()));
    if has_text {
        for main in mains {
            // A `main` inside another was read with it.
            let inner = main
                .ancestors()
                .any(|a| matches!(a.value(), Node::Element(e) if e.name() == "main" || e.attr("role") == Some("main")));
            if !inner {
                walker.run(main, outline)?;
            }
        }
    } else {
        walker.run(html.root_element(), outline)?;
    }
    Ok(())
}

#[derive(Default)]
struct Walker {
    /// The text of the open block.
    line: String,
    /// The level of the open heading.
    heading: Option<u8>,
    /// Open `pre` elements.
    preformatted: usize,
    /// Open lists; each with the number of its next item, none if its items are unnumbered.
    lists: Vec<Option<u64>>,
    /// The marker of the open item, until its first line is written.
    marker: Option<String>,
    /// The text of the outermost open list.
    list: String,
    /// The open data table; tables that place things are not data.
    table: Option<Rows>,
}

#[derive(Default)]
struct Rows {
    rows: Vec<String>,
    cells: Vec<String>,
    /// Leading rows of header cells only.
    header_rows: usize,
    header_only: bool,
}

impl Walker {
    fn run(&mut self, top: ElementRef<'_>, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        let mut node = *top;
        'open: loop {
            let descend = match node.value() {
                Node::Element(element) => self.open(element, ElementRef::wrap(node), outline)?,
                Node::Text(text) => {
                    self.text(text);
                    false
                }
                _ => false,
            };
            if descend && let Some(child) = node.first_child() {
                node = child;
                continue;
            }
            if descend {
                self.close_node(node.value(), outline)?;
            }
            loop {
                if node == *top {
                    break 'open;
                }
                if let Some(next) = node.next_sibling() {
                    node = next;
                    break;
                }
                let Some(parent) = node.parent() else { break 'open };
                node = parent;
                self.close_node(node.value(), outline)?;
            }
        }
        self.flush(outline)
    }

    /// Returns whether to walk the children.
    fn open(
        &mut self,
        element: &Element,
        whole: Option<ElementRef<'_>>,
        outline: &mut Outline<'_, '_>,
    ) -> Result<bool, ExtractError> {
        let name = element.name();
        if SKIPPED.contains(&name)
            || element.attr("hidden").is_some()
            || element.attr("aria-hidden") == Some("true")
            || matches!(element.attr("role"), Some("navigation" | "contentinfo" | "banner" | "search"))
        {
            return Ok(false);
        }
        if INLINE.contains(&name) {
            return Ok(true);
        }
        match name {
            "br" => self.line.push('\n'),
            "img" => {
                if let Some(alt) = element.attr("alt") {
                    self.word(alt);
                }
            }
            "td" | "th" if self.table.is_some() => self.cell(name == "th"),
            _ if self.table.is_some() => self.space(),
            "table" => {
                self.flush(outline)?;
                // In a list a table would come out before its list; there its cells are lines.
                if self.lists.is_empty() && whole.is_some_and(is_data) {
                    self.table = Some(Rows::default());
                }
            }
            "pre" => {
                self.flush(outline)?;
                self.preformatted += 1;
            }
            "ul" | "ol" | "dl" => {
                self.flush(outline)?;
                let start = element.attr("start").and_then(|s| s.parse().ok()).unwrap_or(1);
                self.lists.push((name == "ol").then_some(start));
            }
            "li" | "dt" | "dd" => {
                self.flush(outline)?;
                self.marker = Some(match self.lists.last_mut() {
                    Some(Some(number)) => {
                        let label = format!("{number}. ");
                        *number = number.saturating_add(1);
                        label
                    }
                    _ if name == "dd" => "  ".to_owned(),
                    _ if name == "dt" => String::new(),
                    _ => "- ".to_owned(),
                });
            }
            _ => {
                self.flush(outline)?;
                self.heading = heading_level(name).or(self.heading);
            }
        }
        Ok(true)
    }

    fn close_node(&mut self, node: &Node, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        let Node::Element(element) = node else { return Ok(()) };
        let name = element.name();
        if INLINE.contains(&name) || matches!(name, "br" | "img") {
            return Ok(());
        }
        if self.table.is_some() {
            match name {
                "tr" => self.row(),
                "table" => self.end_table(outline)?,
                _ => self.space(),
            }
            return Ok(());
        }
        self.flush(outline)?;
        match name {
            "pre" => self.preformatted = self.preformatted.saturating_sub(1),
            "ul" | "ol" | "dl" => {
                self.lists.pop();
                if self.lists.is_empty() {
                    let list = std::mem::take(&mut self.list);
                    outline.block(BlockKind::List, &list)?;
                }
            }
            "li" | "dt" | "dd" => self.marker = None,
            _ if heading_level(name).is_some() => self.heading = None,
            _ => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        if self.preformatted > 0 && self.table.is_none() {
            self.line.push_str(text);
            return;
        }
        for part in text.split_inclusive(|c: char| c.is_ascii_whitespace()) {
            let word = part.trim_end_matches(|c: char| c.is_ascii_whitespace());
            self.line.push_str(word);
            if word.len() < part.len() {
                self.space();
            }
        }
    }

    fn word(&mut self, text: &str) {
        self.space();
        self.text(text);
        self.space();
    }

    fn space(&mut self) {
        if !self.line.is_empty() && !self.line.ends_with([' ', '\n']) {
            self.line.push(' ');
        }
    }

    /// Ends the open block.
    fn flush(&mut self, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        let line = std::mem::take(&mut self.line);
        if line.trim().is_empty() {
            return Ok(());
        }
        if !self.lists.is_empty() {
            // Deeper than this an indentation says nothing and only costs.
            let indent = "  ".repeat(self.lists.len().min(16) - 1);
            let marker = self.marker.as_mut().map(std::mem::take).unwrap_or_default();
            self.list.push_str(&format!("{indent}{marker}{}\n", line.trim()));
            return Ok(());
        }
        match self.heading {
            Some(level) => outline.heading(level, &line),
            None if self.preformatted > 0 => outline.block(BlockKind::Code, &line),
            None => outline.block(BlockKind::Paragraph, line.trim()),
        }
    }

    fn cell(&mut self, header: bool) {
        let text = self.take_flat();
        let Some(table) = &mut self.table else { return };
        match table.cells.last_mut() {
            // What stands between the cells belongs to the one before it.
            Some(open) => open.push_str(&text),
            None => table.header_only = true,
        }
        table.header_only &= header;
        table.cells.push(String::new());
    }

    fn row(&mut self) {
        let text = self.take_flat();
        let Some(table) = &mut self.table else { return };
        if let Some(open) = table.cells.last_mut() {
            open.push_str(&text);
        } else if !text.is_empty() {
            table.cells.push(text);
        }
        let cells = std::mem::take(&mut table.cells);
        if cells.iter().all(String::is_empty) {
            return;
        }
        if table.header_only && table.header_rows == table.rows.len() {
            table.header_rows += 1;
        }
        table.rows.push(cells.join(" | "));
    }

    fn end_table(&mut self, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        self.row();
        let Some(table) = self.table.take() else { return Ok(()) };
        // Nothing but header cells is a table of rows.
        let header_rows = if table.header_rows == table.rows.len() { 0 } else { table.header_rows };
        for group in table_blocks(&table.rows, header_rows) {
            outline.block(BlockKind::Table, &group)?;
        }
        Ok(())
    }

    fn take_flat(&mut self) -> String {
        std::mem::take(&mut self.line).split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// A table whose cells hold headings, lists or further tables places things on the page.
fn is_data(table: ElementRef<'_>) -> bool {
    if matches!(table.value().attr("role"), Some("presentation" | "none")) {
        return false;
    }
    !table.descendants().skip(1).any(|n| match n.value() {
        Node::Element(e) => matches!(e.name(), "table" | "ul" | "ol" | "pre") || heading_level(e.name()).is_some(),
        _ => false,
    })
}

fn heading_level(name: &str) -> Option<u8> {
    match name {
        "h1" => Some(1),
        "h2" => Some(2),
        "h3" => Some(3),
        "h4" => Some(4),
        "h5" => Some(5),
        "h6" => Some(6),
        _ => None,
    }
}
