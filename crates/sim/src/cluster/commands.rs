//! Random commands.

use ::cluster::command::{
    Command, NewDefinition, NewNetInterface, NewResource, NewVolumeDefinition,
};
use ::cluster::name::{GroupName, NetIfName, NodeName, PoolName, ResourceName, SnapshotName};
use ::cluster::objects::{Encryption, Filter, NodeKind, Props, Provider};
use ::cluster::props::PropsEdit;
use vocab::Bytes;

use crate::rng::Rng;

pub const GIB: u64 = 1 << 30;
/// Nodes of a cluster.
pub const NODES: usize = 5;
const RESOURCES: u64 = 3;

pub fn node(index: usize) -> NodeName {
    NodeName::new(&format!("n{index}")).expect("a valid name")
}

pub fn pool() -> PoolName {
    PoolName::new("thin").expect("a valid name")
}

fn resource(rng: &mut Rng) -> ResourceName {
    ResourceName::new(&format!("r{}", rng.below(RESOURCES))).expect("a valid name")
}

fn snapshot(rng: &mut Rng) -> SnapshotName {
    SnapshotName::new(&format!("s{}", rng.below(2))).expect("a valid name")
}

/// The nodes, and a pool on each.
pub fn nodes() -> Vec<Command> {
    (0..NODES).flat_map(|index| [create_node(index), create_pool(index)]).collect()
}

fn create_node(index: usize) -> Command {
    let address = std::net::Ipv4Addr::new(10, 0, 0, index as u8 + 1).into();
    let name = NetIfName::new("default").expect("a valid name");
    let agent = Some((3366, Encryption::Plain));
    Command::CreateNode {
        name: node(index),
        kind: NodeKind::Satellite,
        net_interfaces: vec![NewNetInterface { name, address, agent }],
        props: [("Aux/site".to_owned(), (index / 2).to_string())].into(),
    }
}

fn create_pool(index: usize) -> Command {
    Command::CreatePool {
        node: node(index),
        name: pool(),
        provider: Provider::LvmThin,
        props: [("StorDriver/StorPoolName".to_owned(), "vg/thin".to_owned())].into(),
        shared_space: None,
        external_locking: false,
    }
}

/// What every cluster begins with.
pub fn first(rng: &mut Rng) -> Vec<Command> {
    let mut commands = nodes();
    if rng.one_in(2) {
        let props = PropsEdit::set("DrbdOptions/AutoEvictAfterTime", "1");
        commands.push(Command::ModifyController { props });
    }
    commands
}

/// A wish.
pub fn any(rng: &mut Rng) -> Command {
    let name = resource(rng);
    let on = node(rng.below(NODES as u64) as usize);
    let count = || Filter { place_count: None, ..Filter::default() };
    let weights = [
        12, 8, 5, 8, 3, 6, 5, 4, 4, 3, 6, 3, 3, 3, 3, 2, 2, 2, 2, 2, 3, 2, 2, 2, 1, 2, 4, 3, 7, 5,
        2,
    ];
    match rng.weighted(&weights) {
        0 => Command::Spawn {
            group: GroupName::default_group(),
            definition: NewDefinition { name: Some(name), ..NewDefinition::default() },
            sizes: vec![GIB],
            filter: Filter { place_count: Some(rng.range(1, 3) as u32), ..Filter::default() },
            partial: true,
            definitions_only: false,
            passphrases: vec![],
        },
        1 => {
            let filter = Filter { place_count: Some(rng.range(1, 4) as u32), ..count() };
            Command::Autoplace { name, filter }
        }
        2 => {
            let diskless = rng.one_in(3);
            let pool = (!diskless).then(pool);
            let resource = NewResource { diskless, pool, ..NewResource::default() };
            Command::CreateResource { name, node: on, resource }
        }
        3 => {
            let keep_tie_breaker = rng.one_in(2);
            Command::DeleteResource { name, node: on, keep_tie_breaker }
        }
        4 => Command::DeleteDefinition { name },
        5 => {
            let from = node(rng.below(NODES as u64) as usize);
            Command::ToggleDisk {
                name,
                node: on,
                diskful: true,
                pool: Some(pool()),
                migrate_from: rng.one_in(2).then_some(from),
                client: false,
            }
        }
        6 => Command::ToggleDisk {
            name,
            node: on,
            diskful: false,
            pool: None,
            migrate_from: None,
            client: rng.one_in(4),
        },
        7 => Command::EvacuateNode { name: on, to: None, not_to: vec![] },
        8 => Command::RestoreNode {
            name: on,
            delete_resources: rng.one_in(3),
            delete_snapshots: rng.one_in(3),
        },
        9 => Command::EvictNode { name: on },
        10 => Command::MakeAvailable { name, node: on, diskful: rng.one_in(2) },
        11 => {
            let mut snapshots = vec![(name, snapshot(rng), vec![])];
            let other = resource(rng);
            if rng.one_in(3) && snapshots[0].0 != other {
                snapshots.push((other, snapshot(rng), vec![]));
            }
            Command::CreateSnapshots { snapshots, props: Props::new() }
        }
        12 => Command::DeleteSnapshot { name, snapshot: snapshot(rng), nodes: vec![] },
        13 => Command::ModifyVolumeDefinition {
            name,
            number: 0,
            size: Some(rng.range(1, 5) * GIB),
            props: PropsEdit::default(),
            gross_size: None,
        },
        14 => {
            let volume = NewVolumeDefinition {
                number: Some(1),
                size: Bytes(GIB),
                ..NewVolumeDefinition::default()
            };
            Command::CreateVolumeDefinition { name, volume }
        }
        15 => Command::DeleteVolumeDefinition { name, number: 1 },
        16 => Command::AdjustGroup { name: GroupName::default_group(), filter: count() },
        17 => {
            let definition = NewDefinition { name: Some(name), ..NewDefinition::default() };
            Command::CreateDefinition { definition }
        }
        18 => {
            let (to, snapshot) = (resource(rng), snapshot(rng));
            Command::RestoreVolumeDefinitions { name, snapshot, to }
        }
        27 => {
            let to = NewDefinition { name: Some(resource(rng)), ..NewDefinition::default() };
            Command::CloneDefinition { name, to, props: PropsEdit::default() }
        }
        28 => Command::DeactivateResource { name, node: on },
        29 => Command::ActivateResource { name, node: on },
        30 => {
            let number = rng.below(2) as u16;
            let value = if rng.one_in(3) { String::new() } else { rng.below(100).to_string() };
            let props = PropsEdit::set("Aux/number", &value);
            Command::ModifyVolume { name, node: on, number, props }
        }
        26 => Command::RollBack { name, snapshot: snapshot(rng) },
        20 => {
            let other = vec![node(rng.below(NODES as u64) as usize)];
            match rng.one_in(2) {
                true => Command::EvacuateNode { name: on, to: Some(other), not_to: vec![] },
                false => Command::EvacuateNode { name: on, to: None, not_to: other },
            }
        }
        21 => Command::LoseNode { name: on },
        22 => create_node(rng.below(NODES as u64) as usize),
        23 => create_pool(rng.below(NODES as u64) as usize),
        24 => Command::DeleteNode { name: on },
        25 => {
            let props = match rng.one_in(3) {
                true => PropsEdit {
                    delete: vec!["DrbdOptions/auto-diskful".to_owned()],
                    ..PropsEdit::default()
                },
                false => PropsEdit::set("DrbdOptions/auto-diskful", "1"),
            };
            Command::ModifyDefinition { name, props, group: None, layers: None, peer_slots: None }
        }
        _ => {
            let (to, snapshot) = (resource(rng), snapshot(rng));
            let pools = Default::default();
            Command::RestoreResources { name, snapshot, to, nodes: vec![], pools }
        }
    }
}
