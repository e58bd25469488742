//! Reads: for users of this node, locally or from a peer, and for peers without a disk
//! (semantics §7.3).

use codec::wire::{BlockAck, BlockId, BlockReq, Data, DataFlags, Packet};
use serde::{Deserialize, Serialize};
use vocab::options::{Protocol, ReadBalancing};
use vocab::{DiskState, ReplState, SectorRange, VolumeNr};

use crate::io::{BufId, DiskData, DiskError, DiskOp, IoError, Output, Request};
use crate::resource::{IdKind, Op, Resource};
use crate::state::{PeerIx, VolIx};

/// So many reads go to one peer before another gets the next, if that has none under way.
const READS_IN_A_ROW: u32 = 4;

/// A read of a user.
#[derive(Debug)]
pub(crate) struct Read {
    pub vol: VolIx,
    request: Request,
    /// Peer it was sent to; the local disk if none.
    pub from: Option<PeerIx>,
    /// The local disk has failed it.
    local_failed: bool,
    /// Peers that have failed it.
    failed: vocab::NodeMask,
}

/// A read of a peer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeerRead {
    pub peer: PeerIx,
    pub vol: VolIx,
    range: SectorRange,
    block_id: BlockId,
    dead: bool,
    /// Waits for writes received before it.
    waiting: bool,
}

impl Resource {
    /// Starts an admitted read.
    pub(crate) fn start_read(&mut self, vol: VolIx, request: Request) {
        let key = self.reads.insert(Read {
            vol,
            request,
            from: None,
            local_failed: false,
            failed: vocab::NodeMask::EMPTY,
        });
        self.route_read(key);
    }

    /// Sends a read where it can be served, or fails it.
    fn route_read(&mut self, key: usize) {
        let read = &self.reads[key];
        let (vol, range) = (read.vol, read.request.range);
        let local = !read.local_failed && self.may_read_locally(vol, range);
        let remote = self.remote_source(vol, read.failed);
        let local_first = local && (remote.is_none() || self.prefers_local(vol, range));
        if local_first {
            let nr = self.vols[vol].nr;
            self.reads[key].from = None;
            self.vols[vol].reads_in_flight += 1;
            self.vols[vol].stats.read_sectors += range.len.0;
            let op = self.op(Op::Read(key));
            let request = Some(self.reads[key].request.id);
            let io = DiskOp::Read { range, detect_zeroes: false, request };
            self.out.push_back(Output::Disk { volume: nr, op, io });
            return;
        }
        match remote {
            Some(peer) => {
                let nr = self.vols[vol].nr;
                self.reads[key].from = Some(peer);
                self.peers[peer].devs[vol].reads_pending += 1;
                let block_id = Resource::block_id(IdKind::Read, key as u64);
                self.send(peer, Packet::DataRequest(nr, BlockReq { range, block_id }));
            }
            None => self.no_data_for(key),
        }
    }

    /// Nobody can serve it now: fail, or wait for data with the request held.
    fn no_data_for(&mut self, key: usize) {
        let read = self.reads.remove(key).expect("it is in flight");
        let wait = self.st.susp.any();
        if wait {
            self.vols[read.vol].held.push_back(read.request);
            return;
        }
        let (volume, id) = (read.request.volume, read.request.id);
        self.complete(volume, id, Err(IoError::Io));
    }

    /// The local disk has the newest data of the range.
    fn may_read_locally(&self, vol: VolIx, range: SectorRange) -> bool {
        match self.st.vols[vol].disk {
            DiskState::UpToDate => self.vols[vol].backing.is_some(),
            DiskState::Inconsistent => self.vols[vol].backing.as_ref().is_some_and(|b| {
                // Until a source has sent its bitmap, or while it is Ahead, the bits here do not tell
                // what differs from it.
                let untold = |repl| matches!(repl, ReplState::WFBitMapT | ReplState::Behind);
                let told = (0..self.peers.len()).all(|p| !untold(self.repl(p, vol)));
                let assigned = (0..b.bitmap.slots()).filter(|s| b.node_of_slot(*s).is_some());
                let differs = assigned.into_iter().any(|s| b.bitmap.test_any(s, range));
                self.st.is_target(vol) && told && !differs
            }),
            _ => false,
        }
    }

    /// The best peer to read from: protocol C before B before A, and among equals the one with the
    /// fewest reads under way, but some in a row from the same: what goes to one peer goes in one
    /// packet of the network and is answered in one, and a system call or a wakeup costs more than
    /// a read.
    fn remote_source(&mut self, vol: VolIx, failed: vocab::NodeMask) -> Option<PeerIx> {
        let rank = |p: PeerIx| match self.peers[p].net.protocol {
            Protocol::C => 0,
            Protocol::B => 1,
            Protocol::A => 2,
        };
        // Looked through more than once: a list would be an allocation for each read.
        let usable = || {
            self.st.connected().filter(|p| {
                let dev = &self.st.peers[*p].devs[vol];
                dev.disk == DiskState::UpToDate
                    && dev.repl != ReplState::Ahead
                    && self.peers[*p].net.allow_remote_read
                    && !failed.contains(self.peers[*p].node)
            })
        };
        let best = usable().map(rank).min()?;
        let equals = || usable().filter(|p| rank(*p) == best);
        let pending = |p: PeerIx| self.peers[p].devs[vol].reads_pending;
        let last = self.vols[vol].last_source;
        // Those behind the last one first, lest all nodes begin with the same.
        let turn = |p: PeerIx| (p <= last, p);
        let least = equals().min_by_key(|p| (pending(*p), turn(*p)))?;
        let stays = equals().any(|p| p == last) && pending(last) < pending(least) + READS_IN_A_ROW;
        let source = if stays { last } else { least };
        self.vols[vol].last_source = source;
        Some(source)
    }

    /// Both ways are open: which one (option read-balancing)?
    fn prefers_local(&mut self, vol: VolIx, range: SectorRange) -> bool {
        let stripe = |bits: u32| (range.start.byte() >> bits) & 1 == 0;
        match self.vols[vol].disk_opts.read_balancing {
            ReadBalancing::PreferLocal | ReadBalancing::WhenCongestedRemote => true,
            ReadBalancing::PreferRemote => false,
            ReadBalancing::RoundRobin => {
                let turn = self.vols[vol].round_robin;
                self.vols[vol].round_robin = turn.wrapping_add(1);
                turn.is_multiple_of(2)
            }
            ReadBalancing::LeastPending => {
                let remote = self
                    .st
                    .connected()
                    .filter(|p| self.st.peers[*p].devs[vol].disk == DiskState::UpToDate)
                    .map(|p| self.peers[p].devs[vol].reads_pending)
                    .min();
                remote.is_none_or(|pending| self.vols[vol].reads_in_flight <= pending)
            }
            ReadBalancing::Striping32K => stripe(15),
            ReadBalancing::Striping64K => stripe(16),
            ReadBalancing::Striping128K => stripe(17),
            ReadBalancing::Striping256K => stripe(18),
            ReadBalancing::Striping512K => stripe(19),
            ReadBalancing::Striping1M => stripe(20),
        }
    }

    /// The local disk has read, or failed to.
    pub(crate) fn local_read_done(&mut self, key: usize, result: Result<DiskData, DiskError>) {
        let Some(read) = self.reads.get_mut(key) else {
            if let Ok(DiskData::Read { buf, .. }) = result {
                self.free(Some(buf));
            }
            return;
        };
        let (vol, range) = (read.vol, read.request.range);
        self.vols[vol].reads_in_flight -= 1;
        match result {
            Ok(DiskData::Read { buf, .. }) => self.complete_read(key, buf),
            _ => {
                self.reads[key].local_failed = true;
                self.disk_failed(vol, Some(range), "a read failed");
                if self.reads.get(key).is_some() {
                    self.route_read(key);
                }
            }
        }
    }

    fn complete_read(&mut self, key: usize, buf: BufId) {
        let read = self.reads.remove(key).expect("it is in flight");
        // A forced demotion, or quorum lost with io-error, reaches reads in flight, too.
        let result = if self.st.fail_io { Err(IoError::Io) } else { Ok(Some(buf)) };
        let (volume, id) = (read.request.volume, read.request.id);
        self.complete(volume, id, result);
        self.free(Some(buf));
    }

    /// P_DATA_REPLY.
    pub(crate) fn data_reply(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        data: Data,
        buf: BufId,
    ) -> Result<(), &'static str> {
        match self.remote_read(peer, nr, data.block_id, data.range) {
            Ok(key) => {
                self.complete_read(key, buf);
                Ok(())
            }
            Err(why) => {
                self.free(Some(buf));
                Err(why)
            }
        }
    }

    /// P_NEG_DREPLY: try elsewhere.
    pub(crate) fn data_refused(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
    ) -> Result<(), &'static str> {
        let key = self.remote_read(peer, nr, ack.block_id, ack.range)?;
        let node = self.peers[peer].node;
        self.reads[key].failed.insert(node);
        self.reads[key].from = None;
        self.route_read(key);
        Ok(())
    }

    fn remote_read(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        id: BlockId,
        range: SectorRange,
    ) -> Result<usize, &'static str> {
        const WRONG: &str = "an answer matches no read";
        let key = Resource::block_key(id, IdKind::Read).ok_or(WRONG)?;
        let key = usize::try_from(key).map_err(|_| WRONG)?;
        let read = self.reads.get(key).ok_or(WRONG)?;
        let vol = read.vol;
        if read.from != Some(peer) || read.request.range != range || self.vols[vol].nr != nr {
            return Err(WRONG);
        }
        let dev = &mut self.peers[peer].devs[vol];
        dev.reads_pending = dev.reads_pending.saturating_sub(1);
        dev.received_sectors += range.len.0;
        Ok(key)
    }

    /// A connection is lost: its reads go elsewhere.
    pub(crate) fn reads_lost_peer(&mut self, peer: PeerIx) {
        let keys: Vec<usize> =
            self.reads.iter().filter(|(_, r)| r.from == Some(peer)).map(|(k, _)| k).collect();
        for (_, read) in self.peer_reads.iter_mut().filter(|(_, r)| r.peer == peer) {
            read.dead = true;
        }
        for dev in &mut self.peers[peer].devs {
            dev.reads_pending = 0;
        }
        let node = self.peers[peer].node;
        for key in keys {
            // Not a failure of the peer's disk, but it is not there to be asked again.
            self.reads[key].failed.insert(node);
            self.reads[key].from = None;
            self.route_read(key);
        }
    }

    /// The local disk is lost. Reads on it end by themselves and are routed again then.
    pub(crate) fn reads_lost_disk(&mut self, vol: VolIx) {
        for (_, read) in self.reads.iter_mut().filter(|(_, r)| r.vol == vol) {
            read.local_failed |= read.from.is_none();
        }
    }

    /// P_DATA_REQUEST: a peer without the data reads from this disk.
    pub(crate) fn peer_read(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        req: BlockReq,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a read names an unknown volume")?;
        if !self.in_volume(vol, req.range) || req.range.len.0 == 0 || req.range.len.0 > 2048 {
            return Err("a read lies outside the volume or is too large");
        }
        let range = req.range;
        if self.st.vols[vol].disk != DiskState::UpToDate || self.vols[vol].backing.is_none() {
            let ack = self.block_ack(peer, vol, range, req.block_id);
            self.send(peer, Packet::NegDreply(nr, ack));
            return Ok(());
        }
        let block_id = req.block_id;
        let read = PeerRead { peer, vol, range, block_id, dead: false, waiting: true };
        let key = self.peer_reads.insert(read);
        self.try_peer_read(key);
        Ok(())
    }

    /// A read follows the writes that were sent before it, also where nobody waits for their
    /// acks (protocol A).
    fn try_peer_read(&mut self, key: usize) {
        let PeerRead { peer, vol, range, block_id, dead, .. } = self.peer_reads[key];
        let nr = self.vols[vol].nr;
        if self.st.vols[vol].disk != DiskState::UpToDate {
            // The disk was lost while the read waited.
            self.peer_reads.remove(key);
            if !dead {
                let ack = self.block_ack(peer, vol, range, block_id);
                self.send(peer, Packet::NegDreply(nr, ack));
            }
            return;
        }
        if self.peer_writes.iter().any(|(_, w)| w.vol == vol && w.range.overlaps(range)) {
            return;
        }
        self.peer_reads[key].waiting = false;
        self.vols[vol].stats.read_sectors += range.len.0;
        let op = self.op(Op::PeerRead(key));
        let io = DiskOp::Read { range, detect_zeroes: false, request: None };
        self.out.push_back(Output::Disk { volume: nr, op, io });
    }

    /// A peer's write ended: reads that waited for it may go.
    pub(crate) fn retry_peer_reads(&mut self, vol: VolIx) {
        if self.peer_reads.len() == 0 {
            return;
        }
        let waiting: Vec<usize> = self
            .peer_reads
            .iter()
            .filter(|(_, r)| r.vol == vol && r.waiting)
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            self.try_peer_read(key);
        }
    }

    /// The block for a peer has been read.
    pub(crate) fn peer_read_done(&mut self, key: usize, result: Result<DiskData, DiskError>) {
        let Some(read) = self.peer_reads.remove(key) else { return };
        let PeerRead { peer, vol, range, block_id, dead, .. } = read;
        let nr = self.vols[vol].nr;
        match result {
            Ok(DiskData::Read { buf, .. }) => {
                // The disk may have lost its standing while it was read.
                if !dead && self.st.vols[vol].disk == DiskState::UpToDate {
                    let data = Data { range, block_id, seq: 0, flags: DataFlags::default() };
                    self.peers[peer].devs[vol].sent_sectors += range.len.0;
                    self.send_with(peer, Packet::DataReply(nr, data), Some(buf));
                } else if !dead {
                    let ack = self.block_ack(peer, vol, range, block_id);
                    self.send(peer, Packet::NegDreply(nr, ack));
                }
                self.free(Some(buf));
            }
            _ => {
                if !dead {
                    let ack = self.block_ack(peer, vol, range, block_id);
                    self.send(peer, Packet::NegDreply(nr, ack));
                }
                self.disk_failed(vol, Some(range), "a read failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::attached;
    use vocab::options::ResourceOptions;

    #[test]
    fn a_target_reads_nothing_of_its_own_before_its_source_has_said_what_differs() {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        assert_eq!(resource.st.vols[0].disk, DiskState::Inconsistent);
        let mut reads = |repl: ReplState| {
            resource.st.peers[0].devs[0].repl = repl;
            resource.may_read_locally(0, SectorRange::new(0, 8))
        };
        assert!(!reads(ReplState::WFBitMapT));
        assert!(reads(ReplState::SyncTarget));
    }
}
