//! The list of unused disks, from what lsblk and blkid say (testdata/disks).

use std::collections::BTreeMap;

use super::*;
use crate::command::CommandError;

/// A machine that says what it is told to.
struct Told {
    lsblk: String,
    /// What blkid finds: its exit status, and what it writes.
    signatures: BTreeMap<&'static str, (i32, &'static str)>,
    taken: Vec<&'static str>,
    links: BTreeMap<&'static str, &'static str>,
}

impl Told {
    fn server() -> Told {
        Told {
            lsblk: include_str!("../../testdata/disks/server.json").to_owned(),
            signatures: [
                ("/dev/sdo", (0, "DEVNAME=/dev/sdo\nVERSION=1.0\nTYPE=ext4\nUSAGE=filesystem\n")),
                ("/dev/sdp", (8, "")),
            ]
            .into(),
            taken: vec!["/dev/sdn"],
            links: [
                ("/dev/disk/by-id/wwn-0x5000c50000000001", "/dev/sdb"),
                ("/dev/mapper/mpatha", "/dev/dm-0"),
            ]
            .into(),
        }
    }
}

impl Runner for Told {
    fn run(&self, argv: &[&str]) -> Result<String, CommandError> {
        let failed = |code, stderr: &str| CommandError {
            command: argv.join(" "),
            why: Failure::Exit { code: Some(code), stderr: stderr.to_owned() },
        };
        match argv {
            ["lsblk", "--json", "--bytes", "--paths", "--output", _] => Ok(self.lsblk.clone()),
            ["blkid", "-p", "-o", "export", device] => match self.signatures.get(device) {
                Some((0, text)) => Ok((*text).to_owned()),
                Some((code, text)) => Err(failed(*code, text)),
                None => Err(failed(2, "")),
            },
            other => panic!("{other:?} was not expected"),
        }
    }
}

impl Machine for Told {
    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        let text = path.to_str().unwrap();
        match self.links.get(text) {
            Some(to) => Ok(to.into()),
            None if self.lsblk.contains(&format!("\"{text}\"")) => Ok(path.to_owned()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn claim(&self, device: &Path, _: Bytes) -> io::Result<()> {
        match self.taken.contains(&device.to_str().unwrap()) {
            true => Err(io::Error::other("somebody has it open for himself")),
            false => Ok(()),
        }
    }
}

#[test]
fn only_disks_on_which_nothing_is_are_told_of() {
    let disks = unused(&Told::server()).unwrap();
    let names: Vec<&str> = disks.iter().map(|disk| disk.device.as_str()).collect();
    let expected =
        ["/dev/mapper/mpatha", "/dev/md127", "/dev/nvme0n1", "/dev/sdb", "/dev/sdc", "/dev/sdl"];
    assert_eq!(names, expected);
    let spinner = Disk {
        device: "/dev/sdb".to_owned(),
        size: Bytes(4_000_787_030_016),
        rotational: true,
        model: "SPINNER-4T".to_owned(),
        serial: "Z1".to_owned(),
        wwn: "0x5000c50000000001".to_owned(),
    };
    assert_eq!(disks[3], spinner);
    assert_eq!((disks[5].size, disks[5].rotational), (SMALLEST, false));
    assert_eq!(disks[5].model, "");
}

#[test]
fn a_disk_whose_file_system_lsblk_does_not_see_is_mounted_nevertheless() {
    let lsblk = include_str!("../../testdata/disks/virtual-machine.json").to_owned();
    let machine = Told { lsblk, ..Told::server() };
    assert_eq!(unused(&machine).unwrap(), []);
    let why = check(&machine, &["/dev/vda".to_owned()]).unwrap_err();
    assert!(why.cause.contains("mounted at /"), "{why}");
}

#[test]
fn disks_are_checked_by_any_name_and_refused_with_the_reason() {
    let machine = Told::server();
    let check = |names: &[&str]| {
        super::check(&machine, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    let id = "/dev/disk/by-id/wwn-0x5000c50000000001";
    assert_eq!(check(&[id, "/dev/sdc"]).unwrap(), ["/dev/sdb", "/dev/sdc"]);
    assert_eq!(check(&["/dev/mapper/mpatha"]).unwrap(), ["/dev/mapper/mpatha"]);
    for (names, part) in [
        (&["/dev/sdb", id][..], "/dev/sdb is named twice"),
        (&["/dev/sda"], "something on it: /dev/sda1, /dev/sda2, /dev/sda3"),
        (&["/dev/sda3"], "of type part"),
        (&["/dev/sdd"], "something on it: /dev/mapper/mpatha"),
        (&["/dev/sdh"], "signature of LVM2_member"),
        (&["/dev/sdi"], "signature of dos"),
        (&["/dev/sdj"], "read-only"),
        (&["/dev/sdk"], "less than 1 GiB"),
        (&["/dev/sdm"], "mounted at /srv"),
        (&["/dev/sdn"], "open for himself"),
        (&["/dev/sdo"], "signature of ext4"),
        (&["/dev/sdp"], "contradict"),
        (&["/dev/loop1"], "of type loop"),
        (&["/dev/nbd0"], "no disk of this machine"),
        (&["/dev/drbd1000"], "no disk of this machine"),
        (&["/dev/ublkb0"], "no disk of this machine"),
        (&["/dev/zd0"], "no disk of this machine"),
        (&["/dev/sdz"], "can not be found"),
        (&["/dev/sdb", "/dev/sdn"], "/dev/sdn is not unused"),
    ] {
        let why = check(names).unwrap_err();
        assert!(why.cause.contains(part), "{names:?}: {why}");
        assert!(why.cause.contains(" is not unused: ") && !why.correction.is_empty(), "{why}");
    }
}

#[test]
fn what_can_not_be_told_is_an_error_and_not_an_empty_disk() {
    let mut machine = Told::server();
    machine.signatures.insert("/dev/sdb", (2, "error: /dev/sdb: Operation not permitted"));
    let why = unused(&machine).unwrap_err();
    assert!(why.cause.contains("/dev/sdb") && why.cause.contains("not permitted"), "{why}");
    machine.lsblk = "no JSON".to_owned();
    assert!(unused(&machine).unwrap_err().cause.contains("not understood"));
}

#[test]
fn older_versions_write_numbers_as_text() {
    let lsblk = r#"{"blockdevices": [{"name": "/dev/sdb", "kname": "/dev/sdb", "type": "disk",
        "size": "4000787030016", "ro": "0", "rota": "1", "model": "X ", "serial": null, "wwn": null,
        "fstype": null, "pttype": null, "mountpoint": null}]}"#;
    let machine = Told { lsblk: lsblk.to_owned(), ..Told::server() };
    let disks = unused(&machine).unwrap();
    assert_eq!((disks[0].size, disks[0].rotational), (Bytes(4_000_787_030_016), true));
}

#[test]
fn this_machine_can_be_asked() {
    // What it has is not known; nothing of it may be mounted.
    if System::default().run(&["lsblk", "--version"]).is_err() {
        return println!("skipped: there is no lsblk");
    }
    match unused(&System::default()) {
        Ok(disks) => {
            let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
            for disk in disks {
                let mounted =
                    mounts.lines().any(|line| line.starts_with(&format!("{} ", disk.device)));
                assert!(!mounted && disk.size >= SMALLEST, "{disk:?}");
            }
        }
        // Who is not root may not look.
        Err(why) => println!("{why}"),
    }
}
