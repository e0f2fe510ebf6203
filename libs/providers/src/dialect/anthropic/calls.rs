//! Ids of calls that another provider's model has made, in a client's bytes.

use serde_json::value::RawValue;

use super::outgoing::CALL_IDS;
use super::request::MessagesRequest;
use crate::hub::fit_ids;
use crate::json::Splices;

impl MessagesRequest<'_> {
    /// Puts ids that the API takes in place of those that it does not.
    pub(super) fn fit_call_ids(&self, splices: &mut Splices) {
        fit_ids(CALL_IDS, self.text, &self.call_ids(), splices);
    }

    /// The ids of calls, and those that results name.
    fn call_ids(&self) -> Vec<&RawValue> {
        let blocks = self.messages.iter().flat_map(|message| message.content.pieces());
        let id = |name: &str| match name {
            "tool_use" => Some("id"),
            "tool_result" => Some("tool_use_id"),
            _ => None,
        };
        blocks.filter_map(|block| block.members.present(id(&block.kind)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::golden::PLAIN;

    fn request(ids: [&str; 2]) -> String {
        let call = |id: &str| format!(r#"{{"type":"tool_use", "id" : {id}, "name":"f","input":{{"id":"a:b"}}}}"#);
        let result = |id: &str| format!(r#"{{"tool_use_id":{id},"type":"tool_result","content":"r"}}"#);
        let [one, two] = ids;
        format!(
            r#"{{"model":"real","max_tokens":9,"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":[{}, {}]}},{{"role":"user","content":[{},{}]}}]}}"#,
            call(one),
            call(two),
            result(two),
            result(one)
        )
    }

    #[test]
    fn anthropic_gets_ids_that_it_takes_and_all_else_is_the_clients_bytes() {
        for (ids, own) in [
            ([r#""toolu_01""#, r#""call_\u0031""#], [r#""toolu_01""#, r#""call_\u0031""#]),
            ([r#""functions.f:0""#, r#""call 1""#], [r#""functions_2e_f_3a_0""#, r#""call_20_1""#]),
            ([r#""a:b""#, r#""a_3a_b""#], [r#""a_3a_b_1""#, r#""a_3a_b""#]),
        ] {
            let body = request(ids);
            let call = MessagesRequest::parse(body.as_bytes()).unwrap().call(&PLAIN);
            assert_eq!((String::from_utf8(call.body.to_vec()).unwrap(), call.dropped.len()), (request(own), 0));
            let count = MessagesRequest::parse_count(body.as_bytes()).unwrap().count_call(&PLAIN);
            assert_eq!(count.body, request(own));
        }
    }
}
