//! Keys as edges see them.

use std::time::Duration;

use domain::{ApiKeyId, KeyKind, Scope};
use store::principals::Standing;
use store::testing::RoleName;

#[tokio::test]
async fn how_a_key_stands_does_not_depend_on_its_secret() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Edge)?;
    let project = database.insert_project("p", "").await?;
    let (shared, _) = database.insert_project_key(project).await?;
    let user = database.insert_user("ann").await?;
    let (id, key) = database.insert_user_key(user, "k", &["chat"], &[project]).await?;
    let good = |key| Standing {
        key,
        kind: if key == shared { KeyKind::Project } else { KeyKind::Gateway },
        scopes: if key == shared { Vec::new() } else { vec![Scope::Chat] },
        allowed_routes: None,
        revoked: false,
        expired: false,
        owner_active: true,
        expires_in: None,
        projects: vec![project],
    };
    let mut all = store.list_key_standings(&[shared, id, ApiKeyId(999_999)]).await?;
    all.sort_by_key(|standing| standing.key);
    assert_eq!(all, [good(shared), good(id)], "a key that is gone has none");

    let stands = async || anyhow::Ok(store.list_key_standings(&[id]).await?.remove(0));
    database.rotate_key(id, KeyKind::Gateway, 0).await?;
    assert!(store.find_principal(&key.hash()).await?.is_none());
    assert_eq!(stands().await?, good(id));
    database.change_key(id, "scopes = '{models,of_tomorrow}', allowed_routes = '{fast}'").await?;
    let narrowed = stands().await?;
    assert_eq!((narrowed.scopes, narrowed.allowed_routes), (vec![Scope::Models], Some(vec!["fast".to_owned()])));
    database.change_key(id, "scopes = '{chat}', allowed_routes = NULL").await?;
    database.change_key(id, "expires_at = clock_timestamp() + interval '1 h'").await?;
    let expires_in = stands().await?.expires_in.unwrap();
    assert!(expires_in <= Duration::from_secs(3600) && expires_in > Duration::from_secs(3000), "{expires_in:?}");
    database.change_key(id, "expires_at = clock_timestamp(), revoked_at = clock_timestamp()").await?;
    database.change_user(user, "active = false").await?;
    database.remove_grant(id, project).await?;
    let (expires_in, projects) = (Some(Duration::ZERO), Vec::new());
    let ended = Standing { revoked: true, expired: true, owner_active: false, expires_in, projects, ..good(id) };
    assert_eq!(stands().await?, ended);
    Ok(())
}
