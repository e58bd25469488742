//! What users see of a resource, its promotion hints, and a sentence why it is not healthy
//! (semantics §3.7, §12).

use codec::admin::{
    Blocked, ConnectionStatus, DeviceStatus, PeerDeviceStatus, ResourceStatus, ResyncSuspended,
    SyncDetails, VerifyDetails, WriteOrdering,
};
use codec::wire::UuidFlags;
use vocab::{ConnState, DiskState, ReplState, Role, SECTOR_SIZE, SectorRange, Suspended, VolumeNr};

use crate::request::WaitingOn;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

/// Sectors as KiB, rounded up.
const fn kib(sectors: u64) -> u64 {
    sectors.div_ceil(2)
}

/// MiB per second out of sectors and milliseconds.
fn rate(sectors: u64, ms: u64) -> f64 {
    if ms == 0 { 0.0 } else { sectors as f64 * SECTOR_SIZE as f64 / 1048.576 / ms as f64 }
}

impl Resource {
    /// The present states and counters. Paths and backing devices are the driver's to fill in.
    pub fn status(&self) -> ResourceStatus {
        let (may_promote, promotion_score) = self.promotion();
        let waits = self.joint.on && self.joint.lead.is_none();
        let flushes = self.vols.iter().any(|v| v.backing.is_some() && v.disk_opts.disk_flushes);
        let any_disk = self.vols.iter().any(|v| v.backing.is_some());
        ResourceStatus {
            name: self.name.clone(),
            node_id: self.me,
            role: if self.is_primary_to_users() { Role::Primary } else { Role::Secondary },
            suspended: Suspended { no_data: self.st.susp.no_data || waits, ..self.st.susp },
            force_io_failures: self.st.fail_io,
            write_ordering: match (any_disk, flushes) {
                (false, _) => WriteOrdering::None,
                (true, true) => WriteOrdering::Flush,
                (true, false) => WriteOrdering::Drain,
            },
            may_promote,
            promotion_score,
            devices: (0..self.vols.len()).map(|v| self.device_status(v)).collect(),
            connections: (0..self.peers.len()).map(|p| self.connection_status(p)).collect(),
        }
    }

    fn device_status(&self, vol: VolIx) -> DeviceStatus {
        let volume = &self.vols[vol];
        let state = &self.st.vols[vol];
        let writes = self.log.iter().filter(|w| w.vol == vol && !w.completed).count();
        let waiting = volume.held.len()
            + volume.al_wait.len()
            + volume.al_queued.len()
            + self.joint.requests_of(vol);
        DeviceStatus {
            volume: volume.nr,
            minor: volume.minor,
            disk_state: state.disk,
            client: state.disk == DiskState::Diskless && volume.intentional_diskless,
            open: Some(!volume.openers.is_empty()),
            backing_dev: None,
            quorum: state.quorum,
            size: kib(volume.told_size.0),
            read: kib(volume.stats.read_sectors),
            written: kib(volume.stats.written_sectors),
            al_writes: volume.backing.as_ref().map_or(0, |b| b.al.stats().writes),
            bm_writes: volume.stats.bm_writes,
            sb_writes: Some(volume.stats.sb_writes),
            upper_pending: (writes + waiting) as u64 + u64::from(volume.reads_in_flight),
            lower_pending: u64::from(volume.reads_in_flight) + writes as u64,
            al_suspended: false,
            blocked: Blocked { upper: self.st.susp.any(), lower: false },
        }
    }

    fn connection_status(&self, peer: PeerIx) -> ConnectionStatus {
        let p = &self.peers[peer];
        let st = &self.st.peers[peer];
        ConnectionStatus {
            peer_node_id: p.node,
            name: p.name.clone(),
            connection_state: st.conn,
            congested: st.devs.iter().any(|dev| dev.repl == ReplState::Ahead),
            peer_role: if p.joined { Role::Primary } else { st.role },
            tls: Some(false),
            ap_in_flight: p.send.app_in_flight,
            rs_in_flight: p.rs_under_way,
            paths: Vec::new(),
            peer_devices: (0..self.vols.len()).map(|v| self.peer_device_status(peer, v)).collect(),
        }
    }

    fn peer_device_status(&self, peer: PeerIx, vol: VolIx) -> PeerDeviceStatus {
        let dev = &self.st.peers[peer].devs[vol];
        let pd = &self.peers[peer].devs[vol];
        let size = self.vols[vol].size.0.max(1);
        let oos = self.out_of_sync(peer, vol).0;
        let sync = self.resync_done(peer, vol).map(|(done, total)| {
            let resync = pd.resync.as_ref().expect("a resync is described");
            let ms = u64::try_from(self.now.since(resync.since).as_millis()).unwrap_or(u64::MAX);
            let left = total - done;
            let eta =
                (left * ms).checked_div(done).map_or(SyncDetails::ETA_UNKNOWN, |ms| ms / 1000);
            SyncDetails {
                rs_total: total,
                rs_dt_start_ms: ms,
                rs_dt0_ms: ms,
                rs_db0_sectors: done,
                rs_dt1_ms: ms,
                rs_db1_sectors: done,
                rs_failed: resync.failed,
                rs_same_csum: resync.same_digest,
                rate0: rate(done, ms),
                rate1: rate(done, ms),
                rate: rate(done, ms),
                estimated_seconds_to_finish: eta,
                percent_resync_done: 100.0 * done as f64 / total.max(1) as f64,
                ..SyncDetails::default()
            }
        });
        let verify = pd.verify.as_ref().filter(|_| dev.repl == ReplState::VerifyS);
        let verify = verify.map(|v| VerifyDetails {
            ov_start_sector: 0,
            ov_stop_sector: v.stop,
            ov_position: v.position,
            ov_left: v.stop.saturating_sub(v.position),
            ov_skipped: v.skipped,
        });
        let sync = sync.or_else(|| {
            verify.as_ref().map(|v| SyncDetails {
                rs_total: v.ov_stop_sector,
                estimated_seconds_to_finish: SyncDetails::ETA_UNKNOWN,
                percent_resync_done: 100.0 * v.ov_position as f64 / v.ov_stop_sector.max(1) as f64,
                ..SyncDetails::default()
            })
        });
        PeerDeviceStatus {
            volume: self.vols[vol].nr,
            replication_state: dev.repl,
            peer_disk_state: dev.disk,
            peer_client: dev.disk == DiskState::Diskless && !pd.opts.bitmap,
            resync_suspended: ResyncSuspended {
                user: dev.pause_user,
                peer: dev.pause_peer,
                // DRBD has one word for both.
                dependency: dev.pause_dependency || dev.pause_other,
                ..ResyncSuspended::default()
            },
            received: kib(pd.received_sectors),
            sent: kib(pd.sent_sectors),
            out_of_sync: kib(oos),
            pending: u64::from(pd.reads_pending) + self.unacknowledged(peer, vol),
            unacked: self.peer_writes_pending(peer, vol),
            has_sync_details: sync.is_some(),
            has_online_verify_details: verify.is_some(),
            percent_in_sync: 100.0 * size.saturating_sub(oos) as f64 / size as f64,
            sync,
            verify,
        }
    }

    fn unacknowledged(&self, peer: PeerIx, vol: VolIx) -> u64 {
        let node = self.peers[peer].node.index();
        let pending = |w: &&crate::request::Write| {
            w.vol == vol && w.parts[node] == crate::request::Part::Pending
        };
        self.log.iter().filter(pending).count() as u64
    }

    /// True if a user's request that was accepted has not started because it waits for the activity
    /// log. Looks through all that wait: for single requests.
    pub fn awaits_activity_log(&self, nr: VolumeNr, id: u64) -> bool {
        self.vol_ix(nr).is_some_and(|vol| {
            let volume = &self.vols[vol];
            let mut waiting = volume.al_wait.iter().chain(&volume.al_queued);
            waiting.any(|w| matches!(w, WaitingOn::User(request) if request.id == id))
        })
    }

    /// Could this node be promoted, and how good a choice would it be (semantics §3.7)?
    pub(crate) fn promotion(&self) -> (bool, u32) {
        let vols = 0..self.vols.len();
        let peer_disks =
            |vol: VolIx| self.st.connected().map(move |p| self.st.peers[p].devs[vol].disk);
        let up_to_date = |vol: VolIx| {
            let own = u32::from(self.st.vols[vol].disk == DiskState::UpToDate);
            own + peer_disks(vol).filter(|d| *d == DiskState::UpToDate).count() as u32
        };
        let possible = !vols.is_empty()
            && !self.st.fail_io
            && vols.clone().all(|v| self.st.vols[v].quorum && up_to_date(v) > 0);
        if !possible {
            return (false, 0);
        }
        let local = vols.clone().all(|v| {
            matches!(
                self.st.vols[v].disk,
                DiskState::Inconsistent | DiskState::Consistent | DiskState::UpToDate
            )
        });
        let own = vols.clone().filter(|v| self.st.vols[*v].disk == DiskState::UpToDate).count();
        let least = vols.clone().map(up_to_date).min().unwrap_or(0);
        let score = 10_000 * u32::from(local) + 100 * (own as u32).min(99) + least.min(99);
        let no_primary = !self.is_primary_to_users() && self.st.primary_peers().is_empty();
        let stable = vols.clone().all(|v| {
            self.st.vols[v].disk == DiskState::UpToDate
                || self.st.connected().any(|p| {
                    self.st.peers[p].devs[v].disk == DiskState::UpToDate
                        && self.peers[p].devs[v]
                            .uuids
                            .as_ref()
                            .is_some_and(|u| u.flags.has(UuidFlags::STABLE))
                })
        });
        (no_primary && stable, score)
    }

    /// Why the resource is not healthy or not writable here, what it waits for, and what to do:
    /// one sentence per cause, the most severe first. Empty if all is well.
    pub fn explain(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let name = &self.name;
        if self.st.fail_io {
            causes.push(format!(
                "{name} was demoted by force and fails all I/O; close every opener, then it can be \
                 promoted again"
            ));
        }
        if self.st.susp.user {
            causes.push(format!("I/O of {name} is suspended by an operator; resume it"));
        }
        if self.joint.on && self.joint.lead.is_none() {
            let what = match self.may_take_over() {
                true => "it joins the next Primary, or becomes it, as soon as that is possible",
                false => {
                    "bring that node or the connection back, or, if it is surely down, promote this \
                     one (primary)"
                }
            };
            causes.push(format!(
                "I/O of {name} waits here: this node is Primary beside another one, which is lost; \
                 {what}"
            ));
        }
        if self.st.susp.fencing {
            causes.push(format!(
                "I/O of {name} waits until a lost peer is fenced; bring the peer back, see why the \
                 handler fence-peer did not fence it, or, if it is surely down, resume I/O"
            ));
        }
        for (vol, volume) in self.vols.iter().enumerate() {
            let (nr, state) = (volume.nr, &self.st.vols[vol]);
            if !state.quorum {
                let what = if self.st.role == Role::Primary {
                    "I/O waits"
                } else {
                    "it can not be promoted"
                };
                causes.push(format!(
                    "volume {nr} of {name} has no quorum ({}), so {what}; bring back missing nodes, \
                     or forget those that are gone for good",
                    self.quorum_of(&self.st, vol).explain()
                ));
            }
            if !self.has_data(&self.st, vol) {
                causes.push(format!(
                    "volume {nr} of {name} has no UpToDate data here (the disk is {}) and no \
                     connected peer has any; bring back a node that was UpToDate",
                    state.disk
                ));
            }
            match state.disk {
                DiskState::Diskless if !volume.intentional_diskless => causes
                    .push(format!("volume {nr} of {name} has no disk on this node; attach one")),
                DiskState::Outdated => causes.push(format!(
                    "the disk of volume {nr} of {name} is Outdated: newer data exists elsewhere; \
                     connect to a node that has it and it is resynced"
                )),
                DiskState::Consistent => causes.push(format!(
                    "the disk of volume {nr} of {name} is Consistent, not known to be the newest: \
                     {}",
                    match self.is_unproven(vol) {
                        true => "a peer that can not be reached is not known to be fenced",
                        false => "a lost Primary's last writes are being settled",
                    }
                )),
                DiskState::Inconsistent => causes.push(self.explain_inconsistent(vol)),
                _ => {}
            }
        }
        for peer in 0..self.peers.len() {
            causes.extend(self.explain_connection(peer));
        }
        causes
    }

    fn explain_inconsistent(&self, vol: VolIx) -> String {
        let (name, nr) = (&self.name, self.vols[vol].nr);
        let source = (0..self.peers.len()).find(|p| self.repl(*p, vol) == ReplState::SyncTarget);
        match source.and_then(|p| self.resync_done(p, vol).map(|d| (p, d))) {
            Some((peer, (done, total))) => format!(
                "volume {nr} of {name} is being resynced from {}: {} % done; wait",
                self.peers[peer].name,
                100 * done / total.max(1)
            ),
            None => format!(
                "the disk of volume {nr} of {name} is Inconsistent and no resync runs; connect to \
                 an UpToDate node, or on a new resource declare one node's data good (primary \
                 --force, or new-current-uuid --clear-bitmap)"
            ),
        }
    }

    fn explain_connection(&self, peer: PeerIx) -> Option<String> {
        let (name, other) = (&self.name, &self.peers[peer].name);
        match self.st.peers[peer].conn {
            ConnState::Connected => None,
            ConnState::StandAlone => Some(format!(
                "{name} does not try to connect to {other} (StandAlone): an operator disconnected \
                 it, or the connection was refused, see the log; connect again"
            )),
            conn => Some(format!(
                "{name} is not connected to {other} ({conn}); is that node up, and can it be \
                 reached over the network?"
            )),
        }
    }

    /// True if users of a volume from before this resource was made, as by a driver's process that was
    /// killed since, can go on with what they remember of it: nobody else has written, and whatever was
    /// completed for them is there. Holds from then on only where the volume is open, so that nobody
    /// else can write.
    ///
    /// A resync from a peer does no harm if its disk is at the generation of the one here: it was
    /// connected for all of that, so it has what was completed, and differs in what was not. Without
    /// a disk nothing is known.
    pub fn is_as_it_was(&self, nr: VolumeNr) -> bool {
        self.changes_by_others(nr) == Some(0)
    }

    /// How often others may have changed a volume, by what [`Resource::is_as_it_was`] goes by: where
    /// that is the same at two times, its users can go on in between. `None` without a disk.
    pub fn changes_by_others(&self, nr: VolumeNr) -> Option<u64> {
        let vol = self.vol_ix(nr)?;
        let has_disk =
            matches!(self.st.vols[vol].disk, DiskState::Inconsistent | DiskState::UpToDate);
        has_disk.then_some(self.vols[vol].stats.foreign)
    }

    /// The disk of this node has all that any user of the volume was told to be written.
    pub fn is_up_to_date(&self, nr: VolumeNr) -> bool {
        let vol = self.vol_ix(nr);
        vol.is_some_and(|vol| self.st.vols[vol].disk == DiskState::UpToDate)
    }

    /// The generation that users of a volume see: the disk's, or without a disk the last seen.
    pub fn generation(&self, nr: vocab::VolumeNr) -> vocab::GenUuid {
        self.vol_ix(nr).map_or(vocab::GenUuid::NONE, |vol| {
            let backing = self.vols[vol].backing.as_ref();
            backing.map_or(self.vols[vol].exposed, |b| b.gens.current())
        })
    }

    /// The identifiers and flags that a volume's superblock has towards a node, as `get-gi` prints
    /// them; `None` without a disk.
    pub fn identifiers(&self, nr: VolumeNr, peer: vocab::NodeId) -> Option<String> {
        let vol = self.vol_ix(nr)?;
        self.vols[vol].backing.as_ref()?;
        Some(self.superblock(vol).gi_string(peer))
    }

    /// True if the block at a sector counts as out of sync with a peer; for checkers that watch
    /// from outside.
    pub fn out_of_sync_at(&self, nr: vocab::VolumeNr, peer: vocab::NodeId, sector: u64) -> bool {
        let backing = self.vol_ix(nr).and_then(|vol| self.vols[vol].backing.as_ref());
        backing.is_some_and(|b| {
            b.slot_of(peer).is_some_and(|slot| b.bitmap.test_any(slot, SectorRange::new(sector, 1)))
        })
    }

    /// Cuts the begin of a range into at most `limit` pieces, at least one, and says of each if a replica
    /// may miss some of it, one that is not connected or this one among them. What is being written
    /// now does not count. Where this node can not know it, having no disk or an old one, all is
    /// missed.
    pub fn out_of_sync_pieces(
        &self,
        nr: VolumeNr,
        range: SectorRange,
        limit: usize,
    ) -> Vec<(SectorRange, bool)> {
        let known = self.vol_ix(nr).and_then(|vol| {
            let knows = self.st.vols[vol].disk == DiskState::UpToDate || self.st.is_target(vol);
            self.vols[vol].backing.as_ref().filter(|_| knows)
        });
        let Some(backing) = known else { return vec![(range, true)] };
        let nodes = self.peers.iter().map(|peer| peer.node);
        let slots: Vec<usize> = nodes.filter_map(|node| backing.slot_of(node)).collect();
        backing.bitmap.runs(&slots, range, limit)
    }

    /// True if a write of the sector has come through here, and this node does not know that every
    /// node has it; for checkers that watch from outside.
    pub fn is_unacked_at(&self, nr: vocab::VolumeNr, sector: u64) -> bool {
        let at = SectorRange::new(sector, 1);
        self.vol_ix(nr).is_some_and(|vol| self.written(vol).any(|range| range.overlaps(at)))
    }

    /// Checks what must hold between any two inputs.
    ///
    /// # Panics
    /// If something does not hold: a bug.
    pub fn invariants(&self) {
        for vol in 0..self.vols.len() {
            self.meta_invariants(vol);
            let targets =
                self.st.peers.iter().filter(|p| p.devs[vol].repl == ReplState::SyncTarget).count();
            assert!(targets <= 1, "at most one active SyncTarget (invariant 42)");
            let source = self.st.peers.iter().any(|p| p.devs[vol].repl == ReplState::SyncSource);
            assert!(!(source && targets > 0), "never source and target at once");
            let state = self.st.vols[vol];
            assert!(
                state.disk <= DiskState::Diskless || self.vols[vol].backing.is_some(),
                "a disk state needs a disk"
            );
            if let Some(backing) = &self.vols[vol].backing {
                backing.gens.invariants();
                backing.al.check();
            }
        }
        for (peer, st) in self.peers.iter().zip(&self.st.peers) {
            assert_eq!(peer.node, st.node);
            if st.conn != ConnState::Connected {
                assert_eq!(st.role, Role::Unknown);
                assert!(st.devs.iter().all(|d| d.repl == ReplState::Off));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn rates_are_mib_per_second() {
        assert_eq!(rate(0, 0), 0.0);
        assert_eq!(rate(2048, 1000), 1.0);
        assert_eq!(rate(2048 * 64, 500), 128.0);
    }
}
