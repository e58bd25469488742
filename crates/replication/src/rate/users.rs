//! What a resync does while users work: one small request at a time, and a pause after each that
//! met requests of theirs.
//!
//! A pause lasts until users have made [`ONE_IN`] requests for each that met the resync, or 100 ms
//! for each, whatever is earlier. So the resync is in the way of a few of a thousand of their
//! requests, which their 99th percentile does not show, or of ten a second. A request that met
//! nobody is followed by the next one at once: gaps between users' requests are filled, and who
//! makes only a few does not hold up the return of his data's redundancy. And there is a least
//! rate, whatever users do.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use vocab::options::KibPerSecond;
use vocab::{Instant, Sectors};

use super::TURN;

/// Users count as at work for so long after each of their requests.
const QUIET: Duration = Duration::from_secs(1);
/// See there.
const ONE_IN: u64 = 200;
/// How often it is looked whether users have made so many.
const LOOK: Duration = Duration::from_millis(10);
/// What a resync gets at least, if an operator has not said it: DRBD's default of `c-min-rate`.
pub const LEAST_RATE: KibPerSecond = KibPerSecond(250);
/// A request of a resync while users work, 64 KiB: who meets it waits for little.
pub const SMALL: Sectors = Sectors(128);
/// What counts as a request of a user, 4 KiB. A larger one is as many, for it takes as long.
const USERS_REQUEST: u64 = 8;

/// Users of a disk as one resync sees them, and whose turn it is. `total` is always what the disk
/// has transferred for users in its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Users {
    /// The total when it was looked at, and when the resync's latest request began.
    seen: Sectors,
    begun: Sectors,
    at_work_until: Instant,
    /// The resync's next request may begin then, or as soon as the total is so much.
    next: Instant,
    next_total: u64,
}

impl Users {
    /// Nobody yet.
    pub fn new(now: Instant, total: Sectors) -> Users {
        Users { seen: total, begun: total, at_work_until: now, next: now, next_total: u64::MAX }
    }

    /// `None` if nobody is at work. Else whether it is the resync's turn, or when to ask again.
    pub fn turn(
        &mut self,
        now: Instant,
        total: Sectors,
        least: KibPerSecond,
    ) -> Option<Result<(), Instant>> {
        if total != self.seen {
            if now >= self.at_work_until {
                // They have just come; what is under way is enough for a while.
                self.begin(now, SMALL, least);
            }
            self.seen = total;
            self.at_work_until = now + QUIET;
        }
        if now >= self.at_work_until {
            return None;
        }
        let is_due = now >= self.next || total.0 >= self.next_total;
        Some(if is_due { Ok(()) } else { Err(self.next.min(now + LOOK)) })
    }

    /// A request begins, in its turn. By the least rate the next one is due even before its end;
    /// returns when to ask.
    pub fn begin(&mut self, now: Instant, len: Sectors, least: KibPerSecond) -> Instant {
        let ns = u128::from(len.0) * 1_000_000_000 / u128::from(least.sectors().max(1));
        self.begun = self.seen;
        self.next = now + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        self.next_total = u64::MAX;
        self.next.min(now + LOOK)
    }

    /// A request has ended.
    pub fn end(&mut self, now: Instant, total: Sectors) {
        let met = total.0.saturating_sub(self.begun.0).div_ceil(USERS_REQUEST);
        let pause = TURN.saturating_mul(u32::try_from(met).unwrap_or(u32::MAX));
        self.next = self.next.min(now + pause);
        self.next_total = total.0.saturating_add(met.saturating_mul(ONE_IN * USERS_REQUEST));
    }
}
