//! A peer that speaks the protocol and lies: what it sends is changed on the way.
//!
//! The liar is a node as any other, with the core under test, so that handshakes get far and all
//! that is said makes sense until it does not. What it sends is delivered with other contents,
//! twice, later, again or not at all; it always passes the codec, as a driver sees to that. What
//! it claims of its data can be as false as all else, so nothing is asked of the data of a run
//! with a liar. What must hold: nobody panics, nobody asks its driver for what can not be, and
//! once the liar is disconnected every buffer and every request has come back.

use std::collections::VecDeque;

use codec::wire::Packet;
use replication::io::AdminCommand;

use crate::content::{Data, ZERO};
use crate::operator::Phase;
use crate::plan::{MILLISECOND, SECOND, node_id};
use crate::rng::Rng;
use crate::world::World;

/// Packets of the liar that it may say again.
const REMEMBERED: usize = 64;
/// How long it lies.
const LYING: u64 = 40 * SECOND;
/// How long everybody has to get over it.
const RECOVERY: u64 = 120 * SECOND;
/// Rules about what a node asks of its driver; those about data do not hold with a liar.
const RULES: [&str; 5] = ["driver", "buffers", "timer", "panic", "liar"];

/// One packet with its data.
type Said = (Packet, Option<Data>);

/// The liar.
#[derive(Debug)]
pub(crate) struct Liar {
    node: usize,
    rng: Rng,
    /// It lies now.
    lying: bool,
    /// One lie for so many packets.
    one_in: u64,
    remembered: VecDeque<Said>,
}

impl Liar {
    pub(crate) fn new(node: usize, mut rng: Rng) -> Liar {
        let one_in = *rng.pick(&[3, 20, 100]);
        Liar { node, rng, lying: false, one_in, remembered: VecDeque::new() }
    }

    /// What counts as a broken rule beside it.
    pub(crate) fn may_break(rule: &str) -> bool {
        !RULES.contains(&rule)
    }
}

impl World {
    /// What arrives in the place of a packet.
    pub(crate) fn with_lies(&mut self, from: usize, to: usize, said: Said) -> Vec<Said> {
        let Some(liar) = self.liar.as_mut().filter(|liar| liar.node == from && liar.lying) else {
            return vec![said];
        };
        if !liar.rng.one_in(liar.one_in) {
            liar.remembered.push_back(said.clone());
            if liar.remembered.len() > REMEMBERED {
                liar.remembered.pop_front();
            }
            return vec![said];
        }
        match liar.rng.below(8) {
            0 => Vec::new(),
            1 => vec![said.clone(), said],
            2 | 3 if !liar.remembered.is_empty() => {
                let ix = liar.rng.below(liar.remembered.len() as u64) as usize;
                let old = liar.remembered[ix].clone();
                if liar.rng.one_in(2) { vec![old] } else { vec![old, said] }
            }
            _ => {
                let rng = &mut liar.rng;
                let changed = self.net.changed(from, to, &said.0, |bytes| change(bytes, rng));
                changed.map(|packet| with_data(packet, said.1)).into_iter().collect()
            }
        }
    }

    /// Runs the plan with a node that lies.
    pub fn run_with_liar(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        self.liar = Some(Liar::new(node, self.rng.fork()));
        self.run_to(Phase::Running);
        self.lie(true);
        self.run_for(LYING);
        self.lie(false);
        self.heal_all();
        self.stop_clients();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let command = AdminCommand::Disconnect { peer: node_id(node), force: true };
            self.admin(other, command);
        }
        self.run_for(RECOVERY);
        self.check_recovery(node);
    }

    fn lie(&mut self, lying: bool) {
        if let Some(liar) = &mut self.liar {
            liar.lying = lying;
        }
    }

    /// Demotes by force, which fails what waits for quorum or data, and looks what is left.
    fn check_recovery(&mut self, liar: usize) {
        for node in (0..self.nodes.len()).filter(|node| *node != liar) {
            self.admin(node, AdminCommand::Secondary { force: true });
        }
        self.run_for(100 * MILLISECOND);
        for node in (0..self.nodes.len()).filter(|node| *node != liar) {
            let (requests, buffers) =
                (self.nodes[node].requests.len(), self.nodes[node].buffers.count());
            if requests > 0 {
                self.violate("liar", format!("n{node} does not answer {requests} requests"));
            }
            if buffers > 0 {
                self.violate("liar", format!("n{node} still has {buffers} buffers"));
            }
        }
    }
}

/// Changes some bytes of a packet, its header included.
fn change(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..rng.skewed(1, 4) {
        let width = *rng.pick(&[1, 2, 4, 8]);
        let last = bytes.len().saturating_sub(width);
        let at = rng.below(last as u64 / width as u64 + 1) as usize * width;
        let Some(field) = bytes.get_mut(at..at + width) else { continue };
        let old = field.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let new = match rng.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => old.wrapping_add(1),
            3 => old.wrapping_sub(1),
            4 => old ^ 1 << rng.below(8 * width as u64),
            5 => old.wrapping_add(8 * rng.range(1, 8)),
            6 => rng.below(256),
            _ => rng.bits(),
        };
        field.copy_from_slice(&new.to_be_bytes()[8 - width..]);
    }
}

/// The packet with as many data as it announces.
fn with_data(packet: Packet, data: Option<Data>) -> Said {
    let sectors = packet.payload_len() as u64 / vocab::SECTOR_SIZE;
    let data = match data {
        _ if sectors == 0 => None,
        Some(data) if data.sectors() == sectors => Some(data),
        _ => Some(Data::Fill { tag: ZERO, sectors: sectors as u32 }),
    };
    (packet, data)
}
