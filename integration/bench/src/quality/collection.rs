//! A judged collection in the form that BEIR gives them: `corpus.jsonl`, `queries.jsonl` and `qrels/*.tsv`.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

/// A document of a collection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    /// Its title and text.
    pub(crate) text: String,
}

/// A question and what answers it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    pub(crate) text: String,
    /// Documents by their place in the collection, with how well they answer. What is not relevant is not here.
    pub(crate) relevant: HashMap<usize, f64>,
}

/// Documents, and questions with judgements.
#[derive(Clone, Debug)]
pub(crate) struct Collection {
    /// The folder's name.
    pub(crate) name: String,
    pub(crate) documents: Vec<Document>,
    /// Those that have an answer.
    pub(crate) queries: Vec<Query>,
}

impl Collection {
    /// Reads a folder.
    ///
    /// # Errors
    /// When it has not this form, naming the file and line.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let name =
            folder.file_name().map_or_else(|| folder.display().to_string(), |n| n.to_string_lossy().into_owned());
        let mut places = HashMap::new();
        let mut documents = Vec::new();
        for (id, line) in entries(&folder.join("corpus.jsonl"))? {
            let title = line.get("title").and_then(Value::as_str).unwrap_or_default();
            let text = line.get("text").and_then(Value::as_str).unwrap_or_default();
            let text = format!("{title}\n\n{text}").trim().to_owned();
            anyhow::ensure!(places.insert(id.clone(), documents.len()).is_none(), "document {id} is there twice");
            documents.push(Document { text });
        }
        let mut judged = judgements(&folder.join("qrels"), &places)?;
        let mut queries = Vec::new();
        for (id, line) in entries(&folder.join("queries.jsonl"))? {
            let text = line.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
            if let Some(relevant) = judged.remove(&id) {
                queries.push(Query { text, relevant });
            }
        }
        anyhow::ensure!(!queries.is_empty(), "no query of {} has a relevant document", folder.display());
        Ok(Self { name, documents, queries })
    }
}

/// The lines of a file of JSON objects, with their `_id`.
fn entries(path: &Path) -> anyhow::Result<Vec<(String, Value)>> {
    let about = |number: usize| format!("line {number} of {}", path.display());
    let mut all = Vec::new();
    for (number, line) in (1..).zip(read(path)?.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).with_context(|| format!("{} is no JSON", about(number)))?;
        let id = value.get("_id").and_then(Value::as_str).with_context(|| format!("{} has no _id", about(number)))?;
        all.push((id.to_owned(), value));
    }
    Ok(all)
}

/// What is relevant to which query: from `test.tsv`, or whatever one file there is.
fn judgements(folder: &Path, places: &HashMap<String, usize>) -> anyhow::Result<HashMap<String, HashMap<usize, f64>>> {
    let test = folder.join("test.tsv");
    let path = if test.is_file() {
        test
    } else {
        let files = std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
        let mut files = files.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "tsv"));
        match files.as_slice() {
            [only] => only.clone(),
            _ => anyhow::bail!("{} has neither a test.tsv nor one other file of judgements", folder.display()),
        }
    };
    let mut all: HashMap<String, HashMap<usize, f64>> = HashMap::new();
    for (number, line) in (1..).zip(read(&path)?.lines()) {
        let mut fields = line.split('\t');
        let (Some(query), Some(document), Some(score)) = (fields.next(), fields.next(), fields.next()) else {
            anyhow::bail!("line {number} of {} has not three fields", path.display());
        };
        let Ok(gain) = score.trim().parse::<f64>() else {
            anyhow::ensure!(number == 1, "line {number} of {} has no score", path.display());
            continue;
        };
        // Some collections judge documents that they do not have.
        if let Some(place) = places.get(document).filter(|_| gain > 0.0) {
            all.entry(query.to_owned()).or_default().insert(*place, gain);
        }
    }
    Ok(all)
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(corpus: &str, queries: &str, qrels: &str) -> (tempfile::TempDir, anyhow::Result<Collection>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("qrels")).unwrap();
        for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/dev.tsv", qrels)] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let read = Collection::read(folder.path());
        (folder, read)
    }

    const CORPUS: &str = "{\"_id\":\"a\",\"title\":\"T\",\"text\":\"one\"}\n{\"_id\":\"b\",\"text\":\"two\"}\n";
    const QUERIES: &str = "{\"_id\":\"1\",\"text\":\"which?\"}\n{\"_id\":\"2\",\"text\":\"what?\"}\n";

    #[test]
    fn only_queries_with_an_answer_are_asked() {
        let qrels = "query-id\tcorpus-id\tscore\n1\tb\t2\n1\ta\t0\n1\tgone\t1\n2\ta\t-1\n";
        let collection = written(CORPUS, QUERIES, qrels).1.unwrap();
        assert_eq!(collection.documents[0].text, "T\n\none");
        let asked = Query { text: "which?".to_owned(), relevant: HashMap::from([(1, 2.0)]) };
        assert_eq!(collection.queries, [asked]);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_line() {
        let told = |corpus, qrels| written(corpus, QUERIES, qrels).1.unwrap_err().to_string();
        assert!(told("{\"_id\":\"a\"}\nx\n", "").contains("line 2 of"));
        assert!(told("{\"text\":\"a\"}\n", "").contains("has no _id"));
        assert!(told("{\"_id\":\"a\"}\n{\"_id\":\"a\"}\n", "").contains("twice"));
        assert!(told(CORPUS, "1 a 1\n").contains("three fields"));
        assert!(told(CORPUS, "1\ta\tmuch\n1\ta\tmuch\n").contains("line 2 of"));
        assert!(told(CORPUS, "1\ta\t0\n").contains("no query"));
    }
}
