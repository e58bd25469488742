//! Busy polling: to look for completions for a moment before sleeping.
//!
//! Waking a thread that sleeps costs microseconds, tens of them where the CPU sleeps too (a virtual
//! machine above all). When the next completion is near it is cheaper to wait awake. Whether it is
//! near is learnt from the waits before: after some short ones the next is polled for, after long
//! ones none is, so a thread without work costs nothing. Between two looks the CPU is offered to
//! whoever else wants to run there: on a busy machine polling steals no time.

use std::time::Duration;

/// Short waits until it is worth while to poll, and what a long one takes back.
const WORTH_WHILE: u8 = 2;
const CREDIT_MAX: u8 = 8;
const LONG_WAIT: u8 = 2;

/// When to poll.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct BusyPoll {
    /// How long to poll at most; zero: never.
    limit: Duration,
    /// More after short waits, less after long ones.
    credit: u8,
}

impl BusyPoll {
    pub(super) fn new(limit: Duration) -> BusyPoll {
        BusyPoll { limit, credit: 0 }
    }

    /// True if waits are to be told to [`BusyPoll::waited`].
    pub(super) fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// How long to poll before the next sleep; zero: not at all.
    pub(super) fn patience(&self) -> Duration {
        if self.credit < WORTH_WHILE { Duration::ZERO } else { self.limit }
    }

    /// Takes note of how long a wait took, polled or slept.
    pub(super) fn waited(&mut self, duration: Duration) {
        self.credit = if duration <= self.limit {
            (self.credit + 1).min(CREDIT_MAX)
        } else {
            self.credit.saturating_sub(LONG_WAIT)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    #[test]
    fn it_polls_after_short_waits_and_soon_stops_after_long_ones() {
        let mut poll = BusyPoll::new(LIMIT);
        assert_eq!(poll.patience(), Duration::ZERO);
        for _ in 0..100 {
            poll.waited(LIMIT / 2);
        }
        assert_eq!(poll.patience(), LIMIT);
        let in_vain = (0..100)
            .take_while(|_| {
                poll.waited(LIMIT * 20);
                poll.patience() > Duration::ZERO
            })
            .count();
        assert!(in_vain < 4, "{in_vain} polls of an idle thread");
        poll.waited(LIMIT);
        assert_eq!(poll.patience(), Duration::ZERO);
    }

    #[test]
    fn switched_off_it_never_polls() {
        let mut poll = BusyPoll::default();
        for _ in 0..100 {
            poll.waited(Duration::ZERO);
        }
        assert!(!poll.is_on());
        assert_eq!(poll.patience(), Duration::ZERO);
    }
}
