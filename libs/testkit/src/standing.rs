//! The standing of a process that nobody gives up.

use std::sync::Arc;

use store::Store;
use store::instances::{InstanceId, NewInstance, Standing};
use tokio::sync::{Notify, watch};

/// The standing of a process that is registered, keeps its id to its end, and whose beats all get through.
///
/// # Errors
/// When the database cannot be reached.
pub async fn standing(store: &Store) -> anyhow::Result<Standing> {
    let id = InstanceId::new();
    // Calls of a process that nobody knows would be given up.
    let instance = NewInstance {
        id,
        service: "edge".to_owned(),
        owner: "test".to_owned(),
        host: "test".to_owned(),
        version: "test".to_owned(),
        schema_version: 1,
        addresses: serde_json::json!({}),
        key_ids: Vec::new(),
    };
    store.register_instance(&instance).await?;
    Ok(Standing::new(watch::channel(id).1, watch::channel(0).1, Arc::new(Notify::new())))
}
