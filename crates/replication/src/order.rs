//! The order of resyncs: `resync-after` (semantics §9.2).
//!
//! A volume that names another one waits while that is being resynced, whether it gets on or is
//! paused, and while any does that is further along the chain. It does so at either end of a resync.
//!
//! - [`ResyncOrder`] is what a node knows of all of its volumes, whichever resources they belong to.
//!   Drivers keep it: they write down what [`Resource::resyncing`] says when a state has changed,
//!   and hand each volume whose wait is another one than before an [`Input::WaitForOther`].
//! - The core pauses what it is told to wait with; see `arbitrate` in `transition`.
//!
//! [`Input::WaitForOther`]: crate::Input::WaitForOther

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use vocab::{Minor, ReplState, VolumeNr};

use crate::resource::Resource;

/// Which volumes of a node are to be resynced after which, and which are being resynced.
#[derive(Clone, Debug, Default)]
pub struct ResyncOrder {
    /// There is no cycle in it. A volume that is named need not exist, or not yet.
    after: BTreeMap<Minor, Minor>,
    busy: BTreeSet<Minor>,
}

/// A volume would wait for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResyncCycle;

impl ResyncOrder {
    /// Notes whether a volume is being resynced. True if that means something to others.
    pub fn set_busy(&mut self, minor: Minor, busy: bool) -> bool {
        let changed = match busy {
            true => self.busy.insert(minor),
            false => self.busy.remove(&minor),
        };
        changed && self.after.values().any(|named| *named == minor)
    }

    /// Notes what a volume is to be resynced after, if anything. True if that is something else than
    /// before.
    ///
    /// # Errors
    /// [`ResyncCycle`]; nothing is changed then.
    pub fn set_after(&mut self, minor: Minor, after: Option<Minor>) -> Result<bool, ResyncCycle> {
        if after.is_some_and(|first| first == minor || self.chain(first).any(|m| m == minor)) {
            return Err(ResyncCycle);
        }
        let before = match after {
            Some(after) => self.after.insert(minor, after),
            None => self.after.remove(&minor),
        };
        Ok(before != after)
    }

    /// What the volume is to be resynced after.
    pub fn after(&self, minor: Minor) -> Option<Minor> {
        self.after.get(&minor).copied()
    }

    /// A volume is gone: it waits for nothing, and nothing for it. Gives those that named it.
    pub fn remove(&mut self, minor: Minor) -> Vec<Minor> {
        self.busy.remove(&minor);
        self.after.remove(&minor);
        let named = self.after.iter().filter(|(_, after)| **after == minor);
        let freed: Vec<Minor> = named.map(|(waiting, _)| *waiting).collect();
        freed.iter().for_each(|waiting| _ = self.after.remove(waiting));
        freed
    }

    /// The resync of the volume has to wait.
    pub fn waits(&self, minor: Minor) -> bool {
        self.chain(minor).any(|named| self.busy.contains(&named))
    }

    /// What the volume names, what that names, and so on.
    fn chain(&self, minor: Minor) -> impl Iterator<Item = Minor> + '_ {
        successors(self.after(minor), |named| self.after(*named))
    }
}

impl Resource {
    /// Every volume, and whether it is being resynced with any peer, be it that it rests.
    pub fn resyncing(&self) -> impl Iterator<Item = (Minor, bool)> + '_ {
        self.vols.iter().enumerate().map(|(ix, vol)| {
            let busy = |repl: ReplState| {
                let ahead = matches!(repl, ReplState::Ahead | ReplState::Behind);
                (repl.is_target() || repl.is_source()) && !ahead
            };
            (vol.minor, self.st.peers.iter().any(|peer| busy(peer.devs[ix].repl)))
        })
    }

    /// Every volume, and whether it was told to wait for another one.
    pub fn waits(&self) -> impl Iterator<Item = (VolumeNr, Minor, bool)> + '_ {
        let both = self.vols.iter().zip(&self.st.vols);
        both.map(|(vol, st)| (vol.nr, vol.minor, st.waits_for_other))
    }

    /// Another volume of this node goes first, or not any more.
    pub(crate) fn wait_for_other(&mut self, volume: VolumeNr, wait: bool) {
        // One that was removed meanwhile waits for nothing.
        let Some(vol) = self.vol_ix(volume) else { return };
        if self.st.vols[vol].waits_for_other != wait {
            self.change_hard(|st| st.vols[vol].waits_for_other = wait);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Minor 2 after 1 after 0.
    use super::*;
    use crate::Input;
    use crate::testing::attached;
    use vocab::options::ResourceOptions;
    use vocab::{ConnState, DiskState, Instant};

    const M: [Minor; 4] = [Minor(0), Minor(1), Minor(2), Minor(3)];

    fn chain() -> ResyncOrder {
        let mut order = ResyncOrder::default();
        // The one that is named may come later.
        assert_eq!(order.set_after(M[2], Some(M[1])), Ok(true));
        assert_eq!(order.set_after(M[1], Some(M[0])), Ok(true));
        assert_eq!(order.set_after(M[1], Some(M[0])), Ok(false), "nothing new");
        order
    }

    fn waiting(order: &ResyncOrder) -> Vec<u32> {
        M.iter().filter(|m| order.waits(**m)).map(|m| m.0).collect()
    }

    #[test]
    fn all_wait_that_are_further_up_the_chain() {
        let mut order = chain();
        assert!(order.set_busy(M[0], true));
        assert_eq!(waiting(&order), [1, 2], "though nobody resyncs 1");
        assert!(order.set_busy(M[1], true));
        assert!(!order.set_busy(M[1], true), "nothing new");
        assert!(order.set_busy(M[0], false));
        assert_eq!(waiting(&order), [2]);
        assert!(!order.set_busy(M[2], true) && !order.set_busy(M[3], true), "nobody names them");
        assert!(order.set_busy(M[1], false));
        assert_eq!(waiting(&order), [0; 0]);
    }

    #[test]
    fn no_volume_waits_for_itself() {
        let mut order = chain();
        assert_eq!(order.set_after(M[0], Some(M[0])), Err(ResyncCycle));
        assert_eq!(order.set_after(M[0], Some(M[2])), Err(ResyncCycle));
        assert_eq!(order.after(M[0]), None, "as before");
        assert_eq!(order.set_after(M[3], Some(M[0])), Ok(true), "two may wait for one");
        assert_eq!(order.set_after(M[2], None), Ok(true));
        assert_eq!(order.set_after(M[0], Some(M[2])), Ok(true), "a cycle no more");
    }

    #[test]
    fn nothing_waits_for_what_is_gone() {
        let mut order = chain();
        order.set_busy(M[0], true);
        assert_eq!(order.remove(M[1]), [M[2]]);
        assert_eq!((order.after(M[2]), waiting(&order).len()), (None, 0));
        order.set_after(M[1], Some(M[0])).unwrap();
        assert_eq!(waiting(&order), [1]);
        assert_eq!(order.remove(M[0]), [M[1]]);
        order.set_after(M[1], Some(M[0])).unwrap();
        assert_eq!(waiting(&order), [0; 0], "one of the same number is another one");
    }

    #[test]
    fn a_resync_rests_at_either_end_while_another_volume_goes_first() {
        use ReplState::{Established, PausedSyncS, PausedSyncT, SyncSource, SyncTarget};
        for (runs, rests) in [(SyncTarget, PausedSyncT), (SyncSource, PausedSyncS)] {
            let mut resource = attached(ResourceOptions::default(), |_| {});
            let minor = resource.vols[0].minor;
            let peer = &mut resource.st.peers[0];
            (peer.conn, peer.devs[0].disk) = (ConnState::Connected, DiskState::UpToDate);
            peer.devs[0].repl = runs;
            let wait = |resource: &mut Resource, wait| {
                let nr = resource.vols[0].nr;
                resource.handle(Instant(9), Input::WaitForOther { volume: nr, wait });
                while resource.poll().is_some() {}
            };
            let shown = |resource: &Resource| {
                let dev = &resource.status().connections[0].peer_devices[0];
                (dev.replication_state, dev.resync_suspended.dependency)
            };
            wait(&mut resource, true);
            assert_eq!(shown(&resource), (rests, true));
            assert!(resource.state_word(0, 0).aftr_isp(), "the peer rests, too");
            assert_eq!(resource.resyncing().collect::<Vec<_>>(), [(minor, true)]);
            assert!(resource.waits().all(|(_, _, waits)| waits));
            wait(&mut resource, false);
            assert_eq!(shown(&resource), (runs, false));
            assert!(!resource.state_word(0, 0).aftr_isp());
            resource.st.peers[0].devs[0].repl = Established;
            assert_eq!(resource.resyncing().collect::<Vec<_>>(), [(minor, false)]);
        }
    }
}
