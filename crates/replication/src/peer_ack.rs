//! Peer-acks at the Primary: telling every Secondary which nodes hold a write.
//!
//! Until then a Secondary keeps the write's extents active and would mark it out-of-sync towards
//! everyone if the Primary were lost (semantics §4.11, wire §5.5). Writes held by the same nodes
//! are reported together.

use codec::wire::{self, Packet};
use serde::{Deserialize, Serialize};
use vocab::{Dagtag, Instant, NodeMask, Sectors};

use crate::resource::Resource;

/// Writes that are done and not reported yet; all of them are on the same nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PeerAcks {
    holders: NodeMask,
    sectors: u64,
    /// Report at this time at the latest; `None` if nothing is owed.
    pub deadline: Option<Instant>,
}

impl Resource {
    /// A write left the transfer log: `holders` have it, `received` are to be told.
    pub(crate) fn owe_peer_ack(
        &mut self,
        dagtag: Dagtag,
        len: Sectors,
        holders: NodeMask,
        received: NodeMask,
    ) {
        if self.peer_acks.deadline.is_some() && self.peer_acks.holders != holders {
            self.flush_peer_acks();
        }
        let mut any = false;
        for peer in &mut self.peers {
            if received.contains(peer.node) {
                peer.send.peer_ack = Some(dagtag);
                any = true;
            }
        }
        if !any {
            return;
        }
        self.peer_acks.holders = holders;
        self.peer_acks.sectors += len.0;
        self.peer_acks.deadline = Some(self.now + self.opts.peer_ack_delay);
        if self.peer_acks.sectors > self.opts.peer_ack_window.0 {
            self.flush_peer_acks();
        }
    }

    /// Reports everything that is owed.
    pub(crate) fn flush_peer_acks(&mut self) {
        if self.peer_acks.deadline.take().is_none() {
            return;
        }
        self.peer_acks.sectors = 0;
        let mask = self.peer_acks.holders;
        for peer in 0..self.peers.len() {
            let Some(dagtag) = self.peers[peer].send.peer_ack.take() else { continue };
            if self.st.is_connected(peer) && dagtag > self.peers[peer].send.peer_acked {
                self.peers[peer].send.peer_acked = dagtag;
                self.send(peer, Packet::PeerAck(wire::PeerAck { mask, dagtag }));
            }
        }
        self.claim_what_is_quiet();
    }
}
