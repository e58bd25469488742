//! `resync-after`: the order of the resyncs of a node's volumes, kept as the engine keeps it.
//!
//! A state that changes is written into the node's table at once. Who has to wait hears of it later, as
//! over the mailbox of a shard, and what the table says by then is what counts. Nothing of this happens,
//! and nothing is drawn, on a node whose volumes are in no order.

use replication::Input;
use vocab::Minor;

use crate::world::{Event, World};

/// How long it takes at most until a volume hears that it has to wait, in nanoseconds.
const LATE: u64 = 5_000_000;

impl World {
    /// Has a volume of a node resynced after another one, now and after every start, or after none.
    ///
    /// # Panics
    /// If it would wait for itself.
    pub fn resync_after(&mut self, node: usize, volume: u32, after: Option<u32>) {
        let set = self.nodes[node].order.set_after(Minor(volume), after.map(Minor));
        if set.expect("no volume waits for itself") {
            self.queue_order(node);
        }
    }

    /// Notes which volumes of a node are being resynced.
    pub(crate) fn note_resyncs(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        let Some(resource) = &n.resource else { return };
        let mut changed = false;
        for (minor, busy) in resource.resyncing() {
            changed |= n.order.set_busy(minor, busy);
        }
        if changed {
            self.queue_order(node);
        }
    }

    /// The node's process has ended: it resyncs nothing.
    pub(crate) fn forget_resyncs(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        for volume in 0..n.drives.len() {
            n.order.set_busy(Minor(volume as u32), false);
        }
    }

    fn queue_order(&mut self, node: usize) {
        let at = self.now() + self.rng.below(LATE);
        let incarnation = self.nodes[node].incarnation;
        self.queue.at(at, Event::Order { node, incarnation });
    }

    /// Lets resyncs wait, or go on, that have to by now.
    pub(crate) fn order_event(&mut self, node: usize, incarnation: u32) {
        let n = &self.nodes[node];
        let Some(resource) = n.resource.as_ref().filter(|_| n.incarnation == incarnation) else {
            return;
        };
        let other = resource.waits().filter(|(_, minor, waits)| n.order.waits(*minor) != *waits);
        let changed: Vec<_> = other.map(|(volume, _, waits)| (volume, !waits)).collect();
        for (volume, wait) in changed {
            self.input(node, Input::WaitForOther { volume, wait });
        }
    }
}
