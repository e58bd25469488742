//! What a node says about itself, as the checkers and the operator of a run need it.

use vocab::{ConnState, DiskState, GenUuid, NodeId, ReplState, Role, Suspended};

use crate::world::World;

/// What a node says.
#[derive(Clone, Debug)]
pub struct View {
    /// Its role towards other nodes: of Primaries of which one does the I/O of the others, only that
    /// one is Primary here.
    pub role: Role,
    /// Its users use it as a Primary, and that node does their I/O; `Some(None)` while there is none.
    pub joint: Option<Option<usize>>,
    /// Why its I/O is suspended.
    pub suspended: Suspended,
    /// Its volumes.
    pub volumes: Vec<VolumeView>,
    /// Its connections by node id, `None` for itself.
    pub peers: Vec<Option<PeerView>>,
}

/// What a node says about a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeView {
    /// Its disk.
    pub disk: DiskState,
    /// It may be written as far as quorum goes.
    pub quorum: bool,
    /// Effective size in sectors.
    pub sectors: u64,
    /// Generation its users see.
    pub current: GenUuid,
}

/// What a node says about a peer.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// The connection.
    pub conn: ConnState,
    /// The peer's role.
    pub role: Role,
    /// By volume.
    pub devices: Vec<DeviceView>,
}

/// What a node says about a volume on a peer.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView {
    /// Replication state.
    pub repl: ReplState,
    /// The peer's disk.
    pub disk: DiskState,
    /// Out-of-sync blocks.
    pub out_of_sync: u64,
    /// The operator has paused the resync here.
    pub paused: bool,
}

impl DeviceView {
    /// Of a volume that the node does not have.
    const NONE: DeviceView = DeviceView {
        repl: ReplState::Off,
        disk: DiskState::DUnknown,
        out_of_sync: 0,
        paused: false,
    };
}

impl World {
    /// What a node says about itself, if it runs.
    pub fn view(&self, node: usize) -> Option<View> {
        let resource = self.nodes[node].resource.as_ref()?;
        let status = resource.status();
        let volumes = status.devices.iter().map(|d| VolumeView {
            disk: d.disk_state,
            quorum: d.quorum,
            sectors: d.size * 2,
            current: resource.generation(d.volume),
        });
        let lacked = || VolumeView {
            disk: DiskState::Diskless,
            quorum: false,
            sectors: 0,
            current: GenUuid::NONE,
        };
        let mut volumes: Vec<VolumeView> = volumes.collect();
        volumes.resize_with(usize::from(self.plan.volumes), lacked);
        let joint = resource.joint().map(|lead| lead.map(NodeId::index));
        let mut peers: Vec<Option<PeerView>> = vec![None; self.nodes.len()];
        for c in &status.connections {
            let devices = c.peer_devices.iter().map(|d| DeviceView {
                repl: d.replication_state,
                disk: d.peer_disk_state,
                out_of_sync: d.out_of_sync / 4,
                paused: d.resync_suspended.user,
            });
            let mut devices: Vec<DeviceView> = devices.collect();
            devices.resize(usize::from(self.plan.volumes), DeviceView::NONE);
            if let Some(slot) = peers.get_mut(c.peer_node_id.index()) {
                *slot = Some(PeerView {
                    conn: c.connection_state,
                    role: match resource.has_joined(c.peer_node_id) {
                        true => Role::Secondary,
                        false => c.peer_role,
                    },
                    devices,
                });
            }
        }
        Some(View {
            role: if joint.is_some() { Role::Secondary } else { status.role },
            joint,
            suspended: status.suspended,
            volumes,
            peers,
        })
    }
}
