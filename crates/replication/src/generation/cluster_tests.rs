//! Generations and comparison in a small cluster that writes, splits, merges, restarts and
//! resyncs at random. Contents and bits are kept beside the generations, so that what the
//! comparison concludes can be held against the truth:
//!
//! - equal without resync means equal contents (invariant 17);
//! - the source has nothing older than the target (invariant 20);
//! - the bits, as prepared, cover every difference (invariants 9 and 19);
//! - nodes that follow the rules are never split, unrelated or contradictory.
//!
//! Writes are atomic and need a majority of UpToDate disks around the Primary; what concerns
//! requests in flight and disks behind a neighbour of the Primary is the simulator's business.

use super::compare::{Context, Finding, Side, Strategy};
use super::resolve::{Bits, Local, Outcome, Preparation, resolve};
use super::testing::{CONNECTING, DEFAULTS, Random, n, other_end};
use super::*;
use codec::wire::packet::UuidFlags;
use vocab::{NodeMask, Role};

const BLOCKS: usize = 16;

struct Node {
    gens: Generations,
    /// Blocks that may differ on each other node.
    bits: Vec<u16>,
    /// The write each block holds.
    data: [u32; BLOCKS],
    disk: DiskState,
    primary: bool,
    pending_bump: bool,
    crashed: bool,
    links: NodeMask,
    seen: NodeMask,
}

struct Cluster {
    nodes: Vec<Node>,
    rng: Random,
    writes: u32,
    dagtag: u64,
    log: Vec<String>,
    resyncs: usize,
    resumed: usize,
}

impl Cluster {
    /// All nodes at the same first generation, connected; as after skipping the initial resync.
    fn new(seed: u64, count: usize) -> Cluster {
        let all: NodeMask = (0..count).map(n).collect();
        let node = |i: usize| {
            let mut gens = Generations::JUST_CREATED;
            assert!(gens.skip_initial_sync(GenUuid(0x1000)));
            Node {
                gens,
                bits: vec![0; count],
                data: [0; BLOCKS],
                disk: DiskState::UpToDate,
                primary: false,
                pending_bump: false,
                crashed: false,
                links: all.without(n(i)),
                seen: NodeMask::EMPTY,
            }
        };
        Cluster {
            nodes: (0..count).map(node).collect(),
            rng: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            writes: 0,
            dagtag: 0,
            log: Vec::new(),
            resyncs: 0,
            resumed: 0,
        }
    }

    fn situation(&self, me: usize) -> Situation {
        let mut nodes = [Neighbour::NOBODY; MAX_NODES];
        for (i, other) in self.nodes.iter().enumerate().filter(|(i, _)| *i != me) {
            let connected = self.nodes[me].links.contains(n(i));
            nodes[i] = Neighbour {
                configured: true,
                connected,
                disk: if connected { other.disk } else { DiskState::DUnknown },
                intentional_diskless: false,
                has_slot: true,
            };
        }
        Situation {
            me: n(me),
            primary: self.nodes[me].primary,
            up_to_date: self.nodes[me].disk == DiskState::UpToDate,
            dagtag: vocab::Dagtag(self.dagtag),
            nodes,
            unallocated_slot: true,
        }
    }

    fn fresh(rng: &mut Random) -> impl FnMut() -> u64 + '_ {
        || (rng.below(1 << 30) as u64) << 16 | 0xffe
    }

    fn around(&self, me: usize) -> Vec<usize> {
        self.nodes[me].links.iter().map(NodeId::index).collect()
    }

    fn primary_in_reach(&self, me: usize) -> Option<usize> {
        let mut reach = n(me).mask();
        for _ in 0..self.nodes.len() {
            reach = reach.iter().fold(reach, |m, i| m.or(self.nodes[i.index()].links));
        }
        reach.iter().map(NodeId::index).find(|i| self.nodes[*i].primary)
    }

    /// UpToDate disks here and around, a majority of all.
    fn quorate(&self, me: usize) -> bool {
        let good = |i: &usize| self.nodes[*i].disk == DiskState::UpToDate;
        let votes = self.around(me).iter().filter(|i| good(i)).count() + usize::from(good(&me));
        good(&me) && votes > self.nodes.len() / 2
    }

    fn cut(&mut self, a: usize, b: usize) {
        for (x, y) in [(a, b), (b, a)] {
            let node = &mut self.nodes[x];
            node.pending_bump |= node.primary;
            node.links.remove(n(y));
            node.seen.insert(n(y));
        }
    }

    /// Nodes that hear a Primary's neighbour but not the Primary are cut off: they are outdated
    /// by a transaction in reality.
    fn no_far_nodes(&mut self) {
        for p in (0..self.nodes.len()).filter(|p| self.nodes[*p].primary).collect::<Vec<_>>() {
            for a in self.around(p) {
                for b in self.around(a) {
                    if b != p && !self.nodes[p].links.contains(n(b)) {
                        self.cut(a, b);
                    }
                }
            }
        }
    }

    fn sent_bitmap(&self, i: usize) -> [GenUuid; MAX_NODES] {
        let mut bitmap = [UNKNOWN; MAX_NODES];
        for (slot, node) in bitmap.iter_mut().zip(0..self.nodes.len() + 1) {
            *slot = self.nodes[i].gens.bitmap(n(node)).uuid;
        }
        bitmap
    }

    /// Everybody sends its UUIDs to its neighbours until nothing is learnt any more.
    fn propagate(&mut self) {
        for _ in 0..3 {
            for to in 0..self.nodes.len() {
                for from in self.around(to) {
                    let (bitmap, history) =
                        (self.sent_bitmap(from), *self.nodes[from].gens.history());
                    let peer = PeerGenerations {
                        node: n(from),
                        current: self.nodes[from].gens.current(),
                        bitmap: &bitmap,
                        history: &history,
                        flags: UuidFlags(0),
                    };
                    let situation = self.situation(to);
                    let learned = self.nodes[to].gens.learn(&situation, &peer, NodeMask::EMPTY);
                    for node in learned.in_sync.iter() {
                        self.nodes[to].gens.set_bitmap(node, GenUuid::NONE);
                    }
                    for (m, node) in learned.copies {
                        let base = self.nodes[to].gens.bitmap(m).uuid;
                        self.nodes[to].gens.set_bitmap(node, base);
                        self.nodes[to].bits[node.index()] |= self.nodes[to].bits[m.index()];
                    }
                }
            }
        }
    }

    fn write(&mut self, p: usize) {
        if !self.nodes[p].primary || !self.quorate(p) {
            return;
        }
        if std::mem::take(&mut self.nodes[p].pending_bump) {
            let situation = self.situation(p);
            let fresh = Cluster::fresh(&mut self.rng);
            if let Some(new) = self.nodes[p].gens.bump(&situation, NodeMask::EMPTY, fresh) {
                self.log.push(format!("{p} bumps to {}, behind {:?}", new.current, new.behind));
                let weak = weak_nodes(&situation);
                for q in self.around(p) {
                    let situation = self.situation(q);
                    let fresh = Cluster::fresh(&mut self.rng);
                    self.nodes[q].gens.adopt(new.current, &situation, weak, false, fresh);
                }
                self.propagate();
            }
        }
        let holders = self.nodes[p].links.with(n(p));
        let block = self.rng.below(BLOCKS);
        self.writes += 1;
        self.dagtag += 8;
        self.log.push(format!("{p} writes {} to {block} on {holders:?}", self.writes));
        for holder in holders.iter() {
            let node = &mut self.nodes[holder.index()];
            node.data[block] = self.writes;
            for (i, bits) in node.bits.iter_mut().enumerate() {
                if !holders.contains(n(i)) {
                    *bits |= 1 << block;
                }
            }
        }
    }

    fn side(&self, i: usize, peer: usize) -> Side {
        let node = &self.nodes[i];
        let neighbour_primary = self.around(i).iter().any(|p| self.nodes[*p].primary);
        let role = if node.primary { Role::Primary } else { Role::Secondary };
        let mut side = Side::from_generations(n(i), &node.gens, node.disk, role);
        side.slots = (0..self.nodes.len()).map(n).collect();
        side.dirty_blocks = u64::from(node.bits[peer].count_ones());
        side.flags = UuidFlags(0)
            .with_if(node.primary || !neighbour_primary, UuidFlags::STABLE)
            .with_if(node.seen.contains(n(peer)), UuidFlags::RECONNECT)
            .with_if(node.crashed, UuidFlags::CRASHED_PRIMARY)
            .with_if(node.disk == DiskState::Inconsistent, UuidFlags::INCONSISTENT);
        side
    }

    fn prepare(&mut self, i: usize, preparations: &[Preparation]) {
        let node = &mut self.nodes[i];
        for preparation in preparations {
            match *preparation {
                Preparation::SetAll(to) => node.bits[to.index()] = u16::MAX,
                Preparation::SetAllSlots => node.bits.fill(u16::MAX),
                Preparation::MergeSlot { from, to } => {
                    let bits = node.bits.get(from.index()).copied();
                    node.bits[to.index()] |= bits.expect("only configured nodes have slots");
                }
                Preparation::MergeUnallocated(to) => node.bits[to.index()] = u16::MAX,
                Preparation::SetBitmapUuid(to, uuid) => {
                    node.gens.set_bitmap(to, uuid);
                }
            }
        }
    }

    fn fail(&self, what: &str, a: usize, b: usize) -> ! {
        let show = |i: usize| {
            let node = &self.nodes[i];
            format!(
                "node {i}: {:?} {:?} {:?}\n   {:?}\n   {:04x?} {:?}",
                node.gens.current(),
                &node.gens.bitmaps()[..self.nodes.len()].iter().map(|b| b.uuid).collect::<Vec<_>>(),
                node.disk,
                node.gens.history().iter().filter(|h| !h.is_none()).collect::<Vec<_>>(),
                node.bits,
                node.data,
            )
        };
        panic!("{what}\n{}\n{}\n{}", self.log.join("\n"), show(a), show(b));
    }

    fn connect(&mut self, a: usize, b: usize) {
        if self.nodes[a].links.contains(n(b)) {
            return;
        }
        if let (Some(x), Some(y)) = (self.primary_in_reach(a), self.primary_in_reach(b))
            && x != y
        {
            // Two Primaries do not connect: the frozen one is demoted by force.
            let loser = if self.quorate(x) { y } else { x };
            self.demote(loser);
        }
        let tie = self.rng.chance(2);
        let context = Context { tie_break: tie, ..CONNECTING };
        let (mine, theirs) = (self.side(a, b), self.side(b, a));
        let local = |i: usize| Local {
            unallocated_slot: true,
            syncing_elsewhere: false,
            worn: self.nodes[i].gens.worn(),
        };
        let here = resolve(&context, &DEFAULTS, &local(a), &mine, &theirs);
        let there = resolve(&other_end(&context), &DEFAULTS, &local(b), &theirs, &mine);
        self.log.push(format!("{a}-{b}: {} -> {:?}", here.verdict, here.outcome));
        match here.verdict.finding {
            Finding::Contradiction | Finding::Unrelated | Finding::SplitBrain { .. } => {
                self.fail("nobody wrote without quorum", a, b)
            }
            _ => {}
        }
        match (here.outcome, there.outcome) {
            (Outcome::Refuse(_), _) | (_, Outcome::Refuse(_)) => {
                // A frozen Primary that meets newer data gives in.
                for i in [a, b] {
                    self.demote(i);
                }
            }
            (Outcome::Retry(_), _) | (_, Outcome::Retry(_)) => {
                self.prepare(a, &here.preparations);
                self.prepare(b, &there.preparations);
                self.propagate();
            }
            (Outcome::NoSync(x), Outcome::NoSync(y)) => {
                assert_eq!(x, y);
                self.prepare(a, &here.preparations);
                self.prepare(b, &there.preparations);
                self.establish(a, b, x);
            }
            (Outcome::Source(strategy), _) => {
                self.prepare(a, &here.preparations);
                self.prepare(b, &there.preparations);
                self.resync(a, b, strategy);
            }
            (_, Outcome::Source(strategy)) => {
                self.prepare(a, &here.preparations);
                self.prepare(b, &there.preparations);
                self.resync(b, a, strategy);
            }
            outcome => panic!("{outcome:?}"),
        }
        self.no_far_nodes();
        self.nodes.iter().for_each(|node| node.gens.invariants());
    }

    fn establish(&mut self, a: usize, b: usize, bits: Bits) {
        let comparable = self.nodes[a].disk != DiskState::Inconsistent;
        if bits == Bits::Clear && comparable && self.nodes[a].data != self.nodes[b].data {
            self.fail("equal generations, different contents", a, b);
        }
        for (x, y) in [(a, b), (b, a)] {
            if bits == Bits::Clear {
                self.nodes[x].gens.set_bitmap(n(y), GenUuid::NONE);
                self.nodes[x].bits[y] = 0;
            }
            self.nodes[x].links.insert(n(y));
        }
        let good = |c: &Cluster, i: usize| c.nodes[i].disk == DiskState::UpToDate;
        if good(self, a) && good(self, b) {
            self.nodes[a].crashed = false;
            self.nodes[b].crashed = false;
        }
        self.propagate();
    }

    fn resync(&mut self, source: usize, target: usize, strategy: Strategy) {
        let primary = self.primary_in_reach(source);
        let unstable = !self.nodes[source].primary
            && self.around(source).iter().any(|p| self.nodes[*p].primary)
            && !primary.is_some_and(|p| self.nodes[target].links.contains(n(p)));
        if unstable {
            // It would end without any upgrade; left out.
            return;
        }
        let both = self.nodes[source].bits[target] | self.nodes[target].bits[source];
        let (s, t) = (self.nodes[source].data, self.nodes[target].data);
        for block in 0..BLOCKS {
            // An Inconsistent target may have newer blocks, from a resync with someone newer.
            let consistent = self.nodes[target].disk != DiskState::Inconsistent;
            if consistent && s[block] < t[block] {
                self.fail("the source is older than the target", source, target);
            }
            if s[block] != t[block] && both & 1 << block == 0 {
                self.fail("a difference without a bit", source, target);
            }
        }
        // Neighbours of the target that are not where the source is would have to be compared
        // with again; they are cut off instead.
        let goal = self.nodes[source].gens.current();
        for other in self.around(target) {
            if !self.nodes[other].gens.current().same(goal) {
                self.cut(target, other);
            }
        }
        self.resyncs += 1;
        self.resumed += usize::from(self.nodes[target].disk == DiskState::Inconsistent);
        for (x, y) in [(source, target), (target, source)] {
            self.nodes[x].bits[y] = both;
            self.nodes[x].links.insert(n(y));
        }
        self.nodes[target].disk = DiskState::Inconsistent;
        let situation = self.situation(target);
        let base = self.nodes[source].gens.bitmap(n(target)).uuid;
        let fresh = Cluster::fresh(&mut self.rng);
        let start = self.nodes[target].gens.start_target(&situation, base, fresh);

        let all = !self.rng.chance(4);
        for (block, content) in s.into_iter().enumerate() {
            if both & 1 << block == 0 || !(all || self.rng.chance(2)) {
                continue;
            }
            self.nodes[target].data[block] = content;
            for (i, bits) in self.nodes[target].bits.iter_mut().enumerate() {
                *bits = if i == source { *bits & !(1 << block) } else { *bits | 1 << block };
            }
            self.nodes[source].bits[target] &= !(1 << block);
            self.nodes[source].gens.bits_cleared(n(target));
        }
        if !all {
            self.log.push(format!("resync {source}->{target} ({strategy:?}) is interrupted"));
            for other in self.around(target) {
                self.cut(target, other);
            }
            return;
        }
        let (bitmap, history) = (self.sent_bitmap(source), *self.nodes[source].gens.history());
        let peer = PeerGenerations {
            node: n(source),
            current: self.nodes[source].gens.current(),
            bitmap: &bitmap,
            history: &history,
            flags: UuidFlags(0),
        };
        let mut currents = [GenUuid::NONE; MAX_NODES];
        for other in self.around(target) {
            currents[other] = self.nodes[other].gens.current();
        }
        let begun = start.start;
        let past = |other: &usize| {
            let gens = &self.nodes[*other].gens;
            is_generation(begun) && gens.has_passed(begun)
        };
        let ahead = self.around(target).into_iter().filter(past).map(n).collect();
        let situation = self.situation(target);
        let finish =
            self.nodes[target].gens.finish_target(&situation, start.start, &peer, &currents, ahead);
        if finish.settled.contains(peer.node) {
            self.nodes[target].bits[peer.node.index()] = 0;
        }
        self.nodes[target].disk = self.nodes[source].disk;
        // The end may not be heard at the source.
        if self.rng.chance(6) {
            self.log.push(format!("{source} misses the end of its resync to {target}"));
            self.cut(source, target);
            return;
        }
        let (bitmap, history) = (self.sent_bitmap(target), *self.nodes[target].gens.history());
        let answer = PeerGenerations {
            node: n(target),
            current: self.nodes[target].gens.current(),
            bitmap: &bitmap,
            history: &history,
            flags: UuidFlags(0),
        };
        assert!(self.nodes[source].gens.finished_by(&self.situation(source), &answer));
        self.nodes[source].gens.set_bitmap(n(target), GenUuid::NONE);
        self.nodes[source].bits[target] = 0;
        self.nodes[source].crashed = false;
        self.nodes[target].crashed = false;
        if self.nodes[source].data != self.nodes[target].data {
            self.fail("different contents after a resync", source, target);
        }
        self.propagate();
    }

    fn demote(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        (node.primary, node.pending_bump) = (false, false);
        node.gens.demote();
    }

    fn step(&mut self) {
        let count = self.nodes.len();
        let (a, b) = (self.rng.below(count), self.rng.below(count));
        match self.rng.below(16) {
            0 | 1 if self.nodes[a].links.contains(n(b)) => {
                self.log.push(format!("cut {a}-{b}"));
                self.cut(a, b);
                self.no_far_nodes();
            }
            2..=6 if a != b => self.connect(a, b),
            7 => {
                let restart = self.rng.chance(2);
                self.log.push(format!("{a} leaves, restart {restart}"));
                for b in self.around(a) {
                    self.cut(a, b);
                }
                if restart {
                    self.nodes[a].seen = NodeMask::EMPTY;
                    self.nodes[a].crashed |= self.nodes[a].primary;
                    let current = self.nodes[a].gens.current();
                    let restored = Generations::from_metadata(
                        current,
                        *self.nodes[a].gens.bitmaps(),
                        *self.nodes[a].gens.history(),
                    );
                    assert_eq!(restored.current(), self.nodes[a].gens.current());
                    assert_eq!(restored.history(), self.nodes[a].gens.history());
                    self.nodes[a].gens = restored;
                    (self.nodes[a].primary, self.nodes[a].pending_bump) = (false, false);
                }
            }
            8 | 9 if self.primary_in_reach(a).is_none() && self.quorate(a) => {
                self.log.push(format!("promote {a}"));
                (self.nodes[a].primary, self.nodes[a].pending_bump) = (true, true);
                self.no_far_nodes();
            }
            10 if self.nodes[a].primary => {
                self.log.push(format!("demote {a}"));
                self.demote(a);
            }
            _ => self.write(a),
        }
    }
}

#[test]
fn comparison_agrees_with_the_contents_of_the_disks() {
    let (mut resyncs, mut resumed) = (0, 0);
    for seed in 0..400 {
        for count in [2, 3, 4, 5] {
            let mut cluster = Cluster::new(seed, count);
            cluster.log.push(format!("seed {seed}, {count} nodes"));
            (0..300).for_each(|_| cluster.step());
            resyncs += cluster.resyncs;
            resumed += cluster.resumed;
        }
    }
    assert!(resyncs > 10_000 && resumed > 1_000);
}
