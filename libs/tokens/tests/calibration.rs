//! The estimate beside exact counts, in many scripts.

use ragmux_tokens::{EXACT_LIMIT_BYTES, Family, count, estimate};

/// The same short text, written for this test, in languages of fifteen scripts, and things that are not language.
const SAMPLES: [(&str, &str); 24] = [
    (
        "english",
        "The night train leaves at a quarter past nine. Anyone who carries a folding bicycle should board the last \
         carriage, where there is room for six of them, and hand the ticket to the guard before the first bridge.",
    ),
    (
        "german",
        "Der Nachtzug fährt um Viertel nach neun. Wer ein Faltrad mitnimmt, steigt in den letzten Wagen ein, in dem \
         Platz für sechs Räder ist, und zeigt der Schaffnerin die Fahrkarte noch vor der ersten Brücke.",
    ),
    (
        "french",
        "Le train de nuit part à neuf heures et quart. Les voyageurs munis d'un vélo pliant montent dans la dernière \
         voiture, où il y a de la place pour six, et présentent leur billet avant le premier pont.",
    ),
    (
        "spanish",
        "El tren nocturno sale a las nueve y cuarto. Quien lleve una bicicleta plegable debe subir al último vagón, \
         donde caben seis, y entregar el billete al revisor antes del primer puente.",
    ),
    (
        "polish",
        "Pociąg nocny odjeżdża kwadrans po dziewiątej. Kto wiezie składany rower, wsiada do ostatniego wagonu, gdzie \
         jest miejsce dla sześciu, i okazuje bilet konduktorowi przed pierwszym mostem.",
    ),
    (
        "finnish",
        "Yöjuna lähtee vartin yli yhdeksän. Taittopyörän kanssa matkustava nousee viimeiseen vaunuun, jossa on tilaa \
         kuudelle pyörälle, ja näyttää lippunsa konduktöörille ennen ensimmäistä siltaa.",
    ),
    (
        "turkish",
        "Gece treni dokuzu çeyrek geçe kalkıyor. Katlanır bisikleti olan yolcular altı bisikletlik yeri bulunan son \
         vagona binmeli ve ilk köprüden önce biletlerini görevliye vermelidir.",
    ),
    (
        "vietnamese",
        "Chuyến tàu đêm khởi hành lúc chín giờ mười lăm. Hành khách mang xe đạp gấp nên lên toa cuối, nơi có chỗ cho \
         sáu chiếc, và đưa vé cho người soát vé trước khi qua cây cầu đầu tiên.",
    ),
    (
        "russian",
        "Ночной поезд отправляется в четверть десятого. Пассажирам со складными велосипедами лучше садиться в \
         последний вагон, где есть место для шести, и показать билет проводнику до первого моста.",
    ),
    (
        "ukrainian",
        "Нічний потяг вирушає о чверть на десяту. Пасажирам зі складаними велосипедами краще сідати в останній вагон, \
         де є місце для шести, і показати квиток провідникові до першого мосту.",
    ),
    (
        "greek",
        "Το νυχτερινό τρένο φεύγει στις εννέα και τέταρτο. Όποιος έχει πτυσσόμενο ποδήλατο ανεβαίνει στο τελευταίο \
         βαγόνι, όπου χωρούν έξι, και δείχνει το εισιτήριό του πριν από την πρώτη γέφυρα.",
    ),
    (
        "arabic",
        "يغادر قطار الليل في التاسعة والربع. على من يحمل دراجة قابلة للطي أن يصعد إلى العربة الأخيرة حيث يوجد مكان \
         لست دراجات، وأن يسلم تذكرته إلى المراقب قبل الجسر الأول.",
    ),
    (
        "hebrew",
        "רכבת הלילה יוצאת ברבע אחרי תשע. מי שנושא אופניים מתקפלים עולה לקרון האחרון, שבו יש מקום לשישה זוגות, ומציג את \
         הכרטיס לכרטיסן לפני הגשר הראשון.",
    ),
    (
        "hindi",
        "रात की रेलगाड़ी सवा नौ बजे चलती है। जिसके पास मुड़ने वाली साइकिल हो वह आख़िरी डिब्बे में चढ़े, जहाँ छह साइकिलों की जगह है, और \
         पहले पुल से पहले अपना टिकट परिचालक को दिखाए।",
    ),
    (
        "bengali",
        "রাতের ট্রেন সোয়া নয়টায় ছাড়ে। যাঁর সঙ্গে ভাঁজ করা সাইকেল আছে তিনি শেষ বগিতে উঠবেন, সেখানে ছয়টি সাইকেলের জায়গা আছে, এবং \
         প্রথম সেতুর আগেই টিকিট দেখাবেন।",
    ),
    (
        "thai",
        "รถไฟเที่ยวกลางคืนออกเวลาสามทุ่มสิบห้านาที ผู้โดยสารที่นำจักรยานพับมาด้วยควรขึ้นตู้สุดท้ายซึ่งมีที่สำหรับหกคัน \
         และแสดงตั๋วแก่เจ้าหน้าที่ก่อนถึงสะพานแรก",
    ),
    (
        "chinese",
        "夜班火车九点一刻开出。携带折叠自行车的旅客请上最后一节车厢，那里可以放六辆车，并请在过第一座桥之前把车票交给列车员。",
    ),
    (
        "traditional chinese",
        "夜班火車九點一刻開出。攜帶摺疊自行車的旅客請上最後一節車廂，那裡可以放六輛車，並請在過第一座橋之前把車票交給列車員。",
    ),
    (
        "japanese",
        "夜行列車は九時十五分に出発します。折りたたみ自転車をお持ちの方は、六台まで置ける最後尾の車両にご乗車のうえ、最初の橋を渡る前に切符を車掌にお見せください。",
    ),
    (
        "korean",
        "야간 열차는 아홉 시 십오 분에 출발합니다. 접이식 자전거를 가진 승객은 여섯 대를 둘 수 있는 마지막 칸에 타고, 첫 번째 다리를 지나기 전에 \
         승무원에게 표를 보여 주십시오.",
    ),
    (
        "rust",
        "fn depart(&self, platform: u8) -> Result<Train, DepartError> {\n    let now = self.clock.now();\n    \
         if self.doors.iter().any(|door| door.is_open()) {\n        return Err(DepartError::DoorOpen { platform });\n    \
         }\n    self.log.push(Event::Departed { at: now, platform });\n    Ok(Train { id: self.id, carriages: 7 })\n}\n",
    ),
    (
        "json",
        r#"{"train":{"id":4711,"name":"night","carriages":[{"no":1,"bicycles":0},{"no":7,"bicycles":6}],"departs":"21:15:00Z","late_by":null,"fare_eur":38.5}}"#,
    ),
    (
        "numbers",
        "1 204 881; 17.5 %; 2026-03-14T09:26:53Z; 192.168.17.203; 555-0134; 0.000125; 3,141,592; 8 x 1024; 65536; 21:15",
    ),
    (
        "identifiers",
        "550e8400-e29b-41d4-a716-446655440000 9f86d081884c7d659a2feaa0c55ad015 c2FtcGxlIG9mIGJhc2U2NCB0ZXh0IHdpdGggbm8gbWVhbmluZw==",
    ),
];

#[test]
fn the_estimate_stays_in_its_band_and_mostly_above() {
    let mut above = 0;
    for (name, text) in SAMPLES {
        let exact = count(Family::O200k, text);
        let ratio = estimate(text) as f64 / exact as f64;
        assert!((0.90..=1.40).contains(&ratio), "{name}: {ratio:.2} of {exact}");
        above += usize::from(ratio >= 1.0);
    }
    assert!(above * 4 >= SAMPLES.len() * 3, "only {above} of {} are not below", SAMPLES.len());
}

#[test]
fn known_texts_have_their_published_counts() {
    assert_eq!(count(Family::O200k, ""), 0);
    // From the published vocabularies.
    assert_eq!(count(Family::Cl100k, "tiktoken is great!"), 6);
    assert_eq!(count(Family::O200k, "hello world"), 2);
    assert_eq!(count(Family::Cl100k, "hello world"), 2);
    // Four numbers of three digits and three separators in between.
    assert_eq!(count(Family::O200k, "123,456,789,123"), 7);
    // A model without a known vocabulary.
    assert_eq!(count(Family::Estimated, "hello world"), estimate("hello world"));
}

#[test]
fn long_texts_are_counted_upward() {
    for (name, text) in SAMPLES {
        let long = text.repeat(EXACT_LIMIT_BYTES / text.len() + 1);
        assert!(long.len() > EXACT_LIMIT_BYTES, "{name}");
        for family in [Family::O200k, Family::Cl100k] {
            // Exact for a text of whole repetitions: two halves that are each under the limit.
            let half = text.repeat(EXACT_LIMIT_BYTES / text.len() / 2 + 1);
            let per_half = count(family, &half);
            let exact = per_half as f64 * long.len() as f64 / half.len() as f64;
            let ratio = count(family, &long) as f64 / exact;
            assert!((1.0..=1.5).contains(&ratio), "{name} {family:?}: {ratio:.2}");
        }
    }
}

#[test]
fn a_long_text_that_changes_in_the_middle_is_not_undercounted() {
    let english = SAMPLES[0].1.repeat(900);
    let identifiers = SAMPLES[23].1.repeat(1200);
    let exact: usize = [&english, &identifiers].map(|text| count(Family::O200k, text)).iter().sum();
    let counted = count(Family::O200k, &(english + &identifiers));
    assert!(counted >= exact && counted * 2 <= exact * 3, "{counted} for {exact}");
}

#[test]
fn one_sign_repeated_a_million_times_is_counted() {
    for sign in ["a", " ", "\n", "-", "あ", "😀", "\u{0}", "\u{301}"] {
        let text = sign.repeat(1_000_000 / sign.len());
        for family in [Family::O200k, Family::Cl100k, Family::Estimated] {
            let tokens = count(family, &text);
            assert!(tokens >= 1_000 && tokens <= text.len(), "{sign:?} {family:?}: {tokens}");
        }
    }
}
