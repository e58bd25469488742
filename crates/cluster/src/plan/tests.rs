//! Plans: what is done, in which order, and what waits for whom.

use crypt::seal::MasterKey;
use vocab::{Bytes, DiskState, VolumeNr};

use super::{Action, Affected, Guard, Plan, affected, plan};
use crate::apply::tests::{Bed, node, rd};
use crate::change::Object;
use crate::command::{Command, NewDefinition, NewVolumeDefinition};
use crate::layer::Layer;
use crate::objects::VolumeDefinitionFlag;
use crate::props::PropsEdit;

const GIB: u64 = 1 << 30;

fn plan_of(bed: &Bed) -> Plan {
    plan(&bed.model, &bed.observed, &rd("disk"))
}

fn lines(plan: &Plan) -> Vec<String> {
    let after = |ids: &[super::StepId]| match ids.is_empty() {
        true => String::new(),
        false => format!(" after {:?}", ids.iter().map(|id| id.0).collect::<Vec<_>>()),
    };
    let line = |step: &super::Step| {
        format!("{} {}: {}{}", step.id.0, step.node, step.action, after(&step.after))
    };
    plan.steps.iter().map(line).collect()
}

fn deployed() -> Bed {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    assert!(plan_of(&bed).is_done(), "{:?}", plan_of(&bed));
    bed
}

fn delete(bed: &mut Bed, index: usize) {
    let (name, node) = (rd("disk"), node(index));
    bed.ok(Command::DeleteResource { name, node, keep_tie_breaker: false });
}

#[test]
fn a_new_resource_gets_volumes_metadata_and_configuration_in_this_order() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    assert_eq!(
        lines(&plan_of(&bed)),
        [
            "0 node-0: create volume 0 in pool thin",
            "1 node-0: create metadata of volume 0, First after [0]",
            "2 node-0: configure after [1]",
            "3 node-1: create volume 0 in pool thin",
            "4 node-1: create metadata of volume 0, DayZero after [3]",
            "5 node-1: configure after [4]",
            "6 node-2: configure",
        ]
    );
    let plan = plan_of(&bed);
    let Action::Configure(config) = &plan.steps[2].action else { panic!("a configuration") };
    assert_eq!(config.connections.len(), 2);
    assert_eq!(config.volumes[&0].options["rs-discard-granularity"], "65536", "the pool is thin");
    let Action::Configure(diskless) = &plan.steps[6].action else { panic!("a configuration") };
    assert!(diskless.volumes[&0].options.is_empty(), "{:?}", diskless.volumes[&0].options);
    assert_eq!(config.options["quorum"], "majority");
    assert_eq!(config.options["on-no-quorum"], "io-error");
    let peer = &config.connections[&node(1)];
    assert_eq!(peer.paths[0].1.to_string_pair(), "10.0.0.2 7000");
    assert!(config.connections[&node(2)].diskless);
}

/// For messages of the test above.
trait Pair {
    fn to_string_pair(&self) -> String;
}

impl Pair for (std::net::IpAddr, u16) {
    fn to_string_pair(&self) -> String {
        format!("{} {}", self.0, self.1)
    }
}

#[test]
fn a_plan_begins_anew_where_the_nodes_are() {
    let mut bed = deployed();
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(1)).unwrap().volumes.clear();
    assert_eq!(
        lines(&plan_of(&bed)),
        [
            "0 node-1: create volume 0 in pool thin",
            "1 node-1: create metadata of volume 0, DayZero after [0]",
            "2 node-1: configure after [1]",
        ]
    );
}

#[test]
fn data_begin_elsewhere_when_nobody_else_has_any() {
    let mut bed = deployed();
    // Who was to begin is gone, and the other replica never came to have a backing volume.
    let mut definition = bed.model.definition(&rd("disk")).unwrap().clone();
    let volume = definition.volumes.get_mut(&VolumeNr(0)).unwrap();
    volume.flags.remove(&VolumeDefinitionFlag::DrbdInitialized);
    (volume.initial_on, volume.passed_on) = (Some(node(1)), true);
    bed.model.put(Object::Definition(definition));
    let wanted = bed.model.wanted_generation(&rd("disk"));
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.values_mut().for_each(|replica| replica.generation = wanted);
    let mut set = |index, disk, backing| {
        let volumes = &mut replicas.get_mut(&node(index)).unwrap().volumes;
        let state = volumes.get_mut(&VolumeNr(0)).unwrap();
        (state.disk, state.backing) = (Some(disk), backing);
    };
    set(1, DiskState::Inconsistent, Some(Bytes(2 * GIB)));
    set(0, DiskState::Diskless, None);
    let begins =
        |bed: &Bed| lines(&plan_of(bed)).iter().any(|line| line.contains("begin the data"));
    assert!(begins(&bed), "{:?}", lines(&plan_of(&bed)));
    // A disk that is lost for the moment may have data.
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let lost = replicas.get_mut(&node(0)).unwrap().volumes.get_mut(&VolumeNr(0)).unwrap();
    lost.backing = Some(Bytes(2 * GIB));
    assert!(!begins(&bed), "{:?}", lines(&plan_of(&bed)));
}

/// Whether the disk of the first node is to be removed, and whether all it has.
fn removals(plan: &Plan) -> (bool, bool) {
    let any = |wanted: fn(&Action) -> bool| {
        plan.steps.iter().any(|step| step.node == node(0) && wanted(&step.action))
    };
    (any(|a| matches!(a, Action::RemoveDisk(_))), any(|a| matches!(a, Action::Remove(_))))
}

/// Every node confirms the newest generation.
fn confirm(bed: &mut Bed) {
    let generation = bed.model.wanted_generation(&rd("disk"));
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.values_mut().for_each(|replica| replica.generation = generation);
    bed.ok(Command::Settle { name: rd("disk") });
}

#[test]
fn a_deleted_replica_loses_its_disk_then_its_peers_and_is_removed_then() {
    let mut bed = deployed();
    delete(&mut bed, 0);
    confirm(&mut bed);
    assert_eq!(removals(&plan_of(&bed)), (false, false), "peers have to confirm");
    confirm(&mut bed);
    let plan = plan_of(&bed);
    assert_eq!(removals(&plan), (true, false));
    let guard = Guard { at_least: 1, of: vec![node(1)] };
    assert!(plan.steps.iter().any(|step| step.action == Action::RemoveDisk(guard.clone())));
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(0)).unwrap().volumes.clear();
    confirm(&mut bed);
    let plan = plan_of(&bed);
    assert_eq!(removals(&plan), (false, false));
    assert!(plan.waits.iter().any(|wait| wait.reason.contains("leave")), "{plan:?}");
    confirm(&mut bed);
    assert_eq!(removals(&plan_of(&bed)), (false, true));
}

#[test]
fn data_stay_while_the_other_copy_is_not_current() {
    let mut bed = deployed();
    delete(&mut bed, 0);
    confirm(&mut bed);
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let other = replicas.get_mut(&node(1)).unwrap();
    other.volumes.get_mut(&VolumeNr(0)).unwrap().disk = Some(DiskState::Outdated);
    for _ in 0..3 {
        confirm(&mut bed);
        let plan = plan_of(&bed);
        assert_eq!(removals(&plan), (false, false), "{plan:?}");
    }
}

#[test]
fn an_offline_node_holds_up_only_its_own_deletion_and_is_named() {
    let mut bed = deployed();
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    bed.ok(Command::DeleteDefinition { name: rd("disk") });
    bed.ok(Command::Settle { name: rd("disk") });
    let plan = plan_of(&bed);
    assert_eq!(plan.steps.len(), 2, "{plan:?}");
    let wait = plan.waits.iter().find(|wait| wait.node == Some(node(0))).unwrap();
    assert!(wait.reason.contains("node lost"), "{wait:?}");
    bed.ok(Command::LoseNode { name: node(0) });
    bed.settle("disk");
    assert!(bed.model.definition(&rd("disk")).is_none());
}

#[test]
fn volumes_grow_before_devices() {
    let mut bed = deployed();
    bed.ok(Command::ModifyVolumeDefinition {
        name: rd("disk"),
        number: 0,
        size: Some(3 * GIB),
        props: PropsEdit::default(),
        gross_size: None,
    });
    let plan = plan_of(&bed);
    let grows =
        |plan: &Plan, f: fn(&Action) -> bool| plan.steps.iter().filter(|s| f(&s.action)).count();
    assert_eq!(grows(&plan, |a| matches!(a, Action::GrowVolume { .. })), 2);
    assert_eq!(grows(&plan, |a| matches!(a, Action::GrowDevice { .. })), 0);
    for replica in bed.observed.resources.get_mut(&rd("disk")).unwrap().values_mut() {
        for volume in replica.volumes.values_mut().filter(|volume| volume.backing.is_some()) {
            volume.backing = Some(Bytes(4 * GIB));
        }
    }
    let disk = |bed: &mut Bed, index, state| {
        let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
        let replica = replicas.get_mut(&node(index)).unwrap();
        replica.volumes.get_mut(&VolumeNr(0)).unwrap().disk = Some(state);
    };
    for (state, devices) in
        [(DiskState::Inconsistent, 0), (DiskState::Failed, 1), (DiskState::UpToDate, 1)]
    {
        disk(&mut bed, 1, state);
        let plan = plan_of(&bed);
        assert_eq!(grows(&plan, |a| matches!(a, Action::GrowVolume { .. })), 0);
        assert_eq!(grows(&plan, |a| matches!(a, Action::GrowDevice { .. })), devices, "{state}");
        let waits = |wait: &super::Wait| wait.reason.contains("grows when node node-1 is UpToDate");
        assert_eq!(plan.waits.iter().any(waits), devices == 0, "{plan:?}");
    }
    // One has grown, and the other copies before it says that it has, too.
    disk(&mut bed, 1, DiskState::Inconsistent);
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let grown = replicas.get_mut(&node(0)).unwrap().volumes.get_mut(&VolumeNr(0)).unwrap();
    grown.size = Bytes(3 * GIB);
    let plan = plan_of(&bed);
    assert_eq!(grows(&plan, |a| matches!(a, Action::GrowDevice { .. })), 0);
    assert!(plan.waits.is_empty(), "{plan:?}");
}

#[test]
fn changes_name_the_resource_definitions_they_concern() {
    let mut bed = deployed();
    bed.define("other");
    let props = PropsEdit::set("PrefNic", "default");
    let applied = bed.ok(Command::ModifyNode { name: node(0), kind: None, props });
    assert_eq!(affected(&bed.model, &applied.changes), Affected::Some([rd("disk")].into()));
    let applied = bed.ok(Command::ModifyController { props: PropsEdit::set("Aux/x", "1") });
    assert_eq!(affected(&bed.model, &applied.changes), Affected::All);
}

/// An encrypted resource definition, as somebody makes it who has entered the master passphrase.
fn encrypted(bed: &mut Bed) -> MasterKey {
    let master = MasterKey::new(&mut |bytes| bytes.fill(7));
    bed.observed.master = Some(master.clone());
    let layers = Some(vec![Layer::Drbd, Layer::Luks, Layer::Storage]);
    let definition = NewDefinition { name: Some(rd("disk")), layers, ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("disk"), volume });
    master
}

#[test]
fn an_encrypted_volume_has_a_passphrase_room_for_a_header_and_copies_everything_first() {
    let mut bed = Bed::new(3);
    let master = encrypted(&mut bed);
    bed.place("disk", 2).unwrap();
    let plan = plan_of(&bed);
    assert!(lines(&plan)[4].contains("Empty"), "noise is not equal: {:?}", lines(&plan));
    let Action::CreateVolume { backing, .. } = &plan.steps[0].action else { panic!("a volume") };
    let sealed = backing.passphrase.as_ref().unwrap();
    assert!(master.unseal(sealed).unwrap().expose().len() > 40);
    assert_eq!(backing.layers, [Layer::Luks, Layer::Storage]);
    assert_eq!(backing.size.0, 1_048_840 * 1024 + (16 << 20));

    // Agents that know the master key go on without the controller's; one with a closed disk says what it
    // waits for.
    bed.settle("disk");
    bed.observed.master = None;
    assert!(plan_of(&bed).waits.is_empty());
    let replica = bed.observed.resources.get_mut(&rd("disk")).unwrap().get_mut(&node(1)).unwrap();
    replica.volumes.get_mut(&VolumeNr(0)).unwrap().disk = Some(DiskState::Diskless);
    let waits = plan_of(&bed).waits;
    assert!(waits[0].reason.contains("enter the master passphrase"), "{waits:?}");
    assert_eq!(waits[0].node, Some(node(1)));
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    let another = Command::CreateVolumeDefinition { name: rd("disk"), volume };
    assert_eq!(bed.refused(another).code.number(), 312);
}

#[test]
fn the_master_key_is_kept_under_one_passphrase_at_a_time() {
    let mut bed = Bed::new(1);
    bed.define("disk");
    let set = |wrapped: &str, before: Option<&str>| Command::SetMasterKey {
        wrapped: wrapped.to_owned(),
        before: before.map(str::to_owned),
    };
    assert_eq!(bed.refused(set("new", Some("old"))).code.number(), 512);
    let applied = bed.ok(set("one", None));
    assert_eq!(affected(&bed.model, &applied.changes), Affected::Some([].into()));
    assert_eq!(bed.refused(set("two", None)).code.number(), 512);
    assert_eq!(bed.refused(set("two", Some("none"))).code.number(), 600);
    bed.ok(set("two", Some("one")));
    assert_eq!(bed.model.controller().master_key.as_deref(), Some("two"));
}

#[test]
fn a_volume_that_was_there_before_is_taken_as_it_is_and_never_made() {
    let mut bed = deployed();
    let mut resource = bed.model.resource(&rd("disk"), &node(1)).unwrap().clone();
    resource.volumes.get_mut(&VolumeNr(0)).unwrap().adopt = true;
    bed.model.put(Object::Resource(resource));
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(1)).unwrap().volumes.clear();
    let plan = plan_of(&bed);
    assert_eq!(
        lines(&plan),
        ["0 node-1: take volume 0 of pool thin as it is", "1 node-1: configure after [0]",]
    );
    let Action::AdoptVolume { size, metadata, node_id, .. } = &plan.steps[0].action else {
        panic!("it is taken")
    };
    let resource = bed.model.resource(&rd("disk"), &node(1)).unwrap();
    assert_eq!((size.0, *metadata, *node_id), (GIB, true, resource.node_id));
    assert!(node_id.is_some());
    // Once its agent has it, it is a volume like others.
    bed.settle("disk");
    assert!(plan_of(&bed).is_done(), "{:?}", lines(&plan_of(&bed)));
    let resource = bed.model.resource(&rd("disk"), &node(1)).unwrap();
    assert!(!resource.volumes[&VolumeNr(0)].adopt);
}
