//! Devices that are there while their volumes are not open, on two nodes at a time.

use std::fs::File;

use super::*;

/// A device that stands by, and who its node is.
struct Stood {
    node: usize,
    device: String,
}

impl Stood {
    fn new(rig: &Rig, node: usize) -> Stood {
        let device = map(&rig.cluster.nodes[node], &["--standby"]);
        Stood { node, device }
    }

    fn is(&self, cluster: &Cluster, standby: &str) -> bool {
        maps(&cluster.nodes[self.node])[0]["standby"] == standby
    }

    /// The volume is not open any more, and the node not Primary.
    fn wait_closed(&self, rig: &Rig) {
        let name = rig.cluster.nodes[self.node].name;
        rig.cluster.wait(&format!("{name} has it closed"), |c| {
            self.is(c, "closed") && c.nodes[self.node].status()["role"] == "Secondary"
        });
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.device).unwrap()
    }

    fn write(&self, seed: u64) -> std::io::Result<()> {
        let file = self.open();
        file.write_all_at(&pattern(seed, 4096), 0)?;
        file.sync_all()
    }

    fn reads(&self, seed: u64) {
        assert!(self.read().unwrap() == pattern(seed, 4096), "it reads what was written last");
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut found = vec![0; 4096];
        File::open(&self.device)?.read_exact_at(&mut found, 0).map(|()| found)
    }
}

#[test]
fn a_device_that_stands_by_is_open_only_while_somebody_uses_it() {
    let Some(rig) = Rig::of_two() else { return };
    let (a, b) = (Stood::new(&rig, 0), Stood::new(&rig, 1));
    let (alpha, bravo) = (rig.alpha(), &rig.cluster.nodes[1]);
    let (_, why) = alpha.fails(&["map", "r0/0", "--standby", "--read-only"]);
    assert!(why.contains("--read-only"), "{why}");
    a.wait_closed(&rig);
    b.wait_closed(&rig);
    // Writing makes a node Primary, and another one can not even read then.
    let writer = b.open();
    writer.write_all_at(&pattern(1, 4096), 0).unwrap();
    writer.sync_all().unwrap();
    assert_eq!(bravo.status()["role"], "Primary");
    assert!(a.read().is_err(), "another node writes");
    drop(writer);
    b.wait_closed(&rig);
    // Who reads keeps others from writing, for as long as he has the device open, quiet or not.
    let reader = File::open(&a.device).unwrap();
    let mut found = vec![0; 4096];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert!(found == pattern(1, 4096));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(a.is(&rig.cluster, "reading"), "{}", alpha.ok(&["maps"]));
    assert_eq!(alpha.status()["role"], "Secondary", "nobody is promoted to read");
    assert!(b.write(9).is_err(), "another node reads");
    drop(reader);
    a.wait_closed(&rig);
    b.wait_closed(&rig);
    b.write(2).unwrap();
    // At once: who opens it waits for the other to be Secondary again.
    a.reads(2);
    a.wait_closed(&rig);

    // A file system is in use while it is mounted, whatever it does.
    let place = alpha.directory.join("mounted");
    for (kind, make) in [("ext4", ["mkfs.ext4", "-qF"]), ("xfs", ["mkfs.xfs", "-qf"])] {
        ok(make[0], &[make[1], &a.device]);
        let mounted = Mount::new(&a.device, kind, &place);
        fs::write(place.join("kept"), pattern(3, 1 << 20)).unwrap();
        ok("sync", &["-f", place.to_str().unwrap()]);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(a.is(&rig.cluster, "writing"), "{kind}: {}", alpha.ok(&["maps"]));
        for refused in [&["down", "r0"][..], &["unmap", "r0/0"], &["secondary", "r0"]] {
            let (_, why) = alpha.fails(refused);
            assert!(why.contains("in use") || why.contains("open for writing"), "{why}");
        }
        assert_eq!(alpha.status()["role"], "Primary");
        assert!(b.write(9).is_err(), "another node writes");
        drop(mounted);
        alpha.ok(&["secondary", "r0"]);
        a.wait_closed(&rig);
        let mounted = Mount::new(&b.device, kind, &place);
        drop(mounted);
        // And at once on the first one again.
        let mounted = Mount::new(&a.device, kind, &place);
        assert!(fs::read(place.join("kept")).unwrap() == pattern(3, 1 << 20), "{kind}");
        drop(mounted);
        a.wait_closed(&rig);
    }
    assert_eq!(map(alpha, &[]), a.device, "it does for who wants one that is open");
    bravo.ok(&["unmap", "r0/0"]);
    alpha.ok(&["unmap", "r0/0"]);
    assert_eq!(maps(alpha), serde_json::json!([]));
    rig.finish();
}

#[test]
fn a_device_that_stands_by_outlives_its_engine() {
    let Some(mut rig) = Rig::of_two() else { return };
    let (a, b) = (Stood::new(&rig, 0), Stood::new(&rig, 1));
    a.write(1).unwrap();
    a.wait_closed(&rig);
    let goes_on = |rig: &mut Rig| {
        rig.cluster.nodes[0].start();
        let there = |c: &Cluster| maps(&c.nodes[0])[0]["device"] == a.device.as_str();
        rig.cluster.wait("the device goes on", there);
        rig.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    };
    // Nobody uses it, so others may have written.
    rig.cluster.nodes[0].kill();
    b.write(2).unwrap();
    b.wait_closed(&rig);
    goes_on(&mut rig);
    a.reads(2);
    // Somebody does.
    let user = a.open();
    user.write_all_at(&pattern(3, 4096), 0).unwrap();
    rig.cluster.nodes[0].kill();
    goes_on(&mut rig);
    assert!(b.write(9).is_err(), "the other node has it open");
    user.write_all_at(&pattern(4, 4096), 8192).unwrap();
    user.sync_all().unwrap();
    let mut found = vec![0; 4096];
    user.read_exact_at(&mut found, 0).unwrap();
    assert!(found == pattern(3, 4096), "what was not written yet is written later");
    // The next engine has it open as this one had, or closed.
    println!("{}", rig.cluster.nodes[0].upgrade().trim());
    assert!(a.is(&rig.cluster, "writing"), "{}", rig.alpha().ok(&["maps"]));
    user.write_all_at(&pattern(5, 4096), 0).unwrap();
    user.sync_all().unwrap();
    drop(user);
    a.wait_closed(&rig);
    println!("{}", rig.cluster.nodes[0].upgrade().trim());
    assert!(a.is(&rig.cluster, "closed"), "{}", rig.alpha().ok(&["maps"]));
    b.write(6).unwrap();
    b.wait_closed(&rig);
    a.reads(6);
    // Somebody who uses it remembers what is no more.
    let user = a.open();
    user.read_exact_at(&mut found, 0).unwrap();
    rig.cluster.nodes[0].kill();
    b.write(7).unwrap();
    b.wait_closed(&rig);
    rig.cluster.nodes[0].start();
    rig.cluster.wait("alpha is mapped again", |c| maps(&c.nodes[0])[0]["device"].is_string());
    rig.cluster.wait_logged(0, "goes away under its users");
    let late = user.write_all_at(&pattern(8, 4096), 0).and_then(|()| user.sync_all());
    assert!(late.is_err(), "who remembers the old data can not write");
    drop(user);
    let device = maps(rig.alpha())[0]["device"].as_str().unwrap().to_owned();
    Stood { node: 0, device }.reads(7);
    rig.alpha().ok(&["unmap", "r0/0"]);
    rig.finish();
}

#[test]
fn an_engine_has_devices_of_all_volumes_when_it_is_told_to() {
    let nodes = vec!["alpha", "bravo"];
    let setup = Setup { nodes, disk: 64 << 20, ..Setup::default() };
    let Some(mut rig) = Rig::before(&setup) else { return };
    if Path::new("/dev/drbd0").exists() {
        return println!("skipped: there is a /dev/drbd0");
    }
    // Both would have the same names below /dev.
    rig.cluster.nodes[0].args.push("--devices=yes".to_owned());
    rig.cluster.bring_up(&setup);
    rig.cluster.wait("there is a device", |_| Path::new("/dev/drbd0").exists());
    let device = fs::canonicalize("/dev/drbd0").unwrap().display().to_string();
    let drbd = Stood { node: 0, device };
    drbd.wait_closed(&rig);
    ok("mkfs.ext4", &["-qF", "/dev/drbd/by-res/r0/0"]);
    drbd.wait_closed(&rig);
    let place = rig.alpha().directory.join("mounted");
    let mounted = Mount::new("/dev/drbd0", "ext4", &place);
    let (_, why) = rig.alpha().fails(&["down", "r0"]);
    assert!(why.contains("mounted at"), "{why}");
    drop(mounted);
    // What an operator takes away stays away.
    rig.alpha().ok(&["unmap", "r0/0"]);
    std::thread::sleep(Duration::from_millis(2500));
    assert!(!Path::new("/dev/drbd0").exists());
    map(rig.alpha(), &["--standby", "--drbd-names"]);
    rig.alpha().ok(&["down", "r0"]);
    assert!(!Path::new("/dev/drbd0").exists(), "it goes with its volume");
    rig.alpha().ok(&["up", "r0"]);
    rig.cluster.wait("there is a device again", |_| Path::new("/dev/drbd0").exists());
    rig.alpha().ok(&["down", "r0"]);
}
