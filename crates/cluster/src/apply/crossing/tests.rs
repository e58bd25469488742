//! Snapshots from cluster to cluster, from outside: what is said to whom when, what agents are told, and what
//! becomes of it at both ends.

use vocab::Bytes;

use super::*;
use crate::apply::shipping::tests::{actions, bed as with_vault, remote, replica, say, take};
use crate::apply::tests::{Bed, node, pool, rd};
use crate::calls::{Call, calls, offer};
use crate::command::{ClusterEdit, Command};
use crate::layer::Layer;
use crate::observed::SnapshotState;
use crate::plan::Action;
use crate::props::PropsEdit;

fn there() -> RemoteName {
    RemoteName::new("there").unwrap()
}

fn snap(name: &str) -> SnapshotName {
    SnapshotName::new(name).unwrap()
}

fn cluster(id: Option<&str>) -> OtherCluster {
    OtherCluster {
        url: "http://other.example.com:3370".to_owned(),
        id: id.map(str::to_owned),
        token: None,
        passphrase: None,
    }
}

fn bed() -> Bed {
    let mut bed = with_vault();
    bed.observed.nodes.values_mut().for_each(|node| node.ships_to_clusters = true);
    bed.ok(Command::CreateClusterRemote { name: there(), cluster: cluster(Some("other")) });
    bed
}

fn sending(to: &str) -> NewSending {
    NewSending {
        to: rd(to),
        snapshot: None,
        node: None,
        net_if: None,
        pool: None,
        pools: BTreeMap::new(),
        group: None,
        download_only: true,
        incremental: true,
    }
}

fn ship(snapshot: &str) -> Command {
    Command::ShipSnapshot {
        name: rd("web"),
        remote: there(),
        snapshot: Some(snap(snapshot)),
        stamp: "20261129_000000".to_owned(),
        node: None,
        to: sending("copy"),
    }
}

fn upload(bed: &Bed, snapshot: &str) -> Upload {
    bed.model.snapshot(&rd("web"), &snap(snapshot)).unwrap().uploads[&there()].clone()
}

fn said(bed: &Bed) -> Vec<Call> {
    calls(&bed.model, &bed.observed)
}

fn door() -> Door {
    let address = "10.1.0.1".parse().unwrap();
    Door { address, port: 12_000, fingerprint: "f".repeat(64) }
}

fn abort(remote: RemoteName) -> Command {
    Command::AbortBackups { remote, name: None, snapshot: None, uploads: true, downloads: true }
}

#[test]
fn the_other_cluster_is_asked_before_a_node_is_sent_there() {
    let mut bed = bed();
    bed.ok(ship("one"));
    assert_eq!((upload(&bed, "one").phase, said(&bed)), (Phase::Waiting, vec![]));
    take(&mut bed);
    let begun = upload(&bed, "one");
    let on = begun.node.clone().unwrap();
    let [call] = &said(&bed)[..] else { panic!() };
    assert_eq!((begun.phase, call.what), (Phase::Shipping, CallWhat::Ask));
    let told = offer(&bed.model, call).unwrap();
    assert_eq!(told.origin, origin(bed.model.snapshot(&rd("web"), &snap("one")).unwrap(), &on));
    assert_eq!((told.bases.len(), told.described.volumes.len()), (0, 1));
    let master = bed.observed.master.clone().unwrap();
    let secret = master.unseal(&told.sending.secret).unwrap();
    assert_eq!(secret.expose().len(), 2 * SECRET);
    assert_eq!(actions(&bed, "web"), [], "nobody knows where to yet");

    bed.ok(call.clone().done(Ok((door(), None))));
    let [(at, Action::Upload(order))] = &actions(&bed, "web")[..] else { panic!() };
    let UploadTo::Peer(peer) = &order.to else { panic!() };
    assert_eq!((at, &peer.door, &order.backup), (&on, &door(), &told.origin));
    assert_eq!(said(&bed), []);
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Success);
    assert_eq!((upload(&bed, "one").phase, said(&bed)), (Phase::Success, vec![]));

    // The next one may build on what this node has shipped; what it builds on stays meanwhile.
    bed.ok(ship("two"));
    take(&mut bed);
    let second = upload(&bed, "two");
    assert_eq!(second.node, Some(on.clone()), "who has shipped the first");
    let [call] = &said(&bed)[..] else { panic!() };
    let bases = offer(&bed.model, call).unwrap().bases;
    assert_eq!(bases, std::slice::from_ref(&told.origin));
    let gone = call.clone().done(Ok((door(), Some("nobody/knows".to_owned()))));
    bed.ok(call.clone().done(Ok((door(), Some(told.origin.clone())))));
    bed.ok(gone);
    let base = upload(&bed, "two").base;
    assert_eq!(base, Some((snap("one"), told.origin)), "what comes late changes nothing");
    let delete =
        Command::DeleteSnapshot { name: rd("web"), snapshot: snap("one"), nodes: Vec::new() };
    assert_eq!(bed.refused(delete).code, Code::InUse);
}

#[test]
fn what_the_other_cluster_does_not_take_has_failed_and_is_closed() {
    let mut bed = bed();
    bed.ok(ship("one"));
    take(&mut bed);
    let call = said(&bed).remove(0);
    bed.ok(call.done(Err("it has no pool".to_owned())));
    let failed = upload(&bed, "one");
    assert_eq!((failed.phase, failed.cause.as_deref()), (Phase::Failed, Some("it has no pool")));
    let [close] = &said(&bed)[..] else { panic!() };
    assert_eq!(close.what, CallWhat::Close);
    bed.ok(close.clone().done(Err(String::new())));
    assert_eq!(said(&bed), []);

    // What it is to be compared with is gone: nothing is shipped that nobody could put together.
    bed.ok(ship("one"));
    let call = said(&bed).remove(0);
    bed.ok(call.done(Ok((door(), Some("gone/node-1".to_owned())))));
    assert!(upload(&bed, "one").cause.unwrap().contains("is gone"));
}

#[test]
fn what_is_given_up_is_told_and_a_remote_goes_after_that() {
    let mut bed = bed();
    bed.ok(ship("never"));
    bed.ok(abort(there()));
    assert_eq!((upload(&bed, "never").phase, said(&bed)), (Phase::Aborted, vec![]), "nobody knew");
    take(&mut bed);
    bed.ok(ship("one"));
    take(&mut bed);
    let begun = upload(&bed, "one");
    let on = begun.node.clone().unwrap();
    let call = said(&bed).remove(0);
    bed.ok(call.done(Ok((door(), None))));
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Shipping);
    bed.ok(Command::DeleteRemote { name: there() });
    let stop = Action::StopShipping { token: begun.token };
    assert_eq!(actions(&bed, "web"), [(on.clone(), stop)]);
    let [close] = &said(&bed)[..] else { panic!() };
    assert_eq!(close.what, CallWhat::Close);
    say(&mut bed, &rd("web"), &on, begun.token, Phase::Aborted);
    assert!(bed.model.remote(&there()).is_some(), "it is needed to tell");
    bed.ok(close.clone().done(Err(String::new())));
    assert!(bed.model.remote(&there()).is_none());
}

#[test]
fn remotes_of_one_kind_are_not_taken_for_the_other() {
    let mut bed = bed();
    let backup = Command::CreateBackup {
        name: rd("web"),
        remote: there(),
        snapshot: None,
        stamp: "20261129_000000".to_owned(),
        node: None,
        incremental: true,
        present: Vec::new(),
    };
    assert!(bed.refused(backup).cause.contains("another cluster"));
    let mut wrong = ship("one");
    if let Command::ShipSnapshot { remote: to, .. } = &mut wrong {
        *to = remote();
    }
    assert!(bed.refused(wrong).cause.contains("bucket"));
    let edit = Command::ModifyClusterRemote { name: remote(), cluster: ClusterEdit::default() };
    assert_eq!(bed.refused(edit).code, Code::InvalidBackup);
    let switch = Command::CreateSchedule {
        name: ScheduleName::new("daily").unwrap(),
        schedule: crate::command::NewSchedule {
            full: "0 2 * * *".to_owned(),
            incremental: None,
            keep_local: None,
            keep_remote: None,
            on_failure: crate::schedule::OnFailure::Skip,
            max_retries: None,
        },
    };
    bed.ok(switch);
    let on = Command::SetSwitch {
        level: crate::schedule::Level::Controller,
        remote: there(),
        schedule: ScheduleName::new("daily").unwrap(),
        on: true,
        node: None,
    };
    assert!(bed.refused(on).cause.contains("another cluster"));
    for (url, token) in [
        ("ftp://x", None),
        ("http://", None),
        ("http://a@b", None),
        ("http://x?y", None),
        ("http://x", Some("sealed".to_owned())),
    ] {
        let edit = ClusterEdit { url: Some((url.to_owned(), token)), ..ClusterEdit::default() };
        let edit = Command::ModifyClusterRemote { name: there(), cluster: edit };
        assert_eq!(bed.refused(edit).code, Code::InvalidBackup, "{url}");
    }
    // An agent that does not know it gets no such order.
    bed.observed.nodes.values_mut().for_each(|node| node.ships_to_clusters = false);
    let old = bed.refused(ship("one"));
    assert!(old.cause.contains("its agent is too old"), "{old}");
    assert!(bed.model.snapshot(&rd("web"), &snap("one")).is_none());
    bed.observed.master = None;
    assert_eq!(bed.refused(ship("one")).code, Code::NoMasterKey);
}

/// What another cluster ships.
fn found() -> Found {
    let volume = FoundVolume {
        size: Bytes(1 << 30),
        gross_size: false,
        props: Props::new(),
        pool: PoolName::new("elsewhere").unwrap(),
        device: Bytes(1 << 30),
    };
    Found {
        chain: vec!["web_back_20261129_000000".to_owned()],
        layers: vec![Layer::Drbd, Layer::Storage],
        node_id: vocab::NodeId::new(0),
        peer_slots: 7,
        props: Props::new(),
        volumes: [(VolumeNr(0), volume)].into(),
        passphrases: BTreeMap::new(),
    }
}

fn receiving(snapshot: &str, origin: &str, bases: &[&str]) -> NewReceiving {
    NewReceiving {
        cluster: "other".to_owned(),
        shipment: format!("of {snapshot}"),
        origin: origin.to_owned(),
        bases: bases.iter().map(|base| (*base).to_owned()).collect(),
        secret: "sealed".to_owned(),
        to: rd("copy"),
        snapshot: snap(snapshot),
        group: None,
        node: None,
        net_if: None,
        pool: Some(pool()),
        pools: BTreeMap::new(),
        download_only: true,
    }
}

fn receive(snapshot: NewReceiving) -> Command {
    Command::ReceiveSnapshot { remote: there(), found: found(), snapshot }
}

fn download(bed: &Bed, snapshot: &str) -> Download {
    bed.model.snapshot(&rd("copy"), &snap(snapshot)).unwrap().download.clone().unwrap()
}

/// The snapshot has arrived.
fn arrived(bed: &mut Bed, snapshot: &str) {
    let (node, token) = (download(bed, snapshot).node, download(bed, snapshot).token);
    let has = SnapshotState { token };
    replica(bed, &rd("copy"), &node).snapshots.insert(snap(snapshot), has);
    bed.ok(Command::Settle { name: rd("copy") });
}

#[test]
fn one_after_the_other_is_received_where_the_first_one_is() {
    let mut bed = bed();
    let free = |bed: &mut Bed, index: usize, free: u64| {
        let state = bed.observed.nodes.get_mut(&node(index)).unwrap();
        state.pools.get_mut(&pool()).unwrap().free = Bytes(free);
    };
    (0..3).for_each(|index| free(&mut bed, index, 2 << 30));
    free(&mut bed, 1, 3 << 30);
    bed.ok(receive(receiving("one", "u1/a", &[])));
    assert_eq!(download(&bed, "one").node, node(1), "it has most room");
    let [(at, Action::Download(order))] = &actions(&bed, "copy")[..] else { panic!() };
    let DownloadFrom::Peer(listen) = &order.from else { panic!() };
    assert_eq!((at, listen.ports, &listen.base), (&node(1), (12_000, 12_999), &None));
    // Asked again it is the same one.
    let before = download(&bed, "one");
    bed.ok(receive(receiving("one", "u1/a", &[])));
    assert_eq!(download(&bed, "one"), before);
    assert_eq!(bed.refused(receive(receiving("two", "u2/a", &[]))).code, Code::InUse);
    arrived(&mut bed, "one");
    assert_eq!(download(&bed, "one").phase, Phase::Success);
    assert!(bed.nodes_of("copy").is_empty());

    // Another node has more room, and what it builds on is here; ports are as an operator says.
    free(&mut bed, 2, 9 << 30);
    let ports = PropsEdit {
        set: [(PORTS.to_owned(), "20000-20001".to_owned())].into(),
        ..PropsEdit::default()
    };
    bed.ok(Command::ModifyController { props: ports });
    bed.ok(receive(receiving("two", "u2/a", &["never/a", "u1/b", "u1/a"])));
    let second = download(&bed, "two");
    let base = second.receiving.as_ref().unwrap().base.clone();
    assert_eq!((second.node, base), (node(1), Some((snap("one"), "u1/a".to_owned()))));
    let steps = actions(&bed, "copy");
    let [(_, Action::Download(order))] = &steps[..] else { panic!("{steps:?}") };
    let DownloadFrom::Peer(listen) = &order.from else { panic!() };
    assert_eq!(listen.ports, (20_000, 20_001));
    let delete =
        Command::DeleteSnapshot { name: rd("copy"), snapshot: snap("one"), nodes: Vec::new() };
    assert_eq!(bed.refused(delete).code, Code::InUse, "it is compared with");
    // The other cluster gives it up, or one that is not known.
    let give_up = |shipment: &str| Command::AbortReceived {
        cluster: "other".to_owned(),
        shipment: shipment.to_owned(),
    };
    bed.ok(give_up("of nothing"));
    bed.ok(give_up("of two"));
    assert_eq!(download(&bed, "two").phase, Phase::Aborting);
    say(&mut bed, &rd("copy"), &node(1), second.token, Phase::Aborted);
    let aborted = download(&bed, "two");
    assert_eq!(aborted.phase, Phase::Aborted);
    assert!(aborted.cause.unwrap().contains("has given it up"));
    // What did not arrive is nothing to build on.
    bed.ok(receive(receiving("three", "u3/a", &["u2/a"])));
    let third = download(&bed, "three");
    assert_eq!((third.node, third.receiving.unwrap().base), (node(2), None));
}

#[test]
fn what_can_not_be_received_is_refused_with_its_reason() {
    let mut bed = bed();
    let new = || receiving("one", "u1/a", &[]);
    let named = NewReceiving { node: Some(node(9)), ..new() };
    assert_eq!(bed.refused(receive(named)).code, Code::UnknownNode);
    let net_if = NetIfName::new("none").unwrap();
    let named = NewReceiving { node: Some(node(1)), net_if: Some(net_if), ..new() };
    assert_eq!(bed.refused(receive(named)).code, Code::UnknownNetIf);
    let elsewhere = NewReceiving { pool: None, ..new() };
    assert!(bed.refused(receive(elsewhere)).cause.contains("has no pool elsewhere"));
    let mut bucket = receive(new());
    if let Command::ReceiveSnapshot { remote: from, .. } = &mut bucket {
        *from = remote();
    }
    assert_eq!(bed.refused(bucket).code, Code::InvalidBackup);
    // Where there are replicas it does not go; where there are some elsewhere only the snapshot does.
    let whole = NewReceiving { to: rd("web"), download_only: false, ..new() };
    assert!(bed.refused(receive(whole)).cause.contains("it has resources"));
    let with = bed.model.resources_of(&rd("web")).next().unwrap().node.clone();
    let on_it = NewReceiving { to: rd("web"), node: Some(with), ..new() };
    assert_eq!(bed.refused(receive(on_it)).code, Code::ResourceExists);
    let group = GroupName::new("other").unwrap();
    let group = NewReceiving { to: rd("web"), group: Some(group), ..new() };
    assert!(bed.refused(receive(group)).cause.contains("in resource group"));
    bed.observed.nodes.values_mut().for_each(|node| node.ships_to_clusters = false);
    let old = bed.refused(receive(new()));
    assert!(old.cause.contains("its agent is too old"), "{old}");
    assert!(bed.model.definition(&rd("copy")).is_none(), "nothing is left");
    bed.observed.master = None;
    assert_eq!(bed.refused(receive(new())).code, Code::NoMasterKey);
}

#[test]
fn remotes_of_before_are_read_as_they_were_written() {
    let bed = bed();
    let remote = bed.model.remote(&remote()).unwrap();
    let row = serde_json::to_string(remote).unwrap();
    assert!(row.contains(r#""bucket":{"endpoint":"#), "as it was always written: {row}");
    assert_eq!(&serde_json::from_str::<Remote>(&row).unwrap(), remote);
    let older = row.replace(r#","deleting":false"#, "");
    assert!(older != row);
    assert_eq!(&serde_json::from_str::<Remote>(&older).unwrap(), remote);
    let cluster = bed.model.remote(&there()).unwrap();
    let row = serde_json::to_string(cluster).unwrap();
    assert_eq!(&serde_json::from_str::<Remote>(&row).unwrap(), cluster);
}
