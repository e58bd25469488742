//! How much a resync target asks for while no operator has set an option of DRBD's controller.
//!
//! The data asked for and not on the target's disk yet are a *window*. Each answer lets the next
//! request out, so nothing waits for a turn. Whatever is the slowest on the way, source's disk,
//! network or target's disk, is busy as soon as requests queue up before it, and one that waits in a
//! queue takes longer than the fastest did. So a round of answers that came nearly as fast as that
//! lets the window grow, and one that took long lets it shrink: it settles where the slowest part
//! always has something to do, and what was asked for is done within some milliseconds.
//!
//! While users work it is [`Users`] who say when the next request goes out, a small one.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use vocab::options::KibPerSecond;
use vocab::{Instant, Sectors};

#[cfg(test)]
mod tests;

use super::TURN;
use super::users::{LEAST_RATE, SMALL, Users};

/// The window in the beginning, and after users have worked: 256 KiB.
const START: u64 = 512;
/// It is never smaller: 64 KiB.
const LEAST: u64 = SMALL.0;
/// So many requests fill a window, unless they become too small or too large: 64 KiB and 1 MiB. What
/// a request takes by itself is then far less than what the window takes.
const REQUESTS: u64 = 8;
const REQUEST: std::ops::RangeInclusive<u64> = 128..=2048;
/// Sectors of a bit on the wire, the smallest request, and of a page of `max-buffers`.
const BLOCK: u64 = 8;

/// Answers that take so much longer than the fastest did are in no queue worth the name, and
const SHORT: Duration = Duration::from_millis(10);
/// from here on in one that is too long for whoever comes next.
const LONG: Duration = Duration::from_millis(20);

/// The window of one resync target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Window {
    size: u64,
    /// No queue was seen yet: it may double.
    doubles: bool,
    /// What the way takes without a queue: the time of the fastest answer.
    fastest: Duration,
    round: Round,
    users: Users,
}

/// A round of answers: to what was asked for since the last one, half a window of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Round {
    /// Requests of earlier rounds have lower numbers.
    from: u64,
    answered: u64,
    fastest: Duration,
    /// The window was what held requests back, not a lack of blocks to ask for.
    filled: bool,
}

impl Round {
    fn new(from: u64) -> Round {
        Round { from, answered: 0, fastest: Duration::MAX, filled: false }
    }
}

/// What decides how much may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Asked for, and not on disk.
    pub in_flight: Sectors,
    /// Option `max-buffers`, in pages of 4 KiB: a limit on that, for all volumes together.
    pub max_buffers_pages: u64,
    /// Volumes that are resynced from the same peer.
    pub sharers: u64,
    /// What is to be asked for as a whole if there is room; 0 if there is no such thing.
    pub unit: Sectors,
    /// What the target's disk has transferred for users in its life.
    pub users_total: Sectors,
    /// Option `c-min-rate` if it is set; 0 is to take no notice of users.
    pub c_min_rate: Option<KibPerSecond>,
}

/// What may be asked for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// In all; 0 is nothing.
    pub all: Sectors,
    /// In one request, at most.
    pub each: Sectors,
    /// When to ask again if no answer comes earlier.
    pub again: Instant,
}

/// A request that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Its number, and the one of the next that will be made.
    pub id: u64,
    /// See there.
    pub next: u64,
    /// What it brought.
    pub len: Sectors,
    /// Since it was made.
    pub took: Duration,
    /// As in [`Room`], this one included.
    pub in_flight: Sectors,
    /// As in [`Room`].
    pub users_total: Sectors,
}

impl Window {
    /// For the start of a resync whose first request will have the number `next`; `users_total` as
    /// in [`Room`].
    pub fn new(now: Instant, next: u64, users_total: Sectors) -> Window {
        Window {
            size: START,
            doubles: true,
            fastest: Duration::MAX,
            round: Round::new(next),
            users: Users::new(now, users_total),
        }
    }

    /// A request is done.
    pub fn done(&mut self, now: Instant, done: &Done) {
        self.users.end(now, done.users_total);
        if done.id < self.round.from {
            return;
        }
        self.round.answered += done.len.0;
        self.round.fastest = self.round.fastest.min(done.took);
        self.round.filled |= done.in_flight.0 >= self.size / 2;
        if self.round.answered >= self.size / 2 {
            self.end_round(done.next);
        }
    }

    fn end_round(&mut self, next: u64) {
        let Round { fastest, filled, .. } = std::mem::replace(&mut self.round, Round::new(next));
        // With the smallest window none of the queue is ours: so long is the way by now.
        if fastest < self.fastest || self.size == LEAST {
            self.fastest = fastest;
        }
        let queued = fastest - self.fastest;
        self.doubles &= queued <= SHORT;
        if queued > LONG {
            self.size -= self.size / 4;
        } else if queued <= SHORT && filled {
            self.size += if self.doubles { self.size } else { self.size / 8 };
        }
        self.size = self.size.max(LEAST);
    }

    /// The source has refused a request: it has other things to do.
    pub fn refused(&mut self, next: u64) {
        self.restart(LEAST, next);
    }

    fn restart(&mut self, size: u64, next: u64) {
        (self.size, self.doubles, self.round) = (size, true, Round::new(next));
    }

    /// How much to ask for now; `next` is the number of the next request.
    pub fn grant(&mut self, now: Instant, next: u64, room: &Room) -> Grant {
        let limit = (room.max_buffers_pages * BLOCK / room.sharers.max(1)).max(BLOCK);
        let least = room.c_min_rate.unwrap_or(LEAST_RATE);
        let turn = match least {
            KibPerSecond(0) => None,
            _ => self.users.turn(now, room.users_total, least),
        };
        let Some(turn) = turn else { return self.fill(now, room, limit) };
        self.restart(START, next);
        let each = Sectors(LEAST.max(room.unit.0).min(limit));
        let nothing = Grant { all: Sectors(0), each, again: now + TURN };
        match turn {
            Err(again) => Grant { again, ..nothing },
            Ok(()) if room.in_flight.0 + each.0 > limit => nothing,
            Ok(()) => {
                let again = self.users.begin(now, each, least);
                Grant { all: each, each, again }
            }
        }
    }

    fn fill(&mut self, now: Instant, room: &Room, limit: u64) -> Grant {
        // What can not be used would have to shrink before it has an effect.
        self.size = self.size.min(limit.max(LEAST));
        let open = self.size.max(room.unit.0).min(limit);
        let free = open.saturating_sub(room.in_flight.0);
        let each = (open / REQUESTS).clamp(*REQUEST.start(), *REQUEST.end()).max(room.unit.0);
        let each = 1 << each.min(open).ilog2();
        let all = if free >= each { free - free % BLOCK } else { 0 };
        Grant { all: Sectors(all), each: Sectors(each), again: now + TURN }
    }
}
