//! The ledger's calendar at chosen moments. The functions are those of every installation; only the clock they find is
//! another. What is expected is written out here and not asked of the server.

use domain::{ApiKeyId, ProjectId, Tier, Window};
use store::ledger::{Admission, Ask, Denial};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

use crate::admission::{Fixture, denial, fixture, granted};

/// A clock that stands where a row says, for every function that looks one up under the search path it was made with.
const MOVABLE_CLOCK: &str = "
    CREATE SCHEMA test_clock;
    GRANT USAGE ON SCHEMA test_clock TO PUBLIC;
    CREATE TABLE test_clock.hands AS SELECT clock_timestamp() AS at;
    CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql SECURITY DEFINER
        AS 'SELECT at FROM test_clock.hands';
    DO $$
    DECLARE
        v_function regprocedure;
    BEGIN
        FOR v_function IN
            SELECT oid FROM pg_proc
             WHERE pronamespace = 'public'::regnamespace AND proconfig::text ~ 'search_path' AND prokind = 'f'
        LOOP
            EXECUTE format('ALTER FUNCTION %s SET search_path = test_clock, pg_catalog, public', v_function);
        END LOOP;
    END $$";

const TICK: Duration = Duration::microseconds(1);

struct Calendar {
    fixture: Fixture,
}

/// Whom a call is for.
#[derive(Clone, Copy)]
struct Caller {
    project: ProjectId,
    key: ApiKeyId,
}

async fn calendar() -> anyhow::Result<Calendar> {
    let fixture = fixture("").await?;
    sqlx::raw_sql(MOVABLE_CLOCK).execute(&fixture.pool).await?;
    Ok(Calendar { fixture })
}

impl Calendar {
    async fn at(&self, moment: OffsetDateTime) -> anyhow::Result<()> {
        sqlx::query("UPDATE test_clock.hands SET at = $1").bind(moment).execute(&self.fixture.pool).await?;
        Ok(())
    }

    async fn project(&self, zone: &str, limits: &str) -> anyhow::Result<Caller> {
        let name = uuid::Uuid::new_v4().to_string();
        let limits = format!("time_zone = '{zone}', {limits}");
        let project = self.fixture.database.insert_project(&name, &limits).await?;
        let (key, _) = self.fixture.database.insert_project_key(project).await?;
        Ok(Caller { project, key })
    }

    async fn admit(&self, caller: Caller, tokens: i64) -> anyhow::Result<(Ask, Admission)> {
        let ask = Ask { project: caller.project, key: Some(caller.key), ..self.fixture.ask(None, tokens - 64, 64) };
        let admission = self.fixture.admit(std::slice::from_ref(&ask)).await?.remove(0);
        Ok((ask, admission))
    }

    async fn denied(&self, caller: Caller) -> anyhow::Result<Denial> {
        Ok(denial(&self.admit(caller, 100).await?.1).clone())
    }

    /// The windows of a tier that have closed, with the tokens and requests they have in the end.
    async fn closed(&self, tier: Tier, id: i64, window: &str) -> anyhow::Result<Vec<(OffsetDateTime, i64, i64)>> {
        Ok(sqlx::query_as(
            "SELECT window_start, tokens_used + tokens_excess, requests_used FROM usage_counters
              WHERE tier = $1 AND id = $2 AND window_kind = $3 ORDER BY window_start",
        )
        .bind(if tier == Tier::Project { 1_i16 } else { 2 })
        .bind(id)
        .bind(window)
        .fetch_all(&self.fixture.pool)
        .await?)
    }

    /// Follows one window from the last moment of the one before to the first of the one after.
    async fn follow(&self, window: &str, zone: &str, bounds: [OffsetDateTime; 3]) -> anyhow::Result<()> {
        let [before, start, end] = bounds;
        let code = if window == "day" { "budget_daily" } else { "budget_monthly" };
        let told = |denial: &Denial| {
            assert_eq!((denial.code.as_str(), denial.tier, denial.cap), (code, Tier::Project, 1000), "{zone} {start}");
            (denial.resets_at.unwrap(), denial.retry_after_seconds, denial.used, denial.held)
        };
        let caller = self.project(zone, &format!("tokens_per_{window} = 1000")).await?;

        self.at(before).await?;
        assert_eq!(granted(&self.admit(caller, 64).await?.1), 64);
        self.at(start - TICK).await?;
        let (late, admission) = self.admit(caller, 936).await?;
        let Admission::Admitted { at, .. } = admission else { panic!("{zone} {start}: {admission:?}") };
        assert_eq!(i128::from(at.0) * 1000, (start - TICK).unix_timestamp_nanos());
        assert_eq!(told(&self.denied(caller).await?), (start, 1, 0, 1000));

        self.at(start).await?;
        assert_eq!(granted(&self.admit(caller, 1000).await?.1), 64, "{zone}: {start} opens a window");
        assert_eq!(self.fixture.settle(late.request, 900, 0).await?, [late.request]);
        assert_eq!(self.closed(Tier::Project, caller.project.0, window).await?, [(before, 900, 1)], "{zone}");
        let whole = (end - start).whole_seconds();
        assert_eq!(told(&self.denied(caller).await?), (end, whole, 0, 1000));
        self.at(end - Duration::milliseconds(1500)).await?;
        assert_eq!(told(&self.denied(caller).await?), (end, 2, 0, 1000));
        self.at(end - TICK).await?;
        assert_eq!(told(&self.denied(caller).await?), (end, 1, 0, 1000));
        self.at(end).await?;
        assert_eq!(granted(&self.admit(caller, 1000).await?.1), 64, "{zone}: {end} opens a window");
        Ok(())
    }
}

#[tokio::test]
async fn days_are_23_24_and_25_hours_long_where_clocks_change() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    for (zone, hours, bounds) in [
        (
            "Europe/Berlin",
            23.0,
            [datetime!(2026-03-27 23:00 UTC), datetime!(2026-03-28 23:00 UTC), datetime!(2026-03-29 22:00 UTC)],
        ),
        (
            "Europe/Berlin",
            25.0,
            [datetime!(2026-10-23 22:00 UTC), datetime!(2026-10-24 22:00 UTC), datetime!(2026-10-25 23:00 UTC)],
        ),
        (
            "America/New_York",
            23.0,
            [datetime!(2027-03-13 05:00 UTC), datetime!(2027-03-14 05:00 UTC), datetime!(2027-03-15 04:00 UTC)],
        ),
        (
            "America/New_York",
            25.0,
            [datetime!(2027-11-06 04:00 UTC), datetime!(2027-11-07 04:00 UTC), datetime!(2027-11-08 05:00 UTC)],
        ),
        // Half an hour.
        (
            "Australia/Lord_Howe",
            23.5,
            [datetime!(2026-10-02 13:30 UTC), datetime!(2026-10-03 13:30 UTC), datetime!(2026-10-04 13:00 UTC)],
        ),
        (
            "Australia/Lord_Howe",
            24.5,
            [datetime!(2027-04-02 13:00 UTC), datetime!(2027-04-03 13:00 UTC), datetime!(2027-04-04 13:30 UTC)],
        ),
        // 12:45 and 13:45 ahead of UTC.
        (
            "Pacific/Chatham",
            23.0,
            [datetime!(2026-09-25 11:15 UTC), datetime!(2026-09-26 11:15 UTC), datetime!(2026-09-27 10:15 UTC)],
        ),
        (
            "Pacific/Chatham",
            25.0,
            [datetime!(2027-04-02 10:15 UTC), datetime!(2027-04-03 10:15 UTC), datetime!(2027-04-04 11:15 UTC)],
        ),
        // Never changed, 5:45 ahead, on a leap day.
        (
            "Asia/Kathmandu",
            24.0,
            [datetime!(2028-02-27 18:15 UTC), datetime!(2028-02-28 18:15 UTC), datetime!(2028-02-29 18:15 UTC)],
        ),
        // No leap day.
        (
            "UTC",
            24.0,
            [datetime!(2100-02-27 00:00 UTC), datetime!(2100-02-28 00:00 UTC), datetime!(2100-03-01 00:00 UTC)],
        ),
        // The first to see a year.
        (
            "Pacific/Kiritimati",
            24.0,
            [datetime!(2026-12-30 10:00 UTC), datetime!(2026-12-31 10:00 UTC), datetime!(2027-01-01 10:00 UTC)],
        ),
    ] {
        assert_eq!((bounds[2] - bounds[1]).as_seconds_f64(), hours * 3600.0, "{zone}");
        calendar.follow("day", zone, bounds).await?;
    }
    Ok(())
}

#[tokio::test]
async fn days_end_at_the_first_midnight_where_clocks_change_at_midnight() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    for (zone, bounds) in [
        // The day has no midnight and begins at one o'clock.
        (
            "America/Santiago",
            [datetime!(2026-09-05 04:00 UTC), datetime!(2026-09-06 04:00 UTC), datetime!(2026-09-07 03:00 UTC)],
        ),
        (
            "Atlantic/Azores",
            [datetime!(2026-03-28 01:00 UTC), datetime!(2026-03-29 01:00 UTC), datetime!(2026-03-30 00:00 UTC)],
        ),
        // The hour before midnight comes twice.
        (
            "America/Santiago",
            [datetime!(2027-04-02 03:00 UTC), datetime!(2027-04-03 03:00 UTC), datetime!(2027-04-04 04:00 UTC)],
        ),
        // Midnight comes twice.
        (
            "Atlantic/Azores",
            [datetime!(2026-10-24 00:00 UTC), datetime!(2026-10-25 00:00 UTC), datetime!(2026-10-26 01:00 UTC)],
        ),
        (
            "America/Havana",
            [datetime!(2026-10-31 04:00 UTC), datetime!(2026-11-01 04:00 UTC), datetime!(2026-11-02 05:00 UTC)],
        ),
        // The last hour of the day is left out.
        (
            "America/Nuuk",
            [datetime!(2026-03-27 02:00 UTC), datetime!(2026-03-28 02:00 UTC), datetime!(2026-03-29 01:00 UTC)],
        ),
    ] {
        calendar.follow("day", zone, bounds).await?;
    }
    // A month that begins with two midnights.
    let bounds = [datetime!(2026-10-01 04:00 UTC), datetime!(2026-11-01 04:00 UTC), datetime!(2026-12-01 05:00 UTC)];
    calendar.follow("month", "America/Havana", bounds).await
}

#[tokio::test]
async fn months_have_28_to_31_days_and_their_zones_hours() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    for (zone, hours, bounds) in [
        // 28 days before it, then 31 less an hour.
        (
            "Europe/Berlin",
            31 * 24 - 1,
            [datetime!(2026-01-31 23:00 UTC), datetime!(2026-02-28 23:00 UTC), datetime!(2026-03-31 22:00 UTC)],
        ),
        // 30 and an hour.
        (
            "America/New_York",
            30 * 24 + 1,
            [datetime!(2027-10-01 04:00 UTC), datetime!(2027-11-01 04:00 UTC), datetime!(2027-12-01 05:00 UTC)],
        ),
        (
            "Asia/Kathmandu",
            29 * 24,
            [datetime!(2027-12-31 18:15 UTC), datetime!(2028-01-31 18:15 UTC), datetime!(2028-02-29 18:15 UTC)],
        ),
        (
            "Europe/Berlin",
            28 * 24,
            [datetime!(2099-12-31 23:00 UTC), datetime!(2100-01-31 23:00 UTC), datetime!(2100-02-28 23:00 UTC)],
        ),
        (
            "Australia/Lord_Howe",
            31 * 24,
            [datetime!(2026-10-31 13:00 UTC), datetime!(2026-11-30 13:00 UTC), datetime!(2026-12-31 13:00 UTC)],
        ),
        (
            "Pacific/Kiritimati",
            31 * 24,
            [datetime!(2026-11-30 10:00 UTC), datetime!(2026-12-31 10:00 UTC), datetime!(2027-01-31 10:00 UTC)],
        ),
    ] {
        assert_eq!((bounds[2] - bounds[1]).whole_seconds(), hours * 3600, "{zone}");
        calendar.follow("month", zone, bounds).await?;
    }
    Ok(())
}

#[tokio::test]
async fn minutes_are_those_of_utc_and_end_on_the_dot() -> anyhow::Result<()> {
    let calendar = calendar().await?;
    // Two minutes of the hour that Berlin has twice.
    for start in [datetime!(2026-10-25 00:30 UTC), datetime!(2026-10-25 01:30 UTC), datetime!(2028-02-29 23:59 UTC)] {
        let caller = calendar.project("Europe/Berlin", "requests_per_minute = 1").await?;
        let end = start + Duration::MINUTE;
        calendar.at(start).await?;
        let (ask, admission) = calendar.admit(caller, 100).await?;
        let Admission::Admitted { headroom, .. } = admission else { panic!("{admission:?}") };
        assert_eq!((headroom.minute_resets_in_ms, headroom.requests), (60_000, Some((1, 0))));
        calendar.fixture.settle(ask.request, 80, 0).await?;
        for (moment, seconds) in
            [(start, 60), (start + TICK, 60), (end - Duration::milliseconds(1001), 2), (end - TICK, 1)]
        {
            calendar.at(moment).await?;
            let denial = calendar.denied(caller).await?;
            assert_eq!((denial.code.as_str(), denial.used, denial.held), ("rate_limit_rpm", 1, 0));
            assert_eq!((denial.resets_at, denial.retry_after_seconds), (Some(end), seconds), "{moment}");
        }
        calendar.at(end).await?;
        assert_eq!(granted(&calendar.admit(caller, 100).await?.1), 64);
        assert_eq!(calendar.closed(Tier::Project, caller.project.0, "minute").await?, [(start, 80, 1)]);
    }
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
