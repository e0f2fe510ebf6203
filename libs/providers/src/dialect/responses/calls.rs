//! Ids of calls that another provider's model has made, in a client's bytes.

use serde_json::value::RawValue;

use super::request::{Kind, ResponsesRequest};
use crate::hub::{IdRule, fit_ids};
use crate::json::Splices;

/// Not in the reference; the API's refusal of a longer one names the number ("maximum length 64").
const CALL_IDS: IdRule = IdRule::AtMost(64);

impl ResponsesRequest<'_> {
    /// Puts ids that the API takes in place of those that it does not.
    pub(super) fn fit_call_ids(&self, splices: &mut Splices) {
        let calls = self.items().iter().filter(|item| matches!(item.kind, Kind::Call | Kind::Output));
        let places: Vec<&RawValue> = calls.filter_map(|item| item.members.present("call_id")).collect();
        fit_ids(CALL_IDS, self.text, &places, splices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::golden::PLAIN;
    use crate::json::literal;

    #[test]
    fn openai_gets_ids_that_it_takes_and_all_else_is_the_clients_bytes() {
        let request = |id: &str| {
            format!(
                r#"{{"model":"real","store":false,"input":[{{"role":"user","content":"q"}},{{"type":"function_call","call_id": {id},"name":"f","arguments":""}},{{"call_id":{id} ,"type":"function_call_output","output":"r"}}]}}"#
            )
        };
        let sent = |body: &str| {
            let call = ResponsesRequest::parse(body.as_bytes()).unwrap().call(&PLAIN);
            String::from_utf8(call.body.to_vec()).unwrap()
        };
        let taken = request(&literal(&"x:".repeat(32)));
        assert_eq!(sent(&taken), taken);
        let fitted = sent(&request(&literal(&"x".repeat(65))));
        let own = fitted.split(r#""call_id": "#).nth(1).unwrap().split(',').next().unwrap();
        assert!(own.len() <= 66);
        assert_eq!(fitted, request(own));
    }
}
