//! The source's side of a resync: requests of a peer, answered from this disk once it has what
//! the request depends on (wire §7.4). Requests of a verify come the same way.
//!
//! While users work on this disk, requests of a resync wait for so long that it gets `c-min-rate`
//! and no more (semantics §9.4), or if that is not set, that users hardly notice it. None waits for
//! long: what is asked for is locked at the target, where a user may want to write to it. It is
//! cancelled instead, and asked for again.

use std::time::Duration;

use codec::wire::{BlockAck, BlockId, DagtagDep, Data, DataFlags, Digest, Packet, RsReq};
use serde::{Deserialize, Serialize};
use vocab::{Dagtag, DiskState, Instant, NodeId, ReplState, SectorRange, Sectors, VolumeNr};

use crate::intervals::Slot;
use crate::io::{BufId, DigestOf, DiskData, DiskError, DiskOp, Output};
use crate::rate::Load;
use crate::request::WaitingOn;
use crate::resource::{Op, Owner, Resource};
use crate::state::{PeerIx, VolIx};

/// A request that could not be answered for so long, because users' I/O has precedence, is
/// cancelled.
const MAX_HOLD: Duration = Duration::from_millis(500);
/// The same if `c-min-rate` is not set. What an Ashlar has asked for before it saw the users, it
/// asks for again in smaller pieces.
const MAX_HOLD_AUTO: Duration = Duration::from_millis(100);

/// A request of a peer that this node answers: resync or verify.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    pub peer: PeerIx,
    pub vol: VolIx,
    pub range: SectorRange,
    pub(super) block_id: BlockId,
    kind: ServeKind,
    /// Of the requester's copy.
    pub(super) theirs: Option<Digest>,
    dep: DagtagDep,
    interval: Option<Slot>,
    /// Since when users' I/O has precedence.
    held: Option<Instant>,
    reading: bool,
    replied: bool,
    /// The connection is gone, or the answer is not wanted any more.
    dead: bool,
}

/// What the peer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ServeKind {
    Data,
    Thin,
    /// Data, if they do not have the digest that came with the request.
    Digest,
    Verify,
}

impl Serve {
    /// Its answer is on its way to this peer, or will be: a block of a resync.
    pub(crate) fn is_owed_to(&self, peer: PeerIx) -> bool {
        self.peer == peer && self.kind != ServeKind::Verify && !self.dead
    }

    /// The requester has its answer, and owes an ack for it.
    pub(crate) const fn is_answered(&self) -> bool {
        self.replied
    }

    pub(crate) const fn block_id(&self) -> BlockId {
        self.block_id
    }
}

impl Resource {
    /// A resync or verify request of a peer.
    pub(crate) fn serve(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        req: RsReq,
        kind: ServeKind,
    ) -> Result<(), &'static str> {
        self.take_request(peer, nr, req, kind, None)
    }

    pub(super) fn take_request(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        req: RsReq,
        kind: ServeKind,
        theirs: Option<Digest>,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a resync request names an unknown volume")?;
        if !self.st.is_connected(peer) {
            return Err("a resync request before the connection was established");
        }
        if !self.in_volume(vol, req.range) || req.range.len.0 == 0 || req.range.len.0 > 2048 {
            return Err("a resync request lies outside the volume or is too large");
        }
        if req.block_id == BlockId::SYNCER {
            return Err("a resync request without an id of its own");
        }
        let repl = self.repl(peer, vol);
        let busy = match kind {
            ServeKind::Verify => repl != ReplState::VerifyT,
            _ => !matches!(repl, ReplState::SyncSource | ReplState::PausedSyncS),
        };
        if busy || !self.disk_in_use(vol) || self.st.vols[vol].disk < DiskState::Inconsistent {
            let ack = self.block_ack(peer, vol, req.range, req.block_id);
            let ahead = kind != ServeKind::Verify && repl == ReplState::Ahead;
            self.send(
                peer,
                match ahead {
                    true => Packet::RsCancelAhead(nr, ack),
                    false => Packet::RsCancel(nr, ack),
                },
            );
            return Ok(());
        }
        if kind != ServeKind::Verify {
            self.peers[peer].rs_under_way += req.range.len.0;
        }
        let key = self.serves.insert(Serve {
            peer,
            vol,
            range: req.range,
            block_id: req.block_id,
            kind,
            theirs,
            dep: req.dep,
            interval: None,
            held: None,
            reading: false,
            replied: false,
            dead: false,
        });
        let waits = match kind {
            ServeKind::Verify => None,
            // It has locked more for it than what it asks for.
            _ if self.is_plain(peer) => None,
            _ => self.gives_way(peer, vol, req.range.len),
        };
        match waits {
            Some(until) => {
                self.serves[key].held = Some(self.now);
                self.resync_mut(peer, vol).release_at.get_or_insert(until);
            }
            None => self.try_serve(key),
        }
        Ok(())
    }

    /// Until when a request that comes now waits: for those that wait already, or because users'
    /// I/O competes and the resync has had what it gets meanwhile.
    fn gives_way(&mut self, peer: PeerIx, vol: VolIx, len: Sectors) -> Option<Instant> {
        let resync = self.peers[peer].devs[vol].resync.as_ref();
        resync.and_then(|r| r.release_at).or_else(|| self.must_wait(peer, vol, len))
    }

    /// `None` if users' I/O leaves room for a request, else when to look again.
    fn must_wait(&mut self, peer: PeerIx, vol: VolIx, len: Sectors) -> Option<Instant> {
        let (now, left) = (self.now, self.out_of_sync(peer, vol));
        // I/O that waits for better times may wait for the end of this resync.
        if left.0 == 0 || self.st.susp.any() {
            return None;
        }
        let load = self.load(vol)?;
        let dev = &mut self.peers[peer].devs[vol];
        let c_min_rate = dev.opts.c_min_rate;
        let throttle = dev.resync.as_mut().and_then(|r| r.throttle.as_mut())?;
        throttle.wait(now, left, load, c_min_rate, len)
    }

    /// What users do with the disk of a volume.
    pub(super) fn load(&self, vol: VolIx) -> Option<Load> {
        let application_active = self.vols[vol].backing.as_ref()?.al.is_active();
        Some(Load { application_active, foreign_total: self.users_total(vol) })
    }

    /// When requests that wait for users' I/O are looked at again.
    pub(crate) fn release_deadline(&self, peer: PeerIx, vol: VolIx) -> Option<Instant> {
        self.peers[peer].devs[vol].resync.as_ref()?.release_at
    }

    /// Their time has come: answers as many of the requests that wait as users' I/O leaves room for,
    /// in order, and cancels those that waited for too long.
    pub(crate) fn release_held(&mut self, peer: PeerIx, vol: VolIx) {
        let mine = |s: &Serve| s.peer == peer && s.vol == vol && !s.dead;
        let mut held: Vec<(Instant, usize)> = self
            .serves
            .iter()
            .filter(|(_, s)| mine(s))
            .filter_map(|(key, s)| Some((s.held?, key)))
            .collect();
        held.sort_unstable();
        let now = self.now;
        let max_hold = match self.peers[peer].devs[vol].opts.c_min_rate {
            Some(_) => MAX_HOLD,
            None => MAX_HOLD_AUTO,
        };
        // A DRBD node whose last requests are all cancelled may never ask again (seen with 9.3.3).
        let repeats = self.is_ours(peer);
        let (mut again, mut waiting) = (None, false);
        for (since, key) in held {
            again = again.or_else(|| self.must_wait(peer, vol, self.serves[key].range.len));
            if again.is_none() {
                self.serves[key].held = None;
                self.try_serve(key);
            } else if repeats && now.since(since) >= max_hold {
                self.cancel(key);
            } else {
                waiting = true;
            }
        }
        if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
            resync.release_at = again.filter(|_| waiting);
        }
    }

    /// The requester gets no answer to this request, and may ask again.
    fn cancel(&mut self, key: usize) {
        let serve = &self.serves[key];
        let (peer, vol, range, block_id) = (serve.peer, serve.vol, serve.range, serve.block_id);
        let nr = self.vols[vol].nr;
        self.forget_serve(key);
        let ack = self.block_ack(peer, vol, range, block_id);
        self.send(peer, Packet::RsCancel(nr, ack));
    }

    /// Is what the requester has seen of the Primary's writes here, too?
    pub(super) fn dependency_met(&self, dep: DagtagDep) -> Result<bool, ()> {
        if dep == DagtagDep::default() || dep.node_id == u32::from(self.me.get()) {
            return Ok(true);
        }
        let node = u8::try_from(dep.node_id).ok().and_then(NodeId::new);
        let Some(owner) = node.and_then(|n| self.peer_ix(n)) else { return Ok(true) };
        if !self.st.is_connected(owner) {
            return Ok(true);
        }
        Ok(self.peers[owner].recv.last_dagtag >= dep.dagtag)
    }

    /// Goes on with a request: dependency, then conflicts, then the read.
    pub(crate) fn try_serve(&mut self, key: usize) {
        let Some(serve) = self.serves.get(key) else { return };
        if serve.dead {
            self.forget_serve(key);
            return;
        }
        let (peer, vol, range, kind) = (serve.peer, serve.vol, serve.range, serve.kind);
        let (dep, block_id) = (serve.dep, serve.block_id);
        if self.dependency_met(dep) != Ok(true) {
            return;
        }
        // A verify fetches nothing, and finds what differs.
        let fetches = kind != ServeKind::Verify && dep != DagtagDep::default();
        if let Some(writer) = u8::try_from(dep.node_id).ok().and_then(NodeId::new) {
            if fetches && !self.joined_at(peer, vol, writer, dep.dagtag) {
                return;
            }
        }
        if self.is_plain(peer) && self.plain_must_wait(key) {
            return self.cancel(key);
        }
        let nr = self.vols[vol].nr;
        if !self.disk_in_use(vol) {
            // It was lost while the request waited.
            self.forget_serve(key);
            let ack = self.block_ack(peer, vol, range, block_id);
            return self.send(peer, Packet::RsCancel(nr, ack));
        }
        if kind == ServeKind::Verify {
            let busy = self.vols[vol]
                .conflict(range, |o| !matches!(o, Owner::Verify(_) | Owner::ResyncSource(..)));
            if busy.is_some() || self.has_waiting_write(vol, range) {
                self.forget_serve(key);
                let ack = self.block_ack(peer, vol, range, block_id);
                return self.send(peer, Packet::RsCancel(nr, ack));
            }
        } else {
            // What this node itself fetches may wait for a write that the requester does not execute
            // as long as it waits for the answer: nobody would ever go on.
            let fetched = |o: Owner| matches!(o, Owner::ResyncTarget(_));
            if self.vols[vol].conflict(range, fetched).is_some() {
                self.forget_serve(key);
                let ack = self.block_ack(peer, vol, range, block_id);
                return self.send(peer, Packet::RsCancel(nr, ack));
            }
            let writes = |o: Owner| !matches!(o, Owner::Verify(_) | Owner::ResyncSource(..));
            let busy = self.vols[vol].conflict(range, writes).is_some();
            if busy || self.has_waiting_write(vol, range) {
                self.vols[vol].conflict_wait.push_back(WaitingOn::Serve(key));
                return;
            }
        }
        let owner = match kind {
            ServeKind::Verify => Owner::Verify(peer),
            _ => Owner::ResyncSource(peer, key),
        };
        let interval = self.vols[vol].claim(range, owner);
        let serve = &mut self.serves[key];
        serve.interval = Some(interval);
        serve.reading = true;
        let op = self.op(Op::Serve(key));
        let io = match kind {
            ServeKind::Verify => DiskOp::Digest { range, of: DigestOf::Verify },
            ServeKind::Digest => DiskOp::ReadWithDigest { range, peer: self.peers[peer].node },
            _ => DiskOp::Read { range, detect_zeroes: kind == ServeKind::Thin, request: None },
        };
        self.out.push_back(Output::Disk { volume: nr, op, io });
    }

    /// A request without a position is not answered now, and is not kept either: what it would wait for
    /// may wait for the answer, since the peer locks more than it has asked for (wire §7.6).
    fn plain_must_wait(&mut self, key: usize) -> bool {
        let serve = &self.serves[key];
        let (peer, vol, range, kind) = (serve.peer, serve.vol, serve.range, serve.kind);
        if kind == ServeKind::Verify {
            return self.is_in_use(vol, range);
        }
        // What a Primary wrote before the two met, the target may lack.
        let writers = self.st.primary_peers().without(self.peers[peer].node);
        for writer in writers.iter() {
            if !self.joined_at(peer, vol, writer, Dagtag(u64::MAX)) {
                return true;
            }
        }
        let writes = |o: Owner| !matches!(o, Owner::Verify(_) | Owner::ResyncSource(..));
        self.vols[vol].conflict(range, writes).is_some()
            || self.has_waiting_write(vol, range)
            || self.stands_behind_writes(peer, vol, range)
    }

    /// Writes of a Primary arrived, or it is gone: requests that waited for them go on.
    pub(crate) fn serve_dagtags(&mut self, peer: PeerIx) {
        if self.serves.len() == 0 {
            return;
        }
        let node = u32::from(self.peers[peer].node.get());
        let waiting: Vec<usize> = self
            .serves
            .iter()
            .filter(|(_, s)| !s.reading && !s.replied && s.dep.node_id == node && !s.dead)
            .filter(|(_, s)| s.held.is_none())
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            let queued =
                self.vols[self.serves[key].vol].conflict_wait.contains(&WaitingOn::Serve(key));
            if !queued {
                self.try_serve(key);
            }
        }
    }

    /// The block for a peer has been read.
    pub(crate) fn served(&mut self, key: usize, result: Result<DiskData, DiskError>) {
        let Some(serve) = self.serves.get_mut(key) else {
            self.free(read_buf(&result));
            return;
        };
        serve.reading = false;
        let (peer, vol, range, block_id) = (serve.peer, serve.vol, serve.range, serve.block_id);
        let (dead, kind) = (serve.dead, serve.kind);
        let nr = self.vols[vol].nr;
        match result {
            _ if dead => {
                self.free(read_buf(&result));
                self.end_serve(key);
            }
            // It would stand behind writes that the target takes once it has the answer.
            Ok(_)
                if kind != ServeKind::Verify
                    && self.is_plain(peer)
                    && self.stands_behind_writes(peer, vol, range) =>
            {
                self.free(read_buf(&result));
                let ack = self.block_ack(peer, vol, range, block_id);
                self.send(peer, Packet::RsCancel(nr, ack));
                self.end_serve(key);
            }
            Ok(DiskData::ReadWithDigest { buf, digest }) if self.is_equal(key, digest) => {
                self.free(Some(buf));
                self.answer_equal(key);
            }
            Ok(DiskData::Read { .. } | DiskData::ReadWithDigest { .. }) => {
                let buf = read_buf(&result).expect("a read gives a buffer");
                let all_zero = matches!(result, Ok(DiskData::Read { all_zero: true, .. }));
                if kind == ServeKind::Thin && all_zero {
                    let ack = BlockAck { range, block_id, seq: 0 };
                    self.send(peer, Packet::RsDeallocatedId(nr, ack));
                } else {
                    let data = Data { range, block_id, seq: 0, flags: DataFlags::default() };
                    self.send_with(peer, Packet::RsDataReply(nr, data), Some(buf));
                }
                self.peers[peer].devs[vol].sent_sectors += range.len.0;
                self.free(Some(buf));
                self.serves[key].replied = true;
            }
            Ok(DiskData::Digest(digest)) => {
                let dep = self.dagtag_dependency().unwrap_or_default();
                let req = RsReq { range, block_id, dep };
                self.send(peer, Packet::OvDagtagReply(nr, req, digest));
                // The comparison is the requester's; nothing is locked for it.
                self.end_serve(key);
            }
            Ok(DiskData::None) | Err(_) => {
                let ack = self.block_ack(peer, vol, range, block_id);
                let packet = match kind {
                    ServeKind::Verify => Packet::RsCancel(nr, ack),
                    _ => Packet::NegRsDreply(nr, ack),
                };
                self.send(peer, packet);
                self.end_serve(key);
                if result.is_err() {
                    self.disk_failed(vol, Some(range), "a read for a resync failed");
                }
            }
        }
    }

    /// It is under way no longer.
    fn forget_serve(&mut self, key: usize) -> Option<Serve> {
        let serve = self.serves.remove(key)?;
        if serve.is_owed_to(serve.peer) {
            self.peers[serve.peer].rs_under_way -= serve.range.len.0;
        }
        Some(serve)
    }

    pub(super) fn end_serve(&mut self, key: usize) {
        if let Some(serve) = self.forget_serve(key) {
            if let Some(interval) = serve.interval {
                self.end_interval(serve.vol, interval);
            }
        }
    }

    /// Nobody waits for the answer any more. The end of another one before may have ended it.
    pub(crate) fn drop_serve(&mut self, key: usize) {
        let Some(serve) = self.serves.get(key).filter(|s| !s.dead) else { return };
        if !serve.replied && self.is_plain(serve.peer) {
            // The peer goes by ranges: what it asks for next would get the answers to this.
            let (peer, vol, range, id) = (serve.peer, serve.vol, serve.range, serve.block_id);
            let nr = self.vols[vol].nr;
            let ack = self.block_ack(peer, vol, range, id);
            self.send(peer, Packet::RsCancel(nr, ack));
        }
        self.drop_answered(key);
    }

    /// The same, with the answer sent.
    pub(crate) fn drop_answered(&mut self, key: usize) {
        let Some(serve) = self.serves.get_mut(key).filter(|s| !s.dead) else { return };
        if serve.is_owed_to(serve.peer) {
            self.peers[serve.peer].rs_under_way -= serve.range.len.0;
        }
        serve.dead = true;
        if serve.reading {
            return;
        }
        let waiting = self.vols[serve.vol].conflict_wait.contains(&WaitingOn::Serve(key));
        if !waiting {
            self.end_serve(key);
        }
    }

    pub(crate) fn serve_keys(
        &self,
        peer: PeerIx,
        vol: VolIx,
        kind: impl Fn(ServeKind) -> bool,
    ) -> Vec<usize> {
        self.serves
            .iter()
            .filter(|(_, s)| s.peer == peer && s.vol == vol && kind(s.kind) && !s.dead)
            .map(|(key, _)| key)
            .collect()
    }

    /// P_RS_WRITE_ACK or P_RS_NEG_ACK: the target has the block, or could not take it.
    pub(crate) fn resync_acked(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
        ok: bool,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a resync ack names an unknown volume")?;
        // Left over from an earlier connection may be one of the same name that is still read.
        let found = self.serves.iter().find(|(_, s)| {
            let named = s.block_id == ack.block_id && s.range == ack.range;
            s.peer == peer && s.vol == vol && named && !s.dead
        });
        let Some((key, serve)) = found else {
            // The resync may have been cancelled here while the target was writing.
            return match self.repl(peer, vol).is_source() {
                true => Err("a resync ack matches no request"),
                false => Ok(()),
            };
        };
        if !serve.replied {
            return Err("a resync ack before its data");
        }
        let (now, users_total) = (self.now, self.users_total(vol));
        let resync = self.peers[peer].devs[vol].resync.as_mut();
        if let Some(throttle) = resync.and_then(|r| r.throttle.as_mut()) {
            throttle.answered(now, users_total);
        }
        if ok {
            self.target_has(peer, vol, ack.range);
        } else if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
            resync.failed += ack.range.len.0;
        }
        self.end_serve(key);
        self.arrived(peer);
        Ok(())
    }

    /// The target's block is this disk's.
    pub(super) fn target_has(&mut self, peer: PeerIx, vol: VolIx, range: SectorRange) {
        let node = self.peers[peer].node;
        let mut news = false;
        if let Some(backing) = self.vols[vol].backing.as_mut() {
            if let Some(slot) = backing.slot_of(node) {
                news = backing.bitmap.test_any(slot, range);
                backing.clear_range(slot, range);
            }
        }
        self.write_bitmap_lazily(vol);
        self.became_in_sync(peer, vol, range, news);
    }

    /// The connection to `peer` is lost: nobody is answered there, nor what waits for its writes.
    pub(super) fn serve_lost_peer(&mut self, peer: PeerIx) {
        let theirs = |s: &Serve| s.peer == peer && !s.dead;
        let keys: Vec<usize> =
            self.serves.iter().filter(|(_, s)| theirs(s)).map(|(key, _)| key).collect();
        for key in keys {
            self.drop_serve(key);
        }
        // Requests of others that waited for this peer's writes are not answerable any more.
        let node = u32::from(self.peers[peer].node.get());
        let waits = |s: &Serve| s.dep.node_id == node && !s.reading && !s.replied && !s.dead;
        let waiting: Vec<usize> =
            self.serves.iter().filter(|(_, s)| waits(s)).map(|(key, _)| key).collect();
        for key in waiting {
            let Some(s) = self.serves.get(key).filter(|s| waits(s)) else { continue };
            let (to, vol, range, id) = (s.peer, s.vol, s.range, s.block_id);
            let nr = self.vols[vol].nr;
            let ack = self.block_ack(to, vol, range, id);
            self.send(to, Packet::RsCancel(nr, ack));
            self.drop_answered(key);
        }
    }
}

/// The buffer that came with the end of an operation.
pub(crate) fn read_buf(result: &Result<DiskData, DiskError>) -> Option<BufId> {
    match result {
        Ok(DiskData::Read { buf, .. } | DiskData::ReadWithDigest { buf, .. }) => Some(*buf),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use codec::wire::feature;
    use vocab::ConnState;
    use vocab::options::{KibPerSecond, ResourceOptions};

    use super::*;
    use crate::io::Output;
    use crate::rate::Throttle;
    use crate::resource::Link;
    use crate::testing::attached;

    /// A request waits because users' I/O has precedence, and goes on waiting: what the requester is
    /// told once it has waited for so long.
    fn cancelled(features: u32) -> usize {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let mut resource = attached(ResourceOptions::default(), |_| {});
        resource.now = at(1000);
        let peer = &mut resource.peers[0];
        (peer.link, peer.agreed_version, peer.agreed_features) = (Link::Up, 122, features);
        peer.devs[0].opts.c_min_rate = Some(KibPerSecond(250));
        resource.st.peers[0].conn = ConnState::Connected;
        resource.st.peers[0].devs[0].repl = ReplState::SyncSource;
        resource.st.vols[0].disk = DiskState::UpToDate;
        let backing = resource.vols[0].backing.as_mut().unwrap();
        let slot = backing.slot_of(resource.peers[0].node).unwrap();
        backing.bitmap.set_all(slot);
        let left = resource.out_of_sync(0, 0);
        // Some of it was done before.
        let before = Sectors(left.0 + 8192);
        resource.resync_mut(0, 0).throttle = Some(Throttle::new(at(900), before, Sectors(0)));
        let ask = |resource: &mut Resource, id: u64| {
            resource.vols[0].stats.written_sectors += 1000;
            let range = SectorRange::new(2048 * id, 2048);
            let req = RsReq { range, block_id: BlockId(id), dep: DagtagDep::default() };
            resource.serve(0, VolumeNr(0), req, ServeKind::Data).unwrap();
        };
        (1..4).for_each(|id| ask(&mut resource, id));
        let held = |resource: &Resource| {
            resource.serves.iter().filter(|(_, serve)| serve.held.is_some()).count()
        };
        assert_eq!(held(&resource), 2, "the first one is answered");
        resource.now = at(1700);
        resource.vols[0].stats.written_sectors += 1000;
        resource.release_held(0, 0);
        let cancels = resource
            .out
            .iter()
            .filter(|output| matches!(output, Output::Send { packet: Packet::RsCancel(..), .. }));
        let cancels = cancels.count();
        assert_eq!(cancels + held(&resource), 2);
        cancels
    }

    /// A DRBD node whose requests were cancelled, every one that it had, was seen to ask for nothing any
    /// more.
    #[test]
    fn requests_that_give_way_to_users_for_long_are_cancelled_if_they_are_repeated_for_sure() {
        assert_eq!(cancelled(feature::OURS), 2);
        assert_eq!(cancelled(feature::OURS & !feature::BITS_OF_EQUALS), 0);
    }
}
