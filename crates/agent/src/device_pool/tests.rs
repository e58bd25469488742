//! Against transcripts: the commands that are expected, in order, with what they write or say.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vocab::Bytes;

use super::*;

type Line = (String, Result<String, Failure>);

/// Commands that are expected. Disks are asked for as often as one likes: `/dev/sdb` and `/dev/sdc` are
/// unused, `/dev/sdd` has a file system.
struct Script {
    lines: RefCell<VecDeque<Line>>,
}

/// Lines that begin with `$` are commands, those with `!` what they say when they fail; `! TOO LONG` is
/// one that is ended at its deadline. Others are what they write.
fn script(text: &str) -> Script {
    let mut lines: VecDeque<Line> = VecDeque::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(command) = line.strip_prefix("$ ") {
            lines.push_back((command.to_owned(), Ok(String::new())));
            continue;
        }
        let (_, outcome) = lines.back_mut().unwrap();
        *outcome = match line.strip_prefix("! ") {
            Some("TOO LONG") => Err(Failure::TooLong(Duration::from_secs(45))),
            Some("MISSING") => Err(Failure::NotInstalled),
            Some(words) => Err(Failure::Exit { code: Some(5), stderr: words.to_owned() }),
            None => Ok(format!("{}{line}\n", outcome.as_ref().unwrap())),
        };
    }
    Script { lines: RefCell::new(lines) }
}

impl Runner for Script {
    fn run(&self, argv: &[&str]) -> Result<String, CommandError> {
        let command = argv.join(" ");
        let outcome = match argv[0] {
            "lsblk" => {
                let device = |name: &str, fs: &str| {
                    format!(
                        r#"{{"name":"{name}","kname":"{name}","type":"disk","size":4294967296,"ro":false,
                        "rota":false,"model":null,"serial":null,"wwn":null,"fstype":{fs},"pttype":null,
                        "mountpoint":null}}"#
                    )
                };
                let all = [("/dev/sdb", "null"), ("/dev/sdc", "null"), ("/dev/sdd", "\"xfs\"")];
                let all: Vec<String> = all.iter().map(|(name, fs)| device(name, fs)).collect();
                Ok(format!(r#"{{"blockdevices":[{}]}}"#, all.join(",")))
            }
            "blkid" => Err(Failure::Exit { code: Some(2), stderr: String::new() }),
            _ => {
                let next = self.lines.borrow_mut().pop_front();
                let (expected, outcome) =
                    next.unwrap_or_else(|| panic!("`{command}` was not expected"));
                assert_eq!(command, expected);
                outcome
            }
        };
        outcome.map_err(|why| CommandError { command, why })
    }
}

impl Machine for Script {
    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn claim(&self, _: &Path, _: Bytes) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.lines.borrow().is_empty(), "not run: {:?}", self.lines.borrow());
        }
    }
}

fn pool(provider: Provider, devices: &[&str]) -> DevicePool {
    let devices = devices.iter().map(|device| (*device).to_owned()).collect();
    DevicePool::new(provider, "ssd", devices).unwrap()
}

/// What making a pool comes to by a script.
fn made(provider: Provider, devices: &[&str], text: &str) -> Result<(), Failed> {
    make(&script(text), &pool(provider, devices))
}

const FREE: &str = "$ vgs --noheadings --options vg_name
                    other
                    ssdx";

const THIN: &str = "$ lvcreate --yes --zero y --type thin-pool --extents 100%FREE \
                    --name ssd linstor_ssd";

#[test]
fn pools_are_made_by_the_tools_of_their_kind() {
    let text = format!(
        "{FREE}
         $ pvcreate /dev/sdb
         $ pvcreate /dev/sdc
         $ vgcreate ssd /dev/sdb /dev/sdc"
    );
    made(Provider::Lvm, &["/dev/sdb", "/dev/sdc"], &text).unwrap();
    let text = format!(
        "{FREE}
         $ pvcreate /dev/sdb
         $ vgcreate linstor_ssd /dev/sdb
         {THIN}"
    );
    made(Provider::LvmThin, &["/dev/sdb"], &text).unwrap();
    for provider in [Provider::Zfs, Provider::ZfsThin] {
        let text = "$ zpool list -H -o name
                    tank
                    $ zpool create -m none ssd /dev/sdb /dev/sdc";
        made(provider, &["/dev/sdb", "/dev/sdc"], text).unwrap();
    }
}

#[test]
fn a_disk_that_is_used_or_a_name_that_is_taken_changes_nothing() {
    // Both disks are looked at before the first is touched.
    let why = made(Provider::Lvm, &["/dev/sdb", "/dev/sdd"], FREE).unwrap_err();
    assert!(why.cause.contains("/dev/sdd is not unused: it has a signature of xfs"), "{why}");
    let taken = "$ vgs --noheadings --options vg_name
                 linstor_ssd";
    let why = made(Provider::LvmThin, &["/dev/sdb"], taken).unwrap_err();
    assert!(why.cause.contains("a volume group linstor_ssd"), "{why}");
    let taken = "$ zpool list -H -o name
                 ssd";
    let why = made(Provider::Zfs, &["/dev/sdb"], taken).unwrap_err();
    assert!(why.cause.contains("a ZFS pool ssd"), "{why}");
    let missing = "$ zpool list -H -o name
                   ! MISSING";
    let why = made(Provider::Zfs, &["/dev/sdb"], missing).unwrap_err();
    assert!(why.correction.contains("install zfsutils-linux"), "{why}");
}

#[test]
fn whichever_step_fails_those_before_it_are_undone_the_last_first() {
    let devices = ["/dev/sdb", "/dev/sdc"];
    let begin = format!("{FREE}\n$ pvcreate /dev/sdb\n");
    for (text, part) in [
        (format!("{begin}! no room for a label"), "LVM's label on /dev/sdb"),
        (
            format!(
                "{begin}
                 $ pvcreate /dev/sdc
                 ! device is in use
                 $ pvremove /dev/sdb"
            ),
            "LVM's label on /dev/sdc could not be made",
        ),
        (
            format!(
                "{begin}
                 $ pvcreate /dev/sdc
                 $ vgcreate linstor_ssd /dev/sdb /dev/sdc
                 ! already exists
                 $ pvremove /dev/sdc
                 $ pvremove /dev/sdb"
            ),
            "volume group linstor_ssd could not be made",
        ),
        (
            format!(
                "{begin}
                 $ pvcreate /dev/sdc
                 $ vgcreate linstor_ssd /dev/sdb /dev/sdc
                 {THIN}
                 ! thin pools are not supported by this kernel
                 $ vgremove linstor_ssd
                 $ pvremove /dev/sdc
                 $ pvremove /dev/sdb"
            ),
            "thin pool linstor_ssd/ssd could not be made",
        ),
    ] {
        let why = made(Provider::LvmThin, &devices, &text).unwrap_err();
        assert!(why.cause.contains(part) && !why.cause.contains("not undone"), "{why}");
        assert!(why.correction.contains("was undone"), "{why}");
    }
    let text = "$ zpool list -H -o name
                $ zpool create -m none ssd /dev/sdb /dev/sdc
                ! cannot label 'sdc': failed to detect device partitions on '/dev/sdc1': 19
                $ wipefs --all --types gpt,PMBR /dev/sdb
                $ wipefs --all --types gpt,PMBR /dev/sdc";
    let why = made(Provider::Zfs, &devices, text).unwrap_err();
    assert!(why.correction.contains("was undone"), "{why}");
    let text = "$ zpool list -H -o name
                $ zpool create -m none ssd /dev/sdb
                ! one or more devices is currently unavailable
                $ wipefs --all --types gpt,PMBR /dev/sdb
                ! it is read-only";
    let why = made(Provider::Zfs, &["/dev/sdb"], text).unwrap_err();
    assert!(why.cause.contains("not undone: `wipefs"), "{why}");
}

#[test]
fn a_step_that_was_cut_off_is_undone_too_for_it_may_have_been_done() {
    let text = format!(
        "{FREE}
         $ pvcreate /dev/sdb
         $ vgcreate ssd /dev/sdb
         ! TOO LONG
         $ vgremove ssd
         ! Volume group \"ssd\" not found
         $ pvremove /dev/sdb"
    );
    let why = made(Provider::Lvm, &["/dev/sdb"], &text).unwrap_err();
    assert!(why.cause.contains("still running") && !why.cause.contains("not undone"), "{why}");
    let text = "$ zpool list -H -o name
                $ zpool create -m none ssd /dev/sdb
                ! TOO LONG
                $ zpool destroy ssd
                $ wipefs --all /dev/sdb";
    made(Provider::Zfs, &["/dev/sdb"], text).unwrap_err();
}

#[test]
fn what_can_not_be_undone_is_told_and_the_rest_is_undone() {
    let text = format!(
        "{FREE}
         $ pvcreate /dev/sdb
         $ pvcreate /dev/sdc
         $ vgcreate ssd /dev/sdb /dev/sdc
         ! a disk failed
         $ pvremove /dev/sdc
         ! a disk failed
         $ pvremove /dev/sdb"
    );
    let why = made(Provider::Lvm, &["/dev/sdb", "/dev/sdc"], &text).unwrap_err();
    assert!(why.cause.contains("not undone: `pvremove /dev/sdc`"), "{why}");
    assert!(why.correction.contains("by hand"), "{why}");
}

#[test]
fn only_what_this_agent_has_made_is_removed_and_only_empty() {
    let maker = Maker::default();
    let pool = pool(Provider::LvmThin, &["/dev/sdb"]);
    let refused = |done: Result<(), Failed>, part: &str| {
        let why = done.unwrap_err();
        assert!(why.cause.contains(part), "{why}");
    };
    refused(maker.unmake(&script(""), &pool), "not made by this agent");
    let making = format!("{FREE}\n$ pvcreate /dev/sdb\n$ vgcreate linstor_ssd /dev/sdb\n{THIN}");
    maker.make(&script(&making), &pool).unwrap();
    let used = "$ lvs --noheadings --options lv_name linstor_ssd
                ssd
                vol_00000";
    refused(maker.unmake(&script(used), &pool), "vol_00000 is in it");
    let text = "$ lvs --noheadings --options lv_name linstor_ssd
                ssd
                $ lvremove --yes linstor_ssd/ssd
                $ vgremove linstor_ssd
                $ pvremove /dev/sdb";
    maker.unmake(&script(text), &pool).unwrap();
    refused(maker.unmake(&script(""), &pool), "not made by this agent");
    // A volume of a group is none of its own.
    let lvm = super::tests::pool(Provider::Lvm, &["/dev/sdb"]);
    let making = format!("{FREE}\n$ pvcreate /dev/sdb\n$ vgcreate ssd /dev/sdb");
    maker.make(&script(&making), &lvm).unwrap();
    let used = "$ lvs --noheadings --options lv_name ssd
                ssd";
    refused(maker.unmake(&script(used), &lvm), "ssd is in it");
}

#[test]
fn a_zfs_pool_is_removed_with_its_partitions() {
    let maker = Maker::default();
    let zfs = pool(Provider::Zfs, &["/dev/sdb"]);
    let text = "$ zpool list -H -o name
                $ zpool create -m none ssd /dev/sdb";
    maker.make(&script(text), &zfs).unwrap();
    let text = "$ zfs list -H -r -t all -o name ssd
                ssd
                $ zpool destroy ssd
                $ wipefs --all /dev/sdb";
    maker.unmake(&script(text), &zfs).unwrap();
}
