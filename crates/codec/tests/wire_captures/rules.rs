//! What packets of a connection say about each other (wire §3.3, §5.3 to §5.5, §7.4). The rules
//! are checked against kernel nodes here; simulators and replays can use the same checker.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use codec::wire::{BlockAck, BlockId, DataFlags, OvResult, Packet};
use vocab::{Dagtag, NodeMask, SectorRange, VolumeNr};

use crate::streams::Captured;

/// Requests are told apart by volume, id and range.
type Key = (u16, u64, SectorRange);

fn key(volume: VolumeNr, id: BlockId, range: SectorRange) -> Key {
    (volume.0, id.0, range)
}

/// A write that is not peer-acked yet.
struct Write {
    dagtag: Dagtag,
    /// Number of the epoch it belongs to, counted from the first that was seen.
    epoch: u64,
}

/// What one node has sent on a connection and waits for.
#[derive(Default)]
struct Side {
    /// Sequence numbers by volume.
    seqs: BTreeMap<u16, Vec<u32>>,
    /// Position after the last write; unknown until a P_DAGTAG was seen.
    dagtag: Option<Dagtag>,
    writes: VecDeque<Write>,
    /// Open epoch, and how many were confirmed by barrier acks.
    epoch: u64,
    epochs_acked: u64,
    /// Writes in the open epoch; unknown in the first of a capture that starts in the middle.
    in_epoch: Option<u32>,
    /// Barriers without ack: opaque number and writes.
    barriers: VecDeque<(u32, Option<u32>)>,
    /// Acks that writes still wait for.
    acks: BTreeMap<Key, u32>,
    /// Requests without answer, and answers without ack (as the answerer's).
    requests: BTreeMap<Key, u32>,
    unacked: BTreeMap<Key, u32>,
}

fn take(counts: &mut BTreeMap<Key, u32>, key: Key) -> bool {
    match counts.get_mut(&key) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

/// The connection of two nodes.
#[derive(Default)]
pub struct Connection {
    sides: BTreeMap<Ipv4Addr, Side>,
    /// The capture contains the connect, so that every request was seen.
    complete: bool,
    complaints: Vec<String>,
    /// How often each rule had something to check.
    pub checked: BTreeMap<&'static str, u32>,
}

impl Connection {
    /// Takes the next packet of either direction and stream.
    pub fn packet(&mut self, captured: &Captured) {
        if captured.starts && matches!(captured.packet, Packet::InitialData) {
            self.end();
            self.complete = true;
            for ip in [captured.from, captured.to] {
                let fresh = Side { in_epoch: Some(0), ..Side::default() };
                self.sides.insert(ip, fresh);
            }
        }
        let mut me = self.sides.remove(&captured.from).unwrap_or_default();
        let mut peer = self.sides.remove(&captured.to).unwrap_or_default();
        if let Err(broken) = self.check(&mut me, &mut peer, &captured.packet)
            && self.complete
        {
            self.complaints.push(format!("{broken}: {:?}", captured.packet));
        }
        self.sides.insert(captured.from, me);
        self.sides.insert(captured.to, peer);
    }

    /// The sockets are gone. Sequence numbers show their gaps only now.
    pub fn end(&mut self) {
        for side in std::mem::take(&mut self.sides).into_values() {
            for (volume, mut seqs) in side.seqs {
                seqs.sort_unstable();
                let first = if self.complete { 1 } else { seqs[0] };
                *self.checked.entry("sequence").or_default() += seqs.len() as u32;
                if !seqs.iter().zip(first..).all(|(seq, expected)| *seq == expected) {
                    self.complaints.push(format!("sequence numbers of volume {volume}: {seqs:?}"));
                }
            }
        }
    }

    /// What was wrong.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    fn check(&mut self, me: &mut Side, peer: &mut Side, packet: &Packet) -> Result<(), String> {
        self.sequence(me, packet);
        match packet {
            Packet::Data(volume, data) => {
                self.write(me, key(*volume, data.block_id, data.range), data.flags);
            }
            Packet::Trim(volume, trim) | Packet::Zeroes(volume, trim) => {
                self.write(me, key(*volume, trim.block_id, trim.range), trim.flags);
            }
            Packet::Dagtag(dagtag) => me.dagtag = Some(*dagtag),
            Packet::Barrier(barrier) => {
                let writes = me.in_epoch.replace(0);
                me.barriers.push_back((*barrier, writes));
                me.epoch += 1;
                self.ensure("barrier", writes != Some(0), || "barrier of an empty epoch".into())?;
            }
            Packet::BarrierAck(barrier, count) => {
                peer.epochs_acked += 1;
                let expected = peer.barriers.pop_front();
                let good = matches!(expected, Some((number, writes))
                    if number == *barrier && writes.is_none_or(|writes| writes == *count));
                self.ensure("barrier ack", good, || format!("expected {expected:?}"))?;
            }
            Packet::PeerAck(ack) => self.peer_ack(me, ack.dagtag, ack.mask)?,
            Packet::RecvAck(volume, ack)
            | Packet::WriteAck(volume, ack)
            | Packet::WriteAckInSync(volume, ack)
            | Packet::NegAck(volume, ack) => self.write_ack(peer, *volume, ack)?,
            Packet::RsWriteAck(volume, ack) | Packet::RsNegAck(volume, ack) => {
                let of = key(*volume, ack.block_id, ack.range);
                // Below protocol 122 it also acks writes.
                let good = take(&mut peer.unacked, of) || take(&mut peer.acks, of);
                self.ensure("resync ack", good, || "acks nothing".into())?;
            }
            Packet::OvResultId(volume, ack, result) => {
                let of = key(*volume, ack.block_id, ack.range);
                let good = take(&mut peer.unacked, of) && !matches!(result, OvResult::Unknown(_));
                self.ensure("verify result", good, || "result of nothing".into())?;
            }
            Packet::OvResult(volume, ack) => {
                let good = take(&mut peer.unacked, key(*volume, BlockId::SYNCER, ack.range));
                self.ensure("verify result", good, || "result of nothing".into())?;
            }
            Packet::DataRequest(volume, req)
            | Packet::RsDataRequest(volume, req)
            | Packet::RsThinReq(volume, req)
            | Packet::OvRequest(volume, req)
            | Packet::CsumRsRequest(volume, req, _) => {
                *me.requests.entry(key(*volume, req.block_id, req.range)).or_default() += 1;
            }
            Packet::RsDagtagReq(volume, req)
            | Packet::RsThinDagtagReq(volume, req)
            | Packet::OvDagtagReq(volume, req)
            | Packet::RsCsumDagtagReq(volume, req, _) => {
                *me.requests.entry(key(*volume, req.block_id, req.range)).or_default() += 1;
            }
            Packet::DataReply(volume, data) => {
                self.answer(me, peer, key(*volume, data.block_id, data.range), false)?;
            }
            Packet::RsDataReply(volume, data) => {
                self.answer(me, peer, key(*volume, data.block_id, data.range), true)?;
            }
            Packet::OvReply(volume, req, _) => {
                self.answer(me, peer, key(*volume, req.block_id, req.range), true)?;
            }
            Packet::OvDagtagReply(volume, req, _) => {
                self.answer(me, peer, key(*volume, req.block_id, req.range), true)?;
            }
            Packet::RsDeallocatedId(volume, ack) => {
                self.answer(me, peer, key(*volume, ack.block_id, ack.range), true)?;
            }
            Packet::RsIsInSync(volume, ack)
            | Packet::RsCancel(volume, ack)
            | Packet::RsCancelAhead(volume, ack)
            | Packet::NegDreply(volume, ack)
            | Packet::NegRsDreply(volume, ack) => {
                self.answer(me, peer, key(*volume, ack.block_id, ack.range), false)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Numbers of writes and of the acks that count, on both streams.
    fn sequence(&mut self, me: &mut Side, packet: &Packet) {
        let (volume, seq) = match packet {
            Packet::Data(volume, data) => (volume, data.seq),
            Packet::Trim(volume, trim) | Packet::Zeroes(volume, trim) => (volume, trim.seq),
            Packet::RecvAck(volume, ack)
            | Packet::WriteAck(volume, ack)
            | Packet::WriteAckInSync(volume, ack)
            | Packet::RsWriteAck(volume, ack)
            | Packet::RsNegAck(volume, ack)
            | Packet::NegAck(volume, ack)
            | Packet::NegDreply(volume, ack)
            | Packet::NegRsDreply(volume, ack)
            | Packet::RsIsInSync(volume, ack)
            | Packet::RsCancel(volume, ack)
            | Packet::RsCancelAhead(volume, ack)
            | Packet::OvResult(volume, ack)
            | Packet::OvResultId(volume, ack, _)
            | Packet::Superseded(volume, ack)
            | Packet::RetryWrite(volume, ack) => (volume, ack.seq),
            _ => return,
        };
        me.seqs.entry(volume.0).or_default().push(seq);
    }

    fn write(&mut self, me: &mut Side, of: Key, flags: DataFlags) {
        if let Some(dagtag) = &mut me.dagtag {
            dagtag.0 += of.2.len.0;
            me.writes.push_back(Write { dagtag: *dagtag, epoch: me.epoch });
        }
        if let Some(writes) = &mut me.in_epoch {
            *writes += 1;
        }
        let acks = [DataFlags::SEND_RECEIVE_ACK, DataFlags::SEND_WRITE_ACK];
        let wanted = acks.iter().filter(|flag| flags.has(**flag)).count() as u32;
        *me.acks.entry(of).or_default() += wanted;
    }

    fn write_ack(
        &mut self,
        peer: &mut Side,
        volume: VolumeNr,
        ack: &BlockAck,
    ) -> Result<(), String> {
        let good = take(&mut peer.acks, key(volume, ack.block_id, ack.range));
        self.ensure("write ack", good, || "acks nothing".into())
    }

    fn answer(
        &mut self,
        me: &mut Side,
        peer: &mut Side,
        of: Key,
        acked: bool,
    ) -> Result<(), String> {
        if acked {
            *me.unacked.entry(of).or_default() += 1;
        }
        let good = take(&mut peer.requests, of);
        self.ensure("answer", good, || "answers nothing".into())
    }

    /// A peer ack names the position of a write and covers all before it, each of which the
    /// receiver has confirmed with a barrier ack.
    fn peer_ack(&mut self, me: &mut Side, dagtag: Dagtag, mask: NodeMask) -> Result<(), String> {
        let covered: Vec<Write> = {
            let count = me.writes.iter().take_while(|write| write.dagtag <= dagtag).count();
            me.writes.drain(..count).collect()
        };
        let exact = covered.last().is_some_and(|write| write.dagtag == dagtag);
        self.ensure("peer ack", exact && !mask.is_empty(), || "no write has this dagtag".into())?;
        let confirmed = covered.iter().all(|write| write.epoch < me.epochs_acked);
        self.ensure("peer ack order", confirmed, || "before the barrier ack".into())
    }

    fn ensure(
        &mut self,
        rule: &'static str,
        good: bool,
        why: impl FnOnce() -> String,
    ) -> Result<(), String> {
        if self.complete {
            *self.checked.entry(rule).or_default() += 1;
        }
        if good { Ok(()) } else { Err(why()) }
    }
}
