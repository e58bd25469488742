//! Volumes that are added while everything else goes on, and nodes that do not have the same ones.
//!
//! ```text
//!             NewVolume           the peer's set, or that it has none
//!   (no volume) ──► Asked ──────────────────────────────────────────► Here | Absent
//! ```
//!
//! A node shows a new volume to its peers as when connecting: parameters, sizes, identifiers, and last
//! the states with connection number 9 (wire §8.1). Who has the volume answers with its own set, who has
//! not says that: with connection number 0, which is Ashlar's own (feature `VOLUMES_DIFFER`), as a
//! DRBD node passes over volumes that it does not know. The volume is there once all have answered, and
//! no disk is attached before: it would be taken for current next to a newer one, or for larger than
//! the others have agreed on.
//!
//! A peer without the volume is to it what a node is that has lost its disk: connected, Diskless, and
//! it does not know what it has voted for. So that this does not stop what goes on elsewhere, a volume
//! counts for its resource only once it has quorum and data (`VolState::aside`); until then its own I/O
//! waits.

use codec::wire::{Packet, StateWord, feature};
use serde::{Deserialize, Serialize};
use vocab::{ConfigError, ConnState, DiskState, Refusal, ReplState, Role, StateError, VolumeNr};

use crate::admin::{Answer, Granted};
use crate::compare::Decided;
use crate::config::VolumeConfig;
use crate::resource::Resource;
use crate::state::{DevState, PeerIx, VolIx};

/// Whether a connected peer has a volume.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Presence {
    #[default]
    Here,
    /// It was shown the volume, and has not answered.
    Asked,
    Absent,
}

impl Resource {
    /// An operator adds a volume.
    pub(crate) fn new_volume(&mut self, id: u64, config: VolumeConfig) -> Granted {
        if self.vol_ix(config.nr).is_some() {
            return Err(ConfigError::MinorExists.into());
        }
        self.may_add_volume()?;
        let vol = self.vols.len();
        self.add_volume(config);
        let connected: Vec<PeerIx> = self.st.connected().collect();
        let used = self.st.role == Role::Primary;
        let state = &mut self.st.vols[vol];
        state.aside = used || !connected.is_empty();
        state.quorum = !state.aside;
        // The first word about it says so already.
        state.forgetful = !self.vols[vol].remembers;
        // The peers may miss whatever is written first.
        self.vols[vol].bump_pending = used;
        for &peer in &connected {
            self.st.peers[peer].devs[vol] = DevState {
                repl: ReplState::Established,
                disk: DiskState::Diskless,
                forgetful: true,
                ..DevState::new()
            };
            self.peers[peer].devs[vol].presence = Presence::Asked;
            self.show_volume(peer, vol, true);
        }
        self.change_hard(|_| {});
        self.visible_change = true;
        if connected.is_empty() {
            return Ok(Answer::Now);
        }
        self.vols[vol].added_by = Some(id);
        Ok(Answer::Later)
    }

    /// Peers have answered, or are gone.
    pub(crate) fn answer_added(&mut self) {
        for vol in 0..self.vols.len() {
            if self.vols[vol].added_by.is_some() && !self.awaits_presence(vol) {
                self.vols[vol].added_by.take().into_iter().for_each(|id| self.admin_ok(id));
            }
        }
    }

    fn may_add_volume(&self) -> Result<(), Refusal> {
        let other = self.st.connected().find(|p| !self.may_lack_volumes(*p));
        if let Some(peer) = other {
            let detail = format!(
                "{} is connected, and would not say whether it has the volume: disconnect it, or, if \
                 it is an Ashlar node that was updated since it connected, connect it anew",
                self.peers[peer].name
            );
            return Err(Refusal::config(ConfigError::Connected, detail));
        }
        if self.joint.on || self.peers.iter().any(|p| p.joined) {
            let detail = "add volumes while no more than one node is Primary";
            return Err(Refusal::config(ConfigError::Connected, detail));
        }
        match self.handshake_running() {
            true => Err(StateError::InTransientState.into()),
            false => Ok(()),
        }
    }

    /// The peer says which volumes it does not have.
    pub(crate) fn may_lack_volumes(&self, peer: PeerIx) -> bool {
        self.peers[peer].agreed_features & feature::VOLUMES_DIFFER != 0
    }

    /// Parameters, sizes, identifiers and states of a volume. `asks`: the peer is to answer with its own.
    fn show_volume(&mut self, peer: PeerIx, vol: VolIx, asks: bool) {
        let nr = self.vols[vol].nr;
        self.show_parameters(peer, vol);
        self.show_disk(peer, vol);
        let word = self.state_word(peer, vol);
        self.peers[peer].devs[vol].last_sent = Some(word);
        let shown = if asks { word.with_conn_state(ConnState::Connecting) } else { word };
        self.send(peer, Packet::State(Some(nr), shown));
    }

    /// States of a volume that is unknown here.
    pub(crate) fn unknown_volume_shown(&mut self, peer: PeerIx, nr: VolumeNr, word: StateWord) {
        if word.conn_state() != Some(ConnState::Connecting) || !self.may_lack_volumes(peer) {
            return;
        }
        let none = StateWord::default()
            .with_role(self.st.role)
            .with_conn_state(ConnState::StandAlone)
            .with_disk(DiskState::Diskless)
            .with_pdsk(DiskState::DUnknown)
            .with_forgetful(true);
        self.send(peer, Packet::State(Some(nr), none));
    }

    /// A connected peer has a volume anew, and wants to know what is here.
    pub(crate) fn volume_added(&mut self, peer: PeerIx, vol: VolIx) {
        let dev = &mut self.peers[peer].devs[vol];
        // Nothing is left of what it knew of this one.
        dev.together = false;
        if self.st.peers[peer].devs[vol].repl == ReplState::Off {
            self.change_hard(|st| st.peers[peer].devs[vol].repl = ReplState::Established);
        }
        self.show_volume(peer, vol, false);
    }

    /// The peer has the volume, and said this before it knew that this node has it, too: identifiers and
    /// sizes are still to come, with states behind them.
    pub(crate) fn precedes_answer(&self, peer: PeerIx, vol: VolIx, word: StateWord) -> bool {
        let dev = &self.peers[peer].devs[vol];
        let shown = dev.sizes.is_some() && dev.uuids.is_some();
        dev.presence == Presence::Asked && !shown && !self.is_absence(peer, word)
    }

    fn is_absence(&self, peer: PeerIx, word: StateWord) -> bool {
        self.may_lack_volumes(peer) && word.conn_state() == Some(ConnState::StandAlone)
    }

    /// What a state says about whether the peer has the volume. True if this node has asked for that.
    pub(crate) fn note_presence(&mut self, peer: PeerIx, vol: VolIx, word: StateWord) -> bool {
        let absent = self.is_absence(peer, word);
        let presence = if absent { Presence::Absent } else { Presence::Here };
        let dev = &mut self.peers[peer].devs[vol];
        let before = std::mem::replace(&mut dev.presence, presence);
        if absent {
            // What it showed on an earlier connection is not what it has.
            (dev.sizes, dev.uuids) = (None, None);
        }
        // Nobody uses it, so nobody is to wait for the sake of it.
        let idle = self.vols[vol].openers.is_empty() && self.log.iter().all(|w| w.vol != vol);
        if absent && idle {
            self.st.vols[vol].aside = true;
        }
        before == Presence::Asked
    }

    /// The first word of a peer's disk for a volume that was added here, and has no disk yet: what a
    /// client concludes when it connects. `None` if that is to connect again, else the most that the
    /// peer's disk counts for.
    pub(crate) fn meet_as_client(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        word: StateWord,
    ) -> Option<DiskState> {
        let disk = word.disk().unwrap_or(DiskState::Diskless);
        if disk < DiskState::Inconsistent || self.shown_backing(vol).is_some() {
            return Some(DiskState::UpToDate);
        }
        match self.decide_as_client(peer, vol, disk) {
            Decided::Start(start) => {
                self.prepare_start(peer, vol, &start);
                Some(start.peer_disk_at_most.unwrap_or(DiskState::UpToDate))
            }
            Decided::Retry | Decided::Refuse(_) => {
                self.disagree(peer, "has other data of a volume that is new here");
                None
            }
        }
    }

    /// A peer has not said yet whether it has the volume.
    fn awaits_presence(&self, vol: VolIx) -> bool {
        let asked = |p: PeerIx| self.peers[p].devs[vol].presence == Presence::Asked;
        self.st.connected().any(asked)
    }

    /// In a handshake: what is known of a volume is all that there will be.
    pub(crate) fn is_complete(&self, peer: PeerIx) -> bool {
        self.peers[peer].devs.iter().all(|d| {
            let set = d.sizes.is_some() && d.uuids.is_some();
            d.last_word.is_some() && (set || d.presence == Presence::Absent)
        })
    }
}

#[cfg(test)]
mod tests {
    use vocab::options::{DiskOptions, ResourceOptions};
    use vocab::{Minor, RefusalCode};

    use super::*;
    use crate::io::Output;
    use crate::resource::Link;
    use crate::testing::attached;

    fn config(nr: u16) -> VolumeConfig {
        let (nr, minor) = (VolumeNr(nr), Minor(u32::from(nr)));
        VolumeConfig { nr, minor, diskless: false, disk: DiskOptions::default() }
    }

    /// Node 1 is connected.
    fn connected(features: u32) -> Resource {
        let mut resource = attached(ResourceOptions::default(), |_| {});
        let peer = &mut resource.peers[0];
        (peer.link, peer.agreed_features, peer.agreed_version) = (Link::Up, features, 122);
        resource.change_hard(|st| {
            st.peers[0].conn = ConnState::Connected;
            st.peers[0].devs[0].repl = ReplState::Established;
        });
        resource.out.clear();
        resource
    }

    fn refused(resource: &mut Resource, nr: u16) -> Option<RefusalCode> {
        let volumes = resource.vols.len();
        let refusal = resource.new_volume(9, config(nr)).err();
        assert_eq!(resource.vols.len() != volumes, refusal.is_none(), "a refusal changes nothing");
        refusal.map(|refusal| refusal.code)
    }

    /// It would pass over the volume or take it, and nobody would know which.
    #[test]
    fn no_volume_is_added_beside_a_peer_that_does_not_say_what_it_has() {
        let connected_code = Some(RefusalCode::Config(ConfigError::Connected));
        let mut kernel = connected(feature::OURS & !feature::VOLUMES_DIFFER);
        assert_eq!(refused(&mut kernel, 1), connected_code);
        let mut ours = connected(feature::OURS);
        assert_eq!(refused(&mut ours, 0), Some(RefusalCode::Config(ConfigError::MinorExists)));
        ours.peers[0].joined = true;
        assert_eq!(refused(&mut ours, 1), connected_code);
        ours.peers[0].joined = false;
        assert_eq!(refused(&mut ours, 1), None);
    }

    /// What it has sent is all its volumes.
    #[test]
    fn no_volume_is_added_during_a_handshake() {
        let mut resource = connected(feature::OURS);
        resource.peers[0].hs.phase = crate::handshake::Phase::Exchanging;
        let transient = Some(RefusalCode::State(StateError::InTransientState));
        assert_eq!(refused(&mut resource, 1), transient);
    }

    fn states(resource: &Resource) -> Vec<(Option<VolumeNr>, StateWord)> {
        let sent = resource.out.iter().filter_map(|output| match output {
            Output::Send { packet: Packet::State(nr, word), .. } => Some((*nr, *word)),
            _ => None,
        });
        sent.collect()
    }

    /// Not even for a moment does a node that has just got the volume count for its quorum.
    #[test]
    fn the_first_word_about_a_new_volume_says_that_nothing_is_known_of_it() {
        for diskless in [false, true] {
            let mut resource = connected(feature::OURS);
            resource.new_volume(9, VolumeConfig { diskless, ..config(1) }).unwrap();
            let first = states(&resource)[0];
            assert_eq!(first.0, Some(VolumeNr(1)));
            assert_eq!(first.1.conn_state(), Some(ConnState::Connecting));
            assert_eq!((first.1.forgetful(), first.1.quorum()), (!diskless, false));
        }
    }

    /// DRBD nodes ask as well, and pass over what they do not know.
    #[test]
    fn a_peer_is_told_that_there_is_no_such_volume_if_it_asks_and_knows_that_answer() {
        let asks = StateWord::default().with_conn_state(ConnState::Connecting);
        let told = |features: u32, word: StateWord| {
            let mut resource = connected(features);
            resource.unknown_volume_shown(0, VolumeNr(3), word);
            states(&resource)
        };
        let answer = told(feature::OURS, asks);
        let [(nr, word)] = answer[..] else { panic!("{answer:?}") };
        assert_eq!(nr, Some(VolumeNr(3)));
        assert_eq!(word.conn_state(), Some(ConnState::StandAlone));
        assert_eq!(word.disk(), Some(DiskState::Diskless));
        assert!(word.forgetful());
        assert!(told(feature::OURS & !feature::VOLUMES_DIFFER, asks).is_empty());
        let states = StateWord::default().with_repl_state(ReplState::Established);
        assert!(told(feature::OURS, states).is_empty());
    }
}
