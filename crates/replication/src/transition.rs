//! Changing states: adjust, check, commit, and what follows.
//!
//! A change is made on a copy of [`State`]. *Hard* changes are facts (a link is lost, a disk
//! failed, a peer has committed) and are only adjusted; *soft* changes are wishes and are also
//! checked (semantics §1.7 to §1.9). What follows from a change is derived from the pair of old
//! and new state, never from who asked for it.

use std::time::Duration;

use codec::disk::PeerFlags;
use codec::wire::{Packet, StateWord, UuidFlags, feature};
use vocab::options::{OnNoDataAccessible, OnNoQuorum, Quorum};
use vocab::{
    ConnState, DiskState, GenUuid, HandlerEvent, NodeMask, Refusal, ReplState, Role, StateError,
    Suspended,
};

use crate::exposed::Lacking;
use crate::generation::is_generation;
use crate::io::LogLevel;
use crate::jobs::JobKind;
use crate::quorum::{self, Decision as QuorumDecision};
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, State, VolIx, allowed_disks, clamp};
use crate::verify::{became_other_disk, end_verifies};

/// Fewer bits by this many make another resync source worth a switch (semantics §9.2).
const SWITCH_SOURCE_BITS: u64 = 256;
/// So long bits may stay between equal disks before they are resynced.
const LEFTOVER_DELAY: Duration = Duration::from_secs(1);

impl Resource {
    /// A fact: adjusted and committed.
    pub(crate) fn change_hard(&mut self, f: impl FnOnce(&mut State)) {
        let old = self.st.clone();
        let mut new = old.clone();
        f(&mut new);
        self.adjust(&old, &mut new);
        self.commit(old, new);
    }

    /// A wish: what it would lead to, or why it is refused. Nothing changes.
    pub(crate) fn tentative(&self, f: impl FnOnce(&mut State)) -> Result<State, Refusal> {
        let mut new = self.st.clone();
        f(&mut new);
        self.adjust(&self.st, &mut new);
        self.check(&self.st, &new)?;
        Ok(new)
    }

    /// A wish of this node alone.
    pub(crate) fn change_soft(&mut self, f: impl FnOnce(&mut State)) -> Result<(), Refusal> {
        let new = self.tentative(f)?;
        let old = self.st.clone();
        self.commit(old, new);
        Ok(())
    }

    /// Automatic adjustments (semantics §1.8).
    fn adjust(&self, old: &State, new: &mut State) {
        for peer in 0..new.peers.len() {
            self.adjust_peer(old, new, peer);
        }
        for vol in 0..new.vols.len() {
            self.adjust_disk(old, new, vol);
            self.arbitrate(new, vol);
            end_verifies(old, new, vol);
        }
        for vol in 0..new.vols.len() {
            new.vols[vol].forgetful =
                !self.vols[vol].remembers || self.is_astray(new, vol) || self.is_adrift(new, vol);
            let verdict = self.quorum_of(new, vol);
            new.vols[vol].quorum = verdict.enforced;
            new.vols[vol].real_quorum = verdict.real;
            new.vols[vol].aside &= !(verdict.enforced && self.has_data(new, vol));
        }
        if !new.is_quorate() && self.opts.on_no_quorum == OnNoQuorum::SuspendIo {
            new.susp.quorum = true;
        }
        if new.role == Role::Primary
            && self.opts.on_no_data_accessible == OnNoDataAccessible::SuspendIo
        {
            let lost = |v: VolIx| self.has_data(old, v) && !self.has_data(new, v);
            let lost = (0..new.vols.len()).any(|v| !new.vols[v].aside && lost(v));
            new.susp.no_data |= lost;
        }
        new.susp.fencing |= self.begins_to_await_fencing(old, new);
        // What others have asked for fails as well.
        let openers = self.vols.iter().any(|v| !v.openers.is_empty()) || self.foreign.len() > 0;
        if new.fail_io && !openers {
            new.fail_io = false;
        }
    }

    /// A3 and A4: what a lost connection and the replication state do to the peer's states.
    fn adjust_peer(&self, old: &State, new: &mut State, peer: PeerIx) {
        let st = &mut new.peers[peer];
        if st.conn != ConnState::Connected {
            st.role = Role::Unknown;
        }
        for (vol, dev) in st.devs.iter_mut().enumerate() {
            let own = &mut new.vols[vol].disk;
            if st.conn != ConnState::Connected {
                dev.repl = ReplState::Off;
                dev.pause_peer = false;
                dev.pause_dependency = false;
                dev.pause_other = false;
                dev.peer_quorum = false;
                dev.forgetful = false;
            }
            let paired = (ReplState::StartingSyncS..=ReplState::Behind).contains(&dev.repl);
            if paired && (*own <= DiskState::Failed || dev.disk <= DiskState::Failed) {
                dev.repl = ReplState::Established;
            }
            let (own_range, peer_range) = allowed_disks(dev.repl);
            if *own >= DiskState::Inconsistent {
                *own = clamp(*own, own_range);
            }
            if dev.repl == ReplState::Off {
                if !(peer_range.0..=peer_range.1).contains(&dev.disk) {
                    dev.disk = DiskState::DUnknown;
                }
            } else if dev.disk >= DiskState::Inconsistent {
                dev.disk = clamp(dev.disk, peer_range);
            }
            let _ = old;
        }
    }

    /// A5 and A9: what neighbours mean for the own disk.
    fn adjust_disk(&self, old: &State, new: &mut State, vol: VolIx) {
        let disk = new.vols[vol].disk;
        if matches!(disk, DiskState::Outdated | DiskState::Consistent) {
            if let Some(better) = self.adopt_from_neighbour(new, vol) {
                new.vols[vol].disk = better;
            }
        }
        let lost_primary = |p: PeerIx| {
            old.is_connected(p)
                && old.peers[p].role == Role::Primary
                && new.peers[p].conn.is_ungraceful_loss()
        };
        let Some(lost) = (0..old.peers.len()).find(|p| lost_primary(*p)) else { return };
        if disk == DiskState::UpToDate
            && new.role == Role::Secondary
            && new.primary_peers().is_empty()
        {
            // What that Primary wrote last may be on a disk that has been lost since.
            let sole_authority = old.peers[lost].devs[vol].disk <= DiskState::Outdated
                && !self.is_own_overtaken(vol)
                && !new.connected().any(|p| new.peers[p].devs[vol].disk >= DiskState::Consistent);
            if !sole_authority {
                new.vols[vol].disk = DiskState::Consistent;
            }
        }
    }

    /// The better disk state that a stable neighbour with the same data vouches for (A5).
    fn adopt_from_neighbour(&self, new: &State, vol: VolIx) -> Option<DiskState> {
        let backing = self.vols[vol].backing.as_ref()?;
        // A Primary that this node can not hear writes on: nobody near knows that it stopped.
        let unheard = self.far_primaries.minus(new.connected_mask());
        // One that it hears may have moved on, and the neighbour's word of that be under way. So may
        // one that a client has met since, over a link that is dead without anybody knowing.
        let moved_on = new.connected().any(|p| {
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            let primary = new.peers[p].role == Role::Primary;
            let client = new.peers[p].devs[vol].disk < DiskState::Negotiating;
            uuids.map(|u| u.current).is_some_and(|current| {
                is_generation(current)
                    && !current.same(backing.gens.current())
                    && (primary || client && !backing.gens.has_passed(current))
            })
        });
        // A Primary that takes this disk for Outdated sends it no data. It has to agree, which takes
        // a resync, though one of no block.
        let sent_nothing =
            new.vols[vol].disk == DiskState::Outdated && !new.primary_peers().is_empty();
        // What a lost Primary sent is still being executed: the bits do not tell yet what it changes.
        // Or it is not settled with all other survivors; one that does not answer may have gone on
        // with that Primary long ago, over a link that is dead without this node knowing.
        let settling = self.loss_pending();
        // The word of a neighbour whose loss is not noticed yet may be older than what others have
        // told of a generation that came after this one.
        let overtaken = self.is_own_overtaken(vol);
        let doubt = moved_on || overtaken || sent_nothing || settling || !unheard.is_empty();
        // What another neighbour counts as missing here, this one need not have either.
        let owed = self.is_owed(new, vol);
        // What differs from disks that are not current either, does not count.
        let current = |p: PeerIx| new.peers[p].devs[vol].disk == DiskState::UpToDate;
        let unclean = self.unclean_towards(vol, current);
        if new.is_target(vol) || unclean || owed || doubt {
            return None;
        }
        new.connected()
            .filter(|p| {
                let dev = &new.peers[*p].devs[vol];
                let uuids = self.peers[*p].devs[vol].uuids.as_ref();
                dev.repl == ReplState::Established
                    && dev.disk == DiskState::UpToDate
                    && self.peers[*p].heard_at >= self.vols[vol].unknown_at
                    && backing.oos(self.peers[*p].node) == 0
                    && uuids.is_some_and(|u| {
                        u.current.same(backing.gens.current())
                            && u.dirty_bits == 0
                            && u.flags.has(UuidFlags::STABLE)
                            && !u.flags.has(UuidFlags::SYNC_TARGET)
                    })
            })
            .map(|_| DiskState::UpToDate)
            .next()
    }

    /// Blocks are out of sync between this disk and an UpToDate neighbour of its generation, as one
    /// of them counts: they are fetched (see `want_catch_up`) before this disk is current. From one
    /// that hears a Primary which this node does not hear, once it is stable.
    pub(crate) fn is_owed(&self, st: &State, vol: VolIx) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        st.connected().any(|p| {
            let dev = &st.peers[p].devs[vol];
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            dev.repl == ReplState::Established
                && dev.disk == DiskState::UpToDate
                && uuids.is_some_and(|u| {
                    let differs = u.dirty_bits != 0 || backing.oos(self.peers[p].node) != 0;
                    differs && u.current.same(backing.gens.current())
                })
        })
    }

    /// A11: at most one active SyncTarget per volume, no source while a target (semantics §9.2).
    fn arbitrate(&self, new: &mut State, vol: VolIx) {
        use ReplState::{PausedSyncS, PausedSyncT, SyncSource, SyncTarget};
        let bits = |p: PeerIx| {
            let backing = self.vols[vol].backing.as_ref();
            backing.map_or(0, |b| b.oos(self.peers[p].node))
        };
        let waits = new.vols[vol].waits_for_other;
        let candidate = |p: PeerIx, st: &State| {
            let dev = &st.peers[p].devs[vol];
            let paused = waits || dev.pause_user || dev.pause_peer;
            matches!(dev.repl, SyncTarget | PausedSyncT) && !paused
        };
        // What a Primary writes is missing at a source that is not UpToDate: fetched from there, a
        // block would be older than what its users have seen (invariant 43).
        let least =
            if new.role == Role::Primary { DiskState::UpToDate } else { DiskState::Outdated };
        let good = |p: PeerIx, st: &State| candidate(p, st) && st.peers[p].devs[vol].disk >= least;
        let active = (0..new.peers.len())
            .find(|p| new.peers[*p].devs[vol].repl == SyncTarget && good(*p, new));
        let best = (0..new.peers.len())
            .filter(|p| candidate(*p, new))
            .min_by_key(|p| (!good(*p, new), bits(*p)));
        let chosen = match (active, best) {
            (Some(a), Some(b)) if bits(b) + SWITCH_SOURCE_BITS > bits(a) => Some(a),
            (_, best) => best,
        };
        let target = new.peers.iter().any(|p| {
            let repl = p.devs[vol].repl;
            matches!(repl, SyncTarget | PausedSyncT | ReplState::WFBitMapT | ReplState::Behind)
        });
        for peer in 0..new.peers.len() {
            let dev = &mut new.peers[peer].devs[vol];
            dev.pause_dependency =
                waits && matches!(dev.repl, SyncTarget | PausedSyncT | SyncSource | PausedSyncS);
            match dev.repl {
                SyncTarget | PausedSyncT => {
                    dev.pause_other = chosen.is_some() && chosen != Some(peer);
                    dev.repl = if dev.paused() { PausedSyncT } else { SyncTarget };
                }
                SyncSource | PausedSyncS => {
                    dev.pause_other = target;
                    dev.repl = if dev.paused() { PausedSyncS } else { SyncSource };
                }
                _ => dev.pause_other = false,
            }
        }
    }

    /// Quorum of a volume in state `st`.
    pub(crate) fn quorum_of(&self, st: &State, vol: VolIx) -> QuorumDecision {
        let volume = &self.vols[vol];
        let slots = volume.backing.as_ref().map(|b| &b.sb.peers);
        let peers: Vec<quorum::Peer> = self
            .peers
            .iter()
            .zip(&st.peers)
            .map(|(peer, state)| {
                let slot = slots.map(|s| &s[peer.node.index()]);
                let dev = &state.devs[vol];
                let connected = state.conn == ConnState::Connected;
                let seen = PeerFlags::NODE_EXISTS.with(PeerFlags::DEVICE_SEEN);
                let has_bitmap = peer.devs[vol].opts.bitmap;
                quorum::Peer {
                    node: peer.node,
                    connected,
                    disk: match peer.devs[vol].maybe_current && !connected {
                        true => DiskState::DUnknown,
                        false => dev.disk,
                    },
                    intentional_diskless: !has_bitmap,
                    exists: connected
                        || peer.reconnect
                        || has_bitmap
                        || slot.is_some_and(|s| s.flags.0 & seen.0 != 0),
                    marked_outdated: slot.is_some_and(|s| s.flags.contains(PeerFlags::OUTDATED)),
                    allow_remote_read: peer.net.allow_remote_read,
                    tiebreaker: peer.devs[vol].opts.peer_tiebreaker,
                    quorate: dev.peer_quorum,
                    forgetful: dev.forgetful,
                }
            })
            .collect();
        let view = quorum::View {
            disk: st.vols[vol].disk,
            forgetful: st.vols[vol].forgetful,
            intentional_diskless: volume.intentional_diskless,
            peers: &peers,
            members: self.members,
            had_quorum: self.st.vols[vol].real_quorum,
            restore_quorum: volume.backing.as_ref().is_some_and(|b| b.restore_quorum),
        };
        let policy = quorum::Policy {
            quorum: self.opts.quorum,
            minimum_redundancy: self.opts.quorum_minimum_redundancy,
        };
        quorum::evaluate(&view, policy)
    }

    /// Soft legality (semantics §1.9): a wish may not make anything worse than these allow.
    fn check(&self, old: &State, new: &State) -> Result<(), Refusal> {
        if new.role == Role::Primary && old.role != Role::Primary {
            self.check_promotion(new)?;
        }
        for (p, (was, is)) in old.peers.iter().zip(&new.peers).enumerate() {
            if is.role == Role::Primary && was.role != Role::Primary {
                self.check_peer_promotion(p, new)?;
            }
        }
        if old.role == Role::Primary && new.role == Role::Secondary && !new.fail_io {
            self.check_demotion()?;
        }
        for vol in 0..new.vols.len() {
            self.check_data(old, new, vol)?;
            let (was, is) = (old.vols[vol], new.vols[vol]);
            let keeps = new.role == Role::Primary && old.role == Role::Primary;
            if keeps && was.quorum && !is.quorum && !is.aside {
                let detail = self.quorum_of(new, vol).explain();
                return Err(Refusal::state(StateError::NoQuorum, detail));
            }
            if is.disk == DiskState::Outdated
                && was.disk < DiskState::Outdated
                && !matches!(was.disk, DiskState::Attaching | DiskState::Negotiating)
            {
                return Err(StateError::LowerThanOutdated.into());
            }
        }
        Ok(())
    }

    fn check_promotion(&self, new: &State) -> Result<(), Refusal> {
        if let Some(p) = new.connected().find(|p| new.peers[*p].role == Role::Primary) {
            return Err(self.second_primary_refused(p));
        }
        if new.fail_io {
            let detail = "I/O fails on purpose since a forced demotion; close all openers first";
            return Err(Refusal::state(StateError::DeviceInUse, detail));
        }
        for vol in 0..new.vols.len() {
            if !new.vols[vol].quorum {
                let detail = self.quorum_of(new, vol).explain();
                return Err(Refusal::state(StateError::NoQuorum, detail));
            }
        }
        self.check_fenced(new)
    }

    /// A peer wants to be Primary (semantics §1.9).
    pub(crate) fn check_peer_promotion(&self, peer: PeerIx, new: &State) -> Result<(), Refusal> {
        if new.role == Role::Primary {
            return Err(StateError::TwoPrimaries.into());
        }
        if (0..new.peers.len()).any(|p| p != peer && new.peers[p].role == Role::Primary) {
            return Err(StateError::TwoPrimaries.into());
        }
        if self.has_readers() && !new.fail_io {
            return Err(StateError::PrimaryReader.into());
        }
        // What an earlier Primary wrote is executed first: its writes must not land over those
        // of the new one.
        if self.peers.iter().any(|p| p.recv.draining) {
            return Err(StateError::InTransientState.into());
        }
        Ok(())
    }

    pub(crate) fn check_demotion(&self) -> Result<(), Refusal> {
        match self.vols.iter().find(|v| v.openers.iter().any(|o| o.write)) {
            Some(v) => {
                let detail = format!("volume {} is open for writing", v.nr);
                Err(Refusal::state(StateError::DeviceInUse, detail))
            }
            None => Ok(()),
        }
    }

    /// A Primary, or a node with readers, keeps access to UpToDate data.
    fn check_data(&self, old: &State, new: &State, vol: VolIx) -> Result<(), Refusal> {
        if self.has_data(new, vol) {
            return Ok(());
        }
        let promoting = new.role == Role::Primary && old.role != Role::Primary;
        let losing = self.has_data(old, vol)
            && (new.role == Role::Primary || !self.vols[vol].openers.is_empty());
        if promoting || losing {
            let detail = format!(
                "volume {}: the disk is {} and no connected peer is UpToDate",
                self.vols[vol].nr, new.vols[vol].disk
            );
            return Err(Refusal::state(StateError::NoUpToDateDisk, detail));
        }
        Ok(())
    }

    /// The new state is now the state; everything that follows from it is set in motion.
    fn commit(&mut self, old: State, new: State) {
        if old == new {
            return;
        }
        self.st = new;
        self.visible_change = true;
        for vol in 0..self.vols.len() {
            self.after_disk_change(&old, vol);
        }
        if old.role != self.st.role {
            self.after_role_change();
        }
        self.after_quorum_change(&old);
        for vol in 0..self.vols.len() {
            self.note_md_flags(vol);
            self.review_primary_ind(vol);
            let durable = |st: &State| {
                let disks: Vec<DiskState> = st.peers.iter().map(|p| p.devs[vol].disk).collect();
                (st.role, st.vols[vol].disk, st.vols[vol].quorum, disks)
            };
            if durable(&old) != durable(&self.st) {
                self.md_changed_now(vol);
            }
        }
        self.broadcast_states();
        self.after_primaries_change(&old);
        for peer in 0..self.peers.len() {
            // What was written while it had no disk, it was told nothing of; and it waits for the
            // word even if there was nothing.
            let joins = |vol: &VolIx| !old.has_disk(peer, *vol) && self.st.has_disk(peer, *vol);
            let joined: Vec<VolIx> = (0..self.vols.len()).filter(joins).collect();
            for vol in &joined {
                self.peers[peer].devs[*vol].disk_since = self.now;
            }
            if old.is_connected(peer) && !joined.is_empty() {
                self.peers[peer].send.dagtag = None;
                self.tell_position(peer);
            }
        }
        for peer in 0..self.peers.len() {
            for vol in 0..self.vols.len() {
                if became_other_disk(&old, &self.st, peer, vol) {
                    self.forget_verify(peer, vol);
                }
                self.after_repl_change(&old, peer, vol);
            }
        }
        self.tell_under_way(&old);
        for vol in 0..self.vols.len() {
            self.tell_proposals(vol);
        }
        for vol in 0..self.vols.len() {
            self.settle_bound(vol);
            self.leave_bound(vol);
        }
        self.review_unconfirmed();
        self.want_catch_up();
        self.want_gathered();
        self.after_fencing_change(&old);
        self.review_joint();
        self.notify_changes(&old);
        self.kick_all();
        self.work.push_back(Work::Resume);
    }

    /// Resyncs that no comparison of generations starts, because both disks hold the same one:
    ///
    /// - a disk that is not current, next to a stable UpToDate one that counts blocks as out of
    ///   sync (a Primary without quorum wrote without starting a generation), or one next to a
    ///   Primary that sends it nothing, though that one may have no disk itself;
    /// - a mixture that is the target of nobody any more: the last source it waited for was lost;
    /// - a disk that stopped while its Primary wrote, where nobody has written since: the blocks
    ///   that were under write then may differ. A Primary is the source, else the other disk;
    /// - a disk that holds what a crashed Primary wrote last, which is the source.
    pub(crate) fn want_catch_up(&mut self) {
        for vol in 0..self.vols.len() {
            self.ask_successor(vol);
            let Some(backing) = &self.vols[vol].backing else { continue };
            let unclean = self.vols[vol].crashed_secondary;
            let settled = (0..self.peers.len()).all(|p| backing.oos(self.peers[p].node) == 0);
            if unclean && settled {
                self.vols[vol].crashed_secondary = false;
                self.review_primary_ind(vol);
                self.hold_released();
                continue;
            }
            let disk = self.st.vols[vol].disk;
            let behind = matches!(disk, DiskState::Outdated | DiskState::Consistent);
            let crashed = self.vols[vol].crashed_primary;
            let differs = (unclean || crashed) && disk == DiskState::UpToDate;
            if self.st.is_target(vol) {
                continue;
            }
            let mixture = disk == DiskState::Inconsistent;
            if !behind && !differs && !mixture {
                self.want_leftovers(vol);
                continue;
            }
            let other = self.st.connected().find(|p| self.may_catch_up(*p, vol));
            if let Some(peer) = other {
                let kind = JobKind::CatchUp { vol, peer };
                if !self.wants(&kind) {
                    let id = self.want(kind, None);
                    if mixture {
                        // Whatever ended its resync may start another one.
                        self.delay_job(id, self.now + LEFTOVER_DELAY);
                    }
                }
            }
        }
    }

    /// A Primary without a disk has left this one behind, and goes on with that of a peer. It has
    /// nothing to compare with itself, so the peer is asked, once for each of its generations.
    fn ask_successor(&mut self, vol: VolIx) {
        let client = |p: PeerIx| {
            let peer = &self.st.peers[p];
            peer.role == Role::Primary && peer.devs[vol].disk == DiskState::Diskless
        };
        let behind = matches!(self.st.vols[vol].disk, DiskState::Outdated | DiskState::Consistent);
        if !behind || !self.st.connected().any(client) {
            return;
        }
        let Some(backing) = &self.vols[vol].backing else { return };
        let current = backing.gens.current();
        let successor = self.st.connected().find_map(|p| {
            let (shown, dev) = (&self.st.peers[p].devs[vol], &self.peers[p].devs[vol]);
            let theirs = dev.uuids.as_ref()?.current;
            let idle = shown.disk == DiskState::UpToDate && shown.repl == ReplState::Established;
            (idle && !theirs.same(current) && !theirs.same(dev.asked_in)).then_some((p, theirs))
        });
        if let Some((peer, generation)) = successor {
            self.peers[peer].devs[vol].asked_in = generation;
            self.ask_recompare(peer, vol);
        }
    }

    /// What this disk and that of a peer do not have in common, a resync between them settles.
    pub(crate) fn may_catch_up(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        let dev = &self.st.peers[peer].devs[vol];
        let own = backing.oos(self.peers[peer].node);
        let behind = self.st.vols[vol].disk < DiskState::UpToDate;
        let mixture = self.st.vols[vol].disk == DiskState::Inconsistent;
        // A Primary without disk sends an Outdated one nothing, and is nobody to resync from.
        let sent_nothing = self.st.vols[vol].disk == DiskState::Outdated
            && !self.st.primary_peers().is_empty()
            && self.far_primaries.minus(self.st.connected_mask()).is_empty();
        dev.disk == DiskState::UpToDate
            && dev.repl == ReplState::Established
            && self.peers[peer].devs[vol].uuids.as_ref().is_some_and(|u| {
                let primary_there = self.st.peers[peer].role == Role::Primary;
                let owed = u.dirty_bits != 0 || primary_there || mixture || sent_nothing;
                let bits = own != 0 || behind && owed;
                let stable = !self.unstable_source(peer, vol, u.flags.has(UuidFlags::STABLE));
                u.current.same(backing.gens.current()) && stable && bits
            })
    }

    /// Bits between two UpToDate disks of one generation that nothing has settled: a write that
    /// reached one of them, or what one of them copied from a third node. They are worth a resync
    /// unless whoever knows better says so in time.
    ///
    /// Of three nodes two may hold one version of a block and the third another. If all of them waited
    /// equally long, each could bring the next one what it has for ever, one behind the other.
    fn want_leftovers(&mut self, vol: VolIx) {
        let Some(peer) = self.st.connected().find(|p| self.has_leftovers(*p, vol)) else { return };
        let kind = JobKind::CatchUp { vol, peer };
        if !self.wants(&kind) {
            let longer = Duration::from_millis(self.rng.below(1000));
            let later = self.now + LEFTOVER_DELAY + longer;
            let id = self.want(kind, None);
            self.delay_job(id, later);
        }
    }

    /// See [`Self::want_leftovers`].
    pub(crate) fn has_leftovers(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        let shown = self.st.peers[peer].devs[vol];
        let dev = &self.peers[peer].devs[vol];
        self.st.vols[vol].disk == DiskState::UpToDate
            && shown.disk == DiskState::UpToDate
            && shown.repl == ReplState::Established
            && backing.oos(self.peers[peer].node) != 0
            && self.is_ours(peer)
            && !dev.verify_found
            && dev.uuids.as_ref().is_some_and(|u| u.current.same(backing.gens.current()))
    }

    fn after_disk_change(&mut self, old: &State, vol: VolIx) {
        let disk = self.st.vols[vol].disk;
        let peer_up_to_date =
            self.st.connected().any(|p| self.st.peers[p].devs[vol].disk == DiskState::UpToDate);
        // Found to be current, not resynced: it has everything but what this Primary still holds.
        if disk == DiskState::UpToDate
            && matches!(old.vols[vol].disk, DiskState::Outdated | DiskState::Consistent)
        {
            self.write_again(vol);
        }
        if disk == DiskState::UpToDate {
            self.vols[vol].told_behind = false;
            let backing = self.vols[vol].backing.as_ref().filter(|b| !b.is_adopting());
            if let Some(current) = backing.map(|b| b.gens.current()) {
                self.vols[vol].expose(current);
            }
            // Another disk may still lack what was under write at the crash. One with a Primary
            // has nothing to tell it any more.
            let told = self.vols[vol].backing.as_ref().is_none_or(|backing| {
                (0..self.peers.len())
                    .filter(|p| self.peer_has_bitmap(*p, vol))
                    .all(|p| backing.oos(self.peers[p].node) == 0)
            });
            let follows = self.st.connected().any(|p| {
                self.st.peers[p].role == Role::Primary
                    && self.st.peers[p].devs[vol].disk == DiskState::UpToDate
            });
            if self.vols[vol].crashed_primary && (follows || peer_up_to_date && told) {
                self.vols[vol].crashed_primary = false;
                self.md_changed_now(vol);
            }
        }
        let gone = old.vols[vol].disk == DiskState::UpToDate && disk < DiskState::Negotiating;
        if gone && self.st.role == Role::Primary {
            self.vols[vol].given_up = self.vols[vol].backing.as_ref().map(|b| b.content());
        }
        if disk == DiskState::UpToDate && !self.vols[vol].lacking.is_empty() {
            for (peer, st) in self.peers.iter().zip(&self.st.peers) {
                let dev = &st.devs[vol];
                let equal = self.vols[vol].backing.as_ref().is_some_and(|b| b.oos(peer.node) == 0);
                let current = dev.repl == ReplState::Established && dev.disk == DiskState::UpToDate;
                if current && equal {
                    self.vols[vol].lacking.remove(peer.node);
                }
            }
        }
        self.note_lost_data(old, vol);
    }

    /// A Primary that lost contact to data of a peer starts a new generation before it writes
    /// again (semantics §4.2).
    fn note_lost_data(&mut self, old: &State, vol: VolIx) {
        if self.st.role != Role::Primary || old.role != Role::Primary {
            return;
        }
        let had = |d: DiskState| {
            matches!(d, DiskState::Inconsistent | DiskState::Consistent | DiskState::UpToDate)
        };
        // A lost peer that seemed Inconsistent still does (A3). It may have become UpToDate without
        // this node knowing yet, and has been written to.
        let lost_peer = old.peers.iter().zip(&self.st.peers).any(|(was, is)| {
            let (before, after) = (was.devs[vol].repl, is.devs[vol].repl);
            let left = before >= ReplState::Established && after == ReplState::Off;
            // Who is resynced from here is in contact, Outdated or not.
            let held = had(is.devs[vol].disk) || after.is_source();
            (had(was.devs[vol].disk) || before.is_source()) && (!held || left)
        });
        let fresh_gap = old.peers.iter().zip(&self.st.peers).enumerate().any(|(p, (was, is))| {
            let came = was.conn != ConnState::Connected && is.conn == ConnState::Connected;
            came && is.devs[vol].disk <= DiskState::Outdated
                && self.peer_has_bitmap(p, vol)
                && self.st.vols[vol].disk == DiskState::UpToDate
                && self.vols[vol].backing.as_ref().is_some_and(|b| b.bitmap_uuid(is.node).is_none())
        });
        let own_lost = old.vols[vol].disk >= DiskState::UpToDate
            && self.st.vols[vol].disk < DiskState::UpToDate;
        let accessible = self.has_data(old, vol) || self.has_data(&self.st, vol);
        if accessible && (lost_peer || fresh_gap || own_lost) {
            self.owe_generation(vol);
        }
    }

    fn after_role_change(&mut self) {
        let primary = self.st.role == Role::Primary;
        let text = format!("{}: this node is {} now", self.name, self.st.role);
        self.log(LogLevel::Info, text);
        for vol in 0..self.vols.len() {
            self.vols[vol].bump_pending = primary;
            self.vols[vol].unconfirmed = None;
            self.vols[vol].telling = GenUuid::NONE;
            self.vols[vol].given_up = None;
            // Users go on with the data of others.
            if primary && self.st.vols[vol].disk != DiskState::UpToDate {
                self.vols[vol].lacking = Lacking::default();
            }
            if let Some(backing) = self.vols[vol].backing.as_mut().filter(|_| !primary) {
                backing.gens.demote();
            }
            self.md_changed_now(vol);
        }
        if !primary {
            self.explicit_primary = false;
        } else {
            for peer in &mut self.peers {
                peer.discard_my_data = false;
            }
            (0..self.vols.len()).for_each(|vol| self.expose_to_users(vol));
            self.take_over();
        }
    }

    /// Semantics §6.2.
    fn after_quorum_change(&mut self, old: &State) {
        if self.opts.quorum == Quorum::Off {
            return;
        }
        let primary = self.st.role == Role::Primary;
        for vol in 0..self.vols.len() {
            let (was, is) = (old.vols[vol].quorum, self.st.vols[vol].quorum);
            if was == is {
                continue;
            }
            let explain = self.quorum_of(&self.st, vol).explain();
            let word = if is { "quorum regained" } else { "quorum lost" };
            let text = format!("{}/{}: {word}: {explain}", self.name, self.vols[vol].nr);
            self.log(if is { LogLevel::Info } else { LogLevel::Warn }, text);
            self.vols[vol].lost_quorum = primary && !is;
            if self.vols[vol].lost_quorum {
                self.notify(HandlerEvent::QuorumLost, None, Some(vol));
            }
            self.md_changed_now(vol);
        }
        if !self.st.is_quorate() && self.opts.on_no_quorum == OnNoQuorum::IoError {
            self.fail_held();
        }
    }

    /// Tells every connected peer the states it does not know yet.
    pub(crate) fn broadcast_states(&mut self) {
        for peer in 0..self.peers.len() {
            if !self.st.is_connected(peer) {
                continue;
            }
            for vol in 0..self.vols.len() {
                if self.st.vols[vol].disk == DiskState::Negotiating {
                    // Shown once, behind the sizes and identifiers it is about.
                    continue;
                }
                if self.vols[vol].forcing && !self.is_ours(peer) {
                    continue;
                }
                let word = self.state_word(peer, vol);
                if self.peers[peer].devs[vol].last_sent != Some(word) {
                    self.peers[peer].devs[vol].last_sent = Some(word);
                    let nr = self.vols[vol].nr;
                    self.send(peer, Packet::State(Some(nr), word));
                }
            }
        }
    }

    /// The peer is of this kind, and says more than kernel nodes do.
    pub(crate) fn is_ours(&self, peer: PeerIx) -> bool {
        self.peers[peer].agreed_features & feature::BITS_OF_EQUALS != 0
    }

    /// This node's states of a volume as the peer is told (wire §8.1).
    pub(crate) fn state_word(&self, peer: PeerIx, vol: VolIx) -> StateWord {
        let st = &self.st;
        let dev = &st.peers[peer].devs[vol];
        let ours = self.is_ours(peer);
        let susp = st.susp.user || st.susp.quorum || st.susp.uuid_bridge;
        StateWord::default()
            .with_role(st.role)
            .with_peer_role(st.peers[peer].role)
            .with_repl_state(dev.repl)
            .with_disk(st.vols[vol].disk)
            .with_pdsk(dev.disk)
            .with_susp(susp)
            .with_aftr_isp(dev.pause_dependency || dev.pause_other)
            .with_peer_isp(dev.pause_peer)
            .with_user_isp(dev.pause_user)
            .with_susp_nod(st.susp.no_data)
            .with_susp_fen(st.susp.fencing)
            .with_quorum(st.vols[vol].quorum)
            .with_forgetful(ours && (st.vols[vol].forgetful || self.is_behind_bound(peer, vol)))
            .with_lost_cache(ours && self.vols[vol].has_lost_cache())
    }

    /// A change of the set of Primaries is answered with identifiers to all peers (wire §8.2).
    fn after_primaries_change(&mut self, old: &State) {
        let (was, is) = (old.primary_peers(), self.st.primary_peers());
        if was == is && old.stable() == self.st.stable() {
            return;
        }
        for node in was.minus(is).iter() {
            let writer = self.peer_ix(node).expect("connected peers are configured");
            self.tell_behind_unacked(writer);
        }
        let got_stable = !old.stable() && self.is_stable();
        for peer in 0..self.peers.len() {
            if self.st.is_connected(peer) {
                for vol in 0..self.vols.len() {
                    let flags = UuidFlags::default().with_if(got_stable, UuidFlags::GOT_STABLE);
                    self.send_uuids(peer, vol, flags, NodeMask::EMPTY);
                }
            }
        }
        // The Primary alone knew which disks it left behind.
        for vol in 0..self.vols.len() {
            self.doubt_ancestors(vol);
        }
    }

    /// Lifts suspensions whose cause is gone. A pending new generation comes first: the
    /// uuid-bridge (semantics §6.3).
    pub(crate) fn try_resume(&mut self) {
        let quorum_back = self.st.susp.quorum
            && (self.st.is_quorate() || self.opts.on_no_quorum == OnNoQuorum::IoError);
        let data_back = self.st.susp.no_data
            && ((0..self.vols.len()).all(|v| self.st.vols[v].aside || self.has_data(&self.st, v))
                || self.opts.on_no_data_accessible == OnNoDataAccessible::IoError
                || self.st.role != Role::Primary);
        let fenced = self.st.susp.fencing && !self.awaits_fencing();
        if !quorum_back && !data_back && !fenced && !self.st.susp.uuid_bridge {
            return;
        }
        // A handshake in progress may still bring a peer back that can take what is held.
        if self.handshake_running() {
            return;
        }
        if data_back && !self.primary_resume_done() {
            return;
        }
        let lifted = Suspended {
            quorum: quorum_back,
            no_data: data_back,
            fencing: fenced,
            ..Suspended::default()
        };
        self.resume(lifted);
    }

    /// Lifts suspensions, after any new generation that is due.
    pub(crate) fn resume(&mut self, lifted: Suspended) {
        let writable = self.st.role == Role::Primary && self.st.is_quorate();
        for vol in 0..self.vols.len() {
            if self.bump_blocks(vol) && writable && self.has_data(&self.st, vol) {
                let frozen = self.log.iter().any(|w| w.vol == vol && !w.completed);
                if frozen || self.vols[vol].bump_running {
                    // The bridge alone holds what an operator does not hold any more.
                    self.change_hard(|st| {
                        st.susp.uuid_bridge = true;
                        st.susp.user &= !lifted.user;
                        st.susp.fencing &= !lifted.user;
                        st.susp.no_data &= !lifted.user;
                    });
                    self.start_bump(vol);
                    if self.bump_blocks(vol) {
                        return;
                    }
                }
            }
        }
        self.change_hard(|st| {
            st.susp.uuid_bridge = false;
            st.susp.quorum &= !lifted.quorum;
            st.susp.no_data &= !lifted.no_data;
            st.susp.user &= !lifted.user;
            st.susp.fencing &= !lifted.fencing;
        });
        if !self.st.susp.any() {
            self.resumed();
        }
    }

    /// Ends what `SuspendIo` began. As long as I/O is held for another reason, too, it stays so.
    pub(crate) fn thaw(&mut self) {
        let susp = self.st.susp;
        match susp.quorum || susp.no_data || susp.fencing || susp.uuid_bridge {
            true => self.change_hard(|st| st.susp.user = false),
            false => self.resume(Suspended { user: true, ..Suspended::default() }),
        }
    }

    /// I/O runs again: what is still owed by peers that are gone is given up (L5).
    fn resumed(&mut self) {
        for peer in 0..self.peers.len() {
            if !self.st.is_connected(peer) {
                let node = self.peers[peer].node;
                self.forget_parts(node, None);
            }
        }
        self.advance_all();
        self.kick_all();
    }

    /// The superblock is written now.
    pub(crate) fn md_changed_now(&mut self, vol: VolIx) {
        self.md_changed(vol);
        self.md_sync_now(vol);
    }
}
