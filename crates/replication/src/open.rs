//! Openers of a volume, and promotion on open (semantics §3.3, §3.4).

use vocab::{Instant, Refusal, StateError, VolumeNr};

use crate::io::{OpenError, Output};
use crate::jobs::JobKind;
use crate::resource::{Opener, Resource, WaitingReader};

impl Resource {
    /// A user opens the volume.
    pub(crate) fn open(&mut self, nr: VolumeNr, opener: u64, write: bool, patient: bool) {
        let Some(vol) = self.vol_ix(nr) else {
            return self.open_done(nr, opener, Err(OpenError::NoDevice));
        };
        if self.st.fail_io {
            return self.open_done(nr, opener, Err(OpenError::FailIo));
        }
        if self.is_primary_to_users() && !self.demoting {
            self.vols[vol].openers.push(Opener { id: opener, write });
            self.visible_change = true;
            return self.open_done(nr, opener, Ok(()));
        }
        if !self.opts.auto_promote {
            let role = self.st.role;
            return self.open_done(nr, opener, Err(OpenError::NotPrimaryHere { role }));
        }
        if !write {
            let until = self.now + self.opts.auto_promote_timeout;
            self.vols[vol].waiting_readers.push(WaitingReader { opener, until, patient });
            // Answered below, at the latest when the time is over.
            return;
        }
        self.vols[vol].waiting_openers.push(opener);
        let kind = JobKind::Primary { force: false };
        if !self.wants(&kind) {
            self.want(kind, None);
        }
    }

    /// Reading on a Secondary: only while nobody is Primary, of data that is current.
    fn open_reader(&mut self, vol: usize, opener: u64, promotion: bool) {
        let nr = self.vols[vol].nr;
        let result = if promotion || !self.st.primary_peers().is_empty() {
            Err(OpenError::NotPrimaryHere { role: self.st.role })
        } else if !self.st.vols[vol].quorum || !self.has_data(&self.st, vol) {
            Err(OpenError::NoData)
        } else {
            self.vols[vol].openers.push(Opener { id: opener, write: false });
            self.visible_change = true;
            Ok(())
        };
        self.open_done(nr, opener, result);
    }

    /// Who opens for reading waits while another node may become Primary any moment: that node has
    /// been told that nobody reads here.
    pub(crate) fn answer_readers(&mut self) {
        if self.vols.iter().all(|v| v.waiting_readers.is_empty()) {
            return;
        }
        let promotion = self.promotion_is_prepared();
        let beside = promotion || !self.st.primary_peers().is_empty();
        let now = self.now;
        for vol in 0..self.vols.len() {
            let waits = |reader: &WaitingReader| {
                reader.until > now && (promotion || reader.patient && beside)
            };
            let (waiting, ready): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.vols[vol].waiting_readers).into_iter().partition(waits);
            self.vols[vol].waiting_readers = waiting;
            for WaitingReader { opener, .. } in ready {
                self.open_reader(vol, opener, promotion);
            }
        }
    }

    /// When a reader has waited long enough.
    pub(crate) fn readers_deadline(&self) -> Option<Instant> {
        self.vols.iter().flat_map(|v| &v.waiting_readers).map(|reader| reader.until).min()
    }

    fn open_done(&mut self, volume: VolumeNr, opener: u64, result: Result<(), OpenError>) {
        self.out.push_back(Output::OpenDone { volume, opener, result });
    }

    /// A promotion has ended: whoever opened for writing is answered.
    pub(crate) fn answer_writers(&mut self, result: &Result<(), OpenError>) {
        let result = match (result, self.is_primary_to_users()) {
            (Ok(()), true) => Ok(()),
            (Ok(()), _) => {
                Err(OpenError::PromotionRefused(Refusal::from(StateError::InTransientState)))
            }
            (Err(e), _) => Err(e.clone()),
        };
        for vol in 0..self.vols.len() {
            let nr = self.vols[vol].nr;
            for opener in std::mem::take(&mut self.vols[vol].waiting_openers) {
                if result.is_ok() {
                    self.vols[vol].openers.push(Opener { id: opener, write: true });
                    self.visible_change = true;
                }
                self.open_done(nr, opener, result.clone());
            }
        }
    }

    /// Somebody reads here while this node is Secondary: no other may be promoted (semantics §1.9).
    pub(crate) fn has_readers(&self) -> bool {
        !self.joint.on && self.vols.iter().any(|v| v.openers.iter().any(|o| !o.write))
    }

    /// A user closes the volume. The last writer's close demotes, unless an operator promoted.
    pub(crate) fn close(&mut self, nr: VolumeNr, opener: u64) {
        let Some(vol) = self.vol_ix(nr) else { return };
        self.vols[vol].openers.retain(|o| o.id != opener);
        self.vols[vol].waiting_openers.retain(|o| *o != opener);
        self.vols[vol].waiting_readers.retain(|reader| reader.opener != opener);
        self.visible_change = true;
        let writers = self
            .vols
            .iter()
            .any(|v| v.openers.iter().any(|o| o.write) || !v.waiting_openers.is_empty());
        self.change_hard(|_| {});
        if self.is_primary_to_users() && !self.explicit_primary && !writers {
            let kind = JobKind::Secondary { force: false };
            if !self.wants(&kind) {
                self.want(kind, None);
            }
        }
    }
}
