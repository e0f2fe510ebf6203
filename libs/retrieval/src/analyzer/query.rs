//! The syntax of queries: `"exact words"` and `-without`.

use super::{Language, Term, analyze};

/// A query, cut into terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// What to look for, without repetitions; those of phrases as well. Empty when the query only excludes.
    pub terms: Vec<String>,
    /// What a passage must contain: of each phrase one of its readings, one for each language it may be in.
    pub phrases: Vec<Vec<Vec<Term>>>,
    /// A passage with all terms of one of these is left out.
    pub excluded: Vec<Vec<String>>,
}

impl Query {
    /// Reads a query. `languages` are those the indexed text may be in: the store's own, or
    /// [`Language::candidates`]; a word brings a term for each way it is stemmed in them.
    #[must_use]
    pub fn parse(text: &str, languages: &[Language]) -> Self {
        let none = [Language::NONE];
        let languages = if languages.is_empty() { &none[..] } else { languages };
        let mut query = Self::default();
        // Free words are cut together, so that they come out as they do in a text.
        let mut free = String::new();
        for part in (Parts { rest: text }) {
            match part {
                Part::Free(words) => {
                    free.push_str(words);
                    free.push(' ');
                }
                Part::Phrase(words) => query.phrase(words, languages),
                Part::Excluded(words) => query.exclude(words, languages),
            }
        }
        for language in languages {
            query.add(&analyze(&free, *language));
        }
        query
    }

    /// Whether more is asked of a passage than words in common.
    #[must_use]
    pub fn demands(&self) -> bool {
        !self.phrases.is_empty() || !self.excluded.is_empty()
    }

    /// Whether a passage has the query's phrases and nothing it excludes. Postings know no places, so this looks at
    /// the passage's text; `language` is the one it was indexed in. Words as they are written count in any language.
    #[must_use]
    pub fn accepts(&self, passage: &str, language: Language) -> bool {
        if !self.demands() {
            return true;
        }
        let mut readings = vec![analyze(passage, language)];
        if language != Language::NONE {
            readings.push(analyze(passage, Language::NONE));
        }
        let has_all = |group: &Vec<String>| {
            readings.iter().any(|terms| group.iter().all(|wanted| terms.iter().any(|term| term.text == *wanted)))
        };
        let has = |phrase: &Vec<Term>| readings.iter().any(|terms| contains(terms, phrase));
        !self.excluded.iter().any(has_all) && self.phrases.iter().all(|phrase| phrase.iter().any(has))
    }

    fn phrase(&mut self, words: &str, languages: &[Language]) {
        let mut readings = Vec::new();
        for language in languages {
            let terms = analyze(words, *language);
            self.add(&terms);
            if !terms.is_empty() && !readings.contains(&terms) {
                readings.push(terms);
            }
        }
        if !readings.is_empty() {
            self.phrases.push(readings);
        }
    }

    fn exclude(&mut self, words: &str, languages: &[Language]) {
        for language in languages {
            let group: Vec<String> = analyze(words, *language).into_iter().map(|t| t.text).collect();
            if !group.is_empty() && !self.excluded.contains(&group) {
                self.excluded.push(group);
            }
        }
    }

    fn add(&mut self, terms: &[Term]) {
        for term in terms {
            if !self.terms.contains(&term.text) {
                self.terms.push(term.text.clone());
            }
        }
    }
}

/// Whether the phrase's terms stand in the text at the same distances.
fn contains(text: &[Term], phrase: &[Term]) -> bool {
    let Some(first) = phrase.first() else { return true };
    text.iter().filter(|t| t.text == first.text).any(|start| {
        phrase.iter().all(|wanted| {
            let position = start.position + (wanted.position - first.position);
            // Terms are in the order of their positions.
            let from = text.partition_point(|t| t.position < position);
            let there = text.get(from..).unwrap_or_default();
            there.iter().take_while(|t| t.position == position).any(|t| t.text == wanted.text)
        })
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Part<'t> {
    Free(&'t str),
    Phrase(&'t str),
    Excluded(&'t str),
}

/// A query from left to right.
struct Parts<'t> {
    rest: &'t str,
}

impl<'t> Iterator for Parts<'t> {
    type Item = Part<'t>;

    fn next(&mut self) -> Option<Part<'t>> {
        let rest = self.rest.trim_start();
        // A minus before a digit is a sign, and between spaces a dash.
        let negated = rest.strip_prefix('-').filter(|r| r.starts_with(|c: char| c.is_alphabetic() || is_quote(c)));
        let part = negated.unwrap_or(rest);
        let (words, quoted, after) = match quoted(part) {
            Some((words, after)) => (words, true, after),
            None => {
                let end = part.find(char::is_whitespace).unwrap_or(part.len());
                let (word, after) = part.split_at(end);
                (word, false, after)
            }
        };
        self.rest = after;
        match (negated.is_some(), quoted) {
            (true, _) => Some(Part::Excluded(words)),
            (false, true) => Some(Part::Phrase(words)),
            (false, false) if words.is_empty() => None,
            (false, false) => Some(Part::Free(words)),
        }
    }
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\u{201c}' | '\u{201d}' | '\u{201e}')
}

/// What stands between a quotation mark at the start and the next; none without a second one.
fn quoted(part: &str) -> Option<(&str, &str)> {
    let inside = part.strip_prefix(is_quote)?;
    inside.split_once(is_quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EN: Language = Language::ENGLISH;

    #[test]
    fn quotes_and_minus_are_read() {
        let parts: Vec<Part<'_>> = Parts { rest: "one \"two three\" -four -\"five six\" - 7 -8 \"open" }.collect();
        let wanted = [
            Part::Free("one"),
            Part::Phrase("two three"),
            Part::Excluded("four"),
            Part::Excluded("five six"),
            Part::Free("-"),
            Part::Free("7"),
            Part::Free("-8"),
            Part::Free("\"open"),
        ];
        assert_eq!(parts, wanted);
    }

    #[test]
    fn phrases_must_stand_together_and_excluded_words_must_not_stand_at_all() {
        let query = Query::parse("\"running shoes\" -sale", &[EN]);
        assert_eq!(query.terms, ["run", "shoe"]);
        assert!(query.accepts("Good running shoes, new", EN));
        assert!(query.accepts("Good RUNNING  Shoe", EN));
        assert!(!query.accepts("running in good shoes", EN));
        assert!(!query.accepts("running shoes on sale", EN));
        assert!(Query::parse("shoes", &[EN]).accepts("anything", EN));
    }

    #[test]
    fn every_phrase_must_be_there_in_one_of_its_readings() {
        let query = Query::parse("\"red shoes\" \"blue hats\"", &[EN, Language::NONE]);
        assert!(query.accepts("red shoes and blue hats", EN));
        assert!(query.accepts("red shoes and blue hats", Language::NONE));
        assert!(!query.accepts("red shoes and hats", EN));
    }

    #[test]
    fn identifiers_and_dense_scripts_can_be_phrases_too() {
        let query = Query::parse("\"error ABC-123\"", &[EN]);
        assert!(query.accepts("an error ABC-123 happened", EN));
        assert!(!query.accepts("an error ABC-124 happened", EN));
        assert!(Query::parse("\"机器学习\"", &[EN]).accepts("关于机器学习的书", EN));
        assert!(!Query::parse("-机器学习", &[EN]).accepts("关于机器学习的书", EN));
    }

    #[test]
    fn a_query_that_only_excludes_looks_for_nothing() {
        let query = Query::parse("-a -b", &[EN]);
        assert!(query.terms.is_empty());
        assert_eq!(query.excluded.len(), 2);
        assert_eq!(Query::parse("  ", &[EN]), Query::default());
    }

    #[test]
    fn a_word_is_stemmed_in_every_language_it_may_be_in() {
        let german = Language::from_code("de");
        let query = Query::parse("Häuser", &Language::candidates("Häuser"));
        assert!(query.terms.contains(&analyze("Haus", german)[0].text));
        assert!(query.terms.contains(&"häuser".to_owned()));
    }
}
