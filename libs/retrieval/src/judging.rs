//! What the legs find for a question whose answer is known.

use std::collections::{HashMap, HashSet};

use domain::{ChunkId, DocumentId, SearchTuning};
use tokio::time::timeout;

use crate::calibrate::Judged;
use crate::error::PartError;
use crate::legs::{lexical, vector};
use crate::owed::ModelUse;
use crate::plan::{Because, Plan, Question};
use crate::search::{CANDIDATES, LEXICAL_DEADLINE, Retrieval, RetrievalError, Search, VECTOR_DEADLINE};

impl Retrieval {
    /// Searches a store by each leg for itself. `None` for a question that is not searched by both, whatever they weigh:
    /// it says nothing about weights; how many passages are asked for is of no matter. `owed` hears what the call to a model used, as for [`Retrieval::search`].
    ///
    /// # Errors
    /// [`RetrievalError`]; a leg that fails is one of them here.
    pub async fn judge(
        &self,
        search: &Search<'_>,
        documents: HashSet<DocumentId>,
        owed: &mut (dyn FnMut(ModelUse) + Send),
    ) -> Result<Option<Judged>, RetrievalError> {
        let (store, query) = (search.store, search.query);
        let settings = self.store.find_search_settings(store).await.map_err(RetrievalError::Store)?;
        let mut settings = settings.ok_or(RetrievalError::NoStore)?;
        settings.tuning = SearchTuning { vector_weight: None, lexical_weight: None, ..settings.tuning };
        let question = Question::read(query, &settings);
        if Plan::of(query, &question, &settings).because != Because::Settings {
            return Ok(None);
        }
        let (lexical, vector) = tokio::join!(
            timeout(LEXICAL_DEADLINE, lexical::find(&self.store, &settings, &question, None, CANDIDATES)),
            timeout(VECTOR_DEADLINE, vector::find(self, &settings, search, None, CANDIDATES, owed)),
        );
        let failed = |error: PartError| {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(store_id = store.0, error, "a leg failed, without which nothing can be said about weights");
            RetrievalError::AllLegsFailed
        };
        let lexical = lexical.unwrap_or(Err(PartError::TooLong)).map_err(failed)?;
        let vector = vector.unwrap_or(Err(PartError::TooLong)).map_err(failed)?;
        let near = |distance: f64| settings.tuning.max_distance.is_none_or(|most| distance <= most);
        let vector: Vec<ChunkId> = vector.hits.iter().filter(|hit| near(hit.distance)).map(|hit| hit.chunk).collect();
        let lexical: Vec<ChunkId> = lexical.into_iter().map(|(chunk, _)| chunk).collect();
        let all: Vec<ChunkId> = vector.iter().chain(&lexical).copied().collect();
        let passages = self.store.list_passages(store, &all).await.map_err(RetrievalError::Store)?;
        let of: HashMap<ChunkId, DocumentId> =
            passages.iter().map(|passage| (passage.chunk, passage.document)).collect();
        let with =
            |leg: Vec<ChunkId>| leg.into_iter().filter_map(|chunk| Some((chunk, *of.get(&chunk)?))).collect::<Vec<_>>();
        Ok(Some(Judged { vector: with(vector), lexical: with(lexical), documents }))
    }
}
