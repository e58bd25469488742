//! Disks that kernels have left behind, attached by the core.

use super::*;
use crate::config::{PeerConfig, ResourceConfig, VolumeConfig};
use crate::io::{AdminCommand, AttachImage, DiskLimits, Input, MetaPlace, Output};
use codec::disk::{MdParams, Placement, SuperblockV8, dump};
use vocab::options::{DiskOptions, NetOptions, ResourceOptions};
use vocab::{Bytes, Dagtag, DiskState, Instant, Minor, RefusalCode, Sectors, VolumeNr};

const HOT_PRIMARY: &[u8] = include_bytes!("../../../codec/testdata/disk/v08-hot-primary.bin");
const HOT_SECONDARY: &[u8] = include_bytes!("../../../codec/testdata/disk/v08-hot-secondary.bin");
const UNCLEAN_DUMP: &str = include_str!("../../../codec/testdata/disk/dump-md-unclean.txt");

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

/// What the driver reads from a disk with that metadata area: bitmap, activity log, superblock.
fn image(area: &[u8], capacity: Sectors) -> AttachImage {
    let (blocks, _) = area.as_chunks::<4096>();
    AttachImage {
        capacity,
        superblock: Box::new(blocks[9]),
        activity_log: blocks[1..9].iter().map(|block| Box::new(*block)).collect(),
        bitmap: vec![(0, Box::new(blocks[0]))],
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

fn peer(id: u8) -> PeerConfig {
    let net = NetOptions::default();
    PeerConfig { node_id: node(id), name: format!("n{id}"), net, devices: Vec::new() }
}

fn resource(peers: &[u8], options: ResourceOptions) -> Resource {
    let disk = DiskOptions::default();
    let config = ResourceConfig {
        name: "r0".to_owned(),
        node_id: node(0),
        options,
        handlers: vocab::HandlerSet::NONE,
        volumes: vec![VolumeConfig { nr: VolumeNr(0), minor: Minor(0), diskless: false, disk }],
        peers: peers.iter().map(|id| peer(*id)).collect(),
    };
    Resource::new(config, 1, Dagtag(0))
}

/// Asks for something; the superblocks that are written until it is answered, and the answer.
fn ask(resource: &mut Resource, command: AdminCommand) -> (Vec<SuperblockV8>, Result<(), Refusal>) {
    resource.handle(Instant(1), Input::Admin { id: 9, command });
    let (mut written, mut answer) = (Vec::new(), None);
    while let Some(output) = resource.poll() {
        match output {
            Output::AdminDone { id: 9, result } => answer = Some(result),
            Output::MetaWrite { op, write, .. } => {
                let block = write.commit.filter(|block| block.place == MetaPlace::Superblock);
                written.extend(block.map(|b| SuperblockV8::decode(&b.bytes).unwrap()));
                resource.handle(Instant(1), Input::MetaDone { op, result: Ok(()) });
            }
            _ => {}
        }
    }
    (written, answer.expect("an answer"))
}

fn attach(area: &[u8]) -> AdminCommand {
    AdminCommand::Attach { volume: VolumeNr(0), image: Box::new(image(area, Sectors(130_992))) }
}

#[test]
fn the_disk_of_a_crashed_kernel_primary_is_marked_where_its_log_says() {
    let mut resource = resource(&[3], ResourceOptions::default());
    let (written, answer) = ask(&mut resource, attach(HOT_PRIMARY));
    answer.unwrap();
    let backing = resource.vols[0].backing.as_ref().unwrap();
    // Seven extents of 4 MiB, as with drbdmeta.
    assert_eq!(backing.oos(node(3)), 7168);
    for extent in 0..16 {
        let out_of_sync = resource.out_of_sync_at(VolumeNr(0), node(3), extent * 8192);
        assert_eq!(out_of_sync, extent < 6 || extent == 8, "extent {extent}");
    }
    assert!(resource.vols[0].crashed_primary);
    assert_eq!(resource.st.vols[0].disk, DiskState::UpToDate);
    // Still a disk of DRBD 8.4, with the generations it had; the log is in the bitmap before it is
    // said to be clean, and in use before a kernel may take it for clean.
    let kernel = SuperblockV8::decode(&image(HOT_PRIMARY, Sectors(0)).superblock).unwrap();
    assert!(written.len() >= 2 && written[0].clean && !written[1].clean);
    for superblock in &written {
        assert_eq!(superblock.current_uuid, kernel.current_uuid);
        assert_eq!(superblock.history, kernel.history);
        assert_eq!(superblock.device_uuid, kernel.device_uuid);
        assert!(superblock.flags.contains(MdFlags::CRASHED_PRIMARY));
    }
}

#[test]
fn the_disk_of_its_secondary_is_as_it_was() {
    let mut resource = resource(&[3], ResourceOptions::default());
    ask(&mut resource, attach(HOT_SECONDARY)).1.unwrap();
    assert_eq!(resource.vols[0].backing.as_ref().unwrap().oos(node(3)), 0);
    assert!(!resource.vols[0].crashed_primary && !resource.vols[0].crashed_secondary);
}

#[test]
fn blocks_that_the_peer_may_not_have_make_a_kernel_resync_them() {
    let mut resource = resource(&[3], ResourceOptions::default());
    ask(&mut resource, attach(HOT_SECONDARY)).1.unwrap();
    let flags = |resource: &Resource| SuperblockV8::from_pair(&resource.superblock(0)).flags;
    assert!(!flags(&resource).contains(MdFlags::CRASHED_PRIMARY));
    let block = vocab::SectorRange::new(0, 8);
    resource.vols[0].backing.as_mut().unwrap().set_range(0, block);
    assert!(flags(&resource).contains(MdFlags::CRASHED_PRIMARY));
    // A Secondary that stopped under the writes of another has nothing of its own.
    resource.vols[0].crashed_secondary = true;
    assert!(!flags(&resource).contains(MdFlags::CRASHED_PRIMARY));
}

#[test]
fn what_v08_has_no_room_for_is_refused_with_what_to_do() {
    let majority = ResourceOptions { quorum: Quorum::Majority, ..ResourceOptions::default() };
    let cases = [
        (&[][..], ResourceOptions::default(), "add the peer first"),
        (&[1, 2], ResourceOptions::default(), "room for one peer"),
        (&[1], majority.clone(), "no room for what quorum has to remember"),
    ];
    for (peers, options, why) in cases {
        let mut resource = resource(peers, options);
        let (written, answer) = ask(&mut resource, attach(HOT_PRIMARY));
        let detail = answer.unwrap_err().detail;
        assert!(detail.contains("v08") && detail.contains(why), "{detail}");
        assert!(written.is_empty());
    }
    // Nor does a resource that uses such a disk get it.
    let mut resource = resource(&[1], ResourceOptions::default());
    ask(&mut resource, attach(HOT_PRIMARY)).1.unwrap();
    for (command, why) in [
        (AdminCommand::ResourceOptions(majority), "quorum"),
        (AdminCommand::NewPeer(peer(2)), "room for one peer"),
    ] {
        let refusal = ask(&mut resource, command).1.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Config(ConfigError::InvalidRequest));
        assert!(refusal.detail.contains(why), "{}", refusal.detail);
        assert!(refusal.detail.contains("convert-md"), "{}", refusal.detail);
    }
    assert_eq!((resource.peers.len(), resource.opts.quorum), (1, Quorum::Off));
    // Another one in its place would be told the bits of the one before.
    ask(&mut resource, AdminCommand::DelPeer(node(1))).1.unwrap();
    assert!(ask(&mut resource, AdminCommand::NewPeer(peer(2))).1.is_err());
    ask(&mut resource, AdminCommand::NewPeer(peer(1))).1.unwrap();
}

#[test]
fn a_log_of_before_8_4_is_refused() {
    let mut area = HOT_PRIMARY.to_vec();
    area[4096..9 * 4096].fill(0);
    let mut resource = resource(&[1], ResourceOptions::default());
    let refusal = ask(&mut resource, attach(&area)).1.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Config(ConfigError::MetaUnclean));
    assert!(refusal.detail.contains("before 8.4"), "{}", refusal.detail);
}

/// The superblock of kernel DRBD 9.3.3 as its dump has it, and a log that a kernel left hot.
#[test]
fn the_v09_disk_of_a_crashed_kernel_primary_is_marked_where_its_log_says() {
    let dump::Dump::V09(found) = dump::parse(UNCLEAN_DUMP).unwrap() else { panic!("v09") };
    let (superblock, layout) = found.superblock(Placement::Internal, Bytes(16 << 20)).unwrap();
    assert!(superblock.flags.contains(MdFlags::PRIMARY_IND));
    assert_eq!(MdParams::new(3), superblock.params());
    let mut image = image(HOT_PRIMARY, layout.usable);
    image.superblock = superblock.encode();
    image.bitmap.clear();
    let peers: Vec<u8> = NodeId::all()
        .filter(|id| superblock.peer(*id).bitmap_index.is_some())
        .map(NodeId::get)
        .collect();
    assert!(!peers.is_empty());
    for logged in [true, false] {
        let mut image = image.clone();
        let mut superblock = superblock.clone();
        superblock.flags.set(MdFlags::AL_DISABLED, !logged);
        image.superblock = superblock.encode();
        let mut resource = resource(&peers, ResourceOptions::default());
        resource.handle(
            Instant(1),
            Input::Admin {
                id: 9,
                command: AdminCommand::Attach { volume: VolumeNr(0), image: Box::new(image) },
            },
        );
        let backing = resource.vols[0].backing.as_ref().unwrap();
        // Of the seven hot extents the disk has four, the last one in part. A kernel that was told
        // to keep no log leaves nobody who knows.
        let size = superblock.effective_size.0;
        let marked = |extent: u64| size.saturating_sub(extent * 8192).min(8192).div_ceil(8);
        let want = [0, 1, 2, 3, 4, 5, 8].map(marked).iter().sum::<u64>();
        let want = if logged { want } else { size.div_ceil(8) };
        for peer in &peers {
            assert_eq!(backing.oos(node(*peer)), want);
        }
        assert!(!resource.superblock(0).flags.contains(MdFlags::AL_DISABLED));
        assert!(resource.vols[0].crashed_primary);
    }
}
