//! Peers of protocol 9 before 122 (DRBD 9.1): requests of a resync or verify without ids and
//! without positions in the Primary's write stream (wire §7.4, §7.6). See docs/design/plain-requests.md.
//!
//! Such a request and its answers name a range and nothing else. Here ranges become ids and back, for
//! peers of protocol 8 as well, whose dialect is `legacy`. Nobody says how much of the Primary's stream
//! an answer includes, either; what takes the place of that is in `resync` and `verify` where they ask
//! [`Resource::is_plain`].

use std::collections::BTreeMap;

use codec::wire::{BlockAck, BlockId, BlockReq, DagtagDep, OvResult, Packet, RsReq};
use serde::{Deserialize, Serialize};
use vocab::{DiskState, SectorRange, VolumeNr};

use crate::io::BufId;
use crate::request::{Part, Write};
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

/// `block_id` of P_OV_RESULT (wire §7.7).
const OV_SKIPPED: u64 = 4710;
const OV_IN_SYNC: u64 = 4711;
const OV_OUT_OF_SYNC: u64 = 4712;

/// So much of a volume a peer locks as a whole while it is resynced: 128 MiB.
const LOCKED_SECTORS: u64 = 1 << 18;

/// Requests of this node that are not answered, by sector and number: the peer's answers name only
/// the range.
pub(crate) type Open = BTreeMap<(u64, u64), (BlockId, SectorRange)>;

/// Those of one volume to one peer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plain {
    open: Open,
    next: u64,
    /// The disk here is another one than that for which they were made. The peer answers them no more.
    lapsed: bool,
}

impl Plain {
    /// The disk here is a new one.
    pub(crate) fn lapse(&mut self) {
        self.lapsed = true;
    }

    /// A resync or verify begins. What was answered before the old disk was lost has arrived before the
    /// peer's vote for the new one, and what was not will not be.
    pub(crate) fn begin(&mut self) {
        if std::mem::take(&mut self.lapsed) {
            self.open.clear();
        }
    }
}

/// Notes a request of this node.
fn note(open: &mut Open, next: &mut u64, req: &RsReq) {
    *next += 1;
    open.insert((req.range.start.0, *next), (req.block_id, req.range));
}

/// The id of this node's oldest request for that range.
fn take(open: &mut Open, range: SectorRange) -> Result<BlockId, &'static str> {
    let from = range.start.0;
    let mut found = open.range((from, 0)..=(from, u64::MAX));
    let key = found.find(|(_, (_, asked))| *asked == range).map(|(key, _)| *key);
    let (id, _) = key.and_then(|key| open.remove(&key)).ok_or("an answer matches no request")?;
    Ok(id)
}

/// The id by which the core knows a request of the peer, which gives none: no two for one sector are
/// open at a time.
pub(crate) fn id_of(range: SectorRange) -> BlockId {
    BlockId(range.start.0 + 1)
}

/// What the core says, without ids; packets that have none stay as they are.
pub(crate) fn outbound(open: &mut Open, next: &mut u64, packet: Packet) -> Packet {
    match packet {
        Packet::RsDagtagReq(nr, req) => {
            note(open, next, &req);
            Packet::RsDataRequest(nr, without_id(req))
        }
        Packet::RsThinDagtagReq(nr, req) => {
            note(open, next, &req);
            Packet::RsThinReq(nr, without_id(req))
        }
        Packet::RsCsumDagtagReq(nr, req, digest) => {
            note(open, next, &req);
            Packet::CsumRsRequest(nr, without_id(req), digest)
        }
        Packet::OvDagtagReq(nr, req) => {
            note(open, next, &req);
            Packet::OvRequest(nr, without_id(req))
        }
        Packet::OvDagtagReply(nr, req, digest) => Packet::OvReply(nr, without_id(req), digest),
        Packet::OvResultId(nr, ack, result) => {
            Packet::OvResult(nr, BlockAck { block_id: ov_number(result), ..ack })
        }
        Packet::RsDataReply(nr, mut data) => {
            data.block_id = BlockId::SYNCER;
            Packet::RsDataReply(nr, data)
        }
        Packet::RsDeallocatedId(nr, ack) => Packet::RsDeallocated(nr, ack.range),
        Packet::RsWriteAck(nr, ack) => Packet::RsWriteAck(nr, of_syncer(ack)),
        Packet::RsNegAck(nr, ack) => Packet::NegAck(nr, of_syncer(ack)),
        Packet::RsIsInSync(nr, ack) => Packet::RsIsInSync(nr, of_syncer(ack)),
        Packet::NegRsDreply(nr, ack) => Packet::NegRsDreply(nr, of_syncer(ack)),
        Packet::RsCancel(nr, ack) => Packet::RsCancel(nr, of_syncer(ack)),
        Packet::RsCancelAhead(nr, ack) => Packet::RsCancelAhead(nr, of_syncer(ack)),
        Packet::WriteAckInSync(nr, ack) => Packet::RsWriteAck(nr, ack),
        packet => packet,
    }
}

/// What the peer says, with ids: requests get them, answers have those of their requests.
///
/// # Errors
/// An answer to what was not asked.
pub(crate) fn inbound(open: &mut Open, packet: Packet) -> Result<Packet, &'static str> {
    Ok(match packet {
        Packet::RsDataRequest(nr, req) => Packet::RsDagtagReq(nr, with_id(req)),
        Packet::RsThinReq(nr, req) => Packet::RsThinDagtagReq(nr, with_id(req)),
        Packet::CsumRsRequest(nr, req, digest) => Packet::RsCsumDagtagReq(nr, with_id(req), digest),
        Packet::OvRequest(nr, req) => Packet::OvDagtagReq(nr, with_id(req)),
        Packet::OvReply(nr, req, digest) => {
            let block_id = take(open, req.range)?;
            let dep = DagtagDep::default();
            Packet::OvDagtagReply(nr, RsReq { range: req.range, block_id, dep }, digest)
        }
        Packet::OvResult(nr, ack) => {
            let result = match ack.block_id.0 {
                OV_IN_SYNC => OvResult::InSync,
                OV_OUT_OF_SYNC => OvResult::OutOfSync,
                _ => OvResult::Skipped,
            };
            Packet::OvResultId(nr, BlockAck { block_id: id_of(ack.range), ..ack }, result)
        }
        Packet::RsDataReply(nr, mut data) => {
            data.block_id = take(open, data.range)?;
            Packet::RsDataReply(nr, data)
        }
        Packet::RsDeallocated(nr, range) => {
            let block_id = take(open, range)?;
            Packet::RsDeallocatedId(nr, BlockAck { range, block_id, seq: 0 })
        }
        Packet::RsIsInSync(nr, ack) => Packet::RsIsInSync(nr, asked(open, ack)?),
        Packet::NegRsDreply(nr, ack) => Packet::NegRsDreply(nr, asked(open, ack)?),
        Packet::RsCancel(nr, ack) => Packet::RsCancel(nr, asked(open, ack)?),
        Packet::RsCancelAhead(nr, ack) => Packet::RsCancelAhead(nr, asked(open, ack)?),
        Packet::RsWriteAck(nr, ack) if ack.block_id == BlockId::SYNCER => {
            Packet::RsWriteAck(nr, BlockAck { block_id: id_of(ack.range), ..ack })
        }
        Packet::RsWriteAck(nr, ack) => Packet::WriteAckInSync(nr, ack),
        Packet::NegAck(nr, ack) if ack.block_id == BlockId::SYNCER => {
            Packet::RsNegAck(nr, BlockAck { block_id: id_of(ack.range), ..ack })
        }
        packet => packet,
    })
}

fn asked(open: &mut Open, ack: BlockAck) -> Result<BlockAck, &'static str> {
    Ok(BlockAck { block_id: take(open, ack.range)?, ..ack })
}

const fn ov_number(result: OvResult) -> BlockId {
    BlockId(match result {
        OvResult::InSync => OV_IN_SYNC,
        OvResult::OutOfSync => OV_OUT_OF_SYNC,
        OvResult::Skipped | OvResult::Unknown(_) => OV_SKIPPED,
    })
}

fn with_id(req: BlockReq) -> RsReq {
    let range: SectorRange = req.range;
    RsReq { range, block_id: id_of(range), dep: DagtagDep::default() }
}

fn without_id(req: RsReq) -> BlockReq {
    BlockReq { range: req.range, block_id: BlockId::SYNCER }
}

fn of_syncer(ack: BlockAck) -> BlockAck {
    BlockAck { block_id: BlockId::SYNCER, ..ack }
}

/// The volume of a packet that belongs to a resync or verify, or of an ack for a write in one.
fn volume_of(packet: &Packet) -> Option<VolumeNr> {
    match packet {
        Packet::RsDagtagReq(nr, _)
        | Packet::RsThinDagtagReq(nr, _)
        | Packet::RsCsumDagtagReq(nr, ..)
        | Packet::OvDagtagReq(nr, _)
        | Packet::OvDagtagReply(nr, ..)
        | Packet::OvResultId(nr, ..)
        | Packet::RsDataRequest(nr, _)
        | Packet::RsThinReq(nr, _)
        | Packet::CsumRsRequest(nr, ..)
        | Packet::OvRequest(nr, _)
        | Packet::OvReply(nr, ..)
        | Packet::OvResult(nr, _)
        | Packet::RsDataReply(nr, _)
        | Packet::RsDeallocated(nr, _)
        | Packet::RsDeallocatedId(nr, _)
        | Packet::RsWriteAck(nr, _)
        | Packet::RsNegAck(nr, _)
        | Packet::RsIsInSync(nr, _)
        | Packet::NegRsDreply(nr, _)
        | Packet::RsCancel(nr, _)
        | Packet::RsCancelAhead(nr, _)
        | Packet::NegAck(nr, _)
        | Packet::WriteAckInSync(nr, _) => Some(*nr),
        _ => None,
    }
}

impl Resource {
    /// The peer is of protocol 9, and its requests and this node's name nothing but a range.
    pub(crate) fn is_plain(&self, peer: PeerIx) -> bool {
        (110..122).contains(&self.peers[peer].agreed_version)
    }

    /// A packet of such a peer.
    pub(crate) fn take_plain(
        &mut self,
        peer: PeerIx,
        packet: Packet,
        payload: Option<BufId>,
    ) -> Result<(), &'static str> {
        let Some(vol) = volume_of(&packet).and_then(|nr| self.vol_ix(nr)) else {
            return self.take(peer, packet, payload);
        };
        match inbound(&mut self.peers[peer].devs[vol].plain.open, packet) {
            Ok(packet) => self.take(peer, packet, payload),
            Err(rule) => {
                self.free(payload);
                Err(rule)
            }
        }
    }

    /// A packet of the core for such a peer.
    pub(crate) fn send_plain(&mut self, peer: PeerIx, packet: Packet, payload: Option<BufId>) {
        let Some(vol) = volume_of(&packet).and_then(|nr| self.vol_ix(nr)) else {
            return self.put_on_wire(peer, packet, payload);
        };
        if self.st.peers[peer].devs[vol].disk < DiskState::Inconsistent {
            // Without its disk it has forgotten what it asked for, and takes no answer (wire §7.6).
            match packet {
                Packet::RsDataReply(..)
                | Packet::RsDeallocatedId(..)
                | Packet::OvDagtagReply(..) => return,
                Packet::RsIsInSync(..)
                | Packet::NegRsDreply(..)
                | Packet::RsCancel(..)
                | Packet::RsCancelAhead(..) => {
                    // Its number stays unused.
                    let dev = &mut self.peers[peer].devs[vol];
                    dev.seq = dev.seq.wrapping_sub(1);
                    return;
                }
                _ => {}
            }
        }
        let plain = &mut self.peers[peer].devs[vol].plain;
        let packet = outbound(&mut plain.open, &mut plain.next, packet);
        self.put_on_wire(peer, packet, payload);
    }

    /// A write of a third node is on this disk, and it is not known yet who else has it: a source that
    /// may answer with what was there before is not asked.
    ///
    /// The source's own writes come on the stream of its answers, and this node's own go on that of its
    /// requests: in order.
    pub(crate) fn may_be_undone(&self, source: PeerIx, vol: VolIx, range: SectorRange) -> bool {
        let unacked = |p: &PeerIx| self.peers[*p].recv.has_unacked(vol, range);
        let in_use = self.vols[vol].backing.as_ref().is_some_and(|b| b.al.is_used(range));
        in_use && (0..self.peers.len()).filter(|p| *p != source).any(|p| unacked(&p))
    }

    /// A third node is Primary. What it wrote before it met this node may be on its way to such a source
    /// still, and nothing says when it has arrived there.
    pub(crate) fn is_unsure_source(&self, source: PeerIx) -> bool {
        let third = self.st.primary_peers().without(self.peers[source].node);
        self.is_plain(source) && !third.is_empty()
    }

    /// Writes of this node that the peer may not be able to take because of what it has asked for: it
    /// locks more than that. The answer would stand behind them on the same stream.
    pub(crate) fn stands_behind_writes(
        &self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
    ) -> bool {
        let start = range.start.0 / LOCKED_SECTORS * LOCKED_SECTORS;
        let end = range.end().next_multiple_of(LOCKED_SECTORS);
        let locked = SectorRange::new(start, end - start);
        let node = self.peers[peer].node.index();
        let acked_epoch = self.peers[peer].send.acked_epoch;
        let unanswered = |w: &Write| match w.parts[node] {
            Part::Pending => true,
            Part::Sent => w.epoch > acked_epoch,
            _ => false,
        };
        let mut writes = self.log.iter().filter(|w| w.vol == vol && w.range.len.0 > 0);
        writes.any(|w| unanswered(w) && w.range.overlaps(locked))
    }

    /// Users write in these extents, and the two ends may not have the same of that: nothing is compared
    /// there.
    pub(crate) fn is_in_use(&self, vol: VolIx, range: SectorRange) -> bool {
        self.vols[vol].backing.as_ref().is_some_and(|b| b.al.is_used(range))
    }
}
