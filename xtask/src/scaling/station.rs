//! Parts of the simulation: a queue of events, and a station where requests wait for one of
//! several servers.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::torture::random::Random;

/// Nanoseconds since the beginning.
pub type Time = u64;

/// Microseconds as time; what is not finite never ends.
pub fn nanoseconds(us: f64) -> Time {
    (us * 1e3).round() as Time
}

/// Events by time; those of one time in the order in which they came.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Entry<E>>,
    serial: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    serial: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap has its greatest on top: the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events { heap: BinaryHeap::new(), serial: 0 }
    }
}

impl<E> Events<E> {
    /// Adds one.
    pub fn push(&mut self, at: Time, event: E) {
        self.serial += 1;
        self.heap.push(Entry { at, serial: self.serial, event });
    }

    /// Takes the next one.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

/// First come, first served, by the first of several servers that is free. Who comes is asked for
/// in the order of time, so the end of each is known at once.
#[derive(Clone, Debug)]
pub struct Station {
    /// When each server is free.
    free: Vec<Time>,
    /// What all of them have worked, in nanoseconds.
    pub busy: Time,
}

impl Station {
    /// A station with so many servers, at least one.
    pub fn new(servers: usize) -> Station {
        Station { free: vec![0; servers.max(1)], busy: 0 }
    }

    /// When one that comes now and takes so long is done.
    pub fn serve(&mut self, now: Time, takes: Time) -> Time {
        let first = self.free.iter_mut().min().expect("there is a server");
        *first = now.max(*first) + takes;
        self.busy += takes;
        *first
    }

    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.free.len()
    }
}

/// Evenly between 0, excluded, and 1.
pub fn unit(random: &mut Random) -> f64 {
    ((random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exponentially distributed around 1.
    fn exponential(random: &mut Random) -> f64 {
        -unit(random).ln()
    }

    /// Requests come at random at `rate` of what one server can do; returns mean time in the
    /// station, in service times, and the share of time the servers work.
    fn markovian(servers: usize, rate: f64) -> (f64, f64) {
        const SERVICE: f64 = 10_000.0;
        let (mut random, mut station) = (Random(7), Station::new(servers));
        let (mut now, mut stayed, requests) = (0.0, 0.0, 400_000);
        let mut last = 0;
        for _ in 0..requests {
            now += exponential(&mut random) * SERVICE / rate;
            let at = now as Time;
            last = station.serve(at, (exponential(&mut random) * SERVICE) as Time);
            stayed += (last - at) as f64;
        }
        let all = last as f64 * servers as f64;
        (stayed / f64::from(requests) / SERVICE, station.busy as f64 / all)
    }

    #[test]
    fn one_server_is_as_slow_as_the_formula_says() {
        for rate in [0.3, 0.5, 0.8] {
            let (stayed, busy) = markovian(1, rate);
            let formula = 1.0 / (1.0 - rate);
            assert!((stayed / formula - 1.0).abs() < 0.04, "{rate}: {stayed} against {formula}");
            assert!((busy / rate - 1.0).abs() < 0.02, "{rate}: {busy}");
        }
    }

    #[test]
    fn two_servers_are_as_slow_as_the_formula_says() {
        // M/M/2: 1 / (1 - r^2) service times, r the share of time each works.
        let (stayed, busy) = markovian(2, 1.4);
        let formula = 1.0 / (1.0 - 0.7f64.powi(2));
        assert!((stayed / formula - 1.0).abs() < 0.04, "{stayed} against {formula}");
        assert!((busy / 0.7 - 1.0).abs() < 0.02, "{busy}");
    }

    #[test]
    fn events_come_by_time_and_then_in_their_order() {
        let mut events = Events::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            events.push(at, event);
        }
        let order: String = std::iter::from_fn(|| events.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
