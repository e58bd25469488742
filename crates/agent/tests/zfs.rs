//! Pools of ZFS, for real: run in a guest that has it, by `cargo xtask vm zfs`.
//!
//! `ASHLAR_ZFS` is a dataset with room for some 300 MiB, below which there is nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use agent::command::{Runner, System};
use agent::storage::zfs::Dataset;
use agent::storage::{Kind, Name, Provider, Why};
use vocab::Bytes;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 8192;
const EXCLUSIVE: i32 = rustix::fs::OFlags::EXCL.bits() as i32;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn names(pool: &impl Provider) -> Vec<String> {
    pool.volumes().unwrap().into_iter().map(|volume| volume.name).collect()
}

/// Everything that ZFS has below the dataset.
fn left(dataset: &str) -> String {
    let argv = ["zfs", "list", "-H", "-r", "-t", "all", "-o", "name", dataset];
    System::default().run(&argv).unwrap()
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(EXCLUSIVE).open(path).unwrap()
}

fn write(path: &Path, text: &str) {
    let file = open(path);
    file.write_all_at(text.as_bytes(), 4096).unwrap();
    file.sync_all().unwrap();
}

fn read(path: &Path) -> String {
    let mut bytes = [0; 5];
    open(path).read_exact_at(&mut bytes, 4096).unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_dataset_serves_as_pools() {
    let Ok(dataset) = std::env::var("ASHLAR_ZFS") else {
        return println!("skipped: ASHLAR_ZFS is not set; `cargo xtask vm zfs` runs this test");
    };
    for dataset in ["nothing".to_owned(), format!("{dataset}/nothing")] {
        let error = Dataset::open(System::default(), &dataset, false).unwrap_err();
        assert_eq!(error.why, Why::NotFound, "{error}");
    }
    reserved(&dataset);
    thin(&dataset);
    assert_eq!(left(&dataset).trim(), dataset);
}

fn reserved(dataset: &str) {
    let pool = Dataset::open(System::default(), dataset, false).unwrap();
    assert_eq!((pool.kind(), pool.allocation_unit().unwrap()), (Kind::Zfs, Bytes(BLOCK)));
    let before = pool.space().unwrap();
    let (db, s1) = (name("db_00000"), name("s1"));

    let made = pool.create(&db, Bytes(5 * MIB + 1000)).unwrap();
    assert_eq!(made.size.0, (5 * MIB + 1000).next_multiple_of(BLOCK));
    assert_eq!(made.allocated, made.size);
    assert_eq!(made.path, Path::new("/dev/zvol").join(dataset).join("db_00000"));
    assert_eq!(pool.create(&db, Bytes(5 * MIB + 1000)).unwrap().size, made.size, "made once");
    assert_eq!(pool.create(&db, Bytes(30 * MIB)).unwrap_err().why, Why::Exists);
    let taken = before.free.0 - pool.space().unwrap().free.0;
    assert!(taken >= made.size.0, "{taken} bytes are reserved for a volume of {}", made.size.0);

    let grown = pool.grow(&db, Bytes(9 * MIB)).unwrap();
    assert_eq!(grown.size.0, 9 * MIB);
    assert_eq!(pool.grow(&db, Bytes(MIB)).unwrap().size, grown.size, "never smaller");
    let error = pool.grow(&db, Bytes(9 << 30)).unwrap_err();
    assert_eq!(error.why, Why::NoSpace, "{error}");
    let error = pool.create(&name("big_00000"), Bytes(9 << 30)).unwrap_err();
    assert_eq!(error.why, Why::NoSpace, "{error}");
    assert_eq!(names(&pool), ["db_00000"]);

    write(&made.path, "first");
    pool.snapshot(&db, &s1).unwrap();
    write(&made.path, "later");
    pool.rollback(&db, &s1).unwrap();
    assert_eq!(read(&made.path), "first");
    pool.remove_snapshot(&db, &s1).unwrap();

    let held = open(&made.path);
    let error = pool.remove(&db).unwrap_err();
    assert_eq!(error.why, Why::InUse, "{error}");
    drop(held);
    pool.remove(&db).unwrap();
    pool.remove(&db).unwrap();
    assert_eq!(left(dataset).trim(), dataset);
}

fn thin(dataset: &str) {
    let pool = Dataset::open(System::default(), dataset, true).unwrap();
    assert_eq!(pool.kind(), Kind::ZfsThin);
    let (db, s1, s2, new) = (name("db_00000"), name("s1"), name("s2"), name("copy_00000"));

    let made = pool.create(&db, Bytes(4 << 30)).unwrap();
    assert_eq!(made.size, Bytes(4 << 30), "more than the pool has");
    assert!(made.allocated.0 < MIB, "{made:?}");
    let path = made.path;
    write(&path, "first");
    let snapshot = pool.snapshot(&db, &s1).unwrap();
    assert!(snapshot.is_snapshot && snapshot.name == "db_00000@s1");
    assert_eq!(pool.snapshot(&db, &s1).unwrap().name, snapshot.name, "made once");
    write(&path, "later");
    pool.snapshot(&db, &s2).unwrap();
    write(&path, "newer");
    assert_eq!(names(&pool), ["db_00000", "db_00000@s1", "db_00000@s2"]);

    let copy = pool.restore(&db, &s1, &new).unwrap().path;
    assert_eq!(read(&copy), "first");
    write(&copy, "other");
    pool.restore(&db, &s1, &new).unwrap();
    assert_eq!(read(&copy), "other", "made once, and not touched again");
    assert_eq!(pool.restore(&db, &s1, &db).unwrap_err().why, Why::Exists);
    assert_eq!(pool.restore(&db, &name("s3"), &name("x")).unwrap_err().why, Why::NotFound);

    // The newest in place; an older one with what is newer kept.
    pool.rollback(&db, &s2).unwrap();
    assert_eq!(read(&path), "later");
    pool.rollback(&db, &s1).unwrap();
    assert_eq!(read(&path), "first");
    pool.rollback(&db, &s2).unwrap();
    assert_eq!(read(&path), "later");

    // In an order in which everything still hangs on something.
    pool.remove_snapshot(&db, &s1).unwrap();
    pool.remove_snapshot(&db, &s1).unwrap();
    pool.remove(&db).unwrap();
    assert_eq!(read(&copy), "other", "what it was made from may go");
    pool.remove_snapshot(&db, &s2).unwrap();
    pool.remove(&new).unwrap();
    assert_eq!(names(&pool), Vec::<String>::new());
}
