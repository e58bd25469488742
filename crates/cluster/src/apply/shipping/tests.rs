//! Remotes and backups, from outside: what is begun when, what agents are told, and what becomes of it.

use std::collections::BTreeMap;

use crypt::seal::MasterKey;

use super::*;
use crate::apply::tests::{Bed, node, pool, rd};
use crate::command::{BucketEdit, Command};
use crate::observed::{ReplicaState, SnapshotState, Suspension, SuspensionState};
use crate::plan::{Action, plan};

pub fn remote() -> RemoteName {
    RemoteName::new("vault").unwrap()
}

pub fn bucket() -> Bucket {
    Bucket {
        endpoint: "https://s3.example.com".to_owned(),
        bucket: "vault".to_owned(),
        region: "eu-1".to_owned(),
        path_style: true,
        access_key: "sealed".to_owned(),
        secret_key: "sealed too".to_owned(),
    }
}

/// A resource definition on two nodes, and a remote.
pub fn bed() -> Bed {
    let mut bed = Bed::new(3);
    bed.define("web");
    bed.place("web", 2).unwrap();
    bed.settle("web");
    bed.observed.master = Some(MasterKey::new(&mut |bytes| bytes.fill(1)));
    for node in bed.observed.nodes.values_mut() {
        (node.ships, node.ships_encrypted) = (true, true);
    }
    bed.ok(Command::CreateRemote { name: remote(), bucket: bucket() });
    bed
}

fn backup(stamp: &str, present: &[&str]) -> Command {
    Command::CreateBackup {
        name: rd("web"),
        remote: remote(),
        snapshot: None,
        stamp: stamp.to_owned(),
        node: None,
        incremental: true,
        present: present.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn upload(bed: &Bed, snapshot: &str) -> Upload {
    let snapshot = SnapshotName::new(snapshot).unwrap();
    bed.model.snapshot(&rd("web"), &snapshot).unwrap().uploads[&remote()].clone()
}

/// Agents have taken every snapshot that is being made.
pub fn take(bed: &mut Bed) {
    let pending: Vec<SnapshotDefinition> =
        bed.model.snapshots().filter(|snapshot| snapshot.is_pending()).cloned().collect();
    for made in pending {
        let suspension = Suspension { token: made.token, state: SuspensionState::Released };
        let nodes: Vec<NodeName> =
            bed.model.resources_of(&made.resource).map(|r| r.node.clone()).collect();
        for node in nodes {
            let replica = replica(bed, &made.resource, &node);
            replica.suspension = Some(suspension);
            if made.nodes.contains_key(&node) {
                replica.snapshots.insert(made.name.clone(), SnapshotState { token: made.token });
            }
        }
        bed.ok(Command::Settle { name: made.resource });
    }
}

pub fn replica<'a>(bed: &'a mut Bed, name: &ResourceName, node: &NodeName) -> &'a mut ReplicaState {
    bed.observed.resources.entry(name.clone()).or_default().entry(node.clone()).or_default()
}

pub fn say(bed: &mut Bed, name: &ResourceName, node: &NodeName, token: Generation, phase: Phase) {
    let shipments = &mut replica(bed, name, node).shipments;
    shipments.retain(|shipment| shipment.token != token);
    let cause = (phase == Phase::Failed).then(|| "the bucket is gone".to_owned());
    shipments.push(ShipmentState { token, phase, done_percent: 0, cause, door: None });
    bed.ok(Command::Settle { name: name.clone() });
}

pub fn actions(bed: &Bed, name: &str) -> Vec<(NodeName, Action)> {
    let plan = plan(&bed.model, &bed.observed, &rd(name));
    // Every change is told to all nodes.
    let other = |action: &Action| !matches!(action, Action::Configure(_));
    let steps = plan.steps.into_iter().filter(|step| other(&step.action));
    steps.map(|step| (step.node, step.action)).collect()
}

const FIRST: &str = "web_back_20261129_000000";
const SECOND: &str = "web_back_20261130_000000";

/// The first backup is made.
fn backed_up(bed: &mut Bed) -> Upload {
    bed.ok(backup("20261129_000000", &[]));
    take(bed);
    let begun = upload(bed, "back_20261129_000000");
    let on = begun.node.clone().unwrap();
    say(bed, &rd("web"), &on, begun.token, Phase::Success);
    upload(bed, "back_20261129_000000")
}

#[test]
fn a_backup_waits_for_its_snapshot_and_goes_on_by_what_its_node_says() {
    let mut bed = bed();
    bed.ok(backup("20261129_000000", &[]));
    assert_eq!(upload(&bed, "back_20261129_000000").phase, Phase::Waiting);
    let delete = Command::DeleteSnapshot {
        name: rd("web"),
        snapshot: SnapshotName::new("back_20261129_000000").unwrap(),
        nodes: Vec::new(),
    };
    assert_eq!(bed.refused(delete.clone()).code, Code::InUse);
    take(&mut bed);
    let begun = upload(&bed, "back_20261129_000000");
    let on = begun.node.clone().unwrap();
    assert_eq!((begun.phase, &begun.backup[..]), (Phase::Shipping, FIRST));
    let [(at, Action::Upload(order))] = &actions(&bed, "web")[..] else { panic!() };
    assert_eq!((at, order.token, &order.base), (&on, begun.token, &None));
    assert_eq!(order.described.volumes.len(), 1);

    say(&mut bed, &rd("web"), &on, begun.token, Phase::Shipping);
    assert_eq!(actions(&bed, "web"), [], "it goes on by itself");
    assert_eq!(bed.refused(delete.clone()).code, Code::InUse);
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Finishing);
    assert_eq!(upload(&bed, "back_20261129_000000").phase, Phase::Finishing);
    // Its agent was started again and knows nothing.
    replica(&mut bed, &rd("web"), &on).shipments.clear();
    assert!(matches!(&actions(&bed, "web")[..], [(_, Action::Upload(_))]));
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Success);
    assert_eq!(upload(&bed, "back_20261129_000000").phase, Phase::Success);
    assert_eq!(actions(&bed, "web"), []);
    bed.ok(delete);
}

#[test]
fn the_next_one_builds_on_the_newest_that_is_here_and_there() {
    let mut bed = bed();
    let first = backed_up(&mut bed);
    bed.ok(backup("20261130_000000", &[FIRST]));
    take(&mut bed);
    let second = upload(&bed, "back_20261130_000000");
    let base = SnapshotName::new("back_20261129_000000").unwrap();
    assert_eq!(second.base, Some((base.clone(), FIRST.to_owned())));
    assert!(second.node.is_some());
    let delete =
        Command::DeleteSnapshot { name: rd("web"), snapshot: base.clone(), nodes: Vec::new() };
    assert_eq!(bed.refused(delete).code, Code::InUse, "it is compared with");
    let on = second.node.clone().unwrap();
    say(&mut bed, &rd("web"), &on, second.token, Phase::Success);
    // One that is in the bucket no more is not built on.
    bed.ok(backup("20261201_000000", &[FIRST]));
    let third = upload(&bed, "back_20261201_000000");
    assert_eq!(third.base.map(|(_, backup)| backup), Some(FIRST.to_owned()));
    bed.ok(Command::AbortBackups {
        remote: remote(),
        name: None,
        snapshot: None,
        uploads: true,
        downloads: true,
    });
    bed.ok(Command::ForgetBackups {
        remote: remote(),
        backups: vec![FIRST.to_owned(), SECOND.to_owned()],
    });
    take(&mut bed);
    bed.ok(backup("20261202_000000", &[FIRST, SECOND]));
    assert_eq!(upload(&bed, "back_20261202_000000").base, None);
    assert_eq!(first.cause, None);
}

#[test]
fn a_node_makes_as_many_at_the_same_time_as_it_may() {
    let mut bed = bed();
    bed.ok(Command::ModifyController {
        props: crate::props::PropsEdit {
            set: [(MAX_CONCURRENT.to_owned(), "1".to_owned())].into(),
            ..Default::default()
        },
    });
    bed.settle("web");
    let mut begun = Vec::new();
    for stamp in ["20261129_000000", "20261129_000001", "20261129_000002"] {
        bed.ok(backup(stamp, &[]));
        take(&mut bed);
        begun.push(format!("back_{stamp}"));
    }
    let phases = |bed: &Bed| -> Vec<Phase> {
        begun.iter().map(|snapshot| upload(bed, snapshot).phase).collect()
    };
    // Two nodes have the snapshots.
    assert_eq!(phases(&bed), [Phase::Shipping, Phase::Shipping, Phase::Waiting]);
    let first = upload(&bed, &begun[0]);
    say(&mut bed, &rd("web"), &first.node.unwrap(), first.token, Phase::Failed);
    assert_eq!(phases(&bed), [Phase::Failed, Phase::Shipping, Phase::Shipping]);
    assert_eq!(upload(&bed, &begun[0]).cause.as_deref(), Some("the bucket is gone"));
}

#[test]
fn what_is_given_up_is_stopped_where_it_runs_and_a_remote_goes_after_it() {
    let mut bed = bed();
    bed.ok(backup("20261129_000000", &[]));
    take(&mut bed);
    let begun = upload(&bed, "back_20261129_000000");
    let on = begun.node.clone().unwrap();
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Shipping);
    bed.ok(Command::DeleteRemote { name: remote() });
    assert_eq!(upload(&bed, "back_20261129_000000").phase, Phase::Aborting);
    assert!(bed.model.remote(&remote()).is_some_and(|remote| remote.deleting));
    let stop = Action::StopShipping { token: begun.token };
    assert_eq!(actions(&bed, "web"), [(on.clone(), stop)]);
    let another = bed.refused(backup("20261130_000000", &[]));
    assert_eq!(another.code, Code::InUse);
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Aborted);
    assert_eq!(upload(&bed, "back_20261129_000000").phase, Phase::Aborted);
    assert!(bed.model.remote(&remote()).is_none());
    assert_eq!(bed.refused(backup("20261130_000000", &[])).code, Code::InvalidRemoteName);
}

fn found() -> Found {
    let volume = FoundVolume {
        size: vocab::Bytes(1 << 30),
        gross_size: false,
        props: Props::new(),
        pool: PoolName::new("elsewhere").unwrap(),
        device: vocab::Bytes((1 << 30) + (1 << 20)),
    };
    Found {
        chain: vec![FIRST.to_owned(), SECOND.to_owned()],
        layers: vec![Layer::Drbd, Layer::Storage],
        node_id: vocab::NodeId::new(0),
        peer_slots: 7,
        props: [("Aux/a".to_owned(), "1".to_owned()), ("Newer/b".to_owned(), "2".to_owned())]
            .into(),
        volumes: [(VolumeNr(0), volume)].into(),
        passphrases: BTreeMap::new(),
    }
}

fn restore(download_only: bool) -> Command {
    Command::RestoreBackup {
        remote: remote(),
        found: found(),
        snapshot: SnapshotName::new("back_x").unwrap(),
        to: rd("copy"),
        group: None,
        node: node(2),
        pools: [(PoolName::new("elsewhere").unwrap(), pool())].into(),
        download_only,
    }
}

#[test]
fn a_restore_makes_a_snapshot_and_a_resource_of_it() {
    for download_only in [false, true] {
        let mut bed = bed();
        let made = bed.ok(restore(download_only));
        let said = made.notes.iter().any(|note| note.code == NoteCode::DownloadOnly);
        assert_eq!(said, download_only);
        let snapshot = SnapshotName::new("back_x").unwrap();
        let download = |bed: &Bed| {
            bed.model.snapshot(&rd("copy"), &snapshot).unwrap().download.clone().unwrap()
        };
        let token = download(&bed).token;
        let [(at, Action::Download(order))] = &actions(&bed, "copy")[..] else { panic!() };
        assert_eq!(
            (at, order.chain.len(), order.volumes[&0].2),
            (&node(2), 2, (1 << 30) + (1 << 20))
        );
        let props = &bed.model.definition(&rd("copy")).unwrap().props;
        assert!(props.contains_key("Aux/a") && !props.contains_key("Newer/b"), "{props:?}");
        let place = Command::Autoplace { name: rd("copy"), filter: Filter::default() };
        assert_eq!(bed.refused(place).code, Code::InUse);
        assert_eq!(bed.refused(restore(false)).code, Code::InUse);
        say(&mut bed, &rd("copy"), &node(2), token, Phase::Shipping);
        // That it is done counts with the snapshot.
        say(&mut bed, &rd("copy"), &node(2), token, Phase::Success);
        assert_eq!(download(&bed).phase, Phase::Finishing);
        let has = SnapshotState { token };
        replica(&mut bed, &rd("copy"), &node(2)).snapshots.insert(snapshot.clone(), has);
        bed.ok(Command::Settle { name: rd("copy") });
        assert_eq!(download(&bed).phase, Phase::Success);
        assert!(bed.model.snapshot(&rd("copy"), &snapshot).unwrap().is_successful());
        let nodes = bed.nodes_of("copy");
        assert_eq!(nodes, if download_only { vec![] } else { vec!["node-2".to_owned()] });
        if !download_only {
            let steps = actions(&bed, "copy");
            let from = |(_, action): &(NodeName, Action)| matches!(action, Action::RestoreVolume { from, .. } if *from == rd("copy"));
            assert!(steps.iter().any(from), "{steps:?}");
        }
    }
}

#[test]
fn a_restore_that_fails_leaves_a_snapshot_that_says_so() {
    let mut bed = bed();
    bed.ok(restore(false));
    let snapshot = SnapshotName::new("back_x").unwrap();
    let token = bed.model.snapshot(&rd("copy"), &snapshot).unwrap().token;
    say(&mut bed, &rd("copy"), &node(2), token, Phase::Failed);
    let found = bed.model.snapshot(&rd("copy"), &snapshot).unwrap();
    assert_eq!(found.download.as_ref().unwrap().phase, Phase::Failed);
    assert!(!found.is_successful() && !found.is_pending());
    assert!(bed.nodes_of("copy").is_empty());
    bed.ok(Command::DeleteSnapshot { name: rd("copy"), snapshot: snapshot.clone(), nodes: vec![] });
    bed.ok(Command::Settle { name: rd("copy") });
    assert!(bed.model.snapshot(&rd("copy"), &snapshot).is_none());
}

#[test]
fn what_can_not_be_is_refused_with_its_reason() {
    let mut bed = bed();
    let again = Command::CreateRemote { name: remote(), bucket: bucket() };
    assert_eq!(bed.refused(again).code, Code::RemoteExists);
    let strange = BucketEdit { endpoint: Some("ftp://x".to_owned()), ..BucketEdit::default() };
    let strange = Command::ModifyRemote { name: remote(), bucket: strange };
    assert_eq!(bed.refused(strange).code, Code::InvalidBackup);
    bed.observed.nodes.values_mut().for_each(|node| node.ships = false);
    let old = bed.refused(restore(false));
    assert!(old.cause.contains("node-2: its agent is too old"), "{old}");
    let old = bed.refused(backup("20261129_000000", &[]));
    assert!(old.cause.contains("its agent is too old"), "{old}");
    bed.observed.nodes.values_mut().for_each(|node| node.ships = true);
    let elsewhere = Command::RestoreBackup {
        remote: remote(),
        found: found(),
        snapshot: SnapshotName::new("back_x").unwrap(),
        to: rd("copy"),
        group: None,
        node: node(2),
        pools: BTreeMap::new(),
        download_only: false,
    };
    assert_eq!(bed.refused(elsewhere).code, Code::UnknownPool);
    bed.observed.master = None;
    assert_eq!(bed.refused(backup("20261129_000000", &[])).code, Code::NoMasterKey);
}

/// The same, of encrypted volumes.
fn encrypted() -> Bed {
    let mut bed = Bed::new(3);
    let master = MasterKey::new(&mut |bytes| bytes.fill(1));
    let wrapped = master.wrap(&"secret".into(), &mut |bytes| bytes.fill(2));
    bed.ok(Command::SetMasterKey { wrapped, before: None });
    bed.observed.master = Some(master);
    for node in bed.observed.nodes.values_mut() {
        node.ships = true;
        node.layers.insert(Layer::Luks);
    }
    bed.ok(Command::CreateRemote { name: remote(), bucket: bucket() });
    let layers = Some(vec![Layer::Drbd, Layer::Luks, Layer::Storage]);
    let definition = NewDefinition { name: Some(rd("web")), layers, ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
    let size = vocab::Bytes(1 << 30);
    let volume = NewVolumeDefinition { size, ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("web"), volume });
    bed.place("web", 2).unwrap();
    bed.settle("web");
    bed
}

#[test]
fn keys_of_encrypted_volumes_go_with_them_and_nodes_have_nothing_in_common() {
    let mut bed = encrypted();
    let old = bed.refused(backup("20261129_000000", &[]));
    assert!(
        old.cause.contains("its agent is too old"),
        "who knows no keys would leave them out: {old}"
    );
    bed.observed.nodes.values_mut().for_each(|node| node.ships_encrypted = true);
    bed.ok(backup("20261129_000000", &[]));
    take(&mut bed);
    let first = upload(&bed, "back_20261129_000000");
    let [(on, Action::Upload(order))] = &actions(&bed, "web")[..] else { panic!() };
    let keys = order.described.keys.clone().unwrap();
    assert_eq!(Some(&keys.master), bed.model.controller().master_key.as_ref());
    let passphrase = || {
        bed.model.definition(&rd("web")).unwrap().volumes[&VolumeNr(0)].passphrase.clone().unwrap()
    };
    assert_eq!(keys.passphrases, [(VolumeNr(0), passphrase())].into());
    let on = on.clone();
    let mut holders = bed.model.resources_of(&rd("web")).map(|resource| resource.node.clone());
    let other = holders.find(|node| *node != on).unwrap();
    drop(holders);
    say(&mut bed, &rd("web"), &on, first.token, Phase::Success);

    // Where that was made from builds on it. Another node has the snapshot, too, of other bytes.
    for (stamp, node, base) in [("20261130_000000", &on, true), ("20261201_000000", &other, false)]
    {
        let mut wish = backup(stamp, &[FIRST]);
        if let Command::CreateBackup { node: wished, .. } = &mut wish {
            *wished = Some(node.clone());
        }
        bed.ok(wish);
        take(&mut bed);
        let next = upload(&bed, &format!("back_{stamp}"));
        assert_eq!((next.phase, next.base.is_some()), (Phase::Shipping, base), "{node}");
        say(&mut bed, &rd("web"), node, next.token, Phase::Success);
    }
}

#[test]
fn an_encrypted_backup_is_restored_with_its_passphrases() {
    let mut bed = encrypted();
    bed.observed.nodes.values_mut().for_each(|node| node.ships_encrypted = true);
    let with = |passphrases: BTreeMap<VolumeNr, String>, only: bool| {
        let mut restore = restore(only);
        if let Command::RestoreBackup { found, .. } = &mut restore {
            found.layers = vec![Layer::Drbd, Layer::Luks, Layer::Storage];
            found.passphrases = passphrases;
        }
        restore
    };
    let none = bed.refused(with(BTreeMap::new(), false));
    assert_eq!(none.code, Code::InvalidBackup, "{none}");
    let sealed = BTreeMap::from([(VolumeNr(0), "sealed".to_owned())]);
    bed.ok(with(sealed.clone(), false));
    let passphrase = |bed: &Bed, name: &str| {
        bed.model.definition(&rd(name)).unwrap().volumes[&VolumeNr(0)].passphrase.clone()
    };
    assert_eq!(passphrase(&bed, "copy").as_deref(), Some("sealed"));
    let [(_, Action::Download(order))] = &actions(&bed, "copy")[..] else { panic!() };
    assert_eq!(order.passphrases, [(0, "sealed".to_owned())].into());

    // Volumes that are there already have others: the snapshot keeps those of the backup for itself.
    let to = |only: bool| {
        let mut restore = with(sealed.clone(), only);
        if let Command::RestoreBackup { to, node: on, .. } = &mut restore {
            (*to, *on) = (rd("other"), node(2));
        }
        restore
    };
    let layers = Some(vec![Layer::Drbd, Layer::Luks, Layer::Storage]);
    let definition = NewDefinition { name: Some(rd("other")), layers, ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
    let size = vocab::Bytes(1 << 30);
    let volume = NewVolumeDefinition { size, ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("other"), volume });
    let refused = bed.refused(to(false));
    assert!(refused.cause.contains("passphrases of their own"), "{refused}");
    bed.ok(to(true));
    let [(_, Action::Download(order))] = &actions(&bed, "other")[..] else { panic!() };
    assert_eq!(order.passphrases, [(0, "sealed".to_owned())].into());
    assert_ne!(passphrase(&bed, "other").as_deref(), Some("sealed"));
}
