//! Pools of LVM, for real: in a guest that has device-mapper, which `cargo xtask vm lvm` starts.
//!
//! `ASHLAR_LVM_GUEST` is the command that runs another one where LVM is (`ssh …`); there a volume
//! group `vg` has room for 40 MiB and a thin pool `thin` of 16 MiB.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use agent::command::{CommandError, Runner, System};
use agent::storage::lvm::Group;
use agent::storage::{Kind, Name, Provider, Why};
use vocab::Bytes;

const MIB: u64 = 1 << 20;

/// Commands in the guest.
#[derive(Debug)]
struct Guest {
    prefix: Vec<String>,
}

impl Guest {
    fn get() -> Option<Guest> {
        let Ok(prefix) = std::env::var("ASHLAR_LVM_GUEST") else {
            println!("skipped: ASHLAR_LVM_GUEST is not set; `cargo xtask vm lvm` runs this test");
            return None;
        };
        Some(Guest { prefix: prefix.split_whitespace().map(str::to_owned).collect() })
    }

    fn shell(&self, line: &str) -> String {
        self.run(&[line]).unwrap()
    }
}

impl Runner for &Guest {
    fn run(&self, argv: &[&str]) -> Result<String, CommandError> {
        let mut whole: Vec<&str> = self.prefix.iter().map(String::as_str).collect();
        whole.extend(argv);
        System::default().run(&whole)
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn names(pool: &impl Provider) -> Vec<String> {
    pool.volumes().unwrap().into_iter().map(|volume| volume.name).collect()
}

#[test]
fn a_guest_s_volume_group_serves_as_pools() {
    let Some(guest) = Guest::get() else { return };
    groups_that_do_not_exist(&guest);
    thick(&guest);
    thin(&guest);
}

fn groups_that_do_not_exist(guest: &Guest) {
    for (group, thin) in
        [("nothing", None), ("vg", Some(name("nothing"))), ("nothing", Some(name("x")))]
    {
        let error = Group::open(guest, name(group), thin).unwrap_err();
        assert_eq!(error.why, Why::NotFound, "{error}");
    }
}

fn thick(guest: &Guest) {
    let pool = Group::open(guest, name("vg"), None).unwrap();
    assert_eq!(pool.kind(), Kind::Lvm);
    let unit = pool.allocation_unit().unwrap();
    let before = pool.space().unwrap();
    let db = name("db_00000");

    let made = pool.create(&db, Bytes(5 * MIB)).unwrap();
    assert_eq!(made.size.0, (5 * MIB).next_multiple_of(unit.0));
    assert_eq!(made.allocated, made.size);
    assert_eq!(made.path.to_str(), Some("/dev/vg/db_00000"));
    assert_eq!(pool.create(&db, Bytes(5 * MIB)).unwrap().size, made.size, "made once");
    assert_eq!(pool.create(&db, Bytes(30 * MIB)).unwrap_err().why, Why::Exists);
    assert_eq!(pool.space().unwrap().free.0, before.free.0 - made.size.0);

    let grown = pool.grow(&db, Bytes(9 * MIB)).unwrap();
    assert_eq!(grown.size.0, (9 * MIB).next_multiple_of(unit.0));
    assert_eq!(pool.grow(&db, Bytes(MIB)).unwrap().size, grown.size, "never smaller");
    let error = pool.grow(&db, Bytes(900 * MIB)).unwrap_err();
    assert_eq!(error.why, Why::NoSpace, "{error}");
    let error = pool.create(&name("big_00000"), Bytes(900 * MIB)).unwrap_err();
    assert_eq!(error.why, Why::NoSpace, "{error}");
    assert_eq!(pool.snapshot(&db, &name("s")).unwrap_err().why, Why::Unsupported);
    assert_eq!(names(&pool), ["db_00000"], "the thin pool is none of its volumes");

    guest
        .shell("exec 3< /dev/vg/db_00000; sleep 600 3<&3 > /dev/null 2>&1 & echo $! > /tmp/holder");
    let error = pool.remove(&db).unwrap_err();
    assert_eq!(error.why, Why::InUse, "{error}");
    guest.shell("kill $(cat /tmp/holder); sleep 1");
    pool.remove(&db).unwrap();
    pool.remove(&db).unwrap();
    assert_eq!(pool.space().unwrap(), before);
}

fn thin(guest: &Guest) {
    let pool = Group::open(guest, name("vg"), Some(name("thin"))).unwrap();
    assert_eq!(pool.kind(), Kind::LvmThin);
    let before = pool.space().unwrap();
    assert!(before.metadata_used.is_some_and(|percent| percent < 60), "{before:?}");
    let (db, s1, new) = (name("db_00000"), name("s1"), name("copy_00000"));
    let path = |name: &str| format!("/dev/vg/{name}");
    let write = |name: &str, text: &str| {
        guest.shell(&format!(
            "printf {text} | dd of={} bs=4096 seek=1 conv=fsync 2>/dev/null",
            path(name)
        ));
    };
    let read = |name: &str| {
        guest.shell(&format!("dd if={} bs=4096 skip=1 count=1 2>/dev/null | head -c 5", path(name)))
    };

    let made = pool.create(&db, Bytes(64 * MIB)).unwrap();
    assert_eq!((made.size, made.allocated), (Bytes(64 * MIB), Bytes(0)), "more than the pool has");
    write("db_00000", "first");
    assert!(pool.space().unwrap().free < before.free);
    let snapshot = pool.snapshot(&db, &s1).unwrap();
    assert!(snapshot.is_snapshot && snapshot.name == "db_00000_s1");
    assert_eq!(pool.snapshot(&db, &s1).unwrap().name, snapshot.name, "made once");
    write("db_00000", "later");

    let same = name("db_00000_s1");
    assert_eq!(pool.create(&same, Bytes(64 * MIB)).unwrap_err().why, Why::Exists);
    assert_eq!(pool.remove(&same).unwrap_err().why, Why::Exists);

    pool.restore(&db, &s1, &new).unwrap();
    assert_eq!(read("copy_00000"), "first");
    write("copy_00000", "other");
    pool.restore(&db, &s1, &new).unwrap();
    assert_eq!(read("copy_00000"), "other", "made once, and not touched again");
    assert_eq!(pool.restore(&db, &s1, &db).unwrap_err().why, Why::Exists);

    assert_eq!(read("db_00000"), "later");
    pool.rollback(&db, &s1).unwrap();
    assert_eq!(read("db_00000"), "first");
    write("db_00000", "again");
    // As if the node had stopped between the two halves of a rollback.
    guest.shell(
        "lvcreate --yes --snapshot --permission rw --setactivationskip n --activate y \
         --ignoreactivationskip --name db_00000+rollback vg/db_00000_s1 >/dev/null 2>&1; \
         lvremove --yes --force vg/db_00000 >/dev/null 2>&1",
    );
    assert_eq!(names(&pool), ["copy_00000", "db_00000+rollback", "db_00000_s1"]);
    pool.rollback(&db, &s1).unwrap();
    assert_eq!(read("db_00000"), "first");

    pool.remove(&db).unwrap();
    pool.remove_snapshot(&db, &s1).unwrap();
    pool.remove_snapshot(&db, &s1).unwrap();
    assert_eq!(read("copy_00000"), "other", "what it was made from may go");
    pool.remove(&new).unwrap();
    assert_eq!(names(&pool), Vec::<String>::new());
    assert_eq!(pool.space().unwrap().free, before.free);
}
