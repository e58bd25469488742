//! Pace of a resync. The target decides how much it asks for, and the source when it answers. Both
//! act locally and leave no trace on the wire.
//!
//! Where an operator has set none of DRBD's options, [`Window`] and [`Users`] find the pace. Where he
//! has, it is DRBD's: the target's [`Controller`] and the source's [`Throttle`], both here (wire
//! §7.8, semantics §9.4).
//!
//! The controller keeps a plan: for each of the next *n* turns of 100 ms the correction, in
//! sectors, that it has decided on already. Each turn it compares the data in flight with what it
//! aims at, spreads the difference over the whole plan, and requests as much as arrived since the
//! last turn plus the correction due now. All arithmetic is in integers.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use vocab::options::{KibPerSecond, PeerDeviceOptions};
use vocab::{Instant, Sectors};

#[cfg(test)]
mod tests;
mod users;
mod window;

pub use users::{LEAST_RATE, Users};
pub use window::{Done, Grant, Room, Window};

/// One turn of the controller.
pub const TURN: Duration = Duration::from_millis(100);
const TURNS_PER_SECOND: u64 = 10;

const TURN_NS: u64 = 100_000_000;
/// Sectors of the smallest bitmap block and of a page of `max-buffers`: 4 KiB.
const BLOCK_SECTORS: u64 = 8;
/// Bounds every intermediate value far above any real one (2 PiB in sectors), so that sums of
/// them can not overflow whatever the peer or the clock do.
const SECTORS_MAX: i128 = 1 << 42;

/// DRBD's options of the target's controller: what is set, and DRBD's defaults for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrbdPace {
    /// `resync-rate`
    pub resync_rate: KibPerSecond,
    /// `c-plan-ahead`
    pub c_plan_ahead: Duration,
    /// `c-delay-target`
    pub c_delay_target: Duration,
    /// `c-fill-target`
    pub c_fill_target: Sectors,
    /// `c-max-rate`
    pub c_max_rate: KibPerSecond,
}

impl DrbdPace {
    /// Of these options, whether any is set or not.
    pub fn of(options: &PeerDeviceOptions) -> DrbdPace {
        DrbdPace {
            resync_rate: options.resync_rate.unwrap_or(KibPerSecond(250)),
            c_plan_ahead: options.c_plan_ahead.unwrap_or(Duration::from_secs(2)),
            c_delay_target: options.c_delay_target.unwrap_or(Duration::from_secs(1)),
            c_fill_target: options.c_fill_target.unwrap_or(Sectors(100)),
            c_max_rate: options.c_max_rate.unwrap_or(KibPerSecond(102_400)),
        }
    }

    /// `None` if none of them is set.
    pub fn if_set(options: &PeerDeviceOptions) -> Option<DrbdPace> {
        let set = options.resync_rate.is_some()
            || options.c_plan_ahead.is_some()
            || options.c_delay_target.is_some()
            || options.c_fill_target.is_some()
            || options.c_max_rate.is_some();
        set.then(|| DrbdPace::of(options))
    }
}

/// What happened since the controller's last turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Time since the last turn; clamped to 1 ns..=1 s.
    pub elapsed: Duration,
    /// Replies that arrived since the last turn.
    pub replied: Sectors,
    /// Requested and not replied to at this moment, `replied` no longer included.
    pub in_flight: Sectors,
    /// Option `max-buffers`, in pages of 4 KiB: a limit on the data in flight.
    pub max_buffers_pages: u64,
    /// Bitmap block of the pair; requests are rounded up to it. At least 8 sectors.
    pub bitmap_block: Sectors,
}

/// The controller of one resync target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Controller {
    /// Corrections in sectors, the next one in front. Its length is c-plan-ahead in turns.
    plan: VecDeque<i64>,
    /// Sum of the plan.
    planned_sectors: i64,
}

impl Controller {
    /// A controller with an empty plan, for the start of a resync.
    pub fn new() -> Controller {
        Controller::default()
    }

    /// How much to request in this turn. Call it every [`Controller::next_turn`], except while
    /// the data socket's send buffer is more than half full: then skip the turn.
    pub fn turn(&mut self, options: &DrbdPace, turn: &Turn) -> Sectors {
        let steps = (options.c_plan_ahead.as_millis() / TURN.as_millis()) as usize;
        let wanted = if steps == 0 {
            self.replan(0);
            options.resync_rate.sectors() / TURNS_PER_SECOND
        } else {
            self.dynamic(options, turn, steps)
        };
        let room_blocks =
            turn.max_buffers_pages.saturating_sub(turn.in_flight.0.div_ceil(BLOCK_SECTORS));
        let blocks = (wanted / BLOCK_SECTORS).min(room_blocks);
        let granularity = turn.bitmap_block.0.max(BLOCK_SECTORS);
        Sectors((blocks * BLOCK_SECTORS).next_multiple_of(granularity))
    }

    fn dynamic(&mut self, options: &DrbdPace, turn: &Turn, steps: usize) -> u64 {
        self.replan(steps);
        let steps = steps as i128;
        let elapsed_ns = turn.elapsed.as_nanos().clamp(1, 1_000_000_000) as i128;
        let in_flight = i128::from(turn.in_flight.0).min(SECTORS_MAX);
        let mut replied = i128::from(turn.replied.0).min(SECTORS_MAX);
        if elapsed_ns < i128::from(TURN_NS) {
            replied = (replied * i128::from(TURN_NS) / elapsed_ns).min(SECTORS_MAX);
        }
        let want = if in_flight + replied == 0 {
            // Nothing has moved yet: fill the whole plan at the starting rate.
            i128::from(options.resync_rate.sectors()) * steps / i128::from(TURNS_PER_SECOND)
        } else if options.c_fill_target.0 > 0 {
            i128::from(options.c_fill_target.0)
        } else {
            let delay_target_turns =
                (options.c_delay_target.as_millis() / TURN.as_millis()) as i128;
            replied * delay_target_turns * 1_000_000_000 / (10 * elapsed_ns)
        }
        .min(SECTORS_MAX);

        let correction = want - in_flight - i128::from(self.planned_sectors);
        // The quotient is rounded towards zero, so the remainder is corrected in later turns.
        let per_step = (correction / steps) as i64;
        self.plan.iter_mut().for_each(|slot| *slot += per_step);
        self.planned_sectors += per_step * steps as i64;
        let due = self.plan.pop_front().unwrap_or(0);
        self.plan.push_back(0);
        self.planned_sectors -= due;

        let request = (replied + i128::from(due)).max(0) as u64;
        match options.c_max_rate {
            KibPerSecond(0) => request,
            cap => request.min(cap.sectors() / TURNS_PER_SECOND),
        }
    }

    /// Starts over with an empty plan when c-plan-ahead has changed.
    fn replan(&mut self, steps: usize) {
        if self.plan.len() != steps {
            self.plan.clear();
            self.plan.resize(steps, 0);
            self.planned_sectors = 0;
        }
        debug_assert_eq!(self.plan.iter().sum::<i64>(), self.planned_sectors);
    }

    /// When to take the next turn after `requested` of `planned` was requested: a turn that ended
    /// early for lack of dirty blocks or of room is followed sooner. If nothing at all could be
    /// requested a whole turn passes, so that a blocked resync does not spin.
    pub fn next_turn(requested: Sectors, planned: Sectors) -> Duration {
        if requested.0 == 0 || requested >= planned {
            return TURN;
        }
        let ns = u128::from(TURN_NS) * u128::from(requested.0) / u128::from(planned.0);
        Duration::from_nanos(ns as u64).max(Duration::from_millis(1))
    }
}

const MARKS: usize = 8;
const MARK_INTERVAL: Duration = Duration::from_secs(3);
/// Foreign disk traffic below this since it was last noticed does not count as activity.
const FOREIGN_SECTORS_MIN: u64 = 64;

/// Progress of a resync: how much was out of sync at 8 moments, 3 seconds apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Marks {
    at: [Instant; MARKS],
    left: [Sectors; MARKS],
    last: usize,
}

impl Marks {
    /// All marks at the start of a resync.
    pub fn new(now: Instant, left: Sectors) -> Marks {
        Marks { at: [now; MARKS], left: [left; MARKS], last: 0 }
    }

    /// Sets the next mark if its time has come. Without progress the old one stays, so that the
    /// speed of a stalled resync fades instead of jumping to zero.
    pub fn advance(&mut self, now: Instant, left: Sectors) {
        if now.since(self.at[self.last]) >= MARK_INTERVAL && self.left[self.last] != left {
            self.last = (self.last + 1) % MARKS;
            self.at[self.last] = now;
            self.left[self.last] = left;
        }
    }

    /// Time and amount since the last mark but one: a window of 3 to 6 seconds when running.
    /// The amount is 0 if more is out of sync now than then.
    pub fn recent(&self, now: Instant, left: Sectors) -> (Duration, Sectors) {
        let mark = (self.last + MARKS - 1) % MARKS;
        (now.since(self.at[mark]), Sectors(self.left[mark].0.saturating_sub(left.0)))
    }

    /// Speed over that window.
    pub fn speed(&self, now: Instant, left: Sectors) -> KibPerSecond {
        let (time, amount) = self.recent(now, left);
        let kib_per_s = u128::from(amount.0) * 500 / time.as_millis().max(1);
        KibPerSecond(u32::try_from(kib_per_s).unwrap_or(u32::MAX))
    }
}

/// The source's decision to hold a resync request back in favour of application I/O.
///
/// While there is any, requests take from an allowance that is renewed at `c-min-rate`. What is
/// handed out counts at once: many requests arrive together, long before the first shows as
/// progress. If `c-min-rate` is not set, [`Users`] say whose turn it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Throttle {
    /// Progress, kept by this node as source.
    pub marks: Marks,
    foreign_seen: Sectors,
    /// The disk counts as busy with application I/O until then.
    busy_until: Instant,
    /// Sectors that may be handed out; below zero after a request larger than what was left.
    allowance: i64,
    renewed: Instant,
    users: Users,
}

/// What else the disk has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Application requests hold activity log extents.
    pub application_active: bool,
    /// Sectors the backing disk has transferred in its life, resync traffic left out.
    pub foreign_total: Sectors,
}

impl Throttle {
    /// For the start of a resync.
    pub fn new(now: Instant, left: Sectors, foreign_total: Sectors) -> Throttle {
        Throttle {
            marks: Marks::new(now, left),
            foreign_seen: foreign_total,
            busy_until: now,
            allowance: 0,
            renewed: now,
            users: Users::new(now, foreign_total),
        }
    }

    /// A request was answered, and is on the target's disk.
    pub fn answered(&mut self, now: Instant, foreign_total: Sectors) {
        self.users.end(now, foreign_total);
    }

    /// `None` if a resync request of that length may be answered now; it is counted then. If the
    /// disk is busy with something else, and the resync has had what it gets meanwhile, the moment
    /// to ask again.
    ///
    /// While the amount out of sync is not shrinking it is always `None`: the writes that dirty it
    /// may themselves be waiting for the resync to get on.
    pub fn wait(
        &mut self,
        now: Instant,
        left: Sectors,
        load: Load,
        c_min_rate: Option<KibPerSecond>,
        len: Sectors,
    ) -> Option<Instant> {
        self.marks.advance(now, left);
        if let Some(c_min_rate) = c_min_rate {
            return (!self.admits(now, left, load, c_min_rate, len)).then(|| now + TURN);
        }
        let turn = self.users.turn(now, load.foreign_total, LEAST_RATE)?;
        if self.marks.recent(now, left).1.0 == 0 {
            return None;
        }
        if turn.is_ok() {
            self.users.begin(now, len, LEAST_RATE);
        }
        turn.err()
    }

    fn admits(
        &mut self,
        now: Instant,
        left: Sectors,
        load: Load,
        c_min_rate: KibPerSecond,
        len: Sectors,
    ) -> bool {
        let foreign = load.foreign_total.0.saturating_sub(self.foreign_seen.0);
        if load.application_active || foreign > FOREIGN_SECTORS_MIN {
            self.foreign_seen = load.foreign_total;
            self.busy_until = now + TURN;
        }
        self.renew(now, c_min_rate);
        let (_, progress) = self.marks.recent(now, left);
        if c_min_rate == KibPerSecond(0) || now >= self.busy_until || progress.0 == 0 {
            return true;
        }
        if self.allowance <= 0 {
            return false;
        }
        self.allowance -= len.0 as i64;
        true
    }

    /// Adds what `c-min-rate` gives in the time that has passed, up to one turn's worth.
    fn renew(&mut self, now: Instant, c_min_rate: KibPerSecond) {
        let rate = c_min_rate.sectors();
        let ns = now.since(self.renewed).as_nanos().min(u128::from(u64::MAX));
        let sectors = u128::from(rate) * ns / 1_000_000_000;
        if sectors > 0 {
            let most = (rate / TURNS_PER_SECOND).max(1) as i64;
            let sum = i128::from(self.allowance) + sectors.min(1 << 60) as i128;
            self.allowance = sum.min(i128::from(most)) as i64;
            self.renewed = now;
        }
    }
}
