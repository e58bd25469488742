//! Volumes as loop devices: what file systems and fio do with them, and what becomes of them when the
//! engine is killed, when somebody else writes meanwhile, and when the volume grows.
//!
//! Needs root, /dev/fuse and loop devices; says so and does nothing where they are missing.

mod standby;

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine_support;
use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Node, PATIENCE, Setup, pattern, text};
use frontend::loopdev;
use frontend::nbd::proto::TransmissionFlags;
use frontend::nbd::proto::option::oldstyle_greeting;
use frontend::nbd::proto::transfer::{Command as Asked, REQUEST_LEN, RequestHeader, SimpleReply};
use serde_json::Value;

/// XFS has no file systems below 300 MiB.
const DISK: u64 = 400 << 20;

/// The names below /dev are the machine's, and all clusters here have a resource of the same name.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A cluster with devices, which are gone with it even after a failure.
struct Rig {
    cluster: Cluster,
    directories: Vec<PathBuf>,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    fn up(setup: &Setup) -> Option<Rig> {
        let mut rig = Rig::before(setup)?;
        rig.cluster.bring_up(setup);
        Some(rig)
    }

    /// Before the nodes are started.
    fn before(setup: &Setup) -> Option<Rig> {
        for path in ["/dev/fuse", "/dev/loop-control"] {
            if let Err(e) = OpenOptions::new().read(true).write(true).open(path) {
                println!("skipped: {path}: {e} (needs root and the kernel's driver)");
                return None;
            }
        }
        for program in ["fio", "mkfs.ext4", "mkfs.xfs"] {
            if Command::new(program).arg("-V").output().is_err() {
                println!("skipped: {program} is not installed");
                return None;
            }
        }
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::new(setup);
        let directories = cluster.nodes.iter().map(|node| node.directory.clone()).collect();
        Some(Rig { cluster, directories, _turn: turn })
    }

    fn of_two() -> Option<Rig> {
        let nodes = vec!["alpha", "bravo"];
        // A resync that gives way to the load may take as long as it.
        let sections = "disk { c-min-rate 0; }".to_owned();
        Rig::up(&Setup { nodes, disk: DISK, sections, ..Setup::default() })
    }

    fn alpha(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    /// Unmaps a device that was mounted. A mount namespace that somebody has made meanwhile has a copy of
    /// the mount, and the kernel lets go only when that ends.
    fn unmap(&self) {
        let unmapped = |c: &Cluster| c.nodes[0].cli(&["unmap", "r0/0"]).status.success();
        self.cluster.wait("it can be unmapped", unmapped);
    }

    /// Ends both engines in peace, and compares their disks.
    fn finish(mut self) {
        self.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
        self.cluster.nodes.iter_mut().for_each(|node| assert!(node.stop(), "{}", node.name));
        self.cluster.assert_equal(0, &[0, 1]);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A failed test has devices left: without their processes nobody waits for them.
        for directory in &self.directories {
            for face in fs::read_dir(directory.join("state/faces")).into_iter().flatten().flatten()
            {
                let loops =
                    run("losetup", &["-n", "-O", "NAME", "-j"], &[&face.path().join("mnt/volume")]);
                for device in loops.1.split_whitespace() {
                    let _ = run("losetup", &["-d", device], &[]);
                }
                if let Ok(mut stream) = UnixStream::connect(face.path().join("socket")) {
                    let _ = stream.write_all(b"e");
                }
                let _ = run("umount", &["-l"], &[&face.path().join("mnt")]);
            }
        }
    }
}

fn run(program: &str, args: &[&str], paths: &[&Path]) -> (bool, String) {
    let output = Command::new("timeout").arg("120").arg(program).args(args).args(paths).output();
    let output = output.unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn ok(program: &str, args: &[&str]) -> String {
    let (success, said) = run(program, args, &[]);
    assert!(success, "{program} {args:?}: {said}");
    said
}

/// Maps `r0/0` and returns the device.
fn map(node: &Node, options: &[&str]) -> String {
    let args: Vec<&str> =
        ["map", "r0/0", "--face", "fuse"].iter().chain(options).copied().collect();
    let device = node.ok(&args).trim().to_owned();
    assert!(device.starts_with("/dev/loop"), "{device}");
    device
}

fn maps(node: &Node) -> Value {
    serde_json::from_str(&node.ok(&["maps", "--json"])).unwrap()
}

/// fio with checks of what it has written.
fn fio(args: &[&str]) -> Command {
    let mut fio = Command::new("timeout");
    fio.args(["300", "fio", "--minimal", "--randseed=7", "--ioengine=libaio", "--direct=1"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--group_reporting"]);
    fio.arg("--verify_state_save=0");
    fio.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    fio
}

fn ended_well(fio: Child) {
    let output = fio.wait_with_output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// A mount that goes with its scope.
struct Mount(PathBuf);

impl Mount {
    fn new(device: &str, kind: &str, place: &Path) -> Mount {
        fs::create_dir_all(place).unwrap();
        ok("mount", &["-t", kind, device, place.to_str().unwrap()]);
        Mount(place.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let (unmounted, said) = run("umount", &[], &[&self.0]);
        if !unmounted {
            let _ = run("umount", &["-l"], &[&self.0]);
            assert!(std::thread::panicking(), "{said}");
        }
    }
}

#[test]
fn file_systems_fio_and_discards_work_on_a_loop_device_that_unmap_takes_away() {
    let Some(rig) = Rig::of_two() else { return };
    let (alpha, bravo) = (rig.alpha(), &rig.cluster.nodes[1]);
    let device = map(alpha, &["--drbd-names"]);
    assert_eq!(map(alpha, &["--drbd-names"]), device, "the same is the same");
    for link in ["/dev/ashlar/r0/0", "/dev/drbd0", "/dev/drbd/by-res/r0/0"] {
        assert_eq!(fs::canonicalize(link).unwrap(), Path::new(&device), "{link}");
    }
    assert_eq!(alpha.status()["role"], "Primary", "a mapped volume is open");
    let shown = maps(alpha);
    assert_eq!((&shown[0]["face"], &shown[0]["problem"]), (&"fuse".into(), &Value::Null));
    let (_, why) = alpha.fails(&["map", "r0/0", "--read-only"]);
    assert!(why.contains("with other options"), "{why}");
    let (_, why) = bravo.fails(&["map", "r0/0", "--face", "fuse"]);
    assert!(why.contains("r0/0 can not be opened"), "{why}");

    let queue = Path::new("/sys/block").join(&device[5..]);
    let limit = |name: &str| fs::read_to_string(queue.join(name)).unwrap().trim().to_owned();
    assert_eq!(limit("loop/dio"), "1", "nothing is cached twice");
    assert_eq!(limit("queue/write_cache"), "write back", "flushes are sent");
    assert_eq!(limit("queue/discard_granularity"), "4096");

    let name = format!("--filename={device}");
    ended_well(
        fio(&["--name=raw", &name, "--rw=randrw", "--bsrange=512-256k", "--blockalign=512"])
            .args(["--size=48m", "--io_size=24m", "--iodepth=16", "--fsync=64"])
            .spawn()
            .unwrap(),
    );
    // A range is written, half of it discarded, a quarter zeroed: each reads as it should.
    let content = pattern(1, 8 << 20);
    let file = OpenOptions::new().read(true).write(true).open(&device).unwrap();
    file.write_all_at(&content, 64 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ok("blkdiscard", &["-f", "-o", "67108864", "-l", "4194304", &device]);
    ok("blkdiscard", &["-f", "-z", "-o", "71303168", "-l", "2097152", &device]);
    let mut expected = content;
    expected[..6 << 20].fill(0);
    let mut read = vec![0xff; 8 << 20];
    fs::File::open(&device).unwrap().read_exact_at(&mut read, 64 << 20).unwrap();
    assert!(read == expected, "discarded and zeroed ranges read as zeroes, others as written");

    let place = alpha.directory.join("mounted");
    for (kind, make) in [("ext4", ["mkfs.ext4", "-qF"]), ("xfs", ["mkfs.xfs", "-qf"])] {
        // Whoever has started meanwhile with mounts of his own may keep that of the last round a moment.
        rig.cluster.wait("the device is let go", |_| run(make[0], &[make[1], &device], &[]).0);
        let mounted = Mount::new(&device, kind, &place);
        let directory = format!("--directory={}", place.display());
        ended_well(
            fio(&["--name=file", &directory, "--rw=randrw", "--bsrange=4k-64k"])
                .args(["--size=16m", "--fsync=32", "--iodepth=4"])
                .spawn()
                .unwrap(),
        );
        fs::write(place.join("kept"), pattern(2, 1 << 20)).unwrap();
        ok("fstrim", &[place.to_str().unwrap()]);
        let (_, why) = alpha.fails(&["unmap", "r0/0"]);
        assert!(why.contains("mounted at"), "{why}");
        let (_, why) = alpha.fails(&["down", "r0"]);
        assert!(why.contains("is mapped as"), "{why}");
        drop(mounted);
        let _again = Mount::new(&device, kind, &place);
        assert!(fs::read(place.join("kept")).unwrap() == pattern(2, 1 << 20), "{kind}");
    }
    rig.unmap();
    assert_eq!(maps(alpha), serde_json::json!([]));
    assert!(!Path::new("/dev/ashlar/r0/0").exists());
    assert!(!queue.join("loop").exists(), "{device} is free");
    let left = fs::read_dir(alpha.directory.join("state/faces")).unwrap().count();
    assert_eq!(left, 0, "its process has left nothing");
    rig.cluster.wait("alpha is Secondary", |c| c.nodes[0].status()["role"] == "Secondary");

    let device = alpha.ok(&["map", "r0/0", "--read-only"]).trim().to_owned();
    if !Path::new("/dev/ublk-control").exists() {
        assert_eq!(maps(alpha)[0]["face"], "fuse", "it is the best that there is");
    }
    assert_eq!(alpha.status()["role"], "Secondary", "nobody is promoted to read");
    assert_eq!(ok("blockdev", &["--getro", &device]).trim(), "1");
    let write = OpenOptions::new().write(true).open(&device).and_then(|f| f.write_all_at(&[0], 0));
    assert!(write.is_err());
    alpha.ok(&["unmap", "r0/0"]);
    rig.finish();
}

#[test]
fn the_loss_of_a_peer_under_load_is_no_matter_of_the_device() {
    let Some(mut rig) = Rig::of_two() else { return };
    let device = map(rig.alpha(), &[]);
    let mut load = fio(&["--name=load", &format!("--filename={device}"), "--rw=randwrite"])
        .args(["--bs=4k", "--size=64m", "--io_size=48m", "--iodepth=16", "--fsync=256"])
        .arg("--rate_iops=2000")
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    rig.cluster.nodes[1].kill();
    std::thread::sleep(Duration::from_secs(1));
    assert!(load.try_wait().unwrap().is_none(), "the load ended before the peer was lost");
    rig.cluster.nodes[1].start();
    ended_well(load);
    rig.cluster.wait_connected();
    rig.unmap();
    rig.finish();
}

/// Some seconds of I/O that is verified, on a file system. Each block once: fio does not know what to
/// expect where writes overlap.
fn load(place: &Path) -> Child {
    fio(&["--name=load", &format!("--directory={}", place.display())])
        .args(["--rw=randrw", "--bs=4k", "--size=96m", "--iodepth=16", "--fsync=64"])
        .arg("--rate_iops=750")
        .spawn()
        .unwrap()
}

#[test]
fn an_engine_that_is_killed_is_no_error_of_its_device() {
    let Some(mut rig) = Rig::of_two() else { return };
    let device = map(rig.alpha(), &[]);
    ok("mkfs.ext4", &["-qF", &device]);
    let place = rig.alpha().directory.join("mounted");
    let mounted = Mount::new(&device, "ext4", &place);
    let mut load = load(&place);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(700));
        // One that is being resynced can not tell whether its data are what they were.
        rig.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
        assert!(load.try_wait().unwrap().is_none(), "the load ended before the engine was killed");
        rig.cluster.nodes[0].kill();
        // As by a supervisor, at once.
        let begun = Instant::now();
        rig.cluster.nodes[0].start();
        rig.cluster
            .wait("the device goes on", |c| maps(&c.nodes[0])[0]["device"] == device.as_str());
        println!("killed: the device goes on {} ms later", begun.elapsed().as_millis());
    }
    ended_well(load);
    drop(mounted);
    ok("fsck.ext4", &["-fn", &device]);
    rig.unmap();
    rig.finish();
}

#[test]
fn an_engine_that_hands_over_is_no_error_of_its_device() {
    let Some(mut rig) = Rig::of_two() else { return };
    let device = map(rig.alpha(), &[]);
    ok("mkfs.ext4", &["-qF", &device]);
    let place = rig.alpha().directory.join("mounted");
    let mounted = Mount::new(&device, "ext4", &place);
    let mut load = load(&place);
    let all = maps(rig.alpha());
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        println!("{}", rig.cluster.nodes[0].upgrade().trim());
        assert!(load.try_wait().unwrap().is_none(), "the load ended before the engine handed over");
        assert_eq!(maps(rig.alpha()), all, "it is mapped all the time");
        assert!(rig.cluster.all_up_to_date(), "nothing is resynced");
    }
    // The last one is an engine like any other: what it is killed with goes on, too.
    rig.cluster.nodes[0].kill();
    rig.cluster.nodes[0].start();
    rig.cluster.wait("the device goes on", |c| maps(&c.nodes[0])[0]["device"] == device.as_str());
    let (_, refused) = rig.alpha().fails(&["unmap", "r0/0"]);
    assert!(refused.contains("mounted at"), "{refused}");
    ended_well(load);
    drop(mounted);
    rig.cluster.nodes[0].upgrade();
    ok("fsck.ext4", &["-fn", &device]);
    rig.unmap();
    rig.finish();
}

#[test]
fn a_device_does_not_go_on_where_somebody_else_has_written() {
    let Some(mut rig) = Rig::of_two() else { return };
    let device = map(rig.alpha(), &[]);
    // The device's page cache has this, from before.
    let open = OpenOptions::new().read(true).write(true).open(&device).unwrap();
    open.write_all_at(&pattern(1, 4096), 0).unwrap();
    open.sync_all().unwrap();
    rig.cluster.nodes[0].kill();
    let bravo = &rig.cluster.nodes[1];
    let other = map(bravo, &[]);
    let file = OpenOptions::new().write(true).open(&other).unwrap();
    file.write_all_at(&pattern(2, 4096), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    bravo.ok(&["unmap", "r0/0"]);
    rig.cluster.nodes[0].start();
    rig.cluster.wait("alpha is mapped again", |c| maps(&c.nodes[0])[0]["device"].is_string());
    rig.cluster.wait_logged(0, "goes away under its users");
    let alpha = rig.alpha();
    let mut found = vec![0; 4096];
    fs::File::open("/dev/ashlar/r0/0").unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == pattern(2, 4096), "the new device has what the other node wrote");
    let late = open.write_all_at(&pattern(3, 4096), 0).and_then(|()| open.sync_all());
    assert!(late.is_err(), "who remembers the old data can not write");
    drop(open);
    alpha.ok(&["unmap", "r0/0"]);
    rig.finish();
}

/// Answers what a face asks about a volume of so many bytes, until it leaves.
fn answer(mut face: UnixStream, content: &Mutex<Vec<u8>>, size: u64) {
    face.write_all(&[face::SERVE]).unwrap();
    face.read_exact(&mut [0]).unwrap();
    let mut greeting = Vec::new();
    let flags = TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_FLUSH);
    oldstyle_greeting(size, flags, &mut greeting);
    face.write_all(&greeting).unwrap();
    let mut header = [0; REQUEST_LEN];
    while face.read_exact(&mut header).is_ok() {
        let request = RequestHeader::decode(&header).unwrap();
        let mut content = content.lock().unwrap();
        content.resize(size as usize, 0);
        let range = request.offset as usize..request.offset as usize + request.len as usize;
        if request.command == Asked::Write {
            face.read_exact(&mut content[range.clone()]).unwrap();
        }
        let reply = SimpleReply { error: 0, cookie: request.cookie };
        face.write_all(&reply.encode()).unwrap();
        if request.command == Asked::Read {
            face.write_all(&content[range]).unwrap();
        }
    }
}

/// The face and its device without an engine: memory that this process serves.
struct Device {
    directory: PathBuf,
    process: Child,
    /// Whoever holds it keeps everything waiting that the device is asked for.
    content: Arc<Mutex<Vec<u8>>>,
    path: String,
}

impl Device {
    fn new(cluster: &Cluster, directory: PathBuf, size: u64) -> Device {
        fs::create_dir_all(directory.join(face::MOUNT)).unwrap();
        let process = Command::new(engine_support::binary())
            .args(["face", "--depth", "16", "--patience", "20", "--directory"])
            .arg(&directory)
            .spawn()
            .unwrap();
        let content = Arc::new(Mutex::new(Vec::new()));
        let mut device = Device { directory, process, content, path: String::new() };
        cluster.wait("the face listens", |_| face::is_alive(&device.directory));
        device.serve(size);
        cluster.wait("there is a file", |_| device.file().exists());
        let file = OpenOptions::new().read(true).write(true).open(device.file()).unwrap();
        device.path = loopdev::attach(&file, false, 512, "ashlar-test").unwrap();
        device
    }

    fn file(&self) -> PathBuf {
        self.directory.join(face::FILE)
    }

    /// From now on it has this size.
    fn serve(&self, size: u64) {
        let face = UnixStream::connect(self.directory.join(face::SOCKET)).unwrap();
        let content = self.content.clone();
        std::thread::spawn(move || answer(face, &content, size));
    }

    fn end(mut self, cluster: &Cluster) {
        loopdev::detach(&self.path).unwrap();
        cluster.wait("the device is free", |_| loopdev::is_free(&self.path));
        assert!(face::tell_end(&self.directory).unwrap());
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn a_device_has_the_size_that_the_newest_connection_tells() {
    let Some(rig) = Rig::of_two() else { return };
    let directory = rig.alpha().directory.join("state/faces/test");
    let device = Device::new(&rig.cluster, directory, 8 << 20);
    let path = &device.path;
    assert!(loopdev::has_name(path, "ashlar-test") && !loopdev::has_name(path, "ashlar"));
    let size = || ok("blockdev", &["--getsize64", path]).trim().parse::<u64>().unwrap();
    assert_eq!(size(), 8 << 20);
    device.serve(12 << 20);
    let has_grown = || fs::metadata(device.file()).unwrap().len() == 12 << 20;
    rig.cluster.wait("the file has grown", |_| has_grown());
    loopdev::renew_size(path).unwrap();
    assert_eq!(size(), 12 << 20);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.write_all_at(&pattern(1, 4096), 10 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(device.content.lock().unwrap()[10 << 20..][..4096] == pattern(1, 4096));
    device.end(&rig.cluster);
}

/// The disk of either node hangs, and answers much later: what it was asked for meanwhile has gone
/// on by the other one, and stays.
#[test]
fn a_disk_that_hangs_is_given_up_after_disk_timeout() {
    const SIZE: u64 = 64 << 20;
    let nodes = vec!["alpha", "bravo"];
    let sections = "disk { disk-timeout 10; }".to_owned();
    let setup = Setup { nodes, disk: SIZE, sections, ..Setup::default() };
    let Some(mut rig) = Rig::before(&setup) else { return };
    let devices = [0, 1].map(|node| {
        let directory = rig.cluster.nodes[node].directory.join("state/faces/test");
        let device = Device::new(&rig.cluster, directory, SIZE);
        let image = rig.cluster.disk(node, 0).display().to_string();
        rig.cluster.reconfigure(|config| config.replace(&image, &device.path));
        device
    });
    rig.cluster.bring_up(&setup);
    let mut client = Client::open(&rig.alpha().export(), "r0/0").unwrap();
    for (node, device) in devices.iter().enumerate() {
        let here = &rig.cluster.nodes[node];
        client.write(0, &pattern(10, 4096)).unwrap();
        let hung = device.content.lock().unwrap();
        client.write(0, &pattern(11 + node as u64, 4096)).unwrap();
        let read = client.read(1 << 20, 4096).unwrap();
        assert!(read == vec![0; 4096], "a read is answered by the other disk");
        rig.cluster.wait("the disk is given up", |_| here.disk_state(0) == "Diskless");
        rig.cluster.wait_logged(node, "(disk-timeout 1.0 s)");
        assert!(rig.cluster.nodes.iter().all(Node::is_connected), "for that it is there");
        client.write(0, &pattern(21 + node as u64, 4096)).unwrap();
        let (_, refusal) = here.fails(&["attach", "r0/0"]);
        println!("{}", refusal.trim());
        drop(hung);
        rig.cluster.wait("the disk is back", |_| here.cli(&["attach", "r0/0"]).status.success());
        rig.cluster.wait("it is in sync", |c| c.all_up_to_date());
        let content = device.content.lock().unwrap();
        assert!(content[..4096] == pattern(21 + node as u64, 4096), "nothing older has come later");
    }
    client.close();
    rig.cluster.nodes.iter_mut().for_each(|node| assert!(node.stop(), "{}", node.name));
    let [first, second] = devices.each_ref().map(|device| device.content.lock().unwrap().clone());
    let data = (SIZE - (2 << 20)) as usize;
    assert!(first[..data] == second[..data], "the replicas are equal");
    devices.into_iter().for_each(|device| device.end(&rig.cluster));
}

#[test]
fn what_a_killed_engine_left_can_be_unmapped_and_does_not_outlive_its_volume() {
    let Some(mut rig) = Rig::of_two() else { return };
    let device = map(rig.alpha(), &[]);
    rig.cluster.nodes[0].kill();
    // Another node has the volume: the device waits for it.
    let bravo = &rig.cluster.nodes[1];
    let other = map(bravo, &[]);
    rig.cluster.nodes[0].start();
    let alpha = rig.alpha();
    let shown = maps(alpha);
    assert_eq!(shown[0]["device"], Value::Null, "{shown}");
    let begun = Instant::now();
    while !maps(alpha)[0]["problem"].as_str().unwrap().contains("can not be opened") {
        assert!(begun.elapsed() < PATIENCE, "{}", maps(alpha));
        std::thread::sleep(Duration::from_millis(50));
    }
    let (_, why) = alpha.fails(&["down", "r0"]);
    assert!(why.contains(&device), "{why}");
    alpha.ok(&["unmap", "r0/0"]);
    let queue = Path::new("/sys/block").join(&device[5..]);
    rig.cluster.wait("the device is free", |_| !queue.join("loop").exists());
    assert_ne!(other, "");
    rig.cluster.nodes[1].ok(&["unmap", "r0/0"]);
    rig.finish();
}
