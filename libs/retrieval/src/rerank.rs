//! A better order of what was found, by a model that does nothing else.

use std::time::Duration;

use providers::{Attempts, Ranked, search_units};
use store::targets::UpstreamTarget;
use tokens::Family;
use tokio::time::Instant;

use crate::connection::connection;
use crate::error::PartError;
use crate::owed::{Debt, ModelUse, Owed, Work};
use crate::search::{Hit, Retrieval};

const DEADLINE: Duration = Duration::from_secs(5);

/// What is shown of one passage.
const LONGEST_PASSAGE_CHARS: usize = 4_000;

/// Who orders what a search found.
#[derive(Clone, Copy, Debug)]
pub struct Reranker<'a> {
    /// The model.
    pub target: &'a UpstreamTarget,
    /// The most passages that it is shown.
    pub candidates: usize,
}

impl Reranker<'_> {
    /// What the passages shown may have, in tokens for each of the candidates: where they are longer, fewer are shown.
    pub const TOKENS_A_CANDIDATE: i64 = 600;

    /// The most that one call comes to, for a query of so many tokens: its tokens, the query once for each passage, and
    /// its search units.
    #[must_use]
    pub fn most(query_tokens: i64, candidates: usize) -> (i64, i64) {
        let shown = i64::try_from(candidates).unwrap_or(i64::MAX);
        let tokens = shown.saturating_mul(query_tokens.saturating_add(Self::TOKENS_A_CANDIDATE));
        (tokens, search_units(query_tokens, &vec![Self::TOKENS_A_CANDIDATE; candidates], None))
    }
}

/// The hits in the order of how well they answer the query. Those that the model is not shown, or leaves out, follow in
/// the order that they had. `Err` has them as they were.
pub(crate) async fn order(
    retrieval: &Retrieval,
    reranker: &Reranker<'_>,
    query: &str,
    hits: Vec<Hit>,
    owed: Owed<'_>,
) -> Result<Vec<Hit>, (Vec<Hit>, PartError)> {
    // Nothing is known of their vocabularies.
    let query_tokens = counted(query);
    let shown = shown(&hits, reranker.candidates);
    if shown.len() < 2 {
        return Ok(hits);
    }
    match ask(retrieval, reranker, query, query_tokens, &shown, owed).await {
        Ok(order) => {
            drop(shown);
            Ok(reordered(hits, &order))
        }
        Err(error) => {
            drop(shown);
            Err((hits, error))
        }
    }
}

async fn ask(
    retrieval: &Retrieval,
    reranker: &Reranker<'_>,
    query: &str,
    query_tokens: i64,
    shown: &[(&str, i64)],
    owed: Owed<'_>,
) -> Result<Vec<Ranked>, PartError> {
    let target = reranker.target;
    let connection = connection(target, (retrieval.open_credential)(target)?)?;
    let texts: Vec<&str> = shown.iter().map(|(text, _)| *text).collect();
    let lengths: Vec<i64> = shown.iter().map(|(_, tokens)| *tokens).collect();
    let tokens = lengths.iter().fold(0_i64, |sum, tokens| sum.saturating_add(*tokens).saturating_add(query_tokens));
    let used = ModelUse::counted(Work::Reranking, target, tokens, search_units(query_tokens, &lengths, None));
    let debt = Debt::new(used, owed);
    let mut attempts = Attempts::until(Instant::now() + DEADLINE);
    let answer = match retrieval.providers.rerank(&connection, query, &texts, None, &mut attempts).await {
        Ok(answer) => answer,
        Err(error) => {
            debt.ends_with(&error);
            return Err(error.into());
        }
    };
    debt.stands(|used| {
        if let Some(usage) = answer.usage {
            used.tokens = usage.prompt_tokens;
        }
        if let Some(units) = answer.search_units {
            used.search_units = units;
        }
        // Where searches are billed, the tokens stay our count.
        used.estimated = answer.usage.is_none();
    });
    Ok(answer.results)
}

/// The passages that are shown, with their tokens.
fn shown(hits: &[Hit], candidates: usize) -> Vec<(&str, i64)> {
    let mut room = i64::try_from(candidates).unwrap_or(i64::MAX).saturating_mul(Reranker::TOKENS_A_CANDIDATE);
    let passages = hits.iter().take(candidates).map(|hit| {
        let text = hit.passage.content.as_str();
        let end = text.char_indices().nth(LONGEST_PASSAGE_CHARS).map_or(text.len(), |(at, _)| at);
        text.get(..end).unwrap_or(text)
    });
    passages
        .map(|text| (text, counted(text)))
        .take_while(|(_, tokens)| {
            room = room.saturating_sub(*tokens);
            room >= 0
        })
        .collect()
}

fn counted(text: &str) -> i64 {
    i64::try_from(tokens::count(Family::Estimated, text)).unwrap_or(i64::MAX)
}

/// Hits in the order that a model gave, and after them those that it left out.
fn reordered(hits: Vec<Hit>, order: &[Ranked]) -> Vec<Hit> {
    let mut hits: Vec<Option<Hit>> = hits.into_iter().map(Some).collect();
    let mut ordered: Vec<Hit> = Vec::with_capacity(hits.len());
    for ranked in order {
        if let Some(mut hit) = hits.get_mut(ranked.index).and_then(Option::take) {
            hit.rerank_score = Some(ranked.score);
            ordered.push(hit);
        }
    }
    ordered.extend(hits.into_iter().flatten());
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::hit;

    fn hits(texts: &[&str]) -> Vec<Hit> {
        (1..).zip(texts).map(|(chunk, text)| hit(chunk, chunk, text)).collect()
    }

    fn chunks(hits: &[Hit]) -> Vec<i64> {
        hits.iter().map(|hit| hit.passage.chunk.0).collect()
    }

    #[test]
    fn what_the_model_leaves_out_follows_in_its_order() {
        let order = [Ranked { index: 2, score: 0.9 }, Ranked { index: 0, score: 0.1 }];
        let ordered = reordered(hits(&["a", "b", "c", "d"]), &order);
        assert_eq!(chunks(&ordered), [3, 1, 2, 4]);
        assert_eq!(ordered.iter().map(|hit| hit.rerank_score).collect::<Vec<_>>(), [Some(0.9), Some(0.1), None, None]);
        // An index that is none, and one twice, change nothing.
        let odd = [Ranked { index: 9, score: 1.0 }, Ranked { index: 1, score: 0.5 }, Ranked { index: 1, score: 0.4 }];
        assert_eq!(chunks(&reordered(hits(&["a", "b"]), &odd)), [2, 1]);
    }

    #[test]
    fn no_more_is_shown_than_what_is_held() {
        let long = "word ".repeat(700);
        let found = hits(&[&long, &long, &long, "short"]);
        for candidates in 1..6 {
            let shown = shown(&found, candidates);
            let query = 10;
            let tokens: i64 = shown.iter().map(|(_, tokens)| tokens + query).sum();
            assert!(tokens <= Reranker::most(query, candidates).0, "{candidates}");
            assert!(shown.len() <= candidates);
        }
        assert_eq!(shown(&found, 100).len(), 4);
        let longer = "x ".repeat(LONGEST_PASSAGE_CHARS);
        assert_eq!(shown(&hits(&[&longer]), 100)[0].0.len(), LONGEST_PASSAGE_CHARS);
        assert_eq!(Reranker::most(10, 15), (15 * 610, 1));
    }
}
