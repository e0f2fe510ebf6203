//! From what the store keeps of a model to what a call of it needs.

use domain::Secret;
use providers::Connection;
use store::targets::UpstreamTarget;
use url::Url;

/// The stored base URL is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection's base URL cannot be read")]
pub struct AddressUnreadable(#[from] url::ParseError);

/// The connection to a target, with its credential as [`UpstreamTarget::open_credential`] opened it.
///
/// # Errors
/// The base URL, which was checked when it was stored, is none.
pub fn connection(target: &UpstreamTarget, credential: Option<Secret>) -> Result<Connection, AddressUnreadable> {
    Ok(Connection {
        id: target.connection,
        provider: target.provider,
        base_url: Url::parse(&target.base_url)?,
        credential,
        model: target.model.clone(),
    })
}

#[cfg(test)]
mod tests {
    use domain::{ConnectionId, ProviderType};

    use super::*;

    #[test]
    fn a_target_becomes_a_connection_if_its_address_is_one() {
        let mut target = UpstreamTarget {
            connection: ConnectionId(7),
            provider: ProviderType::CustomOpenAi,
            base_url: "http://models.example/v1".to_owned(),
            model: "m".to_owned(),
            credential_sealed: Some(vec![1]),
        };
        let made = connection(&target, Some(Secret::new("sk"))).unwrap();
        assert_eq!((made.id, made.provider, made.model.as_str()), (ConnectionId(7), ProviderType::CustomOpenAi, "m"));
        assert_eq!(made.endpoint("embeddings").as_str(), "http://models.example/v1/embeddings");
        assert_eq!(made.credential.unwrap().expose(), "sk");
        target.base_url = "models.example".to_owned();
        assert!(connection(&target, None).is_err());
    }
}
