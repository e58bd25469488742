//! The end of a resync: when it is reached, what it means for the generations of the disk, and
//! what a peer's identifiers say about its own end and about third nodes (semantics §4.2, §9).

use codec::wire::{UuidFlags, feature};
use vocab::options::{Protocol, Quorum};
use vocab::{Bytes, DiskState, GenUuid, HandlerEvent, MAX_NODES, NodeMask, ReplState, Role};

use crate::compare::Decided;
use crate::generation::is_generation;
use crate::io::{DiskError, DiskOp, LogLevel, Output};
use crate::resource::{Op, Resource, Work};
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// The data of a source that hears a Primary which this node does not hear keeps changing:
    /// such a resync can not make this disk UpToDate (semantics §4.10). One that is connected and
    /// has not said that it is Primary is not heard: its link may be dead without this node knowing.
    pub(crate) fn unstable_source(&self, peer: PeerIx, vol: VolIx, stable: bool) -> bool {
        let authoritative =
            self.peers[peer].devs[vol].uuids.as_ref().map_or(NodeMask::EMPTY, |u| u.node_mask);
        let unheard = authoritative.minus(self.st.primary_peers());
        let unstable = !stable
            && self.st.role != Role::Primary
            && (authoritative.is_empty() || !unheard.is_empty());
        unstable || self.is_unsure_source(peer)
    }

    /// A Primary that this node hears goes on in a generation that the source does not have. It
    /// takes what the disk misses for the source's to tell, and the source does not know it.
    pub(super) fn newer_primary(&self, source: PeerIx, vol: VolIx) -> Option<PeerIx> {
        let old = self.peers[source].devs[vol].uuids.as_ref()?.current;
        self.st.connected().filter(|p| *p != source).find(|p| {
            let st = &self.st.peers[*p];
            st.role == Role::Primary
                && st.devs[vol].disk == DiskState::UpToDate
                && self.peers[*p].devs[vol].uuids.as_ref().is_some_and(|u| u.has_passed(old))
        })
    }

    pub(super) fn finish_if_done(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let left = self.out_of_sync(peer, vol).0;
        let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() else { return };
        let rests = resync.finishing || resync.halted;
        let idle = resync.requests.is_empty() && resync.may_write && !rests;
        // A flush for an end that was called off says nothing about blocks written since.
        let flush = Op::ResyncFlush(peer, vol);
        let idle = idle && !self.ops.iter().any(|(_, running)| running.op == flush);
        let gave_up = resync.failed > 0 && left <= resync.failed;
        if !idle || (left > 0 && !gave_up) {
            return;
        }
        if !resync.heard && !gave_up {
            return self.hear_source(peer, vol);
        }
        if !self.is_mirrored(peer, vol) || self.promotion_is_prepared() {
            return;
        }
        // The source is still there, and everything it sent before the answer has arrived. So is
        // a Primary whose writes the source passes on: this node hears it, too.
        let nodes = self.st.primary_peers().with(self.peers[peer].node);
        let resync = self.resync_mut(peer, vol);
        resync.finishing = true;
        resync.asked = nodes;
        self.ping_some(nodes, Work::ResyncEndPing(peer, vol));
    }

    /// A Primary has connected: what it wrote before is known to the source, which is asked again
    /// before a resync from it ends. What it has been asked for already does not wait for that.
    pub(crate) fn primary_joined(&mut self) {
        for peer in 0..self.peers.len() {
            for dev in &mut self.peers[peer].devs {
                if let Some(resync) = dev.resync.as_mut() {
                    resync.heard = false;
                    resync.hears_from = self.next_resync_request;
                    resync.finishing = false;
                    resync.next_turn.get_or_insert(self.now);
                }
            }
        }
    }

    /// Every other Primary that this node hears has said that it sends data for this disk. What it
    /// counted as missed before, it has told on the same stream before. Once this node takes part in
    /// a resync from there, it does not any more: what is missed, its bitmap and its next word tell.
    pub(super) fn is_mirrored(&self, source: PeerIx, vol: VolIx) -> bool {
        self.st.connected().filter(|p| *p != source).all(|p| {
            let word = self.peers[p].devs[vol].last_word.unwrap_or_default();
            let tells = self.peers[p].agreed_features & feature::BITS_OF_EQUALS != 0;
            // While it waits for bitmaps it sends nothing but what is missed.
            let mirrors = word.pdsk() == Some(DiskState::Inconsistent)
                && word.repl_state() != Some(ReplState::WFBitMapS);
            let mirrors = self.repl(p, vol) != ReplState::WFBitMapT && (mirrors || !tells);
            // The generation that it leaves this disk out of is not this disk's, either.
            let mirrors = mirrors && self.repl(p, vol) != ReplState::Behind;
            self.st.peers[p].role != Role::Primary || mirrors
        })
    }

    /// There is a Primary, or about to be one, that was none when the end was prepared: it may
    /// write through the source, and not know that this node is to be told. Or one sends no data for
    /// this disk any more.
    pub(super) fn end_is_in_doubt(&self, peer: PeerIx, vol: VolIx) -> bool {
        let asked = self.peers[peer].devs[vol].resync.as_ref().map_or(NodeMask::EMPTY, |r| r.asked);
        let unasked = !self.st.primary_peers().minus(asked).is_empty();
        self.promotion_is_prepared() || unasked || !self.is_mirrored(peer, vol)
    }

    /// A peer's states are new: a resync may have waited for them.
    pub(crate) fn resyncs_progress(&mut self, vol: VolIx) {
        for peer in 0..self.peers.len() {
            self.finish_if_done(peer, vol);
        }
    }

    /// The source answered: flush the data, then record the end.
    pub(crate) fn resync_end_ping(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let Some(resync) = self.peers[peer].devs[vol].resync.as_ref() else { return };
        if !resync.finishing {
            return;
        }
        if self.out_of_sync(peer, vol).0 > 0 && resync.failed == 0 {
            self.resync_more(peer, vol);
            return;
        }
        let op = self.op(Op::ResyncFlush(peer, vol));
        self.out.push_back(Output::Disk { volume: self.vols[vol].nr, op, io: DiskOp::Flush });
    }

    /// The data is stable.
    pub(crate) fn resync_flushed(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            return self.disk_failed(vol, None, "a flush failed");
        }
        match self.peers[peer].devs[vol].resync.as_ref().is_some_and(|r| r.finishing) {
            true => self.work.push_back(Work::ResyncRecord(peer, vol)),
            false => self.resync_progress(peer, vol),
        }
    }

    /// Records what the end of the resync means for the generations of this disk.
    pub(crate) fn resync_record(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget || self.handshake_running() {
            // A handshake compares what was sent; the end waits for it.
            if self.repl(peer, vol) == ReplState::SyncTarget {
                self.resync_more(peer, vol);
            }
            return;
        }
        if self.end_is_in_doubt(peer, vol) {
            return self.resync_more(peer, vol);
        }
        let Some(resync) = self.peers[peer].devs[vol].resync.as_ref() else { return };
        if !resync.finishing {
            return;
        }
        if self.out_of_sync(peer, vol).0 > 0 && resync.failed == 0 {
            return self.resync_more(peer, vol);
        }
        let start = resync.start;
        let failed = resync.failed > 0;
        let stable = self.peers[peer].devs[vol]
            .uuids
            .as_ref()
            .is_some_and(|u| u.flags.has(UuidFlags::STABLE));
        // Stability may have come, or gone, while the resync ran.
        let unstable = self.unstable_source(peer, vol, stable);
        self.peers[peer].devs[vol].unstable = unstable;
        let source_good = self.st.peers[peer].devs[vol].disk > DiskState::Inconsistent;
        let overtaken = self.newer_primary(peer, vol).is_some();
        if failed || unstable || overtaken || !source_good {
            return self.work.push_back(Work::ResyncRecorded(peer, vol));
        }
        let situation = self.situation(vol);
        let mut currents = [GenUuid::NONE; MAX_NODES];
        // What a node without its disk has seen says nothing about that disk.
        let mut ahead = NodeMask::EMPTY;
        for p in &self.peers {
            if let Some(uuids) = p.devs[vol].expected().filter(|u| u.of_disk()) {
                currents[p.node.index()] = uuids.current;
                if is_generation(start) && uuids.has_passed(start) {
                    ahead.insert(p.node);
                }
            }
        }
        let Some(uuids) = self.peers[peer].devs[vol].expected() else { return };
        let node = self.peers[peer].node;
        let source = uuids.of(node);
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let left = backing.gens.current();
        let finish = backing.gens.finish_target(&situation, start, &source, &currents, ahead);
        backing.gens.remember_left(left, &source);
        // The generation tells who else is in sync, unless it had told nothing to begin with: after
        // a crash, disks of the same generation differ in what was under write. With protocols A
        // and B that may be acknowledged, and only the crashed Primary and who was resynced from
        // it have it.
        let same = start.same(source.current);
        self.vols[vol].stats.foreign += u64::from(!same);
        let alone = self.peers[peer].net.protocol != Protocol::C;
        let inherits = (same || alone) && uuids.flags.has(UuidFlags::CRASHED_PRIMARY);
        // A crash in a generation that is left says nothing about the one that is reached.
        let crashed = &mut self.vols[vol].crashed_primary;
        let stays = inherits || same && *crashed;
        let survivor = same && *crashed && !inherits;
        *crashed = stays && !survivor;
        self.vols[vol].of_survivor = if survivor { source.current } else { GenUuid::NONE };
        self.vols[vol].crashed_secondary &= same;
        // What a source is not sure to have, this disk is not, either.
        let sure = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        self.vols[vol].crashed_secondary |= !sure && self.opts.quorum != Quorum::Off;
        let tells = self.peers[peer].agreed_features & feature::BITS_OF_EQUALS != 0;
        let word = self.peers[peer].devs[vol].last_word.unwrap_or_default();
        self.vols[vol].lost_cache |= !sure && (!tells || word.lost_cache());
        // What was copied others may lack, whatever their generation: those that know it say so
        // (see `peers_in_sync`).
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        // Users see the generation once it is durable, and the disk current (`after_disk_change`).
        if let Some(slot) = backing.slot_of(node).filter(|_| finish.settled.contains(node)) {
            backing.bitmap.clear_all(slot);
        }
        self.persist_with_bitmap(vol, Work::ResyncRecorded(peer, vol));
    }

    /// The end is on disk: tell everyone, identifiers first (wire §7.1 step 5).
    pub(crate) fn resync_recorded(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let resync = self.peers[peer].devs[vol].resync.as_ref();
        if resync.is_some_and(|r| !r.finishing) {
            // Called off while it was being recorded.
            return;
        }
        if self.end_is_in_doubt(peer, vol) {
            return self.resync_more(peer, vol);
        }
        let failed = resync.map_or(0, |r| r.failed);
        let unstable = self.peers[peer].devs[vol].unstable;
        let source_disk = self.st.peers[peer].devs[vol].disk;
        let newer = self.newer_primary(peer, vol);
        let good =
            failed == 0 && !unstable && newer.is_none() && source_disk > DiskState::Inconsistent;
        let moved_on = self.peers[peer].devs[vol].expected().is_some_and(|u| {
            let backing = self.vols[vol].backing.as_ref();
            backing.is_some_and(|b| !b.gens.current().same(u.current))
        });
        if good && moved_on {
            // The source has started a generation while the end was being recorded. What it
            // writes now belongs to that.
            return self.work.push_back(Work::ResyncRecord(peer, vol));
        }
        let text = match (good, failed > 0) {
            (true, _) => "finished".to_owned(),
            (false, true) => format!("ended, {} could not be read or written", Bytes(failed * 512)),
            (false, false) => "ended, the source does not have what is written now".to_owned(),
        };
        let text = format!(
            "{}/{}: resync from {} {text}",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Info, text);
        if good {
            // What the source had counted as missing here is here now; it does not say so itself.
            if let Some(uuids) = &mut self.peers[peer].devs[vol].uuids {
                uuids.dirty_bits = 0;
            }
            self.send_uuids_to_all(vol, UuidFlags::default());
            // Peers this disk was to resync from, too: those that have nothing newer are done.
            let others: Vec<PeerIx> = (0..self.peers.len())
                .filter(|p| {
                    let waits =
                        matches!(self.repl(*p, vol), ReplState::PausedSyncT | ReplState::WFBitMapT);
                    *p != peer && waits
                })
                .collect();
            let done: Vec<PeerIx> = others
                .into_iter()
                .filter(|p| match self.compare(*p, vol, false) {
                    Decided::Start(start) => !start.repl.is_target(),
                    Decided::Retry | Decided::Refuse(_) => true,
                })
                .collect();
            // A Primary that this node does not hear goes on writing through the source: the news of
            // that takes its time, and until then this disk only seems to be as good.
            let unheard = !self.far_primaries.minus(self.st.connected_mask()).is_empty();
            let disk = if unheard { source_disk.min(DiskState::Outdated) } else { source_disk };
            self.change_hard(|st| {
                st.peers[peer].devs[vol].repl = ReplState::Established;
                for p in &done {
                    st.peers[*p].devs[vol].repl = ReplState::Established;
                }
                if !st.is_target(vol) {
                    st.vols[vol].disk = disk;
                }
            });
            for p in done {
                self.ask_recompare(p, vol);
            }
            if disk == DiskState::UpToDate && !self.st.is_target(vol) {
                // It is what the source is: bits towards others are about what those lack.
                self.vols[vol].crashed_secondary = false;
                self.review_primary_ind(vol);
            }
            // What seemed newer than the disk of before, an equal of this one may know to be given up.
            for other in 0..self.peers.len() {
                self.note_newer(other, vol);
            }
            // This node has what the source has: nothing is left to reconcile with it.
            if self.peers[peer].loss.take().is_some() {
                self.hold_released();
            }
        } else {
            self.change_hard(|st| st.peers[peer].devs[vol].repl = ReplState::Established);
            if let Some(newer) = newer {
                self.ask_recompare(newer, vol);
            }
        }
        self.notify(HandlerEvent::AfterResyncTarget, Some(peer), Some(vol));
        if std::mem::take(&mut self.peers[peer].devs[vol].resync_again) {
            self.work.push_back(Work::Recompare(peer, vol));
        }
    }

    /// The target says that it is no longer syncing: the source's end (wire §7.1 step 5).
    pub(crate) fn source_finished(&mut self, peer: PeerIx, vol: VolIx, disk: DiskState) {
        let text = format!(
            "{}/{}: resync to {} ended, its disk is {disk}",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Info, text);
        self.change_hard(|st| {
            let dev = &mut st.peers[peer].devs[vol];
            dev.repl = ReplState::Established;
            dev.disk = disk;
        });
        self.hold_released();
        self.resync_ended_at_peer(peer, vol);
    }

    /// The peer's identifiers may say that the resync towards it is complete, and tell about
    /// third nodes (wire §9.2 "Source end").
    pub(crate) fn resync_ended_at_peer(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        let situation = self.situation(vol);
        let Some(uuids) = self.peers[peer].devs[vol].uuids.clone() else { return };
        let source = matches!(self.repl(peer, vol), ReplState::SyncSource | ReplState::PausedSyncS);
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let theirs = uuids.of(node);
        let owed = backing.oos(node);
        let finished = backing.gens.finished_by(&situation, &theirs)
            && !backing.bitmap_uuid(node).is_none()
            && owed == 0;
        // It has got to where this disk was meanwhile: what it may miss counts from there.
        let base = backing.bitmap_uuid(node);
        let advanced = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate
            && self.st.peers[peer].devs[vol].repl == ReplState::Established
            && uuids.bitmap[self.me.index()].is_none()
            && !uuids.flags.has(UuidFlags::SYNC_TARGET)
            && is_generation(base)
            && uuids.has_passed(base)
            && backing.gens.has_passed(uuids.current)
            && owed == 0;
        if advanced {
            backing.gens.set_bitmap(node, uuids.current);
            self.md_changed_now(vol);
        }
        if finished {
            let backing = self.vols[vol].backing.as_mut().expect("looked at above");
            backing.gens.set_bitmap(node, GenUuid::NONE);
            self.md_changed_now(vol);
            for other in 0..self.peers.len() {
                if other != peer && self.st.is_connected(other) {
                    self.send_uuids(other, vol, UuidFlags::default(), NodeMask::EMPTY);
                }
            }
        }
        if !source {
            self.learn_from(peer, vol);
        }
    }

    /// What a peer's identifiers tell about third nodes (semantics §4.2, last paragraph).
    pub(crate) fn learn_from(&mut self, peer: PeerIx, vol: VolIx) {
        if self.handshake_running() {
            return;
        }
        let node = self.peers[peer].node;
        let situation = self.situation(vol);
        let resyncing: NodeMask = (0..self.peers.len())
            .filter(|p| self.repl(*p, vol) > ReplState::Established)
            .map(|p| self.peers[p].node)
            .collect();
        let Some(uuids) = self.peers[peer].devs[vol].uuids.clone() else { return };
        // A disk that is not UpToDate follows a Primary's generations without recording who misses
        // them: that it has no base for a node says nothing.
        let up_to_date = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        if !self.st.is_connected(peer) || !up_to_date {
            return;
        }
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let theirs = uuids.of(node);
        let learned = backing.gens.learn(&situation, &theirs, resyncing);
        let mut changed = false;
        let absent = learned.in_sync.minus(self.st.connected_mask());
        // They were equal to the peer at some time. What that has got since, from here as likely as
        // not, they may lack: the bits stay, which may say too much.
        for n in learned.in_sync.iter() {
            backing.gens.set_bitmap(n, GenUuid::NONE);
            changed = true;
        }
        for (from, to) in learned.copies {
            let base = backing.gens.bitmap(from).uuid;
            if let (Some(a), Some(b)) = (backing.slot_of(from), backing.slot_of(to)) {
                backing.merge_slot(a, b);
                backing.gens.set_bitmap(to, base);
                changed = true;
            }
        }
        if changed {
            self.write_bitmap(vol);
            self.md_changed_now(vol);
        }
        if !absent.is_empty() && self.st.role == Role::Primary {
            // They have this generation and miss what is written from now on.
            self.vols[vol].bump_pending = true;
            self.start_bump(vol);
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::wire::StateWord;
    use vocab::options::ResourceOptions;
    use vocab::{ConnState, DiskState};

    use super::*;
    use crate::testing::attached;

    /// The disk is resynced from another node meanwhile, so the Primary that is Ahead takes it for
    /// Inconsistent as well.
    #[test]
    fn a_primary_that_is_ahead_sends_nothing_for_this_disk() {
        for (repl, sends) in [(ReplState::Established, true), (ReplState::Behind, false)] {
            let mut resource = attached(ResourceOptions::default(), |_| {});
            resource.st.peers[0].conn = ConnState::Connected;
            resource.st.peers[0].role = Role::Primary;
            resource.st.peers[0].devs[0].repl = repl;
            resource.peers[0].agreed_features = feature::BITS_OF_EQUALS;
            let word = StateWord::default().with_pdsk(DiskState::Inconsistent);
            resource.peers[0].devs[0].last_word = Some(word);
            let another = 1;
            assert_eq!(resource.is_mirrored(another, 0), sends, "{repl}");
        }
    }
}
