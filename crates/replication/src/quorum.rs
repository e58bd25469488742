//! Quorum of one volume: counting votes and judging them (semantics §6.1).
//!
//! A node counts itself and every peer it knows to exist. Everything is computed from the new
//! state; the only thing carried over is whether quorum was held before, because diskless
//! tie-breakers may preserve quorum but never restore it (invariant 33), and because only a node
//! inside the quorate membership may disregard those left outside.

use vocab::options::Quorum;
use vocab::{DiskState, NodeId, NodeMask};

#[cfg(test)]
mod tests;

/// Votes that `rule` demands among `voters`.
pub const fn required_votes(rule: Quorum, voters: u32) -> u32 {
    match rule {
        Quorum::Off => 0,
        Quorum::Majority => voters / 2 + 1,
        Quorum::All => voters,
        Quorum::Count(n) => n as u32,
    }
}

/// The quorum options of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Votes required: option `quorum`.
    pub quorum: Quorum,
    /// UpToDate disks required: option `quorum-minimum-redundancy`.
    pub minimum_redundancy: Quorum,
}

/// One peer as this node sees it in the new state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The peer's node id.
    pub node: NodeId,
    /// The connection is in state Connected.
    pub connected: bool,
    /// The peer's disk; the last known state while not connected.
    pub disk: DiskState,
    /// Configured without a bitmap (`bitmap=no`): diskless by intent.
    pub intentional_diskless: bool,
    /// There is evidence that the node exists: its slot carries HAVE_BITMAP, NODE_EXISTS or
    /// DEVICE_SEEN. A new diskless peer that never connected does not exist yet.
    pub exists: bool,
    /// The peer's slot carries OUTDATED.
    pub marked_outdated: bool,
    /// Option `allow-remote-read` of the connection; without it the peer has no vote.
    pub allow_remote_read: bool,
    /// Option `peer-tiebreaker`; without it an intentionally diskless peer has no say.
    pub tiebreaker: bool,
    /// The quorum bit of the peer's last state packet.
    pub quorate: bool,
    /// It may know less than what it has voted for: it has restarted and not had its disk since,
    /// or its disk was on its way to data that it does not see. Or it would, were it to restart: it
    /// has lost its disk, and that is not on record there.
    pub forgetful: bool,
}

/// Everything quorum depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The local disk.
    pub disk: DiskState,
    /// The same about this node.
    pub forgetful: bool,
    /// This node is diskless by intent.
    pub intentional_diskless: bool,
    /// Every peer slot of the volume, one entry per node.
    pub peers: &'a [Peer],
    /// The membership of the last committed transaction. A transaction that itself changes
    /// connections (a disconnect) is judged with the membership before it, and judged again with
    /// the new one: a peer becomes known to be left outside only if quorum was held without it.
    pub members: NodeMask,
    /// The real quorum ([`Decision::real`]) before this change.
    pub had_quorum: bool,
    /// The metadata said at attach: HAVE_QUORUM, WAS_UP_TO_DATE, and nobody but this node in
    /// `members` (adjustment A13). Counts like `had_quorum` once the disk is UpToDate, so that
    /// the last man standing survives its own reboot.
    pub restore_quorum: bool,
}

impl View<'_> {
    /// One on its way out counts as gone: what is completed now, this node will not have.
    const fn own_disk(&self) -> DiskState {
        match self.disk {
            DiskState::Detaching => DiskState::Diskless,
            disk => disk,
        }
    }

    /// Quorum counted as held before this change.
    const fn held_quorum(&self) -> bool {
        self.had_quorum || (self.restore_quorum && matches!(self.disk, DiskState::UpToDate))
    }
}

/// The classes of votes. A node is in at most one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Votes {
    /// UpToDate disks: this node's and connected peers'.
    pub up_to_date: u32,
    /// Other disks, this node's and connected peers'.
    pub present: u32,
    /// Visible diskless nodes, which only break ties.
    pub diskless: u32,
    /// Intentionally diskless nodes that are not connected.
    pub missing_diskless: u32,
    /// Not connected and known to have no current data.
    pub outdated: u32,
    /// Not connected and left outside the quorate membership.
    pub quorumless: u32,
    /// Not connected, nothing known that would make them harmless.
    pub unknown: u32,
    /// Among `present`: disks that are Outdated. No class of its own, see [`Reason::OnlyOutdated`].
    pub outdated_present: u32,
    /// Among `present`: disks that are Consistent.
    pub consistent_present: u32,
    /// Among `unknown`: nodes that are there. Stricter than the reference, for invariants 5, 32
    /// and 35: what a node has voted for is on its disk. Without that it could help a disk to
    /// quorum that is older than what it has taken part in, or than its own, or take part in what
    /// its disk knows nothing of.
    pub forgetful: u32,
    /// This node is diskless and a connected UpToDate peer reports quorum.
    pub quorate_peer: bool,
}

impl Votes {
    /// Votes this node can see.
    pub const fn visible(&self) -> u32 {
        self.up_to_date + self.present
    }

    /// Nodes with a vote that this node can not see.
    pub const fn absent(&self) -> u32 {
        self.outdated + self.quorumless + self.unknown
    }
}

/// Why quorum is held or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// No quorum is configured.
    Off,
    /// Enough votes are visible.
    Votes,
    /// Enough votes are visible because every absent node is known to be harmless.
    LastManStanding,
    /// A diskless node relies on a connected UpToDate peer that has quorum.
    QuoratePeer,
    /// A tie, broken by diskless nodes; quorum was held before.
    Tiebreaker,
    /// Not enough votes are visible.
    TooFewVotes,
    /// Enough votes, but fewer UpToDate disks than the minimum redundancy asks for.
    TooFewUpToDate,
    /// Enough votes, but every visible disk with consistent data is Outdated while a node is
    /// missing that may hold, and be writing, what outdated them. Nothing could be promoted here
    /// anyway; counting it as a quorum would break invariants 32 and 35.
    OnlyOutdated,
}

/// The verdict on a set of votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The votes as finally classed.
    pub votes: Votes,
    /// Nodes whose votes count.
    pub voters: u32,
    /// Votes required among `voters`.
    pub required: u32,
    /// UpToDate disks required.
    pub required_up_to_date: u32,
    /// Quorum by the votes. Tracked even if none is configured.
    pub real: bool,
    /// Quorum as it binds I/O and promotion: always true if none is configured.
    pub enforced: bool,
    /// Why.
    pub reason: Reason,
}

/// Classes every node that has a vote or a say in breaking a tie.
pub fn count(view: &View<'_>) -> Votes {
    let mut votes = Votes::default();
    let here = view.own_disk();
    let here_diskless = here == DiskState::Diskless;
    match here {
        _ if view.forgetful && !view.intentional_diskless => votes.add_forgetful(),
        DiskState::UpToDate => votes.up_to_date += 1,
        DiskState::Diskless if view.intentional_diskless => votes.diskless += 1,
        DiskState::Diskless => votes.unknown += 1,
        disk => votes.add_present(disk),
    }
    for peer in view.peers {
        let client = peer.intentional_diskless && peer.disk <= DiskState::Diskless;
        let skipped = !peer.allow_remote_read || (peer.intentional_diskless && !peer.tiebreaker);
        if !peer.exists || skipped {
            continue;
        }
        if peer.connected && peer.forgetful && !peer.intentional_diskless {
            votes.add_forgetful();
        } else if peer.connected {
            match peer.disk {
                DiskState::UpToDate => {
                    votes.up_to_date += 1;
                    votes.quorate_peer |= here_diskless && peer.quorate;
                }
                DiskState::Diskless if client || here_diskless => votes.diskless += 1,
                disk => votes.add_present(disk),
            }
        } else if peer.intentional_diskless {
            votes.missing_diskless += 1;
        } else if peer.disk <= DiskState::Outdated || peer.marked_outdated {
            votes.outdated += 1;
        } else if view.held_quorum() && !view.members.contains(peer.node) {
            votes.quorumless += 1;
        } else {
            votes.unknown += 1;
        }
    }
    votes
}

impl Votes {
    fn add_forgetful(&mut self) {
        self.unknown += 1;
        self.forgetful += 1;
    }

    fn add_present(&mut self, disk: DiskState) {
        self.present += 1;
        self.outdated_present += u32::from(disk == DiskState::Outdated);
        self.consistent_present += u32::from(disk == DiskState::Consistent);
    }

    /// Step 1: nodes outside the quorate membership may be disregarded only as long as all that
    /// are missing could not form a quorum among themselves.
    fn reclass_quorumless(&mut self, policy: Policy) {
        let all = self.absent() + self.visible();
        if self.quorumless > 0 && self.absent() >= required_votes(policy.quorum, all) {
            self.unknown += self.quorumless;
            self.quorumless = 0;
        }
    }

    /// Stricter than the reference, for invariants 32 and 35: that a peer is Outdated stays true
    /// without this node only as long as the others can not have brought it up to date. A node
    /// that lost quorum meanwhile believes its old marks only if all other voters together could
    /// not have formed a quorum. Otherwise a member that changes sides takes the marks of a
    /// partition long gone for a licence to go on beside the real one.
    fn doubt_outdated(&mut self, view: &View<'_>, policy: Policy) {
        let all = self.absent() + self.visible();
        let others = all - u32::from(view.own_disk() > DiskState::Diskless);
        if !view.held_quorum() && others >= required_votes(policy.quorum, all) {
            self.unknown += self.outdated;
            self.outdated = 0;
        }
    }
}

/// Judges the votes: steps 1 to 7 of semantics §6.1.
pub fn evaluate(view: &View<'_>, policy: Policy) -> Decision {
    let mut votes = count(view);
    votes.reclass_quorumless(policy);
    votes.doubt_outdated(view, policy);

    // Step 2: as long as one absent node may be alive and current, all of them count.
    let everyone_known = votes.unknown == 0;
    let voters = if everyone_known { votes.visible() } else { votes.visible() + votes.absent() };
    let required = required_votes(policy.quorum, voters);
    let required_up_to_date = required_votes(policy.minimum_redundancy, voters);

    let enough_up_to_date = votes.up_to_date >= required_up_to_date;
    let enough_votes = votes.visible() >= required;
    let tie = voters != 0
        && voters.is_multiple_of(2)
        && votes.visible() + 1 == required
        && votes.diskless > (votes.diskless + votes.missing_diskless) / 2
        && view.held_quorum();
    let only_outdated = !everyone_known
        && votes.up_to_date == 0
        && votes.outdated_present > 0
        && votes.consistent_present == 0;

    let reason = if policy.quorum == Quorum::Off {
        Reason::Off
    } else if votes.quorate_peer {
        Reason::QuoratePeer
    } else if !enough_votes && !tie {
        Reason::TooFewVotes
    } else if !enough_up_to_date {
        Reason::TooFewUpToDate
    } else if only_outdated {
        Reason::OnlyOutdated
    } else if !enough_votes {
        Reason::Tiebreaker
    } else if everyone_known && votes.absent() > 0 {
        Reason::LastManStanding
    } else {
        Reason::Votes
    };
    let real = matches!(
        reason,
        Reason::Off
            | Reason::QuoratePeer
            | Reason::Votes
            | Reason::LastManStanding
            | Reason::Tiebreaker
    );
    let enforced = real || policy.quorum == Quorum::Off;
    assert!(reason != Reason::Tiebreaker || view.held_quorum(), "a tie never restores quorum");
    Decision { votes, voters, required, required_up_to_date, real, enforced, reason }
}

impl Decision {
    /// Why quorum is held or not, in words for operators: the text of refusals and of `why`.
    pub fn explain(&self) -> String {
        let Votes { up_to_date, diskless, missing_diskless, .. } = self.votes;
        let (visible, voters, need) = (self.votes.visible(), self.voters, self.required);
        let counted = format!("{visible} of {voters} visible, need {need}");
        match self.reason {
            Reason::Off => "no quorum is configured".to_string(),
            Reason::Votes => format!("quorum: {counted}"),
            Reason::LastManStanding => format!(
                "quorum: {counted}; {}, known to have no current data or no quorum",
                absent(self.votes.absent())
            ),
            Reason::QuoratePeer => "quorum: an UpToDate peer has it".to_string(),
            Reason::Tiebreaker => format!(
                "quorum kept by tie-breakers: {counted}, and {diskless} of {} diskless nodes \
                 visible",
                diskless + missing_diskless
            ),
            Reason::TooFewVotes => {
                format!("no quorum: {counted}; {}", self.unhelpful_tiebreakers())
            }
            Reason::TooFewUpToDate => format!(
                "no quorum: {up_to_date} of {voters} UpToDate, minimum redundancy needs {}; \
                 wait for running resyncs or bring back a node with current data",
                self.required_up_to_date
            ),
            Reason::OnlyOutdated => format!(
                "no quorum: {counted}, but every visible disk is Outdated and {}, which may hold \
                 newer data; bring one back",
                absent(self.votes.unknown)
            ),
        }
    }

    /// What an operator can do about missing votes.
    fn unhelpful_tiebreakers(&self) -> String {
        let missing = self.required.saturating_sub(self.votes.visible());
        let tie = missing == 1 && self.voters != 0 && self.voters.is_multiple_of(2);
        if self.votes.forgetful > 0 {
            format!(
                "{} of the others may have taken part in newer data; attach what is detached, or \
                 bring back a node that is away",
                self.votes.forgetful
            )
        } else if tie && self.votes.diskless > 0 {
            "diskless nodes keep quorum but do not restore it; bring back a node with a disk"
                .to_string()
        } else {
            format!("bring back {} or more of the nodes that are away", missing.max(1))
        }
    }
}

/// "1 node is away", "3 nodes are away".
fn absent(n: u32) -> String {
    if n == 1 { "1 node is away".to_string() } else { format!("{n} nodes are away") }
}
