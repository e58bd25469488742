//! A connection that can not keep up (semantics §8.7): its peer is left behind for a while, or for good.
//!
//! Under protocol A a Primary reports writes that are still on their way. The more of them there are,
//! the more is lost with it. With `on-congestion pull-ahead` it goes *Ahead* when there are too many:
//! the peer, which is *Behind* then, is told the ranges that it misses, and no data, and its disk is
//! Outdated. One second after all that was under way has arrived, what it misses is resynced. A resync
//! that can not keep up with users is broken off in the same way.
//!
//! No write is left out before the peer counts as one that misses writes: a generation that it does
//! not have is durable before the first of them starts.

use std::time::Duration;

use codec::wire::Packet;
use vocab::options::{NetOptions, OnCongestion, Protocol};
use vocab::{ConfigError, DiskState, Instant, NodeMask, Refusal, ReplState, SectorRange};

use crate::io::LogLevel;
use crate::resource::{Decision, Resource};
use crate::resync::{MAX_REQUEST_BITS, ServeKind};
use crate::state::{PeerIx, VolIx};

/// So long after the last write has arrived the peer is brought up to date.
const LEAVE_AFTER: Duration = Duration::from_secs(1);

impl Resource {
    /// A write to the volume is about to be admitted: peers that get too much are relieved before.
    pub(crate) fn relieve_congested(&mut self, vol: VolIx) {
        for peer in 0..self.peers.len() {
            if !self.is_congested(peer, vol) {
                continue;
            }
            if self.peers[peer].net.on_congestion == OnCongestion::Disconnect {
                let text = format!(
                    "{}: {} can not keep up (on-congestion disconnect); connect it again when the \
                     network can",
                    self.name, self.peers[peer].name
                );
                self.log(LogLevel::Error, text);
                self.disconnect_local(peer);
                continue;
            }
            self.change_hard(|st| {
                let dev = &mut st.peers[peer].devs[vol];
                dev.repl = ReplState::Ahead;
                dev.disk = dev.disk.min(DiskState::Outdated);
            });
        }
    }

    /// More is under way to the peer than is wanted, or more of the activity log is held than for
    /// it is. Without a current disk here there would be nothing to bring it up to date from.
    fn is_congested(&self, peer: PeerIx, vol: VolIx) -> bool {
        let net = &self.peers[peer].net;
        if net.on_congestion == OnCongestion::Block || net.protocol != Protocol::A {
            return false;
        }
        let sent = matches!(
            self.repl(peer, vol),
            ReplState::Established | ReplState::SyncSource | ReplState::PausedSyncS
        );
        // A transaction may be about to begin a resync.
        let sent = sent && self.twopc.held.is_none() && self.decide(peer, vol) == Decision::Data;
        // A node of protocol 8 has a resync to end that has begun.
        let fits = self.peers[peer].legacy.is_none() || !self.repl(peer, vol).is_source();
        let current = self.st.vols[vol].disk == DiskState::UpToDate;
        let Some(backing) = self.vols[vol].backing.as_ref().filter(|_| current) else {
            return false;
        };
        let fill = net.congestion_fill.0;
        let full = fill != 0 && self.sectors_under_way(peer) >= fill;
        let held = backing.al.in_use() >= net.congestion_extents as usize;
        sent && fits && (full || held)
    }

    /// Sectors sent to the peer and not confirmed, of users and of resyncs.
    fn sectors_under_way(&self, peer: PeerIx) -> u64 {
        let owed = || self.serves.iter().filter(|(_, s)| s.is_owed_to(peer));
        let counted = self.peers[peer].rs_under_way;
        debug_assert_eq!(counted, owed().map(|(_, s)| s.range.len.0).sum::<u64>());
        self.peers[peer].send.app_in_flight + counted
    }

    /// This node is Ahead of the peer now.
    pub(crate) fn went_ahead(&mut self, peer: PeerIx, vol: VolIx, was: ReplState) {
        let text = format!(
            "{}/{}: {} can not keep up and is left behind; it is resynced when what is on its way has \
             arrived",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Warn, text);
        self.peers[peer].devs[vol].unfollowed = true;
        // Of a resync that ran, what is not answered yet never will be. What is, the peer has on its
        // disk before it hears of this, and confirms it.
        for key in self.serve_keys(peer, vol, |kind| kind != ServeKind::Verify) {
            self.refuse_ahead(key);
        }
        if was == ReplState::Established {
            self.tell_what_differs(peer, vol);
        }
        self.owe_generation(vol);
        self.review_ahead(peer);
    }

    /// Before a resync that begins with bitmaps both ends count the same. This one begins without, and
    /// blocks may be out of sync that nobody has settled yet: a write that was lost on its way while
    /// I/O was suspended, for one. The peer is told of all there are.
    fn tell_what_differs(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        self.outrun_unacked(vol, SectorRange::new(0, self.vols[vol].size.0), node.mask());
        self.mark_missing(vol, node);
        self.cover_unacked(vol, node);
        let mut cursor = 0;
        while let Some(backing) = &self.vols[vol].backing {
            let run = backing.slot_of(node);
            let run = run.and_then(|slot| backing.bitmap.next_run(slot, cursor, MAX_REQUEST_BITS));
            let Some((start, len)) = run else { break };
            let range = backing.bitmap.sectors_of(start..start + len);
            cursor = start + len;
            let nr = self.vols[vol].nr;
            self.send(peer, Packet::OutOfSync(nr, range));
        }
    }

    /// The peer is not asked for more before it has heard that this node is Ahead.
    fn refuse_ahead(&mut self, key: usize) {
        let Some(serve) = self.serves.get(key).filter(|s| !s.is_answered()) else { return };
        let (peer, vol, range, id) = (serve.peer, serve.vol, serve.range, serve.block_id());
        let nr = self.vols[vol].nr;
        let ack = self.block_ack(peer, vol, range, id);
        self.send(peer, Packet::RsCancelAhead(nr, ack));
        self.drop_answered(key);
    }

    /// Something has arrived at the peer.
    pub(crate) fn arrived(&mut self, peer: PeerIx) {
        if self.sectors_under_way(peer) == 0 {
            self.review_ahead(peer);
        }
    }

    /// If this node is Ahead of the peer, and nothing is under way to it, it is brought up to date soon.
    pub(crate) fn review_ahead(&mut self, peer: PeerIx) {
        let ahead = (0..self.vols.len()).any(|vol| self.repl(peer, vol) == ReplState::Ahead);
        if !ahead {
            self.peers[peer].leave_ahead_at = None;
        } else if self.peers[peer].leave_ahead_at.is_none() && self.sectors_under_way(peer) == 0 {
            self.peers[peer].leave_ahead_at = Some(self.now + LEAVE_AFTER);
        }
    }

    pub(crate) fn leave_ahead_deadline(&self, peer: PeerIx) -> Option<Instant> {
        self.peers[peer].leave_ahead_at
    }

    /// The time has come: all volumes of the connection at once. Both ends count the same blocks.
    pub(crate) fn leave_ahead(&mut self, peer: PeerIx) {
        if self.peers[peer].leave_ahead_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.peers[peer].leave_ahead_at = None;
        for vol in 0..self.vols.len() {
            if self.repl(peer, vol) == ReplState::Ahead {
                self.peers[peer].devs[vol].joined = NodeMask::ALL;
            }
        }
        self.change_hard(|st| {
            for dev in st.peers[peer].devs.iter_mut().filter(|d| d.repl == ReplState::Ahead) {
                dev.repl = ReplState::SyncSource;
            }
        });
        self.kick_all();
    }

    /// The peer has said what it does. Before it has said that it is Behind, all of it is from before:
    /// the end of a resync, for one. (A kernel target is not known to say so.)
    pub(crate) fn hear_follower(&mut self, peer: PeerIx, vol: VolIx, theirs: Option<ReplState>) {
        let follows = match theirs {
            Some(ReplState::Behind) => true,
            Some(ReplState::SyncTarget | ReplState::PausedSyncT) => !self.is_ours(peer),
            _ => false,
        };
        self.peers[peer].devs[vol].unfollowed &= !follows;
    }

    // --- the end that is left behind ---------------------------------------------------------

    /// The peer has said what it does: it may be Ahead, or not any more.
    pub(crate) fn follow_ahead(&mut self, peer: PeerIx, vol: VolIx, theirs: ReplState) {
        use ReplState::{
            Ahead, Behind, Established, PausedSyncS, PausedSyncT, StartingSyncT, SyncSource,
            SyncTarget, VerifyS, VerifyT, WFBitMapT,
        };
        if self.st.vols[vol].disk < DiskState::Inconsistent {
            return;
        }
        match (self.repl(peer, vol), theirs) {
            (
                Established | StartingSyncT | WFBitMapT | SyncTarget | PausedSyncT | VerifyS
                | VerifyT,
                Ahead,
            ) => self.change_hard(|st| st.peers[peer].devs[vol].repl = Behind),
            // It writes to this disk from here on, which is no snapshot any more.
            (Behind, SyncSource | PausedSyncS) if self.may_begin_resync(peer, vol) => {
                self.change_hard(|st| st.peers[peer].devs[vol].repl = SyncTarget);
            }
            (Behind, SyncSource | PausedSyncS) => {
                self.disagree(peer, "resyncs, and before-resync-target has not agreed yet");
            }
            _ => {}
        }
    }

    /// The peer is Ahead of this node now. A handler may want to save what this disk is before it is
    /// a mixture.
    pub(crate) fn fell_behind(&mut self, peer: PeerIx, vol: VolIx) {
        let text = format!(
            "{}/{}: the network is too slow for {}, which goes on without this disk for a while",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Warn, text);
        let resync = self.resync_mut(peer, vol);
        resync.call_off();
        self.may_begin_resync(peer, vol);
    }
}

/// What is reported under the other protocols is on the peer's disk, or with it: it can not be left
/// behind.
pub(crate) fn check_congestion(options: &NetOptions) -> Result<(), Refusal> {
    if options.on_congestion != OnCongestion::Block && options.protocol != Protocol::A {
        let detail = "use protocol A, or on-congestion block";
        return Err(Refusal::config(ConfigError::CongestionNotProtocolA, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use codec::wire::{BlockAck, StateWord};
    use vocab::options::ResourceOptions;
    use vocab::{ConnState, Role, VolumeNr};

    use super::*;
    use crate::io::Output;
    use crate::resource::{IdKind, Link};
    use crate::testing::attached;

    /// A Primary that resyncs its one peer, which has said last that it is in that state.
    fn source(said: ReplState) -> Resource {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        resource.st.role = Role::Primary;
        resource.st.vols[0].disk = DiskState::UpToDate;
        resource.peers[0].link = Link::Up;
        resource.st.peers[0].conn = ConnState::Connected;
        resource.st.peers[0].devs[0].repl = ReplState::SyncSource;
        resource.st.peers[0].devs[0].disk = DiskState::Inconsistent;
        says(&mut resource, said, DiskState::Inconsistent);
        resource
    }

    fn says(resource: &mut Resource, repl: ReplState, disk: DiskState) {
        let word = StateWord::default().with_repl_state(repl).with_disk(disk);
        let packet = Packet::State(Some(VolumeNr(0)), word);
        resource.take(0, packet, None).expect("it is allowed");
    }

    #[test]
    fn a_peer_ends_only_a_resync_that_it_takes_part_in() {
        for (said, ends) in [(ReplState::SyncTarget, true), (ReplState::WFBitMapS, false)] {
            let mut resource = source(said);
            says(&mut resource, ReplState::Established, DiskState::UpToDate);
            let repl = resource.repl(0, 0);
            assert_eq!(repl == ReplState::Established, ends, "{said}: {repl}");
        }
    }

    #[test]
    fn what_a_peer_said_before_it_was_behind_is_not_about_the_resync_after_that() {
        for (then, ends) in [(ReplState::Behind, true), (ReplState::SyncTarget, false)] {
            let mut resource = source(ReplState::SyncTarget);
            resource.peers[0].agreed_features = codec::wire::feature::BITS_OF_EQUALS;
            resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::Ahead);
            says(&mut resource, then, DiskState::Inconsistent);
            resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::SyncSource);
            says(&mut resource, ReplState::SyncTarget, DiskState::Inconsistent);
            says(&mut resource, ReplState::Established, DiskState::UpToDate);
            let repl = resource.repl(0, 0);
            assert_eq!(repl == ReplState::Established, ends, "{then}: {repl}");
        }
    }

    #[test]
    fn whatever_a_peer_says_of_its_disk_it_is_old_while_this_node_is_ahead() {
        let mut resource = source(ReplState::SyncTarget);
        resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::Ahead);
        says(&mut resource, ReplState::Established, DiskState::UpToDate);
        assert_eq!(resource.st.peers[0].devs[0].disk, DiskState::Outdated);
        assert_eq!(resource.repl(0, 0), ReplState::Ahead);
    }

    /// It was lost while I/O was suspended, for instance, and the two are at the same generation.
    #[test]
    fn a_peer_that_is_left_behind_is_told_what_it_missed_before() {
        let mut resource = source(ReplState::Established);
        let range = SectorRange::new(12_280, 8);
        let node = resource.peers[0].node;
        resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::Established);
        let backing = resource.vols[0].backing.as_mut().expect("it is attached");
        let slot = backing.slot_of(node).expect("the peer has a disk");
        backing.set_range(slot, range);
        while resource.poll().is_some() {}
        resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::Ahead);
        let mut said = Vec::new();
        while let Some(output) = resource.poll() {
            match output {
                Output::Send { packet: Packet::State(..), .. } => said.push(None),
                Output::Send { packet: Packet::OutOfSync(_, told), .. } => said.push(Some(told)),
                _ => {}
            }
        }
        assert_eq!(said, [None, Some(range)], "behind the word that it is left behind");
    }

    /// A target that has asked for a block, and is refused it by one that is Ahead.
    fn refused(before_resumed: bool) -> bool {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        resource.st.vols[0].disk = DiskState::Inconsistent;
        resource.peers[0].link = Link::Up;
        resource.st.peers[0].conn = ConnState::Connected;
        resource.st.peers[0].devs[0].disk = DiskState::UpToDate;
        resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::SyncTarget);
        let range = SectorRange::new(0, 8);
        let id = resource.ask_of_test(range);
        if before_resumed {
            resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::Behind);
            resource.change_hard(|st| st.peers[0].devs[0].repl = ReplState::SyncTarget);
        }
        let block_id = Resource::block_id(IdKind::Resync, id);
        let ack = BlockAck { range, block_id, seq: 0 };
        resource.take(0, Packet::RsCancelAhead(VolumeNr(0), ack), None).expect("it is allowed");
        resource.resync_mut(0, 0).is_halted()
    }

    #[test]
    fn a_target_rests_until_its_source_is_not_ahead_any_more() {
        assert!(refused(false));
        assert!(!refused(true), "that one was refused before");
    }
}
