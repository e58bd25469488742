//! Other people's NBD clients against a volume of two engines: each once, and then the disks are
//! compared. What clients do in detail is tried in `nbd_clients.rs`, against memory.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::engine_support::{Cluster, PATIENCE, Setup, pattern};

const MIB: usize = 1 << 20;

/// True if every tool can be run; otherwise says what is missing, and the test is skipped.
fn have(tools: &[&str]) -> bool {
    let runs = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    let missing: Vec<&&str> = tools.iter().filter(|tool| !runs(tool)).collect();
    if !missing.is_empty() {
        println!("SKIPPED: not installed: {missing:?}");
    }
    missing.is_empty()
}

/// The Python that has libnbd's module; `nbdsh` itself takes the first in the path.
fn nbdsh() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let output = Command::new(python).args(["-c", "import nbd"]).output();
        output.is_ok_and(|output| output.status.success())
    })
}

/// Runs a client that must succeed within a minute, and returns what it printed.
fn ok(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
    out
}

fn two() -> Cluster {
    Cluster::up(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() })
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///r0?socket={}", socket.display())
}

/// Everything that was written is on both disks, once the last client has left.
fn compare(cluster: &Cluster) {
    cluster.wait("the last client is gone", |c| {
        c.nodes[1].peer("alpha").1 == "Secondary" && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn libnbds_tools_work_with_a_replicated_volume() {
    let Some(python) = nbdsh() else {
        println!("SKIPPED: not installed: libnbd's module for Python");
        return;
    };
    if !have(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let cluster = two();
    let directory = &cluster.nodes[0].directory;
    let uri = uri(&cluster.nodes[0].export());
    let info = ok("nbdinfo", &["--json", &uri]);
    let facts = ["\"is_read_only\": false", "\"can_multi_conn\": true", "base:allocation"];
    assert!(facts.iter().all(|fact| info.contains(fact)), "{info}");
    let (original, copy) = (directory.join("original"), directory.join("copy"));
    fs::write(&original, pattern(7, 4 * MIB)).unwrap();
    ok("nbdcopy", &[original.to_str().unwrap(), &uri]);
    ok("nbdcopy", &[&uri, copy.to_str().unwrap()]);
    assert_eq!(fs::read(&copy).unwrap()[..4 * MIB], pattern(7, 4 * MIB)[..]);
    // What the disk has not allocated are holes, which read as zeroes; where it is not there, all is data.
    let script = "
h.pwrite(b'x' * (1 << 20), 16 << 20)
h.pwrite(b'x' * 8192, 8 << 20, nbd.CMD_FLAG_FUA)
h.zero(4096, 8 << 20)
h.trim(1 << 20, 16 << 20)
h.flush()
assert h.pread(8192, 8 << 20) == b'\\0' * 4096 + b'x' * 4096
";
    let map = "
seen = []
def status(context, offset, entries, error):
    at = offset
    for len, state in zip(entries[::2], entries[1::2]):
        seen.append((at, len, state))
        at += len
at = 0
while at < 32 << 20:
    h.block_status((32 << 20) - at, at, status)
    assert sum(len for _, len, _ in seen) > at, seen
    at = sum(len for _, len, _ in seen)
def state(place):
    return [s for at, len, s in seen if at <= place < at + len][0]
for at, len, s in seen:
    assert s in (0, 3) and at % 512 == 0, seen
    if s == 3:
        assert all(h.pread(min(at + len - p, 1 << 20), p).count(b'\\0') == min(at + len - p, 1 << 20)
                   for p in range(at, at + len, 1 << 20)), seen
";
    let holes = "
assert state(0) == 0 and state((4 << 20) - 1) == 0 and state((8 << 20) + 4096) == 0, seen
assert state(12 << 20) == 3 and state((16 << 20) + 65536) == 3, seen
";
    let none = "assert seen and all(s == 0 for _, _, s in seen), seen";
    let run = |script: &str| {
        ok(python, &["-m", "nbd", "--base-allocation", "-u", &uri, "-c", script]);
    };
    run(&format!("{script}{map}{holes}"));
    let alpha = &cluster.nodes[0];
    alpha.ok(&["detach", "r0/0"]);
    run(&format!("{map}{none}"));
    alpha.ok(&["attach", "r0/0"]);
    cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    run(&format!("{map}{holes}"));
    compare(&cluster);
    let disk = cluster.content(1, 0, (4 * MIB) as u64);
    assert!(disk == pattern(7, 4 * MIB), "what nbdcopy wrote is on the other node's disk");
}

/// What nbdinfo says of a context: begin, length and flags of each extent.
fn map(context: &str, uri: &str) -> Vec<(u64, u64, u64)> {
    let json = ok("nbdinfo", &["--json", &format!("--map={context}"), uri]);
    let extents: serde_json::Value = serde_json::from_str(&json).unwrap();
    let number = |extent: &serde_json::Value, what: &str| extent[what].as_u64().unwrap();
    let extents = extents.as_array().unwrap().iter();
    extents.map(|e| (number(e, "offset"), number(e, "length"), number(e, "type"))).collect()
}

#[test]
fn clients_are_told_which_blocks_a_replica_misses() {
    if !have(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    const MISSED: &str = "qemu:dirty-bitmap:out-of-sync";
    let cluster = two();
    let (alpha, bravo) = (&cluster.nodes[0], &cluster.nodes[1]);
    let uris = [uri(&alpha.export()), uri(&bravo.export())];
    let size = ok("nbdinfo", &["--size", &uris[0]]).trim().parse().unwrap();
    assert!(ok("nbdinfo", &["--json", &uris[0]]).contains(MISSED));
    assert_eq!(map(MISSED, &uris[0]), [(0, size, 0)]);
    alpha.ok(&["disconnect", "r0:bravo"]);
    let written = alpha.directory.join("written");
    fs::write(&written, pattern(9, MIB)).unwrap();
    ok("nbdcopy", &[written.to_str().unwrap(), &uris[0]]);
    let mib = MIB as u64;
    assert_eq!(map(MISSED, &uris[0]), [(0, mib, 1), (mib, size - mib, 0)]);
    if have(&["qemu-img"]) {
        // It shows what is dirty as what has no data.
        let path = alpha.export();
        let image = format!(
            "driver=nbd,export=r0,server.type=unix,server.path={},x-dirty-bitmap={MISSED}",
            path.display()
        );
        let json = ok("qemu-img", &["map", "--output=json", "--image-opts", &image]);
        let extents: serde_json::Value = serde_json::from_str(&json).unwrap();
        let dirty = |at: usize| (extents[at]["length"].as_u64(), extents[at]["data"].as_bool());
        assert_eq!(
            [dirty(0), dirty(1)],
            [(Some(mib), Some(false)), (Some(size - mib), Some(true))]
        );
    }
    alpha.ok(&["connect", "r0:bravo"]);
    cluster.wait("all disks are UpToDate", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    for uri in &uris {
        assert_eq!(map(MISSED, uri), [(0, size, 0)]);
    }
    // Without a disk nobody keeps account.
    bravo.ok(&["detach", "r0/0"]);
    assert_eq!(map(MISSED, &uris[1]), [(0, size, 1)]);
    bravo.ok(&["attach", "r0/0"]);
    cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    compare(&cluster);
}

#[test]
fn fio_verifies_what_it_wrote_to_a_replicated_volume() {
    if !have(&["fio"]) {
        return;
    }
    let help = Command::new("fio").arg("--enghelp=nbd").output().unwrap();
    if !help.status.success() || !String::from_utf8_lossy(&help.stdout).contains("uri") {
        println!("SKIPPED: this fio has no nbd engine");
        return;
    }
    let cluster = two();
    let uri = format!("--uri={}", uri(&cluster.nodes[0].export()));
    let out = ok(
        "fio",
        &[
            "--name=v",
            "--ioengine=nbd",
            &uri,
            "--iodepth=32",
            "--size=16M",
            "--bs=4k",
            "--rw=randwrite",
            "--fsync=64",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ],
    );
    assert!(out.contains("err= 0"), "{out}");
    compare(&cluster);
    let written = cluster.content(1, 0, (16 * MIB) as u64);
    assert!(written.chunks(4096).all(|block| block.iter().any(|b| *b != 0)), "all was written");
}

#[test]
fn qemus_tools_work_with_a_replicated_volume() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let cluster = two();
    let image = cluster.nodes[0].directory.join("image");
    let uri = uri(&cluster.nodes[0].export());
    let write = ["-c", "write -P 0x5a 1M 64k", "-c", "write -z 1088k 64k", "-c", "flush"];
    let read = ["-c", "read -P 0x5a 1M 64k", "-c", "read -P 0 1088k 64k", &uri];
    ok("qemu-io", &[&["-f", "raw"], &write[..], &read[..]].concat());
    assert!(ok("qemu-img", &["info", "-f", "raw", &uri]).contains("file format: raw"));
    ok("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, image.to_str().unwrap()]);
    ok("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, image.to_str().unwrap()]);
    assert!(fs::read(&image).unwrap()[MIB..][..64 << 10].iter().all(|b| *b == 0x5a));
    compare(&cluster);
}

/// Ends a process of ours with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_storage_daemon_serves_a_replicated_volume_to_others() {
    if !have(&["qemu-storage-daemon", "qemu-io"]) {
        return;
    }
    let cluster = two();
    let (socket, served) = (cluster.nodes[0].export(), cluster.nodes[0].directory.join("served"));
    let socket = socket.display();
    let daemon = Command::new("qemu-storage-daemon")
        .arg("--blockdev")
        .arg(format!(
            "driver=nbd,node-name=v,export=r0,cache.direct=on,server.type=unix,\
             server.path={socket}"
        ))
        .args(["--nbd-server", &format!("addr.type=unix,addr.path={}", served.display())])
        .args(["--export", "type=nbd,id=e,node-name=v,name=v,writable=on"])
        .spawn()
        .unwrap();
    let daemon = Daemon(daemon);
    let start = Instant::now();
    while !served.exists() {
        assert!(start.elapsed() < PATIENCE, "qemu-storage-daemon serves nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let through = format!("nbd+unix:///v?socket={}", served.display());
    let commands = ["-c", "write -P 0x3c 2M 1M", "-c", "discard 4M 1M", "-c", "flush"];
    let read = ["-c", "read -P 0x3c 2M 1M", &through];
    ok("qemu-io", &[&["-f", "raw"], &commands[..], &read[..]].concat());
    drop(daemon);
    compare(&cluster);
    assert!(cluster.content(1, 0, 3 << 20)[2 * MIB..].iter().all(|b| *b == 0x3c));
}
