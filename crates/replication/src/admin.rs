//! Wishes of operators.

use codec::wire::{Operation, UuidFlags};
use vocab::{
    ConfigError, ConnState, DiskState, NodeId, NodeMask, Refusal, ReplState, Role, StateError,
    Suspended, VolumeNr,
};

use crate::activity_log::ActivityLog;
use crate::congestion::check_congestion;
use crate::fencing::check_fencing;
use crate::io::{AdminCommand, Output};
use crate::jobs::JobKind;
use crate::resize::ResizeWish;
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// A wish was granted at once, will be answered later, or is refused.
pub(crate) type Granted = Result<Answer, Refusal>;

pub(crate) enum Answer {
    Now,
    Later,
}

impl Resource {
    /// Takes a wish; it is answered now or later by one [`Output::AdminDone`].
    pub(crate) fn admin(&mut self, id: u64, command: AdminCommand) {
        match self.grant(id, command) {
            Ok(Answer::Now) => self.admin_ok(id),
            Ok(Answer::Later) => {}
            Err(refusal) => self.out.push_back(Output::AdminDone { id, result: Err(refusal) }),
        }
        self.review_legacy();
    }

    pub(crate) fn admin_ok(&mut self, id: u64) {
        self.out.push_back(Output::AdminDone { id, result: Ok(()) });
    }

    fn grant(&mut self, id: u64, command: AdminCommand) -> Granted {
        match command {
            AdminCommand::Attach { volume, image } => {
                let attached = self.attach(volume, &image, id);
                let kept = self.vol_ix(volume).is_some_and(|v| self.vols[v].backing.is_some());
                if attached.is_err() && !kept {
                    // Not taken at all.
                    self.out.push_back(Output::DiskReleased { volume });
                }
                attached.map(|()| Answer::Later)
            }
            AdminCommand::Detach { volume, force, intentional } => {
                self.detach(id, volume, force, intentional)
            }
            AdminCommand::Connect { peer, discard_my_data } => self.connect(peer, discard_my_data),
            AdminCommand::Disconnect { peer, force } => self.disconnect(id, peer, force),
            AdminCommand::Primary { force } => {
                self.want(JobKind::Primary { force }, Some(id));
                Ok(Answer::Later)
            }
            AdminCommand::Secondary { force } => {
                self.want(JobKind::Secondary { force }, Some(id));
                Ok(Answer::Later)
            }
            AdminCommand::Invalidate { volume, from } => self.invalidate(id, volume, from),
            AdminCommand::InvalidateRemote { peer, volume } => {
                let (peer, vol) = self.pair(peer, volume)?;
                self.want(JobKind::InvalidateRemote { vol, peer }, Some(id));
                Ok(Answer::Later)
            }
            AdminCommand::Verify { peer, volume, start, stop } => {
                let (peer, vol) = self.pair(peer, volume)?;
                if self.repl(peer, vol) > ReplState::Established {
                    return Err(StateError::ResyncRunning.into());
                }
                self.prepare_verify(peer, vol, start, stop)?;
                self.want(JobKind::Verify { vol, peer }, Some(id));
                Ok(Answer::Later)
            }
            AdminCommand::Resize { volume, size, assume_peer_has_space, assume_clean } => {
                let vol = self.known_volume(volume)?;
                let wish = ResizeWish { size, assume_peer_has_space, assume_clean };
                self.want(JobKind::Resize { vol, wish }, Some(id));
                Ok(Answer::Later)
            }
            AdminCommand::PauseSync { peer, volume, pause } => {
                let (peer, vol) = self.pair(peer, volume)?;
                let was = self.st.peers[peer].devs[vol].pause_user;
                match (was, pause) {
                    (true, true) => return Err(ConfigError::PauseSet.into()),
                    (false, false) => return Err(ConfigError::PauseClear.into()),
                    _ => {}
                }
                self.change_hard(|st| st.peers[peer].devs[vol].pause_user = pause);
                Ok(Answer::Now)
            }
            AdminCommand::SuspendIo => {
                self.change_hard(|st| st.susp.user = true);
                self.close_epoch();
                self.drain_waiters.push(id);
                self.answer_drained();
                Ok(Answer::Later)
            }
            AdminCommand::ResumeIo => {
                let (user, no_data, fencing, quorum) = (true, true, true, true);
                self.resume(Suspended { user, no_data, fencing, quorum, uuid_bridge: true });
                Ok(Answer::Now)
            }
            AdminCommand::Thaw => {
                self.thaw();
                Ok(Answer::Now)
            }
            AdminCommand::NewCurrentUuid { volume, clear_bitmap } => {
                self.new_current_uuid(id, volume, clear_bitmap)
            }
            AdminCommand::Outdate { volume } => self.outdate(id, volume),
            AdminCommand::ForgetPeer { peer } => self.forget_peer(id, peer),
            AdminCommand::NewVolume(config) => self.new_volume(id, config),
            AdminCommand::DelVolume(nr) => self.del_volume(nr),
            AdminCommand::NewPeer(config) => {
                if config.node_id == self.me || self.peer_ix(config.node_id).is_some() {
                    let detail = format!("node id {} is in use", config.node_id);
                    return Err(Refusal::config(ConfigError::InvalidRequest, detail));
                }
                check_fencing(&config.net)?;
                check_congestion(&config.net)?;
                self.check_two_primaries(None, &config.net)?;
                self.may_change_members()?;
                self.add_peer(config);
                self.slots_for_new_peer()?;
                self.change_hard(|_| {});
                self.visible_change = true;
                Ok(Answer::Now)
            }
            AdminCommand::DelPeer(node) => self.del_peer(node),
            AdminCommand::ResourceOptions(options) => {
                self.check_all_fit(options.quorum)?;
                self.opts = options;
                self.change_hard(|_| {});
                self.work.push_back(Work::Resume);
                if self.opts.on_no_quorum == vocab::options::OnNoQuorum::IoError
                    && !self.st.is_quorate()
                {
                    self.fail_frozen();
                }
                Ok(Answer::Now)
            }
            AdminCommand::Handlers(handlers) => {
                self.handlers.configured = handlers;
                Ok(Answer::Now)
            }
            AdminCommand::NetOptions(node, options) => {
                let peer = self.known_peer(node)?;
                check_fencing(&options)?;
                check_congestion(&options)?;
                self.check_two_primaries(Some(peer), &options)?;
                if options.protocol != self.peers[peer].net.protocol
                    && self.st.peers[peer].conn > ConnState::Disconnecting
                {
                    let detail = "disconnect before changing the protocol";
                    return Err(Refusal::config(ConfigError::NetConfigured, detail));
                }
                self.set_net_options(peer, *options);
                Ok(Answer::Now)
            }
            AdminCommand::DiskOptions(nr, options) => {
                let vol = self.known_volume(nr)?;
                self.change_al_extents(vol, options.al_extents)?;
                self.vols[vol].disk_opts = *options;
                Ok(Answer::Now)
            }
            AdminCommand::PeerDeviceOptions(node, nr, options) => {
                let (peer, vol) = (self.known_peer(node)?, self.known_volume(nr)?);
                self.peers[peer].devs[vol].opts = *options;
                self.change_hard(|_| {});
                Ok(Answer::Now)
            }
        }
    }

    /// The activity log of an attached disk grows at once, and does not shrink.
    fn change_al_extents(&mut self, vol: VolIx, wanted: u32) -> Result<(), Refusal> {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return Ok(()) };
        let (has, slots) = (backing.al.extents(), ActivityLog::slots_for(wanted, backing.sb.al));
        if slots < has {
            let detail = format!(
                "al-extents can not become {wanted} while the disk is attached with {has}: what \
                 the log on disk says of the others could not be taken back; detach the disk and \
                 attach it again"
            );
            return Err(Refusal::config(ConfigError::InvalidRequest, detail));
        }
        if slots > has {
            backing.al.grow(slots);
            backing.sb.al_nr_extents = u32::from(slots);
            self.md_changed(vol);
            self.retry_al(vol);
        }
        Ok(())
    }

    pub(crate) fn known_peer(&self, node: NodeId) -> Result<PeerIx, Refusal> {
        self.peer_ix(node).ok_or_else(|| {
            let detail = format!("{} has no peer with node id {node}", self.name);
            Refusal::config(ConfigError::InvalidRequest, detail)
        })
    }

    fn known_volume(&self, nr: VolumeNr) -> Result<VolIx, Refusal> {
        self.vol_ix(nr).ok_or_else(|| {
            let detail = format!("{} has no volume {nr}", self.name);
            Refusal::config(ConfigError::MinorInvalid, detail)
        })
    }

    fn pair(&self, node: NodeId, nr: VolumeNr) -> Result<(PeerIx, VolIx), Refusal> {
        Ok((self.known_peer(node)?, self.known_volume(nr)?))
    }

    fn connect(&mut self, node: NodeId, discard_my_data: bool) -> Granted {
        let peer = self.known_peer(node)?;
        if self.st.peers[peer].conn != ConnState::StandAlone {
            return Err(ConfigError::NetConfigured.into());
        }
        if discard_my_data && self.st.role == Role::Primary {
            return Err(ConfigError::DiscardImpossible.into());
        }
        self.forget_measures();
        self.peers[peer].discard_my_data = discard_my_data;
        self.peers[peer].hs.then = crate::handshake::AfterLoss::Reconnect;
        self.change_hard(|st| st.peers[peer].conn = ConnState::Unconnected);
        self.start_connecting(peer);
        Ok(Answer::Now)
    }

    fn disconnect(&mut self, id: u64, node: NodeId, force: bool) -> Granted {
        let peer = self.known_peer(node)?;
        match self.st.peers[peer].conn {
            ConnState::StandAlone => Ok(Answer::Now),
            ConnState::Connected if !force => {
                self.want(JobKind::Disconnect(peer), Some(id));
                Ok(Answer::Later)
            }
            _ => {
                self.disconnect_local(peer);
                Ok(Answer::Now)
            }
        }
    }

    fn detach(&mut self, id: u64, nr: VolumeNr, force: bool, intentional: bool) -> Granted {
        let vol = self.known_volume(nr)?;
        if self.vols[vol].backing.is_none() {
            self.vols[vol].intentional_diskless |= intentional;
            return Ok(Answer::Now);
        }
        if force {
            self.vols[vol].intentional_diskless |= intentional;
            self.give_up_disk(vol, "an operator detached it by force");
            return Ok(Answer::Now);
        }
        self.want(JobKind::Detach { vol, intentional }, Some(id));
        Ok(Answer::Later)
    }

    fn invalidate(&mut self, id: u64, nr: VolumeNr, from: Option<NodeId>) -> Granted {
        let vol = self.known_volume(nr)?;
        if self.vols[vol].backing.is_none() {
            return Err(StateError::NoLocalDisk.into());
        }
        let usable = |p: &PeerIx| {
            let dev = &self.st.peers[*p].devs[vol];
            dev.disk == DiskState::UpToDate && dev.repl == ReplState::Established
        };
        let peer = match from {
            Some(node) => Some(self.known_peer(node)?).filter(|p| self.st.is_connected(*p)),
            None => {
                let op = Operation::Invalidate;
                let good = |p: &PeerIx| usable(p) && self.may_resync(op, true, *p, vol).is_ok();
                self.st.connected().find(good).or_else(|| self.st.connected().find(usable))
            }
        };
        if let Some(peer) = peer {
            self.want(JobKind::Invalidate { vol, peer }, Some(id));
            return Ok(Answer::Later);
        }
        let refuse = |detail| Err(Refusal::state(StateError::NoUpToDateDisk, detail));
        if self.st.role == Role::Primary || !self.vols[vol].openers.is_empty() {
            return refuse("no connected peer is UpToDate, and this data is in use");
        }
        // A peer that is there may be in need of this disk. Without any, the operator knows best.
        if self.st.connected().any(|p| self.st.peers[p].devs[vol].disk >= DiskState::Inconsistent) {
            return refuse(
                "no connected peer is UpToDate and at rest; wait until its resync ended",
            );
        }
        let backing = self.vols[vol].backing.as_mut().expect("looked at above");
        for slot in 0..backing.bitmap.slots() {
            backing.set_all(slot);
        }
        self.change_hard(|st| st.vols[vol].disk = DiskState::Inconsistent);
        self.persist_with_bitmap(vol, Work::Answer(id));
        Ok(Answer::Later)
    }

    /// Semantics §4.2 and §4.7.
    fn new_current_uuid(&mut self, id: u64, nr: VolumeNr, clear_bitmap: bool) -> Granted {
        let vol = self.known_volume(nr)?;
        let settling = |disk| {
            matches!(disk, DiskState::Attaching | DiskState::Negotiating | DiskState::Detaching)
        };
        let unsettled = settling(self.st.vols[vol].disk)
            || self.st.connected().any(|p| settling(self.st.peers[p].devs[vol].disk));
        if self.handshake_running() || unsettled {
            return Err(StateError::InTransientState.into());
        }
        let Some(backing) = &self.vols[vol].backing else {
            return Err(ConfigError::NoDisk.into());
        };
        let fresh = backing.gens.current().is_just_created();
        let connected: Vec<PeerIx> = self.st.connected().collect();
        let with_disk: Vec<PeerIx> = connected
            .iter()
            .copied()
            .filter(|p| self.st.peers[*p].devs[vol].disk >= DiskState::Inconsistent)
            .collect();
        let all_fresh = fresh
            && with_disk.iter().all(|p| {
                self.repl(*p, vol) == ReplState::Established
                    && self.peers[*p].devs[vol]
                        .uuids
                        .as_ref()
                        .is_some_and(|u| u.current.is_just_created())
            });
        if !connected.is_empty() && !all_fresh {
            let detail =
                "only possible without connections, or while all connected disks are just created";
            return Err(Refusal::config(ConfigError::Connected, detail));
        }
        let told: NodeMask = with_disk.iter().map(|p| self.peers[*p].node).collect();
        let situation = self.situation(vol);
        let rng = &mut self.rng;
        let volume = &mut self.vols[vol];
        let backing = volume.backing.as_mut().expect("looked at above");
        let new = backing.gens.new_current(&situation, clear_bitmap, told, || rng.next());
        if clear_bitmap {
            for slot in 0..backing.bitmap.slots() {
                backing.bitmap.clear_all(slot);
            }
        }
        volume.expose(new.current);
        self.forget_bound(vol);
        if clear_bitmap {
            for peer in &connected {
                self.send_uuids(*peer, vol, UuidFlags::SKIP_INITIAL_SYNC, NodeMask::EMPTY);
            }
            self.change_hard(|st| {
                st.vols[vol].disk = DiskState::UpToDate;
                for peer in &with_disk {
                    st.peers[*peer].devs[vol].disk = DiskState::UpToDate;
                }
            });
        }
        self.persist_with_bitmap(vol, Work::Answer(id));
        Ok(Answer::Later)
    }

    fn outdate(&mut self, id: u64, nr: VolumeNr) -> Granted {
        let vol = self.known_volume(nr)?;
        let disk = self.st.vols[vol].disk;
        if disk == DiskState::Diskless {
            return Err(StateError::IsDiskless.into());
        }
        if disk < DiskState::Outdated {
            return Err(StateError::LowerThanOutdated.into());
        }
        if self.st.role == Role::Primary {
            return Err(StateError::NoUpToDateDisk.into());
        }
        if self.st.connected().any(|p| self.st.peers[p].role == Role::Primary) {
            return Err(StateError::ConnectedOutdates.into());
        }
        self.change_soft(|st| st.vols[vol].disk = DiskState::Outdated)?;
        self.persist(vol, Work::Answer(id));
        Ok(Answer::Later)
    }

    fn forget_peer(&mut self, id: u64, node: NodeId) -> Granted {
        if node == self.me {
            let detail = format!("{node} is this node");
            return Err(Refusal::config(ConfigError::InvalidPeerNodeId, detail));
        }
        if self.peer_ix(node).is_some() {
            let detail = format!("remove the connection to node {node} first");
            return Err(Refusal::config(ConfigError::NetConfigured, detail));
        }
        for vol in 0..self.vols.len() {
            let situation = self.situation(vol);
            let Some(backing) = self.vols[vol].backing.as_mut() else { continue };
            let slot = backing.slot_of(node);
            let spare = (0..backing.bitmap.slots()).find(|s| backing.node_of_slot(*s).is_none());
            backing.gens.forget(node, &situation);
            let entry = backing.sb.peer_mut(node);
            entry.flags = codec::disk::PeerFlags::EMPTY;
            entry.bitmap_index = None;
            if let Some(slot) = slot {
                match spare {
                    Some(spare) => backing.bitmap.copy_slot(spare, slot),
                    None => {
                        backing.set_all(slot);
                    }
                }
            }
        }
        self.members.remove(node);
        self.record_forgotten(id, 0);
        Ok(Answer::Later)
    }

    /// Writes what was forgotten down, on one disk after another, and then answers.
    pub(crate) fn record_forgotten(&mut self, id: u64, from: VolIx) {
        match (from..self.vols.len()).find(|vol| self.vols[*vol].backing.is_some()) {
            Some(vol) => self.persist_with_bitmap(vol, Work::Forgotten(id, vol + 1)),
            None => self.admin_ok(id),
        }
    }

    fn del_volume(&mut self, nr: VolumeNr) -> Granted {
        let vol = self.known_volume(nr)?;
        if self.vols[vol].backing.is_some() || !self.vols[vol].openers.is_empty() {
            return Err(ConfigError::MinorConfigured.into());
        }
        let busy = self
            .peers
            .iter()
            .enumerate()
            .any(|(p, _)| self.st.peers[p].conn != ConnState::StandAlone);
        if busy || self.log.len() > 0 {
            let detail = "disconnect all peers first";
            return Err(Refusal::config(ConfigError::Connected, detail));
        }
        self.vols.remove(vol);
        self.st.vols.remove(vol);
        for (peer, st) in self.peers.iter_mut().zip(&mut self.st.peers) {
            peer.devs.remove(vol);
            st.devs.remove(vol);
        }
        self.visible_change = true;
        Ok(Answer::Now)
    }

    /// Frozen requests fail: an operator prefers errors to waiting (L6).
    fn fail_frozen(&mut self) {
        self.fail_held();
        for peer in 0..self.peers.len() {
            if !self.st.is_connected(peer) {
                let node = self.peers[peer].node;
                self.forget_parts(node, None);
            }
        }
    }

    /// suspend-io returns once everything accepted is on all replicas.
    pub(crate) fn answer_drained(&mut self) {
        if self.drain_waiters.is_empty() || !self.is_drained() {
            return;
        }
        self.flush_peer_acks();
        for id in std::mem::take(&mut self.drain_waiters) {
            self.admin_ok(id);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Wishes that end on a disk.

    use codec::disk::{MdParams, Placement, Superblock};
    use vocab::options::{DiskOptions, ResourceOptions};
    use vocab::{Bytes, Instant, Minor, RefusalCode};

    use super::*;
    use crate::config::VolumeConfig;
    use crate::io::Input;
    use crate::testing::{attach_image, attached};

    fn node(id: u8) -> NodeId {
        NodeId::new(id).unwrap()
    }

    /// Asks for something, and says yes to every write of metadata that it takes. Returns how many
    /// there were until the answer, and the answer.
    fn ask(resource: &mut Resource, command: AdminCommand) -> (usize, Result<(), RefusalCode>) {
        resource.handle(Instant(3), Input::Admin { id: 9, command });
        let mut writes = 0;
        while let Some(output) = resource.poll() {
            match output {
                Output::AdminDone { id: 9, result } => {
                    return (writes, result.map_err(|refusal| refusal.code));
                }
                Output::MetaWrite { op, .. } => {
                    writes += 1;
                    resource.handle(Instant(3), Input::MetaDone { op, result: Ok(()) });
                }
                _ => {}
            }
        }
        panic!("no answer");
    }

    #[test]
    fn a_forgotten_peer_leaves_a_slot_that_vouches_for_nothing() {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        let refused = |code: ConfigError| Err(RefusalCode::Config(code));
        let forget = |peer| AdminCommand::ForgetPeer { peer: node(peer) };
        assert_eq!(ask(&mut resource, forget(1)).1, refused(ConfigError::NetConfigured));
        assert_eq!(ask(&mut resource, forget(0)).1, refused(ConfigError::InvalidPeerNodeId));
        assert_eq!(ask(&mut resource, AdminCommand::DelPeer(node(1))).1, Ok(()));
        let slot = resource.vols[0].backing.as_ref().unwrap().slot_of(node(1)).unwrap();
        resource.vols[0].backing.as_mut().unwrap().bitmap.clear_all(slot);
        let (writes, answer) = ask(&mut resource, forget(1));
        assert_eq!(answer, Ok(()));
        assert!(writes > 0, "it is on disk before it is said");
        let backing = resource.vols[0].backing.as_ref().unwrap();
        assert_eq!((backing.slot_of(node(1)), backing.node_of_slot(slot)), (None, None));
        assert_eq!(backing.bitmap.out_of_sync(slot), resource.vols[0].size);
    }

    #[test]
    fn a_peer_is_forgotten_when_every_disk_has_forgotten_it() {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        let (nr, minor) = (VolumeNr(1), Minor(1));
        let (diskless, disk) = (false, DiskOptions::default());
        let volume = VolumeConfig { nr, minor, diskless, disk };
        assert_eq!(ask(&mut resource, AdminCommand::NewVolume(volume)).1, Ok(()));
        let (superblock, layout) =
            Superblock::create(Placement::Internal, Bytes(64 << 20), &MdParams::new(1)).unwrap();
        let image = Box::new(attach_image(&superblock, &layout));
        assert_eq!(ask(&mut resource, AdminCommand::Attach { volume: nr, image }).1, Ok(()));
        assert_eq!(ask(&mut resource, AdminCommand::DelPeer(node(1))).1, Ok(()));
        let command = AdminCommand::ForgetPeer { peer: node(1) };
        resource.handle(Instant(5), Input::Admin { id: 9, command });
        // The first disk is slow.
        let mut slow = None;
        let answered = |resource: &mut Resource, slow: &mut Option<_>| {
            let mut done = false;
            while let Some(output) = resource.poll() {
                match output {
                    Output::AdminDone { id: 9, .. } => done = true,
                    Output::MetaWrite { volume: VolumeNr(0), op, .. } => *slow = Some(op),
                    Output::MetaWrite { op, .. } => {
                        resource.handle(Instant(5), Input::MetaDone { op, result: Ok(()) });
                    }
                    _ => {}
                }
            }
            done
        };
        assert!(!answered(&mut resource, &mut slow));
        let op = slow.take().expect("the first disk is told");
        resource.handle(Instant(5), Input::MetaDone { op, result: Ok(()) });
        assert!(answered(&mut resource, &mut slow));
    }

    #[test]
    fn the_activity_log_of_an_attached_disk_grows_and_does_not_shrink() {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        let mut change = |al_extents| {
            let options = DiskOptions { al_extents, ..DiskOptions::default() };
            let command = AdminCommand::DiskOptions(VolumeNr(0), Box::new(options));
            let answer = ask(&mut resource, command).1;
            let backing = resource.vols[0].backing.as_ref().unwrap();
            assert_eq!(backing.sb.al_nr_extents, u32::from(backing.al.extents()));
            (answer, backing.al.extents(), resource.vols[0].disk_opts.al_extents)
        };
        assert_eq!(change(1237), (Ok(()), 1237, 1237));
        assert_eq!(change(3000), (Ok(()), 3000, 3000));
        let refused = Err(RefusalCode::Config(ConfigError::InvalidRequest));
        assert_eq!(change(2999), (refused, 3000, 3000));
        // The ring carries no more than 6433, whatever is asked for.
        assert_eq!(change(65_534), (Ok(()), 6433, 65_534));
        assert_eq!(change(7000), (Ok(()), 6433, 7000));
    }
}
