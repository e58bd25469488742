//! What tests of several modules need.

use codec::disk::{Layout, MdParams, Placement, Superblock, activity_log, zeroed_block};
use vocab::options::{DiskOptions, NetOptions, ResourceOptions};
use vocab::{Bytes, Dagtag, Instant, Minor, NodeId, VolumeNr};

use crate::config::{PeerConfig, ResourceConfig, VolumeConfig};
use crate::io::{AdminCommand, AttachImage, DiskLimits, Input, Output};
use crate::resource::Resource;

/// What the driver reads from a disk with that superblock, an empty activity log and no bits.
pub(crate) fn attach_image(superblock: &Superblock, layout: &Layout) -> AttachImage {
    let empty = activity_log::empty_block();
    AttachImage {
        capacity: layout.usable,
        superblock: superblock.encode(),
        activity_log: (0..superblock.al.blocks()).map(|_| empty.clone()).collect(),
        bitmap: vec![(0, zeroed_block())],
        limits: DiskLimits {
            logical_block_size: 512,
            physical_block_size: 4096,
            discard_zeroes: true,
            max_io: 1 << 20,
        },
        volatile_cache: true,
        boot: 0,
    }
}

/// Node 0, whose first act is to attach a disk that was just created, and then prepared; it has a
/// peer that it is not connected to, node 1.
pub(crate) fn attached(
    options: ResourceOptions,
    prepare: impl FnOnce(&mut Superblock),
) -> Resource {
    let nr = VolumeNr(0);
    let node = |n| NodeId::new(n).expect("a node id");
    let net = NetOptions::default();
    let peer = PeerConfig { node_id: node(1), name: "n1".to_owned(), net, devices: Vec::new() };
    let disk = DiskOptions::default();
    let config = ResourceConfig {
        name: "r0".to_owned(),
        node_id: node(0),
        options,
        handlers: vocab::HandlerSet::NONE,
        volumes: vec![VolumeConfig { nr, minor: Minor(0), diskless: false, disk }],
        peers: vec![peer],
    };
    let mut resource = Resource::new(config, 1, Dagtag(0));
    let (mut superblock, layout) =
        Superblock::create(Placement::Internal, Bytes(64 << 20), &MdParams::new(1))
            .expect("there is room");
    prepare(&mut superblock);
    let image = Box::new(attach_image(&superblock, &layout));
    let command = AdminCommand::Attach { volume: nr, image };
    resource.handle(Instant(1), Input::Admin { id: 1, command });
    while let Some(output) = resource.poll() {
        if let Output::MetaWrite { op, .. } = output {
            resource.handle(Instant(2), Input::MetaDone { op, result: Ok(()) });
        }
    }
    resource
}
