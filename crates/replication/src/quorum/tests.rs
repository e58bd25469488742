//! Quorum in small clusters: the worked examples of semantics §6.1 and properties under random
//! partitions. The model keeps what the real nodes keep: links, disks, outdated marks, membership
//! and each node's previous real quorum.

use super::*;
use DiskState::{Consistent, DUnknown, Diskless, Inconsistent, Outdated, UpToDate};

fn n(id: usize) -> NodeId {
    NodeId::new(id as u8).unwrap()
}

struct Node {
    /// Configured with a disk; without, diskless by intent.
    diskful: bool,
    disk: DiskState,
    links: NodeMask,
    outdated_marks: NodeMask,
    members: NodeMask,
    primary: bool,
    quorum: bool,
    /// Lost a peer and has not run the lost-peer transaction yet.
    lost_peer: bool,
    /// Has restarted without its disk.
    forgetful: bool,
}

struct Cluster {
    nodes: Vec<Node>,
    policy: Policy,
}

impl Cluster {
    /// Nodes named by their kind: `D` with a disk, `t` diskless by intent. All connected, all
    /// UpToDate, node 0 is Primary.
    fn new(kinds: &str, quorum: Quorum) -> Cluster {
        let all: NodeMask = (0..kinds.len()).map(n).collect();
        let nodes = kinds.chars().enumerate().map(|(i, kind)| Node {
            diskful: kind == 'D',
            disk: if kind == 'D' { UpToDate } else { Diskless },
            links: all.without(n(i)),
            outdated_marks: NodeMask::EMPTY,
            members: all,
            primary: i == 0,
            quorum: true,
            lost_peer: false,
            forgetful: false,
        });
        let policy = Policy { quorum, minimum_redundancy: Quorum::Off };
        let mut cluster = Cluster { nodes: nodes.collect(), policy };
        cluster.recompute();
        cluster
    }

    fn peers(&self, me: usize) -> Vec<Peer> {
        let peer = |i: usize| {
            let (mine, other) = (&self.nodes[me], &self.nodes[i]);
            let connected = mine.links.contains(n(i));
            Peer {
                node: n(i),
                connected,
                disk: if connected { other.disk } else { DUnknown },
                intentional_diskless: !other.diskful,
                exists: true,
                marked_outdated: mine.outdated_marks.contains(n(i)),
                allow_remote_read: true,
                tiebreaker: true,
                quorate: connected && other.quorum,
                forgetful: connected && other.forgetful,
            }
        };
        (0..self.nodes.len()).filter(|i| *i != me).map(peer).collect()
    }

    fn decide(&self, me: usize) -> Decision {
        let node = &self.nodes[me];
        let view = View {
            disk: node.disk,
            forgetful: node.forgetful,
            intentional_diskless: !node.diskful,
            peers: &self.peers(me),
            members: node.members,
            had_quorum: node.quorum,
            restore_quorum: false,
        };
        evaluate(&view, self.policy)
    }

    /// One node evaluates its state change.
    fn recompute_one(&mut self, me: usize) {
        let decision = self.decide(me);
        let voted = matches!(decision.reason, Reason::QuoratePeer) || self.nodes[me].quorum;
        let tie = decision.reason == Reason::Tiebreaker;
        assert!(!tie || voted, "tie-breakers restored quorum on node {me}");
        self.nodes[me].quorum = decision.real;
    }

    /// Everyone evaluates until nothing changes any more.
    fn recompute(&mut self) {
        for _ in 0..=self.nodes.len() {
            (0..self.nodes.len()).for_each(|i| self.recompute_one(i));
        }
    }

    /// One link breaks; both ends notice.
    fn cut(&mut self, a: usize, b: usize) {
        self.nodes[a].links.remove(n(b));
        self.nodes[b].links.remove(n(a));
        for i in [a, b] {
            self.nodes[i].lost_peer = true;
            self.recompute_one(i);
        }
        self.recompute();
    }

    fn isolate(&mut self, a: usize) {
        for b in self.nodes[a].links.iter().collect::<Vec<_>>() {
            self.cut(a, b.index());
        }
    }

    fn reachable(&self, from: usize) -> NodeMask {
        let mut reach = n(from).mask();
        loop {
            let more = reach.iter().fold(reach, |m, i| m.or(self.nodes[i.index()].links));
            if more == reach {
                return reach;
            }
            reach = more;
        }
    }

    /// Loss detection and the lost-peer transactions are done (semantics §2.9, §2.6).
    fn settle(&mut self) {
        self.recompute();
        for initiator in 0..self.nodes.len() {
            if !std::mem::take(&mut self.nodes[initiator].lost_peer) {
                continue;
            }
            let reach = self.reachable(initiator);
            self.commit(initiator, reach);
            for p in reach.iter() {
                let far = reach.minus(self.nodes[p.index()].links).without(p);
                for i in far.iter() {
                    if !self.nodes[p.index()].primary || !self.nodes[i.index()].diskful {
                        continue;
                    }
                    self.nodes[i.index()].disk = Outdated;
                    self.nodes[p.index()].outdated_marks.insert(i);
                }
            }
            self.recompute();
        }
    }

    /// Membership after a committed transaction.
    fn commit(&mut self, initiator: usize, reach: NodeMask) {
        let quorate = self.quorate();
        for i in reach.iter().map(NodeId::index) {
            let neighbour = self.nodes[i].links.iter().any(|p| quorate[p.index()]);
            if i == initiator || quorate[i] || neighbour {
                self.nodes[i].members = reach;
            }
        }
        self.recompute();
    }

    /// A node disconnects from all its peers with their agreement; leaving a Primary, it is
    /// Outdated and they know it. A Primary demotes first.
    fn leave(&mut self, a: usize) {
        let (reach, peers) = (self.reachable(a), self.nodes[a].links);
        self.nodes[a].primary = false;
        let primary = peers.iter().any(|p| self.nodes[p.index()].primary);
        if primary && self.nodes[a].diskful {
            self.nodes[a].disk = self.nodes[a].disk.min(Outdated);
        }
        for p in peers.iter() {
            if primary && self.nodes[a].diskful {
                self.nodes[p.index()].outdated_marks.insert(n(a));
            }
            self.nodes[p.index()].links.remove(n(a));
            self.nodes[a].links.remove(p);
        }
        // Judged with the old membership first: the absent are unknown until proven otherwise.
        self.recompute();
        self.commit(a, n(a).mask());
        for i in reach.without(n(a)).iter().map(NodeId::index) {
            self.commit(i, self.reachable(i));
        }
    }

    /// Two nodes connect; an Outdated disk meeting an UpToDate one is resynced.
    fn connect(&mut self, a: usize, b: usize) {
        let primary =
            |c: &Cluster, from| c.reachable(from).iter().find(|p| c.nodes[p.index()].primary);
        if let (Some(x), Some(y)) = (primary(self, a), primary(self, b))
            && x != y
        {
            // Two Primaries do not connect; the one without quorum is demoted first.
            let loser = if self.nodes[x.index()].quorum { y } else { x };
            self.nodes[loser.index()].primary = false;
        }
        self.nodes[a].links.insert(n(b));
        self.nodes[b].links.insert(n(a));
        for (x, y) in [(a, b), (b, a)] {
            self.nodes[x].outdated_marks.remove(n(y));
            if self.nodes[x].disk == Outdated && self.nodes[y].disk == UpToDate {
                self.nodes[x].disk = UpToDate;
            }
        }
        self.recompute();
        self.commit(a.min(b), self.reachable(a));
    }

    fn quorate(&self) -> Vec<bool> {
        self.nodes.iter().map(|node| node.quorum).collect()
    }

    #[track_caller]
    fn check(&self, expected: &[bool], when: &str) {
        assert_eq!(self.quorate(), expected, "{when}");
    }
}

const Y: bool = true;
const N: bool = false;

#[test]
fn two_disks_both_lose_when_the_link_breaks() {
    let mut c = Cluster::new("DD", Quorum::Majority);
    c.cut(0, 1);
    c.settle();
    c.check(&[N, N], "2 voters, need 2");
}

#[test]
fn the_primary_keeps_quorum_when_the_secondary_leaves_gracefully() {
    let mut c = Cluster::new("DD", Quorum::Majority);
    c.leave(1);
    let here = c.decide(0);
    assert_eq!((here.voters, here.reason), (1, Reason::LastManStanding));
    c.check(&[Y, N], "the leaver is Outdated and alone");
}

#[test]
fn a_tiebreaker_seen_by_both_keeps_both_until_the_secondary_is_outdated() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.cut(0, 1);
    c.check(&[Y, Y, Y], "tie on both sides");
    assert_eq!(c.decide(0).reason, Reason::Tiebreaker);
    c.settle();
    assert_eq!(c.nodes[1].disk, Outdated, "it learns of the Primary via the tie-breaker");
    assert!(c.nodes[0].quorum, "the Primary keeps running");
}

#[test]
fn an_isolated_primary_loses_to_the_side_with_the_tiebreaker() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.isolate(0);
    c.check(&[N, Y, Y], "before any settling: B keeps without delay");
    c.settle();
    c.check(&[N, Y, Y], "settled");
    c.connect(0, 2);
    assert!(!c.nodes[0].quorum, "A regains only by reaching B");
    c.connect(0, 1);
    c.check(&[Y, Y, Y], "healed");
}

#[test]
fn quorum_lost_twice_is_not_restored_by_the_tiebreaker_alone() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.cut(0, 1);
    c.settle();
    c.cut(0, 2);
    // A knows that B is Outdated, so make B a crash instead: nothing known about it.
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.cut(0, 1);
    c.cut(0, 2);
    assert!(!c.nodes[0].quorum, "B then T lost before anything settled");
    c.connect(0, 2);
    assert!(!c.nodes[0].quorum, "regaining T only is not enough");
}

#[test]
fn a_primary_that_saw_the_peer_outdated_survives_losing_the_tiebreaker() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.cut(0, 1);
    c.settle();
    c.cut(0, 2);
    c.settle();
    assert!(c.nodes[0].quorum);
    assert_eq!(c.decide(0).voters, 1);
    assert!(!c.nodes[1].quorum && !c.nodes[2].quorum, "B is Outdated and can not promote");
    c.nodes[1].quorum = true;
    assert_eq!(c.decide(1).reason, Reason::OnlyOutdated, "not even by the tie-breaker");
}

#[test]
fn a_quorumless_peer_does_not_come_back_with_the_tiebreaker() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.isolate(1);
    c.settle();
    c.check(&[Y, N, Y], "B isolated and left outside");
    c.cut(0, 2);
    c.settle();
    c.check(&[Y, N, N], "A keeps alone");
    c.connect(1, 2);
    c.settle();
    c.check(&[Y, N, N], "B with T stays without");
}

#[test]
fn three_disks_one_crashed_one_leaving() {
    let mut c = Cluster::new("DDD", Quorum::Majority);
    c.isolate(2);
    c.settle();
    c.check(&[Y, Y, N], "one crashed");
    c.leave(1);
    c.check(&[N, N, N], "outdated 1 + quorumless 1 could be a majority: 1 of 3");
    let mut c = Cluster::new("DDD", Quorum::Majority);
    c.leave(2);
    c.leave(1);
    c.check(&[Y, N, N], "all left gracefully");
    assert_eq!(c.decide(0).reason, Reason::LastManStanding);
}

#[test]
fn a_crash_then_the_tiebreaker_leaving() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.isolate(1);
    c.settle();
    c.leave(2);
    let here = c.decide(0);
    assert_eq!((here.voters, here.votes.quorumless, here.real), (1, 1, true));
}

#[test]
fn old_marks_do_not_license_a_partition_beside_the_real_one() {
    // A Primary outdates C and D, loses them and then B: its quorum is gone. B, C, D go on
    // without it. When B changes sides, A's marks on C and D prove nothing any more.
    let mut c = Cluster::new("DDDDt", Quorum::Majority);
    for (a, b) in [(0, 2), (0, 3)] {
        c.cut(a, b);
        c.settle();
    }
    assert!(c.nodes[0].outdated_marks.contains(n(2)) && c.nodes[0].outdated_marks.contains(n(3)));
    c.isolate(0);
    c.settle();
    for (a, b) in [(1, 2), (1, 3)] {
        c.connect(a, b);
    }
    c.nodes[2].primary = true;
    c.check(&[N, Y, Y, Y, Y], "three of four");
    c.leave(1);
    c.settle();
    c.check(&[N, N, Y, Y, Y], "B left gracefully");
    c.connect(0, 1);
    c.settle();
    c.check(&[N, N, Y, Y, Y], "A and B are no quorum while C and D are");
    assert_eq!(c.decide(0).votes.unknown, 2);
}

#[test]
fn four_disks_split_in_half() {
    let split = |kinds: &str, with_a: &[usize]| {
        let mut c = Cluster::new(kinds, Quorum::Majority);
        for a in 0..kinds.len() {
            for b in a + 1..kinds.len() {
                if with_a.contains(&a) != with_a.contains(&b) {
                    c.cut(a, b);
                }
            }
        }
        c.settle();
        c.quorate()
    };
    assert_eq!(split("DDDD", &[0, 1]), [N, N, N, N]);
    assert_eq!(split("DDDDt", &[0, 1]), [N, N, Y, Y, Y]);
    assert_eq!(split("DDDDttt", &[0, 1, 4, 5]), [Y, Y, N, N, Y, Y, N]);
    assert_eq!(split("DDDDtt", &[0, 1, 4]), [N; 6], "half of the tie-breakers is no majority");
}

#[test]
fn peers_without_say_are_skipped() {
    let c = Cluster::new("DDt", Quorum::Majority);
    let mut peers = c.peers(0);
    peers.iter_mut().for_each(|p| p.connected = false);
    let view = |peers: &[Peer]| {
        count(&View {
            disk: UpToDate,
            forgetful: false,
            intentional_diskless: false,
            peers,
            members: NodeMask::ALL,
            had_quorum: true,
            restore_quorum: false,
        })
    };
    let votes = Votes { up_to_date: 1, unknown: 1, missing_diskless: 1, ..Votes::default() };
    assert_eq!(view(&peers), votes);
    peers[1].tiebreaker = false;
    assert_eq!(view(&peers), Votes { missing_diskless: 0, ..votes });
    peers[0].allow_remote_read = false;
    assert_eq!(view(&peers), Votes { up_to_date: 1, ..Votes::default() });
    peers[0] = Peer { allow_remote_read: true, exists: false, ..peers[0] };
    assert_eq!(view(&peers).unknown, 0, "a node that never showed up does not vote");
}

#[test]
fn disk_states_decide_the_class() {
    let c = Cluster::new("DD", Quorum::Majority);
    let class = |here: DiskState, intent: bool, peer_disk: DiskState, connected: bool| {
        let mut peers = c.peers(0);
        peers[0] = Peer { disk: peer_disk, connected, ..peers[0] };
        count(&View {
            disk: here,
            forgetful: false,
            intentional_diskless: intent,
            peers: &peers,
            members: NodeMask::ALL,
            had_quorum: true,
            restore_quorum: false,
        })
    };
    let none = Votes::default();
    assert_eq!(class(UpToDate, false, Diskless, true), Votes { up_to_date: 1, present: 1, ..none });
    assert_eq!(class(Diskless, true, Diskless, true), Votes { diskless: 2, ..none });
    for gone in [Diskless, DiskState::Detaching] {
        assert_eq!(
            class(gone, false, UpToDate, true),
            Votes { unknown: 1, up_to_date: 1, quorate_peer: true, ..none }
        );
    }
    assert_eq!(
        class(Inconsistent, false, Outdated, false),
        Votes { present: 1, outdated: 1, ..none }
    );
    assert_eq!(
        class(Consistent, false, Consistent, true),
        Votes { present: 2, consistent_present: 2, ..none }
    );
}

#[test]
fn minimum_redundancy_binds_ties_as_well() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.policy.minimum_redundancy = Quorum::Count(2);
    c.nodes[0].links.remove(n(1));
    assert_eq!(c.decide(0).reason, Reason::TooFewUpToDate);
    let mut c = Cluster::new("DDD", Quorum::Majority);
    c.policy.minimum_redundancy = Quorum::Majority;
    c.nodes[1].disk = Inconsistent;
    c.nodes[2].disk = Inconsistent;
    c.recompute();
    c.check(&[N, N, N], "resync targets are no redundancy");
    c.nodes[1].disk = UpToDate;
    c.recompute();
    c.check(&[Y, Y, Y], "two UpToDate of three");
}

#[test]
fn all_and_fixed_numbers() {
    let mut c = Cluster::new("DDD", Quorum::All);
    c.isolate(2);
    c.settle();
    c.check(&[N, N, N], "all means every voter that may be alive");
    let mut c = Cluster::new("DDD", Quorum::Count(2));
    c.isolate(2);
    c.settle();
    c.check(&[Y, Y, N], "2 of 3");
    let mut c = Cluster::new("DDD", Quorum::Off);
    c.isolate(2);
    let alone = c.decide(2);
    assert!(alone.enforced && alone.reason == Reason::Off);
}

#[test]
fn a_node_that_may_have_forgotten_what_it_voted_for_counts_as_missing() {
    let mut c = Cluster::new("DDD", Quorum::Majority);
    c.nodes[1].disk = Diskless;
    c.isolate(2);
    assert!(c.decide(0).real, "it was there when the others went on");
    c.nodes[1].forgetful = true;
    assert!(!c.decide(0).real, "its disk may be what is newer");
    c.nodes[1].disk = Inconsistent;
    assert!(!c.decide(0).real, "or what it was on its way to");
    let mut c = Cluster::new("DDD", Quorum::Majority);
    c.nodes[1].forgetful = true;
    assert!(c.decide(0).real, "the others are two");
    c.nodes[0].forgetful = true;
    assert!(!c.decide(0).real);
}

#[test]
fn the_last_man_standing_survives_its_reboot() {
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.isolate(1);
    c.settle();
    c.leave(2);
    let reboot = |disk, restore_quorum| {
        let view = View {
            disk,
            forgetful: false,
            intentional_diskless: false,
            peers: &c.peers(0),
            members: n(0).mask(),
            had_quorum: false,
            restore_quorum,
        };
        evaluate(&view, c.policy).real
    };
    assert!(reboot(UpToDate, true));
    assert!(!reboot(Consistent, true), "only once UpToDate");
    assert!(!reboot(UpToDate, false));
}

#[test]
fn a_diskless_node_follows_a_quorate_up_to_date_peer() {
    let mut c = Cluster::new("DDDt", Quorum::Majority);
    c.cut(3, 1);
    c.cut(3, 2);
    assert_eq!(c.decide(3).reason, Reason::QuoratePeer);
    c.nodes[0].quorum = false;
    assert_eq!(c.decide(3).reason, Reason::TooFewVotes);
}

#[test]
fn the_explanation_says_what_is_missing() {
    let mut c = Cluster::new("DDD", Quorum::Majority);
    assert_eq!(c.decide(0).explain(), "quorum: 3 of 3 visible, need 2");
    c.isolate(0);
    assert_eq!(
        c.decide(0).explain(),
        "no quorum: 1 of 3 visible, need 2; bring back 1 or more of the nodes that are away"
    );
    let mut c = Cluster::new("DDt", Quorum::Majority);
    c.cut(0, 1);
    assert_eq!(
        c.decide(0).explain(),
        "quorum kept by tie-breakers: 1 of 2 visible, need 2, and 1 of 1 diskless nodes visible"
    );
}

/// xorshift64*: enough for tests, and the seed is the whole state.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// Splits, merges, graceful leaves, role changes; loss is noticed link by link in random order,
/// sometimes with a transaction in between.
fn wander(seed: u64, kinds: &str, quorum: Quorum, steps: usize) {
    let mut rng = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut c = Cluster::new(kinds, quorum);
    let count = c.nodes.len();
    let mut log = Vec::new();
    for _ in 0..steps {
        let group = c.reachable(rng.below(count)).iter().map(NodeId::index).collect::<Vec<_>>();
        match rng.below(5) {
            0 | 1 => {
                let half = group.iter().copied().filter(|_| rng.below(2) == 0).collect::<Vec<_>>();
                let mut links = Vec::new();
                for &a in &half {
                    links.extend(group.iter().filter(|b| !half.contains(b)).map(|&b| (a, b)));
                }
                log.push(format!("split {half:?} off {group:?}"));
                while !links.is_empty() {
                    let (a, b) = links.swap_remove(rng.below(links.len()));
                    c.cut(a, b);
                    if rng.below(4) == 0 {
                        c.settle();
                    }
                }
            }
            2 => {
                let other = c.reachable(rng.below(count)).iter().map(NodeId::index);
                let mut links = Vec::new();
                for b in other.filter(|b| !group.contains(b)) {
                    links.extend(group.iter().map(|&a| (a, b)));
                }
                log.push(format!("connect {links:?}"));
                while !links.is_empty() {
                    let (a, b) = links.swap_remove(rng.below(links.len()));
                    c.connect(a, b);
                }
            }
            3 if group.len() > 1 => {
                log.push(format!("{} leaves {group:?}", group[0]));
                c.leave(group[0]);
            }
            _ => {
                let candidate = group[rng.below(group.len())];
                let primary = group.iter().any(|&i| c.nodes[i].primary);
                let node = &c.nodes[candidate];
                if node.primary {
                    log.push(format!("demote {candidate}"));
                    c.nodes[candidate].primary = false;
                } else if !primary && node.quorum && node.disk == UpToDate {
                    log.push(format!("promote {candidate}"));
                    c.nodes[candidate].primary = true;
                }
            }
        }
        c.settle();
        for a in 0..count {
            for b in 0..a {
                let both = c.nodes[a].quorum && c.nodes[b].quorum;
                assert!(
                    !both || c.reachable(a).contains(n(b)),
                    "seed {seed} {kinds} {quorum:?}: {b} and {a} both quorate\n{}\n{:?} {:?}",
                    log.join("\n"),
                    c.decide(b),
                    c.decide(a),
                );
            }
        }
    }
}

#[test]
fn disjoint_partitions_are_never_both_quorate() {
    for seed in 0..1500 {
        for kinds in ["DD", "DDt", "DDD", "DDDD", "DDDt", "DDDDt", "DDDDDtt"] {
            wander(seed, kinds, Quorum::Majority, 12);
        }
        wander(seed, "DDD", Quorum::All, 12);
        wander(seed, "DDDDDt", Quorum::Count(4), 12);
    }
}

#[test]
fn diskless_votes_never_restore_quorum() {
    // Without previous quorum, the verdict is the same whatever the diskless nodes do.
    let mut rng = Random(0x5eed);
    for _ in 0..20_000 {
        let disks = [Inconsistent, Outdated, Consistent, UpToDate, DUnknown];
        let mut peers = Vec::new();
        for i in 1..6 {
            let connected = rng.below(2) == 0;
            peers.push(Peer {
                node: n(i),
                connected,
                disk: disks[rng.below(5)],
                intentional_diskless: false,
                exists: true,
                marked_outdated: rng.below(4) == 0,
                allow_remote_read: true,
                tiebreaker: true,
                quorate: rng.below(2) == 0,
                forgetful: rng.below(4) == 0,
            });
        }
        let decide = |peers: &[Peer]| {
            let view = View {
                disk: UpToDate,
                forgetful: false,
                intentional_diskless: false,
                peers,
                members: NodeMask(0b1111),
                had_quorum: false,
                restore_quorum: false,
            };
            let policy = Policy { quorum: Quorum::Majority, minimum_redundancy: Quorum::Off };
            evaluate(&view, policy).real
        };
        let without = decide(&peers);
        for i in 6..9 {
            let disk = if rng.below(2) == 0 { Diskless } else { DUnknown };
            let connected = disk == Diskless;
            let extra =
                Peer { node: n(i), connected, disk, intentional_diskless: true, ..peers[0] };
            peers.push(Peer { marked_outdated: false, ..extra });
        }
        assert_eq!(decide(&peers), without);
    }
}
