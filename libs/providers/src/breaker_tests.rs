use tokio::time::advance;

use super::*;
use crate::error::{Waited, Words};
use crate::ssrf::AddressRefused;

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);

fn failure() -> UpstreamError {
    UpstreamError::Failed { status: 503, words: Words::default(), retry_after: None }
}

fn limited() -> UpstreamError {
    UpstreamError::RateLimited { words: Words::default(), retry_after: None }
}

fn rejected(status: u16) -> UpstreamError {
    UpstreamError::Rejected { status, words: Words::default() }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fail(breakers: &Breakers, times: usize) {
    for _ in 0..times {
        breakers.admit(A).expect("refused").failed(&failure());
    }
}

fn succeed(breakers: &Breakers, times: usize) {
    for _ in 0..times {
        breakers.admit(A).expect("refused").succeeded();
    }
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_for_half_a_minute_and_nobody_elses() {
    let breakers = Breakers::new();
    fail(&breakers, 4);
    succeed(&breakers, 1);
    fail(&breakers, 4);
    assert_eq!((breakers.state(A), breakers.open_for(A)), (BreakerState::Closed, None));
    fail(&breakers, 1);
    assert!(breakers.admit(A).is_none());
    assert_eq!((breakers.state(A), breakers.open_for(A)), (BreakerState::Open, Some(seconds(30))));
    breakers.admit(B).unwrap().succeeded();

    advance(seconds(30) - Duration::from_millis(1)).await;
    assert!(breakers.admit(A).is_none());
    advance(Duration::from_millis(1)).await;
    assert_eq!((breakers.state(A), breakers.open_for(A)), (BreakerState::HalfOpen, None));
    assert!(breakers.admit(A).is_some());
}

#[tokio::test(start_paused = true)]
async fn failures_far_apart_are_a_run_all_the_same() {
    let breakers = Breakers::new();
    for _ in 0..5 {
        fail(&breakers, 1);
        advance(seconds(300)).await;
        breakers.admit(B).unwrap().succeeded();
    }
    assert_eq!(breakers.state(A), BreakerState::HalfOpen);
}

#[tokio::test(start_paused = true)]
async fn half_of_twenty_failing_open_it_and_fewer_do_not() {
    let breakers = Breakers::new();
    for _ in 0..9 {
        fail(&breakers, 1);
        succeed(&breakers, 1);
    }
    succeed(&breakers, 1);
    assert_eq!(breakers.state(A), BreakerState::Closed);
    // The twentieth call is the tenth failure.
    fail(&breakers, 1);
    assert_eq!(breakers.state(A), BreakerState::Open);

    let breakers = Breakers::new();
    succeed(&breakers, 1);
    for _ in 0..100 {
        fail(&breakers, 1);
        succeed(&breakers, 2);
    }
    assert_eq!(breakers.state(A), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_share_is_that_of_the_last_thirty_seconds() {
    let breakers = Breakers::new();
    succeed(&breakers, 100);
    advance(seconds(29)).await;
    for _ in 0..9 {
        fail(&breakers, 1);
        succeed(&breakers, 1);
    }
    fail(&breakers, 2);
    assert_eq!(breakers.state(A), BreakerState::Closed);
    // The hundred are too old now: 12 of 21 failed.
    advance(seconds(1)).await;
    fail(&breakers, 1);
    assert_eq!(breakers.state(A), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn one_call_tries_and_decides() {
    let breakers = Breakers::new();
    fail(&breakers, 5);
    advance(seconds(30)).await;
    let probe = breakers.admit(A).unwrap();
    for _ in 0..3 {
        assert!(breakers.admit(A).is_none(), "a second call tries");
    }
    probe.failed(&failure());
    assert_eq!(breakers.open_for(A), Some(seconds(30)));

    advance(seconds(30)).await;
    let probe = breakers.admit(A).unwrap();
    assert!(breakers.admit(A).is_none());
    probe.succeeded();
    assert_eq!(breakers.state(A), BreakerState::Closed);
    // It begins anew: what failed before is not remembered.
    fail(&breakers, 4);
    assert_eq!(breakers.state(A), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn of_many_threads_exactly_one_tries() {
    let breakers = Breakers::new();
    fail(&breakers, 5);
    advance(seconds(30)).await;
    let passes: Vec<_> = std::thread::scope(|scope| {
        // The paused clock is seen only by threads that are inside the runtime.
        let handle = tokio::runtime::Handle::current();
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let (breakers, handle) = (breakers.clone(), handle.clone());
                scope.spawn(move || {
                    let _inside = handle.enter();
                    breakers.admit(A)
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(passes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_counts_for_nothing_and_makes_room_for_the_next_that_tries() {
    let breakers = Breakers::new();
    fail(&breakers, 4);
    drop(breakers.admit(A).unwrap());
    assert_eq!(breakers.state(A), BreakerState::Closed);
    fail(&breakers, 1);
    advance(seconds(30)).await;
    drop(breakers.admit(A).unwrap());
    assert_eq!(breakers.state(A), BreakerState::HalfOpen);
    let next = breakers.admit(A).unwrap();
    assert!(breakers.admit(A).is_none());
    next.succeeded();
    assert_eq!(breakers.state(A), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn what_was_let_through_before_it_turned_does_not_count() {
    let breakers = Breakers::new();
    let (early, late, latest) = (breakers.admit(A).unwrap(), breakers.admit(A).unwrap(), breakers.admit(A).unwrap());
    fail(&breakers, 5);
    early.succeeded();
    assert_eq!(breakers.state(A), BreakerState::Open);
    advance(seconds(30)).await;
    let probe = breakers.admit(A).unwrap();
    late.failed(&failure());
    drop(latest);
    assert!(breakers.admit(A).is_none(), "an old call took the place of the one that tries");
    probe.succeeded();
    assert_eq!(breakers.state(A), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_changed_connection_starts_closed_and_old_calls_do_not_count_for_it() {
    let breakers = Breakers::new();
    let old: Vec<_> = (0..8).map(|_| breakers.admit(A).unwrap()).collect();
    fail(&breakers, 5);
    breakers.forget(A);
    assert_eq!(breakers.state(A), BreakerState::Closed);
    fail(&breakers, 5);
    breakers.forget_all();
    assert_eq!(breakers.states().count(), 0);
    breakers.admit(A).unwrap().succeeded();
    for pass in old {
        pass.failed(&failure());
    }
    assert_eq!(breakers.state(A), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn refused_requests_never_open_it() {
    for error in [400, 401, 403, 404, 408, 413, 422].map(rejected).into_iter().chain([
        UpstreamError::Auth { status: 401 },
        UpstreamError::Refused(AddressRefused),
        UpstreamError::BadAnswer("it is not JSON"),
        UpstreamError::TooLarge { limit_bytes: 1 },
    ]) {
        let breakers = Breakers::new();
        for _ in 0..100 {
            breakers.admit(A).unwrap().failed(&error);
        }
        assert_eq!(breakers.state(A), BreakerState::Closed, "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_the_provider_opens_it() {
    for error in [
        failure(),
        UpstreamError::Timeout(Waited::Headers),
        UpstreamError::Timeout(Waited::Idle),
        UpstreamError::Timeout(Waited::Total),
        UpstreamError::Truncated,
    ] {
        let breakers = Breakers::new();
        for _ in 0..5 {
            breakers.admit(A).unwrap().failed(&error);
        }
        assert_eq!(breakers.state(A), BreakerState::Open, "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_storm_of_429_opens_it() {
    let breakers = Breakers::new();
    for _ in 0..19 {
        breakers.admit(A).unwrap().failed(&limited());
    }
    assert_eq!(breakers.state(A), BreakerState::Closed);
    breakers.admit(A).unwrap().failed(&limited());
    assert_eq!(breakers.state(A), BreakerState::Open);
    // The storm goes on.
    advance(seconds(30)).await;
    breakers.admit(A).unwrap().failed(&limited());
    assert_eq!(breakers.state(A), BreakerState::Open);

    let breakers = Breakers::new();
    for _ in 0..4 {
        breakers.admit(A).unwrap().failed(&failure());
        breakers.admit(A).unwrap().failed(&limited());
    }
    assert_eq!(breakers.state(A), BreakerState::Closed, "a 429 lengthened the run");
    fail(&breakers, 1);
    assert_eq!(breakers.state(A), BreakerState::Open, "a 429 ended the run");
}

#[tokio::test(start_paused = true)]
async fn a_400_to_the_one_that_tries_shows_that_the_provider_works() {
    let breakers = Breakers::new();
    fail(&breakers, 5);
    advance(seconds(30)).await;
    breakers.admit(A).unwrap().failed(&rejected(400));
    assert_eq!(breakers.state(A), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn there_are_never_too_many_and_open_ones_stay() {
    let breakers = Breakers::new();
    fail(&breakers, 5);
    for id in 0..MAX_BREAKERS as i64 + 500 {
        drop(breakers.admit(ConnectionId(1000 + id)));
        if id % 1024 == 0 {
            advance(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(breakers.states().count(), MAX_BREAKERS);
    assert_eq!(breakers.state(A), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn the_gauge_shows_what_is_used_and_forgets_what_idles() {
    let breakers = Breakers::new();
    fail(&breakers, 5);
    drop(breakers.admit(B));
    let gauge =
        |breakers: &Breakers| -> Vec<_> { breakers.states().map(|(id, state)| (id.0, state.gauge())).collect() };
    assert_eq!(gauge(&breakers), [(1, 2), (2, 0)]);
    advance(IDLE).await;
    drop(breakers.admit(ConnectionId(3)));
    assert_eq!(gauge(&breakers), [(1, 1), (3, 0)]);
}
