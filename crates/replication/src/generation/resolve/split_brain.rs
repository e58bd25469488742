//! Split brain: both disks hold writes the other lacks (semantics §5).

use super::{Bits, Course, Handler, Handshake, Outcome, Refused};
use crate::generation::compare::{Occasion, Side, Strategy};
use codec::wire::packet::UuidFlags;
use vocab::DiskState;
use vocab::options::{AfterSb0, AfterSb1, AfterSb2};

/// Who becomes the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Me,
    Peer,
}

impl Handshake<'_> {
    /// Steps 5 and 6. `auto` says that the bits reach back to where the disks parted; otherwise
    /// only a full resync can bring them together.
    pub(super) fn split_brain(&mut self, auto: bool) -> Result<Course, Outcome> {
        let stable = |side: &Side| side.has(UuidFlags::STABLE);
        if auto && !(stable(self.me) && stable(self.peer)) && self.by_quorum().is_none() {
            // A neighbour's Primary is still changing one of them; this is looked at again when
            // that end becomes stable. Not if it may not write there, and the other end may: joined,
            // the first would get its quorum from the second, and look as good.
            return Ok(Course::NoSync(Bits::Keep));
        }
        self.handlers.push(Handler::InitialSplitBrain);
        self.peer_had_no_quorum =
            auto && self.policies.quorum && self.by_quorum() == Some(Victim::Peer);
        let victim = match self.context.occasion {
            Occasion::Reconsidering => return self.by_disk_state(auto),
            Occasion::Connecting | Occasion::Attaching => {
                let policy = auto || self.policies.always_asbp;
                let by_rule =
                    if policy { self.by_quorum().or_else(|| self.by_policy()) } else { None };
                by_rule.or_else(|| self.by_discard_my_data())
            }
        };
        match victim {
            Some(Victim::Peer) => Ok(Course::Source(strategy(auto))),
            Some(Victim::Me) => Ok(Course::Target(strategy(auto))),
            None => Err(self.unresolved()),
        }
    }

    fn unresolved(&mut self) -> Outcome {
        self.handlers.push(Handler::SplitBrain);
        Outcome::Refuse(Refused::SplitBrain)
    }

    /// Found on an established connection: the end that is not UpToDate gives in (§4.10). With
    /// two UpToDate disks the reference makes both targets; nobody may lose data unasked, so this
    /// is refused.
    fn by_disk_state(&mut self, auto: bool) -> Result<Course, Outcome> {
        let good = |side: &Side| side.judged_disk() == DiskState::UpToDate;
        match (good(self.me), good(self.peer)) {
            (true, true) => Err(self.unresolved()),
            (true, false) => Ok(Course::Source(strategy(auto))),
            (false, true) => Ok(Course::Target(strategy(auto))),
            (false, false) => Ok(Course::NoSync(Bits::Keep)),
        }
    }

    /// Exactly one side has quorum: what the other wrote can not have been acknowledged under
    /// the same rule.
    ///
    /// Stricter than the reference: a disk that knows to be Outdated has quorum only by belonging
    /// to those that outdated it, as when it has met one of them before the other.
    fn by_quorum(&self) -> Option<Victim> {
        if !self.connecting() || self.context.agreed < 113 {
            return None;
        }
        let old = |side: &Side| self.policies.quorum && side.judged_disk() <= DiskState::Outdated;
        let quorate = |side: &Side| side.quorate && !old(side);
        match (quorate(self.me), quorate(self.peer)) {
            (true, false) => Some(Victim::Peer),
            (false, true) => Some(Victim::Me),
            _ => None,
        }
    }

    fn by_discard_my_data(&self) -> Option<Victim> {
        let discards = |side: &Side| side.has(UuidFlags::DISCARD_MY_DATA);
        match (self.connecting(), discards(self.me), discards(self.peer)) {
            (true, true, false) => Some(Victim::Me),
            (true, false, true) => Some(Victim::Peer),
            _ => None,
        }
    }

    /// The configured policy for the number of Primaries.
    fn by_policy(&mut self) -> Option<Victim> {
        match (self.me.is_primary(), self.peer.is_primary()) {
            (false, false) => self.after_sb_0pri(),
            (true, true) => match self.policies.after_sb_2pri {
                AfterSb2::Disconnect => None,
                AfterSb2::ViolentlyAs0p => self.after_sb_0pri(),
                AfterSb2::CallPriLost => self.after_demotion(),
            },
            (me_primary, _) => {
                let secondary = if me_primary { Victim::Peer } else { Victim::Me };
                match self.policies.after_sb_1pri {
                    AfterSb1::Disconnect => None,
                    AfterSb1::DiscardSecondary => Some(secondary),
                    AfterSb1::Consensus => self.after_sb_0pri().filter(|v| *v == secondary),
                    AfterSb1::ViolentlyAs0p => self.after_sb_0pri(),
                    AfterSb1::CallPriLost => self.after_demotion(),
                }
            }
        }
    }

    /// As without Primaries, but a Primary gives in only if it can be demoted.
    fn after_demotion(&mut self) -> Option<Victim> {
        let victim = self.after_sb_0pri();
        self.demote_first = victim == Some(Victim::Me) && self.me.is_primary();
        victim
    }

    fn after_sb_0pri(&self) -> Option<Victim> {
        // Bit 0 of a bitmap generation: that side was Primary when the disks parted.
        let was_primary =
            (self.me.towards(self.peer).was_primary(), self.peer.towards(self.me).was_primary());
        let fewest = || self.zero_changes().or_else(|| self.least_changes());
        match (self.policies.after_sb_0pri, was_primary) {
            (AfterSb0::Disconnect, _) => None,
            (AfterSb0::DiscardLocal, _) => Some(Victim::Me),
            (AfterSb0::DiscardRemote, _) => Some(Victim::Peer),
            (AfterSb0::DiscardYoungerPrimary, (false, true)) => Some(Victim::Me),
            (AfterSb0::DiscardYoungerPrimary, (true, false)) => Some(Victim::Peer),
            (AfterSb0::DiscardOlderPrimary, (false, true)) => Some(Victim::Peer),
            (AfterSb0::DiscardOlderPrimary, (true, false)) => Some(Victim::Me),
            (AfterSb0::DiscardYoungerPrimary | AfterSb0::DiscardOlderPrimary, _) => fewest(),
            (AfterSb0::DiscardZeroChanges, _) => self.zero_changes(),
            (AfterSb0::DiscardLeastChanges, _) => self.least_changes(),
        }
    }

    fn tie(&self) -> Victim {
        if self.context.tie_break { Victim::Me } else { Victim::Peer }
    }

    fn zero_changes(&self) -> Option<Victim> {
        match (self.me.dirty_blocks, self.peer.dirty_blocks) {
            (0, 0) => Some(self.tie()),
            (0, _) => Some(Victim::Me),
            (_, 0) => Some(Victim::Peer),
            _ => None,
        }
    }

    fn least_changes(&self) -> Option<Victim> {
        Some(match self.me.dirty_blocks.cmp(&self.peer.dirty_blocks) {
            std::cmp::Ordering::Less => Victim::Me,
            std::cmp::Ordering::Greater => Victim::Peer,
            std::cmp::Ordering::Equal => self.tie(),
        })
    }
}

const fn strategy(auto: bool) -> Strategy {
    if auto { Strategy::Bitmap } else { Strategy::Full }
}
