//! The window against a model of network and disk: requests wait for each other in one queue, as
//! long as each takes by itself, and every answer comes some time later than that.

use std::collections::VecDeque;

use super::*;

/// A resync of endless data in a time of its own.
struct Model {
    now: Instant,
    window: Window,
    /// Sectors per second of the slowest part, and what a request takes besides.
    rate: u64,
    latency: Duration,
    /// When the slowest part is done with what it has.
    idle_at: Instant,
    /// Number, length, when made and when done; in that order.
    requests: VecDeque<(u64, u64, Instant, Instant)>,
    next: u64,
    in_flight: u64,
    done: u64,
    room: Room,
    /// Users make a request of 4 KiB after each pause; it takes the slowest part so long.
    users: Option<(Duration, Duration)>,
    users_next: Instant,
    /// How many they made, and how many found a request of the resync under way.
    made: u64,
    met: u64,
    /// The most that ever was in flight since it was last looked at.
    most: u64,
}

const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 2048;

fn model(mib_per_s: u64, latency: Duration) -> Model {
    let now = Instant(1 << 40);
    Model {
        now,
        window: Window::new(now, 0, Sectors(0)),
        rate: mib_per_s * MIB,
        latency,
        idle_at: now,
        requests: VecDeque::new(),
        next: 0,
        in_flight: 0,
        done: 0,
        room: Room {
            in_flight: Sectors(0),
            max_buffers_pages: 2048,
            sharers: 1,
            unit: Sectors(0),
            users_total: Sectors(0),
            c_min_rate: None,
        },
        users: None,
        users_next: now,
        made: 0,
        met: 0,
        most: 0,
    }
}

impl Model {
    fn run(&mut self, time: Duration) -> &mut Model {
        let end = self.now + time;
        while self.now < end {
            let again = self.ask();
            let answer = self.requests.front().map_or(end, |request| request.3);
            let users = if self.users.is_some() { self.users_next } else { end };
            self.now =
                again.min(answer).min(users).min(end).max(self.now + Duration::from_nanos(1));
            while self.requests.front().is_some_and(|request| request.3 <= self.now) {
                let (id, len, since, _) = self.requests.pop_front().unwrap();
                let took = self.now.since(since);
                let done = Done {
                    id,
                    next: self.next,
                    len: Sectors(len),
                    took,
                    in_flight: Sectors(self.in_flight),
                    users_total: self.room.users_total,
                };
                self.in_flight -= len;
                self.done += len;
                self.window.done(self.now, &done);
            }
            if let Some((pause, takes)) = self.users.filter(|_| self.users_next <= self.now) {
                self.made += 1;
                self.met += u64::from(!self.requests.is_empty());
                self.room.users_total.0 += 8;
                self.idle_at = self.idle_at.max(self.now) + takes;
                self.users_next = self.now + pause;
            }
        }
        self
    }

    /// Asks for what is granted, and says when to come back.
    fn ask(&mut self) -> Instant {
        self.room.in_flight = Sectors(self.in_flight);
        let grant = self.window.grant(self.now, self.next, &self.room);
        let mut left = grant.all.0;
        while left > 0 {
            let len = grant.each.0.min(1 << left.ilog2());
            let takes = Duration::from_nanos(len * 1_000_000_000 / self.rate);
            self.idle_at = self.idle_at.max(self.now) + takes;
            let done = self.idle_at + self.latency;
            self.requests.push_back((self.next, len, self.now, done));
            self.next += 1;
            self.in_flight += len;
            left -= len;
        }
        let limit = self.room.max_buffers_pages * 8 / self.room.sharers;
        assert!(self.in_flight <= limit, "{} of {limit} sectors", self.in_flight);
        self.most = self.most.max(self.in_flight);
        grant.again
    }

    /// MiB/s in that time.
    fn speed(&mut self, time: Duration) -> u64 {
        let before = self.done;
        self.run(time);
        (self.done - before) * 1000 / MIB / time.as_millis() as u64
    }

    /// Users come, with a request after each pause.
    fn work(&mut self, pause: Duration, takes: Duration) -> &mut Model {
        (self.users, self.users_next) = (Some((pause, takes)), self.now);
        self
    }

    /// How many of a thousand of their requests meet one of the resync, in that time.
    fn per_mille_met(&mut self, time: Duration) -> u64 {
        let (made, met) = (self.made, self.met);
        self.run(time);
        (self.met - met) * 1000 / (self.made - made)
    }
}

#[test]
fn it_fills_what_there_is_and_keeps_the_queue_short() {
    for (mib_per_s, latency) in
        [(2000, MS / 10), (500, MS / 2), (110, MS), (110, 20 * MS), (20, 8 * MS), (2, 20 * MS)]
    {
        let mut model = model(mib_per_s, latency);
        model.run(20 * TURN);
        model.most = 0;
        let speed = model.speed(50 * TURN);
        assert!(speed >= mib_per_s * 95 / 100, "{speed} of {mib_per_s} MiB/s, {latency:?}");
        let queue = Duration::from_nanos(model.most * 1_000_000_000 / model.rate);
        // The smallest window takes a slow line longer than that.
        let least = Duration::from_nanos(LEAST * 1_000_000_000 / model.rate);
        assert!(queue <= latency + 2 * LONG + 2 * least, "{queue:?} at {mib_per_s} MiB/s");
    }
}

#[test]
fn a_long_way_is_filled_as_far_as_max_buffers_goes() {
    // 100 ms and 200 MiB/s are 20 MiB on their way; there may be 8.
    let speed = model(200, 100 * MS).run(3 * SECOND).speed(50 * TURN);
    assert!((75..=80).contains(&speed), "{speed} MiB/s");
    let mut far = model(200, 100 * MS);
    far.room.max_buffers_pages = 8192;
    let speed = far.run(5 * SECOND).speed(50 * TURN);
    assert!(speed >= 190, "{speed} MiB/s");
}

#[test]
fn it_does_not_oscillate() {
    let mut model = model(110, MS);
    model.run(50 * TURN);
    for turn in 0..300 {
        let speed = model.speed(TURN);
        assert!(speed >= 100, "{speed} MiB/s in turn {turn}");
    }
}

#[test]
fn max_buffers_is_shared_and_never_exceeded() {
    // The model looks at it with each request.
    for (pages, sharers) in [(32, 1), (32, 32), (2048, 3), (131_072, 1)] {
        let mut model = model(1000, MS);
        (model.room.max_buffers_pages, model.room.sharers) = (pages, sharers);
        model.run(10 * TURN).work(MS, MS / 10);
        assert!(model.run(10 * TURN).done > 0, "{pages} pages for {sharers}");
    }
}

#[test]
fn what_is_discarded_as_a_whole_is_asked_for_as_a_whole_if_there_is_room() {
    let now = Instant(1 << 40);
    for (unit, pages, each) in [(2048, 2048, 2048), (128, 2048, 128), (2048, 32, 256), (8, 32, 128)]
    {
        let unit = Sectors(unit);
        let mut room = Room { unit, max_buffers_pages: pages, ..model(1, MS).room };
        let mut window = Window::new(now, 0, Sectors(0));
        assert_eq!(window.grant(now, 0, &room).each, Sectors(each), "{unit:?}");
        // Users come, and some time later it is the resync's turn.
        room.users_total.0 += 8;
        assert_eq!(window.grant(now, 0, &room).all, Sectors(0));
        let grant = window.grant(now + 5 * TURN, 0, &room);
        assert_eq!((grant.all, grant.each), (grant.each, Sectors(each.max(LEAST))), "{unit:?}");
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn it_gives_way_within_a_turn_and_takes_all_of_it_again() {
    for (mib_per_s, latency) in [(2000, MS / 10), (500, MS / 10), (110, MS)] {
        let mut model = model(mib_per_s, latency);
        model.run(20 * TURN);
        // A third of what the slowest part could do.
        model.work(MS / 10, MS / 30).run(TURN);
        model.most = 0;
        let per_mille = model.per_mille_met(10 * SECOND);
        assert!(per_mille <= 12, "{per_mille} of 1000 at {mib_per_s} MiB/s");
        assert!(model.most <= 2 * SMALL.0, "{} sectors at {mib_per_s} MiB/s", model.most);
        model.users = None;
        model.run(12 * TURN);
        let speed = model.speed(SECOND);
        assert!(speed >= mib_per_s * 9 / 10, "{speed} of {mib_per_s} MiB/s");
    }
}

#[test]
fn a_few_requests_of_users_leave_it_most_of_the_time() {
    // Twenty a second, one of which in 100 ms may meet it.
    let mut model = model(500, MS / 10);
    model.run(10 * TURN).work(50 * MS, MS / 10).run(TURN);
    let before = (model.met, model.most);
    model.most = 0;
    let speed = model.speed(10 * SECOND);
    assert!(speed >= 50, "{speed} MiB/s");
    assert!(model.met - before.0 <= 100, "{} met", model.met - before.0);
    assert_eq!(model.most, SMALL.0);
}

#[test]
fn the_least_rate_is_kept_under_any_load() {
    for (pause, takes) in [(MS, MS), (100 * MS, 99 * MS), (MS, MS * 97 / 100)] {
        let mut model = model(1000, MS);
        // Their queue does not grow without end: users wait for answers, too.
        model.run(10 * TURN).work(pause, takes).run(10 * TURN);
        let before = model.done;
        model.run(10 * SECOND);
        let kib_per_s = (model.done - before) / 2 / 10;
        assert!(kib_per_s >= 225, "{kib_per_s} KiB/s");
    }
}

#[test]
fn an_operators_least_rate_is_kept_and_zero_takes_no_notice() {
    let kib_per_s = |c_min_rate: Option<u32>| {
        let mut model = model(500, MS);
        model.room.c_min_rate = c_min_rate.map(KibPerSecond);
        model.work(MS / 10, MS / 30).run(20 * TURN);
        let before = model.done;
        model.run(10 * SECOND);
        (model.done - before) / 2 / 10
    };
    assert!((225..900).contains(&kib_per_s(None)));
    assert!((950..=1050).contains(&kib_per_s(Some(1000))));
    assert!((7600..=8400).contains(&kib_per_s(Some(8000))));
    assert!(kib_per_s(Some(0)) > 300 << 10);
}

#[test]
fn a_way_that_has_become_longer_is_found_out() {
    let mut model = model(110, MS);
    model.run(20 * TURN);
    model.latency = 40 * MS;
    // Every answer is late by what was the fastest, until the window is as small as it gets.
    model.run(5 * SECOND);
    let speed = model.speed(20 * TURN);
    assert!(speed >= 100, "{speed} MiB/s");
}

#[test]
fn a_refusal_closes_the_window_and_answers_open_it() {
    let mut model = model(1000, MS / 10);
    model.run(10 * TURN);
    let next = model.next;
    model.window.refused(next);
    assert_eq!(model.window.size, LEAST);
    let speed = model.run(TURN).speed(TURN);
    assert!(speed >= 900, "{speed} MiB/s");
}
