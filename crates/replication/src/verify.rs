//! Online verify: comparing digests block by block with a peer (semantics §9.8, wire §7.7).
//!
//! Verify changes bits only, never data. Blocks that are being written are skipped and counted.

use std::collections::BTreeMap;

use codec::wire::{BlockAck, BlockId, DagtagDep, Digest, OvResult, Packet, RsReq};
use serde::{Deserialize, Serialize};
use vocab::{
    ConfigError, DiskState, GenUuid, Refusal, ReplState, SectorRange, Sectors, StateError, VolumeNr,
};

use crate::generation::is_generation;
use crate::intervals::Slot;
use crate::io::{DigestOf, DiskData, DiskError, DiskOp, LogLevel, Output};
use crate::resource::{IdKind, Op, Owner, Resource};
use crate::state::{PeerIx, State, VolIx};

/// Requests in flight.
const WINDOW: usize = 32;
/// Sectors compared at a time.
const BLOCK: u64 = 64;

/// A verify that this node started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Verify {
    /// Next sector to compare.
    pub position: u64,
    pub stop: u64,
    requests: BTreeMap<u64, Request>,
    next_id: u64,
    pub skipped: u64,
    pub found: u64,
    /// First sector of the run of different blocks being reported.
    run: Option<SectorRange>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    range: SectorRange,
    key: Option<Slot>,
    theirs: Option<Digest>,
    /// The block was written since the request was sent: its digests can not be compared.
    written: bool,
}

impl Resource {
    /// May a verify with this peer run?
    pub(crate) fn check_verify(&self, peer: PeerIx, vol: Option<VolIx>) -> Result<(), Refusal> {
        let own = &self.peers[peer].net.verify_alg;
        if own.is_empty() {
            let detail = "set verify-alg in the net section on both nodes";
            return Err(Refusal::state(StateError::NoVerifyAlg, detail));
        }
        let _ = vol;
        Ok(())
    }

    /// Prepares a verify that an operator asked for.
    pub(crate) fn prepare_verify(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        start: Option<u64>,
        stop: Option<u64>,
    ) -> Result<(), Refusal> {
        self.check_verify(peer, Some(vol))?;
        if let Some(theirs) = &self.peers[peer].peer_verify_alg {
            if *theirs != self.peers[peer].net.verify_alg {
                let detail = format!(
                    "this node has {}, {} has {theirs}",
                    self.peers[peer].net.verify_alg, self.peers[peer].name
                );
                return Err(Refusal::config(ConfigError::VerifyAlg, detail));
            }
        }
        let size = self.vols[vol].size.0;
        let dev = &mut self.peers[peer].devs[vol];
        dev.plain.begin();
        let position = start.unwrap_or(dev.verify_position).min(size) / 8 * 8;
        let position = if position >= size { 0 } else { position };
        dev.verify = Some(Box::new(Verify {
            position,
            stop: stop.unwrap_or(size).min(size),
            requests: BTreeMap::new(),
            next_id: 1,
            skipped: 0,
            found: 0,
            run: None,
        }));
        Ok(())
    }

    /// VerifyS is entered.
    pub(crate) fn verify_started(&mut self, peer: PeerIx, vol: VolIx) {
        if self.peers[peer].devs[vol].verify.is_none() {
            let _ = self.prepare_verify(peer, vol, Some(0), None);
        }
        let text = format!(
            "{}/{}: verify against {} starts",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Info, text);
        self.verify_more(peer, vol);
    }

    /// Keeps the window of requests full; ends when everything is compared.
    pub(crate) fn verify_more(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::VerifyS {
            return;
        }
        let nr = self.vols[vol].nr;
        loop {
            let Some(verify) = self.peers[peer].devs[vol].verify.as_mut() else { return };
            if verify.requests.len() >= WINDOW || verify.position >= verify.stop {
                break;
            }
            let start = verify.position;
            let len = (BLOCK - start % BLOCK).min(verify.stop - start);
            let range = SectorRange::new(start, len);
            verify.position += len;
            let busy = self.vols[vol]
                .conflict(range, |o| !matches!(o, Owner::Verify(_) | Owner::ResyncSource(..)));
            let busy = busy.is_some() || self.is_plain(peer) && self.is_in_use(vol, range);
            let verify = self.peers[peer].devs[vol].verify.as_mut().expect("looked at above");
            if busy {
                verify.skipped += len;
                continue;
            }
            let id = verify.next_id;
            verify.next_id += 1;
            verify.requests.insert(id, Request { range, key: None, theirs: None, written: false });
            let dep = self.verify_dep();
            let block_id = Resource::block_id(IdKind::Verify, id);
            self.send(peer, Packet::OvDagtagReq(nr, RsReq { range, block_id, dep }));
        }
        let Some(verify) = self.peers[peer].devs[vol].verify.as_ref() else { return };
        if verify.requests.is_empty() && verify.position >= verify.stop {
            self.peers[peer].devs[vol].verify_position = 0;
            self.change_hard(|st| st.peers[peer].devs[vol].repl = ReplState::Established);
        }
    }

    fn verify_dep(&self) -> DagtagDep {
        if self.st.role == vocab::Role::Primary {
            return DagtagDep { node_id: u32::from(self.me.get()), dagtag: self.dagtag };
        }
        let primary = self.st.connected().find(|p| self.st.peers[*p].role == vocab::Role::Primary);
        primary.map_or_else(DagtagDep::default, |p| DagtagDep {
            node_id: u32::from(self.peers[p].node.get()),
            dagtag: self.peers[p].recv.last_dagtag,
        })
    }

    /// P_OV_DAGTAG_REPLY: the peer's digest; compare it with the own block.
    pub(crate) fn verify_reply(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        reply: RsReq,
        digest: Digest,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a verify reply names an unknown volume")?;
        if self.peers[peer].devs[vol].verify.is_none() {
            // It has ended here while the answer was on its way.
            return Ok(());
        }
        let id = self.verify_request(peer, vol, reply.block_id, reply.range)?;
        let range = reply.range;
        let verify = self.peers[peer].devs[vol].verify.as_ref().expect("found above");
        // A received write that waits for its epoch is in what the peer has read.
        let busy = verify.requests[&id].written
            || self.has_waiting_write(vol, range)
            || self.is_plain(peer) && self.is_in_use(vol, range)
            || self.vols[vol]
                .conflict(range, |o| !matches!(o, Owner::Verify(_) | Owner::ResyncSource(..)))
                .is_some();
        // A reply taken after writes that have not arrived here can not be compared.
        let behind = u8::try_from(reply.dep.node_id)
            .ok()
            .and_then(vocab::NodeId::new)
            .and_then(|n| self.peer_ix(n))
            .is_some_and(|p| {
                self.st.is_connected(p) && self.peers[p].recv.last_dagtag < reply.dep.dagtag
            });
        if busy || behind || !self.disk_in_use(vol) {
            self.verify_result(peer, vol, id, OvResult::Skipped);
            return Ok(());
        }
        let key = self.vols[vol].claim(range, Owner::Verify(peer));
        let verify = self.peers[peer].devs[vol].verify.as_mut().expect("found above");
        let request = verify.requests.get_mut(&id).expect("found above");
        request.key = Some(key);
        request.theirs = Some(digest);
        let op = self.op(Op::VerifyDigest(peer, vol, id));
        self.out.push_back(Output::Disk {
            volume: nr,
            op,
            io: DiskOp::Digest { range, of: DigestOf::Verify },
        });
        Ok(())
    }

    /// A range is about to be written: verify requests that compare it compare nothing.
    pub(crate) fn verify_sees_write(&mut self, vol: VolIx, range: SectorRange) {
        for peer in &mut self.peers {
            let Some(verify) = &mut peer.devs[vol].verify else { continue };
            for request in verify.requests.values_mut() {
                request.written |= request.range.overlaps(range);
            }
        }
    }

    fn verify_request(
        &self,
        peer: PeerIx,
        vol: VolIx,
        id: BlockId,
        range: SectorRange,
    ) -> Result<u64, &'static str> {
        const WRONG: &str = "an answer matches no verify request";
        let id = Resource::block_key(id, IdKind::Verify).ok_or(WRONG)?;
        let verify = self.peers[peer].devs[vol].verify.as_ref().ok_or(WRONG)?;
        let request = verify.requests.get(&id).ok_or(WRONG)?;
        if request.range != range || request.theirs.is_some() { Err(WRONG) } else { Ok(id) }
    }

    /// The own digest is there.
    pub(crate) fn verify_digest(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        id: u64,
        result: Result<DiskData, DiskError>,
    ) {
        let Some(verify) = self.peers[peer].devs[vol].verify.as_ref() else { return };
        let Some(request) = verify.requests.get(&id) else { return };
        let range = request.range;
        let outcome = match &result {
            Ok(DiskData::Digest(own)) if request.theirs.as_ref() == Some(own) => OvResult::InSync,
            Ok(DiskData::Digest(_)) => OvResult::OutOfSync,
            // What could not be read was not compared, here as at the other end.
            _ => OvResult::Skipped,
        };
        let outcome = if request.written { OvResult::Skipped } else { outcome };
        self.verify_result(peer, vol, id, outcome);
        if result.is_err() {
            self.disk_failed(vol, Some(range), "a read for a verify failed");
        }
    }

    fn verify_result(&mut self, peer: PeerIx, vol: VolIx, id: u64, outcome: OvResult) {
        let nr = self.vols[vol].nr;
        let Some(verify) = self.peers[peer].devs[vol].verify.as_mut() else { return };
        let Some(request) = verify.requests.remove(&id) else { return };
        let range = request.range;
        match outcome {
            OvResult::OutOfSync => verify.found += range.len.0,
            OvResult::Skipped => verify.skipped += range.len.0,
            OvResult::InSync | OvResult::Unknown(_) => {}
        }
        if let Some(key) = request.key {
            self.end_interval(vol, key);
        }
        if outcome == OvResult::OutOfSync {
            self.note_difference(peer, vol, range);
        }
        let block_id = Resource::block_id(IdKind::Verify, id);
        let ack = self.block_ack(peer, vol, range, block_id);
        self.send(peer, Packet::OvResultId(nr, ack, outcome));
        self.verify_more(peer, vol);
    }

    /// A block differs: its bit is set here; repair is a resync later.
    fn note_difference(&mut self, peer: PeerIx, vol: VolIx, range: SectorRange) {
        let node = self.peers[peer].node;
        if let Some(backing) = self.vols[vol].backing.as_mut() {
            if let Some(slot) = backing.slot_of(node) {
                backing.set_range(slot, range);
                self.peers[peer].devs[vol].verify_found = true;
            }
        }
        self.write_bitmap(vol);
        let Some(verify) = self.peers[peer].devs[vol].verify.as_mut() else { return };
        let done = match &mut verify.run {
            Some(run) if run.end() == range.start.0 => {
                run.len += range.len;
                None
            }
            run => run.replace(range),
        };
        if let Some(done) = done {
            self.log_difference(peer, vol, done);
        }
    }

    fn log_difference(&mut self, peer: PeerIx, vol: VolIx, range: SectorRange) {
        let text = format!(
            "{}/{}: verify found a difference to {} at {range}",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Warn, text);
    }

    /// P_OV_RESULT_ID: the peer's verdict on a block of a verify it runs.
    pub(crate) fn peer_verify_result(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
        outcome: OvResult,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a verify result names an unknown volume")?;
        if !self.in_volume(vol, ack.range) {
            return Err("a verify result lies outside the volume");
        }
        // Verdicts may come after the end of their verify, and after that of a resync.
        if outcome == OvResult::OutOfSync && self.peers[peer].devs[vol].verify_valid {
            let node = self.peers[peer].node;
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                if let Some(slot) = backing.slot_of(node) {
                    backing.set_range(slot, ack.range);
                    self.peers[peer].devs[vol].verify_found = true;
                }
            }
            self.write_bitmap(vol);
        }
        Ok(())
    }

    /// A resync has begun or ended on one of the two disks: what was found before says nothing
    /// about what is there now. Bits that are left are as good as any others.
    pub(crate) fn forget_verify(&mut self, peer: PeerIx, vol: VolIx) {
        let dev = &mut self.peers[peer].devs[vol];
        dev.verify_found = false;
        dev.verify_valid = false;
    }

    /// The peer could not serve a block of a verify.
    pub(crate) fn verify_skipped(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        ack: BlockAck,
    ) -> Result<(), &'static str> {
        if self.peers[peer].devs[vol].verify.is_none() {
            // It has ended here while the answer was on its way.
            return Ok(());
        }
        let id = self.verify_request(peer, vol, ack.block_id, ack.range)?;
        let verify = self.peers[peer].devs[vol].verify.as_mut().expect("found above");
        let request = verify.requests.remove(&id).expect("found above");
        verify.skipped += request.range.len.0;
        self.verify_more(peer, vol);
        Ok(())
    }

    /// A verify does not go on once one of the disks has left the other behind, which may not know
    /// it and take itself for current. They differ, that much is known, and as long as it runs they
    /// are not compared for a resync.
    pub(crate) fn review_verify(&mut self, peer: PeerIx, vol: VolIx) {
        let verifies = matches!(self.repl(peer, vol), ReplState::VerifyS | ReplState::VerifyT);
        if verifies && self.leaves_behind(peer, vol) {
            self.change_hard(|st| st.peers[peer].devs[vol].repl = ReplState::Established);
        }
    }

    /// One of the two disks names the generation from which on the other one counts what it misses.
    fn leaves_behind(&self, peer: PeerIx, vol: VolIx) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        self.vols[vol].shown_generations().zip(uuids).is_some_and(|(gens, theirs)| {
            let (own, other) = (gens.current(), theirs.current);
            let counts = |base: GenUuid, from: GenUuid| is_generation(base) && base.same(from);
            let behind = counts(gens.bitmap(self.peers[peer].node).uuid, other);
            !own.same(other) && (behind || counts(theirs.bitmap_of(self.me), own))
        })
    }

    /// The verify is over, for whatever reason.
    pub(crate) fn verify_ended(&mut self, peer: PeerIx, vol: VolIx) {
        let Some(verify) = self.peers[peer].devs[vol].verify.take() else { return };
        for (_, request) in verify.requests {
            if let Some(key) = request.key {
                self.end_interval(vol, key);
            }
        }
        if let Some(run) = verify.run {
            self.log_difference(peer, vol, run);
        }
        let dev = &mut self.peers[peer].devs[vol];
        dev.verify_position = if verify.position >= verify.stop { 0 } else { verify.position };
        let text = format!(
            "{}/{}: verify against {} ended: {} different, {} skipped",
            self.name,
            self.vols[vol].nr,
            self.peers[peer].name,
            Sectors(verify.found).bytes(),
            Sectors(verify.skipped).bytes(),
        );
        self.log(if verify.found > 0 { LogLevel::Warn } else { LogLevel::Info }, text);
        // One of the two may have been left behind meanwhile, and nothing was compared then.
        let own = self.presented(vol);
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        if self.st.is_connected(peer) && uuids.is_some_and(|u| !u.current.same(own)) {
            self.ask_recompare(peer, vol);
        }
    }

    /// The connection is lost: the position is kept, the rest ends.
    pub(crate) fn verify_lost_peer(&mut self, peer: PeerIx) {
        for vol in 0..self.vols.len() {
            self.verify_ended(peer, vol);
        }
    }
}

/// One of the two disks has begun to be a mixture of generations, or has ceased to be one. What a
/// resync brings to a disk is not what a verify compared.
pub(crate) fn became_other_disk(old: &State, new: &State, peer: PeerIx, vol: VolIx) -> bool {
    let mixed = |st: &State| {
        [st.vols[vol].disk, st.peers[peer].devs[vol].disk].map(|d| d == DiskState::Inconsistent)
    };
    mixed(old) != mixed(new)
}

/// A verify does not survive the resync of one of its disks.
pub(crate) fn end_verifies(old: &State, new: &mut State, vol: VolIx) {
    for peer in 0..new.peers.len() {
        let verifies =
            matches!(new.peers[peer].devs[vol].repl, ReplState::VerifyS | ReplState::VerifyT);
        if verifies && became_other_disk(old, new, peer, vol) {
            new.peers[peer].devs[vol].repl = ReplState::Established;
        }
    }
}
