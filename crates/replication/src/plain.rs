//! Requests of a resync or verify without ids (wire §7.4), as peers before protocol 122 have them.
//!
//! Such a request and its answers name a range and nothing else. Here ranges become ids and back, for
//! the dialect of protocol 8 (`legacy`).

use std::collections::BTreeMap;

use codec::wire::{BlockAck, BlockId, BlockReq, DagtagDep, OvResult, Packet, RsReq};
use vocab::SectorRange;

/// `block_id` of P_OV_RESULT (wire §7.7).
const OV_SKIPPED: u64 = 4710;
const OV_IN_SYNC: u64 = 4711;
const OV_OUT_OF_SYNC: u64 = 4712;

/// Requests of this node that are not answered, by sector and number: the peer's answers name only
/// the range.
pub(crate) type Open = BTreeMap<(u64, u64), (BlockId, SectorRange)>;

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
