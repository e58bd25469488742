//! Resync by checksum (`csums-alg`; semantics §9.3, wire §7.4): the target sends the digest of its own
//! block, and a source whose block has the same says so instead of sending it.
//!
//! The target's block is locked from before it is read until the answer is there, as any that is asked
//! for: what others write to it, users of this node among them, waits. What the source itself writes does
//! not. Either it is in what the source compares, and then what differs without it is sent; or it was
//! written after that, on both disks. That holds for what both have written:
//!
//! - A source that failed to write (`on-io-error pass_on`) has what the target had, and the target has the
//!   write. From then on its disk is Inconsistent, and it sends data (`is_equal`).
//! - A target that failed to write something that the source has has marked it as missing. The answer does not
//!   take that back (`write_missed`).
//!
//! The answer "equal" comes on the control stream, where it may be overtaken by what the source says later of
//! the same block (`resync_overtaken`).
//!
//! Names that differ, which is so for a moment when an operator changes them, are safe: no two of the
//! digests have the same length, so blocks count as different.

use codec::wire::{BlockAck, Digest, Packet, RsReq, UuidFlags};
use vocab::{DiskState, NodeMask, SectorRange, Sectors, VolumeNr};

use crate::handshake::Phase;
use crate::io::{DigestOf, DiskData, DiskError, DiskOp, Output};
use crate::rate::Done;
use crate::resource::{IdKind, Op, Resource};
use crate::state::{PeerIx, VolIx};

use super::ServeKind;

impl Resource {
    /// The peer's csums-alg. A connection is made only if both name the same one.
    pub(crate) fn peer_names_csums_alg(&mut self, peer: PeerIx, name: &[u8]) {
        let theirs = String::from_utf8_lossy(name).into_owned();
        let ours = &self.peers[peer].net.csums_alg;
        if self.peers[peer].hs.phase == Phase::Exchanging && *ours != theirs {
            let [ours, shown] = [ours, &theirs].map(|name| match name.as_str() {
                "" => "none".to_owned(),
                name => format!("`{}`", name.escape_debug()),
            });
            let text = format!(
                "option csums-alg differs between the nodes: {ours} here, {shown} there; make them \
                 the same"
            );
            self.refuse_connection(peer, &text);
            return;
        }
        self.peers[peer].peer_csums_alg = Some(theirs);
    }

    /// Whether a resync that begins asks by digests: with `csums-after-crash-only` if a Primary has
    /// crashed, here, there, or as one whose last writes the survivors bring to one state.
    pub(super) fn goes_by_digests(&self, peer: PeerIx, vol: VolIx) -> bool {
        let net = &self.peers[peer].net;
        if net.csums_alg.is_empty() {
            return false;
        }
        let crashed_there = self.peers[peer].devs[vol]
            .uuids
            .as_ref()
            .is_some_and(|uuids| uuids.flags.has(UuidFlags::CRASHED_PRIMARY));
        !net.csums_after_crash_only
            || crashed_there
            || self.vols[vol].crashed_primary
            || self.peers.iter().any(|p| p.loss.is_some())
    }

    /// The running resync asks by digests, and both ends mean the same ones.
    pub(super) fn asks_by_digest(&self, peer: PeerIx, vol: VolIx) -> bool {
        let p = &self.peers[peer];
        let by_digest = p.devs[vol].resync.as_ref().is_some_and(|resync| resync.by_digest);
        by_digest && p.peer_csums_alg.as_ref() == Some(&p.net.csums_alg)
    }

    /// Target: the digest of the own block goes with the request for it.
    pub(super) fn compute_digest(&mut self, peer: PeerIx, vol: VolIx, id: u64, range: SectorRange) {
        let of = DigestOf::Resync(self.peers[peer].node);
        let op = self.op(Op::ResyncDigest(peer, vol, id));
        let io = DiskOp::Digest { range, of };
        self.out.push_back(Output::Disk { volume: self.vols[vol].nr, op, io });
    }

    /// Target: the digest is there. Without one the block is asked for as it is.
    pub(crate) fn resync_digest(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        id: u64,
        result: Result<DiskData, DiskError>,
    ) {
        let failed = result.is_err();
        let digest = match result {
            Ok(DiskData::Digest(digest)) if !digest.is_empty() => Some(digest),
            Ok(DiskData::Read { buf, .. } | DiskData::ReadWithDigest { buf, .. }) => {
                self.free(Some(buf));
                None
            }
            _ => None,
        };
        let by_digest = digest.is_some();
        let request = |r: &mut Resource| {
            let resync = r.peers[peer].devs[vol].resync.as_mut()?;
            let request = resync.requests.get_mut(&id)?;
            request.by_digest = by_digest;
            Some((request.range, request.unsent.take()?))
        };
        // The resync may be over.
        let Some((range, dep)) = request(self) else { return };
        let nr = self.vols[vol].nr;
        let req = RsReq { range, block_id: Resource::block_id(IdKind::Resync, id), dep };
        match digest {
            Some(digest) => self.send(peer, Packet::RsCsumDagtagReq(nr, req, digest)),
            None => self.send(peer, Packet::RsDagtagReq(nr, req)),
        }
        if failed {
            self.disk_failed(vol, Some(range), "a read for a resync failed");
        }
    }

    /// Source: P_RS_CSUM_DAGTAG_REQ.
    pub(crate) fn serve_by_digest(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        req: RsReq,
        digest: Digest,
    ) -> Result<(), &'static str> {
        self.take_request(peer, nr, req, ServeKind::Digest, Some(digest))
    }

    /// Source: the block is the target's. No digest tells nothing. A mixture is not compared, for what its
    /// disk failed to write the target may have.
    pub(super) fn is_equal(&self, key: usize, ours: Digest) -> bool {
        let serve = &self.serves[key];
        let may_say_so = self.st.vols[serve.vol].disk > DiskState::Inconsistent;
        may_say_so && !ours.is_empty() && serve.theirs == Some(ours)
    }

    /// A write has not reached every disk, and the bits towards these nodes say so. That they had what was
    /// written there earlier means nothing any more, nor that a resync's block was equal before.
    pub(crate) fn write_missed(&mut self, vol: VolIx, range: SectorRange, nodes: NodeMask) {
        self.outrun_unacked(vol, range, nodes);
        for peer in &mut self.peers {
            let Some(resync) = peer.devs[vol].resync.as_mut() else { continue };
            for request in resync.requests.values_mut() {
                request.outdated |= request.by_digest && request.range.overlaps(range);
            }
        }
    }

    /// Source: the target's block is the same.
    pub(super) fn answer_equal(&mut self, key: usize) {
        let serve = &self.serves[key];
        let (peer, vol, range, block_id) = (serve.peer, serve.vol, serve.range, serve.block_id);
        let nr = self.vols[vol].nr;
        let (now, users_total) = (self.now, self.users_total(vol));
        if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
            resync.same_digest += range.len.0;
            if let Some(throttle) = resync.throttle.as_mut() {
                throttle.answered(now, users_total);
            }
        }
        let ack = self.block_ack(peer, vol, range, block_id);
        self.send(peer, Packet::RsIsInSync(nr, ack));
        self.target_has(peer, vol, range);
        self.end_serve(key);
    }

    /// Target: P_RS_IS_IN_SYNC. The source has cleared its bit.
    pub(crate) fn resync_in_sync(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("an answer names an unknown volume")?;
        let Some(id) = self.request_of(peer, vol, ack.block_id, ack.range)? else { return Ok(()) };
        let (now, next, users_total) = (self.now, self.next_resync_request, self.users_total(vol));
        let node = self.peers[peer].node;
        let resync = self.resync_mut(peer, vol);
        let request = resync.requests.remove(&id).expect("found above");
        let (range, len) = (request.range, request.range.len);
        let (took, in_flight) = (now.since(request.since), Sectors(resync.in_flight));
        resync.in_flight -= len.0;
        resync.window.done(now, &Done { id, next, len, took, in_flight, users_total });
        if request.by_digest && !request.outdated {
            resync.same_digest += len.0;
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                if let Some(slot) = backing.slot_of(node) {
                    backing.clear_range(slot, range);
                }
            }
            self.write_bitmap_lazily(vol);
        }
        self.end_interval(vol, request.key);
        self.resync_progress(peer, vol);
        match request.by_digest {
            true => Ok(()),
            false => Err("a block was asked for without a digest, and is called equal"),
        }
    }
}
