//! When an activity log transaction starts: a little later, if more writes are about to need it.
//!
//! A transaction has room for 64 changes and costs the same whatever it carries. Writes that are
//! in flight end soon, and make their users ask for more; without waiting for those, each of a
//! stream of writes to cold extents would come a moment too late for the transaction of the one
//! before. A write that is alone never waits: its transaction starts as soon as everything that
//! arrived together with it was looked at.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use vocab::Instant;

/// Writes in flight are waited for as long as this many transactions take,
const IN_FLIGHT_TIMES: u32 = 8;
/// or as this many writes take one after the other, if that is longer: some of those that come next
/// find their extents active, and ask a write later,
const IN_FLIGHT_WRITES: u32 = 3;
/// but at least and at most so long.
const IN_FLIGHT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// While none is in flight, those that are still on their way are waited for as long as this many
/// transactions take after the last one came, but at least and at most so long. On a machine with
/// other load whoever sends them has to wait for a CPU.
const ON_THE_WAY_TIMES: u32 = 4;
/// See [`ON_THE_WAY_TIMES`].
const ON_THE_WAY: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));
/// At a Secondary a few may come before the others: of a Primary whose log held those extents. It
/// waits for their acks before it sends the others, so what is less than this share of those that
/// may come is not waited with for longer than this.
const SHARE: usize = 16;
/// See [`SHARE`].
const FEW: Duration = Duration::from_millis(1);
/// No write waits longer than this for company.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Decides when the next transaction of one volume starts. Transactions that are full, or that
/// a write without room waits for, start at once and do not ask.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gather {
    /// When the first write began to wait.
    since: Option<Instant>,
    /// Since when nothing but waiting writes is known of, or the last of them came.
    alone_since: Option<Instant>,
    /// So many waited then.
    seen: usize,
    /// The transaction starts with the first timeout from then on.
    until: Option<Instant>,
    /// Writes that waited for the log when the last transaction ended, those it carried included.
    /// As many may come again.
    crowd: usize,
    /// When the last transaction started, and how long it took.
    started: Instant,
    took: Duration,
    /// How long users' writes take that need not wait, on average over the last ones.
    write_took: Duration,
}

impl Gather {
    /// True if the transaction starts now: `queued` writes wait for it, `others` in flight or
    /// not. Only ever true in a timeout of the driver, which comes after everything that arrived
    /// in the same burst.
    pub fn is_due(&mut self, now: Instant, timeout: bool, queued: usize, others: bool) -> bool {
        let since = *self.since.get_or_insert(now);
        let until = if others {
            self.alone_since = None;
            let patience = (IN_FLIGHT_TIMES * self.took).max(IN_FLIGHT_WRITES * self.write_took);
            since + patience.clamp(IN_FLIGHT.0, IN_FLIGHT.1)
        } else {
            if queued != self.seen {
                self.alone_since = None;
            }
            let alone_since = *self.alone_since.get_or_insert(now);
            let patience = (ON_THE_WAY_TIMES * self.took).clamp(ON_THE_WAY.0, ON_THE_WAY.1);
            let patience = if queued * SHARE < self.crowd { patience.min(FEW) } else { patience };
            match queued < self.crowd {
                true => (alone_since + patience).min(since + WAIT_MAX),
                false => now,
            }
        };
        self.seen = queued;
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
        self.seen = 0;
        self.started = now;
    }

    /// It is done; so many writes waited for the log at its end.
    pub fn ended(&mut self, now: Instant, crowd: usize) {
        self.took = now.since(self.started);
        self.crowd = crowd;
    }

    /// A user's write is complete, so long after it was sent.
    pub fn write_done(&mut self, took: Duration) {
        const OF: u32 = 16;
        self.write_took = (self.write_took * (OF - 1) + took.min(WAIT_MAX)) / OF;
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
    fn where_writes_take_long_those_in_flight_are_waited_for_as_long_as_three_take() {
        let mut gather = after(60);
        for _ in 0..200 {
            gather.write_done(Duration::from_millis(12));
        }
        assert!(!gather.is_due(Instant(2 * MS), true, 1, true));
        let until = gather.deadline().unwrap();
        assert!((Instant(37 * MS)..=Instant(38 * MS)).contains(&until), "{until:?}");
        // One that took long counts as one of many, and for no more than the limit.
        gather.write_done(Duration::from_secs(1000));
        assert!(!gather.is_due(until, true, 1, true));
        assert!(gather.deadline().unwrap() <= Instant(52 * MS));
    }

    #[test]
    fn as_many_as_before_are_waited_for_four_transactions_long() {
        let mut gather = after(60);
        assert!(!gather.is_due(Instant(2 * MS), true, 50, false));
        assert_eq!(gather.deadline(), Some(Instant(6 * MS)));
        assert!(gather.is_due(Instant(6 * MS), true, 50, false));
        gather.started(Instant(6 * MS));
        gather.ended(Instant(7 * MS), 50);
        assert!(gather.is_due(Instant(8 * MS), true, 50, false));
    }

    #[test]
    fn each_that_comes_lets_the_next_one_come_and_none_waits_for_ever() {
        let mut gather = after(60);
        assert!(!gather.is_due(Instant(2 * MS), true, 20, false));
        assert!(!gather.is_due(Instant(5 * MS), true, 40, false));
        assert_eq!(gather.deadline(), Some(Instant(9 * MS)));
        assert!(!gather.is_due(Instant(8 * MS), true, 40, false));
        assert!(gather.is_due(Instant(9 * MS), true, 40, false));
        let mut gather = after(1000);
        let mut now = Instant(2 * MS);
        let mut queued = 100;
        while !gather.is_due(now, true, queued, false) {
            now = now + Duration::from_millis(3);
            queued += 1;
        }
        assert_eq!(now.since(Instant(2 * MS)), Duration::from_millis(102));
    }

    #[test]
    fn a_few_of_many_are_not_kept_waiting() {
        let mut gather = after(64);
        assert!(!gather.is_due(Instant(2 * MS), true, 3, false));
        assert_eq!(gather.deadline(), Some(Instant(3 * MS)));
        assert!(gather.is_due(Instant(3 * MS), true, 3, false));
    }

    #[test]
    fn a_slow_disk_makes_no_write_wait_longer_than_the_limits() {
        let mut gather = Gather::default();
        gather.started(Instant(0));
        gather.ended(Instant(1000 * MS), 2);
        let now = Instant(1000 * MS);
        assert!(!gather.is_due(now, true, 1, true));
        assert_eq!(gather.deadline(), Some(Instant(1050 * MS)));
        assert!(!gather.is_due(now, true, 1, false));
        assert_eq!(gather.deadline(), Some(Instant(1020 * MS)));
    }

    #[test]
    fn a_started_transaction_wants_no_timeout() {
        let mut gather = after(2);
        assert!(!gather.is_due(Instant(2 * MS), true, 1, true));
        gather.started(Instant(2 * MS));
        assert_eq!(gather.deadline(), None);
    }
}
