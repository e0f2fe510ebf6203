//! What a batch is to the server and to its callers: one message, locks in one order, and the same answers whichever way
//! it is looked at.

use std::sync::{Arc, Mutex, PoisonError};

use domain::{ApiKeyId, NanoUsd, Secret};
use store::Store;
use store::ledger::{Admission, Ask, Headroom};
use store::testing::RoleName;
use time::macros::datetime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::admission::{Fixture, denial, fixture, granted};
use crate::books::Books;
use crate::calendar::calendar;

/// What a client sends to the server, byte by byte.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Vec<u8>>>);

impl Wire {
    /// A store whose one connection goes over it.
    async fn store(&self, fixture: &Fixture) -> anyhow::Result<Store> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let config = fixture.database.config(RoleName::Edge);
        let (host, port) = config.server().unwrap();
        let url = config.url.expose().replace(&format!("{host}:{port}"), &listener.local_addr()?.to_string());
        let sent = self.clone();
        tokio::spawn(async move {
            let (client, _) = listener.accept().await?;
            let server = TcpStream::connect((host, port)).await?;
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let up = async {
                let mut piece = vec![0; 64 * 1024];
                loop {
                    let bytes = from_client.read(&mut piece).await?;
                    if bytes == 0 {
                        return Ok(());
                    }
                    sent.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..bytes]);
                    to_server.write_all(&piece[..bytes]).await?;
                }
            };
            tokio::try_join!(up, tokio::io::copy(&mut from_server, &mut to_client)).map(|_| ())
        });
        Ok(Store::new(&config::Database { url: Secret::new(url), ..config }, "test")?)
    }

    /// The one message since the last time. It is a type and a length that counts itself (PostgreSQL, "Frontend/Backend
    /// Protocol", message formats).
    fn message(&self) -> (char, String) {
        let sent = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let length = u32::from_be_bytes(sent[1..5].try_into().unwrap()) as usize;
        assert_eq!(sent.len(), 1 + length, "more than one message: {}", String::from_utf8_lossy(&sent));
        (char::from(sent[0]), String::from_utf8_lossy(&sent[5..]).into_owned())
    }

    fn is_simple(&self, text: &str) {
        let message = self.message();
        assert!(message.0 == 'Q' && message.1.starts_with(text), "{message:?}");
    }
}

#[tokio::test]
async fn admissions_and_settlements_are_one_simple_message_each_however_many_calls_there_are() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_day = 1000000").await?;
    let key = fixture.user_key("requests_per_minute = 1000").await?;
    let wire = Wire::default();
    let mut books = Books::open(&wire.store(&fixture).await?).await?;
    wire.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    // Alone, of one key, and of two.
    for keys in [vec![Some(key)], vec![Some(key); 5], vec![Some(key), None, Some(key)]] {
        let asks: Vec<Ask> = keys.into_iter().map(|key| fixture.ask(key, 1, 64)).collect();
        let answers = books.admit(&asks).await?;
        assert!(answers.iter().all(|answer| matches!(answer, Admission::Admitted { .. })), "{answers:?}");
        wire.is_simple("SELECT * FROM admit_v2(");
        for ask in &asks {
            books.settle(ask.request, 10, 0).await?;
            wire.is_simple("SELECT * FROM settle_v2(");
        }
    }
    books.link.flush().await?;
    wire.is_simple("SELECT * FROM flush_v1(");
    Ok(())
}

fn headroom(admission: &Admission) -> Headroom {
    match admission {
        Admission::Admitted { headroom, .. } => *headroom,
        other => panic!("not admitted: {other:?}"),
    }
}

#[tokio::test]
async fn what_is_left_is_that_of_the_tier_with_the_least_whichever_way_a_call_is_admitted() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let fixture = &calendar.fixture;
    calendar.at(datetime!(2026-10-25 12:00:15 UTC)).await?;
    let limits =
        "requests_per_minute = 1000, tokens_per_minute = 100000, tokens_per_day = 50000, cost_per_month = 90000";
    fixture.limit("projects", fixture.project.0, limits).await?;
    // It has fewer requests and tokens a month, the project fewer tokens and less money.
    let limits =
        "requests_per_minute = 50, tokens_per_minute = 200000, tokens_per_month = 7000, cost_per_month = 800000";
    let key = fixture.user_key(limits).await?;
    let ask = |key| Ask { fixed_cost: NanoUsd(1000), ..fixture.ask(key, 36, 64) };
    let left = |answers: &[Admission], position: usize| {
        let left = headroom(&answers[position]);
        assert_eq!((left.minute_resets_in_ms, left.day_cost), (45_000, None));
        (left.requests, left.tokens, left.day_tokens, left.month_tokens, left.month_cost.map(|cost| cost.0))
    };
    let alone = fixture.admit(&[ask(Some(key))]).await?;
    assert_eq!(left(&alone, 0), (Some((50, 49)), Some((100_000, 99_900)), Some(49_900), Some(6900), Some(89_000)));
    // A batch of several keys is looked at call by call.
    let both = fixture.admit(&[ask(Some(key)), ask(None)]).await?;
    assert_eq!(left(&both, 0), (Some((50, 48)), Some((100_000, 99_700)), Some(49_700), Some(6800), Some(87_000)));
    assert_eq!(left(&both, 1), (Some((1000, 997)), Some((100_000, 99_700)), Some(49_700), None, Some(87_000)));
    let alone = fixture.admit(&[ask(Some(key)), ask(Some(key))]).await?;
    for position in [0, 1] {
        let least = (Some((50, 46)), Some((100_000, 99_500)), Some(49_500), Some(6600), Some(85_000));
        assert_eq!(left(&alone, position), least);
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_cap_counts_from_its_commit_and_carries_what_is_used_and_held() -> anyhow::Result<()> {
    let fixture = fixture("tokens_per_month = 1000").await?;
    let key = fixture.user_key("tokens_per_month = 100000").await?;
    let (settled, open) = (fixture.ask(Some(key), 100, 200), fixture.ask(Some(key), 136, 64));
    fixture.admit(&[settled.clone(), open.clone()]).await?;
    fixture.settle(settled.request, 300, 0).await?;
    let denied = async |prompt: i64| {
        let denied = fixture.admit(&[fixture.ask(Some(key), prompt, 64)]).await?;
        let denied = denial(&denied[0]);
        anyhow::Ok((denied.code.clone(), denied.cap, denied.used, denied.held))
    };
    let spent = |cap, held| ("budget_monthly".to_owned(), cap, 300, held);
    for (table, id) in [("projects", fixture.project.0), ("api_keys", key.0)] {
        fixture.limit(table, id, "tokens_per_month = 400").await?;
        assert_eq!(denied(1).await?, spent(400, 200), "{table}: below what is in use");
        fixture.limit(table, id, "tokens_per_month = 600").await?;
        assert_eq!(denied(37).await?, spent(600, 200), "{table}");
        let fits = fixture.ask(Some(key), 36, 64);
        assert_eq!(granted(&fixture.admit(std::slice::from_ref(&fits)).await?[0]), 64, "{table}");
        assert_eq!(denied(0).await?, spent(600, 300), "{table}");
        fixture.limit(table, id, "tokens_per_month = 0").await?;
        let free = fixture.ask(Some(key), 500, 64);
        assert_eq!(granted(&fixture.admit(std::slice::from_ref(&free)).await?[0]), 64, "{table}: 0 is no cap");
        fixture.limit(table, id, "tokens_per_month = 600").await?;
        assert_eq!(denied(0).await?, spent(600, 864), "{table}: what was held without a cap counts under one");
        for ask in [fits, free] {
            fixture.books.lock().await.link.forget_calls(&[ask.request]).await?;
        }
        fixture.limit(table, id, "tokens_per_month = 100000").await?;
    }
    Ok(())
}

#[tokio::test]
async fn whatever_locks_tiers_does_it_in_one_order() -> anyhow::Result<()> {
    const ROUNDS: usize = 25;
    let fixture = fixture("tokens_per_day = 100000000").await?;
    let first = fixture.user_key("tokens_per_day = 100000000").await?;
    let other = fixture.database.insert_project("other", "tokens_per_day = 100000000").await?;
    let ben = fixture.database.insert_user("ben").await?;
    let (second, _) = fixture.database.insert_user_key(ben, "k", &["chat"], &[fixture.project, other]).await?;
    sqlx::query("INSERT INTO api_key_projects VALUES ($1, $2)")
        .bind(first.0)
        .bind(other.0)
        .execute(&fixture.pool)
        .await?;
    let of = |project, key: ApiKeyId| Ask { project, ..fixture.ask(Some(key), 1, 64) };
    // Each session has its own order of projects and keys.
    let orders = [
        [(fixture.project, first), (other, second)],
        [(other, second), (fixture.project, first)],
        [(fixture.project, second), (other, first)],
        [(other, first), (fixture.project, second)],
    ];
    let session = async |order: [(domain::ProjectId, ApiKeyId); 2]| {
        let mut books = Books::open(&fixture.store).await?;
        for _ in 0..ROUNDS {
            let asks = order.map(|(project, key)| of(project, key));
            books.admit(&asks).await?;
            let alone = of(order[1].0, order[0].1);
            books.admit(std::slice::from_ref(&alone)).await?;
            let rows = [&asks[1], &asks[0]].map(|ask| books.row(ask.request));
            let instance = books.instance;
            books.link.reassert(instance, &rows).await?;
            for ask in [&asks[1], &asks[0]] {
                books.settle(ask.request, 10, 0).await?;
            }
            books.link.forget_calls(&[alone.request]).await?;
        }
        anyhow::Ok(())
    };
    // Zones and caps are changed in between, a row at a time.
    let changes = async {
        for round in 0..ROUNDS {
            let set = format!(
                "time_zone = '{}', requests_per_minute = 100000 + {round}",
                ["Europe/Berlin", "UTC"][round % 2]
            );
            for (project, key) in [(fixture.project, first), (other, second)] {
                fixture.limit("api_keys", key.0, &set).await?;
                fixture.limit("projects", project.0, &set).await?;
            }
        }
        anyhow::Ok(())
    };
    let [a, b, c, d] = orders;
    tokio::try_join!(session(a), session(b), session(c), session(d), changes)?;
    assert_eq!(fixture.database.ledger_faults().await?, Vec::<String>::new());
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&fixture.pool)
            .await?;
    assert_eq!(deadlocks, 0);
    Ok(())
}
