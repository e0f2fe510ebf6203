//! Features of a Responses request that cost more than its tokens at the model's price. Tools of the provider's own are
//! none of them: they are refused whatever the budget.

use domain::ProviderType;

use super::request::{Kind, ResponsesRequest};
use crate::dialect::openai::Feature;
use crate::dialect::said::Piece;
use crate::json::text_of;

/// Parts that are paid as the prompt's tokens, pictures included (OpenAI API reference, Create a model response).
const PRICED_PARTS: [&str; 6] =
    ["input_text", "output_text", "summary_text", "reasoning_text", "refusal", "input_image"];

impl ResponsesRequest<'_> {
    /// All features of the request that cost more than its tokens. Which ones there are does not depend on the
    /// provider: those that are asked by another dialect are not asked for any of them.
    #[must_use]
    pub fn costly_features(&self, _provider: ProviderType) -> Vec<Feature> {
        let mut found = Vec::new();
        if let Some(tier) = self.members.present("service_tier")
            && !text_of(tier).is_some_and(|tier| matches!(&*tier, "auto" | "default"))
        {
            found.push(Feature::new("service_tier", "service_tier"));
        }
        for (at, item) in self.items().iter().enumerate() {
            if item.kind == Kind::Other {
                found.push(Feature::new(&item.name, format!("input[{at}]")));
                continue;
            }
            let field = if item.kind == Kind::Output { "output" } else { "content" };
            let costly = item.said.pieces().iter().enumerate().filter_map(|(at, part)| Some((at, costly(part)?)));
            found.extend(costly.map(|(part, name)| Feature::new(name, format!("input[{at}].{field}[{part}]"))));
        }
        found
    }
}

/// Which feature a part is, unless it is paid like text. They are called like those of the other API.
fn costly<'a>(part: &'a Piece<'_>) -> Option<&'a str> {
    match &*part.kind {
        kind if PRICED_PARTS.contains(&kind) => None,
        "input_file" => Some("file"),
        "input_audio" => Some("audio"),
        kind => Some(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> Vec<String> {
        let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
        let features = request.costly_features(ProviderType::OpenAi);
        features.into_iter().map(|feature| format!("{} at {}", feature.name, feature.path)).collect()
    }

    #[test]
    fn what_adds_cost_is_found_wherever_it_stands() {
        assert_eq!(found(r#"{"input":"a","service_tier":"flex"}"#), ["service_tier at service_tier"]);
        let body = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_file","file_id":"f"}]},
            {"type":"function_call_output","call_id":"c","output":[{"type":"input_audio"}]},{"type":"web_search_call"}]}"#;
        let expected = ["file at input[0].content[1]", "audio at input[1].output[0]", "web_search_call at input[2]"];
        assert_eq!(found(body), expected);
    }

    #[test]
    fn what_is_part_of_every_price_is_not() {
        let body = r#"{"service_tier":"auto","tools":[{"type":"function","name":"f"}],"input":[
            {"role":"user","content":[{"type":"input_image","image_url":"https://host.example/a.png"}]},
            {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]}]}"#;
        assert!(found(body).is_empty());
    }
}
