//! A volume's passphrase is wanted state: what follows, what waits, and what is refused meanwhile.

use std::collections::BTreeMap;

use crypt::seal::MasterKey;
use vocab::options::Secret;
use vocab::{Bytes, VolumeNr};

use crate::apply::tests::{Bed, node, rd};
use crate::change::Object;
use crate::command::{Command, NewDefinition, NewVolumeDefinition};
use crate::layer::Layer;
use crate::name::SnapshotName;
use crate::objects::*;
use crate::observed::VolumeState;
use crate::plan::{Action, plan};
use crate::props::PropsEdit;
use crate::refusal::{Code, NoteCode};

const GIB: u64 = 1 << 30;

fn snap(name: &str) -> SnapshotName {
    SnapshotName::new(name).unwrap()
}

fn change(sealed: &str) -> Command {
    Command::ChangePassphrase { name: rd("disk"), number: 0, passphrase: sealed.to_owned() }
}

fn layered(bed: &mut Bed, name: &str, layers: &[Layer]) {
    let layers = Some(layers.to_vec());
    let definition = NewDefinition { name: Some(rd(name)), layers, ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
}

const LUKS: [Layer; 3] = [Layer::Drbd, Layer::Luks, Layer::Storage];

/// Two replicas of an encrypted volume that are UpToDate, whose passphrase is `first`.
fn encrypted() -> Bed {
    let mut bed = Bed::new(3);
    let master = MasterKey::new(&mut |bytes| bytes.fill(7));
    bed.observed.master = Some(master);
    layered(&mut bed, "disk", &LUKS);
    let passphrase = Some("first".to_owned());
    let volume =
        NewVolumeDefinition { size: Bytes(GIB), passphrase, ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("disk"), volume });
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    bed
}

fn volume(bed: &Bed) -> &VolumeDefinition {
    &bed.model.definition(&rd("disk")).unwrap().volumes[&VolumeNr(0)]
}

/// Nodes say that they have the newest configuration, which comes first.
fn confirm(bed: &mut Bed) {
    let generation = bed.model.wanted_generation(&rd("disk"));
    for replica in bed.observed.resources.get_mut(&rd("disk")).unwrap().values_mut() {
        replica.generation = generation;
    }
}

/// The changes that are planned, by node.
fn planned(bed: &Bed) -> BTreeMap<String, (String, u32)> {
    let steps = plan(&bed.model, &bed.observed, &rd("disk")).steps;
    let changes = steps.into_iter().filter_map(|step| match step.action {
        Action::ChangePassphrase { passphrase, changes, .. } => {
            Some((step.node.to_string(), (passphrase, changes)))
        }
        _ => None,
    });
    changes.collect()
}

fn state(bed: &mut Bed, index: usize) -> &mut VolumeState {
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(index)).unwrap().volumes.get_mut(&VolumeNr(0)).unwrap()
}

fn snapshot(bed: &mut Bed, name: &str) {
    let snapshots = vec![(rd("disk"), snap(name), vec![])];
    bed.ok(Command::CreateSnapshots { snapshots, props: Props::new() });
    let mut made = bed.model.snapshot(&rd("disk"), &snap(name)).unwrap().clone();
    made.flags.insert(SnapshotFlag::Successful);
    bed.model.put(Object::Snapshot(made));
}

#[test]
fn every_disk_is_changed_once_and_new_ones_have_the_newest() {
    let mut bed = encrypted();
    assert!(planned(&bed).is_empty());
    bed.ok(change("second"));
    bed.ok(change("third"));
    confirm(&mut bed);
    assert_eq!(
        (volume(&bed).passphrase.as_deref(), volume(&bed).passphrase_changes),
        (Some("third"), 2)
    );
    let both: Vec<String> = bed.nodes_of("disk")[..2].to_vec();
    let to = ("third".to_owned(), 2);
    assert_eq!(planned(&bed), both.iter().map(|n| (n.clone(), to.clone())).collect());
    // One has done it; a new replica is made with it.
    state(&mut bed, 0).passphrase_changes = 2;
    assert_eq!(planned(&bed), [(both[1].clone(), to)].into());
    let made = {
        bed.replica("disk", 2);
        let steps = plan(&bed.model, &bed.observed, &rd("disk")).steps;
        steps.into_iter().find_map(|step| match step.action {
            Action::CreateVolume { backing, .. } => Some(backing),
            _ => None,
        })
    };
    let made = made.unwrap();
    assert_eq!((made.passphrase.as_deref(), made.passphrase_changes), (Some("third"), 2));
    bed.settle("disk");
    assert!(planned(&bed).is_empty());
}

#[test]
fn without_the_master_key_it_is_refused_and_what_was_asked_for_waits() {
    let mut bed = encrypted();
    bed.ok(change("second"));
    confirm(&mut bed);
    bed.observed.master = None;
    assert!(planned(&bed).is_empty());
    let waits = plan(&bed.model, &bed.observed, &rd("disk")).waits;
    assert!(waits.iter().any(|wait| wait.reason.contains("old passphrase")), "{waits:?}");
    assert_eq!(bed.refused(change("third")).code, Code::NoMasterKey);
}

#[test]
fn a_node_that_is_away_changes_it_when_it_is_back() {
    let mut bed = encrypted();
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
    let applied = bed.ok(change("second"));
    assert!(applied.notes.iter().any(|n| n.code == NoteCode::NotConnected), "{:?}", applied.notes);
    confirm(&mut bed);
    assert_eq!(planned(&bed).len(), 1);
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = true;
    assert_eq!(planned(&bed).len(), 2);
}

#[test]
fn only_an_encrypted_volume_that_stays_has_one() {
    let mut bed = encrypted();
    layered(&mut bed, "clear", &[Layer::Drbd, Layer::Storage]);
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("clear"), volume });
    let of = |name: &str, number| Command::ChangePassphrase {
        name: rd(name),
        number,
        passphrase: "x".to_owned(),
    };
    assert_eq!(bed.refused(of("clear", 0)).code, Code::InvalidLayerStack);
    assert_eq!(bed.refused(of("disk", 1)).code.number(), 303);
    assert_eq!(bed.refused(of("never", 0)).code.number(), 301);
    let snapshots = vec![(rd("disk"), snap("copy"), vec![])];
    bed.ok(Command::CreateSnapshots { snapshots, props: Props::new() });
    assert_eq!(bed.refused(change("second")).code, Code::InUse, "its header is being copied");
}

#[test]
fn disks_are_copied_only_when_all_have_the_newest() {
    let mut bed = encrypted();
    bed.ok(change("second"));
    let copy = || Command::CreateSnapshots {
        snapshots: vec![(rd("disk"), snap("copy"), vec![])],
        props: Props::new(),
    };
    let to = || NewDefinition { name: Some(rd("clone")), ..NewDefinition::default() };
    let clone =
        || Command::CloneDefinition { name: rd("disk"), to: to(), props: PropsEdit::default() };
    for command in [copy(), clone()] {
        let refusal = bed.refused(command);
        assert!(refusal.code == Code::InUse && refusal.cause.contains("passphrase"), "{refusal}");
    }
    bed.settle("disk");
    bed.ok(copy());
}

#[test]
fn a_snapshot_keeps_the_passphrase_of_then() {
    let mut bed = encrypted();
    snapshot(&mut bed, "one");
    bed.ok(change("second"));
    bed.settle("disk");
    snapshot(&mut bed, "two");
    bed.ok(change("third"));
    bed.settle("disk");
    snapshot(&mut bed, "three");
    for (name, passphrase) in [("one", "first"), ("two", "second"), ("three", "third")] {
        let to = format!("from-{name}");
        layered(&mut bed, &to, &LUKS);
        let (name, to) = (snap(name), rd(&to));
        bed.ok(Command::RestoreVolumeDefinitions {
            name: rd("disk"),
            snapshot: name,
            to: to.clone(),
        });
        let restored = &bed.model.definition(&to).unwrap().volumes[&VolumeNr(0)];
        assert_eq!(restored.passphrase.as_deref(), Some(passphrase));
    }
    // In the place of the data only what has the same passphrase.
    let back = |name: &str| Command::RollBack { name: rd("disk"), snapshot: snap(name) };
    for name in ["one", "two"] {
        let refusal = bed.refused(back(name));
        assert!(refusal.cause.contains("was changed since"), "{refusal}");
    }
    let refused = bed.run(back("three")).err().map(|refusal| refusal.cause.to_string());
    assert!(refused.is_none_or(|cause| !cause.contains("passphrase")));
}

#[test]
fn passphrases_are_sealed_where_they_are_kept() {
    // What the surface passes on: nobody reads it without the master key.
    let master = MasterKey::new(&mut |bytes| bytes.fill(7));
    let sealed = master.seal(&Secret::from("hunter2"), &mut |bytes| bytes.fill(1));
    let mut bed = encrypted();
    bed.ok(change(&sealed));
    let row = serde_json::to_string(&Object::Definition(
        bed.model.definition(&rd("disk")).unwrap().clone(),
    ));
    assert!(!row.unwrap().contains("hunter2"));
}
