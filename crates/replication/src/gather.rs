//! When an activity log transaction starts: a little later, if more writes are about to need it.
//!
//! A transaction has room for 64 changes and costs the same whatever it carries. Writes that are
//! in flight end soon, and make their users ask for more; without waiting for those, each of a
//! stream of writes to cold extents would come a moment too late for the transaction of the one
//! before. A write that is alone never waits: its transaction starts as soon as everything that
//! arrived together with it was looked at.

use std::time::Duration;

use vocab::Instant;

/// Writes in flight are waited for as long as this many transactions take,
const IN_FLIGHT_TIMES: u32 = 8;
/// but at least and at most so long.
const IN_FLIGHT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// While none is in flight, those that are still on their way are waited for as long as a
/// transaction takes, but at least and at most so long.
const ON_THE_WAY: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(1));

/// Decides when the next transaction of one volume starts. Transactions that are full, or that
/// a write without room waits for, start at once and do not ask.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// When the first write began to wait.
    since: Option<Instant>,
    /// Since when nothing but waiting writes is known of.
    alone_since: Option<Instant>,
    /// The transaction starts with the first timeout from then on.
    until: Option<Instant>,
    /// Writes that waited for the log when the last transaction ended, those it carried included.
    /// As many may come again.
    crowd: usize,
    /// When the last transaction started, and how long it took.
    started: Instant,
    took: Duration,
}

impl Gather {
    /// True if the transaction starts now: `queued` writes wait for it, `others` in flight or
    /// not. Only ever true in a timeout of the driver, which comes after everything that arrived
    /// in the same burst.
    pub fn is_due(&mut self, now: Instant, timeout: bool, queued: usize, others: bool) -> bool {
        let since = *self.since.get_or_insert(now);
        let until = if others {
            self.alone_since = None;
            since + (IN_FLIGHT_TIMES * self.took).clamp(IN_FLIGHT.0, IN_FLIGHT.1)
        } else {
            let alone_since = *self.alone_since.get_or_insert(now);
            let more = queued < self.crowd;
            let patience = self.took.clamp(ON_THE_WAY.0, ON_THE_WAY.1);
            if more { alone_since + patience } else { now }
        };
        self.until = Some(until);
        timeout && until <= now
    }

    /// When a timeout is wanted.
    pub const fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// A transaction starts.
    pub const fn started(&mut self, now: Instant) {
        (self.since, self.alone_since, self.until) = (None, None, None);
        self.started = now;
    }

    /// It is done; so many writes waited for the log at its end.
    pub fn ended(&mut self, now: Instant, crowd: usize) {
        self.took = now.since(self.started);
        self.crowd = crowd;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// After a transaction of 1 ms at whose end `crowd` writes waited.
    fn after(crowd: usize) -> Gather {
        let mut gather = Gather::default();
        gather.started(Instant(0));
        gather.ended(Instant(MS), crowd);
        gather
    }

    #[test]
    fn a_write_that_is_alone_waits_only_for_the_burst_it_came_with() {
        let (mut gather, now) = (after(1), Instant(2 * MS));
        assert!(!gather.is_due(now, false, 1, false));
        assert_eq!(gather.deadline(), Some(now));
        assert!(gather.is_due(now, true, 1, false));
    }

    #[test]
    fn writes_in_flight_are_waited_for_until_they_end() {
        let mut gather = after(2);
        assert!(!gather.is_due(Instant(2 * MS), true, 1, true));
        assert!(!gather.is_due(Instant(5 * MS), true, 1, true));
        assert!(gather.is_due(Instant(6 * MS), true, 2, false));
    }

    #[test]
    fn writes_in_flight_are_not_waited_for_longer_than_eight_transactions_take() {
        let mut gather = after(2);
        assert!(!gather.is_due(Instant(2 * MS), true, 1, true));
        assert_eq!(gather.deadline(), Some(Instant(10 * MS)));
        assert!(!gather.is_due(Instant(10 * MS - 1), true, 1, true));
        assert!(gather.is_due(Instant(10 * MS), true, 1, true));
    }

    #[test]
    fn as_many_as_before_are_waited_for_one_transaction_long() {
        let mut gather = after(60);
        assert!(!gather.is_due(Instant(2 * MS), true, 50, false));
        assert_eq!(gather.deadline(), Some(Instant(3 * MS)));
        assert!(gather.is_due(Instant(3 * MS), true, 50, false));
        gather.started(Instant(3 * MS));
        gather.ended(Instant(4 * MS), 50);
        assert!(gather.is_due(Instant(5 * MS), true, 50, false));
    }

    #[test]
    fn a_slow_disk_makes_no_write_wait_longer_than_the_limits() {
        let mut gather = Gather::default();
        gather.started(Instant(0));
        gather.ended(Instant(1000 * MS), 2);
        let now = Instant(1000 * MS);
        assert!(!gather.is_due(now, true, 1, true));
        assert_eq!(gather.deadline(), Some(Instant(1010 * MS)));
        assert!(!gather.is_due(now, true, 1, false));
        assert_eq!(gather.deadline(), Some(Instant(1001 * MS)));
    }

    #[test]
    fn a_started_transaction_wants_no_timeout() {
        let mut gather = after(2);
        assert!(!gather.is_due(Instant(2 * MS), true, 1, true));
        gather.started(Instant(2 * MS));
        assert_eq!(gather.deadline(), None);
    }
}
