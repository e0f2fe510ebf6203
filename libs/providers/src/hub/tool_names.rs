//! Names of tools in as many letters as a provider takes.

use std::borrow::Cow;
use std::collections::HashMap;

use super::call_ids::{FittedIds, IdRule};
use super::conversation::{Block, Conversation, ToolChoice};

impl<'a> Conversation<'a> {
    /// Shortens all names of tools that are longer than that, the same name always in the same way, and returns the long
    /// ones by what stands for them now.
    pub(crate) fn shorten_names(&mut self, most: usize) -> HashMap<String, String> {
        let mut names: Vec<&mut Cow<'a, str>> = self.tools.iter_mut().map(|tool| &mut tool.name).collect();
        if let Some(ToolChoice::Named(name)) = &mut self.tool_choice {
            names.push(name);
        }
        for block in self.turns.iter_mut().flat_map(|turn| &mut turn.blocks) {
            match block {
                Block::ToolCall { name, .. } | Block::ToolResult { name: Some(name), .. } => names.push(name),
                _ => {}
            }
        }
        if names.iter().all(|name| name.len() <= most) {
            return HashMap::new();
        }
        let given: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let fitted = FittedIds::new(IdRule::Shortened(most), given.iter().map(|name| Cow::Borrowed(name.as_str())));
        let mut long = HashMap::new();
        for name in names {
            if let Some(short) = fitted.instead_of(name).map(str::to_owned) {
                long.insert(short.clone(), name.to_string());
                *name = Cow::Owned(short);
            }
        }
        long
    }
}

#[cfg(test)]
mod tests {
    use super::super::conversation::{Role, Tool};
    use super::*;

    #[test]
    fn long_names_are_shortened_everywhere_and_stay_apart() {
        let long = |end: &str| format!("mcp__a_server_with_a_name__{}{end}", "and_a_tool_".repeat(6));
        let (one, two) = (long("one"), long("two"));
        let tool = |name: &str| Tool {
            name: Cow::Owned(name.to_owned()),
            description: None,
            parameters: None,
            strict: None,
            cache: None,
        };
        let mut conversation = Conversation {
            tools: vec![tool(&one), tool(&two), tool("look")],
            tool_choice: Some(ToolChoice::Named(two.clone().into())),
            ..Conversation::default()
        };
        let call =
            Block::ToolCall { id: "a".into(), name: one.clone().into(), arguments: "{}".into(), signature: None };
        conversation.say(Role::Assistant, [call]);
        let mut again = conversation.clone();
        let names = conversation.shorten_names(64);
        let short: Vec<_> = conversation.tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert!(short.iter().all(|name| name.len() <= 64 && name.is_ascii()));
        assert_eq!((names.len(), &names[short[0]], &names[short[1]], short[2]), (2, &one, &two, "look"));
        assert_eq!(conversation.tool_choice, Some(ToolChoice::Named(short[1].to_owned().into())));
        let Block::ToolCall { name, .. } = &conversation.turns[0].blocks[0] else { panic!() };
        assert_eq!(name, short[0]);
        assert_eq!(again.shorten_names(64), names);
        assert!(conversation.shorten_names(64).is_empty());
    }
}
