use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;

use super::*;

#[test]
fn everything_key_shaped_is_masked() {
    for (text, shown) in [
        ("Incorrect API key provided: sk-abc12345.", "Incorrect API key provided: [redacted]"),
        ("sk-ant-api03-AAAA_bbb-CCC is wrong", "[redacted] is wrong"),
        ("sk-proj-aB3_x sk-user-0123456789 sk-mgmt-0123456789", "[redacted] [redacted] [redacted]"),
        ("(AIzaSyA1234567890abcdefg)", "([redacted])"),
        ("key=AIzaSyA1234567890abcdefg&x=1", "key=[redacted]&x=1"),
        (
            "token ya29.a0AfH6SMBx, hf_abcdefghijk; gsk_0123456789 'xai-0123456789'",
            "token [redacted], [redacted]; [redacted] '[redacted]'",
        ),
        ("pplx-0123456789abcdef|r8_0123456789abcdef", "[redacted]|[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE and ASIAIOSFODNN7EXAMPLE", "[redacted] and [redacted]"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
        (r#"{"Authorization":"Bearer abcdefghijklmnop"}"#, r#"{"Authorization":"Bearer [redacted]"}"#),
        ("authorization basic dXNlcjpwYXNz!", "authorization basic [redacted]"),
        ("Basic dXNlcjpw+/Nz==, then", "Basic [redacted], then"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln end", "jwt [redacted] end"),
        (
            "see https://user:pass@host.example/v1?key=sk-abcdefgh",
            "see https://[redacted]@host.example/v1?key=[redacted]",
        ),
        ("postgres://u:p,(a)s;s@db.example/x", "postgres://[redacted]@db.example/x"),
        ("https://u:pa/ss@host.example/", "https://[redacted]@host.example/"),
        ("https://onlytoken@host.example:8080/a@b", "https://[redacted]@host.example:8080/a@b"),
        ("GET /v1/models?api_key=0a1b2c3d&alt=sse", "GET /v1/models?api_key=[redacted]&alt=sse"),
        ("?a=1&key=abcdefgh", "?a=1&key=[redacted]"),
        ("url=https%3A%2F%2Fhost%2F%3Fkey%3DAIzaSyA1234567890abcdefg", "url=https%3A%2F%2Fhost%2F%3Fkey%3D[redacted]"),
        (r#"x-api-key: "0123456789abcdef""#, r#"x-api-key: "[redacted]""#),
        (r#"{"api-key":"0123456789abcdef"}"#, r#"{"api-key":"[redacted]"}"#),
        ("Incorrect API key provided: 0a1B2c3D4e5F6a7b. You", "Incorrect API key provided: [redacted] You"),
        ("API key '0a1B2c3D4e5F6a7b' is invalid", "API key '[redacted]' is invalid"),
        ("password=hunter2", "password=[redacted]"),
        ("masked sk-proj-****abcd", "masked [redacted]"),
        ("key abcd****wxyz is unknown", "key [redacted] is unknown"),
        ("é sk-abcdefé", "é [redacted]é"),
        ("key pa-0a1B2c3D4e5F6a7b8c9D0e1F2a3B4c5D", "key [redacted]"),
        ("co_0a1B2c3D4e5F6a7b8c9D0e1F fw_0a1B2c3D4e5F6a7b8c9D", "[redacted] [redacted]"),
        ("tgp_v1_0a1B2c3D; 1//0a1B2c3D4e5F6a7b8c9D0e1F", "[redacted]; [redacted]"),
        ("Cookie: ragmux_session=0a1B2c3D4e5F", "Cookie: ragmux_session=[redacted]"),
        ("sk-ant-ap\u{200b}i03-AAAA", "[redacted]"),
        ("a -----BEGIN PRIVATE KEY-----\nMIIE vQIB\n-----END PRIVATE KEY----- b", "a [redacted] b"),
        ("-----BEGIN RSA PRIVATE KEY----- MIIE", "[redacted]"),
    ] {
        assert_eq!(scrub(text, None), shown);
    }
}

#[test]
fn ordinary_words_stay() {
    for text in [
        "the task-list of disk-based models",
        "sk-1 and hf_x",
        "a risk-averse https://host.example/docs?a=b",
        "a basic plan has no bearer token.",
        "Unrecognized key: 'foo' in token 5 of the body",
        "The model `gpt-4o-mini-2024-07-18` does not exist or you do not have access to it.",
        "This model's maximum context length is 128000 tokens. However, you requested 130000 tokens.",
        "Missing bearer authentication in header",
        "see https://host.example:8080/@user/post and https://[2001:db8::1]/a@b",
        "request id req_011CSHoEeqs5C35K2UUqR7Fy, 100% of 5%",
        "**bold** and a * b",
        "Invalid value for 'max_tokens': 0 is less than the minimum of 1",
    ] {
        assert_eq!(scrub(text, None), text);
    }
}

#[test]
fn the_own_credential_is_masked_whatever_its_shape() {
    for (own, text, shown) in [
        ("p4ss w0rd", "key \"p4ss w0rd\" unknown", "key \"[redacted]\" unknown"),
        ("p4ss+w/rd=", "at ?k=p4ss%2Bw%2frd%3D&b=1", "at ?k=[redacted]&b=1"),
        ("p4ss+w/rd=", "at ?k=%704ss+w%2Frd=&b=1", "at ?k=[redacted]&b=1"),
        ("MixedCase1", "header mixedcase1 or MIXEDCASE1", "header [redacted] or [redacted]"),
        ("50%41off", "it is 50%41off", "it is [redacted]"),
        ("schlüssel", "der schlüssel und schl%C3%BCssel", "der [redacted] und [redacted]"),
        // A provider may cut it before it says it again.
        ("q7Lw2ZkX9vTb4RmN8cYs5HdF3gJp6UeA", "no such key: q7Lw2ZkX9vTb4RmN8cYs", "no such key: [redacted]"),
        ("q7Lw2ZkX9vTb4RmN8cYs5HdF3gJp6UeA", "it is Q7LW2ZKX...5hdf3gjp6uea!", "it is [redacted]...[redacted]!"),
        ("q7Lw2ZkX9vTb4RmN8cYs5HdF3gJp6UeA", "it begins with q7Lw2Zk", "it begins with q7Lw2Zk"),
        ("x", "axb", "a[redacted]b"),
        ("aa", "aaaa", "[redacted]"),
    ] {
        assert_eq!(scrub(text, Some(own)), shown);
    }
    assert_eq!(scrub("nothing is hidden", Some("")), "nothing is hidden");
}

#[test]
fn a_long_message_is_cut_and_control_characters_go() {
    let shown = scrub(&"é\n".repeat(2000), None);
    assert_eq!(shown.chars().count(), MAX_MESSAGE_CHARS);
    assert!(shown.ends_with('…') && !shown.contains('\n'));
    let exact = "é".repeat(MAX_MESSAGE_CHARS);
    assert_eq!(scrub(&exact, None), exact);
}

#[test]
fn a_key_across_either_cut_is_not_half_shown() {
    let text = format!("{} sk-{}", "a".repeat(505), "b".repeat(40));
    assert!(!scrub(&text, None).contains("sk-b"));
    // A key so long that what follows it is shown, up to where nothing is looked at any more.
    let own = "own credential text";
    for kept in 1..own.len() {
        let long = format!("sk-{} ", "b".repeat(MAX_SCANNED_CHARS - 4 - kept));
        let shown = scrub(&format!("{long}{own}"), Some(own));
        assert!(!shown.contains("own"), "{shown}");
    }
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        "sk-[A-Za-z0-9_-]{16,60}",
        "sk-(ant-api03|proj|user|mgmt|or-v1)-[A-Za-z0-9_-]{16,60}",
        "AIza[A-Za-z0-9_-]{35}",
        "ya29\\.[A-Za-z0-9_-]{20,60}",
        "gsk_[A-Za-z0-9]{20,52}",
        "hf_[A-Za-z0-9]{34}",
        "xai-[A-Za-z0-9]{20,80}",
        "pplx-[a-z0-9]{48}",
        "r8_[A-Za-z0-9]{37}",
        "AKIA[A-Z2-7]{16}",
        "eyJ[A-Za-z0-9_-]{20,40}\\.eyJ[A-Za-z0-9_-]{20,40}\\.[A-Za-z0-9_-]{20,43}",
    ]
}

/// Texts that leave a key recognisable: nothing around it is part of a word.
fn around() -> impl Strategy<Value = (String, String)> {
    let before = prop_oneof![
        Just(String::new()),
        "[ -~é\n]{0,300}[ \"'(:=,/&?]",
        Just("Bearer ".to_owned()),
        Just("https://host.example/?a=b&key=".to_owned()),
        Just("%3D".to_owned()),
    ];
    (before, prop_oneof![Just(String::new()), "[ \"'),;&?é][ -~é\n]{0,300}"])
}

proptest! {
    #[test]
    fn a_planted_key_never_survives((before, after) in around(), key in key(), own in prop::option::of("[ -~]{1,40}")) {
        let shown = scrub(&format!("{before}{key}{after}"), own.as_deref());
        // Neither whole nor any long part of it.
        for part in key.as_bytes().windows(12) {
            let part = std::str::from_utf8(part).unwrap();
            prop_assert!(!shown.contains(part) || before.contains(part) || after.contains(part), "{part} in {shown}");
        }
        prop_assert!(shown.chars().count() <= MAX_MESSAGE_CHARS);
    }

    #[test]
    fn the_own_credential_never_survives_in_any_of_its_forms(
        before in "[ -~é\n]{0,200}",
        after in "[ -~é\n]{0,200}",
        own in "[!-~]{4}[0-9][!-~]{4,40}",
        user in "[a-z]{0,6}",
        form in 0_usize..7,
    ) {
        let escaped = |all: bool| -> String {
            own.bytes()
                .map(|byte| match byte {
                    _ if all || !byte.is_ascii_alphanumeric() => format!("%{byte:02X}"),
                    _ => char::from(byte).to_string(),
                })
                .collect()
        };
        let planted = match form {
            0 => own.clone(),
            1 => escaped(false),
            2 => escaped(true).to_ascii_lowercase(),
            3 => STANDARD.encode(&own),
            4 => STANDARD.encode(format!("{user}:{own}")),
            5 => URL_SAFE_NO_PAD.encode(format!("{user}{own}\n")),
            _ => STANDARD.encode(format!("{own}:{user}")).replace('+', "%2B").replace('/', "%2F").replace('=', "%3d"),
        };
        let shown = scrub(&format!("{before}{planted}{after}"), Some(&own));
        prop_assert!(!shown.contains(&planted), "{planted} in {shown}");
        prop_assert!(!shown.contains(&own));
        prop_assert!(shown.chars().count() <= MAX_MESSAGE_CHARS);
    }

    #[test]
    fn url_credentials_never_survive(user in "[a-z0-9]{0,8}", secret in "[A-Za-z0-9!$%()*+,;=:|{}^~-]{8,30}") {
        for text in [format!("https://{user}:{secret}@host.example/v1"), format!("dial \"http://{secret}@10.0.0.1:80\" failed")] {
            prop_assert!(!scrub(&text, None).contains(&secret), "{text}");
        }
    }

    #[test]
    fn any_text_can_be_scrubbed(text in any::<String>(), own in prop::option::of(any::<String>())) {
        prop_assert!(scrub(&text, own.as_deref()).chars().count() <= MAX_MESSAGE_CHARS);
    }
}
