//! A node's process hands over to another one: the resource is frozen, thawed, and goes on.
//!
//! As the engine does it: clients wait until what they have asked for is answered, then peers wait
//! until the disks have nothing to do. Connections stay, and so does the claim on the disks. A
//! resource that does not get there in time goes on as it is.

use replication::{Input, Resource};

use crate::node::Swap;
use crate::trace;
use crate::world::{Event, World};

/// How often more a node looks whether it has come to rest.
const LOOKS: u32 = 4;

impl World {
    /// A node begins to hand over; each step takes `step` nanoseconds.
    pub fn swap(&mut self, node: usize, step: u64) {
        let n = &mut self.nodes[node];
        if !n.up() || n.swap.is_some() {
            return;
        }
        n.swap_step = step;
        self.input(node, Input::HoldForeign(true));
        self.drain(node, LOOKS);
    }

    fn drain(&mut self, node: usize, left: u32) {
        let n = &mut self.nodes[node];
        n.swap = Some(Swap::Draining(left));
        let (step, incarnation) = (n.swap_step, n.incarnation);
        self.queue.at(self.now() + step, Event::Swap { node, incarnation });
    }

    pub(crate) fn swap_event(&mut self, node: usize, incarnation: u32) {
        let n = &mut self.nodes[node];
        let (Some(swap), Some(resource)) = (n.swap, &n.resource) else { return };
        if n.incarnation != incarnation {
            return;
        }
        match swap {
            Swap::Draining(left) => match resource.needs_peers() {
                None => self.keep_still(node, LOOKS),
                Some(_) if left > 0 => self.drain(node, left - 1),
                Some(_) => self.give_up_swap(node),
            },
            Swap::Still(left) => match resource.freeze() {
                Ok(bytes) => self.hand_over(node, &bytes),
                Err(_) if left > 0 => self.keep_still(node, left - 1),
                Err(_) => self.give_up_swap(node),
            },
        }
    }

    fn keep_still(&mut self, node: usize, left: u32) {
        let now = self.now();
        let n = &mut self.nodes[node];
        n.swap = Some(Swap::Still(left));
        n.deaf_until = now + n.swap_step;
        let (at, incarnation) = (n.deaf_until, n.incarnation);
        self.queue.at(at, Event::Swap { node, incarnation });
    }

    fn give_up_swap(&mut self, node: usize) {
        let why = self.nodes[node].resource.as_ref().and_then(Resource::unsettled);
        trace!(self, "n{node} does not hand over: {why:?}");
        self.nodes[node].swap = None;
        self.stats.swaps_refused += 1;
        self.input(node, Input::HoldForeign(false));
    }

    fn hand_over(&mut self, node: usize, bytes: &[u8]) {
        trace!(self, "n{node} hands over {} bytes", bytes.len());
        let left = self.nodes[node].buffers.count();
        if left > 0 {
            self.violate("buffers", format!("n{node} is frozen with {left} blocks of data"));
            return;
        }
        let heir = match Resource::from_frozen(bytes) {
            Ok(heir) => heir,
            Err(error) => {
                self.violate("swap", format!("n{node} can not be thawed: {error}"));
                return;
            }
        };
        let same = self.nodes[node]
            .resource
            .as_ref()
            .is_some_and(|old| old.status() == heir.status() && old.deadline() == heir.deadline());
        if !same || heir.freeze().as_deref() != Ok(bytes) {
            self.violate("swap", format!("n{node} is another one after it was thawed"));
            return;
        }
        let n = &mut self.nodes[node];
        n.resource = Some(heir);
        n.swap = None;
        self.stats.swaps += 1;
        if let Some(kept) = &mut self.frozen {
            kept.push(bytes.to_vec());
        }
        self.input(node, Input::HoldForeign(false));
    }
}
