//! What callers may read of their own usage.

use domain::{ApiKeyId, NanoUsd, Price, ProjectId, RequestId, Tier, Window};
use serde_json::{Value, json};
use store::Store;
use store::ledger::{Ask, Entry};
use store::testing::{LogRow, RoleName, TestDatabase};
use store::usage::{Amounts, TierUsage, WindowUsage};
use time::OffsetDateTime;
use tokio::sync::Mutex;

use crate::books::Books;

struct World {
    database: TestDatabase,
    store: Store,
    books: Mutex<Books>,
    project: ProjectId,
    key: ApiKeyId,
}

async fn world(limits: &str) -> anyhow::Result<World> {
    let database = testkit::database().await?;
    let store = database.store(RoleName::Edge)?;
    let project = database.insert_project("shop", limits).await?;
    let (key, _) = database.insert_project_key(project).await?;
    let books = Mutex::new(Books::open(&store).await?);
    Ok(World { database, store, books, project, key })
}

impl World {
    async fn admit(&self, key: ApiKeyId, tokens: i64) -> anyhow::Result<RequestId> {
        let ask = Ask {
            request: RequestId::new(),
            project: self.project,
            key: Some(key),
            prompt_tokens: tokens,
            output_tokens: 0,
            min_output: 0,
            input_price: Price(1_000_000),
            output_price: Price(0),
            fixed_cost: NanoUsd(0),
            details: json!({ "operation": "chat", "route": "fast", "model": "m", "streamed": true, "status": 499,
                             "tags": { "team": "a" } })
            .to_string(),
        };
        self.books.lock().await.admit(std::slice::from_ref(&ask)).await?;
        Ok(ask.request)
    }

    async fn settle(&self, request: RequestId, tokens: i64) -> anyhow::Result<()> {
        let entry = Entry { status: 200, prompt_tokens: Some(tokens), streamed: Some(true), ..Entry::default() };
        self.books.lock().await.settle_as(request, tokens, tokens, entry).await?;
        Ok(())
    }

    async fn persons_key(&self) -> anyhow::Result<ApiKeyId> {
        let user = self.database.insert_user("ann").await?;
        Ok(self.database.insert_user_key(user, "k", &["chat"], &[self.project]).await?.0)
    }
}

fn of(tier: &TierUsage, window: Window) -> &WindowUsage {
    tier.windows.iter().find(|usage| usage.window == window).unwrap()
}

#[tokio::test]
async fn windows_show_what_is_used_and_held_of_each_tier() -> anyhow::Result<()> {
    let world = world("tokens_per_day = 1000, cost_per_month = 5000, concurrent_requests = 9").await?;
    let key = world.persons_key().await?;
    world.database.change_key(key, "requests_per_minute = 60, time_zone = 'Asia/Kolkata'").await?;
    let done = world.admit(key, 100).await?;
    world.settle(done, 130).await?;
    world.admit(key, 40).await?;
    world.admit(world.key, 7).await?;

    let tiers = world.store.list_tier_usage(world.project, key).await?;
    assert_eq!(
        tiers.iter().map(|tier| (tier.tier, tier.open_calls)).collect::<Vec<_>>(),
        [(Tier::Project, 2), (Tier::Key, 1)]
    );
    assert_eq!((tiers[0].name.as_str(), tiers[0].time_zone.as_str(), tiers[0].concurrent_requests), ("shop", "UTC", 9));
    assert_eq!((tiers[1].name.as_str(), tiers[1].time_zone.as_str()), ("k", "Asia/Kolkata"));
    let day = of(&tiers[0], Window::Day);
    assert_eq!(day.tokens, Amounts { limit: 1000, used: 100, excess: 30, held: 47 });
    assert_eq!(day.cost, Amounts { limit: 0, used: 100, excess: 30, held: 47 });
    assert_eq!(day.requests, Amounts { limit: 0, used: 1, excess: 0, held: 2 });
    let month = of(&tiers[0], Window::Month);
    assert_eq!((month.cost.limit, month.tokens.limit), (5000, 0));
    assert_eq!(of(&tiers[1], Window::Day).tokens, Amounts { limit: 0, used: 100, excess: 30, held: 40 });
    assert_eq!(of(&tiers[1], Window::Minute).requests.limit, 60);
    // Days of the key begin at its own midnight: half an hour off the hour.
    let begins = of(&tiers[1], Window::Day).starts_at;
    assert_eq!((begins.hour(), begins.minute()), (18, 30));
    let now = OffsetDateTime::now_utc();
    for usage in tiers.iter().flat_map(|tier| &tier.windows) {
        // The clocks of this process and of the server are one here.
        assert!(usage.starts_at <= now && now < usage.ends_at + time::Duration::MINUTE, "{usage:?}");
    }
    // A project's own key is no tier.
    assert_eq!(world.store.list_tier_usage(world.project, world.key).await?.len(), 1);
    assert!(world.store.list_tier_usage(ProjectId(-1), key).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_window_that_has_ended_since_the_last_call_shows_nothing() -> anyhow::Result<()> {
    let world = world("tokens_per_day = 1000, requests_per_minute = 5").await?;
    let untouched = world.store.list_tier_usage(world.project, world.key).await?;
    assert_eq!(of(&untouched[0], Window::Day).tokens, Amounts { limit: 1000, ..Amounts::default() });
    let done = world.admit(world.key, 100).await?;
    world.settle(done, 130).await?;
    world.admit(world.key, 40).await?;
    world
        .database
        .execute(
            "UPDATE tier_state SET minute_start = minute_start - interval '1 minute', day_start = day_start - interval '1 day'",
        )
        .await?;
    let tiers = world.store.list_tier_usage(world.project, world.key).await?;
    let day = of(&tiers[0], Window::Day);
    assert_eq!(day.tokens, Amounts { limit: 1000, ..Amounts::default() });
    assert_eq!(day.ends_at - day.starts_at, time::Duration::DAY);
    let minute = of(&tiers[0], Window::Minute);
    assert_eq!(minute.requests, Amounts { limit: 5, ..Amounts::default() });
    assert_eq!(of(&tiers[0], Window::Month).tokens.used, 100, "the month goes on");
    assert_eq!(tiers[0].open_calls, 1, "and so does the call");
    Ok(())
}

#[tokio::test]
async fn a_call_is_found_open_and_settled_by_those_who_may_see_it() -> anyhow::Result<()> {
    let world = world("").await?;
    let key = world.persons_key().await?;
    let find = async |request: RequestId, project: ProjectId, key: Option<ApiKeyId>| {
        world.store.find_ledger_entry(request, project, key).await
    };
    let request = world.admit(key, 100).await?;
    let open = find(request, world.project, Some(key)).await?.unwrap();
    assert_eq!((open.state.as_str(), open.held, open.charged), ("open", Some((100, NanoUsd(100))), None));
    assert_eq!((open.route.as_deref(), open.status, open.streamed), (Some("fast"), None, true));
    assert_eq!(open.tags, Some(json!({ "team": "a" })));
    world.settle(request, 130).await?;
    for who in [Some(key), None] {
        let done = find(request, world.project, who).await?.unwrap();
        let charged = done.charged.unwrap();
        assert_eq!((done.state.as_str(), done.held, done.status), ("final", None, Some(200)));
        assert_eq!((charged.requests, charged.tokens, charged.cost), (1, 130, NanoUsd(130)));
        assert_eq!((done.prompt_tokens, done.admitted_at, done.tags), (Some(130), open.admitted_at, open.tags.clone()));
        assert!(done.settled_at.unwrap() >= done.admitted_at);
    }
    let elsewhere = world.database.insert_project("elsewhere", "").await?;
    assert!(find(request, elsewhere, None).await?.is_none());
    assert!(find(request, world.project, Some(world.key)).await?.is_none());
    assert!(find(RequestId::new(), world.project, None).await?.is_none());
    assert!(find(RequestId(uuid::Uuid::new_v4()), world.project, None).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn only_the_days_around_a_calls_id_are_looked_at_unless_it_is_elsewhere() -> anyhow::Result<()> {
    let world = world("").await?;
    for day in [-30, 0] {
        world.store.ensure_log_day(day).await?;
    }
    let row = |days_ago| LogRow {
        request: RequestId::new(),
        days_ago,
        project: (world.project, "shop"),
        key: None,
        model: None,
        status: 200,
        estimated: true,
        tokens: 1,
        cost: 0,
        tags: Value::Null,
    };
    let (near, far) = (row(0), row(30));
    world.database.insert_log_row(&near).await?;
    world.database.insert_log_row(&far).await?;
    let pool = world.database.superuser_pool().await?;
    for (request, looks_at_all) in [(near.request, false), (far.request, true)] {
        // Several times: a plan that is kept would be for all days.
        for _ in 0..8 {
            let mut transaction = pool.begin().await?;
            let (state, old): (String, bool) = sqlx::query_as(
                "SELECT state, EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation::regclass::text
                           = 'request_logs_' || to_char((clock_timestamp() AT TIME ZONE 'UTC')::date - 30, 'YYYYMMDD'))
                   FROM find_ledger_entry_v1($1, $2, NULL)",
            )
            .bind(request.0)
            .bind(world.project.0)
            .fetch_one(&mut *transaction)
            .await?;
            assert_eq!((state.as_str(), old), ("estimated", looks_at_all));
            transaction.rollback().await?;
        }
    }
    Ok(())
}
