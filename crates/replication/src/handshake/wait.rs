//! Peers that have to wait before they connect: both have disks, and to compare these now would be
//! to conclude too much.

use codec::wire::{StateWord, UuidFlags};
use vocab::options::Protocol;
use vocab::{DiskState, Role};

use crate::generation::is_generation;
use crate::io::LogLevel;
use crate::peer_uuids::PeerUuids;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// True if the peer is to connect again later; the log says why.
    pub(super) fn has_to_wait(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        word: StateWord,
        peer_disk: DiskState,
    ) -> bool {
        let why = if self.is_behind_users(peer, vol) {
            "misses what users of this Primary have written; it connects once the disk here is \
             UpToDate"
        } else if self.is_beyond_users(peer, vol) {
            self.yield_to_newer_data();
            "has data that users of this Primary have never seen; it connects once this node is \
             Secondary"
        } else if self.source_succeeds(peer, vol, word) {
            "is Primary with data older than what this disk is being brought to; it connects once \
             the resync is done"
        } else if self.sources_differ(peer, vol) {
            "differs from the disk that this one is being resynced from in what was written at a \
             crash; it connects once the resync is done"
        } else if self.is_overtaken(peer, vol, peer_disk) {
            "misses what has been written since; it connects once it has been resynced, or this disk"
        } else {
            return false;
        };
        let nr = self.vols[vol].nr;
        let text = format!("{}/{nr}: {} {why}", self.name, self.peers[peer].name);
        self.log(LogLevel::Info, text);
        true
    }

    /// The users of this Primary work with other disks while its own catches up, in a generation
    /// that the peer does not have. Compared with the own disk the peer could seem current. If
    /// those other disks are lost they wait for them, or for one that has gone on from there.
    fn is_behind_users(&self, peer: PeerIx, vol: VolIx) -> bool {
        let exposed = self.vols[vol].exposed;
        let uuids = self.peers[peer].devs[vol].uuids.as_ref().expect("the set is complete");
        self.st.role == Role::Primary
            && self.st.vols[vol].disk < DiskState::UpToDate
            && is_generation(exposed)
            && !exposed.same(self.presented(vol))
            && !exposed.same(uuids.current)
            && (self.has_data(&self.st, vol) || !uuids.succeeds(exposed))
    }

    /// Others have gone on without this Primary, which has no current data to object with: its disk
    /// came back when its users had used those of others. To catch up from the peer would change the
    /// data under them. A client that is Primary does the same ([`Self::decide_as_client`]).
    fn is_beyond_users(&self, peer: PeerIx, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        let uuids = self.peers[peer].devs[vol].uuids.as_ref().expect("the set is complete");
        self.st.role == Role::Primary
            && self.st.vols[vol].disk < DiskState::UpToDate
            && !uuids.current.same(volume.exposed)
            && uuids.succeeds(volume.exposed)
            && !volume.proposals.contains(uuids.current)
    }

    /// This disk is being resynced from one that has left the generation of the peer, a Primary,
    /// behind: others went on without it while it was frozen. By its own generation this disk could
    /// still seem to belong to that Primary, and give it the quorum to go on beside them. (DRBD
    /// presents the generation of its source; see [`Self::presented`] for why this node does not.)
    fn source_succeeds(&self, peer: PeerIx, vol: VolIx, word: StateWord) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref().expect("the set is complete");
        let older = uuids.current;
        word.role() == Some(Role::Primary)
            && is_generation(older)
            && (0..self.peers.len()).filter(|p| self.repl(*p, vol).is_target()).any(|p| {
                let source = self.peers[p].devs[vol].uuids.as_ref();
                source.is_some_and(|source| !source.current.same(older) && source.succeeds(older))
            })
    }

    /// Protocols A and B: this disk is being resynced from one that has what a crashed Primary
    /// acknowledged last, and the peer of the same generation does not have that, or the other way
    /// round. From both at a time it would get a mixture, and count as equal to both.
    fn sources_differ(&self, peer: PeerIx, vol: VolIx) -> bool {
        let uuids = |p: PeerIx| self.peers[p].devs[vol].uuids.as_ref();
        let crashed = |u: &PeerUuids| u.flags.has(UuidFlags::CRASHED_PRIMARY);
        let Some(theirs) = uuids(peer) else { return false };
        self.peers[peer].net.protocol != Protocol::C
            && (0..self.peers.len())
                .filter(|p| *p != peer && self.repl(*p, vol).is_target())
                .filter_map(uuids)
                .any(|u| u.current.same(theirs.current) && crashed(u) != crashed(theirs))
    }

    /// The peer takes its disk for current, and a disk that was current has left its generation
    /// behind.
    fn is_overtaken(&self, peer: PeerIx, vol: VolIx, peer_disk: DiskState) -> bool {
        let newer = self.newer_than_own(vol);
        let theirs = self.peers[peer].devs[vol].uuids.as_ref().map(|u| u.current);
        peer_disk > DiskState::Outdated
            && newer.zip(theirs).is_some_and(|(newer, theirs)| newer.has_passed(theirs))
    }
}
