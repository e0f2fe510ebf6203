//! How good retrieval is, on judged collections: every document goes through the real upload and the real worker, every
//! query through the edge's `/v1/retrieve`.

mod collection;
mod installation;
mod measures;
mod reference;

use anyhow::Context as _;
use serde_json::{Value, json};

use self::collection::Collection;
use self::installation::{Installation, Loaded};
use self::measures::{DEEP, Measures};
use self::reference::Bm25;
use crate::arguments::{Bars, Quality};
use crate::figure::{Figure, Unit};
use crate::machine;
use crate::report::{Report, say};
use crate::stats::Samples;

/// Which legs a search has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Lexical,
    Vector,
    /// Both, as a store has it that nobody set anything of.
    Hybrid,
}

impl Way {
    const ALL: [Self; 3] = [Self::Lexical, Self::Vector, Self::Hybrid];

    fn name(self) -> &'static str {
        match self {
            Self::Lexical => "lexical",
            Self::Vector => "vector",
            Self::Hybrid => "hybrid",
        }
    }

    /// The settings of a store that is searched so.
    pub(crate) fn weights(self) -> Value {
        match self {
            Self::Lexical => json!({ "vector_weight": 0, "lexical_weight": 1 }),
            Self::Vector => json!({ "vector_weight": 1, "lexical_weight": 0 }),
            Self::Hybrid => json!({ "vector_weight": null, "lexical_weight": null }),
        }
    }

    fn bar(self, bars: &Bars) -> Option<f64> {
        match self {
            Self::Lexical => bars.lexical_at_least,
            Self::Vector => bars.vector_at_least,
            Self::Hybrid => bars.hybrid_at_least,
        }
    }
}

/// Measures every collection; fails when a bar is missed.
pub(crate) async fn run(arguments: &Quality) -> anyhow::Result<Report> {
    let read = |path| Collection::read(path);
    let collections = arguments.paths.iter().map(|path| read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let installation = Installation::start(arguments).await?;
    let mut report = Report {
        about: json!({
            "version": env!("CARGO_PKG_VERSION"), "debug": cfg!(debug_assertions), "machine": machine::describe(),
            "embeddings": arguments.embeddings_model.as_deref().unwrap_or("the demonstration's"),
        }),
        ..Report::default()
    };
    for collection in &collections {
        let loaded =
            installation.load(collection).await.with_context(|| format!("{} is not loaded", collection.name))?;
        say(&format!(
            "{}: {} documents in {} chunks, {} without text, {} queries; ingested in {:.0} s",
            collection.name,
            collection.documents.len(),
            loaded.chunks,
            loaded.empty,
            collection.queries.len(),
            loaded.took.as_secs_f64()
        ));
        for way in Way::ALL {
            installation.search_by(&loaded, way).await?;
            let (measures, times) = ask_all(&installation, &loaded, collection).await?;
            let figure = figure(collection, way.name(), measures);
            let figure = match way.bar(&arguments.bars) {
                Some(bar) => figure.at_least(bar),
                None => figure,
            };
            report.figures.push(figure.with("answered in, p50", Unit::Micros, times.percentile(0.5) * 1e6));
        }
        report.figures.push(figure(collection, "textbook BM25", ask_reference(collection)));
    }
    installation.stop().await?;
    Ok(report)
}

async fn ask_all(
    installation: &Installation,
    loaded: &Loaded,
    collection: &Collection,
) -> anyhow::Result<(Measures, Samples)> {
    let (mut all, mut times) = (Vec::new(), Vec::new());
    for query in &collection.queries {
        let (ranked, took) = installation.ask(loaded, &query.text).await?;
        all.push(Measures::of(&ranked, &query.relevant));
        times.push(took.as_secs_f64());
    }
    Ok((Measures::mean(&all), Samples::new(times)))
}

fn ask_reference(collection: &Collection) -> Measures {
    let index = Bm25::index(&collection.documents);
    let measured =
        collection.queries.iter().map(|query| Measures::of(&index.search(&query.text, DEEP), &query.relevant));
    Measures::mean(&measured.collect::<Vec<_>>())
}

fn figure(collection: &Collection, name: &str, measures: Measures) -> Figure {
    Figure::new(format!("{} nDCG@10, {name}", collection.name), Unit::Score, measures.ndcg)
        .with("MRR@10", Unit::Score, measures.mrr)
        .with("recall@100", Unit::Score, measures.recall)
}
