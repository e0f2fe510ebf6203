//! The ledger's calendar at chosen moments. The functions are those of every installation; only the clock they find is
//! another. What is expected is written out here and not asked of the server.

use domain::{ApiKeyId, ProjectId, Tier};
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

pub(crate) const TICK: Duration = Duration::microseconds(1);

pub(crate) struct Calendar {
    pub(crate) fixture: Fixture,
}

/// Whom a call is for.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) project: ProjectId,
    pub(crate) key: ApiKeyId,
}

pub(crate) async fn calendar() -> anyhow::Result<Calendar> {
    let fixture = fixture("").await?;
    sqlx::raw_sql(MOVABLE_CLOCK).execute(&fixture.pool).await?;
    Ok(Calendar { fixture })
}

impl Calendar {
    pub(crate) async fn at(&self, moment: OffsetDateTime) -> anyhow::Result<()> {
        sqlx::query("UPDATE test_clock.hands SET at = $1").bind(moment).execute(&self.fixture.pool).await?;
        Ok(())
    }

    pub(crate) async fn project(&self, zone: &str, limits: &str) -> anyhow::Result<Caller> {
        let name = uuid::Uuid::new_v4().to_string();
        let limits = format!("time_zone = '{zone}', {limits}");
        let project = self.fixture.database.insert_project(&name, &limits).await?;
        let (key, _) = self.fixture.database.insert_project_key(project).await?;
        Ok(Caller { project, key })
    }

    pub(crate) fn ask(&self, caller: Caller, tokens: i64) -> Ask {
        Ask { project: caller.project, key: Some(caller.key), ..self.fixture.ask(None, tokens - 64, 64) }
    }

    pub(crate) async fn admit(&self, caller: Caller, tokens: i64) -> anyhow::Result<(Ask, Admission)> {
        let ask = self.ask(caller, tokens);
        let admission = self.fixture.admit(std::slice::from_ref(&ask)).await?.remove(0);
        Ok((ask, admission))
    }

    pub(crate) async fn denied(&self, caller: Caller) -> anyhow::Result<Denial> {
        Ok(denial(&self.admit(caller, 100).await?.1).clone())
    }

    /// The windows of a tier that have closed, with the tokens and requests they have in the end.
    pub(crate) async fn closed(
        &self,
        tier: Tier,
        id: i64,
        window: &str,
    ) -> anyhow::Result<Vec<(OffsetDateTime, i64, i64)>> {
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
