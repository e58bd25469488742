//! Volumes from their creation to their end, on real nodes over the real link: agents and the
//! controller come and go in between.

use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::control_support::{Cluster, MIB, PATIENCE, node, pool, rd};
use crate::engine_support::nbd::Client;
use crate::engine_support::pattern;
use api::link::Order;
use cluster::change::Object;
use cluster::command::{Command, NewDefinition, NewVolumeDefinition};
use cluster::name::SnapshotName;
use cluster::objects::{Millis, Props, Provider, RollbackPhase};
use cluster::observed::SuspensionState;
use cluster::plan::Action;
use cluster::props::PropsEdit;
use vocab::{Bytes, VolumeNr};

const NODES: [&str; 3] = ["alpha", "bravo", "charlie"];

fn delete(cluster: &mut Cluster, name: &str) {
    cluster.wait(&format!("{name} is closed"), |c| {
        c.observed.replicas(&rd(name)).all(|(_, replica)| replica.in_use.is_none())
    });
    cluster.command(Command::DeleteDefinition { name: rd(name) });
    cluster.wait(&format!("{name} is gone"), |c| c.model.definition(&rd(name)).is_none());
}

fn grow(size: u64) -> Command {
    Command::ModifyVolumeDefinition {
        name: rd("web"),
        number: 0,
        size: Some(size),
        props: PropsEdit::default(),
        gross_size: None,
    }
}

fn assert_no_files(cluster: &Cluster) {
    for name in NODES {
        assert_eq!(cluster.pools.files(name), Vec::<String>::new(), "left on {name}");
    }
}

#[test]
fn a_volume_lives_from_its_creation_to_its_end() {
    let mut cluster = Cluster::up(&NODES);
    cluster.define("web", 64 * MIB);
    cluster.place("web", &NODES);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (first, second) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(0, &first).unwrap();
    client.write(40 * MIB, &second).unwrap();
    cluster.wait("it is in use", |c| c.replica("web", "alpha").unwrap().in_use.is_some());
    for name in NODES {
        assert!(cluster.content("web", name, MIB) == first, "{name} has what was written");
    }

    // A replica goes while the volume is in use, and another comes: with its agent killed.
    let keep_tie_breaker = false;
    cluster.command(Command::DeleteResource {
        name: rd("web"),
        node: node("charlie"),
        keep_tie_breaker,
    });
    cluster.node("bravo").kill_agent();
    cluster.node("bravo").start_agent();
    cluster.wait("charlie has no replica", |c| c.pools.files("charlie").is_empty());
    cluster.wait_settled("web");
    client.write(8 * MIB, &second).unwrap();
    match cluster.model.resource(&rd("web"), &node("charlie")).is_some() {
        true => cluster.command(Command::ToggleDisk {
            name: rd("web"),
            node: node("charlie"),
            diskful: true,
            pool: Some(pool()),
            migrate_from: None,
            client: false,
        }),
        false => cluster.place("web", &["charlie"]),
    }
    cluster.turn();
    cluster.node("charlie").kill_agent();
    cluster.node("charlie").start_agent();
    cluster.wait_settled("web");
    cluster.wait("charlie has a disk", |c| !c.pools.files("charlie").is_empty());
    cluster.wait_settled("web");
    assert!(cluster.content("web", "charlie", 9 * MIB)[8 * MIB as usize..] == second);

    // It grows under its user, while agents are killed at whatever they do then.
    cluster.command(grow(96 * MIB));
    for name in ["bravo", "alpha", "charlie", "bravo"] {
        cluster.turn();
        cluster.node(name).kill_agent();
        cluster.node(name).start_agent();
    }
    client.write(16 * MIB, &first).unwrap();
    cluster.wait("it has grown", |c| NODES.iter().all(|n| c.size("web", n) >= 96 * MIB));
    cluster.wait_settled("web");
    client.write(24 * MIB, &first).unwrap();
    client.close();
    let mut client = Client::open(&socket, "web/0").unwrap();
    assert!(client.size >= 96 * MIB, "who opens it sees the new size");
    for (at, expected) in [(0, &first), (8, &second), (16, &first), (24, &first), (40, &second)] {
        assert!(client.read(at * MIB, MIB as usize).unwrap() == *expected, "{at}");
    }
    client.write(95 * MIB, &second).unwrap();
    for name in NODES {
        assert!(cluster.content("web", name, 96 * MIB)[95 * MIB as usize..] == second, "{name}");
    }
    client.close();

    delete(&mut cluster, "web");
    assert_no_files(&cluster);
    for node in &cluster.nodes {
        assert_eq!(node.ok(&["status", "--json"]).trim(), "[]", "{}", node.name);
    }
}

/// KiB that a node has received from its peers since it is up.
fn received(cluster: &mut Cluster, on: &str) -> u64 {
    let status = cluster.node(on).ok(&["status", "web", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let peers = status[0]["connections"].as_array().unwrap();
    let devices = peers.iter().flat_map(|peer| peer["peer_devices"].as_array().unwrap());
    devices.map(|device| device["received"].as_u64().unwrap()).sum()
}

/// A second volume comes while the first one is written, on one node after another, the last of them long
/// after the others: nobody disconnects for it, and no write fails.
#[test]
fn a_volume_is_added_while_another_one_of_the_resource_is_written() {
    let mut cluster = Cluster::up(&NODES);
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    assert!(cluster.model.resource(&rd("web"), &node("charlie")).unwrap().is_tie_breaker());
    let socket = cluster.node("alpha").export("web");
    let connects = |cluster: &mut Cluster| {
        let logs = NODES.map(|name| cluster.node(name).directory.join("engine.log"));
        let log: String = logs.map(|log| std::fs::read_to_string(log).unwrap()).concat();
        log.lines().filter(|line| line.contains("web: connected to")).count()
    };
    let before = connects(&mut cluster);
    assert!(before >= 6, "{before}");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (socket, stop, count) = (&socket, &stop, &count);
        let writer = scope.spawn(move || {
            let mut client = Client::open(socket, "web/0").unwrap();
            while !stop.load(Ordering::Relaxed) {
                let next = count.load(Ordering::Relaxed);
                client.write(next % 8192 * 4096, &[next.to_be_bytes(); 512].concat()).unwrap();
                count.store(next + 1, Ordering::Relaxed);
            }
            client.close();
        });
        let goes_on = |cluster: &mut Cluster| {
            let from = count.load(Ordering::Relaxed);
            cluster.wait("writes go on", |_| count.load(Ordering::Relaxed) > from + 100);
        };
        goes_on(&mut cluster);
        cluster.node("bravo").kill_agent();
        let volume = NewVolumeDefinition { size: Bytes(32 * MIB), ..Default::default() };
        cluster.command(Command::CreateVolumeDefinition { name: rd("web"), volume });
        cluster.wait("two nodes have it", |c| {
            ["alpha", "charlie"].iter().all(|name| {
                let replica = c.replica("web", name).unwrap();
                replica.volumes.get(&VolumeNr(1)).is_some_and(|volume| volume.disk.is_some())
            })
        });
        goes_on(&mut cluster);
        cluster.node("bravo").start_agent();
        cluster.wait_settled("web");
        goes_on(&mut cluster);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    assert_eq!(connects(&mut cluster), before, "nobody connected anew");
    let socket = cluster.node("alpha").directory.join("second.nbd");
    cluster.node("alpha").ok(&["export", "web/1", "--listen", &socket.display().to_string()]);
    let mut client = Client::open(&socket, "web/1").unwrap();
    client.write(0, &pattern(7, MIB as usize)).unwrap();
    client.close();
    for name in ["alpha", "bravo"] {
        let content = std::fs::read(cluster.pools.of(name).join("web_00001.img")).unwrap();
        assert!(content[..MIB as usize] == pattern(7, MIB as usize), "{name} has what was written");
    }
    delete(&mut cluster, "web");
    assert_no_files(&cluster);
}

#[test]
fn a_replica_that_was_deactivated_stays_down_and_gets_what_it_has_missed() {
    let mut cluster = Cluster::up(&NODES);
    cluster.define("web", 64 * MIB);
    cluster.place("web", &NODES);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (first, second) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    for at in 0..32 {
        client.write(at * MIB, &first).unwrap();
    }
    cluster.wait("it is in use", |c| c.replica("web", "alpha").unwrap().in_use.is_some());
    let on_bravo = || (rd("web"), node("bravo"));

    // Its peer has it open, and goes on. Whatever is restarted, it stays down.
    let (name, on) = on_bravo();
    cluster.command(Command::DeactivateResource { name, node: on });
    cluster.wait("bravo is down", |c| c.replica("web", "bravo").is_some_and(|r| !r.up));
    cluster.wait_settled("web");
    cluster.node("bravo").kill_agent();
    cluster.node("bravo").kill_engine();
    cluster.node("bravo").start_engine();
    cluster.node("bravo").start_agent();
    cluster.wait_settled("web");
    assert_eq!(cluster.node("bravo").ok(&["status", "--json"]).trim(), "[]");
    client.write(20 * MIB, &second).unwrap();
    assert!(cluster.content("web", "charlie", 21 * MIB)[20 * MIB as usize..] == second);
    let before = cluster.content("web", "bravo", 21 * MIB);
    assert!(before[20 * MIB as usize..] == first, "it has what it had");

    // A peer leaves meanwhile, and the one that is left needs nobody to write.
    let keep_tie_breaker = false;
    let (name, on) = (rd("web"), node("charlie"));
    cluster.command(Command::DeleteResource { name, node: on, keep_tie_breaker });
    cluster.wait("charlie has no replica", |c| {
        c.model.resource(&rd("web"), &node("charlie")).is_none()
    });
    cluster.wait_settled("web");
    client.write(40 * MIB, &second).unwrap();

    let (name, on) = on_bravo();
    cluster.command(Command::ActivateResource { name, node: on });
    // Votes change only when it is there: nobody who writes meanwhile loses quorum.
    let mut writes = 0;
    cluster.wait("bravo is back, under writes", |c| {
        client.write(41 * MIB, &second).unwrap();
        writes += 1;
        c.is_settled("web")
    });
    let content = cluster.content("web", "bravo", 42 * MIB);
    for (at, expected) in [(0, &first), (20, &second), (21, &first), (40, &second), (41, &second)] {
        let at = at * MIB as usize;
        assert!(content[at..at + MIB as usize] == **expected, "at {at}");
    }
    // What it missed, twice at most, and what was written since; not the 32 MiB that it had.
    let received = received(&mut cluster, "bravo");
    assert!(received < (8 + writes) * 1024, "{received} KiB, after {writes} writes of 1 MiB");
    client.close();

    // An inactive one can be deleted.
    cluster.wait_settled("web");
    let (name, on) = on_bravo();
    cluster.command(Command::DeactivateResource { name, node: on });
    cluster.wait_settled("web");
    let (name, on) = on_bravo();
    cluster.command(Command::DeleteResource { name, node: on, keep_tie_breaker });
    cluster.wait("bravo has no disk", |c| c.pools.files("bravo").is_empty());
    cluster.wait_settled("web");
    delete(&mut cluster, "web");
    assert_no_files(&cluster);
}

#[test]
fn a_node_that_crashes_between_the_growth_of_its_pool_and_that_of_the_device_has_its_disk() {
    let mut cluster = Cluster::up(&NODES);
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    // A node without disk uses it.
    cluster.command(Command::MakeAvailable {
        name: rd("web"),
        node: node("charlie"),
        diskful: false,
    });
    cluster.wait_settled("web");
    let socket = cluster.node("charlie").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (first, second) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(0, &first).unwrap();
    // The volume of alpha grows, that of bravo does not yet, and alpha goes.
    let (size, action) =
        (Bytes(96 * MIB + 64 * 1024), |size| Action::GrowVolume { volume: 0, size });
    let (generation, resource) = (cluster.generation(), rd("web"));
    let order = Order::Step { resource, generation, action: action(size) };
    cluster.send(&node("alpha"), order);
    cluster.wait("alpha has more room", |c| c.backing("web", "alpha") >= size.0);
    cluster.node("alpha").kill_agent();
    cluster.node("alpha").kill_engine();
    cluster.wait("alpha is away", |c| !c.observed.is_connected(&node("alpha")));
    client.write(8 * MIB, &second).unwrap();
    cluster.node("alpha").start_engine();
    let status = cluster.node("alpha").ok(&["status", "web"]);
    assert!(
        status.contains("disk:Diskless"),
        "its metadata are not where the engine looks: {status}"
    );
    cluster.node("alpha").start_agent();
    // Its agent attaches the disk by itself, before the controller hears of it.
    cluster.wait("alpha is back", |c| c.observed.is_connected(&node("alpha")));
    cluster.wait("alpha has what was written", |c| {
        c.content("web", "alpha", 9 * MIB)[8 * MIB as usize..] == second
    });
    cluster.wait_settled("web");
    cluster.command(grow(96 * MIB));
    cluster.wait("it has grown", |c| NODES.iter().all(|n| c.size("web", n) >= 96 * MIB));
    cluster.wait_settled("web");
    client.close();
    let mut client = Client::open(&socket, "web/0").unwrap();
    assert!(client.size >= 96 * MIB, "a node without disk knows the new size");
    client.write(95 * MIB, &second).unwrap();
    client.close();
    cluster.wait_settled("web");
    for name in ["alpha", "bravo"] {
        let content = cluster.content("web", name, 96 * MIB);
        assert!(
            content[..MIB as usize] == first && content[95 * MIB as usize..] == second,
            "{name}"
        );
    }
    delete(&mut cluster, "web");
    assert_no_files(&cluster);
}

#[test]
fn a_snapshot_of_a_volume_in_use_is_of_one_moment_and_becomes_a_volume() {
    let mut cluster = Cluster::up(&NODES);
    if !cluster.pools.has_snapshots {
        return;
    }
    cluster.define("web", 64 * MIB);
    cluster.place("web", &NODES);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let stop = AtomicBool::new(false);
    let snapshot = SnapshotName::new("monday").unwrap();
    std::thread::scope(|scope| {
        // Counts up, block after block: of one moment is what has no hole.
        let (socket, stop) = (&socket, &stop);
        let writer = scope.spawn(move || {
            let mut client = Client::open(socket, "web/0").unwrap();
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                client.write(count % 8192 * 4096, &[count.to_be_bytes(); 512].concat()).unwrap();
                count += 1;
            }
            client.close();
            count
        });
        cluster.wait("it is in use", |c| c.replica("web", "alpha").unwrap().in_use.is_some());
        let snapshots = vec![(rd("web"), snapshot.clone(), vec![])];
        cluster.command(Command::CreateSnapshots { snapshots, props: Props::new() });
        cluster.wait("the snapshot is complete", |c| {
            c.model.snapshot(&rd("web"), &snapshot).is_some_and(|s| s.is_successful())
        });
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0, "it went on");
    });
    let taken = |cluster: &Cluster, name: &str| {
        let path = cluster.pools.of(name).join("web_00000_monday.img");
        std::fs::read(path).unwrap()[..32 * MIB as usize].to_vec()
    };
    let one = taken(&cluster, "alpha");
    let numbers: Vec<u64> =
        one.chunks(4096).map(|b| u64::from_be_bytes(b[..8].try_into().unwrap())).collect();
    let newest = *numbers.iter().max().unwrap();
    for (at, number) in (0u64..).zip(&numbers) {
        let expected = newest.checked_sub(at).map_or(0, |behind| at + behind / 8192 * 8192);
        assert_eq!(*number, expected, "block {at} of a newest of {newest}");
    }
    assert!(
        one == taken(&cluster, "bravo") && one == taken(&cluster, "charlie"),
        "all nodes have the same"
    );

    let definition = NewDefinition { name: Some(rd("copy")), ..NewDefinition::default() };
    cluster.command(Command::CreateDefinition { definition });
    let (name, to) = (rd("web"), rd("copy"));
    cluster.command(Command::RestoreVolumeDefinitions {
        name: name.clone(),
        snapshot: snapshot.clone(),
        to: to.clone(),
    });
    let (nodes, pools) = (vec![], Default::default());
    let snapshot_there = snapshot.clone();
    cluster.command(Command::RestoreResources { name, snapshot: snapshot_there, to, nodes, pools });
    cluster.wait_settled("copy");
    let copy = cluster.node("charlie").export("copy");
    let mut client = Client::open(&copy, "copy/0").unwrap();
    for (at, number) in (0u64..).zip(&numbers).step_by(97) {
        let read = client.read(at * 4096, 4096).unwrap();
        assert_eq!(u64::from_be_bytes(read[..8].try_into().unwrap()), *number, "block {at}");
    }
    client.write(0, &pattern(3, 4096)).unwrap();
    client.close();
    assert!(taken(&cluster, "alpha") == one, "the snapshot is as it was");

    let name = rd("web");
    cluster.command(Command::DeleteSnapshot { name, snapshot: snapshot.clone(), nodes: vec![] });
    cluster.wait("the snapshot is gone", |c| c.model.snapshot(&rd("web"), &snapshot).is_none());
    delete(&mut cluster, "web");
    delete(&mut cluster, "copy");
    assert_no_files(&cluster);
}

#[test]
fn a_resource_goes_back_to_a_snapshot_on_every_node_whoever_is_killed_meanwhile() {
    let mut cluster = Cluster::up(&NODES);
    if !cluster.pools.has_snapshots {
        return;
    }
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (old, new) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(0, &old).unwrap();
    client.write(40 * MIB, &old).unwrap();
    cluster.wait("it is in use", |c| c.replica("web", "alpha").unwrap().in_use.is_some());
    let snapshot = SnapshotName::new("monday").unwrap();
    let snapshots = vec![(rd("web"), snapshot.clone(), vec![])];
    cluster.command(Command::CreateSnapshots { snapshots, props: Props::new() });
    cluster.wait("the snapshot is complete", |c| {
        c.model.snapshot(&rd("web"), &snapshot).is_some_and(|s| s.is_successful())
    });
    // Since then a third replica has come, that never had the snapshot, and much was written.
    cluster.command(Command::MakeAvailable {
        name: rd("web"),
        node: node("charlie"),
        diskful: true,
    });
    client.write(0, &new).unwrap();
    client.write(20 * MIB, &new).unwrap();
    cluster.wait_settled("web");
    assert!(cluster.content("web", "charlie", MIB) == new);
    client.close();
    cluster.wait("it is closed", |c| c.replica("web", "alpha").unwrap().in_use.is_none());

    let name = rd("web");
    cluster.command(Command::RollBack { name, snapshot: snapshot.clone() });
    for name in ["charlie", "alpha", "bravo", "alpha", "charlie", "bravo"] {
        cluster.turn();
        cluster.node(name).kill_agent();
        cluster.node(name).start_agent();
    }
    let ended = |c: &Cluster| c.model.definition(&rd("web")).unwrap().rolling_back().is_none();
    cluster.wait("the rollback has ended", ended);
    let phase =
        |c: &Cluster| c.model.definition(&rd("web")).unwrap().rollback.clone().unwrap().phase;
    // With an agent away before anything was changed it is given up, and all is as it was.
    if matches!(phase(&cluster), RollbackPhase::GivenUp(_)) {
        println!("given up: {:?}", phase(&cluster));
        cluster.wait_settled("web");
        assert!(cluster.content("web", "bravo", MIB) == new);
        let name = rd("web");
        cluster.command(Command::RollBack { name, snapshot: snapshot.clone() });
        cluster.wait("the rollback has ended", ended);
    }
    assert_eq!(phase(&cluster), RollbackPhase::Done);
    cluster.wait_settled("web");
    for name in NODES {
        assert!(cluster.content("web", name, MIB) == old, "{name} has what was there then");
    }
    let mut client = Client::open(&socket, "web/0").unwrap();
    for (at, expected) in [(0, &old), (20, &vec![0; MIB as usize]), (40, &old)] {
        assert!(client.read(at * MIB, MIB as usize).unwrap() == *expected, "{at}: served again");
    }
    client.write(20 * MIB, &new).unwrap();
    for name in NODES {
        assert!(cluster.content("web", name, 21 * MIB)[20 * MIB as usize..] == new, "{name}");
    }
    client.close();
    let name = rd("web");
    cluster.command(Command::DeleteSnapshot { name, snapshot: snapshot.clone(), nodes: vec![] });
    cluster.wait("the snapshot is gone", |c| c.model.snapshot(&rd("web"), &snapshot).is_none());
    delete(&mut cluster, "web");
    assert_no_files(&cluster);
}

#[test]
fn all_nodes_go_back_to_what_they_had_if_one_can_not_take_on_a_snapshot() {
    let mut cluster = Cluster::up(&NODES[..2]);
    if !cluster.pools.has_snapshots {
        return;
    }
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (old, new) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(0, &old).unwrap();
    let snapshot = SnapshotName::new("monday").unwrap();
    let snapshots = vec![(rd("web"), snapshot.clone(), vec![])];
    cluster.command(Command::CreateSnapshots { snapshots, props: Props::new() });
    cluster.wait("the snapshot is complete", |c| {
        c.model.snapshot(&rd("web"), &snapshot).is_some_and(|s| s.is_successful())
    });
    client.write(0, &new).unwrap();
    client.close();
    cluster.wait("it is closed", |c| c.replica("web", "alpha").unwrap().in_use.is_none());
    // Somebody has taken bravo's part of the snapshot away.
    let files = cluster.pools.files("bravo");
    let part = files.iter().find(|file| file.contains("monday")).unwrap();
    std::fs::remove_file(cluster.pools.of("bravo").join(part)).unwrap();

    let (name, monday) = (rd("web"), snapshot.clone());
    cluster.command(Command::RollBack { name, snapshot: monday });
    let changed = |c: &Cluster, node: &str| {
        c.replica("web", node).and_then(|replica| replica.rollback).is_some_and(|r| r.changed)
    };
    cluster.wait("alpha has the snapshot's data", |c| changed(c, "alpha"));
    assert!(cluster.content("web", "alpha", MIB) == old);
    cluster.wait("bravo could not", |c| c.failures.iter().any(|f| f.order.contains("roll back")));
    // Five minutes pass, in which it was connected.
    cluster.observed.nodes.get_mut(&node("bravo")).unwrap().since = Millis(0);
    let mut definition = cluster.model.definition(&rd("web")).unwrap().clone();
    definition.rollback.as_mut().unwrap().since = Millis(0);
    cluster.model.put(Object::Definition(definition));
    cluster.wait("the rollback has ended", |c: &Cluster| {
        c.model.definition(&rd("web")).unwrap().rolling_back().is_none()
    });
    let phase = cluster.model.definition(&rd("web")).unwrap().rollback.clone().unwrap().phase;
    assert!(matches!(&phase, RollbackPhase::GivenUp(why) if why.contains("bravo")), "{phase:?}");
    cluster.wait_settled("web");
    assert_eq!(cluster.model.snapshots_of(&rd("web")).count(), 1, "what was kept is gone");
    let mut client = Client::open(&socket, "web/0").unwrap();
    assert!(client.read(0, MIB as usize).unwrap() == new, "served again, as it was");
    client.close();
    for name in &NODES[..2] {
        assert!(cluster.content("web", name, MIB) == new, "{name} has what it had");
        let left = cluster.pools.files(name);
        assert!(!left.iter().any(|file| file.contains("safety")), "{name}: {left:?}");
    }
}

#[test]
fn a_clone_of_a_volume_in_use_has_its_data_and_goes_its_own_way() {
    let mut cluster = Cluster::up(&NODES);
    if !cluster.pools.has_snapshots {
        return;
    }
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (first, second) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(8 * MIB, &first).unwrap();
    cluster.wait("it is in use", |c| c.replica("web", "alpha").unwrap().in_use.is_some());
    let to = NewDefinition { name: Some(rd("copy")), ..NewDefinition::default() };
    let (name, props) = (rd("web"), PropsEdit::default());
    cluster.command(Command::CloneDefinition { name, to, props });
    cluster.wait("the clone is complete", |c| {
        c.model.definition(&rd("copy")).is_some_and(|found| found.flags.is_empty())
    });
    cluster.wait_settled("copy");
    cluster.wait("its snapshot is gone", |c| c.model.snapshots().next().is_none());
    client.write(8 * MIB, &second).unwrap();
    let copy = cluster.node("bravo").export("copy");
    let mut other = Client::open(&copy, "copy/0").unwrap();
    assert!(other.read(8 * MIB, MIB as usize).unwrap() == first);
    other.write(0, &second).unwrap();
    assert!(cluster.content("web", "alpha", MIB) != second);
    for name in ["alpha", "bravo"] {
        assert!(cluster.content("copy", name, MIB) == second, "{name} has what was written");
    }
    client.close();
    other.close();
    delete(&mut cluster, "web");
    delete(&mut cluster, "copy");
    assert_no_files(&cluster);
}

#[test]
fn a_volume_that_is_frozen_goes_on_in_time_when_agents_and_controller_are_gone() {
    let mut cluster = Cluster::up(&NODES);
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    let (token, generation) = (cluster.generation(), cluster.generation());
    for name in NODES {
        let (resource, action) = (rd("web"), Action::Suspend { token });
        cluster.send(&node(name), Order::Step { resource, generation, action });
    }
    let frozen = Instant::now();
    let status = |cluster: &mut Cluster| cluster.node("alpha").ok(&["status", "web"]);
    while !status(&mut cluster).contains("suspended:user") {
        assert!(frozen.elapsed() < Duration::from_secs(9), "it is not frozen");
    }
    cluster.stop_listening();
    NODES.iter().for_each(|name| cluster.node(name).kill_agent());
    client.write(4096, &pattern(2, 4096)).unwrap();
    // Agents have 10 s here, and the engine waits for 10 more.
    let took = frozen.elapsed();
    assert!(took > Duration::from_secs(15) && took < Duration::from_secs(30), "{took:?}");
    // Whoever asks is told that it was not held.
    NODES.iter().for_each(|name| cluster.node(name).start_agent());
    cluster.listen();
    cluster.wait("it is told", |c| {
        let state = |name| c.observed.suspension(&rd("web"), &node(name), token);
        NODES.iter().all(|name| state(name) == Some(SuspensionState::Expired))
    });
    client.close();
    delete(&mut cluster, "web");
    assert_no_files(&cluster);
}

#[test]
fn writes_wait_for_a_full_pool_and_go_on_when_it_has_space_again() {
    let mut cluster = Cluster::up(&["alpha", "bravo"]);
    if !cluster.pools.has_snapshots {
        return;
    }
    cluster.define("web", 256 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    client.write(0, &pattern(1, MIB as usize)).unwrap();
    // Both pools are on one file system, which somebody fills but for a little.
    let filler = cluster.pools.of("alpha").parent().unwrap().join("filler");
    let fill = |size: u64| {
        let size = size.to_string();
        let done = Process::new("fallocate").args(["-l", &size]).arg(&filler).output().unwrap();
        done.status.success()
    };
    let mut size = 2048 * MIB;
    while !fill(size) {
        size -= 8 * MIB;
    }
    cluster.wait("there is an alarm", |c| {
        let state = c.observed.pool(&node("alpha"), &pool());
        state.is_some_and(|state| state.alarm(Provider::FileThin).is_some())
    });
    let (done, written) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        for at in 0..64 {
            client.write(32 * MIB + at * MIB, &pattern(2, MIB as usize)).unwrap();
        }
        done.send(()).unwrap();
        client
    });
    std::thread::sleep(Duration::from_secs(4));
    assert!(written.try_recv().is_err(), "64 MiB were written where there is no space");
    for name in ["alpha", "bravo"] {
        let status = cluster.node(name).ok(&["status", "web"]);
        assert!(status.contains("disk:UpToDate") && !status.contains("Failed"), "{status}");
    }
    std::fs::remove_file(&filler).unwrap();
    written.recv_timeout(PATIENCE).expect("what waited goes on");
    let mut client = writer.join().unwrap();
    for at in 0..64 {
        let read = client.read(32 * MIB + at * MIB, MIB as usize).unwrap();
        assert!(read == pattern(2, MIB as usize), "{at}");
    }
    client.close();
    cluster.wait_settled("web");
    let (a, b) =
        (cluster.content("web", "alpha", 96 * MIB), cluster.content("web", "bravo", 96 * MIB));
    assert!(a == b, "nothing was left out on either");
    delete(&mut cluster, "web");
    for name in ["alpha", "bravo"] {
        assert_eq!(cluster.pools.files(name), Vec::<String>::new(), "left on {name}");
    }
}

#[test]
fn everything_goes_on_without_a_controller_and_is_told_when_it_is_back() {
    let mut cluster = Cluster::up(&NODES);
    cluster.define("web", 64 * MIB);
    cluster.place("web", &["alpha", "bravo"]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");

    // An agent that says nothing is noticed within seconds, also without a closed socket.
    cluster.node("bravo").signal_agent(libc::SIGSTOP);
    cluster.wait("bravo is away", |c| !c.observed.is_connected(&node("bravo")));
    let mut client = Client::open(&socket, "web/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    cluster.node("bravo").signal_agent(libc::SIGCONT);
    cluster.wait("bravo is back", |c| c.observed.is_connected(&node("bravo")));

    cluster.stop_listening();
    client.write(4096, &pattern(2, 4096)).unwrap();
    // What was wanted meanwhile is done when the controller is back, and what happened is told.
    client.close();
    cluster.define("late", 32 * MIB);
    cluster.place("late", &["alpha", "bravo"]);
    cluster.node("alpha").kill_agent();
    std::thread::sleep(Duration::from_millis(300));
    cluster.node("alpha").start_agent();
    cluster.listen();
    cluster.wait_settled("late");
    cluster.wait_settled("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    assert!(client.read(4096, 4096).unwrap() == pattern(2, 4096));
    client.close();
    delete(&mut cluster, "web");
    delete(&mut cluster, "late");
    assert_no_files(&cluster);
}
