//! What operators ask of an engine, and how it refuses.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, PATIENCE, Setup, binary, list, pattern};
use codec::admin::{Call, Request, VERSION, encode_line};
use runtime::{DiskFile, DiskOptions};

/// Holds a disk as an engine does, once nobody else holds it any more.
fn hold(disk: &Path) -> DiskFile {
    let start = Instant::now();
    loop {
        match DiskFile::open(disk, DiskOptions::default()) {
            Ok(file) => return file,
            Err(e) => assert!(start.elapsed() < PATIENCE, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn two() -> Setup {
    Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() }
}

#[test]
fn metadata_and_file_systems_are_not_overwritten_by_accident() {
    let mut cluster = Cluster::new(&two());
    let alpha = &mut cluster.nodes[0];
    alpha.start();
    alpha.ok(&["create-md", "r0"]);
    let (_, why) = alpha.fails(&["create-md", "r0"]);
    assert!(why.contains("--force"), "{why}");
    alpha.ok(&["create-md", "r0", "--force"]);
    alpha.ok(&["up", "r0"]);
    let (_, why) = alpha.fails(&["create-md", "r0", "--force"]);
    assert!(why.contains("in use"), "{why}");
    alpha.ok(&["down", "r0"]);
    let disk = std::fs::File::options().write(true).open(cluster.disk(0, 0)).unwrap();
    disk.write_all_at(b"XFSB\x00\x00\x10\x00", 0).unwrap();
    disk.write_all_at(&(16u64 << 10).to_be_bytes(), 8).unwrap();
    drop(disk);
    let (_, why) = cluster.nodes[0].fails(&["create-md", "r0", "--force"]);
    assert!(why.contains("XFS"), "{why}");
}

#[test]
fn a_disk_without_metadata_is_refused_and_released() {
    let mut cluster = Cluster::new(&two());
    let alpha = &mut cluster.nodes[0];
    alpha.start();
    let (status, why) = alpha.fails(&["up", "r0"]);
    assert!(why.contains("119") || why.contains("metadata"), "{status}: {why}");
    alpha.ok(&["create-md", "r0"]);
    alpha.ok(&["up", "r0"]);
    assert_eq!(alpha.disk_state(0), "Inconsistent");
}

#[test]
fn a_disk_that_is_let_go_in_a_moment_is_waited_for() {
    let mut cluster = Cluster::new(&two());
    let disk = cluster.disk(0, 0);
    let alpha = &mut cluster.nodes[0];
    alpha.start();
    for command in [["create-md", "r0"], ["up", "r0"]] {
        // The kernel ends a killed engine's operations, and lets go of its disks, a little later.
        let held = hold(&disk);
        std::thread::scope(|scope| {
            scope.spawn(|| alpha.ok(&command));
            std::thread::sleep(Duration::from_millis(400));
            drop(held);
        });
    }
    assert_eq!(alpha.disk_state(0), "Inconsistent");
    alpha.ok(&["down", "r0"]);
    let held = hold(&disk);
    let (_, why) = alpha.fails(&["up", "r0"]);
    assert!(why.contains("in use"), "{why}");
    drop(held);
}

#[test]
fn a_socket_that_is_let_go_in_a_moment_is_waited_for() {
    let mut cluster = Cluster::new(&two());
    let alpha = &mut cluster.nodes[0];
    alpha.start();
    alpha.ok(&["create-md", "r0"]);
    alpha.ok(&["up", "r0"]);
    // A killed engine's listener outlives it for some milliseconds.
    let held = UnixListener::bind(alpha.directory.join("nbd")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| alpha.export());
        std::thread::sleep(Duration::from_millis(400));
        drop(held);
    });
    assert!(alpha.ok(&["exports"]).contains("r0/0"));
}

#[test]
fn roles_are_refused_as_the_rules_say() {
    let cluster = Cluster::up(&two());
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    alpha.ok(&["primary", "r0"]);
    let (status, why) = bravo.fails(&["primary", "r0"]);
    assert_eq!(status, 11, "{why}");
    let socket = alpha.export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 512)).unwrap();
    let (status, why) = alpha.fails(&["secondary", "r0"]);
    assert_eq!(status, 11, "{why}");
    let (_, why) = alpha.fails(&["down", "r0"]);
    assert!(why.contains("open"), "{why}");
    let (_, why) = alpha.fails(&["shutdown"]);
    assert!(why.contains("open"), "{why}");
    // On the Secondary the volume can not be opened.
    let socket = bravo.export();
    assert!(Client::open(&socket, "r0/0").is_err());
    client.close();
    alpha.ok(&["secondary", "r0"]);
    alpha.ok(&["down", "r0"]);
    alpha.ok(&["down", "r0"]);
    assert!(alpha.status().is_null());
}

/// Who asked for a freeze may be gone when it is to end.
#[test]
fn a_suspension_with_a_time_ends_by_itself_and_no_other_does() {
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let socket = alpha.export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    let ask = |request| {
        let mut stream = UnixStream::connect(alpha.socket()).unwrap();
        let call = Call { version: VERSION, id: 1, timeout_ms: 10_000, request };
        stream.write_all(&encode_line(&call)).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.contains("ok"), "{line}");
    };
    let suspend = |for_ms| Request::SuspendIo { resource: "r0".into(), for_ms };
    let begun = Instant::now();
    ask(suspend(Some(1500)));
    client.write(0, &pattern(2, 4096)).unwrap();
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1500) && took < Duration::from_secs(20), "{took:?}");
    // One that an operator has begun meanwhile is not ended by the clock of another.
    ask(suspend(Some(500)));
    ask(suspend(None));
    std::thread::sleep(Duration::from_millis(1200));
    let status = alpha.ok(&["status", "r0"]);
    assert!(status.contains("suspended:user"), "{status}");
    ask(Request::Thaw { resource: "r0".into() });
    client.write(0, &pattern(3, 4096)).unwrap();
    client.close();
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_lost_disk_is_replaced_by_the_peers() {
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let socket = alpha.export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    alpha.ok(&["detach", "r0/0"]);
    assert_eq!(alpha.disk_state(0), "Diskless");
    // Reads and writes go on over the peer.
    assert_eq!(client.read(0, 4096).unwrap(), pattern(1, 4096));
    client.write(8192, &pattern(2, 4096)).unwrap();
    alpha.ok(&["attach", "r0/0"]);
    cluster.wait("the disk is UpToDate again", |c| {
        c.nodes[0].disk_state(0) == "UpToDate" && c.nodes[0].out_of_sync() == 0
    });
    client.close();
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn events_tell_every_change_and_why_explains() {
    let mut cluster = Cluster::up(&two());
    let now = cluster.nodes[0].ok(&["events", "--now", "r0"]);
    assert!(now.contains("exists resource name:r0 role:Secondary"), "{now}");
    cluster.nodes[1].kill();
    cluster.wait("the loss is noticed", |c| c.nodes[0].peer("bravo").0 == "Connecting");
    let why = cluster.nodes[0].ok(&["why", "r0"]);
    assert!(why.contains("bravo"), "{why}");
}

#[test]
fn exports_come_and_go() {
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let socket = alpha.export();
    let mut client = Client::open(&socket, "r0").unwrap();
    client.write(0, &pattern(1, 512)).unwrap();
    let exports: serde_json::Value =
        serde_json::from_str(&alpha.ok(&["exports", "--json"])).unwrap();
    assert_eq!(list(&exports)[0]["clients"], 1);
    alpha.ok(&["unexport", "r0/0"]);
    assert!(client.read(0, 512).is_err());
    assert!(Client::open(&socket, "r0").is_err());
    let (_, why) = alpha.fails(&["unexport", "r0/0"]);
    assert!(why.contains("no export"), "{why}");
    cluster.wait("the client is gone", |c| c.nodes[1].peer("alpha").1 == "Secondary");
}

#[test]
fn shutdown_takes_everything_down_and_ends() {
    let mut cluster = Cluster::up(&two());
    cluster.nodes[0].ok(&["shutdown"]);
    cluster.wait("bravo sees it leave", |c| c.nodes[1].peer("alpha").0 != "Connected");
    assert!(cluster.nodes[0].ended());
    cluster.nodes[0].start();
    cluster.wait("alpha is there again", |c| c.nodes[1].peer("alpha").0 == "Connected");
}

#[test]
fn a_client_of_another_thread_is_handed_over() {
    // The first resource lives on the first thread, which listens; the second on the second.
    let resources = "resource r1 { device minor 10; meta-disk internal;
            on alpha { node-id 0; disk DIR/r1.img; address NET.1:7001; }
            on bravo { node-id 1; disk none; address NET.2:7001; } }";
    let setup = Setup { resources: resources.to_owned(), ..two() };
    let mut cluster = Cluster::new(&setup);
    let disk = cluster.disk(0, 0).with_file_name("r1.img");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let alpha = &mut cluster.nodes[0];
    alpha.start();
    for name in ["r0", "r1"] {
        alpha.ok(&["create-md", name]);
        alpha.ok(&["up", name]);
    }
    alpha.ok(&["new-current-uuid", "--clear-bitmap", "r1/0"]);
    let socket = alpha.directory.join("nbd");
    alpha.ok(&["export", "r1/0", "--listen", &socket.display().to_string()]);
    let mut client = Client::open(&socket, "r1").unwrap();
    client.write(0, &pattern(1, 64 << 10)).unwrap();
    assert_eq!(client.read(0, 64 << 10).unwrap(), pattern(1, 64 << 10));
    client.close();
}

#[test]
fn subscribers_hear_of_changes_as_they_happen() {
    use std::io::{BufRead, BufReader};
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let mut events = alpha.follow(&["events", "r0"]);
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let mut until = |what: &str| {
        let found = lines.by_ref().map_while(Result::ok).find(|line| line.contains(what));
        assert!(found.is_some(), "heard of {what}");
    };
    until("exists -");
    alpha.ok(&["primary", "r0"]);
    until("change resource name:r0 role:Primary");
    alpha.ok(&["secondary", "r0"]);
    until("role:Secondary");
    alpha.ok(&["disconnect", "r0:bravo"]);
    until("connection:StandAlone");
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
fn an_activity_log_grows_under_a_live_disk_and_shrinks_with_the_next_one() {
    let setup = Setup { sections: "disk { al-extents 100; }".to_owned(), ..two() };
    let cluster = Cluster::up(&setup);
    let alpha = &cluster.nodes[0];
    let extents = |n: u32| {
        let change = |text: String| {
            let (before, rest) = text.split_once("al-extents ").unwrap();
            let (_, after) = rest.split_once(';').unwrap();
            format!("{before}al-extents {n};{after}")
        };
        cluster.reconfigure(change);
    };
    extents(200);
    alpha.ok(&["adjust", "r0"]);
    assert_eq!(alpha.ok(&["adjust", "r0", "--dry-run", "--json"]).trim(), "[]");
    extents(150);
    let (status, why) = alpha.fails(&["adjust", "r0"]);
    assert_eq!(status, 10, "{why}");
    assert!(why.contains("detach the disk and attach it again"), "{why}");
    alpha.ok(&["detach", "r0/0"]);
    alpha.ok(&["attach", "r0/0"]);
    assert_eq!(alpha.ok(&["adjust", "r0", "--dry-run", "--json"]).trim(), "[]");
}

#[test]
fn a_node_that_is_gone_for_good_is_forgotten() {
    let mut cluster = Cluster::up(&Setup::default());
    cluster.nodes[2].kill();
    let forget = ["forget-peer", "r0", "2"];
    let (status, why) = cluster.nodes[0].fails(&forget);
    assert_eq!(status, 10, "{why}");
    assert!(why.contains("125"), "{why}");
    // It stays in the configuration, and nobody connects to it any more.
    cluster.reconfigure(|text| text.replace("hosts alpha bravo charlie", "hosts alpha bravo"));
    for node in &cluster.nodes[..2] {
        node.ok(&["adjust", "r0"]);
        node.ok(&forget);
        node.ok(&forget);
        assert_eq!(list(&node.status()["connections"]).len(), 1);
    }
    let (_, why) = cluster.nodes[0].fails(&["forget-peer", "r0", "0"]);
    assert!(why.contains("171"), "{why}");
}

#[test]
fn a_read_only_export_can_not_be_written_to() {
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let socket = alpha.directory.join("ro");
    let listen = socket.display().to_string();
    alpha.ok(&["export", "r0/0", "--name", "ro", "--read-only", "--listen", &listen]);
    let (_, why) = alpha.fails(&["export", "r0/0", "--name", "ro", "--listen", &listen]);
    assert!(why.contains("read-only"), "{why}");
    let exports: serde_json::Value =
        serde_json::from_str(&alpha.ok(&["exports", "--json"])).unwrap();
    assert_eq!(list(&exports)[0]["read-only"], true);
    let mut writer = Client::open(&alpha.export(), "r0/0").unwrap();
    writer.write(0, &pattern(1, 4096)).unwrap();
    let mut reader = Client::open(&socket, "ro").unwrap();
    assert_eq!(reader.read(0, 4096).unwrap(), pattern(1, 4096));
    assert!(reader.write(0, &pattern(2, 4096)).is_err());
    assert_eq!(reader.read(0, 4096).unwrap(), pattern(1, 4096));
    writer.close();
    // Who only reads keeps nobody Primary.
    cluster.wait("the last writer is gone", |c| c.nodes[1].peer("alpha").1 == "Secondary");
    reader.close();
}

/// The CPUs that the worker threads of a process may run on, as the kernel writes it.
fn cpus_of_workers(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut cpus: Vec<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
        .filter(|status| status.starts_with("Name:\tshard"))
        .filter_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.map(|cpus| cpus.trim().to_owned())
        })
        .collect();
    cpus.sort();
    cpus
}

#[test]
fn threads_stay_on_their_cpus_only_if_that_is_wanted() {
    let mut cluster = Cluster::new(&two());
    let alpha = &mut cluster.nodes[0];
    alpha.start();
    let free = cpus_of_workers(alpha.pid());
    assert_eq!(free.len(), 2);
    assert_eq!(free[0], free[1]);
    if runtime::thread::usable_cpus().len() > 1 {
        let bravo = &mut cluster.nodes[1];
        bravo.args = vec!["--pin".to_owned()];
        bravo.start();
        let pinned = cpus_of_workers(bravo.pid());
        assert!(pinned.len() == 2 && pinned[0] != pinned[1], "{pinned:?}");
        assert!(pinned.iter().all(|cpu| cpu.parse::<u32>().is_ok()), "{pinned:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(binary())
        .args(["engine", "--pin", "--threads", "256", "--node", "alpha", "--state-dir"])
        .arg(directory.path())
        .output()
        .unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(20));
    assert!(why.contains("256 threads can not be pinned to") && why.contains("--pin"), "{why}");
}

#[test]
fn an_engine_that_polls_serves_as_any_other_and_sleeps_when_idle() {
    let cluster = Cluster::up(&Setup { args: vec!["--busy-poll=1000".to_owned()], ..two() });
    let mut client = Client::open(&cluster.nodes[0].export(), "r0/0").unwrap();
    for nr in 0..200 {
        client.write(nr % 8 * 4096, &pattern(nr, 4096)).unwrap();
        assert_eq!(client.read(nr % 8 * 4096, 4096).unwrap(), pattern(nr, 4096));
    }
    // User and system time, in hundredths of a second: the 14th and 15th field, the name is the 2nd.
    let stat = format!("/proc/{}/stat", cluster.nodes[0].pid());
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(&stat).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    };
    std::thread::sleep(Duration::from_millis(200));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let during = ticks() - before;
    assert!(during < 20, "{during} hundredths of a second of CPU time without work");
    client.close();
}
