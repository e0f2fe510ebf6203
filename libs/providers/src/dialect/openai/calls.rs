//! Ids of calls that another provider has made, in a client's bytes.

use serde_json::value::RawValue;

use super::request::ChatRequest;
use crate::hub::{IdRule, fit_ids};
use crate::json::{Members, Splices, elements};

impl ChatRequest<'_> {
    /// Puts ids that the provider takes in place of those that it does not.
    pub(super) fn fit_call_ids(&self, rule: IdRule, splices: &mut Splices) {
        if rule != IdRule::Any {
            fit_ids(rule, self.text, &self.call_ids(), splices);
        }
    }

    /// The ids of calls, and those that results name.
    fn call_ids(&self) -> Vec<&RawValue> {
        let mut ids = Vec::new();
        for message in &self.messages {
            ids.extend(message.members.present("tool_call_id"));
            let calls = message.tool_calls.and_then(|calls| elements(calls.get()).ok()).unwrap_or_default();
            ids.extend(calls.into_iter().filter_map(|call| Members::parse(call.get()).ok()?.present("id")));
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use domain::ProviderType;

    use super::*;
    use crate::dialect::golden::PLAIN;
    use crate::hub::FittedIds;
    use crate::json::literal;

    fn request(ids: [&str; 3]) -> String {
        let call = |id: &str| {
            format!(r#"{{ "type":"function", "id" : {id},"function":{{"name":"f","arguments":"{{\"id\":1}}"}}}}"#)
        };
        let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id": {id} ,"content":"r"}}"#);
        let [one, two, three] = ids;
        format!(
            r#"{{"model":"real","messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":null,"tool_calls":[{}, {}]}},{},{},{{"role":"assistant","tool_calls":[{}]}},{}]}}"#,
            call(one),
            call(two),
            result(two),
            result(one),
            call(three),
            result(three)
        )
    }

    fn sent(provider: ProviderType, body: &str) -> String {
        let call = ChatRequest::parse(body.as_bytes()).unwrap().call_to(provider, &PLAIN);
        assert!(call.dropped.is_empty());
        String::from_utf8(call.body.to_vec()).unwrap()
    }

    #[test]
    fn mistral_gets_ids_of_nine_letters_and_all_else_is_the_clients_bytes() {
        let body = request([r#""toolu_01:a""#, r#""call_\u0032""#, r#""D681PevKs""#]);
        let ids = FittedIds::new(IdRule::Alphanumeric(9), ["toolu_01:a".into(), "call_2".into(), "D681PevKs".into()]);
        let [one, two] = ["toolu_01:a", "call_2"].map(|id| literal(&ids.fit(id)));
        assert!(one.len() == 11 && two.len() == 11 && one != two);
        assert_eq!(sent(ProviderType::Mistral, &body), request([&one, &two, r#""D681PevKs""#]));
        // The next request has the same, so that what is cached of this one stays.
        let longer = body.replace("]}", r#",{"role":"user","content":"on"}]}"#);
        assert!(sent(ProviderType::Mistral, &longer).contains(&one));
    }

    #[test]
    fn openai_gets_no_ids_of_more_than_40_letters_and_others_get_what_was_sent() {
        let long = literal(&format!("chatcmpl-tool-{}", "0123456789abcdef".repeat(2)));
        let body = request([&long, r#""toolu_01:a""#, r#""D681PevKs""#]);
        for provider in [ProviderType::OpenAi, ProviderType::AzureOpenAi] {
            let sent = sent(provider, &body);
            let own = sent.split(r#""id" : "#).nth(1).unwrap().split(',').next().unwrap();
            assert!(own.len() <= 42, "{own}");
            assert_eq!(sent, request([own, r#""toolu_01:a""#, r#""D681PevKs""#]));
        }
        for provider in [ProviderType::CustomOpenAi, ProviderType::Groq, ProviderType::OpenRouter] {
            assert_eq!(sent(provider, &body), body, "{provider:?}");
        }
    }
}
