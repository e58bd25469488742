//! Pings: whether peers have received what was sent to them before.

use codec::wire::Packet;
use vocab::{NodeId, NodeMask};

use crate::resource::{PingRound, Pings, Resource, Work};
use crate::state::PeerIx;

impl Resource {
    /// Sends a ping to a peer; its answer is expected within ping-timeout. If one is under way
    /// already, this one follows its answer: a kernel node may answer two with one, and nobody
    /// could tell which.
    pub(crate) fn ping(&mut self, peer: PeerIx) {
        let now = self.now;
        let p = &mut self.peers[peer];
        if p.pings == Pings::None {
            p.pings = Pings::One;
            p.ping_since = now;
            self.send(peer, Packet::Ping);
        } else {
            p.pings = Pings::AndOneMore;
        }
    }

    /// P_PING_ACK.
    pub(crate) fn ping_acked(&mut self, peer: PeerIx) {
        let p = &mut self.peers[peer];
        let node = p.node;
        match std::mem::take(&mut p.pings) {
            Pings::None => {}
            Pings::One => self.ping_settled(node),
            Pings::AndOneMore => self.ping(peer),
        }
    }

    /// Does `then` once every connected peer has answered or is known to be lost.
    pub(crate) fn ping_all(&mut self, then: Work) {
        let waiting = self.st.connected_mask();
        self.ping_some(waiting, then);
    }

    /// Does `then` once these peers have answered or are known to be lost.
    pub(crate) fn ping_some(&mut self, nodes: NodeMask, then: Work) {
        let waiting = nodes.and(self.st.connected_mask());
        if waiting.is_empty() {
            return self.work.push_back(then);
        }
        for node in waiting.iter() {
            let peer = self.peer_ix(node).expect("connected peers are configured");
            self.ping(peer);
        }
        self.pings.push(PingRound { waiting, then });
    }

    /// A peer answered, or is lost: rounds go on without it.
    pub(crate) fn ping_settled(&mut self, node: NodeId) {
        let mut index = 0;
        while index < self.pings.len() {
            self.pings[index].waiting.remove(node);
            if self.pings[index].waiting.is_empty() {
                let round = self.pings.remove(index);
                self.work.push_back(round.then);
            } else {
                index += 1;
            }
        }
    }
}
