//! Whether an embedding model was made for the language that a question is in.
//!
//! Vectors of a language that a model has never seen are noise, and equal weights let it drown what words find: on
//! Chinese questions an English model took the fused ranking from 0.96 to 0.61 (nDCG@10). So for such questions words
//! search alone.

use whatlang::{Lang, Script};

/// How names of models of one language begin, after the name of whoever made them, and that language. What is not here is
/// taken to know all languages, as the models of the big providers do.
const KNOWN: &[(&str, &str)] = &[
    ("all-minilm", "en"),
    ("all-mpnet", "en"),
    ("all-distilroberta", "en"),
    ("all-roberta", "en"),
    ("multi-qa", "en"),
    ("msmarco", "en"),
    ("gtr-t5", "en"),
    ("sentence-t5", "en"),
    ("instructor", "en"),
    ("paraphrase-minilm", "en"),
    ("paraphrase-mpnet", "en"),
    ("paraphrase-albert", "en"),
    ("e5-small", "en"),
    ("e5-base", "en"),
    ("e5-large", "en"),
    ("gte-small", "en"),
    ("gte-base", "en"),
    ("gte-large", "en"),
    ("gte-modernbert", "en"),
    ("modernbert-embed", "en"),
    ("bge-small-en", "en"),
    ("bge-base-en", "en"),
    ("bge-large-en", "en"),
    ("bge-small-zh", "zh"),
    ("bge-base-zh", "zh"),
    ("bge-large-zh", "zh"),
    ("nomic-embed-text", "en"),
    ("mxbai-embed-large", "en"),
    ("mxbai-embed-xsmall", "en"),
    ("snowflake-arctic-embed", "en"),
    ("arctic-embed", "en"),
    ("jina-embeddings-v2-base-en", "en"),
    ("jina-embeddings-v2-small-en", "en"),
    ("embed-english", "en"),
];

/// Later versions of some of those families know many languages.
const OF_MANY: &[&str] = &["multilingual", "embed2", "embed-l-v2", "embed-m-v2", "v2-moe"];

/// The languages a model was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Coverage(Option<Vec<String>>);

impl Coverage {
    /// Those that a store says, else those that its model is known for.
    #[must_use]
    pub(crate) fn of(said: Option<&[String]>, model: &str) -> Self {
        let languages = match said {
            Some(said) => said.to_vec(),
            None => vec![known(model).to_owned()],
        };
        Self((!languages.iter().any(|code| code == "*")).then_some(languages))
    }

    /// Whether a question may be compared by vectors: in doubt about its language it may.
    #[must_use]
    pub(crate) fn includes(&self, query: &str) -> bool {
        let Some(languages) = &self.0 else { return true };
        match spoken(query) {
            Spoken::Unknown => true,
            Spoken::One(code) => languages.iter().any(|known| known == code),
            Spoken::OneOf(codes) => languages.iter().any(|known| codes.contains(&known.as_str())),
        }
    }
}

/// What is known of a question's language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Unknown,
    One(&'static str),
    /// Its script is that of these.
    OneOf(&'static [&'static str]),
}

fn known(model: &str) -> &'static str {
    let name = model.rsplit(['/', '\\']).next().unwrap_or(model).to_ascii_lowercase();
    if OF_MANY.iter().any(|mark| name.contains(mark)) {
        return "*";
    }
    KNOWN.iter().find(|(begins, _)| name.starts_with(begins)).map_or("*", |(_, language)| language)
}

/// The script decides where it can: it is certain in a single word. Within a script only a reliable guess counts.
fn spoken(query: &str) -> Spoken {
    let Some(script) = whatlang::detect_script(query) else { return Spoken::Unknown };
    match script {
        Script::Latin => match whatlang::detect(query).filter(whatlang::Info::is_reliable) {
            Some(info) => code(info.lang()).map_or(Spoken::Unknown, Spoken::One),
            None => Spoken::Unknown,
        },
        Script::Mandarin => Spoken::OneOf(&["zh", "yue", "ja"]),
        Script::Hiragana | Script::Katakana => Spoken::One("ja"),
        Script::Hangul => Spoken::One("ko"),
        Script::Thai => Spoken::One("th"),
        Script::Greek => Spoken::One("el"),
        Script::Hebrew => Spoken::OneOf(&["he", "yi"]),
        Script::Arabic => Spoken::OneOf(&["ar", "fa", "ur", "ps", "ku", "sd", "ug"]),
        Script::Cyrillic => Spoken::OneOf(&["ru", "uk", "bg", "sr", "mk", "be", "kk", "mn", "ky", "tg"]),
        Script::Devanagari => Spoken::OneOf(&["hi", "mr", "ne", "sa"]),
        Script::Bengali => Spoken::OneOf(&["bn", "as"]),
        Script::Armenian => Spoken::One("hy"),
        Script::Georgian => Spoken::One("ka"),
        Script::Gujarati => Spoken::One("gu"),
        Script::Gurmukhi => Spoken::One("pa"),
        Script::Kannada => Spoken::One("kn"),
        Script::Khmer => Spoken::One("km"),
        Script::Malayalam => Spoken::One("ml"),
        Script::Myanmar => Spoken::One("my"),
        Script::Oriya => Spoken::One("or"),
        Script::Sinhala => Spoken::One("si"),
        Script::Tamil => Spoken::One("ta"),
        Script::Telugu => Spoken::One("te"),
        Script::Ethiopic => Spoken::OneOf(&["am", "ti"]),
    }
}

/// ISO 639-1 codes of the languages in Latin script that the detector tells apart.
fn code(language: Lang) -> Option<&'static str> {
    Some(match language {
        Lang::Eng => "en",
        Lang::Deu => "de",
        Lang::Fra => "fr",
        Lang::Spa => "es",
        Lang::Por => "pt",
        Lang::Ita => "it",
        Lang::Nld => "nl",
        Lang::Swe => "sv",
        Lang::Dan => "da",
        Lang::Nob => "no",
        Lang::Fin => "fi",
        Lang::Pol => "pl",
        Lang::Ces => "cs",
        Lang::Slk => "sk",
        Lang::Slv => "sl",
        Lang::Hrv => "hr",
        Lang::Hun => "hu",
        Lang::Ron => "ro",
        Lang::Tur => "tr",
        Lang::Vie => "vi",
        Lang::Ind => "id",
        Lang::Est => "et",
        Lang::Lav => "lv",
        Lang::Lit => "lt",
        Lang::Cat => "ca",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(model: &str, query: &str) -> bool {
        Coverage::of(None, model).includes(query)
    }

    #[test]
    fn an_english_model_is_not_asked_in_other_scripts() {
        for query in [
            "黑豹队的防守丢了多少分？",
            "いつ開業しましたか",
            "서울",
            "сколько очков",
            "كم عدد",
            "ราคา",
            "GPT 的价格是多少",
        ] {
            assert!(!covers("all-MiniLM-L6-v2", query), "{query}");
            assert!(covers("text-embedding-3-small", query), "{query}");
        }
        for query in ["how much is it", "error E0308", "?", "", "42", "naïve café", "API 42 接"] {
            assert!(covers("sentence-transformers/all-MiniLM-L6-v2", query), "{query}");
        }
    }

    #[test]
    fn within_a_script_only_a_reliable_guess_counts() {
        let german = "Wie viele Punkte hat die Verteidigung der Mannschaft in dieser Saison insgesamt zugelassen?";
        assert!(!covers("bge-small-en-v1.5", german));
        assert!(covers("bge-small-en-v1.5", "Haus"));
        assert!(covers("bge-m3", german));
    }

    #[test]
    fn families_are_known_with_their_versions() {
        for (model, language) in [
            ("nomic-embed-text:v1.5", "en"),
            ("nomic-embed-text-v2-moe", "*"),
            ("snowflake-arctic-embed2", "*"),
            ("Snowflake/snowflake-arctic-embed-l-v2.0", "*"),
            ("intfloat/multilingual-e5-small", "*"),
            ("paraphrase-multilingual-MiniLM-L12-v2", "*"),
            ("intfloat/e5-small-v2", "en"),
            ("BAAI/bge-large-zh-v1.5", "zh"),
            ("voyage-4-large", "*"),
            ("embed-english-v3.0", "en"),
        ] {
            assert_eq!(known(model), language, "{model}");
        }
    }

    #[test]
    fn what_a_store_says_wins() {
        let said = |codes: &[&str]| codes.iter().map(|code| (*code).to_owned()).collect::<Vec<_>>();
        assert!(Coverage::of(Some(&said(&["en", "zh"])), "all-MiniLM-L6-v2").includes("黑豹队"));
        assert!(Coverage::of(Some(&said(&["*"])), "all-MiniLM-L6-v2").includes("黑豹队"));
        assert!(!Coverage::of(Some(&said(&["de"])), "text-embedding-3-small").includes("黑豹队"));
    }
}
