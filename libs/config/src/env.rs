//! Finding the text of a key: from the variable itself, or from the file that `NAME_FILE` names.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;

use crate::{Mistake, Mistakes};

/// No setting is longer than this; a path to something endless is an error, not a hang.
const LONGEST_FILE: u64 = 1024 * 1024;

/// The environment of a process and what reading it has shown so far.
///
/// Getters take the key as it is written by operators. Every key asked for is remembered for [`Env::keys`].
#[derive(Debug)]
pub struct Env {
    variables: BTreeMap<String, OsString>,
    keys: BTreeSet<&'static str>,
    mistakes: Vec<Mistake>,
    warnings: Vec<String>,
}

/// What reading the settings left to say although they can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Sentences for the log, lower case.
    pub warnings: Vec<String>,
}

/// A text and the key that it came by: `NAME` or `NAME_FILE`.
pub(crate) struct Found {
    pub(crate) text: String,
    pub(crate) key: String,
}

impl Env {
    /// The environment of this process.
    #[must_use]
    pub fn process() -> Self {
        // A variable whose name is not Unicode is none of ours.
        Self::from_variables(std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value))))
    }

    /// An environment made of the given pairs only.
    pub fn of<K: Into<String>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::from_variables(pairs.into_iter().map(|(key, value)| (key.into(), value.into())))
    }

    fn from_variables(variables: impl Iterator<Item = (String, OsString)>) -> Self {
        Self { variables: variables.collect(), keys: BTreeSet::new(), mistakes: Vec::new(), warnings: Vec::new() }
    }

    /// The keys asked for so far, without their `_FILE` variants. `.env.example` lists the same ones.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<&'static str> {
        self.keys.clone()
    }

    /// Notes that a setting cannot be used, for rules that this crate does not know. `value` is left out for secrets;
    /// `problem` says what is allowed.
    pub fn reject(&mut self, key: &str, value: Option<&str>, problem: impl Into<String>) {
        self.mistakes.push(Mistake { key: key.to_owned(), value: value.map(str::to_owned), problem: problem.into() });
    }

    /// Notes something to tell the operator about a setting that is used all the same.
    pub fn warn(&mut self, sentence: impl Into<String>) {
        self.warnings.push(sentence.into());
    }

    /// Ends the reading.
    ///
    /// # Errors
    ///
    /// [`Mistakes`] with every mistake that was noted, when there was one; the values read must not be used then.
    pub fn finish(self) -> Result<Findings, Mistakes> {
        if self.mistakes.is_empty() { Ok(Findings { warnings: self.warnings }) } else { Err(Mistakes(self.mistakes)) }
    }

    /// The text of a key, `None` when it is not set or set to nothing.
    pub(crate) fn find(&mut self, key: &'static str) -> Option<Found> {
        self.keys.insert(key);
        let direct = self.variable(key).filter(|text| !text.is_empty());
        let file_key = format!("{key}_FILE");
        let path = self.variables.get(&file_key).filter(|path| !path.is_empty()).cloned();
        match (direct, path) {
            (Some(_), Some(_)) => {
                self.reject(key, None, format!("set either {key} or {file_key}, not both"));
                None
            }
            (Some(text), None) => Some(Found { text, key: key.to_owned() }),
            (None, Some(path)) => match read_value(&path) {
                Ok(text) => Some(Found { text, key: file_key }),
                Err(problem) => {
                    self.reject(&file_key, Some(&path.to_string_lossy()), problem);
                    None
                }
            },
            (None, None) => None,
        }
    }

    /// Whether the key itself is in the environment and holds nothing.
    pub(crate) fn is_set_to_nothing(&self, key: &str) -> bool {
        self.variables.get(key).is_some_and(|value| value.is_empty())
    }

    /// Whether a mistake was noted for the key or its file.
    pub(crate) fn has_mistake(&self, key: &str) -> bool {
        self.mistakes.iter().any(|mistake| mistake.key.strip_suffix("_FILE").unwrap_or(&mistake.key) == key)
    }

    fn variable(&mut self, key: &str) -> Option<String> {
        match self.variables.get(key)?.to_str() {
            Some(text) => Some(text.to_owned()),
            None => {
                self.reject(key, None, "the value is not UTF-8");
                None
            }
        }
    }
}

/// The text of a file without the line ends that editors leave at its end.
fn read_value(path: &OsString) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("the file cannot be read: {error}"))?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(format!("the file is longer than {LONGEST_FILE} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8".to_owned())?;
    let text = text.trim_end_matches(['\r', '\n']);
    // An empty secret file is a mount that went wrong; reading it as "not set" would make the process invent a secret.
    if text.is_empty() { Err("the file is empty".to_owned()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        std::fs::write(&path, content).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (folder, path)
    }

    #[test]
    fn a_key_can_be_given_as_a_file() {
        let (_folder, path) = file(b"first\nsecond\r\n\n");
        let mut env = Env::of([("NAME_FILE", path)]);
        assert_eq!(env.text("NAME", "default"), "first\nsecond");
        env.finish().unwrap();
    }

    #[test]
    fn a_key_given_both_ways_is_a_mistake() {
        let (_folder, path) = file(b"one");
        let mut env = Env::of([("NAME", "two"), ("NAME_FILE", path.as_str())]);
        env.text("NAME", "");
        assert_eq!(
            env.finish().unwrap_err().to_string(),
            "one setting is wrong:\n  NAME: set either NAME or NAME_FILE, not both"
        );
    }

    #[test]
    fn a_file_that_gives_no_text_is_a_mistake_that_names_it() {
        for content in [&b""[..], b"\n", b"\xff\xfe"] {
            let (_folder, path) = file(content);
            let mut env = Env::of([("NAME_FILE", path.as_str())]);
            assert!(env.secret("NAME").is_none());
            let Mistakes(mistakes) = env.finish().unwrap_err();
            assert_eq!((mistakes[0].key.as_str(), mistakes[0].value.as_deref()), ("NAME_FILE", Some(path.as_str())));
        }
        for path in ["/does/not/exist", "/dev/zero", "/"] {
            let mut env = Env::of([("NAME_FILE", path)]);
            env.text("NAME", "");
            assert_eq!(env.finish().unwrap_err().0.len(), 1, "{path}");
        }
    }

    #[test]
    fn set_to_nothing_is_not_set() {
        let mut env = Env::of([("NAME", ""), ("NAME_FILE", "")]);
        assert_eq!(env.text("NAME", "default"), "default");
        env.finish().unwrap();
    }

    #[test]
    fn a_value_that_is_not_text_is_a_mistake() {
        let mut env = Env::of([("NAME", OsString::from_vec(vec![0xff]))]);
        env.text("NAME", "default");
        assert!(env.finish().unwrap_err().to_string().contains("NAME: the value is not UTF-8"));
    }

    #[test]
    fn the_keys_asked_for_are_remembered() {
        let mut env = Env::of([("B", "x")]);
        env.text("B", "");
        env.flag("A", false);
        env.text("B", "");
        assert_eq!(env.keys().into_iter().collect::<Vec<_>>(), ["A", "B"]);
    }
}
