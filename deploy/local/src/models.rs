//! Which models an installation is connected to.

use domain::{ProviderType, Secret};
use serde::{Deserialize, Serialize};

use crate::arguments::Upstream;
use crate::ports::Ports;
use crate::terminal::confirm;

/// A pair of models, one that answers and one that embeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Models {
    /// The demonstration models.
    Demo,
    /// OpenAI's.
    OpenAi,
}

/// A connection to a model, as the admin API knows it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) name: &'static str,
    pub(crate) provider: ProviderType,
    pub(crate) model: &'static str,
    pub(crate) base_url: Option<String>,
    pub(crate) credential: Option<Secret>,
}

impl Models {
    /// What the command line, an earlier start and the environment say, in this order; a person at a terminal is asked
    /// when there is a key and nothing else was said.
    pub(crate) async fn choose(
        asked: Option<Upstream>,
        earlier: Option<Self>,
        has_key: bool,
        is_interactive: bool,
    ) -> Self {
        let of_key = if has_key { Self::OpenAi } else { Self::Demo };
        match (asked, earlier) {
            (Some(Upstream::Demo), _) => Self::Demo,
            (Some(Upstream::Auto), _) => of_key,
            (None, Some(earlier)) => earlier,
            (None, None) if has_key && is_interactive => {
                let question = "OPENAI_API_KEY is set. Connect OpenAI instead of the demonstration model?";
                if confirm(question).await { Self::OpenAi } else { Self::Demo }
            }
            (None, None) => Self::Demo,
        }
    }

    /// The name of the document store and of its embeddings' origin: vectors of different models are never mixed.
    pub(crate) fn store_name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::OpenAi => "openai",
        }
    }

    /// The model that answers.
    pub(crate) fn chat(self, ports: Ports, key: Option<&Secret>) -> Connection {
        match self {
            Self::Demo => demo("demo-chat", ports),
            Self::OpenAi => open_ai("openai-chat", "gpt-4o-mini", key),
        }
    }

    /// The model that embeds.
    pub(crate) fn embed(self, ports: Ports, key: Option<&Secret>) -> Connection {
        match self {
            Self::Demo => demo("demo-embed", ports),
            Self::OpenAi => open_ai("openai-embed", "text-embedding-3-small", key),
        }
    }
}

fn demo(model: &'static str, ports: Ports) -> Connection {
    let base_url = Some(format!("http://{}/v1", ports.upstream()));
    Connection { name: model, provider: ProviderType::CustomOpenAi, model, base_url, credential: None }
}

fn open_ai(name: &'static str, model: &'static str, key: Option<&Secret>) -> Connection {
    Connection { name, provider: ProviderType::OpenAi, model, base_url: None, credential: key.cloned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_command_line_wins_over_an_earlier_start_and_that_over_the_environment() {
        let choose = |asked, earlier, has_key| Models::choose(asked, earlier, has_key, false);
        assert_eq!(choose(Some(Upstream::Demo), Some(Models::OpenAi), true).await, Models::Demo);
        assert_eq!(choose(Some(Upstream::Auto), Some(Models::Demo), true).await, Models::OpenAi);
        assert_eq!(choose(Some(Upstream::Auto), None, false).await, Models::Demo);
        assert_eq!(choose(None, Some(Models::OpenAi), false).await, Models::OpenAi);
        assert_eq!(choose(None, None, true).await, Models::Demo);
    }
}
