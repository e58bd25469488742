//! Options that decide what becomes of data: after a split brain, after an error of a disk, and by
//! how many nodes and disks quorum is counted.

use replication::io::{AdminCommand, IoError};
use sim::disk::Behaviour;
use sim::plan::{Plan, node_id};
use sim::scenario::{broken_rule, scenario};
use sim::{Op, World};
use vocab::options::{
    AfterSb0, AfterSb1, AfterSb2, NetOptions, OnIoError, OnNoDataAccessible, OnNoQuorum, Quorum,
    ResourceOptions,
};
use vocab::{ConnState, DiskState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };
const V0: VolumeNr = VolumeNr(0);

fn tag(w: &World, node: usize, sector: u64) -> u64 {
    w.nodes[node].drive(0).map_or(0, |d| d.disk.tag(sector))
}

fn equal(w: &World, a: usize, b: usize) -> bool {
    let (a, b) = (w.nodes[a].drive(0), w.nodes[b].drive(0));
    a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
}

fn quorate(w: &World, node: usize) -> bool {
    w.view(node).is_some_and(|v| v.volumes[0].quorum)
}

// ---- split brain ----

/// How the two came apart: who was Primary then, and stays it, and how many blocks each wrote.
#[derive(Clone, Copy)]
struct Split {
    primary_before: Option<usize>,
    stays_open: [bool; 2],
    blocks: [u64; 2],
}

const SPLIT: Split = Split { primary_before: None, stays_open: [false; 2], blocks: [2, 5] };

/// What n0 writes begins here, and what n1 writes one block further on.
const FIRST: [u64; 2] = [0, 8];

/// What comes of a split brain.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Outcome {
    Wins(usize),
    Unsolved,
}

fn net(sb0: AfterSb0, sb1: AfterSb1, sb2: AfterSb2) -> NetOptions {
    NetOptions {
        after_sb_0pri: sb0,
        after_sb_1pri: sb1,
        after_sb_2pri: sb2,
        ..Plan::quiet(2, 0).net
    }
}

fn by_0pri(sb0: AfterSb0) -> NetOptions {
    net(sb0, AfterSb1::Disconnect, AfterSb2::Disconnect)
}

fn alone(w: &World, a: usize, b: usize) -> bool {
    w.seen(a).peers[b].as_ref().is_some_and(|p| p.conn == ConnState::StandAlone)
}

/// Two nodes write apart from each other and meet again with these options of their connection.
fn after_split_brain(split: Split, nets: [NetOptions; 2], outcome: Outcome) {
    let mut plan = Plan::quiet(2, 0);
    plan.workload.nodes.clear(); // One side's writes are to be thrown away.
    scenario(plan, |w| {
        w.form();
        for (node, net) in nets.iter().enumerate() {
            let command = AdminCommand::NetOptions(node_id(1 - node), Box::new(net.clone()));
            w.granted(node, command);
        }
        let mut open = [None, None];
        if let Some(node) = split.primary_before {
            open[node] = Some(w.open(node));
            w.write(node, 4096);
        }
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        for node in [0, 1] {
            let opener = open[node].take().unwrap_or_else(|| w.open(node));
            for i in 0..split.blocks[node] {
                w.write(node, FIRST[node] + i * 64);
            }
            if split.stays_open[node] {
                open[node] = Some(opener);
            } else {
                w.close(node, opener);
                w.wait_secondary(node);
            }
        }
        let wrote = [0, 1].map(|n| tag(w, n, FIRST[n]));
        w.heal(0, 1);
        match outcome {
            Outcome::Wins(winner) => {
                w.wait("they are one again", |w| {
                    w.connected(0, 1) && [0, 1].iter().all(|n| w.disk(*n) == DiskState::UpToDate)
                });
                for node in [0, 1] {
                    if let Some(opener) = open[node].take() {
                        w.write(node, 2048);
                        w.close(node, opener);
                    }
                }
                w.settle();
                w.expect("the winner has kept what it wrote, the other one has lost it", |w| {
                    let kept = [0, 1].map(|n| tag(w, winner, FIRST[n]));
                    kept[winner] == wrote[winner] && kept[1 - winner] == 0 && equal(w, 0, 1)
                });
            }
            Outcome::Unsolved => {
                w.wait("both have given up", |w| alone(w, 0, 1) && alone(w, 1, 0));
                w.run_seconds(5);
                w.expect("each has what it wrote, and not more", |w| {
                    [0, 1].iter().all(|n| {
                        tag(w, *n, FIRST[*n]) == wrote[*n] && tag(w, *n, FIRST[1 - *n]) == 0
                    })
                });
            }
        }
    });
}

fn both(net: NetOptions) -> [NetOptions; 2] {
    [net.clone(), net]
}

#[test]
fn after_sb_0pri_decides_between_two_secondaries() {
    let least = by_0pri(AfterSb0::DiscardLeastChanges);
    after_split_brain(SPLIT, both(least.clone()), Outcome::Wins(1));
    after_split_brain(Split { blocks: [5, 2], ..SPLIT }, both(least), Outcome::Wins(0));
    // n0 was Primary when they parted, n1 has become it since.
    let older = Split { primary_before: Some(0), ..SPLIT };
    let younger = by_0pri(AfterSb0::DiscardYoungerPrimary);
    after_split_brain(older, both(younger), Outcome::Wins(0));
    after_split_brain(older, both(by_0pri(AfterSb0::DiscardOlderPrimary)), Outcome::Wins(1));
    let (local, remote) = (by_0pri(AfterSb0::DiscardLocal), by_0pri(AfterSb0::DiscardRemote));
    after_split_brain(SPLIT, [local.clone(), remote.clone()], Outcome::Wins(1));
    after_split_brain(SPLIT, [remote, local], Outcome::Wins(0));
    after_split_brain(SPLIT, both(by_0pri(AfterSb0::Disconnect)), Outcome::Unsolved);
}

#[test]
fn after_sb_0pri_discard_zero_changes_costs_only_who_wrote_nothing() {
    after_split_brain(SPLIT, both(by_0pri(AfterSb0::DiscardZeroChanges)), Outcome::Unsolved);
    let mut plan = Plan::quiet(2, 0);
    plan.net.after_sb_0pri = AfterSb0::DiscardZeroChanges;
    plan.workload.nodes.clear();
    scenario(plan, |w| {
        w.form();
        w.write_after_open(0, 64);
        w.wait_secondary(0);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        // A generation of its own, and nothing in it.
        w.granted(0, AdminCommand::NewCurrentUuid { volume: V0, clear_bitmap: false });
        w.write_after_open(1, 8);
        w.wait_secondary(1);
        w.heal(0, 1);
        w.settle();
        w.expect("n1 has kept what it wrote", |w| tag(w, 0, 8) != 0 && equal(w, 0, 1));
    });
}

#[test]
fn after_sb_1pri_decides_beside_a_primary() {
    let primary = Split { stays_open: [true, false], ..SPLIT };
    let more = Split { blocks: [5, 2], ..primary };
    let least = AfterSb0::DiscardLeastChanges;
    let by = |sb0, sb1| both(net(sb0, sb1, AfterSb2::Disconnect));
    after_split_brain(primary, by(least, AfterSb1::Disconnect), Outcome::Unsolved);
    let secondary = by(AfterSb0::Disconnect, AfterSb1::DiscardSecondary);
    after_split_brain(primary, secondary, Outcome::Wins(0));
    after_split_brain(more, by(least, AfterSb1::Consensus), Outcome::Wins(0));
    after_split_brain(primary, by(least, AfterSb1::Consensus), Outcome::Unsolved);
    after_split_brain(more, by(least, AfterSb1::ViolentlyAs0p), Outcome::Wins(0));
    // It would take the data from under the users of the Primary, which nothing may.
    after_split_brain(primary, by(least, AfterSb1::ViolentlyAs0p), Outcome::Unsolved);
}

#[test]
fn after_sb_2pri_takes_nothing_from_under_users() {
    let two = Split { stays_open: [true, true], ..SPLIT };
    for sb2 in [AfterSb2::Disconnect, AfterSb2::ViolentlyAs0p] {
        let net = net(AfterSb0::DiscardLeastChanges, AfterSb1::Disconnect, sb2);
        after_split_brain(two, both(net), Outcome::Unsolved);
    }
}

/// The two have nothing in common but their history: n0 has started over in between.
fn split_by_history(w: &mut World) {
    w.form();
    w.write_after_open(0, 64);
    w.wait_secondary(0);
    w.cut(0, 1);
    w.wait_lost_all(0, [1]);
    w.write_after_open(0, 0);
    w.wait_secondary(0);
    w.granted(0, AdminCommand::NewCurrentUuid { volume: V0, clear_bitmap: false });
    for i in 0..3 {
        w.write_after_open(1, 8 + i * 64);
        w.wait_secondary(1);
    }
}

#[test]
fn a_split_brain_by_history_is_resolved_by_a_full_sync_case_74() {
    let mut plan = Plan::quiet(2, 0);
    plan.net.after_sb_0pri = AfterSb0::DiscardLeastChanges;
    plan.workload.nodes.clear();
    let all = plan.sectors.div_ceil(8);
    scenario(plan, |w| {
        split_by_history(w);
        w.heal(0, 1);
        w.wait("both have given up", |w| alone(w, 0, 1) && alone(w, 1, 0));
        let peer = node_id(0);
        w.granted(1, AdminCommand::Connect { peer, discard_my_data: true });
        w.connect(0, 1);
        w.wait_disk(1, DiskState::Inconsistent);
        w.expect("everything is copied", |w| w.device(1, 0).out_of_sync > all / 2);
        w.settle();
        w.expect("n0 has won", |w| tag(w, 1, 8) == 0 && tag(w, 1, 0) != 0 && equal(w, 0, 1));
    });
}

#[test]
fn always_asbp_lets_the_policy_decide_by_history_too() {
    for (always, sb0) in [
        (true, AfterSb0::DiscardLocal),
        (true, AfterSb0::DiscardRemote),
        (true, AfterSb0::Disconnect),
        (false, AfterSb0::DiscardLocal),
    ] {
        let mut plan = Plan::quiet(2, 0);
        plan.workload.nodes.clear();
        let net = NetOptions { always_asbp: always, ..by_0pri(sb0) };
        let mirrored = match sb0 {
            AfterSb0::DiscardLocal => AfterSb0::DiscardRemote,
            AfterSb0::DiscardRemote => AfterSb0::DiscardLocal,
            other => other,
        };
        let nets = [net.clone(), NetOptions { after_sb_0pri: mirrored, ..net }];
        scenario(plan, |w| {
            split_by_history(w);
            for (node, net) in nets.iter().enumerate() {
                let command = AdminCommand::NetOptions(node_id(1 - node), Box::new(net.clone()));
                w.granted(node, command);
            }
            w.heal(0, 1);
            if !always || sb0 == AfterSb0::Disconnect {
                w.wait("both have given up", |w| alone(w, 0, 1) && alone(w, 1, 0));
                w.expect("nothing is lost", |w| tag(w, 0, 0) != 0 && tag(w, 1, 8) != 0);
                return;
            }
            let winner = usize::from(sb0 == AfterSb0::DiscardLocal);
            w.settle();
            w.expect("the winner has kept what it wrote", |w| {
                equal(w, 0, 1) && tag(w, 0, FIRST[winner]) != 0 && tag(w, 0, FIRST[1 - winner]) == 0
            });
        });
    }
}

// ---- errors of disks ----

fn behave(w: &mut World, node: usize, behaviour: Behaviour) {
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour = behaviour;
}

/// `on-io-error pass_on`: the disk stays, as a mixture, and what it failed on is known to be
/// missing there. Users are served by the others meanwhile.
#[test]
fn a_disk_that_passes_errors_on_stays_and_is_repaired() {
    for (writes, reconnect) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut plan = Plan::majority(3, 0);
        plan.disk.on_io_error = OnIoError::PassOn;
        plan.workload.nodes = vec![0];
        scenario(plan, |w| {
            w.form();
            let opener = w.open(0);
            for i in 0..4 {
                w.write(0, i * 8);
            }
            let (write_errors, read_errors) = if writes { (100, 0) } else { (0, 100) };
            behave(w, 0, Behaviour { write_errors, read_errors, ..Behaviour::default() });
            for i in 0..4 {
                if writes {
                    w.write(0, i * 8);
                }
                w.read(0, i * 8);
            }
            w.expect("the disk is a mixture", |w| w.disk(0) == DiskState::Inconsistent);
            w.run_seconds(20);
            w.read(0, 0);
            // Whether the disk is any good an operator has to know.
            behave(w, 0, Behaviour::default());
            w.expect("it stays one", |w| w.disk(0) == DiskState::Inconsistent);
            if reconnect {
                w.cut(0, 1);
                w.wait_lost_all(0, [1]);
                w.heal(0, 1);
            } else {
                w.granted(0, AdminCommand::Invalidate { volume: V0, from: None });
            }
            w.wait("the disk is repaired", |w| w.disk(0) == DiskState::UpToDate);
            w.expect("it is as the others", |w| equal(w, 0, 1) && equal(w, 0, 2));
            w.close(0, opener);
            w.settle();
        });
    }
}

/// The same on a Secondary: what it failed to write it does not have, and says so.
#[test]
fn a_secondary_that_passes_errors_on_says_what_it_lacks() {
    let mut plan = Plan::majority(3, 0);
    plan.disk.on_io_error = OnIoError::PassOn;
    plan.workload.nodes = vec![0];
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        behave(w, 1, Behaviour { write_errors: 100, ..Behaviour::default() });
        for i in 0..4 {
            w.write(0, i * 8);
        }
        w.expect("n1 is not current", |w| w.disk(1) != DiskState::UpToDate);
        w.write(0, 64);
        behave(w, 1, Behaviour::default());
        if w.disk(1) == DiskState::Diskless {
            w.attach_again(1);
        }
        w.wait("n1 is repaired", |w| w.connected(0, 1) && w.disk(1) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

// ---- quorum ----

fn quorum_of(nodes: usize, quorum: Quorum, redundancy: Quorum) -> Plan {
    let mut plan = Plan::quiet(nodes, 0);
    plan.resource = ResourceOptions {
        quorum,
        quorum_minimum_redundancy: redundancy,
        on_no_quorum: OnNoQuorum::SuspendIo,
        ..plan.resource
    };
    plan
}

/// So many of so many nodes may be away before I/O is suspended; it goes on when one is back.
fn suspends_when_away(nodes: usize, quorum: Quorum, harmless: usize) {
    scenario(quorum_of(nodes, quorum, Quorum::Off), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        for node in (nodes - harmless)..nodes {
            w.power_loss(node);
            w.wait_lost(0, node);
            w.expect("n0 has quorum", |w| quorate(w, 0));
            w.write(0, 8);
        }
        let last = nodes - harmless - 1;
        w.power_loss(last);
        w.wait_lost(0, last);
        w.expect("n0 has no quorum", |w| !quorate(w, 0) && w.seen(0).suspended.quorum);
        let id = w.start(0, WRITE, 16, 8);
        w.run_seconds(20);
        w.expect("the write waits", |w| !w.is_answered(id));
        w.start_node(last);
        w.finish(id).ok();
        w.expect("n0 has quorum", |w| quorate(w, 0));
        for node in (last + 1)..nodes {
            w.start_node(node);
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn quorum_all_needs_everybody() {
    suspends_when_away(3, Quorum::All, 0);
}

#[test]
fn quorum_of_a_number_needs_so_many() {
    suspends_when_away(4, Quorum::Count(3), 1);
    suspends_when_away(5, Quorum::Count(4), 1);
    suspends_when_away(5, Quorum::Count(3), 2);
}

/// Two of three nodes are there, but only one of them is current: that is one copy too few.
#[test]
fn minimum_redundancy_counts_current_disks_only() {
    for redundancy in [Quorum::Count(2), Quorum::Majority] {
        scenario(quorum_of(3, Quorum::Majority, redundancy), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.kill(1);
            w.wait_lost(0, 1);
            for i in 0..8 {
                w.write(0, i * 8192);
            }
            w.start_node(1);
            w.wait_disk(1, DiskState::Inconsistent);
            for source in [0, 2] {
                let (peer, volume) = (node_id(1), V0);
                w.granted(source, AdminCommand::PauseSync { peer, volume, pause: true });
            }
            w.expect("n1 is not current", |w| w.disk(1) == DiskState::Inconsistent);
            w.kill(2);
            w.wait_lost(0, 2);
            w.expect("n0 may not write", |w| !quorate(w, 0));
            let id = w.start(0, WRITE, 8, 8);
            w.run_seconds(10);
            w.expect("the write waits", |w| !w.is_answered(id));
            let (peer, volume) = (node_id(1), V0);
            w.granted(0, AdminCommand::PauseSync { peer, volume, pause: false });
            w.finish(id).ok();
            w.expect("it has two copies", |w| tag(w, 0, 8) != 0 && tag(w, 0, 8) == tag(w, 1, 8));
            w.start_node(2);
            w.close(0, opener);
            w.settle();
        });
    }
}

/// With `on-no-quorum io-error` it fails instead, and what failed is nowhere a difference.
#[test]
fn too_few_copies_fail_writes_if_it_is_so_configured() {
    let mut plan = quorum_of(3, Quorum::Majority, Quorum::All);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let detach = AdminCommand::Detach { volume: V0, force: false, intentional: false };
        w.refused(2, detach);
        w.kill(2);
        w.wait("n0 may not write", |w| !quorate(w, 0));
        let result = w.request_and_wait(0, WRITE, 8);
        w.expect("it fails", |_| result == Err(IoError::Io));
        w.start_node(2);
        // What failed may have to be brought into line first.
        w.wait("n2 is back", |w| w.connected(0, 2) && w.connected(1, 2));
        w.run_seconds(10);
        w.wait("n0 may write again", |w| {
            quorate(w, 0) && (0..3).all(|n| w.disk(n) == DiskState::UpToDate)
        });
        w.write(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

// ---- many nodes ----

/// As many nodes as there can be, one of them connected to all others: they form, write, lose some,
/// and bring them back. The others are not connected to each other, since each of 496 connections
/// would be one more transaction of them all.
#[test]
fn thirty_two_nodes_write_and_resync() {
    let mut plan = Plan::quiet(32, 0);
    plan.workload.nodes = vec![31];
    for seed in 0..2 {
        let broken = broken_rule(plan.clone(), seed, |w| {
            for a in 0..31 {
                (0..a).for_each(|b| w.cut(a, b));
            }
            w.wait("n31 is connected to all", |w| {
                (0..31).all(|n| w.connected(n, 31) && w.disk(n) == DiskState::Inconsistent)
            });
            w.granted(31, AdminCommand::NewCurrentUuid { volume: V0, clear_bitmap: true });
            let current = |w: &World| (0..32).all(|n| w.disk(n) == DiskState::UpToDate);
            w.wait("all are UpToDate", current);
            let opener = w.open(31);
            for i in 0..4 {
                w.write(31, i * 8192);
            }
            for node in [0, 7, 30] {
                w.kill(node);
                w.wait_lost(31, node);
            }
            for i in 0..4 {
                w.write(31, i * 8192 + 8);
            }
            let lacks = |w: &World, n: usize| !equal(w, n, 31);
            w.expect("three lack it", |w| (0..31).filter(|n| lacks(w, *n)).count() == 3);
            for node in [0, 7, 30] {
                w.start_node(node);
                w.wait_connected(node, 31);
            }
            w.wait("all are UpToDate", current);
            w.expect("all have everything", |w| (0..31).all(|n| !lacks(w, n)));
            w.expect("they were resynced", |w| w.stats.resyncs >= 3);
            w.close(31, opener);
            w.wait_secondary(31);
        });
        assert_eq!(broken, None, "seed {seed}");
    }
}

/// Each connection is a transaction of all who are connected already, and they all begin at once.
#[test]
fn sixteen_nodes_become_a_full_mesh() {
    for seed in 0..2 {
        let broken = broken_rule(Plan::quiet(16, 0), seed, |w| {
            w.wait("all are connected to all", |w| {
                (0..16).all(|a| (0..a).all(|b| w.connected(a, b)))
            });
            w.granted(15, AdminCommand::NewCurrentUuid { volume: V0, clear_bitmap: true });
            w.wait("all are UpToDate", |w| (0..16).all(|n| w.disk(n) == DiskState::UpToDate));
            let opener = w.open(0);
            w.write(0, 8);
            w.expect("all have it", |w| (1..16).all(|n| equal(w, n, 0)));
            w.close(0, opener);
            w.wait_secondary(0);
        });
        assert_eq!(broken, None, "seed {seed}");
    }
}

/// A client has lost the data of one volume, and so waits with a write to the other one, which a disk
/// that is away may lack. Demoted by force it gives the write up: that disk counts as behind first.
#[test]
fn a_forced_demotion_waits_for_no_volume_without_data() {
    let mut plan = Plan::majority(2, 1);
    plan.volumes = 2;
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        let volume = VolumeNr(1);
        w.granted(1, AdminCommand::Detach { volume, force: false, intentional: false });
        w.cut(0, 2);
        let held = w.start(2, WRITE, 8, 8);
        w.wait_lost(2, 0);
        w.run_seconds(2);
        w.expect("the write waits", |w| w.seen(2).suspended.no_data && !w.is_answered(held));
        w.granted(2, AdminCommand::Secondary { force: true });
        w.expect("the write is given up", |w| w.is_answered(held));
        w.finish(held).ok();
        w.close(2, opener);
        w.heal(0, 2);
        w.attach(1, 1);
        w.settle();
    });
}

/// The only disk is lost while it is being read.
#[test]
fn reads_under_way_wait_for_data_as_new_ones_do() {
    let mut plan = Plan::quiet(1, 1);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        w.wait("the client sees the disk", |w| w.device(1, 0).disk == DiskState::UpToDate);
        let opener = w.open(1);
        w.write(1, 0);
        w.cut_one_way(0, 1);
        let read = w.start(1, Op::Read, 0, 8);
        w.reset(0, 1);
        w.wait("the disk is lost", |w| w.seen(1).suspended.no_data);
        w.expect("the read waits", |w| !w.is_answered(read));
        w.heal_one_way(0, 1);
        assert_eq!(w.finish(read), Ok(()));
        w.close(1, opener);
        w.settle();
    });
}
