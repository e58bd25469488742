//! Nodes that start without one of their volumes, as after a change that an agent has not carried out
//! yet, and get it while everything else goes on.

use replication::config::ResourceConfig;
use replication::io::AdminCommand;
use vocab::VolumeNr;

use crate::node::Late;
use crate::plan::{LastVolume, MILLISECOND, SECOND};
use crate::trace;
use crate::world::{Event, World};

impl World {
    /// The last volume, which a node may start without.
    fn last_volume(&self) -> VolumeNr {
        VolumeNr(self.plan.volumes - 1)
    }

    /// True if the node runs without that volume.
    pub(crate) fn lacks(&self, node: usize, volume: usize) -> bool {
        self.nodes[node].late != Late::Has && volume == usize::from(self.last_volume().0)
    }

    /// Takes the last volume out of what a node starts with.
    pub(crate) fn leave_out_volume(&mut self, node: usize, config: &mut ResourceConfig) {
        // The first content is established with all volumes, if no scenario does it.
        let first = self.nodes[node].incarnation == 0;
        let lacks = match self.plan.last_volume {
            LastVolume::AtStart => false,
            LastVolume::AfterRestarts => {
                !first && !self.plan.goes_by_own_disk(node) && self.rng.one_in(2)
            }
            LastVolume::ByHand => first || self.nodes[node].late != Late::Has,
        };
        self.nodes[node].late = if lacks { Late::Lacks } else { Late::Has };
        if !lacks {
            return;
        }
        config.volumes.pop();
        trace!(self, "n{node} starts without its last volume");
        if self.plan.last_volume == LastVolume::AfterRestarts {
            self.add_volume_later(node, self.nodes[node].incarnation + 1);
        }
    }

    fn add_volume_later(&mut self, node: usize, incarnation: u32) {
        let delay = self.rng.skewed(MILLISECOND, 10 * SECOND);
        self.queue.at(self.now() + delay, Event::AddVolume { node, incarnation });
    }

    /// The next step of adding the last volume.
    pub(crate) fn add_volume_event(&mut self, node: usize, incarnation: u32) {
        if self.nodes[node].incarnation != incarnation || !self.nodes[node].up() {
            return;
        }
        match self.nodes[node].late {
            Late::Lacks => self.begin_to_add_volume(node),
            Late::Granted => self.finish_added_volume(node),
            Late::Has | Late::Asked(_) => {}
        }
    }

    fn begin_to_add_volume(&mut self, node: usize) {
        let volume = self.plan.config(node).volumes.pop().expect("a plan has volumes");
        let id = self.admin(node, AdminCommand::NewVolume(volume));
        self.nodes[node].late = Late::Asked(id);
        if let Some(result) = self.answers.remove(&id) {
            self.note_added(node, id, result.is_ok());
        }
    }

    /// A wish is answered, and it may be the one for the volume.
    pub(crate) fn note_added(&mut self, node: usize, id: u64, granted: bool) {
        if self.nodes[node].late != Late::Asked(id) {
            return;
        }
        let incarnation = self.nodes[node].incarnation;
        if granted {
            self.nodes[node].late = Late::Granted;
            self.queue.at(self.now(), Event::AddVolume { node, incarnation });
            return;
        }
        // A handshake runs.
        self.nodes[node].late = Late::Lacks;
        if self.plan.last_volume == LastVolume::AfterRestarts {
            self.add_volume_later(node, incarnation);
        }
    }

    /// Gives the volume the options that a peer that was there before has for it, and attaches its disk.
    fn finish_added_volume(&mut self, node: usize) {
        self.nodes[node].late = Late::Has;
        let nr = self.last_volume();
        for peer in self.plan.config(node).peers {
            let mut devices = peer.devices.into_iter();
            let (_, options) = devices.find(|(of, _)| *of == nr).expect("a peer has all volumes");
            let command = AdminCommand::PeerDeviceOptions(peer.node_id, nr, Box::new(options));
            self.admin(node, command);
        }
        self.attach(node, usize::from(nr.0));
    }

    /// Asks a node to add the last volume. Its disk is attached when the peers have answered.
    pub fn start_to_add_volume(&mut self, node: usize) {
        let lacks = self.nodes[node].late == Late::Lacks;
        self.expect("it has no such volume", |_| lacks);
        self.begin_to_add_volume(node);
        let late = self.nodes[node].late;
        self.expect("it does not refuse", |_| late != Late::Lacks);
    }

    /// The same, and waits for that.
    pub fn add_volume(&mut self, node: usize) {
        self.start_to_add_volume(node);
        self.wait("the volume is added", |w| w.nodes[node].late == Late::Has);
    }

    /// A node starts without the last volume the next time.
    pub fn take_volume_out(&mut self, node: usize) {
        self.nodes[node].late = Late::Lacks;
    }
}
