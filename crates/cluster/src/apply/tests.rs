//! Commands, from outside: what they change, and that a refused one changes nothing.

use std::collections::BTreeMap;

use vocab::{Bytes, DiskState, VolumeNr};

use super::apply;
use crate::change::{Change, Key, Object};
use crate::command::{Command, NewDefinition, NewNetInterface, NewResource, NewVolumeDefinition};
use crate::edit::{Applied, Context};
use crate::layer::Layer;
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::observed::*;
use crate::props::PropsEdit;
use crate::refusal::{Code, NoteCode, Refusal};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A cluster whose agents say what the tests want.
pub struct Bed {
    pub model: Model,
    pub observed: Observed,
    pub now: u64,
    draws: u8,
}

pub fn node(index: usize) -> NodeName {
    NodeName::new(&format!("node-{index}")).unwrap()
}

pub fn rd(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

pub fn pool() -> PoolName {
    PoolName::new("thin").unwrap()
}

impl Bed {
    /// So many nodes, each with a thin pool of 100 GiB, less 1 GiB for each number of the node.
    pub fn new(nodes: usize) -> Bed {
        let mut bed =
            Bed { model: Model::new(Uuid(7)), observed: Observed::default(), now: 1, draws: 0 };
        for index in 0..nodes {
            bed.add_node(index);
        }
        bed
    }

    pub fn add_node(&mut self, index: usize) {
        let interface = NewNetInterface {
            name: NetIfName::new("default").unwrap(),
            address: std::net::Ipv4Addr::new(10, 0, 0, index as u8 + 1).into(),
            agent: Some((3366, Encryption::Plain)),
        };
        self.ok(Command::CreateNode {
            name: node(index),
            kind: NodeKind::Satellite,
            net_interfaces: vec![interface],
            props: Props::new(),
        });
        self.ok(Command::CreatePool {
            node: node(index),
            name: pool(),
            provider: Provider::LvmThin,
            props: [("StorDriver/StorPoolName".to_owned(), "vg/thin".to_owned())].into(),
            shared_space: None,
            external_locking: false,
        });
        let total = Bytes(100 * GIB - index as u64 * GIB);
        let state = PoolState { free: total, total, ..PoolState::default() };
        let state = NodeState {
            connected: true,
            layers: Layer::ALL.iter().copied().collect(),
            providers: Provider::ALL.iter().copied().collect(),
            pools: [(pool(), state)].into(),
            ..NodeState::default()
        };
        self.observed.nodes.insert(node(index), state);
    }

    /// So many milliseconds pass.
    pub fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
    }

    pub fn run(&mut self, command: Command) -> Result<Applied, Refusal> {
        self.now += 1;
        self.draws = self.draws.wrapping_add(1);
        let entropy = [self.draws; 32];
        let context = Context { observed: &self.observed, now: Millis(self.now), entropy };
        apply(&mut self.model, &context, command)
    }

    pub fn ok(&mut self, command: Command) -> Applied {
        self.run(command).unwrap()
    }

    pub fn refused(&mut self, command: Command) -> Refusal {
        let before = self.model.clone();
        let refusal = self.run(command).unwrap_err();
        assert!(self.model == before, "a refused command changed something: {refusal}");
        assert!(!refusal.cause.is_empty() && !refusal.correction.is_empty(), "{refusal}");
        refusal
    }

    /// A resource definition with one volume of 1 GiB.
    pub fn define(&mut self, name: &str) {
        let definition = NewDefinition { name: Some(rd(name)), ..NewDefinition::default() };
        self.ok(Command::CreateDefinition { definition });
        let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
        self.ok(Command::CreateVolumeDefinition { name: rd(name), volume });
    }

    pub fn place(&mut self, name: &str, count: u32) -> Result<Applied, Refusal> {
        let filter = Filter { place_count: Some(count), ..Filter::default() };
        self.run(Command::Autoplace { name: rd(name), filter })
    }

    /// A replica on a node.
    pub fn replica(&mut self, name: &str, index: usize) {
        let resource = NewResource { pool: Some(pool()), ..NewResource::default() };
        self.ok(Command::CreateResource { name: rd(name), node: node(index), resource });
    }

    /// Agents report that everything is as wanted and UpToDate.
    pub fn report(&mut self, name: &str) {
        let name = rd(name);
        let generation = self.model.wanted_generation(&name);
        let resources: Vec<Resource> = self.model.resources_of(&name).cloned().collect();
        let definition = self.model.definition(&name);
        let changes: BTreeMap<VolumeNr, u32> = definition
            .iter()
            .flat_map(|definition| &definition.volumes)
            .map(|(number, volume)| (*number, volume.passphrase_changes))
            .collect();
        let replicas = self.observed.resources.entry(name).or_default();
        for resource in resources {
            let replica = replicas.entry(resource.node.clone()).or_default();
            replica.generation = generation;
            if resource.flags.contains(&ResourceFlag::DrbdDelete) {
                *replica = ReplicaState { generation, ..ReplicaState::default() };
                continue;
            }
            if let Some(token) = resource.deactivated {
                replica.take_down(token);
                continue;
            }
            (replica.up, replica.rollback) = (true, None);
            let disk =
                resource.is_diskful() && !resource.flags.contains(&ResourceFlag::DiskRemoving);
            let disk = disk.then_some(DiskState::UpToDate);
            let state = VolumeState {
                backing: disk.map(|_| Bytes(2 * GIB)),
                metadata: disk.is_some(),
                disk: disk.or(Some(DiskState::Diskless)),
                size: Bytes(GIB),
                done_percent: None,
                passphrase_changes: 0,
                mapped: None,
            };
            let volumes = resource.volumes.keys().map(|number| {
                let passphrase_changes = changes.get(number).copied().unwrap_or_default();
                (*number, VolumeState { passphrase_changes, ..state.clone() })
            });
            replica.volumes = volumes.collect();
        }
    }

    pub fn settle(&mut self, name: &str) {
        for _ in 0..8 {
            self.report(name);
            self.ok(Command::Settle { name: rd(name) });
        }
    }

    pub fn nodes_of(&self, name: &str) -> Vec<String> {
        let resources = self.model.resources_of(&rd(name));
        resources
            .map(|r| {
                let flag = if r.is_tie_breaker() {
                    "tie-breaker "
                } else if !r.is_diskful() {
                    "diskless "
                } else {
                    ""
                };
                format!("{flag}{}", r.node)
            })
            .collect()
    }

    fn delete(&mut self, name: &str, index: usize) -> Result<Applied, Refusal> {
        let (name, node) = (rd(name), node(index));
        self.run(Command::DeleteResource { name, node, keep_tie_breaker: false })
    }
}

fn has(applied: &Applied, code: NoteCode) -> bool {
    applied.notes.iter().any(|note| note.code == code)
}

#[test]
fn changes_are_rows_that_bring_another_model_to_the_same_state() {
    let mut bed = Bed::new(3);
    let mut follower = Model::from_rows(bed.model.rows());
    let mut all = Vec::new();
    let filter = Filter { place_count: Some(2), ..Filter::default() };
    for command in [
        Command::CreateDefinition {
            definition: NewDefinition { name: Some(rd("disk")), ..NewDefinition::default() },
        },
        Command::CreateVolumeDefinition {
            name: rd("disk"),
            volume: NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() },
        },
        Command::Autoplace { name: rd("disk"), filter },
        Command::ModifyController { props: PropsEdit::set("Aux/x", "1") },
        Command::DeleteDefinition { name: rd("disk") },
    ] {
        all.extend(bed.ok(command).changes);
    }
    for change in all {
        let row = serde_json::to_string(&change).unwrap();
        let change: Change = serde_json::from_str(&row).unwrap();
        follower.follow(change);
    }
    assert!(follower == bed.model);
    assert!(Model::from_rows(bed.model.rows()) == bed.model);
}

#[test]
fn replicas_get_ids_ports_a_tie_breaker_and_quorum() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    let applied = bed.place("disk", 2).unwrap();
    assert!(has(&applied, NoteCode::TieBreakerCreated), "{:?}", applied.notes);
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "tie-breaker node-2"]);
    let ids: Vec<u8> =
        bed.model.resources_of(&rd("disk")).map(|r| r.node_id.unwrap().get()).collect();
    assert_eq!(ids, [0, 1, 2]);
    let definition = bed.model.definition(&rd("disk")).unwrap();
    assert_eq!(definition.props["DrbdOptions/Resource/quorum"], "majority");
    assert_eq!(definition.volumes[&VolumeNr(0)].minor.unwrap().0, 1000);
    assert_eq!(definition.volumes[&VolumeNr(0)].initial_on, Some(node(0)));
    assert_eq!(definition.secret.len(), 20);
    assert!(has(&bed.place("disk", 2).unwrap(), NoteCode::AlreadyDeployed));
    bed.define("second");
    bed.place("second", 2).unwrap();
    let second = bed.model.resource(&rd("second"), &node(0)).unwrap();
    assert_eq!(second.port, Some(7001));
}

#[test]
fn a_deleted_replica_goes_when_its_node_says_so_and_its_id_is_not_used_again() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 3).unwrap();
    let props = PropsEdit::set(super::helpers::AUTO_TIE_BREAKER, "False");
    bed.ok(Command::ModifyController { props });
    let refusal = bed.delete("disk", 0).map(drop);
    assert!(refusal.is_ok(), "nothing is there yet: {refusal:?}");
    bed.settle("disk");
    assert_eq!(bed.nodes_of("disk"), ["node-1", "node-2"]);
    bed.place("disk", 3).unwrap();
    bed.settle("disk");
    let mut ids: Vec<u8> =
        bed.model.resources_of(&rd("disk")).map(|r| r.node_id.unwrap().get()).collect();
    ids.sort_unstable();
    assert!(!ids.contains(&0), "{ids:?}");
}

#[test]
fn a_volume_has_properties_of_its_own_that_stay_until_its_replica_goes() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let modify = |name: &str, index, number, key: &str, value: &str| Command::ModifyVolume {
        name: rd(name),
        node: node(index),
        number,
        props: PropsEdit::set(key, value),
    };
    bed.ok(modify("disk", 0, 0, "Aux/who", "me"));
    bed.ok(modify("disk", 0, 0, "DrbdOptions/Disk/al-extents", "6007"));
    for (key, value) in [
        ("Nonsense", "1"),
        ("StorPoolName", "thin"),
        ("StorDriver/LvcreateOptions", "-i 2"),
        ("FileSystem/Type", "ext4"),
        ("sys/fs/blkio_throttle_read", "1"),
        ("DrbdOptions/Net/ping-int", "5"),
        ("DrbdOptions/Disk/al-extents", "1"),
    ] {
        let refusal = bed.refused(modify("disk", 0, 0, key, value));
        assert_eq!(refusal.code, Code::InvalidProperty, "{key}: {refusal}");
    }
    let codes = [("never", 0, 0, 301), ("disk", 5, 0, 300), ("disk", 0, 7, 304)];
    for (name, index, number, code) in codes {
        let refusal = bed.refused(modify(name, index, number, "Aux/x", "1"));
        assert_eq!(refusal.code.number(), code, "{refusal}");
    }
    // Only its own disk has the option, and what is done to it or to others takes nothing away.
    let options = |bed: &Bed, index| {
        let model = &bed.model;
        let definition = model.definition(&rd("disk")).unwrap();
        let resource = model.resource(&rd("disk"), &node(index)).unwrap();
        let chain = crate::props::chain::volume(model, definition, resource, VolumeNr(0));
        chain.get("DrbdOptions/Disk/al-extents").map(str::to_owned)
    };
    assert_eq!((options(&bed, 0).as_deref(), options(&bed, 1)), (Some("6007"), None));
    bed.ok(Command::ModifyVolumeDefinition {
        name: rd("disk"),
        number: 0,
        size: Some(2 * GIB),
        props: PropsEdit::default(),
        gross_size: None,
    });
    let toggle = |diskful| Command::ToggleDisk {
        name: rd("disk"),
        node: node(0),
        diskful,
        pool: diskful.then(pool),
        migrate_from: None,
        client: false,
    };
    for diskful in [false, true] {
        bed.settle("disk");
        bed.ok(toggle(diskful));
    }
    bed.settle("disk");
    let resource = bed.model.resource(&rd("disk"), &node(0)).unwrap();
    let props = &resource.volumes[&VolumeNr(0)].props;
    assert_eq!(props["Aux/who"], "me", "{resource:?}");
    assert!(Model::from_rows(bed.model.rows()) == bed.model);
    let delete = vec!["DrbdOptions/Disk/al-extents".to_owned(), "Aux/never".to_owned()];
    let props = PropsEdit { delete, ..PropsEdit::default() };
    let name = rd("disk");
    let applied = bed.ok(Command::ModifyVolume { name, node: node(0), number: 0, props });
    assert!(has(&applied, NoteCode::UnsetPropertyDeleted), "{:?}", applied.notes);
    assert_eq!(options(&bed, 0), None);
}

#[test]
fn the_only_copy_is_not_deleted() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let volumes = &mut replicas.get_mut(&node(1)).unwrap().volumes;
    volumes.get_mut(&VolumeNr(0)).unwrap().disk = Some(DiskState::Inconsistent);
    let name = || rd("disk");
    let refusal = bed.refused(Command::DeleteResource {
        name: name(),
        node: node(0),
        keep_tie_breaker: false,
    });
    assert_eq!(refusal.code, Code::InsufficientReplicas);
    let toggle = Command::ToggleDisk {
        name: name(),
        node: node(0),
        diskful: false,
        pool: None,
        migrate_from: None,
        client: false,
    };
    assert_eq!(bed.refused(toggle).code, Code::InsufficientReplicas);
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    let refusal = bed.refused(Command::DeleteNode { name: node(0) });
    assert_eq!(refusal.code, Code::NodeHasUsedResource);
    // But the whole of it can go.
    bed.ok(Command::DeleteDefinition { name: name() });
}

#[test]
fn what_is_in_use_stays() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(0)).unwrap().in_use = Some(Millis(1));
    assert_eq!(bed.delete("disk", 0).unwrap_err().code, Code::InUse);
    let refusal = bed.refused(Command::DeleteDefinition { name: rd("disk") });
    assert_eq!(refusal.code, Code::InUse);
    assert!(refusal.correction.contains("node-0"));
    let refusal = bed.refused(Command::DeletePool { node: node(0), name: pool() });
    assert_eq!(refusal.code, Code::InUse);
}

#[test]
fn a_replica_is_no_successor_of_another_that_it_stands_beside() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    // A client that has asked for a migration and had no answer asks again.
    let migrate = |to: usize, from: usize| Command::ToggleDisk {
        name: rd("disk"),
        node: node(to),
        diskful: true,
        pool: Some(pool()),
        migrate_from: Some(node(from)),
        client: false,
    };
    let applied = bed.ok(migrate(1, 0));
    assert!(has(&applied, NoteCode::HasDisk), "{:?}", applied.notes);
    bed.settle("disk");
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "tie-breaker node-2"]);
    // One that is on its way goes on, however often it is asked for.
    bed.ok(migrate(2, 0));
    bed.ok(migrate(2, 0));
    bed.settle("disk");
    let replicas = bed.model.resources_of(&rd("disk")).filter(|r| r.is_replica());
    assert_eq!(replicas.map(|r| r.node.clone()).collect::<Vec<_>>(), [node(1), node(2)]);
    bed.ok(migrate(2, 1));
    bed.settle("disk");
    assert_eq!(bed.model.resources_of(&rd("disk")).filter(|r| r.is_replica()).count(), 2);
}

#[test]
fn a_migrated_replica_goes_only_after_the_new_one_is_up_to_date() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let spare = bed.nodes_of("disk");
    assert_eq!(spare, ["node-0", "node-1", "tie-breaker node-2"]);
    bed.ok(Command::EvacuateNode { name: node(0), to: None, not_to: vec![] });
    let target = bed
        .model
        .resources_of(&rd("disk"))
        .find(|r| crate::redundancy::replaces(r) == Some(node(0)));
    let target = target.unwrap().node.clone();
    bed.report("disk");
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let volumes = &mut replicas.get_mut(&target).unwrap().volumes;
    volumes.get_mut(&VolumeNr(0)).unwrap().disk = Some(DiskState::Inconsistent);
    bed.ok(Command::Settle { name: rd("disk") });
    assert!(!bed.model.resource(&rd("disk"), &node(0)).unwrap().is_deleting());
    bed.settle("disk");
    assert!(bed.model.resource(&rd("disk"), &node(0)).is_none(), "{:?}", bed.nodes_of("disk"));
    assert_eq!(bed.model.resources_of(&rd("disk")).filter(|r| r.is_replica()).count(), 2);
    let refusal = bed.refused(Command::CreateResource {
        name: rd("disk"),
        node: node(0),
        resource: NewResource::default(),
    });
    assert_eq!(refusal.code, Code::Evacuating);
}

#[test]
fn a_lost_node_is_forgotten_and_a_connected_one_is_not_lost() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let refusal = bed.refused(Command::LoseNode { name: node(0) });
    assert_eq!(refusal.code, Code::NodeConnected);
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    bed.ok(Command::LoseNode { name: node(0) });
    assert!(bed.model.node(&node(0)).is_none());
    assert_eq!(bed.model.resources_on(&node(0)).count(), 0);
    assert_eq!(bed.model.pools_of(&node(0)).count(), 0);
}

#[test]
fn a_spawn_that_can_not_be_placed_leaves_nothing_behind() {
    let mut bed = Bed::new(1);
    let group = GroupName::default_group();
    let spawn = |sizes: Vec<u64>| Command::Spawn {
        group: group.clone(),
        definition: NewDefinition { name: Some(rd("disk")), ..NewDefinition::default() },
        sizes,
        filter: Filter::default(),
        partial: false,
        definitions_only: false,
        passphrases: vec![],
    };
    let refusal = bed.refused(spawn(vec![GIB]));
    assert_eq!(refusal.code, Code::NotEnoughNodes);
    assert!(refusal.details.contains("thin of node node-0: fits"), "{}", refusal.details);
    bed.add_node(1);
    bed.ok(spawn(vec![GIB, 4 * MIB]));
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1"]);
    assert_eq!(bed.model.definition(&rd("disk")).unwrap().volumes.len(), 2);
}

#[test]
fn node_away_for_long_enough_is_evicted_and_its_replicas_made_elsewhere() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let state = bed.observed.nodes.get_mut(&node(0)).unwrap();
    (state.connected, state.since) = (false, Millis(0));
    bed.now = 719 * 60_000;
    bed.ok(Command::Tick);
    let evictions = crate::eviction::evictions(&bed.model, &bed.observed);
    assert_eq!(evictions, [(node(0), Millis(720 * 60_000))].into());
    assert!(bed.model.node(&node(0)).unwrap().flags.is_empty());
    bed.now = 721 * 60_000;
    bed.ok(Command::Tick);
    assert!(bed.model.node(&node(0)).unwrap().flags.contains(&NodeFlag::Evicted));
    assert_eq!(bed.model.resources_of(&rd("disk")).filter(|r| r.is_replica()).count(), 2);
    assert!(bed.ok(Command::Tick).changes.is_empty(), "nothing more is due");
}

#[test]
fn random_commands_keep_the_indexes_true_and_refused_ones_change_nothing() {
    let mut seed = 1_u64;
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let mut refusals: BTreeMap<u16, u32> = BTreeMap::new();
    let mut accepted = 0;
    let mut bed = Bed::new(5);
    for step in 0..3000 {
        let name = rd(&format!("disk-{}", draw(6)));
        let on = node(draw(6) as usize);
        let command = match draw(16) {
            0 => Command::CreateDefinition {
                definition: NewDefinition { name: Some(name), ..NewDefinition::default() },
            },
            1 => Command::CreateVolumeDefinition {
                name,
                volume: NewVolumeDefinition {
                    number: (draw(2) == 0).then(|| draw(3) as u16),
                    size: Bytes(draw(4) * GIB),
                    ..NewVolumeDefinition::default()
                },
            },
            2 => Command::CreateResource {
                name,
                node: on,
                resource: NewResource { diskless: draw(3) == 0, ..NewResource::default() },
            },
            3 => Command::DeleteResource { name, node: on, keep_tie_breaker: draw(2) == 0 },
            4 | 5 => Command::Autoplace {
                name,
                filter: Filter { place_count: Some(draw(4) as u32), ..Filter::default() },
            },
            6 => Command::DeleteDefinition { name },
            7 => Command::ToggleDisk {
                name,
                node: on,
                diskful: draw(2) == 0,
                pool: None,
                migrate_from: None,
                client: draw(4) == 0,
            },
            8 => Command::EvacuateNode { name: on, to: None, not_to: vec![] },
            9 | 10 => {
                Command::RestoreNode { name: on, delete_resources: false, delete_snapshots: false }
            }
            11 => Command::CreateSnapshots {
                snapshots: vec![
                    (name, SnapshotName::new("first").unwrap(), vec![]),
                    (rd("disk-0"), SnapshotName::new("second").unwrap(), vec![]),
                ],
                props: Props::new(),
            },
            12 => Command::DeleteSnapshot {
                name,
                snapshot: SnapshotName::new("first").unwrap(),
                nodes: vec![],
            },
            13 => Command::ModifyVolumeDefinition {
                name,
                number: 0,
                size: Some(draw(8) * GIB),
                props: PropsEdit::default(),
                gross_size: None,
            },
            14 => Command::MakeAvailable { name, node: on, diskful: draw(2) == 0 },
            _ => {
                if bed.model.definition(&name).is_some() {
                    bed.report(name.as_str());
                }
                Command::Settle { name }
            }
        };
        let before = bed.model.clone();
        match bed.run(command.clone()) {
            Ok(_) => accepted += 1,
            Err(refusal) => {
                *refusals.entry(refusal.code.number()).or_default() += 1;
                assert!(bed.model == before, "step {step}: {command:?} was refused: {refusal}");
                assert!(!refusal.cause.is_empty(), "{refusal}");
            }
        }
        if step % 10 == 0 {
            let again = Model::from_rows(bed.model.rows());
            assert!(again == bed.model, "step {step}: {command:?} left an index wrong");
        }
        unique_numbers(&bed.model);
    }
    assert!(accepted > 1000 && refusals.len() >= 8, "{accepted} accepted, refused {refusals:?}");
}

/// No id, port or minor is used twice.
fn unique_numbers(model: &Model) {
    let mut minors = std::collections::BTreeSet::new();
    let mut ports = std::collections::BTreeSet::new();
    for definition in model.definitions() {
        for minor in definition.volumes.values().filter_map(|volume| volume.minor) {
            assert!(minors.insert(minor), "minor {minor} twice");
        }
        let mut ids = std::collections::BTreeSet::new();
        for resource in model.resources_of(&definition.name) {
            assert!(ids.insert(resource.node_id.unwrap().get()), "{} id twice", definition.name);
            assert!(ports.insert((resource.node.clone(), resource.port)), "port twice");
        }
    }
}

#[test]
fn keys_name_objects_as_an_operator_would() {
    let key = Object::Store(StoreName::new("csi").unwrap(), Props::new()).key();
    assert_eq!(key.to_string(), "key-value store csi");
    assert_eq!(Key::Resource(rd("disk"), node(1)).to_string(), "resource disk of node node-1");
}

#[test]
fn options_that_no_agent_would_take_together_are_refused_where_they_are_set() {
    let mut bed = Bed::new(2);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    let net = |options: &[(&str, &str)]| {
        let mut props = PropsEdit::default();
        for (option, value) in options {
            props.set.insert(format!("DrbdOptions/Net/{option}"), (*value).to_owned());
        }
        props
    };
    let controller = |props| Command::ModifyController { props };
    let refusal = bed.refused(controller(net(&[("ping-int", "1")])));
    assert!(refusal.cause.contains("ping-int (1 seconds)"), "{refusal}");
    bed.ok(controller(net(&[("ping-int", "1"), ("timeout", "9"), ("connect-int", "1")])));
    // From different objects.
    let connection = |props| {
        let (name, a, b) = (rd("disk"), node(0), node(1));
        Command::ModifyResourceConnection { name, a, b, props }
    };
    bed.refused(connection(net(&[("timeout", "10")])));
    bed.ok(connection(net(&[("timeout", "20"), ("ping-int", "3"), ("connect-int", "3")])));
    bed.refused(controller(net(&[("timeout", "60")])));
    let refusal = bed.refused(connection(net(&[("ping-int", "")])));
    assert!(refusal.to_string().contains("disk"), "{refusal}");
    bed.ok(controller(net(&[("ping-int", ""), ("timeout", ""), ("connect-int", "")])));
}

#[test]
fn a_pool_that_can_not_make_snapshots_is_named_with_the_reason() {
    let mut bed = Bed::new(2);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let pools = &mut bed.observed.nodes.get_mut(&node(1)).unwrap().pools;
    pools.get_mut(&pool()).unwrap().no_snapshots = Some("its file system is old".to_owned());
    let snapshots = vec![(rd("disk"), SnapshotName::new("monday").unwrap(), Vec::new())];
    let refusal = bed.refused(Command::CreateSnapshots { snapshots, props: Props::new() });
    assert_eq!(refusal.code, Code::SnapshotsUnsupported);
    assert!(refusal.cause.contains("node node-1") && refusal.cause.contains("old"), "{refusal}");
    let snapshots = vec![(rd("disk"), SnapshotName::new("monday").unwrap(), vec![node(0)])];
    bed.ok(Command::CreateSnapshots { snapshots, props: Props::new() });
}

#[test]
fn nothing_is_placed_if_nothing_is_wanted_and_that_is_no_error() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    let applied = bed.place("disk", 0).unwrap();
    assert!(has(&applied, NoteCode::AlreadyDeployed), "{:?}", applied.notes);
    assert_eq!(bed.model.resources_of(&rd("disk")).count(), 0);
    // A group that wants none, or disks with bitmaps for more peers than there can be, is refused.
    let group = |place_count, peer_slots| Command::CreateGroup {
        name: GroupName::new("many").unwrap(),
        description: String::new(),
        props: Props::new(),
        filter: Filter { place_count, ..Filter::default() },
        peer_slots,
    };
    assert_eq!(bed.refused(group(Some(0), None)).code, Code::InvalidPlaceCount);
    for slots in [0, 32] {
        assert_eq!(bed.refused(group(None, Some(slots))).code, Code::PeerSlotsExhausted);
    }
    bed.ok(group(None, Some(31)));
}
