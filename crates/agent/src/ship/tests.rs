//! Snapshots to a small store of objects and back, crashes, and what a store has that was not put there.
//! Pools are folders on XFS, on a loop device; where none can be mounted a test prints why and passes.
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../../../shipping/tests/server/mod.rs"]
mod server;

mod crossing;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use api::link::Pool;
use cluster::layer::Layer;
use cluster::name::{NodeName, PoolName, SnapshotName};
use cluster::objects::{Millis, Provider};
use cluster::shipping::{
    Described, DescribedVolume, DownloadFrom, DownloadOrder, Listen, Peer, UploadOrder,
};
use crypt::seal::MasterKey;
use server::{ACCESS, BUCKET, REGION, SECRET, Server};
use shipping::description::Description;
use vocab::{Bytes, NodeId, VolumeNr};

use super::*;
use crate::carry::Master;
use crate::mapper::{Choice, Mapper};
use crate::pools::Pools;
use crate::record::{Snapshot, Store};
use crate::storage::Name;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 24 * MIB;
const FULL: &str = "web_back_20261129_000000";
const SECOND: &str = "web_back_20261130_000000";

struct Bed {
    directory: tempfile::TempDir,
    server: Server,
    bucket: Bucket,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path().join("pool")).status();
    }
}

fn pool() -> PoolName {
    PoolName::new("thin").unwrap()
}

fn web() -> ResourceName {
    ResourceName::new("web").unwrap()
}

fn copy() -> ResourceName {
    ResourceName::new("copy").unwrap()
}

fn snap(name: &str) -> SnapshotName {
    SnapshotName::new(name).unwrap()
}

fn master() -> MasterKey {
    MasterKey::new(&mut |bytes| bytes.fill(7))
}

impl Bed {
    fn new() -> Option<Bed> {
        let directory = tempfile::tempdir().unwrap();
        let (image, at) = (directory.path().join("image"), directory.path().join("pool"));
        fs::File::create(&image).unwrap().set_len(512 * MIB).unwrap();
        fs::create_dir(&at).unwrap();
        let (image, to) = (image.display().to_string(), at.display().to_string());
        for argv in [vec!["mkfs.xfs", "-q", &image], vec!["mount", "-o", "loop", &image, &to]] {
            let done = Command::new(argv[0]).args(&argv[1..]).output();
            if !done.as_ref().is_ok_and(|output| output.status.success()) {
                println!("skipped: {} does not work here: {done:?}", argv.join(" "));
                return None;
            }
        }
        let server = Server::start();
        let seal = |text: &str| master().seal(&text.into(), &mut |bytes| bytes.fill(3));
        let bucket = Bucket {
            endpoint: server.endpoint(),
            bucket: BUCKET.to_owned(),
            region: REGION.to_owned(),
            path_style: true,
            access_key: seal(ACCESS),
            secret_key: seal(SECRET),
        };
        Some(Bed { directory, server, bucket })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The agent as it starts.
    fn start(&self) -> Node {
        let node = Node {
            name: NodeName::new("alpha").unwrap(),
            socket: self.path("sock"),
            store: Store::open(&self.path("agent")).unwrap(),
            pools: Pools::open(&self.path("agent")).unwrap(),
            suspend_for: Duration::from_secs(10),
            shipments: Shipments::default(),
            files_below: Vec::new(),
            master: Master::default(),
            mapper: Mapper::new(Choice::Engine),
            program: None,
        };
        node.master.tell(&master().to_secret()).unwrap();
        let folder = self.path("pool").display().to_string();
        let props = [("StorDriver/StorPoolName".to_owned(), folder)].into();
        let new = Pool { provider: Provider::FileThin, props };
        node.pools.tell(Generation(1), [(pool(), new)].into()).unwrap();
        node
    }

    /// Writes to the volume, and takes a snapshot.
    fn take(&self, node: &Node, name: &str, writes: &[(u64, u8, usize)]) {
        let open = node.pools.get(&pool()).unwrap();
        let volume = Name::new("web_00000").unwrap();
        let made = open.create(&volume, Bytes(SIZE)).unwrap();
        let file = fs::OpenOptions::new().write(true).open(made.path).unwrap();
        for (offset, byte, length) in writes {
            file.write_all_at(&vec![*byte; *length], *offset).unwrap();
        }
        open.snapshot(&volume, &Name::new(name).unwrap()).unwrap();
        let volumes = [(0, (pool(), Provider::FileThin))].into();
        let snapshot = Snapshot { token: Generation(2), complete: true, volumes };
        node.store.update(&web(), |r| r.snapshots.insert(snap(name), snapshot)).unwrap();
    }

    fn upload(
        &self,
        node: &Node,
        snapshot: &str,
        backup: &str,
        base: Option<(&str, &str)>,
    ) -> ShipmentState {
        let volume = DescribedVolume {
            size: Bytes(20 * MIB),
            gross_size: false,
            props: BTreeMap::new(),
            pool: pool(),
        };
        let order = UploadOrder {
            token: Generation(10),
            snapshot: snap(snapshot),
            to: UploadTo::Bucket(self.bucket.clone()),
            backup: backup.to_owned(),
            base: base.map(|(snapshot, backup)| (snap(snapshot), backup.to_owned())),
            described: Described {
                since: Millis(5),
                cluster: "c".to_owned(),
                uuid: "u".to_owned(),
                layers: vec![Layer::Drbd, Layer::Storage],
                node_id: NodeId::new(0),
                peer_slots: 7,
                props: BTreeMap::new(),
                volumes: [(VolumeNr(0), volume)].into(),
                keys: None,
            },
        };
        carry(node, &web(), Action::Upload(Box::new(order)), Generation(10))
    }

    fn download(&self, node: &Node, chain: &[&str]) -> ShipmentState {
        let order = DownloadOrder {
            token: Generation(20),
            snapshot: snap("back"),
            from: DownloadFrom::Bucket(self.bucket.clone()),
            chain: chain.iter().map(|id| (*id).to_owned()).collect(),
            volumes: [(0, (pool(), Provider::FileThin, SIZE))].into(),
            drbd: false,
            passphrases: BTreeMap::new(),
        };
        carry(node, &copy(), Action::Download(Box::new(order)), Generation(20))
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("pool")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn content(&self, file: &str) -> Vec<u8> {
        fs::read(self.path("pool").join(file)).unwrap()
    }
}

/// Does what the daemon does with a step that ships.
fn carry(node: &Node, name: &ResourceName, action: Action, token: Generation) -> ShipmentState {
    // One that has ended is begun again as if the agent was started again.
    node.shipments.lock().clear();
    for _ in 0..2 {
        if let Err(failed) = node.carry_out(name, Generation(30), &action) {
            let cause = Some(failed.to_string());
            let (phase, door) = (Phase::Failed, None);
            return ShipmentState { token, phase, done_percent: 0, cause, door };
        }
    }
    let stop = node.shipments.begin(name, token).unwrap();
    assert!(node.shipments.begin(name, token).is_none(), "once");
    let _ = run(node, name, &action, stop, &|| {});
    assert!(!node.shipments.is_busy(name));
    node.shipments.states(name).pop().unwrap()
}

#[test]
fn snapshots_come_back_from_full_and_incremental_backups() {
    let Some(bed) = Bed::new() else { return };
    let node = bed.start();
    bed.take(&node, "s1", &[(0, 1, 5000), (8 << 20, 2, 3 << 20)]);
    bed.take(&node, "s2", &[(4096, 9, 4096), (9 << 20, 0, 1 << 20), (SIZE - 4096, 5, 4096)]);
    assert_eq!(bed.upload(&node, "s1", FULL, None).phase, Phase::Success);
    assert_eq!(bed.upload(&node, "s2", SECOND, Some(("s1", FULL))).phase, Phase::Success);
    let meta = bed.server.kept().objects[&format!("{SECOND}.meta")].clone();
    let described = Description::from_json(&meta).unwrap();
    assert_eq!(described.based_on, Some(format!("{FULL}.meta")));
    assert_eq!(described.rsc.vlms[&0].device_size, SIZE);
    assert_eq!(described.objects().next().unwrap().1.name, "web_00000_back_20261130_000000");

    assert_eq!(bed.download(&node, &[FULL, SECOND]).cause, None);
    let expected = ["copy_00000_back.img", "web_00000.img", "web_00000_s1.img", "web_00000_s2.img"];
    assert_eq!(bed.files(), expected, "the volume has gone");
    assert!(bed.content("copy_00000_back.img") == bed.content("web_00000_s2.img"));
    let record = node.store.get(&copy()).unwrap();
    assert!(record.snapshots[&snap("back")].complete && record.receiving.is_none());
    // Again, as after a report that was lost.
    assert_eq!(bed.download(&node, &[FULL, SECOND]).phase, Phase::Success);
}

/// What a backup builds on may be of another node, whose replica has metadata of its own.
#[test]
fn metadata_are_those_of_the_replica_that_was_backed_up_last() {
    let Some(bed) = Bed::new() else { return };
    let node = bed.start();
    bed.take(&node, "s1", &[(0, 1, 5000), (SIZE - 4096, 5, 4096)]);
    assert_eq!(bed.upload(&node, "s1", FULL, None).phase, Phase::Success);
    // This node's replica at the time of the first: the same data, another superblock.
    let first = fs::OpenOptions::new().write(true).open(bed.path("pool/web_00000_s1.img")).unwrap();
    first.write_all_at(&[6; 4096], SIZE - 4096).unwrap();
    bed.take(&node, "s2", &[(4096, 9, 4096), (SIZE - 4096, 6, 4096)]);
    assert_eq!(bed.upload(&node, "s2", SECOND, Some(("s1", FULL))).phase, Phase::Success);
    assert_eq!(bed.download(&node, &[FULL, SECOND]).cause, None);
    assert!(bed.content("copy_00000_back.img") == bed.content("web_00000_s2.img"));
}

#[test]
fn a_crash_leaves_nothing_and_is_no_end() {
    let Some(bed) = Bed::new() else { return };
    let node = bed.start();
    bed.take(&node, "s1", &[(0, 1, 5000)]);
    assert_eq!(bed.upload(&node, "s1", FULL, None).phase, Phase::Success);
    drop(node);
    for at in 0.. {
        let node = bed.start();
        *node.store.crash.lock().unwrap() = Some(at);
        if bed.download(&node, &[FULL]).phase == Phase::Success {
            assert!(at > 3, "{at}");
            break;
        }
        let node = bed.start();
        let complete = node
            .store
            .get(&copy())
            .is_some_and(|record| record.snapshots.values().any(|snapshot| snapshot.complete));
        node.forget_receiving(&copy()).unwrap();
        let kept = bed.files().into_iter().filter(|file| file.starts_with("copy")).count();
        assert_eq!(kept, usize::from(complete), "after a crash at write {at}");
    }
}

#[test]
fn what_fails_is_no_backup_and_says_why() {
    let Some(mut bed) = Bed::new() else { return };
    let node = bed.start();
    bed.take(&node, "s1", &[(0, 1, 5000)]);
    let lost = bed.upload(&node, "s9", FULL, None);
    assert_eq!(lost.phase, Phase::Failed);
    assert!(lost.cause.unwrap().contains("has no snapshot s9"));
    let right = bed.bucket.clone();
    bed.bucket.secret_key = master().seal(&"wrong".into(), &mut |bytes| bytes.fill(3));
    let denied = bed.upload(&node, "s1", FULL, None).cause.unwrap();
    assert!(denied.contains("SignatureDoesNotMatch"), "{denied}");
    bed.bucket.secret_key = "sealed by nobody".to_owned();
    let sealed = bed.upload(&node, "s1", FULL, None).cause.unwrap();
    assert!(sealed.contains("the key of the remote is not had"), "{sealed}");
    bed.bucket = right;
    assert!(bed.server.kept().objects.is_empty());

    assert_eq!(bed.upload(&node, "s1", FULL, None).phase, Phase::Success);
    let archive = "web_00000_back_20261129_000000".to_owned();
    let whole = bed.server.kept().objects[&archive].clone();
    for (damaged, words) in [
        (whole[..whole.len() - 1].to_vec(), "damaged"),
        (
            b"thin_send was here, and it is not for us; sixty-four bytes are more than this"
                .to_vec(),
            "not an archive of Ashlar",
        ),
        ([&whole[..100], &[whole[100] ^ 1], &whole[101..]].concat(), "damaged"),
    ] {
        bed.server.kept().objects.insert(archive.clone(), damaged);
        let refused = bed.download(&node, &[FULL]);
        let cause = refused.cause.unwrap();
        assert!(refused.phase == Phase::Failed && cause.contains(words), "{cause}");
        assert!(bed.files().iter().all(|file| !file.starts_with("copy")), "nothing is left");
        assert!(node.store.get(&copy()).is_none());
    }
    // It is there under the name of another one.
    let other = "web_00000_back_20261130_000000".to_owned();
    bed.server.kept().objects.insert(other, whole);
    let cause = bed.download(&node, &[SECOND]).cause.unwrap();
    assert!(cause.contains("it is another archive than it is called"), "{cause}");
}
