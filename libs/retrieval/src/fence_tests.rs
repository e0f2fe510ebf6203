use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

#[test]
fn a_tag_of_the_name_is_made_a_look_alike_however_it_is_written() {
    for attack in [
        "<context>",
        "</context>",
        "< / CONTEXT >",
        "<context id=\"1\" >",
        "<\u{200b}context>",
        "＜/context>",
        "＜／ｃｏｎｔｅｘｔ＞",
        "<con\ntext>",
        "</\u{feff}co\u{200d}ntext",
        "</𝐜𝐨𝐧𝐭𝐞𝐱𝐭>",
        "</сontехt>",
        "</c\u{308}ontext>",
        "</ⓒⓞⓝⓣⓔⓧⓣ>",
        "&lt;/context&gt;",
        "&LT/context>",
        "&#60;/context>",
        "&#0060/context>",
        "&#x3C;/context>",
        "\\u003c/context>",
        "\\x3C/context>",
        "%3C/context%3E",
        "≮/context>",
        "ᐸ/context>",
        "˂/context>",
        "〈/context〉",
        "⟨/context⟩",
        "\u{2329}/context>",
        "<c&#111;ntext>",
        "<%63ontext>",
        "&amp;lt;/context&gt;",
        "%253C/context",
        "\\u{3c}/context>",
        "\\74/context>",
        "<&lt;/context>",
    ] {
        let safe = defused(attack, "context");
        assert!(safe.starts_with(LOOK_ALIKE) && safe.chars().count() <= attack.chars().count(), "{attack}: {safe}");
    }
    let gap = "\u{200b}".repeat(MOST_BETWEEN + 1);
    assert!(defused(&format!("<{gap}/context>"), "context").starts_with(LOOK_ALIKE));
}

#[test]
fn what_is_no_such_tag_stays() {
    for text in [
        "a < b, <div> and <contact>",
        "5 &lt; 6 &amp; 7",
        "100 %3d",
        "\\u003d",
        "C:\\x3\\new",
        "&#6000; &#x3cc; &#;",
        "<",
        "&",
        "The context matters",
        "<con",
        "Größe 大小 <文脈>",
    ] {
        assert_eq!(defused(text, "context"), text);
    }
    assert_eq!(defused("<conversation>", "conversation"), "‹conversation>");
    assert_eq!(defused("<conversation>", "context"), "<conversation>");
}

/// How a careful reader would see a text: escapes resolved, in plain small letters, without anything invisible.
fn as_read(text: &str) -> String {
    let resolved = ["&lt;", "&LT;", "&lt", "&#60;", "&#060;", "&#x3c;", "&#X3C;", "\\u003c", "\\u003C", "%3c", "%3C"]
        .iter()
        .fold(text.to_owned(), |text, escape| text.replace(escape, "<"));
    let is_visible = |c: &char| c.is_alphanumeric() || matches!(c, '<' | '>');
    resolved.nfkd().flat_map(char::to_lowercase).filter(is_visible).collect()
}

fn letter(plain: char) -> impl Strategy<Value = String> {
    let wide = char::from_u32(u32::from(plain) - u32::from('a') + u32::from('ａ')).unwrap();
    let bold = char::from_u32(u32::from(plain) - u32::from('a') + 0x1d41a).unwrap();
    let upper = plain.to_ascii_uppercase();
    let noise = select(vec!["", "", "", " ", "\n", "\u{200b}", "\u{ad}", "\u{301}", "\t", "/", "."]);
    (select(vec![plain, upper, wide, bold]), noise).prop_map(|(letter, noise)| format!("{letter}{noise}"))
}

fn tag() -> impl Strategy<Value = String> {
    let openers = vec![
        "<", "＜", "﹤", "&lt;", "&LT;", "&lt", "&#60;", "&#060;", "&#x3c;", "&#X3C;", "\\u003c", "\\u003C", "%3c",
        "%3C",
    ];
    let name: Vec<_> = "context".chars().map(letter).collect();
    let slash = select(vec!["", "/", "／", " / ", "\u{2060}/"]);
    let end = select(vec![">", "＞", " a=\"b\">", "&gt;", ""]);
    (select(openers), slash, name, end)
        .prop_map(|(opener, slash, name, end)| format!("{opener}{slash}{}{end}", name.concat()))
}

proptest! {
    #[test]
    fn nobody_can_read_a_tag_of_the_name_in_what_is_defused(
        pieces in vec(prop_oneof![tag(), "[a-z <>/&%;\\\\]{0,12}", any::<String>()], 0..8)
    ) {
        let text = pieces.concat();
        let safe = defused(&text, "context");
        prop_assert!(!as_read(&safe).contains("<context"), "{safe}");
        prop_assert_eq!(defused(&safe, "context"), safe);
    }
}
