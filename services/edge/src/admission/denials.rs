//! Denials that need no database: for a second after one that nothing but the window's end can lift, calls of the same
//! key are denied from memory.
//!
//! Only a denial in which what is *used* fills the cap by itself is one: no smaller call would be admitted either. A
//! denial that calls in flight have a part in may be lifted at any moment, so it is never remembered. Limits that are
//! raised are heard of, and what was remembered under them is forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{ApiKeyId, ProjectId, Tier};
use store::ledger::Denial;

use crate::cache::{Kept, Reading};

/// How long a denial is remembered.
const TIME: Duration = Duration::from_secs(1);

/// Keys with denials. One more pushes another out, whose next call asks the database.
const CALLERS: usize = 10_000;

const MINUTE_MS: i64 = 60_000;

/// Codes in the order in which admission looks at the caps of a tier, so that of several the same is told.
const ORDER: [&str; 6] =
    ["budget_monthly", "cost_monthly", "budget_daily", "cost_daily", "rate_limit_tpm", "rate_limit_rpm"];

/// The denials of the last second.
pub(crate) struct Denials {
    kept: Kept<(ProjectId, ApiKeyId), Arc<Vec<Remembered>>>,
}

/// The moment before admission is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    reading: Reading,
    at: Instant,
}

/// One denial, and how long it stands.
#[derive(Clone, Debug)]
struct Remembered {
    denial: Denial,
    place: (bool, usize),
    received: Instant,
    until: Instant,
}

impl Denials {
    pub(crate) fn new() -> Self {
        Self { kept: Kept::new(CALLERS) }
    }

    /// Take it before the ledger is asked: a change that is heard of in between makes the answer one of before it.
    pub(crate) fn asking(&self) -> Asking {
        Asking { reading: self.kept.reading(), at: Instant::now() }
    }

    /// Remembers a denial that was answered now, if it is one of those that can be.
    pub(crate) fn remember(&self, asking: Asking, project: ProjectId, key: ApiKeyId, denial: &Denial) {
        let now = Instant::now();
        let Some(remembered) = Remembered::new(denial, asking.at, now) else { return };
        let before = self.kept.get(&(project, key)).unwrap_or_default();
        let others = before.iter().filter(|other| other.place != remembered.place && other.until > now).cloned();
        let mut all: Vec<Remembered> = others.collect();
        all.push(remembered);
        all.sort_by_key(|remembered| remembered.place);
        let longest = all.iter().map(|remembered| remembered.until).max().unwrap_or(now);
        self.kept.keep(asking.reading, (project, key), Arc::new(all), longest.saturating_duration_since(now));
    }

    /// The denial that a call meets without the database being asked. A cost cap that is full to the last nano-dollar
    /// still has room for a call that costs nothing.
    pub(crate) fn recall(&self, project: ProjectId, key: ApiKeyId, costs_nothing: bool) -> Option<Denial> {
        let now = Instant::now();
        let all = self.kept.get(&(project, key))?;
        all.iter().find(|remembered| remembered.applies(now, costs_nothing)).map(|remembered| remembered.told_at(now))
    }

    /// A project was changed or removed.
    pub(crate) fn project_changed(&self, project: ProjectId) {
        self.kept.forget(|(of, _), _| *of == project);
    }

    /// A key was made, changed or revoked.
    pub(crate) fn key_changed(&self, key: ApiKeyId) {
        self.kept.forget(|(_, of), _| *of == key);
    }

    /// Anything may have changed.
    pub(crate) fn clear(&self) {
        self.kept.clear();
    }
}

impl Remembered {
    fn new(denial: &Denial, asked: Instant, received: Instant) -> Option<Self> {
        if denial.used < denial.cap || denial.resets_at.is_none() {
            return None;
        }
        let code = ORDER.iter().position(|code| *code == denial.code)?;
        // Every window ends with a minute. The database read its clock after the question was asked, so its window ends
        // at this moment or later: nothing is denied under a window that has ended.
        let until = (received + TIME).min(asked + milliseconds(denial.headroom.minute_resets_in_ms));
        let place = (denial.tier == Tier::Key, code);
        (until > received).then(|| Self { denial: denial.clone(), place, received, until })
    }

    fn applies(&self, now: Instant, costs_nothing: bool) -> bool {
        let is_of_cost = self.denial.code.starts_with("cost_");
        self.until > now && !(is_of_cost && costs_nothing && self.denial.used == self.denial.cap)
    }

    /// The denial with its times counted from now.
    fn told_at(&self, now: Instant) -> Denial {
        let mut denial = self.denial.clone();
        let passed = i64::try_from(now.saturating_duration_since(self.received).as_millis()).unwrap_or(i64::MAX);
        // Whole minutes, and what the running one has left: exact, where the answer's own figure is rounded up.
        let minute_rest = denial.headroom.minute_resets_in_ms;
        let minutes = denial.retry_after_seconds.saturating_mul(1000).saturating_sub(minute_rest).div_euclid(MINUTE_MS);
        let rest = minutes.saturating_mul(MINUTE_MS).saturating_add(minute_rest).saturating_sub(passed).max(0);
        denial.retry_after_seconds = ((rest.saturating_add(999)) / 1000).max(1);
        denial.headroom.minute_resets_in_ms = minute_rest.saturating_sub(passed).max(0);
        denial
    }
}

fn milliseconds(amount: i64) -> Duration {
    Duration::from_millis(u64::try_from(amount).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use store::ledger::Headroom;
    use time::macros::datetime;

    use super::*;

    const PROJECT: ProjectId = ProjectId(1);
    const KEY: ApiKeyId = ApiKeyId(2);

    fn denial(code: &str, tier: Tier, cap: i64, used: i64, held: i64) -> Denial {
        Denial {
            code: code.to_owned(),
            tier,
            cap,
            used,
            held,
            resets_at: (code != "concurrency_limit").then_some(datetime!(2026-03-01 00:00 UTC)),
            retry_after_seconds: 3_030,
            headroom: Headroom { minute_resets_in_ms: 29_400, ..Headroom::default() },
        }
    }

    fn remembers(denial: &Denial) -> bool {
        let denials = Denials::new();
        denials.remember(denials.asking(), PROJECT, KEY, denial);
        denials.recall(PROJECT, KEY, false).is_some()
    }

    #[test]
    fn only_what_is_used_fills_a_cap_for_good() {
        for code in ORDER {
            assert!(remembers(&denial(code, Tier::Project, 10, 10, 0)), "{code}");
            assert!(remembers(&denial(code, Tier::Key, 10, 12, 3)), "{code}");
            assert!(!remembers(&denial(code, Tier::Project, 10, 9, 1)), "{code}: a call in flight holds the rest");
            assert!(!remembers(&denial(code, Tier::Project, 10, 9, 0)), "{code}: a smaller call has room");
        }
        assert!(!remembers(&denial("concurrency_limit", Tier::Project, 1, 0, 1)));
        assert!(!remembers(&denial("something_new", Tier::Project, 1, 1, 0)));
    }

    #[test]
    fn nothing_is_remembered_beyond_its_window() {
        let now = Instant::now();
        let full = denial("rate_limit_rpm", Tier::Project, 1, 1, 0);
        let until = |asked_before: Duration, minute_resets_in_ms: i64| {
            let headroom = Headroom { minute_resets_in_ms, ..Headroom::default() };
            let denial = Denial { headroom, ..full.clone() };
            Remembered::new(&denial, now - asked_before, now).map(|remembered| remembered.until - now)
        };
        let ms = Duration::from_millis;
        assert_eq!(until(ms(0), 30_000), Some(ms(1000)));
        assert_eq!(until(ms(300), 800), Some(ms(500)), "counted from the question, which is the earliest it can be");
        assert_eq!(until(ms(300), 300), None);
        assert_eq!(until(ms(0), 0), None);
        let remembered = Remembered::new(&full, now, now).unwrap();
        assert!(remembered.applies(now, false) && remembered.applies(now + ms(999), false));
        assert!(!remembered.applies(now + ms(1000), false));
    }

    #[test]
    fn what_is_told_counts_down() {
        let now = Instant::now();
        // 50 whole minutes and 29.4 s: 3,029.4 s, which the answer rounds up.
        let remembered = Remembered::new(&denial("budget_daily", Tier::Key, 1, 1, 0), now, now).unwrap();
        for (passed, seconds, minute) in
            [(0, 3_030, 29_400), (399, 3_030, 29_001), (400, 3_029, 29_000), (900, 3_029, 28_500)]
        {
            let told = remembered.told_at(now + Duration::from_millis(passed));
            assert_eq!((told.retry_after_seconds, told.headroom.minute_resets_in_ms), (seconds, minute));
        }
        let last = Denial {
            retry_after_seconds: 1,
            headroom: Headroom { minute_resets_in_ms: 700, ..Headroom::default() },
            ..denial("rate_limit_rpm", Tier::Key, 1, 1, 0)
        };
        let told = Remembered::new(&last, now, now).unwrap().told_at(now + Duration::from_millis(699));
        assert_eq!((told.retry_after_seconds, told.headroom.minute_resets_in_ms), (1, 1));
    }

    #[test]
    fn of_several_the_one_is_told_that_admission_would_tell() {
        let denials = Denials::new();
        for (code, tier) in
            [("rate_limit_rpm", Tier::Key), ("cost_monthly", Tier::Key), ("rate_limit_rpm", Tier::Project)]
        {
            denials.remember(denials.asking(), PROJECT, KEY, &denial(code, tier, 1, 1, 0));
        }
        let told = denials.recall(PROJECT, KEY, false).unwrap();
        assert_eq!((told.code.as_str(), told.tier), ("rate_limit_rpm", Tier::Project));
        assert_eq!(denials.kept.get(&(PROJECT, KEY)).unwrap().len(), 3);
        assert!(
            denials.recall(PROJECT, ApiKeyId(3), false).is_none() && denials.recall(ProjectId(3), KEY, false).is_none()
        );
    }

    #[test]
    fn a_full_cost_cap_has_room_for_what_costs_nothing() {
        let denials = Denials::new();
        denials.remember(denials.asking(), PROJECT, KEY, &denial("cost_daily", Tier::Project, 10, 10, 0));
        assert!(denials.recall(PROJECT, KEY, true).is_none() && denials.recall(PROJECT, KEY, false).is_some());
        denials.remember(denials.asking(), PROJECT, KEY, &denial("cost_daily", Tier::Project, 10, 11, 0));
        assert!(denials.recall(PROJECT, KEY, true).is_some(), "an overdrawn one has none");
    }

    #[test]
    fn a_change_is_forgotten_at_once_and_so_is_an_answer_from_before_it() {
        let full = denial("budget_daily", Tier::Project, 1, 1, 0);
        let denials = Denials::new();
        for change in
            [&(|| denials.project_changed(PROJECT)) as &dyn Fn(), &|| denials.key_changed(KEY), &|| denials.clear()]
        {
            denials.remember(denials.asking(), PROJECT, KEY, &full);
            assert!(denials.recall(PROJECT, KEY, false).is_some());
            let asking = denials.asking();
            change();
            assert!(denials.recall(PROJECT, KEY, false).is_none());
            denials.remember(asking, PROJECT, KEY, &full);
            assert!(denials.recall(PROJECT, KEY, false).is_none());
        }
    }
}
