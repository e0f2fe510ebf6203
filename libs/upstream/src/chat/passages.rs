//! Finding the passages a gateway has put into a conversation.
//!
//! They stand between `<context>` and `</context>`, each under a label line `[n] (file · section · p.N)`.

use super::request::Message;

/// A passage as it was given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Passage {
    /// The number to cite it by.
    pub(crate) number: u32,
    /// File, section and page as written.
    pub(crate) label: String,
    pub(crate) text: String,
}

/// All passages of a conversation in the order given.
pub(crate) fn find(messages: &[Message]) -> Vec<Passage> {
    messages
        .iter()
        .filter(|message| ["system", "developer", "user"].contains(&message.role.as_str()))
        .flat_map(|message| blocks(&message.text))
        .flat_map(in_block)
        .collect()
}

/// The text without its context blocks: what the person wrote.
pub(crate) fn without_blocks(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, block)) = rest.split_once("<context>") {
        kept.push_str(before);
        rest = block.split_once("</context>").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    kept
}

fn blocks(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    // A block that is not closed was cut; what there is of it is used.
    while let Some((_, block)) = rest.split_once("<context>") {
        let (block, after) = block.split_once("</context>").unwrap_or((block, ""));
        found.push(block);
        rest = after;
    }
    found
}

fn in_block(block: &str) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    for line in block.lines() {
        if let Some(passage) = label_line(line) {
            passages.push(passage);
        } else if let Some(passage) = passages.last_mut() {
            passage.text.push_str(line);
            passage.text.push('\n');
        }
    }
    passages
}

fn label_line(line: &str) -> Option<Passage> {
    let (number, rest) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    let number = number.parse().ok()?;
    let (label, text) = rest.trim_start().strip_prefix('(')?.rsplit_once(')')?;
    Some(Passage { number, label: label.to_owned(), text: text.trim_start().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, text: &str) -> Message {
        Message { role: role.to_owned(), text: text.to_owned() }
    }

    const PROMPT: &str = "Answer from the passages.\n\n<context>\n[1] (manual.pdf · Boiler (left) · p.4)\nIt holds two \
                          litres.\nSee [2] for more.\n\n[2] (notes.md)\nBeans are kept dry.\n</context>\nBe brief.";

    #[test]
    fn passages_are_found_with_their_labels() {
        let found = find(&[message("system", PROMPT), message("user", "how much?")]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].number, found[0].label.as_str()), (1, "manual.pdf · Boiler (left) · p.4"));
        assert_eq!(found[0].text.trim(), "It holds two litres.\nSee [2] for more.");
        assert_eq!((found[1].number, found[1].text.trim()), (2, "Beans are kept dry."));
    }

    #[test]
    fn answers_and_tools_give_no_passages() {
        assert_eq!(find(&[message("assistant", PROMPT), message("tool", PROMPT), message("user", "hello")]), []);
    }

    #[test]
    fn an_open_block_is_used_as_far_as_it_goes() {
        let found = find(&[message("user", "<context>\n[3] (a.txt)\nHalf a sen")]);
        assert_eq!((found.len(), found[0].number), (1, 3));
    }

    #[test]
    fn the_question_is_what_stands_outside() {
        assert_eq!(without_blocks("before <context>\n[1] (a)\nx\n</context>after"), "before after");
        assert_eq!(without_blocks("only this"), "only this");
    }
}
