//! The votes of nodes that get no data: they hear of a generation before users hear of its writes.
//!
//! A disk that is sent the writes of a generation holds it before it acknowledges one. But others
//! have a vote, too: a tie-breaker, a node whose disk is detached, a disk that was left behind; one
//! that is being resynced, as long as a write from before the generation is under way. One
//! that has not heard of the generation when its Primary falls silent may help a disk to quorum that
//! lacks it, and what was acknowledged in it would be gone (invariants 5, 32 and 35). So where
//! quorum depends on such votes, a transaction asks for them behind the news, and no write is
//! reported before it has been answered. (The reference reports it at once.)

use vocab::options::Quorum;
use vocab::{DiskState, GenUuid, Role};

use crate::generation::is_generation;
use crate::jobs::JobKind;
use crate::quorum::required_votes;
use crate::resource::{Decision, Resource};
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// This node and those that `get_data` are no quorum by themselves.
    pub(crate) fn relies_on_others(&self, vol: VolIx, get_data: impl Fn(PeerIx) -> bool) -> bool {
        let voters = |p: &PeerIx| self.peer_has_bitmap(*p, vol);
        let own = u32::from(!self.vols[vol].intentional_diskless);
        let count = |n: usize| own + u32::try_from(n).unwrap_or(u32::MAX);
        let all = count((0..self.peers.len()).filter(voters).count());
        let sure = count(self.st.connected().filter(voters).filter(|p| get_data(*p)).count());
        self.opts.quorum != Quorum::Off && sure < required_votes(self.opts.quorum, all)
    }

    /// Peers have been sent the news of a generation of this Primary.
    pub(crate) fn tell_voters(&mut self, vol: VolIx, generation: GenUuid) {
        // What is under way since before may be reported without a word of a disk that is being
        // resynced: it was not sent the write, or may get an older block from the next source.
        let open = self.log.iter().any(|w| w.vol == vol && !w.completed);
        let data = |p: PeerIx| {
            let keeps = self.st.peers[p].devs[vol].disk >= DiskState::Consistent;
            self.decide(p, vol) == Decision::Data && (keeps || !open)
        };
        let due = self.st.role == Role::Primary
            && self.st.connected().any(|p| !data(p))
            && self.relies_on_others(vol, data);
        self.vols[vol].telling = if due { generation } else { GenUuid::NONE };
        let kind = JobKind::Tell { vol, generation };
        if due && !self.wants(&kind) {
            self.want(kind, None);
        }
    }

    /// Users hear of no write to the volume before voters have heard of its generation.
    pub(crate) fn is_telling(&self, vol: VolIx) -> bool {
        is_generation(self.vols[vol].telling)
    }

    /// That generation is still the one to be told.
    pub(crate) fn tells(&self, vol: VolIx, generation: GenUuid) -> bool {
        self.is_telling(vol) && self.vols[vol].telling.same(generation)
    }

    /// Everyone in reach has heard of the generation.
    pub(crate) fn voters_told(&mut self, vol: VolIx, generation: GenUuid) {
        if self.tells(vol, generation) {
            self.vols[vol].telling = GenUuid::NONE;
            self.advance_all();
        }
    }
}
