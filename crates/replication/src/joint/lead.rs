//! The Primary that does the I/O of others: who has joined, and their requests.

use codec::wire::{BlockId, BlockReq, Data, DataFlags, JointResult, JointWord, Packet, Trim};
use vocab::{NodeId, Role, SectorRange, VolumeNr};

use crate::io::{BufId, IoError, LogLevel, Output, Request, RequestOp};
use crate::resource::Resource;
use crate::state::PeerIx;

use super::DEPTH;

/// Numbers of requests with this bit are the core's own: what other nodes have asked for.
const FOREIGN: u64 = 1 << 63;

/// A request of a node that has joined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Foreign {
    node: NodeId,
    block_id: BlockId,
    range: SectorRange,
    /// Nobody waits for it any more. If it has not begun, it is dropped.
    dead: bool,
}

impl Resource {
    /// A node wants to be Primary beside this one.
    pub(super) fn join_wanted(&mut self, peer: PeerIx) {
        let node = self.peers[peer].node;
        let busy = self.demoting || self.st.fail_io || self.holds_foreign;
        let left = self.foreign.iter().any(|(_, f)| f.node == node);
        let word = if !self.peers[peer].net.allow_two_primaries {
            JointWord::Refused
        } else if self.st.role != Role::Primary || busy || left {
            JointWord::Later
        } else {
            JointWord::Joined
        };
        if word == JointWord::Joined {
            let text = format!(
                "{}: {} is Primary beside this node now, which does its I/O",
                self.name, self.peers[peer].name
            );
            self.log(LogLevel::Info, text);
            self.peers[peer].joined = true;
            self.visible_change = true;
        }
        self.send(peer, Packet::Joint(word));
    }

    /// It is Secondary again.
    pub(super) fn left_by(&mut self, peer: PeerIx) {
        if self.peers[peer].joined {
            let text = format!("{}: {} is Secondary now", self.name, self.peers[peer].name);
            self.log(LogLevel::Info, text);
            self.dismiss(peer);
        }
        self.peers[peer].leaves = true;
        self.confirm_left(peer);
    }

    /// A node that has left is told once nothing of what it asked for is under way.
    fn confirm_left(&mut self, peer: PeerIx) {
        let node = self.peers[peer].node;
        if self.peers[peer].leaves && !self.foreign.iter().any(|(_, f)| f.node == node) {
            self.peers[peer].leaves = false;
            self.send(peer, Packet::Joint(JointWord::Left));
        }
    }

    /// A request of another node is at its end.
    fn end_foreign(&mut self, key: usize) -> Option<Foreign> {
        let ended = self.foreign.remove(key)?;
        if let Some(peer) = self.peer_ix(ended.node).filter(|p| self.peers[*p].leaves) {
            self.confirm_left(peer);
        }
        Some(ended)
    }

    /// Nothing more is done for nodes that are gone, and for nobody once this one is not Primary.
    pub(super) fn review_foreign(&mut self) {
        for peer in 0..self.peers.len() {
            let stays = self.st.role == Role::Primary && self.st.is_connected(peer);
            if self.peers[peer].joined && !stays {
                self.dismiss(peer);
            }
            self.peers[peer].leaves &= self.st.is_connected(peer);
        }
    }

    /// What the node has asked for and what has not begun will not be done.
    fn dismiss(&mut self, peer: PeerIx) {
        self.peers[peer].joined = false;
        self.visible_change = true;
        let node = self.peers[peer].node;
        for (_, foreign) in self.foreign.iter_mut().filter(|(_, f)| f.node == node) {
            foreign.dead = true;
        }
        for vol in 0..self.vols.len() {
            let held = std::mem::take(&mut self.vols[vol].held);
            let (dead, held): (Vec<Request>, Vec<Request>) =
                held.into_iter().partition(|request| self.is_dead(request));
            self.vols[vol].held = held.into();
            dead.into_iter().for_each(|request| self.drop_dead(request));
        }
    }

    /// Nobody waits for the request.
    pub(crate) fn is_dead(&self, request: &Request) -> bool {
        foreign_key(request.id).is_some_and(|key| self.foreign.get(key).is_none_or(|f| f.dead))
    }

    /// Such a request, which has not begun, is dropped.
    pub(crate) fn drop_dead(&mut self, request: Request) {
        if let Some(key) = foreign_key(request.id) {
            self.end_foreign(key);
        }
        if let RequestOp::Write { buf, .. } = request.op {
            self.free(Some(buf));
        }
    }

    /// P_JOINT_DATA.
    pub(crate) fn joint_write(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        data: Data,
        buf: BufId,
    ) -> Result<(), &'static str> {
        let op = RequestOp::Write { buf, fua: data.flags.has(DataFlags::FUA) };
        let taken = self.foreign_request(peer, nr, data.block_id, op, data.range);
        if taken.is_err() {
            self.free(Some(buf));
        }
        taken
    }

    /// P_JOINT_TRIM.
    pub(crate) fn joint_trim(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        trim: Trim,
    ) -> Result<(), &'static str> {
        let discards = trim.flags.has(DataFlags::DISCARD);
        let op = match trim.flags.has(DataFlags::ZEROES) {
            true => RequestOp::Zeroes { unmap: discards },
            false => RequestOp::Discard,
        };
        self.foreign_request(peer, nr, trim.block_id, op, trim.range)
    }

    /// P_JOINT_READ.
    pub(crate) fn joint_read(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        req: BlockReq,
    ) -> Result<(), &'static str> {
        self.foreign_request(peer, nr, req.block_id, RequestOp::Read, req.range)
    }

    /// P_JOINT_FLUSH.
    pub(crate) fn joint_flush(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        block_id: BlockId,
    ) -> Result<(), &'static str> {
        self.foreign_request(peer, nr, block_id, RequestOp::Flush, SectorRange::new(0, 0))
    }

    /// A request of a node that has joined is one of this node's from here on.
    fn foreign_request(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        block_id: BlockId,
        op: RequestOp,
        range: SectorRange,
    ) -> Result<(), &'static str> {
        if self.vol_ix(nr).is_none() {
            return Err("a request of a second Primary names an unknown volume");
        }
        let node = self.peers[peer].node;
        let foreign = Foreign { node, block_id, range, dead: !self.peers[peer].joined };
        let under_way = self.foreign.len();
        // Others have joined, too; who keeps to the limit alone is never refused.
        if under_way >= DEPTH * self.peers.len() {
            return Err("a second Primary sends more requests at once than it may");
        }
        let key = self.foreign.insert(foreign);
        let request = Request { volume: nr, id: FOREIGN | key as u64, op, range };
        match foreign.dead {
            // On its way when this node was demoted, of which the other one hears.
            true => self.drop_dead(request),
            false => self.user_request(request),
        }
        Ok(())
    }

    /// A request is complete: whoever asked for it is told.
    pub(crate) fn complete(
        &mut self,
        volume: VolumeNr,
        id: u64,
        result: Result<Option<BufId>, IoError>,
    ) {
        let Some(key) = foreign_key(id) else {
            return self.out.push_back(Output::Complete { volume, id, result });
        };
        let Some(foreign) = self.end_foreign(key).filter(|f| !f.dead) else { return };
        let Some(peer) = self.peer_ix(foreign.node) else { return };
        let block_id = foreign.block_id;
        let result = match result {
            Ok(Some(buf)) => {
                let (seq, flags) = (0, DataFlags::default());
                let data = Data { range: foreign.range, block_id, seq, flags };
                return self.send_with(peer, Packet::JointReply(volume, data), Some(buf));
            }
            Ok(None) => JointResult::Done,
            // It is given up here, and done again by who is Primary next.
            Err(_) if self.st.fail_io || self.st.role != Role::Primary => return,
            Err(IoError::Io | IoError::NotPrimary) => JointResult::Io,
            Err(IoError::NoSpace) => JointResult::NoSpace,
            Err(IoError::Invalid) => JointResult::Invalid,
            Err(IoError::Unsupported) => JointResult::Unsupported,
        };
        self.send(peer, Packet::JointDone(volume, block_id, result));
    }

    /// They were told to, last.
    pub fn holds_foreign(&self) -> bool {
        self.holds_foreign
    }

    /// Nodes that have joined are to hold their requests back, or to go on.
    pub(crate) fn hold_foreign(&mut self, hold: bool) {
        self.holds_foreign = hold;
        let word = if hold { JointWord::Hold } else { JointWord::GoOn };
        for peer in 0..self.peers.len() {
            if self.peers[peer].joined {
                self.send(peer, Packet::Joint(word));
            }
        }
    }
}

/// The key of a request that another node has asked for.
fn foreign_key(id: u64) -> Option<usize> {
    (id & FOREIGN != 0).then_some((id & !FOREIGN) as usize)
}
