//! What one request takes that is alone, term by term.

use serde::Serialize;

use super::costs::{Case, Cost};
use super::model::{Hardware, Load};
use super::wire;

/// A part of the way, in its order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// Who, and does what.
    pub what: String,
    pub us: f64,
    pub basis: Basis,
}

/// What a term rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    Measured,
    Derived,
    Assumed,
}

/// All terms of a request: they add up to its latency. Nobody else uses anything, so every thread
/// sleeps before each of its turns, except after a disk that answers at once.
pub fn terms(hardware: &Hardware, load: &Load, case: &Case) -> Vec<Term> {
    let disk_us = hardware.disk.service(load.write).latency_us;
    let front_us = case.front_message_us(load);
    let peer_us = case.peer.request_us / 2.0;
    let (there, back) = match load.write {
        true => (wire::FULL, wire::SMALL),
        false => (wire::SMALL, wire::FULL),
    };
    let mut path = Path { hardware, case, terms: Vec::new() };
    path.turn("front shard", case.front, front_us, true);
    if load.write || load.diskless {
        // A write goes to one peer after the other: the last one decides.
        let copies = if load.write { load.peers() } else { 1 };
        path.network("there", there, copies);
        path.turn("peer", case.peer, peer_us, true);
        path.disk(disk_us);
        path.turn("peer", case.peer, peer_us, disk_us > 0.0);
        path.network("back", back, 1);
    } else {
        path.disk(disk_us);
    }
    path.turn("front shard", case.front, front_us, disk_us > 0.0 || load.diskless || load.write);
    path.turn("client", case.client, case.client.request_us, true);
    path.terms
}

struct Path<'a> {
    hardware: &'a Hardware,
    case: &'a Case,
    terms: Vec<Term>,
}

impl Path<'_> {
    fn add(&mut self, what: String, us: f64, basis: Basis) {
        self.terms.push(Term { what, us, basis });
    }

    fn turn(&mut self, who: &str, cost: Cost, works_us: f64, sleeps: bool) {
        if sleeps {
            self.add(format!("{who}: its core notices"), self.case.idle_us, Basis::Derived);
            self.add(format!("{who}: wakes up"), cost.wake_us, Basis::Measured);
        }
        self.add(format!("{who}: works"), works_us, Basis::Measured);
    }

    fn network(&mut self, way: &str, bytes: f64, copies: usize) {
        let Some(network) = self.hardware.network else { return };
        // Copies beyond the number of ports wait for each other.
        let on_one_port = copies.div_ceil(network.ports) as f64;
        let us = on_one_port * network.framed(bytes) * 8.0 / network.gbit / 1e3;
        self.add(format!("line, {way}"), us, Basis::Derived);
        self.add(format!("cards and switch, {way}"), network.delay_us, Basis::Assumed);
    }

    fn disk(&mut self, us: f64) {
        if us > 0.0 {
            self.add("disk".to_owned(), us, Basis::Assumed);
        }
    }
}
