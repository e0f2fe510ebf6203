//! The way of one call from destination to destination until one answers.

use std::collections::VecDeque;
use std::time::Duration;

use domain::ConnectionId;
use tokio::time::{Instant, sleep_until};

use crate::breaker::{Breakers, Pass};
use crate::error::{UpstreamError, Waited};
use crate::retry::{Attempts, MAX_ATTEMPTS};

/// A place a call may go, and the group it is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) group: i16,
    pub(crate) connection: ConnectionId,
}

/// Goes through the stops of a call in their order.
///
/// Within a group it goes round: to the next stop at once, and back to one that failed once its wait is over. The next
/// group's turn comes when no stop of the group is left (each open, or not worth another try), or when only as many
/// attempts are left as there are groups to come, so that every group is asked before the call is given up.
pub(crate) struct Journey<'a> {
    stops: Vec<Stop>,
    breakers: &'a Breakers,
    attempts: &'a mut Attempts,
    /// How long a provider may be silent before that is its fault.
    patience: Duration,
    /// Stops of the running group, and when each may be tried again; `None` if it was not tried yet.
    due: VecDeque<(usize, Option<Instant>)>,
    /// The first stop of the groups to come.
    next: usize,
    asked_group: bool,
    failed: Option<UpstreamError>,
}

/// One attempt.
pub(crate) struct Leg {
    /// Where it goes, as the place of the stop.
    pub(crate) at: usize,
    /// Where the attempt before it went.
    before: Option<usize>,
    begun: Instant,
    pass: Pass,
}

impl<'a> Journey<'a> {
    /// `stops` are in the order of preference, with the stops of a group together.
    pub(crate) fn new(
        stops: Vec<Stop>,
        breakers: &'a Breakers,
        attempts: &'a mut Attempts,
        patience: Duration,
    ) -> Self {
        Self { stops, breakers, attempts, patience, due: VecDeque::new(), next: 0, asked_group: false, failed: None }
    }

    /// When the call must be over.
    pub(crate) fn deadline(&self) -> Instant {
        self.attempts.deadline()
    }

    /// Waits until the next attempt is due.
    ///
    /// # Errors
    /// There is none: the last failure, or that every stop is left alone for now.
    pub(crate) async fn next(&mut self) -> Result<Leg, UpstreamError> {
        loop {
            let left = MAX_ATTEMPTS.saturating_sub(self.attempts.made());
            if left == 0 || (self.asked_group && left <= self.groups_to_come()) {
                self.due.clear();
            }
            let Some((at, due)) = self.due.pop_front() else {
                if left == 0 || !self.enter_next_group() {
                    return Err(self.given_up());
                }
                continue;
            };
            let Some(stop) = self.stops.get(at) else { continue };
            if self.breakers.open_for(stop.connection).is_some() {
                continue;
            }
            // A timer that is due at once still waits for the next millisecond.
            if let Some(due) = due {
                sleep_until(due).await;
            }
            let Some(pass) = self.breakers.admit(stop.connection) else { continue };
            let before = self.attempts.begin(at);
            self.asked_group = true;
            return Ok(Leg { at, before, begun: Instant::now(), pass });
        }
    }

    /// Takes what an attempt came to. A failure may be made good by another.
    ///
    /// # Errors
    /// The failure, if no other attempt would change it.
    pub(crate) fn ended<T>(&mut self, leg: Leg, result: Result<T, UpstreamError>) -> Result<Option<T>, UpstreamError> {
        let error = match result {
            Ok(answer) => {
                leg.pass.succeeded();
                return Ok(Some(answer));
            }
            Err(error) => error,
        };
        // A caller that waited for less than that says nothing of the provider: the pass is dropped.
        let was_given_time = leg.begun.elapsed() >= self.patience;
        if was_given_time || !matches!(error, UpstreamError::Timeout(Waited::Total)) {
            leg.pass.failed(&error);
        }
        if matches!(error, UpstreamError::Unfit(_) | UpstreamError::Image(_)) {
            self.attempts.take_back(leg.before);
            // A failure that came before says more of what is wrong.
            self.failed.get_or_insert(error);
            return Ok(None);
        }
        self.attempts.failed(&error);
        if let Some(delay) = self.attempts.delay_after(&error) {
            tracing::debug!(
                attempt = self.attempts.made(),
                delay_ms = delay.as_millis() as u64,
                status = error.status(),
                "an upstream call failed and may be tried again"
            );
            self.due.push_back((leg.at, Some(Instant::now() + delay)));
        } else if !self.attempts.may_go_elsewhere(&error) {
            return Err(error);
        }
        self.failed = Some(error);
        Ok(None)
    }

    /// A part of what was asked for is answered and billed.
    pub(crate) fn owes(&mut self) {
        self.attempts.owes();
    }

    /// Takes back an attempt for which nothing was sent.
    pub(crate) fn passed_by(&mut self, leg: Leg) {
        self.attempts.take_back(leg.before);
    }

    fn enter_next_group(&mut self) -> bool {
        let Some(first) = self.stops.get(self.next) else { return false };
        let of_group = self.stops.iter().skip(self.next).take_while(|stop| stop.group == first.group).count();
        self.due = (self.next..self.next + of_group).map(|at| (at, None)).collect();
        self.next += of_group;
        self.asked_group = false;
        true
    }

    /// Groups after the running one in which a stop can be asked.
    fn groups_to_come(&self) -> u32 {
        let usable = self.stops.iter().skip(self.next).filter(|stop| self.breakers.open_for(stop.connection).is_none());
        let mut groups: Vec<i16> = usable.map(|stop| stop.group).collect();
        groups.dedup();
        u32::try_from(groups.len()).unwrap_or(u32::MAX)
    }

    fn given_up(&mut self) -> UpstreamError {
        self.failed.take().unwrap_or_else(|| UpstreamError::LeftAlone {
            retry_after: self.stops.iter().filter_map(|stop| self.breakers.open_for(stop.connection)).min(),
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::advance;

    use super::*;
    use crate::dialect::openai::RequestError;
    use crate::error::Words;

    const DEADLINE: Duration = Duration::from_secs(60);
    const PATIENCE: Duration = Duration::from_secs(20);

    fn failed(status: u16) -> UpstreamError {
        UpstreamError::Failed { status, words: Words::default(), retry_after: None }
    }

    fn stops(groups: &[i16]) -> Vec<Stop> {
        (1..).zip(groups).map(|(id, group)| Stop { group: *group, connection: ConnectionId(id) }).collect()
    }

    /// The stops asked in turn when each attempt fails as `fails` says, and what the call ends with.
    async fn travel(groups: &[i16], fails: impl Fn(usize) -> UpstreamError) -> (Vec<usize>, u16) {
        travel_with(&Breakers::new(), Attempts::until(Instant::now() + DEADLINE), groups, fails).await
    }

    async fn travel_with(
        breakers: &Breakers,
        mut attempts: Attempts,
        groups: &[i16],
        fails: impl Fn(usize) -> UpstreamError,
    ) -> (Vec<usize>, u16) {
        let mut journey = Journey::new(stops(groups), breakers, &mut attempts, PATIENCE);
        let mut asked = Vec::new();
        let error = loop {
            let leg = match journey.next().await {
                Ok(leg) => leg,
                Err(error) => break error,
            };
            asked.push(leg.at);
            let error = fails(leg.at);
            if let Err(error) = journey.ended::<()>(leg, Err(error)) {
                break error;
            }
        };
        (asked, error.status())
    }

    #[tokio::test]
    async fn first_tries_wait_for_no_timer() {
        let (breakers, mut attempts) = (Breakers::new(), Attempts::until(Instant::now() + DEADLINE));
        let mut journey = Journey::new(stops(&[0, 0, 1]), &breakers, &mut attempts, PATIENCE);
        for at in 0..3 {
            let leg = journey.next().now_or_never().expect("it is ready when it is asked").ok().unwrap();
            assert_eq!(leg.at, at);
            // Elsewhere at once, and never again here.
            journey.ended::<()>(leg, Err(UpstreamError::Auth { status: 401 })).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_shared_so_that_every_group_is_asked() {
        for (groups, asked) in [
            (&[0][..], &[0, 0, 0][..]),
            (&[0, 0], &[0, 1, 0]),
            (&[0, 1], &[0, 0, 1]),
            (&[0, 0, 1], &[0, 1, 2]),
            (&[0, 1, 2], &[0, 1, 2]),
            (&[0, 1, 2, 3], &[0, 1, 2]),
            (&[0, 0, 0, 0], &[0, 1, 2]),
        ] {
            assert_eq!(travel(groups, |_| failed(503)).await.0, asked, "{groups:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_stop_cannot_do_another_one_may() {
        // Neither is worth a second try at the same place.
        for error in [|| UpstreamError::Auth { status: 401 }, || failed(500)] {
            assert_eq!(travel(&[0, 1], |_| error()).await, (vec![0, 1], 502));
        }
        // A refused request is refused everywhere, and one that ran out of time may still be worked on.
        let rejected = |_| UpstreamError::Rejected { status: 422, words: Words::default() };
        assert_eq!(travel(&[0, 1], rejected).await, (vec![0], 422));
        assert_eq!(travel(&[0, 1], |_| UpstreamError::Timeout(Waited::Headers)).await, (vec![0], 504));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_that_does_not_understand_the_request_is_passed_by() {
        let unfit = |at| if at == 1 { UpstreamError::Unfit(RequestError::Missing("messages")) } else { failed(503) };
        assert_eq!(travel(&[0, 1, 2], unfit).await, (vec![0, 1, 2, 2], 503));
        assert_eq!(travel(&[0], |_| unfit(1)).await, (vec![0], 400));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_attempt_is_one_that_was_made() {
        let breakers = Breakers::new();
        let mut attempts = Attempts::until(Instant::now() + DEADLINE);
        let mut journey = Journey::new(stops(&[0, 1]), &breakers, &mut attempts, PATIENCE);
        let leg = journey.next().await.unwrap();
        assert!(journey.ended::<()>(leg, Err(failed(500))).unwrap().is_none());
        let leg = journey.next().await.unwrap();
        assert_eq!(leg.at, 1);
        let unfit = UpstreamError::Unfit(RequestError::Missing("messages"));
        assert!(journey.ended::<()>(leg, Err(unfit)).unwrap().is_none());
        assert_eq!(journey.next().await.err().map(|error| error.status()), Some(502));
        assert_eq!((attempts.made(), attempts.last()), (1, Some(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_wait_long_says_nothing_of_the_provider() {
        for (waited, counts) in [(PATIENCE - Duration::from_millis(1), false), (PATIENCE, true)] {
            let breakers = Breakers::new();
            for _ in 0..5 {
                let mut attempts = Attempts::until(Instant::now() + waited);
                let mut journey = Journey::new(stops(&[0]), &breakers, &mut attempts, PATIENCE);
                let leg = journey.next().await.unwrap();
                advance(waited).await;
                assert!(journey.ended::<()>(leg, Err(UpstreamError::Timeout(Waited::Total))).is_err());
            }
            assert_eq!(breakers.open_for(ConnectionId(1)).is_some(), counts, "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_ran_out_of_time_is_sent_again_where_the_route_says_so() {
        let attempts = Attempts::until(Instant::now() + DEADLINE).replaying_timeouts(true);
        let late = |_| UpstreamError::Timeout(Waited::Headers);
        assert_eq!(travel_with(&Breakers::new(), attempts, &[0, 1], late).await, (vec![0, 0, 1], 504));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_one_stop_does_not_hold_up_another() {
        let begun = Instant::now();
        let (asked, _) = travel(&[0, 1, 2], |_| failed(503)).await;
        assert_eq!((asked.len(), begun.elapsed()), (3, Duration::ZERO));
        let (asked, _) = travel(&[0, 0], |_| failed(503)).await;
        assert_eq!(asked, [0, 1, 0]);
        assert!(begun.elapsed() >= Duration::from_millis(125), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_that_is_left_alone_is_passed_by() {
        let breakers = Breakers::new();
        let attempts = || Attempts::until(Instant::now() + DEADLINE);
        for _ in 0..5 {
            breakers.admit(ConnectionId(1)).unwrap().failed(&failed(503));
        }
        assert_eq!(travel_with(&breakers, attempts(), &[0, 1], |_| failed(503)).await.0, [1, 1, 1]);
        let only = travel_with(&breakers, attempts(), &[0], |_| failed(503)).await;
        assert_eq!(only, (Vec::new(), 503));
    }
}
