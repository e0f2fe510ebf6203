use domain::{KeyKind, Scope};
use futures::FutureExt;
use runtime::Listener;
use store::principals::Principal;

use super::*;

const PROJECT: ProjectId = ProjectId(7);

async fn calls() -> Arc<LiveCalls> {
    LiveCalls::new(Listener::bind("test", ([127, 0, 0, 1], 0).into()).await.unwrap().cut())
}

fn known(key: i64, ends: Option<Instant>) -> Known {
    let principal = Principal {
        key: ApiKeyId(key),
        kind: KeyKind::Project,
        name: "k".to_owned(),
        owner: None,
        project: Some(PROJECT),
        default_project: None,
        scopes: vec![Scope::Chat],
        allowed_routes: None,
        revoked: false,
        expired: false,
        expires_in_seconds: None,
        granted: Vec::new(),
        has_limits: false,
        has_cost_budget: false,
    };
    Known { principal, grants: Vec::new(), ends }
}

fn standing(key: i64, expires_in: Option<Duration>) -> Standing {
    Standing {
        key: ApiKeyId(key),
        kind: KeyKind::Gateway,
        revoked: false,
        expired: false,
        owner_active: true,
        expires_in,
        projects: vec![PROJECT],
        scopes: vec![Scope::Chat],
        allowed_routes: None,
    }
}

fn place(project: ProjectId, route: Option<&str>) -> Place {
    Place { key: ApiKeyId(1), project, scope: Some(Scope::Chat), route: route.map(Into::into) }
}

#[tokio::test]
async fn calls_leave_nothing_behind_and_ended_ones_do_not_take_out_those_that_came_since() {
    let calls = calls().await;
    let first = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
    let second = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
    calls.judge(&[ApiKeyId(1)], &[], Instant::now());
    assert_eq!(first.ended().now_or_never(), Some(Ended::Key(KeyState::Revoked)), "a key that is gone");
    let third = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
    drop((first, second));
    assert_eq!(third.ended().now_or_never(), None);
    calls.judge(&[ApiKeyId(1)], &[standing(1, None)], Instant::now());
    assert_eq!(third.clone().ended().now_or_never(), None);
    assert_eq!(calls.state().calls.len(), 1);
    drop(third);
    assert!(calls.state().calls.is_empty());
}

#[tokio::test]
async fn a_key_is_looked_at_when_it_is_heard_of_and_when_it_ends() {
    let calls = calls().await;
    let now = Instant::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    let _lasting = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
    let _long = calls.enter(&known(2, Some(after(60))), PROJECT, Some(Scope::Chat));
    let _short = calls.enter(&known(3, Some(after(30))), PROJECT, Some(Scope::Chat));
    assert_eq!(calls.state().soonest, Some(after(30)));
    assert_eq!(calls.take_due(now), []);
    calls.key_changed(ApiKeyId(1));
    calls.key_changed(ApiKeyId(4));
    assert_eq!(calls.take_due(now), [ApiKeyId(1)]);
    assert_eq!(calls.take_due(now), [], "once");
    assert_eq!(calls.take_due(after(30)), [ApiKeyId(3)]);
    assert_eq!(calls.state().soonest, Some(after(60)));
    // Its end was put off.
    calls.judge(&[ApiKeyId(3)], &[standing(3, Some(Duration::from_secs(10)))], after(30));
    assert_eq!(calls.state().soonest, Some(after(40)));
    calls.project_changed(PROJECT);
    assert_eq!(calls.take_due(now).len(), 3);
}

#[tokio::test]
async fn calls_end_by_the_route_that_they_go_by() {
    let calls = calls().await;
    let enter = |route: &str| {
        let call = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
        call.goes_by(route);
        call
    };
    let (kept, lost) = (enter("fast"), enter("slow"));
    assert_eq!(calls.take_due(Instant::now()), []);
    let narrowed = Standing { allowed_routes: Some(vec!["fast".to_owned()]), ..standing(1, None) };
    calls.judge(&[ApiKeyId(1)], &[narrowed], Instant::now());
    assert_eq!((kept.has_ended(), lost.has_ended()), (None, Some(Ended::Route("slow".into()))));
    drop((kept, lost));
    assert!(calls.state().calls.is_empty());
}

#[tokio::test]
async fn what_is_heard_before_the_route_is_known_is_looked_at_again() {
    let calls = calls().await;
    let call = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
    calls.key_changed(ApiKeyId(1));
    assert_eq!(calls.take_due(Instant::now()), [ApiKeyId(1)]);
    let narrowed = [Standing { allowed_routes: Some(Vec::new()), ..standing(1, None) }];
    calls.judge(&[ApiKeyId(1)], &narrowed, Instant::now());
    assert_eq!(call.has_ended(), None);
    call.goes_by("fast");
    assert_eq!(calls.take_due(Instant::now()), [ApiKeyId(1)]);
    calls.judge(&[ApiKeyId(1)], &narrowed, Instant::now());
    assert_eq!(call.has_ended(), Some(Ended::Route("fast".into())));
    // One that was told to end stays so whatever its route is.
    let call = calls.enter(&known(1, None), PROJECT, Some(Scope::Chat));
    calls.judge(&[ApiKeyId(1)], &[], Instant::now());
    call.goes_by("fast");
    assert_eq!(call.has_ended(), Some(Ended::Key(KeyState::Revoked)));
}

#[test]
fn the_reason_is_the_one_that_a_new_call_would_be_told() {
    let elsewhere = place(ProjectId(8), Some("fast"));
    let mut bad = standing(1, None);
    assert_eq!(verdict(Some(&bad), &place(PROJECT, Some("fast"))), None);
    bad.allowed_routes = Some(vec!["slow".to_owned()]);
    assert_eq!(verdict(Some(&bad), &place(PROJECT, None)), None);
    assert_eq!(verdict(Some(&bad), &place(PROJECT, Some("slow"))), None);
    assert_eq!(verdict(Some(&bad), &place(PROJECT, Some("fast"))), Some(Ended::Route("fast".into())));
    assert_eq!(verdict(Some(&bad), &elsewhere), Some(Ended::NotGranted));
    bad.scopes = vec![Scope::Models];
    assert_eq!(verdict(Some(&bad), &elsewhere), Some(Ended::Scope(Scope::Chat)));
    assert_eq!(verdict(Some(&bad), &Place { scope: None, ..elsewhere.clone() }), Some(Ended::NotGranted));
    bad.owner_active = false;
    assert_eq!(verdict(Some(&bad), &elsewhere), Some(Ended::Key(KeyState::OwnerInactive)));
    bad.expired = true;
    assert_eq!(verdict(Some(&bad), &elsewhere), Some(Ended::Key(KeyState::Expired)));
    bad.revoked = true;
    assert_eq!(verdict(Some(&bad), &elsewhere), Some(Ended::Key(KeyState::Revoked)));
}
