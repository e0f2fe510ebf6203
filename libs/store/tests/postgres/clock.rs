//! Admission and settlement at moments that meet: the ends of windows, several sessions, a clock that steps back.

use domain::{Tier, Window};
use store::ledger::{Admission, Ask};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

use crate::admission::granted;
use crate::books::Books;
use crate::calendar::{Caller, TICK, calendar};

#[tokio::test]
async fn three_sessions_that_meet_new_windows_at_once_keep_their_caps_and_close_the_old_ones_once() -> anyhow::Result<()>
{
    let calendar = calendar().await?;
    let fixture = &calendar.fixture;
    // The first moment of a minute, a day and a month.
    let start = datetime!(2028-02-29 23:00 UTC);
    for (window, limits) in [
        ("minute", "requests_per_minute = 10"),
        ("minute", "tokens_per_minute = 1000"),
        ("day", "tokens_per_day = 1000"),
        ("month", "tokens_per_month = 1000"),
    ] {
        let caller = calendar.project("Europe/Berlin", limits).await?;
        calendar.at(start - TICK).await?;
        let mut spent = Vec::new();
        for _ in 0..10 {
            spent.push(calendar.admit(caller, 100).await?.0);
        }
        calendar.denied(caller).await?;
        fixture.settle(spent[0].request, 100, 0).await?;
        calendar.at(start).await?;
        let session = async || {
            let mut books = Books::open(&fixture.store).await?;
            let mut admitted = 0;
            for _ in 0..10 {
                let ask = calendar.ask(caller, 100);
                let answers = books.admit(&[ask]).await?;
                admitted += i64::from(matches!(answers[0], Admission::Admitted { .. }));
            }
            anyhow::Ok(admitted)
        };
        let (a, b, c) = tokio::try_join!(session(), session(), session())?;
        assert_eq!(a + b + c, 10, "{limits}");
        for ask in &spent[1..] {
            fixture.settle(ask.request, 100, 0).await?;
        }
        let closed = calendar.closed(Tier::Project, caller.project.0, window).await?;
        let sums: Vec<_> = closed.iter().map(|row| (row.1, row.2)).collect();
        assert_eq!(sums, [(1000, 10)], "{limits}");
        assert_eq!(fixture.database.tier_totals(caller.project).await?.open_calls, 10, "{limits}");
    }
    Ok(())
}

#[tokio::test]
async fn three_sessions_on_a_fresh_window_never_exceed_a_cap() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let fixture = &calendar.fixture;
    calendar.at(datetime!(2028-03-01 00:00 UTC)).await?;
    for window in ["minute", "day", "month"] {
        let caller = calendar.project("UTC", &format!("tokens_per_{window} = 10000")).await?;
        let session = async || {
            let mut books = Books::open(&fixture.store).await?;
            let mut admitted = 0;
            for _ in 0..40 {
                let answers = books.admit(&[calendar.ask(caller, 200)]).await?;
                admitted += i64::from(matches!(answers[0], Admission::Admitted { .. }));
            }
            anyhow::Ok(admitted)
        };
        let (a, b, c) = tokio::try_join!(session(), session(), session())?;
        assert_eq!(a + b + c, 50, "10,000 tokens a {window} are room for 50 calls of 200");
        let totals = fixture.database.tier_totals(caller.project).await?;
        assert_eq!((totals.day_tokens_held, totals.open_calls, totals.open_rows), (10_000, 50, 50), "{window}");
    }
    Ok(())
}

#[tokio::test]
async fn the_clock_is_read_when_the_locks_are_held() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let fixture = &calendar.fixture;
    let caller = calendar.project("Europe/Berlin", "tokens_per_day = 1000").await?;
    let midnight = datetime!(2026-12-31 23:00 UTC);
    // Alone, and in a batch that is looked at call by call.
    for asks in [vec![100], vec![100, 2000]] {
        let at = testkit::eventually("an admission that waits less than a second", async || {
            calendar.at(midnight - TICK).await?;
            let lock = fixture.database.lock_project(caller.project).await?;
            let admitting = async {
                let asks: Vec<Ask> = asks.iter().map(|tokens| calendar.ask(caller, *tokens)).collect();
                // Whoever has the lock for longer than a second makes it fail.
                Ok(fixture.books.lock().await.admit(&asks).await.ok().map(|mut answers| answers.remove(0)))
            };
            let moving = async {
                testkit::until("it waits", async || fixture.database.has_lock_waiters().await).await?;
                calendar.at(midnight).await?;
                lock.release().await
            };
            Ok(tokio::try_join!(admitting, moving)?.0)
        })
        .await?;
        let Admission::Admitted { at, .. } = at else { panic!("{at:?}") };
        assert_eq!(i128::from(at.0) * 1000, midnight.unix_timestamp_nanos());
    }
    let day: OffsetDateTime = sqlx::query_scalar("SELECT day_start FROM tier_state WHERE tier = 1 AND id = $1")
        .bind(caller.project.0)
        .fetch_one(&fixture.pool)
        .await?;
    assert_eq!(day, midnight);
    Ok(())
}

#[tokio::test]
async fn each_tier_has_its_own_calendar_and_a_late_call_finds_the_windows_it_was_admitted_in() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let fixture = &calendar.fixture;
    fixture.limit("projects", fixture.project.0, "time_zone = 'America/New_York', tokens_per_month = 1000").await?;
    let key = fixture.user_key("time_zone = 'Asia/Kathmandu', tokens_per_day = 1000").await?;
    let caller = Caller { project: fixture.project, key };
    // Still the last of October in New York, and well into the first of November in Kathmandu.
    let admitted = datetime!(2027-11-01 02:10:30 UTC);
    calendar.at(admitted).await?;
    let (late, _) = calendar.admit(caller, 950).await?;
    let denial = calendar.denied(caller).await?;
    assert_eq!((denial.tier, denial.code.as_str(), denial.held), (Tier::Project, "budget_monthly", 950));
    assert_eq!(denial.resets_at, Some(datetime!(2027-11-01 04:00 UTC)));
    // The month of the project is over, the day of the key is not.
    calendar.at(datetime!(2027-11-01 04:00 UTC)).await?;
    let denial = calendar.denied(caller).await?;
    assert_eq!((denial.tier, denial.code.as_str(), denial.held), (Tier::Key, "budget_daily", 950));
    assert_eq!((denial.resets_at, denial.retry_after_seconds), (Some(datetime!(2027-11-01 18:15 UTC)), 51_300));

    // Days later, with every window long closed.
    calendar.at(datetime!(2028-01-07 12:00 UTC)).await?;
    let (now, _) = calendar.admit(caller, 100).await?;
    fixture.settle(late.request, 800, 0).await?;
    fixture.settle(now.request, 90, 0).await?;
    let (minute, project, key) = (datetime!(2027-11-01 02:10 UTC), fixture.project.0, key.0);
    for (tier, id, day, month) in [
        (Tier::Project, project, datetime!(2027-10-31 04:00 UTC), datetime!(2027-10-01 04:00 UTC)),
        (Tier::Key, key, datetime!(2027-10-31 18:15 UTC), datetime!(2027-10-31 18:15 UTC)),
    ] {
        let charged = |rows: Vec<(OffsetDateTime, i64, i64)>| {
            rows.into_iter().filter(|row| (row.1, row.2) != (0, 0)).collect::<Vec<_>>()
        };
        assert_eq!(charged(calendar.closed(tier, id, "minute").await?), [(minute, 800, 1)]);
        assert_eq!(charged(calendar.closed(tier, id, "day").await?), [(day, 800, 1)]);
        assert_eq!(charged(calendar.closed(tier, id, "month").await?), [(month, 800, 1)]);
    }
    let running: Vec<(i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT minute_tokens_used, day_tokens_used, month_tokens_used,
                open_calls + day_tokens_held + month_tokens_held + minute_requests_held
           FROM tier_state WHERE (tier, id) IN ((1, $1), (2, $2))",
    )
    .bind(project)
    .bind(key)
    .fetch_all(&fixture.pool)
    .await?;
    assert_eq!(running, [(90, 90, 90, 0); 2]);
    Ok(())
}

#[tokio::test]
async fn a_call_without_an_open_row_is_charged_to_the_windows_of_its_admission() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let fixture = &calendar.fixture;
    let caller = calendar.project("Europe/Berlin", "tokens_per_day = 1000").await?;
    calendar.at(datetime!(2026-10-25 22:59:59 UTC)).await?;
    let (lost, _) = calendar.admit(caller, 500).await?;
    fixture.books.lock().await.link.forget_calls(&[lost.request]).await?;
    calendar.at(datetime!(2026-10-25 23:00 UTC)).await?;
    fixture.settle(lost.request, 400, 0).await?;
    let of_day = calendar.closed(Tier::Project, caller.project.0, "day").await?;
    let charged: Vec<_> = of_day.iter().map(|row| (row.0, row.1)).collect();
    assert_eq!(charged, [(datetime!(2026-10-24 22:00 UTC), 400)]);
    // All of the new day is free.
    assert_eq!(granted(&calendar.admit(caller, 1000).await?.1), 64);
    Ok(())
}

#[tokio::test]
async fn a_clock_that_steps_back_over_a_boundary_opens_neither_window_again() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let midnight = datetime!(2026-12-31 23:00 UTC);
    let limits = "requests_per_minute = 1, tokens_per_day = 1000, tokens_per_month = 5000";
    let caller = calendar.project("Europe/Berlin", limits).await?;
    calendar.at(midnight - Duration::SECOND).await?;
    let (before, _) = calendar.admit(caller, 1000).await?;
    calendar.at(midnight).await?;
    let (after, _) = calendar.admit(caller, 1000).await?;
    // Back by an hour: the year before has begun to be over, and stays so.
    calendar.at(midnight - Duration::HOUR).await?;
    let denial = calendar.denied(caller).await?;
    assert_eq!((denial.code.as_str(), denial.held), ("budget_daily", 1000));
    assert_eq!(denial.resets_at, Some(datetime!(2027-01-01 23:00 UTC)));
    assert_eq!(denial.retry_after_seconds, 25 * 3600);
    calendar.fixture.settle(before.request, 700, 0).await?;
    calendar.fixture.settle(after.request, 900, 0).await?;
    assert_eq!(calendar.denied(caller).await?.used, 1, "of requests, in the minute that has begun");
    let closed = calendar.closed(Tier::Project, caller.project.0, "day").await?;
    assert_eq!(closed, [(datetime!(2026-12-30 23:00 UTC), 700, 1)]);
    // And forward again, to where it had been.
    calendar.at(midnight + Duration::SECOND).await?;
    let denial = calendar.denied(caller).await?;
    assert_eq!((denial.code.as_str(), denial.used, denial.held), ("rate_limit_rpm", 1, 0));
    assert_eq!((denial.resets_at, denial.retry_after_seconds), (Some(midnight + Duration::MINUTE), 59));
    calendar.at(midnight + Duration::MINUTE).await?;
    let (last, _) = calendar.admit(caller, 100).await?;
    calendar.fixture.settle(last.request, 100, 0).await?;
    calendar.at(midnight + Duration::MINUTE * 2).await?;
    let denial = calendar.denied(caller).await?;
    assert_eq!((denial.code.as_str(), denial.used), ("budget_daily", 1000));
    Ok(())
}

#[tokio::test]
async fn a_project_that_moves_to_where_it_is_another_month_takes_its_windows_along() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    let caller = calendar.project("America/New_York", "tokens_per_month = 1000, tokens_per_day = 2000").await?;
    calendar.at(datetime!(2028-02-29 20:00 UTC)).await?;
    let (settled, _) = calendar.admit(caller, 300).await?;
    calendar.fixture.settle(settled.request, 200, 0).await?;
    let (open, _) = calendar.admit(caller, 750).await?;
    calendar.fixture.limit("projects", caller.project.0, "time_zone = 'Asia/Kathmandu'").await?;
    let denial = calendar.denied(caller).await?;
    assert_eq!((denial.code.as_str(), denial.used, denial.held), ("budget_monthly", 200, 750));
    assert_eq!(denial.resets_at, Some(datetime!(2028-03-31 18:15 UTC)), "it is March there");
    calendar.fixture.settle(open.request, 450, 0).await?;
    let usage = calendar.fixture.store.list_tier_usage(caller.project, caller.key).await?;
    let shown: Vec<_> = usage[0]
        .windows
        .iter()
        .map(|window| (window.window, window.starts_at, window.ends_at, window.tokens.used, window.tokens.held))
        .collect();
    let (minute, day) = (datetime!(2028-02-29 20:00 UTC), datetime!(2028-02-29 18:15 UTC));
    assert_eq!(
        shown,
        [
            (Window::Minute, minute, minute + Duration::MINUTE, 650, 0),
            (Window::Day, day, day + Duration::DAY, 650, 0),
            (Window::Month, day, datetime!(2028-03-31 18:15 UTC), 650, 0),
        ]
    );
    // Nothing is left behind in windows of the old zone.
    assert_eq!(calendar.closed(Tier::Project, caller.project.0, "day").await?, []);
    Ok(())
}
