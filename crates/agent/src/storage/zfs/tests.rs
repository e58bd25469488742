//! Against recorded commands: each test has the commands that are expected, in order, and what ZFS
//! writes for them. The formats are those that its manual pages document for `-Hp`. A running ZFS is in
//! `tests/zfs.rs`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;

use super::*;
use crate::command::CommandError;

/// What is expected next, and what comes of it: output, or words on standard error.
type Line = (String, Result<String, String>);

#[derive(Debug)]
struct Script {
    lines: RefCell<VecDeque<Line>>,
}

impl Runner for &Script {
    fn run(&self, argv: &[&str]) -> Result<String, CommandError> {
        let command = argv.join(" ");
        let next = self.lines.borrow_mut().pop_front();
        let (expected, outcome) = next.unwrap_or_else(|| panic!("`{command}` was not expected"));
        assert_eq!(command, expected);
        outcome.map_err(|stderr| {
            let why = Failure::Exit { code: Some(1), stderr };
            CommandError { command, why }
        })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.lines.borrow().is_empty(), "not run: {:?}", self.lines.borrow());
        }
    }
}

const LIST: &str = "zfs list -Hp -r -d 2 -t volume,snapshot -o \
                    name,volsize,referenced,used,origin,createtxg,defer_destroy tank/a";

/// A transcript: lines that begin with `$` are commands, others what they write; `!` begins what
/// goes to standard error. `$ LIST` is the listing that most operations begin with.
fn script(text: &str) -> Script {
    let mut lines: VecDeque<Line> = VecDeque::new();
    let opening = [
        ("zfs list -Hp -d 0 -o available,quota tank/a", "7516192768\t0\n"),
        ("zpool list -Hp -o size tank", "10737418240\n"),
    ];
    for (command, output) in opening {
        lines.push_back((command.to_owned(), Ok(output.to_owned())));
    }
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(command) = line.strip_prefix("$ ") {
            let command = if command == "LIST" { LIST } else { command };
            lines.push_back((command.to_owned(), Ok(String::new())));
            continue;
        }
        let (_, outcome) = lines.back_mut().expect("a command comes first");
        match (line.strip_prefix("! "), outcome) {
            (Some(words), outcome) => *outcome = Err(words.to_owned()),
            (None, Ok(output)) => *output += &format!("{}\n", line.replace(" | ", "\t")),
            (None, Err(_)) => panic!("a command fails, or writes something"),
        }
    }
    Script { lines: RefCell::new(lines) }
}

/// A pool whose devices are there for these volumes.
fn pool<'s>(
    script: &'s Script,
    thin: bool,
    devices: &[&str],
) -> (tempfile::TempDir, Dataset<&'s Script>) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("tank/a")).unwrap();
    for device in devices {
        File::create(directory.path().join("tank/a").join(device)).unwrap();
    }
    let pool = Dataset::with_devices(script, "tank/a", thin, directory.path()).unwrap();
    (directory, pool)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

const MIB: u64 = 1 << 20;

#[test]
fn space_is_the_pool_s_or_the_quota_and_names_are_checked() {
    let script = script(
        "$ zfs list -Hp -d 0 -o available,quota tank/a
         1073741824 | 2147483648",
    );
    let (_directory, pool) = pool(&script, true, &[]);
    let space = pool.space().unwrap();
    assert_eq!((space.total, space.free), (Bytes(2 << 30), Bytes(1 << 30)));
    assert_eq!(pool.kind(), Kind::ZfsThin);
    let never = Script { lines: RefCell::default() };
    for bad in ["", "/tank", "tank/", "tank//a", "-x", "tank/a b", "tank@a", "../x"] {
        assert_eq!(Dataset::open(&never, bad, true).unwrap_err().why, Why::Invalid, "{bad:?}");
    }
    let absent = Script {
        lines: RefCell::new(VecDeque::from([(
            "zfs list -Hp -d 0 -o available,quota nope".to_owned(),
            Err("cannot open 'nope': dataset does not exist".to_owned()),
        )])),
    };
    assert_eq!(Dataset::open(&absent, "nope", false).unwrap_err().why, Why::NotFound);
}

#[test]
fn a_volume_is_made_once_with_its_space_or_without() {
    for (thin, sparse) in [(true, "-s "), (false, "")] {
        let script = script(&format!(
            "$ LIST
             $ zfs create {sparse}-b 8192 -V 5251072 tank/a/db_00000
             $ LIST
             tank/a/db_00000 | 5251072 | 57344 | 57344 | - | 120 | -
             $ LIST
             tank/a/db_00000 | 5251072 | 57344 | 57344 | - | 120 | -
             tank/a/other/x | 5251072 | 57344 | 57344 | - | 121 | -
             tank/a/fs@s | - | 57344 | 57344 | - | 122 | off
             $ LIST
             tank/a/db_00000 | 5251072 | 57344 | 57344 | - | 120 | -
             $ LIST
             tank/a/db_00000 | 5251072 | 57344 | 57344 | - | 120 | -"
        ));
        let (_directory, pool) = pool(&script, thin, &["db_00000"]);
        let made = pool.create(&name("db_00000"), Bytes(5 * MIB + 1)).unwrap();
        assert_eq!(made.size.0 % 8192, 0);
        assert_eq!(made.size, Bytes(5_251_072), "rounded up");
        assert_eq!(made.allocated.0, if thin { 57_344 } else { 5_251_072 });
        assert!(made.path.ends_with("tank/a/db_00000") && !made.is_snapshot);
        assert_eq!(pool.create(&name("db_00000"), Bytes(5 * MIB + 1)).unwrap().size, made.size);
        let error = pool.create(&name("db_00000"), Bytes(30 * MIB)).unwrap_err();
        assert_eq!(error.why, Why::Exists);
    }
}

#[test]
fn what_there_is_no_space_for_is_neither_made_nor_grown() {
    let script = script(
        "$ LIST
         $ zfs create -b 8192 -V 1099511627776 tank/a/db_00000
         ! cannot create 'tank/a/db_00000': out of space
         $ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         $ zfs set volsize=1099511627776 tank/a/db_00000
         ! cannot set property for 'tank/a/db_00000': size is greater than available space
         $ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         $ zfs set volsize=16777216 tank/a/db_00000
         $ LIST
         tank/a/db_00000 | 16777216 | 57344 | 57344 | - | 120 | -
         $ LIST
         tank/a/db_00000 | 16777216 | 57344 | 57344 | - | 120 | -
         $ LIST
         tank/a/db_00000 | 16777216 | 57344 | 57344 | - | 120 | -",
    );
    let (_directory, pool) = pool(&script, false, &[]);
    let db = name("db_00000");
    let error = pool.create(&db, Bytes(1 << 40)).unwrap_err();
    assert_eq!(error.why, Why::NoSpace);
    assert!(error.correction.contains("tank/a"), "{error}");
    assert_eq!(pool.grow(&db, Bytes(1 << 40)).unwrap_err().why, Why::NoSpace);
    assert_eq!(pool.grow(&db, Bytes(16 * MIB)).unwrap().size, Bytes(16 * MIB));
    assert_eq!(pool.grow(&db, Bytes(MIB)).unwrap().size, Bytes(16 * MIB), "never smaller");
}

/// As a ZFS 2.3.2 said it, while something looked at the device.
#[test]
fn a_volume_that_is_busy_for_a_moment_is_removed_all_the_same() {
    let script = script(
        "$ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         $ zfs destroy tank/a/db_00000
         ! cannot destroy 'tank/a/db_00000': dataset is busy
         $ zfs destroy tank/a/db_00000
         $ LIST
         $ LIST",
    );
    let (_directory, pool) = pool(&script, false, &[]);
    pool.remove(&name("db_00000")).unwrap();
}

#[test]
fn a_volume_with_snapshots_is_set_aside_until_the_last_of_them_goes() {
    let script = script(
        "$ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ zfs rename tank/a/db_00000 tank/a/_deleted_db_00000:0
         $ zfs set refreservation=none tank/a/_deleted_db_00000:0
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 4096 | - | 130 | off
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ zfs destroy tank/a/_deleted_db_00000:0@s1
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         $ zfs destroy tank/a/_deleted_db_00000:0
         $ LIST
         $ LIST
         $ LIST",
    );
    let (_directory, pool) = pool(&script, false, &["db_00000"]);
    let (db, s1) = (name("db_00000"), name("s1"));
    pool.remove(&db).unwrap();
    let left = pool.volumes().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].is_snapshot && left[0].allocated == Bytes(4096));
    pool.remove_snapshot(&db, &s1).unwrap();
    pool.remove_snapshot(&db, &s1).unwrap();
}

#[test]
fn a_snapshot_that_was_restored_from_goes_with_the_last_volume_that_was_made_of_it() {
    let script = script(
        "$ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ zfs clone tank/a/db_00000@s1 tank/a/copy_00000
         $ zfs set refreservation=auto tank/a/copy_00000
         $ LIST
         tank/a/copy_00000 | 8388608 | 57344 | 0 | tank/a/db_00000@s1 | 140 | -
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ LIST
         tank/a/copy_00000 | 8388608 | 57344 | 0 | tank/a/db_00000@s1 | 140 | -
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ LIST
         tank/a/copy_00000 | 8388608 | 57344 | 0 | tank/a/db_00000@s1 | 140 | -
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ zfs rename tank/a/db_00000@s1 tank/a/db_00000@_deleted_s1:0
         $ LIST
         tank/a/copy_00000 | 8388608 | 57344 | 0 | tank/a/db_00000@_deleted_s1:0 | 140 | -
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@_deleted_s1:0 | 8388608 | 57344 | 0 | - | 130 | off
         $ zfs destroy -d tank/a/db_00000@_deleted_s1:0
         $ LIST
         tank/a/copy_00000 | 8388608 | 57344 | 0 | tank/a/db_00000@_deleted_s1:0 | 140 | -
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@_deleted_s1:0 | 8388608 | 57344 | 0 | - | 130 | on",
    );
    let (_directory, pool) = pool(&script, false, &["db_00000", "copy_00000"]);
    let (db, s1, copy) = (name("db_00000"), name("s1"), name("copy_00000"));
    assert_eq!(pool.restore(&db, &s1, &copy).unwrap().name, "copy_00000");
    assert_eq!(pool.restore(&db, &s1, &db).unwrap_err().why, Why::Exists);
    pool.remove_snapshot(&db, &s1).unwrap();
}

#[test]
fn a_copy_whose_space_there_is_not_leaves_nothing() {
    let script = script(
        "$ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         $ zfs clone tank/a/db_00000@s1 tank/a/copy_00000
         $ zfs set refreservation=auto tank/a/copy_00000
         ! cannot set property for 'tank/a/copy_00000': size is greater than available space
         $ zfs destroy tank/a/copy_00000",
    );
    let (_directory, pool) = pool(&script, false, &[]);
    let error = pool.restore(&name("db_00000"), &name("s1"), &name("copy_00000")).unwrap_err();
    assert_eq!(error.why, Why::NoSpace);
}

#[test]
fn a_rollback_is_in_place_unless_a_newer_snapshot_has_to_stay() {
    let script = script(
        "$ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/db_00000@s2 | 8388608 | 57344 | 0 | - | 140 | off
         $ zfs rollback tank/a/db_00000@s2
         $ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         $ LIST
         tank/a/db_00000 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/db_00000@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/db_00000@s2 | 8388608 | 57344 | 0 | - | 140 | off
         $ zfs rename tank/a/db_00000 tank/a/_deleted_db_00000:0
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/_deleted_db_00000:0@s2 | 8388608 | 57344 | 0 | - | 140 | off
         $ zfs clone tank/a/_deleted_db_00000:0@s1 tank/a/db_00000
         ! cannot create 'tank/a/db_00000': out of space
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/_deleted_db_00000:0@s2 | 8388608 | 57344 | 0 | - | 140 | off
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/_deleted_db_00000:0@s2 | 8388608 | 57344 | 0 | - | 140 | off
         $ zfs clone tank/a/_deleted_db_00000:0@s1 tank/a/db_00000
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/db_00000 | 8388608 | 57344 | 0 | tank/a/_deleted_db_00000:0@s1 | 150 | -
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/db_00000 | 8388608 | 57344 | 0 | tank/a/_deleted_db_00000:0@s1 | 150 | -
         $ LIST
         tank/a/_deleted_db_00000:0 | 8388608 | 57344 | 57344 | - | 120 | -
         tank/a/_deleted_db_00000:0@s1 | 8388608 | 57344 | 0 | - | 130 | off
         tank/a/db_00000 | 8388608 | 57344 | 0 | tank/a/_deleted_db_00000:0@s1 | 150 | -",
    );
    let (_directory, pool) = pool(&script, true, &["db_00000"]);
    let (db, s1, s2) = (name("db_00000"), name("s1"), name("s2"));
    pool.rollback(&db, &s2).unwrap();
    // It stops in the middle, and the next attempt goes on from there.
    assert_eq!(pool.rollback(&db, &s1).unwrap_err().why, Why::NoSpace);
    assert_eq!(pool.rollback(&db, &s1).unwrap().name, "db_00000");
}
