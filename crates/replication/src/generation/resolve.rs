//! From a finding to what the connection does (semantics §4.6 and §5, wire §9.4 "Then").
//!
//! The steps run in the order of the specification. Each either leaves the course as it is,
//! changes it, or ends the handshake. Only inputs both ends have decide about the direction, so
//! that both come to mirrored results; what a policy of one end refuses, it refuses by leaving.

use super::compare::{Context, Finding, Occasion, Rule, Side, Strategy, Verdict};
use super::compare::{compare, missed_end, nothing_dirty};
use super::is_generation;
use codec::wire::packet::{UuidFlags, feature};
use serde::{Deserialize, Serialize};
use vocab::options::{AfterSb0, AfterSb1, AfterSb2, NetOptions, Protocol, RrConflict};
use vocab::{DiskState, GenUuid, NodeId, NodeMask, ReplState};

pub(super) mod legacy;
mod split_brain;
#[cfg(test)]
mod tests;

/// Options that decide where generations do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policies {
    /// Split brain, nobody Primary.
    pub after_sb_0pri: AfterSb0,
    /// Split brain, one Primary.
    pub after_sb_1pri: AfterSb1,
    /// Split brain, two Primaries.
    pub after_sb_2pri: AfterSb2,
    /// Apply these also where only a full resync can help.
    pub always_asbp: bool,
    /// Quorum is configured.
    pub quorum: bool,
    /// A Primary would become resync target.
    pub rr_conflict: RrConflict,
    /// `connect --tentative`: find out and disconnect.
    pub tentative: bool,
}

impl Policies {
    /// The policies of a connection.
    pub fn new(options: &NetOptions, quorum: bool, tentative: bool) -> Policies {
        Policies {
            quorum,
            after_sb_0pri: options.after_sb_0pri,
            after_sb_1pri: options.after_sb_1pri,
            after_sb_2pri: options.after_sb_2pri,
            always_asbp: options.always_asbp,
            rr_conflict: options.rr_conflict,
            tentative,
        }
    }
}

/// What only this node knows about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// A bitmap slot is allocated to nobody and records everything since day 0.
    pub unallocated_slot: bool,
    /// This node is resync target of another peer already.
    pub syncing_elsewhere: bool,
    /// Slots whose bits must not be copied ([`super::Generations::worn`]).
    pub worn: NodeMask,
}

/// What to do to bitmaps and bitmap generations, durably, before anything else. In this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Preparation {
    /// Set every bit of this node's slot.
    SetAll(NodeId),
    /// Set every bit of every allocated slot: this disk has never held data.
    SetAllSlots,
    /// Add the bits of slot `from` to those of slot `to`. (The reference replaces them. But two
    /// disks may carry the same generation with different contents: writes go on within one
    /// after a node reached it unheard, and only the slot of that node has their bits.)
    MergeSlot {
        /// The slot whose bits start at the peer's generation.
        from: NodeId,
        /// The peer's slot.
        to: NodeId,
    },
    /// Add the bits of the unallocated slot to those of this slot.
    MergeUnallocated(NodeId),
    /// SETBM: this slot starts at that generation from now on; none if nothing is owed.
    SetBitmapUuid(NodeId, GenUuid),
}

/// Handlers of the original that mark these decisions; call them, or report them as events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handler {
    /// A split brain was found; policies have not been looked at.
    InitialSplitBrain,
    /// No policy resolved it.
    SplitBrain,
    /// A Primary should have become resync target.
    PriLost,
}

/// Why a handshake is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryReason {
    /// This node's generations changed since it sent them.
    OwnChanged,
    /// The end of a resync was missed and nothing is out of sync; the source's note of it is
    /// cleared, the next handshake will find nothing to do (agreed below 124).
    MissedEnd,
    /// This node is Primary, has current data, and would be resync target.
    PrimaryWouldBeTarget,
    /// Both survivors of a Primary have bits, but they do not both name it.
    LostPrimaryUnnamed,
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The disks have no common past.
    Unrelated,
    /// The ends would not agree on a direction.
    Contradiction,
    /// Split brain that no policy resolved.
    SplitBrain,
    /// This node is Primary, has current data, and would be resync target.
    PrimaryWouldBeTarget,
    /// The disk that the other is to be resynced from is a mixture itself (protocol 8).
    NoGoodSource,
}

impl Refused {
    /// Cause and next step, for operators.
    pub const fn text(self) -> &'static str {
        match self {
            Refused::Unrelated => {
                "the disks hold unrelated data; if the peer's node id or disk was \
                 replaced, invalidate or recreate the metadata of the one to give up"
            }
            Refused::Contradiction => {
                "each disk claims to be ahead of the other, as after restoring one from a \
                 snapshot; recreate the metadata of the one to give up"
            }
            Refused::SplitBrain => {
                "split brain: both disks were written independently; decide which one to give \
                 up, make that node Secondary and connect it with --discard-my-data"
            }
            Refused::NoGoodSource => {
                "neither disk is consistent; promote the node with the data to keep by force"
            }
            Refused::PrimaryWouldBeTarget => {
                "the peer has newer data and this node is Primary; demote it first, or let it \
                 retry with rr-conflict retry-connect"
            }
        }
    }
}

/// Whether bits between two nodes that need no resync are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bits {
    /// Both disks hold the same generation and are at least Outdated: clear the bits towards the
    /// peer and set its bitmap generation to none. Left-over bits are artefacts.
    Clear,
    /// Not proven: keep bits and bitmap generation for a later handshake.
    Keep,
}

/// What becomes of the peer device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Established, no resync.
    NoSync(Bits),
    /// Resync with this node as source.
    Source(Strategy),
    /// Resync with this node as target. With `demote_first` only if this Primary can be demoted
    /// now (after-sb policy `call-pri-lost-after-sb`); otherwise call handler
    /// `pri-lost-after-sb` and refuse as [`Refused::SplitBrain`].
    Target {
        /// How.
        strategy: Strategy,
        /// Demote this node before.
        demote_first: bool,
    },
    /// Drop the connection and connect again.
    Retry(RetryReason),
    /// Disconnect; while attaching: give the disk up again, the connection stays.
    Refuse(Refused),
    /// `--tentative`: disconnect, and report that this would have happened.
    Tentative(Finding),
}

impl Outcome {
    /// The replication state to enter, if the connection goes on.
    pub const fn repl_state(self) -> Option<ReplState> {
        match self {
            Outcome::NoSync(_) => Some(ReplState::Established),
            Outcome::Source(_) => Some(ReplState::WFBitMapS),
            Outcome::Target { .. } => Some(ReplState::WFBitMapT),
            Outcome::Retry(_) | Outcome::Refuse(_) | Outcome::Tentative(_) => None,
        }
    }
}

/// The whole result of a handshake for one volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    /// What the generations say.
    pub verdict: Verdict,
    /// What follows.
    pub outcome: Outcome,
    /// To be carried out and durable before the outcome is acted on; if that fails, retry.
    pub preparations: Vec<Preparation>,
    /// Decisions an operator hears of.
    pub handlers: Vec<Handler>,
    /// The resync settles the last writes of a lost Primary: compare checksums in it.
    pub reconciliation: bool,
    /// The peer was written to without quorum, while others had it: its generation is none that
    /// anybody may rely on.
    pub peer_had_no_quorum: bool,
}

/// The course while the steps are walked through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    NoSync(Bits),
    Source(Strategy),
    Target(Strategy),
}

impl Course {
    fn reversed(self) -> Course {
        match self {
            Course::Source(s) => Course::Target(s),
            Course::Target(s) => Course::Source(s),
            Course::NoSync(bits) => Course::NoSync(bits),
        }
    }
}

/// Everything the steps look at.
struct Handshake<'a> {
    context: &'a Context,
    policies: &'a Policies,
    local: &'a Local,
    me: &'a Side,
    peer: &'a Side,
    verdict: Verdict,
    preparations: Vec<Preparation>,
    handlers: Vec<Handler>,
    reconciliation: bool,
    demote_first: bool,
    peer_had_no_quorum: bool,
}

/// Compares and decides.
pub fn resolve(
    context: &Context,
    policies: &Policies,
    local: &Local,
    me: &Side,
    peer: &Side,
) -> Resolution {
    let verdict = compare(context, me, peer);
    let mut handshake = Handshake {
        context,
        policies,
        local,
        me,
        peer,
        verdict,
        preparations: Vec::new(),
        handlers: Vec::new(),
        reconciliation: false,
        demote_first: false,
        peer_had_no_quorum: false,
    };
    let outcome = match handshake.course() {
        Ok(course) => handshake.conclude(course),
        Err(end) => end,
    };
    let Handshake { mut preparations, handlers, reconciliation, peer_had_no_quorum, .. } =
        handshake;
    if matches!(outcome, Outcome::Refuse(_) | Outcome::Tentative(_)) {
        preparations.clear();
    }
    Resolution { verdict, outcome, preparations, handlers, reconciliation, peer_had_no_quorum }
}

impl Handshake<'_> {
    fn connecting(&self) -> bool {
        self.context.occasion == Occasion::Connecting
    }

    fn either(&self, flag: UuidFlags) -> bool {
        self.me.has(flag) || self.peer.has(flag)
    }

    /// Steps 1 to 9.
    fn course(&mut self) -> Result<Course, Outcome> {
        if self.context.is_legacy() {
            return self.legacy_course();
        }
        self.missed_end_without_bits()?;
        let mut course = match self.verdict.finding {
            Finding::Retry => return Err(Outcome::Retry(RetryReason::OwnChanged)),
            Finding::Unrelated => return Err(Outcome::Refuse(Refused::Unrelated)),
            Finding::Contradiction => return Err(Outcome::Refuse(Refused::Contradiction)),
            Finding::NoSync => Course::NoSync(self.bits_of_equals()),
            Finding::Source(strategy) => Course::Source(strategy),
            Finding::Target(strategy) => Course::Target(strategy),
            Finding::SplitBrain { auto } => self.split_brain(auto)?,
        };
        if let Some(better) = self.better_disk(course) {
            course = better;
        }
        if let Some(reconciled) = self.reconcile(course)? {
            course = reconciled;
        }
        course = self.discard_my_data(course);
        course = self.rr_conflict(course)?;
        Ok(self.missed_end_needs_good_source(course))
    }

    /// Equal generations on disks that are consistent in themselves: for kernel nodes bits mean
    /// nothing then.
    fn bits_of_equals(&self) -> Bits {
        let consistent = |side: &Side| {
            let disk = side.judged_disk();
            disk >= DiskState::Outdated && disk != DiskState::DUnknown
        };
        let equal = is_generation(self.me.current) && self.me.current.same(self.peer.current);
        let count = self.context.features & feature::BITS_OF_EQUALS != 0;
        let proven = nothing_dirty(self.me, self.peer) || !count;
        match equal && proven && consistent(self.me) && consistent(self.peer) {
            true => Bits::Clear,
            false => Bits::Keep,
        }
    }

    /// Step 2, and its successor since 124: a resync's end was missed, but no bit is set.
    fn missed_end_without_bits(&mut self) -> Result<(), Outcome> {
        let equal = is_generation(self.me.current) && self.me.current.same(self.peer.current);
        if !equal || self.verdict.finding == Finding::Retry || !nothing_dirty(self.me, self.peer) {
            return Ok(());
        }
        let source = missed_end(self.context, self.me, self.peer);
        let target = missed_end(self.context, self.peer, self.me);
        if source {
            self.preparations.push(Preparation::SetBitmapUuid(self.peer.node, GenUuid::NONE));
        }
        // The target of a pair below 124 goes on, to be disconnected by the source's retry; a
        // Primary must not even begin to.
        if self.context.agreed < 124 && (source || (target && self.me.is_primary())) {
            return Err(Outcome::Retry(RetryReason::MissedEnd));
        }
        Ok(())
    }

    /// Step 3: where a crash leaves the direction open, or one disk is Inconsistent, the better
    /// disk is source.
    ///
    /// Stricter than the reference between Ashlar nodes: a survivor is Consistent while it settles
    /// a Primary's last writes with others, and has all that were acknowledged. The Primary, back
    /// after a power failure, is UpToDate because its metadata says so, and may lack some. And what
    /// it wrote last (protocol A) makes no source of a disk that is a mixture of generations.
    fn better_disk(&self, course: Course) -> Option<Course> {
        let (mine, theirs) = (self.me.judged_disk(), self.peer.judged_disk());
        let known = |disk| disk >= DiskState::Inconsistent && disk != DiskState::DUnknown;
        if mine == theirs || !known(mine) || !known(theirs) {
            return None;
        }
        let ours = self.context.features & feature::BITS_OF_EQUALS != 0;
        let survivor = self.verdict.rule == Rule::CrashedReconnected;
        if ours && survivor && mine.min(theirs) == DiskState::Consistent {
            return None;
        }
        // The Primary may have gone on without it, but nothing was acknowledged in this generation
        // that it lacks. A disk whose cache is lost may lack some of that.
        let stayed = self.me.has(UuidFlags::RECONNECT);
        let (stayed, crashed) = if stayed { (self.me, self.peer) } else { (self.peer, self.me) };
        if survivor && crashed.lost_cache && stayed.judged_disk() == DiskState::Outdated {
            return None;
        }
        let one_inconsistent = mine == DiskState::Inconsistent || theirs == DiskState::Inconsistent;
        let no_sync = self.verdict.finding == Finding::NoSync;
        let open = matches!(
            course,
            Course::Source(Strategy::IfBothFailed) | Course::Target(Strategy::IfBothFailed)
        );
        let crashed_mixture = ours && one_inconsistent && self.verdict.rule == Rule::OneCrashed;
        let applies = if self.context.agreed >= 119 {
            open || crashed_mixture || (no_sync && one_inconsistent)
        } else {
            let last_rule = matches!(self.verdict.rule, Rule::Crashed | Rule::BothOff);
            one_inconsistent && (no_sync || last_rule)
        };
        match (applies, mine > theirs) {
            (false, _) => None,
            (true, true) => Some(Course::Source(self.slot_for(self.me, self.peer))),
            (true, false) => Some(Course::Target(self.slot_for(self.peer, self.me))),
        }
    }

    /// Which bits of `source` tell what `target` lacks. A target that speaks for its own source
    /// is itself further back: where its slot says.
    fn slot_for(&self, source: &Side, target: &Side) -> Strategy {
        let base = target.towards(source);
        if !target.has(UuidFlags::SYNC_TARGET) || base.same(target.current) {
            return Strategy::Bitmap;
        }
        if !is_generation(base) {
            return Strategy::Full;
        }
        if source.towards(target).same(base) {
            return Strategy::Bitmap;
        }
        NodeId::all()
            .filter(|node| *node != source.node && *node != target.node)
            .find(|node| source.bitmap[node.index()].same(base))
            .map_or(Strategy::Full, Strategy::CopySlot)
    }

    /// Step 4: disks of one generation that count blocks as out of sync towards each other.
    ///
    /// Survivors of a lost Primary do when they meet again: each has recorded what it received
    /// last. With kernel nodes this counts only if the lost Primary is named (feature 0x200);
    /// other bits are taken for artefacts. Between Ashlar nodes bits always count: dropping one
    /// that was none loses a write, and a block copied for nothing costs only its copying. They
    /// count for a restarted disk that waits for a Primary to vouch for it, too.
    fn reconcile(&mut self, course: Course) -> Result<Option<Course>, Outcome> {
        let (me, peer) = (self.me, self.peer);
        let up_to_date = |side: &Side| side.disk == DiskState::UpToDate;
        let features = self.context.features;
        let ours = features & feature::BITS_OF_EQUALS != 0;
        let open = match course {
            Course::NoSync(_) => self.verdict.finding == Finding::NoSync,
            // Who crashed, or had no quorum, is one reason among others.
            Course::Source(strategy) | Course::Target(strategy) => {
                ours && strategy == Strategy::IfBothFailed
            }
        };
        let both = up_to_date(me) && up_to_date(peer);
        let applies = features & (feature::RECONCILE_RECONNECT | feature::BITS_OF_EQUALS) != 0
            && self.connecting()
            && open
            && is_generation(me.current)
            && (both || ours && (behind_primary(me, peer) || behind_primary(peer, me)))
            && !nothing_dirty(me, peer);
        if !applies {
            return Ok(None);
        }
        let marked =
            self.either(UuidFlags::CRASHED_PRIMARY) || self.either(UuidFlags::PRIMARY_LOST_QUORUM);
        let source = match ours {
            true => self.has_more(),
            false if marked => return Ok(None),
            false => match self.holds_named_bits()? {
                Some(source) => source,
                None => return Ok(None),
            },
        };
        self.reconciliation = true;
        Ok(Some(match source {
            true => Course::Source(Strategy::Bitmap),
            false => Course::Target(Strategy::Bitmap),
        }))
    }

    /// As kernel nodes decide it: this node is the source, or not, if a lost Primary is named.
    fn holds_named_bits(&self) -> Result<Option<bool>, Outcome> {
        let (me, peer) = (self.me, self.peer);
        if me.lost_primary.is_none() && peer.lost_primary.is_none() {
            return Ok(None);
        }
        match (me.dirty_blocks > 0, peer.dirty_blocks > 0) {
            (true, false) => Ok(Some(true)),
            (false, true) => Ok(Some(false)),
            _ => match (me.lost_primary, peer.lost_primary) {
                (Some((a, mine)), Some((b, theirs))) if a == b => {
                    Ok(Some((mine, peer.node) > (theirs, me.node)))
                }
                _ => Err(Outcome::Retry(RetryReason::LostPrimaryUnnamed)),
            },
        }
    }

    /// Which of two disks of one generation has what the other may lack, by what can be trusted
    /// most: a Primary's data is in use; a disk that has been in use since the two last met lost
    /// nothing in a restart; the data of a node with quorum may be in use; of two that received from
    /// the same Primary one is as far or further; who stopped as a Primary wrote most; who counts
    /// blocks as missing at the other has them.
    ///
    /// With protocols A and B a crashed Primary's own disk, or who got it, comes first: what it
    /// acknowledged may be nowhere else.
    ///
    /// That a node has quorum comes behind: nodes that lost acknowledged writes with their power
    /// can be many. What they wrote without the survivor, they wrote in another generation.
    fn has_more(&self) -> bool {
        let (me, peer) = (self.me, self.peer);
        let either = |mine: bool, theirs: bool| (mine != theirs).then_some(mine);
        let dagtags = match (me.lost_primary, peer.lost_primary) {
            (Some((a, mine)), Some((b, theirs))) if a == b && mine != theirs => Some(mine > theirs),
            _ => None,
        };
        // Bits that count from an earlier generation are about what the other has got since.
        let holds = |side: &Side, other: &Side| {
            side.dirty_blocks > 0 && !is_generation(side.towards(other))
        };
        let stayed = UuidFlags::RECONNECT;
        let crashed =
            either(me.has(UuidFlags::CRASHED_PRIMARY), peer.has(UuidFlags::CRASHED_PRIMARY));
        either(me.is_primary(), peer.is_primary())
            .or(crashed.filter(|_| self.context.protocol != Protocol::C))
            .or(either(me.has(stayed), peer.has(stayed)))
            .or(either(me.quorate, peer.quorate))
            .or(dagtags)
            .or(either(me.lost_primary.is_some(), peer.lost_primary.is_some()))
            .or(either(
                me.has(UuidFlags::PRIMARY_LOST_QUORUM),
                peer.has(UuidFlags::PRIMARY_LOST_QUORUM),
            ))
            .or(crashed)
            .or(either(holds(me, peer), holds(peer, me)))
            .unwrap_or(me.node < peer.node)
    }

    /// Step 7: one side gives up its data.
    fn discard_my_data(&self, course: Course) -> Course {
        let discards = |side: &Side| side.has(UuidFlags::DISCARD_MY_DATA);
        if !self.connecting()
            || self.context.agreed < 121
            || discards(self.me) == discards(self.peer)
        {
            return course;
        }
        let (source, strategy) = match course {
            Course::NoSync(_) => return course,
            Course::Source(strategy) => (self.me, strategy),
            Course::Target(strategy) => (self.peer, strategy),
        };
        let new_source = if source.node == self.me.node { self.peer } else { self.me };
        let reversible = !matches!(strategy, Strategy::CopySlot(_));
        if discards(source) && reversible && new_source.judged_disk() > DiskState::Inconsistent {
            return course.reversed();
        }
        course
    }

    /// Step 8: a Primary with good data does not become resync target just so.
    fn rr_conflict(&mut self, course: Course) -> Result<Course, Outcome> {
        let dirty = !nothing_dirty(self.me, self.peer);
        // A Primary that takes back a disk it had lost may well be target: its users have been
        // using the peer's data.
        let stands = |side: &Side| {
            side.is_primary()
                && !side.attaching
                && side.judged_disk() >= DiskState::Consistent
                && dirty
        };
        // Protocols A and B: the crashed Primary may lack an acknowledged write, or have one the
        // other lacks; auto-discard keeps the one that is running.
        let yields = self.policies.rr_conflict == RrConflict::AutoDiscard
            && self.context.occasion == Occasion::Connecting
            && self.verdict.rule == Rule::OneCrashed
            && self.context.protocol != Protocol::C
            && !(stands(self.me) && stands(self.peer));
        match course {
            Course::Source(Strategy::Bitmap) if yields && stands(self.peer) => {
                Ok(Course::Target(Strategy::Bitmap))
            }
            Course::Target(Strategy::IfBothFailed) => Ok(course),
            // It is demoted before it becomes target.
            Course::Target(_) if self.demote_first => Ok(course),
            Course::Target(strategy) if stands(self.me) => match self.policies.rr_conflict {
                RrConflict::AutoDiscard if yields && strategy == Strategy::Bitmap => {
                    Ok(Course::Source(strategy))
                }
                RrConflict::Violently => Ok(course),
                RrConflict::RetryConnect => Err(Outcome::Retry(RetryReason::PrimaryWouldBeTarget)),
                RrConflict::CallPriLost => {
                    self.handlers.push(Handler::PriLost);
                    Err(Outcome::Refuse(Refused::PrimaryWouldBeTarget))
                }
                RrConflict::Disconnect | RrConflict::AutoDiscard => {
                    Err(Outcome::Refuse(Refused::PrimaryWouldBeTarget))
                }
            },
            _ => Ok(course),
        }
    }

    /// Step 9: a missed end is made up for only from good data. The bits stay for when there is.
    fn missed_end_needs_good_source(&self, course: Course) -> Course {
        if !matches!(self.verdict.rule, Rule::SourceMissedEnd | Rule::TargetMissedEnd) {
            return course;
        }
        let source = match course {
            Course::Source(_) => self.me,
            Course::Target(_) => self.peer,
            Course::NoSync(_) => return course,
        };
        match source.disk == DiskState::UpToDate {
            true => course,
            false => Course::NoSync(Bits::Keep),
        }
    }

    /// Steps 10 to 12.
    fn conclude(&mut self, course: Course) -> Outcome {
        let course = match (course, self.me.is_primary(), self.peer.is_primary()) {
            (Course::Source(Strategy::IfBothFailed), false, false) => {
                Course::Source(Strategy::Bitmap)
            }
            (Course::Target(Strategy::IfBothFailed), false, false) => {
                Course::Target(Strategy::Bitmap)
            }
            (Course::Source(Strategy::IfBothFailed), ..)
            | (Course::Target(Strategy::IfBothFailed), ..) => {
                match (self.me.is_primary(), self.peer.is_primary()) {
                    (true, true) => Course::NoSync(Bits::Keep),
                    (true, false) => Course::Source(Strategy::Bitmap),
                    _ => Course::Target(Strategy::Bitmap),
                }
            }
            (settled, ..) => settled,
        };
        if self.policies.tentative {
            return Outcome::Tentative(match course {
                Course::NoSync(_) => Finding::NoSync,
                Course::Source(strategy) => Finding::Source(strategy),
                Course::Target(strategy) => Finding::Target(strategy),
            });
        }
        match course {
            Course::NoSync(bits) => Outcome::NoSync(bits),
            Course::Source(strategy) => {
                self.prepare_source(strategy);
                Outcome::Source(strategy)
            }
            Course::Target(strategy) => {
                self.prepare_target(strategy);
                Outcome::Target { strategy, demote_first: self.demote_first }
            }
        }
    }

    /// Step 11 on the source. Where the bits change their base, the slot's generation follows, so
    /// that it keeps saying since when they count (invariant 19) and an interrupted resync
    /// resumes by bitmap.
    fn prepare_source(&mut self, strategy: Strategy) {
        let peer = self.peer;
        let real = |side: &Side| is_generation(side.current);
        match strategy {
            Strategy::Bitmap | Strategy::IfBothFailed => {}
            Strategy::Full => {
                self.preparations.push(Preparation::SetAll(peer.node));
                // One that was given up came after this one: no bits start at it.
                let given_up = self.verdict.rule == Rule::GivenUpPeer;
                let other = real(self.me) && real(peer) && !self.me.current.same(peer.current);
                if other && !given_up {
                    let base = peer.current.with_primary(false);
                    self.preparations.push(Preparation::SetBitmapUuid(peer.node, base));
                }
            }
            Strategy::CopySlot(from) => {
                let peer = peer.node;
                self.preparations.push(match self.me.slots.contains(from) {
                    // Stricter than the reference: what a resync delivered to node `from` is
                    // missing in its bits, and this peer has not got it.
                    true if self.local.worn.contains(from) => Preparation::SetAll(peer),
                    true => Preparation::MergeSlot { from, to: peer },
                    false if self.local.unallocated_slot => Preparation::MergeUnallocated(peer),
                    false => Preparation::SetAll(peer),
                });
                let base = self.me.bitmap[from.index()];
                if !base.same(self.me.current) {
                    self.preparations.push(Preparation::SetBitmapUuid(peer, base));
                }
            }
        }
    }

    /// Step 11 on the target.
    fn prepare_target(&mut self, strategy: Strategy) {
        let peer = self.peer.node;
        match strategy {
            Strategy::Bitmap | Strategy::IfBothFailed => {}
            Strategy::Full if self.me.current.is_just_created() => {
                // Already done when the resync that is running began.
                if !self.local.syncing_elsewhere {
                    self.preparations.push(Preparation::SetAllSlots);
                }
            }
            Strategy::Full => self.preparations.push(Preparation::SetAll(peer)),
            // The reference clears its bits here: the source's copy counts from this generation. But
            // within that this disk may differ from the one whose slot is copied, and only its own
            // bits say where.
            Strategy::CopySlot(_) => {}
        }
    }
}

/// A Primary in use, and a disk of its generation that has restarted and does not vouch for itself: it
/// may lack what the Primary counts as missing there, and has nothing that the Primary lacks.
fn behind_primary(primary: &Side, restarted: &Side) -> bool {
    primary.is_primary()
        && primary.disk == DiskState::UpToDate
        && !primary.attaching
        && primary.dirty_blocks > 0
        && !restarted.is_primary()
        && restarted.disk == DiskState::Consistent
        && !restarted.has(UuidFlags::RECONNECT)
}
