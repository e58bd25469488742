//! Encrypted volumes that the kernel decrypts, with programs that only say so.

use crypt::seal::MasterKey;

use super::*;
use crate::mapper::tests::programs;

const SECRET: &str = "six stones in a wall";
const DEVICE: &str = "mapper/Linstor-Crypt-web_00000";

fn master() -> MasterKey {
    MasterKey::new(&mut |bytes| bytes.fill(7))
}

impl Bed {
    fn with_programs(choice: Choice) -> Bed {
        let bed = Bed { luks: Some(choice), ..Bed::new() };
        programs(bed.directory.path());
        bed
    }

    fn start_with_key(&self) -> Node {
        let node = self.start();
        node.master.tell(&master().to_secret()).unwrap();
        node
    }

    fn calls(&self, program: &str) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().filter(|line| line.starts_with(program)).map(str::to_owned).collect()
    }

    fn is_open(&self) -> bool {
        fs::symlink_metadata(self.path(DEVICE)).is_ok()
    }

    /// What the engine has for a disk, and whether it is to decrypt it.
    fn disk(&self) -> Option<(String, bool)> {
        let fake = self.fake.lock().unwrap();
        let backing = fake.resources.get("web")?.config.volumes[0].backing.clone()?;
        Some((backing.disk, backing.luks))
    }
}

fn encrypted(size: u64) -> Action {
    let Action::CreateVolume { volume, mut backing } = create(size) else { panic!("it is one") };
    backing.layers = vec![Layer::Luks, Layer::Storage];
    backing.passphrase = Some(master().seal(&SECRET.into(), &mut |bytes| bytes.fill(3)));
    Action::CreateVolume { volume, backing }
}

fn volume(node: &Node) -> crate::record::Volume {
    node.store.get(&name()).unwrap().volumes[&0].clone()
}

/// A volume in use.
fn made(bed: &Bed) -> Node {
    let node = bed.start_with_key();
    for step in [encrypted(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    assert_eq!(bed.disk(), Some((text(&bed.path(DEVICE)), false)));
    node
}

#[test]
fn a_volume_is_open_as_long_as_it_is_there() {
    let bed = Bed::with_programs(Choice::Auto);
    let node = made(&bed);
    assert_eq!(volume(&node).mapped, Some(text(&bed.path(DEVICE))));
    assert_eq!(fs::read_to_string(bed.path("stdin")).unwrap(), SECRET);
    let grow = Action::GrowVolume { volume: 0, size: Bytes(96 * MIB) };
    let grow_device = Action::GrowDevice { volume: 0, size: Bytes(95 * MIB) };
    for step in [grow, grow_device] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    assert_eq!(bed.calls("cryptsetup resize").len(), 1);
    assert_eq!(bed.calls("cryptsetup open").len(), 1, "it was open");
    // An agent that knows no key goes on with what is open.
    let node = bed.start();
    assert_eq!(bed.calls("cryptsetup open").len(), 1);
    node.carry_out(&name(), Generation(2), &Action::Remove(Guard::default())).unwrap();
    assert!(!bed.is_open());
    assert_eq!(bed.files(), Vec::<String>::new());
    let log = fs::read_to_string(bed.path("log")).unwrap();
    assert!(!log.contains(SECRET), "{log}");
}

#[test]
fn a_volume_that_can_not_be_closed_stays() {
    let bed = Bed::with_programs(Choice::Auto);
    let node = made(&bed);
    fs::write(bed.path("busy"), "").unwrap();
    let remove = Action::Remove(Guard::default());
    let failed = node.carry_out(&name(), Generation(2), &remove).unwrap_err();
    assert!(failed.cause.contains("still in use"), "{failed}");
    assert_eq!(bed.files().len(), 1);
    assert!(bed.is_open() && volume(&node).removing);
    fs::remove_file(bed.path("busy")).unwrap();
    node.carry_out(&name(), Generation(2), &remove).unwrap();
    assert_eq!(bed.files(), Vec::<String>::new());
}

#[test]
fn after_a_start_of_the_node_it_is_opened_when_its_key_is_known() {
    let bed = Bed::with_programs(Choice::Auto);
    drop(made(&bed));
    // Nothing is open, and the engine has not found the disk.
    for (folder, file) in [("mapper", DEVICE), ("state", ""), ("uuid", "")] {
        let file = if file.is_empty() { DEVICE.replace("mapper", folder) } else { file.to_owned() };
        fs::remove_file(bed.path(&file)).unwrap();
    }
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().end = 0;
    let node = bed.start();
    assert!(!bed.is_open());
    node.master.tell(&master().to_secret()).unwrap();
    node.recover(&name()).unwrap();
    assert!(bed.is_open());
    assert_eq!(bed.fake.lock().unwrap().resources["web"].end, 64 * MIB, "it is attached");
}

#[test]
fn it_is_closed_while_its_resource_is_deactivated() {
    let bed = Bed::with_programs(Choice::Auto);
    let node = made(&bed);
    let guard = Some(Guard::default());
    node.carry_out(&name(), TOKEN, &Action::TakeDown { token: TOKEN, guard }).unwrap();
    assert!(!bed.is_open());
    node.recover(&name()).unwrap();
    assert!(!bed.is_open(), "it stays down");
    node.carry_out(&name(), Generation(7), &configure()).unwrap();
    assert!(bed.is_open());
    assert_eq!(bed.disk(), Some((text(&bed.path(DEVICE)), false)));
}

#[test]
fn another_passphrase_leaves_it_open_and_opens_it_later() {
    let bed = Bed::with_programs(Choice::Auto);
    let node = made(&bed);
    let new = "seven stones in a wall";
    let passphrase = master().seal(&new.into(), &mut |bytes| bytes.fill(4));
    let change = Action::ChangePassphrase { volume: 0, passphrase, changes: 1 };
    node.carry_out(&name(), Generation(2), &change).unwrap();
    assert_eq!(bed.calls("cryptsetup open").len(), 1);
    node.mapper.close(&volume(&node).path, "Linstor-Crypt-web_00000").unwrap();
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().end = 0;
    node.recover(&name()).unwrap();
    assert_eq!(fs::read_to_string(bed.path("stdin")).unwrap(), new);
    assert_eq!(bed.fake.lock().unwrap().resources["web"].end, 64 * MIB);
}

#[test]
fn what_was_made_with_it_needs_it() {
    let bed = Bed::with_programs(Choice::Auto);
    drop(made(&bed));
    let hidden = bed.path("hidden");
    fs::rename(bed.path("bin/cryptsetup"), &hidden).unwrap();
    let node = bed.start_with_key();
    let failed = node.carry_out(&name(), Generation(2), &configure());
    assert_eq!(failed, Ok(()), "the disk is attached: nothing is to be opened");
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().end = 0;
    let failed = node.recover(&name()).unwrap_err();
    assert!(failed.cause.contains("not installed"), "{failed}");
    assert!(failed.correction.contains("install cryptsetup"), "{failed}");
    fs::rename(&hidden, bed.path("bin/cryptsetup")).unwrap();
    node.recover(&name()).unwrap();
    assert_eq!(bed.fake.lock().unwrap().resources["web"].end, 64 * MIB);
}

#[test]
fn the_engine_has_what_the_kernel_can_not_open_unless_that_was_asked_for() {
    for choice in [Choice::Auto, Choice::Cryptsetup] {
        let bed = Bed::with_programs(choice);
        fs::write(bed.path("broken"), "").unwrap();
        let node = bed.start_with_key();
        let made = node.carry_out(&name(), Generation(1), &encrypted(64 * MIB));
        match choice {
            Choice::Cryptsetup => {
                assert!(made.unwrap_err().cause.contains("No key available"));
                // And once it can.
                fs::remove_file(bed.path("broken")).unwrap();
                node.carry_out(&name(), Generation(1), &encrypted(64 * MIB)).unwrap();
                assert!(bed.is_open() && volume(&node).size == 64 * MIB);
            }
            _ => assert_eq!((made, volume(&node).mapped), (Ok(()), None)),
        }
    }
    for choice in [Choice::Engine, Choice::Auto] {
        let bed = Bed::with_programs(choice);
        if choice == Choice::Auto {
            fs::remove_file(bed.path("bin/dmsetup")).unwrap();
        }
        let node = bed.start_with_key();
        node.carry_out(&name(), Generation(1), &encrypted(64 * MIB)).unwrap();
        assert_eq!(volume(&node).mapped, None);
        assert!(bed.calls("cryptsetup open").is_empty());
    }
}

#[test]
fn a_crash_while_it_is_made_leaves_nothing_open_by_an_old_header() {
    let mut crashes = 0;
    for at in 0.. {
        let bed = Bed::with_programs(Choice::Auto);
        let node = bed.start_with_key();
        *node.store.crash.lock().unwrap() = Some(at);
        let made = node.carry_out(&name(), Generation(1), &encrypted(64 * MIB));
        if made.is_ok() {
            break;
        }
        crashes += 1;
        let node = bed.start_with_key();
        node.carry_out(&name(), Generation(1), &encrypted(64 * MIB)).unwrap();
        // It is looked at what is open; a crash between opening and writing that down has it opened twice.
        let opened = node.mapper.is_open(&volume(&node).path, "Linstor-Crypt-web_00000");
        assert_eq!(opened, Ok(true), "after a crash at write {at}");
        assert!(bed.calls("cryptsetup open").len() <= 2);
        node.carry_out(&name(), Generation(2), &Action::Remove(Guard::default())).unwrap();
        assert!(!bed.is_open() && bed.files().is_empty(), "after a crash at write {at}");
    }
    assert!(crashes > 2, "only {crashes} points were tried");
}
