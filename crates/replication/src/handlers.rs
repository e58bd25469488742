//! Calls of handlers, and what their exit codes lead to (semantics §5, §6.4, §9; drbdsetup contract
//! §7).
//!
//! The state machine goes on while a handler runs. Most are told something and that is all; what
//! `fence-peer` has done is for `fencing`, and a resync whose `before-resync-target` runs waits.

use serde::{Deserialize, Serialize};
use vocab::{
    ConnState, DiskState, HandlerEvent, HandlerSet, NodeId, NodeMask, ReplState, Role, VolumeNr,
};

use crate::io::{HandlerCall, LogLevel, Output};
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, State, VolIx};

/// Handlers that there are, and those that are running.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handlers {
    pub configured: HandlerSet,
    next: u64,
    running: Vec<(u64, Answer)>,
}

/// What waits for the end of a handler.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Answer {
    Nothing,
    Fence(NodeId),
    Resync(NodeId, VolumeNr),
}

/// Whether a resync may begin to overwrite the disk here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Leave {
    /// Nobody was asked yet.
    #[default]
    Unasked,
    /// That call of `before-resync-target` decides.
    Asked(u64),
    Granted,
}

impl Handlers {
    pub(crate) const fn new(configured: HandlerSet) -> Handlers {
        Handlers { configured, next: 1, running: Vec::new() }
    }

    /// Some handler has not ended.
    pub fn any_running(&self) -> bool {
        !self.running.is_empty()
    }
}

impl Resource {
    /// Tells a handler, if there is one.
    pub(crate) fn notify(&mut self, event: HandlerEvent, peer: Option<PeerIx>, vol: Option<VolIx>) {
        if self.handlers.configured.contains(event) {
            self.call_handler(event, peer, vol, Answer::Nothing);
        }
    }

    /// Calls `fence-peer`, and gives the number of the call. `None` if there is no such handler.
    pub(crate) fn call_fence(&mut self, peer: PeerIx) -> Option<u64> {
        let event = HandlerEvent::FencePeer;
        let node = self.peers[peer].node;
        let there = self.handlers.configured.contains(event);
        there.then(|| self.call_handler(event, Some(peer), None, Answer::Fence(node)))
    }

    fn call_handler(
        &mut self,
        event: HandlerEvent,
        peer: Option<PeerIx>,
        vol: Option<VolIx>,
        answer: Answer,
    ) -> u64 {
        let id = self.handlers.next;
        self.handlers.next += 1;
        self.handlers.running.push((id, answer));
        let call = HandlerCall {
            event,
            peer: peer.map(|p| (self.peers[p].node, self.st.peers[p].conn)),
            volume: vol.map(|v| self.vols[v].nr),
            up_to_date: self.up_to_date_nodes(),
        };
        self.out.push_back(Output::CallHandler { id, call });
        id
    }

    /// Nodes whose disks of all volumes are UpToDate.
    fn up_to_date_nodes(&self) -> NodeMask {
        let current = |disk: DiskState| disk == DiskState::UpToDate;
        let others = self.st.peers.iter().filter(|p| p.devs.iter().all(|dev| current(dev.disk)));
        let others: NodeMask = others.map(|p| p.node).collect();
        match self.st.vols.iter().all(|v| current(v.disk)) {
            true => others.with(self.me),
            false => others,
        }
    }

    /// A handler has ended.
    pub(crate) fn handler_done(&mut self, id: u64, exit: Option<u8>) {
        let Some(at) = self.handlers.running.iter().position(|(of, _)| *of == id) else { return };
        match self.handlers.running.swap_remove(at).1 {
            Answer::Nothing => {}
            Answer::Fence(node) => self.fence_ended(node, id, exit),
            Answer::Resync(node, nr) => self.resync_answered(node, nr, id, exit),
        }
    }

    // --- a resync that is about to begin -----------------------------------------------------

    /// The disk here may be overwritten by a resync: there is no `before-resync-target`, or it has
    /// agreed. Else it is asked, and the resync goes on once it has answered.
    pub(crate) fn may_begin_resync(&mut self, peer: PeerIx, vol: VolIx) -> bool {
        let event = HandlerEvent::BeforeResyncTarget;
        let leave = self.resync_mut(peer, vol).leave;
        match leave {
            Leave::Granted => true,
            Leave::Asked(_) => false,
            Leave::Unasked if !self.handlers.configured.contains(event) => true,
            Leave::Unasked => {
                let answer = Answer::Resync(self.peers[peer].node, self.vols[vol].nr);
                let id = self.call_handler(event, Some(peer), Some(vol), answer);
                self.resync_mut(peer, vol).leave = Leave::Asked(id);
                false
            }
        }
    }

    /// `before-resync-target` has ended. Only 0 says yes. One that could not be run or did not end
    /// has not agreed either: what it was to do before (a snapshot, for instance) is not done.
    fn resync_answered(&mut self, node: NodeId, nr: VolumeNr, id: u64, exit: Option<u8>) {
        let (Some(peer), Some(vol)) = (self.peer_ix(node), self.vol_ix(nr)) else { return };
        let resync = self.peers[peer].devs[vol].resync.as_mut();
        let Some(resync) = resync.filter(|r| r.leave == Leave::Asked(id)) else { return };
        if exit == Some(0) {
            resync.leave = Leave::Granted;
            return match self.repl(peer, vol) {
                ReplState::StartingSyncT => self.work.push_back(Work::BitmapReady(peer, vol)),
                _ => self.exchange_progress(peer, vol),
            };
        }
        let said =
            exit.map_or("did not come to an end".to_owned(), |code| format!("exited {code}"));
        let text = format!(
            "{}/{nr}: the handler before-resync-target {said}, so there is no resync from {}; see \
             to what it complains of, then connect again",
            self.name, self.peers[peer].name
        );
        self.log(LogLevel::Error, text);
        self.disconnect_local(peer);
    }

    // --- changes that handlers are told of ---------------------------------------------------

    /// Handlers that follow from a change of states alone.
    pub(crate) fn notify_changes(&mut self, old: &State) {
        if self.handlers.configured == HandlerSet::NONE {
            return;
        }
        for peer in 0..self.peers.len() {
            let conn = self.st.peers[peer].conn;
            if old.is_connected(peer) && conn != ConnState::Connected {
                self.notify(HandlerEvent::Disconnected, Some(peer), None);
            }
        }
        for vol in 0..self.vols.len() {
            let primary = self.st.role == Role::Primary && old.role == Role::Primary;
            if primary && self.has_data(old, vol) && !self.has_data(&self.st, vol) {
                let current =
                    |st: &State, p: PeerIx| st.peers[p].devs[vol].disk == DiskState::UpToDate;
                let lost = |p: &PeerIx| current(old, *p) && !current(&self.st, *p);
                let peer = (0..self.peers.len()).find(lost);
                self.notify(HandlerEvent::PriOnInconDegr, peer, Some(vol));
            }
        }
    }
}
