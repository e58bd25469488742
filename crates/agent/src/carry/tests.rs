//! Steps against an engine that only remembers what it was told, with crashes at every point at
//! which something is written down.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use api::link::Pool;
use cluster::layer::Layer;
use cluster::name::{NodeName, PoolName, ResourceName};
use cluster::plan::{Backing, Begin, ResourceConfig, VolumeConfig};
use codec::admin::{
    Answer, Blocked, Call, DeviceStatus, Line, Outcome, Reply, Request, ResourceStatus,
    WriteOrdering, encode_line,
};
use codec::config as engine_config;
use codec::disk::{Layout, MdParams, Placement, Superblock};
use vocab::options::DeviceOptions;
use vocab::{Bytes, DiskState, GenUuid, Minor, NodeId, Suspended, VolumeNr};

use super::*;
use crate::mapper::Choice;
use crate::record::Metadata;

mod adopted;
mod mapped;

const MIB: u64 = 1 << 20;

/// A resource of the fake engine.
#[derive(Clone)]
struct Resource {
    config: engine_config::ResourceConfig,
    suspended: bool,
    primary: bool,
    /// State of an attached disk.
    disk: DiskState,
    /// Bytes of the disk's device as the engine knows them: where its metadata are.
    end: u64,
    /// Bytes that users see, with metadata, as far as nodes have agreed on.
    agreed: u64,
}

#[derive(Default)]
struct Fake {
    resources: BTreeMap<String, Resource>,
    /// Peers whose bitmap slots were given back.
    forgotten: Vec<u8>,
    /// Another node has a device grow while this one is asked to, which refuses then.
    grown_elsewhere: bool,
}

impl Fake {
    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Config { resource } => {
                let found = self.resources.get(&resource.unwrap());
                Answer::Config(found.iter().map(|r| r.config.clone()).collect())
            }
            Request::Status { resource } => {
                let found = self.resources.get(&resource.unwrap());
                Answer::Status(found.into_iter().map(status).collect())
            }
            Request::Exports => Answer::Exports(Vec::new()),
            Request::CreateMd { disk, max_peers, .. } => {
                let file = fs::OpenOptions::new().write(true).open(disk).unwrap();
                let size = Bytes(file.metadata().unwrap().len());
                let params = MdParams::new(u32::from(max_peers));
                let (mut made, at) =
                    Superblock::create(Placement::Internal, size, &params).unwrap();
                made.device_uuid = 0x0bad_cafe;
                file.write_all_at(&made.encode()[..], at.superblock).unwrap();
                Answer::Done
            }
            Request::Down { resource } => {
                self.resources.remove(&resource);
                Answer::Done
            }
            request => {
                self.change(request);
                Answer::Done
            }
        }
    }

    fn volume(&mut self, minor: Minor) -> &mut engine_config::VolumeConfig {
        let mut all = self.resources.values_mut().flat_map(|r| &mut r.config.volumes);
        all.find(|volume| volume.minor == minor).expect("the volume exists")
    }

    fn change(&mut self, request: Request) {
        match request {
            Request::NewResource { resource, node_id, options, handlers } => {
                let config = engine_config::ResourceConfig {
                    name: resource.clone(),
                    node_id,
                    host: "alpha".into(),
                    options,
                    handlers,
                    volumes: Vec::new(),
                    peers: Vec::new(),
                };
                let disk = DiskState::UpToDate;
                let new =
                    Resource { config, suspended: false, primary: false, disk, end: 0, agreed: 0 };
                self.resources.insert(resource, new);
            }
            Request::NewMinor { resource, volume, minor, options } => {
                let volume = engine_config::VolumeConfig {
                    nr: volume,
                    minor,
                    device: format!("/dev/drbd{}", minor.0),
                    device_options: options,
                    backing: None,
                };
                self.resources.get_mut(&resource).unwrap().config.volumes.push(volume);
            }
            Request::Attach { minor, disk, meta_disk, options, luks } => {
                let superblock = metadata::exists(&disk);
                assert_eq!(superblock, Ok(true), "what is attached has metadata at its end");
                let end = fs::metadata(&disk).unwrap().len();
                let resource = self.resources.values_mut().next().unwrap();
                resource.end = end;
                if resource.agreed == 0 {
                    resource.agreed = end;
                }
                let volume = self.volume(minor);
                volume.backing =
                    Some(engine_config::BackingConfig { disk, meta_disk, options, luks });
                volume.device_options = DeviceOptions::default();
            }
            Request::Detach { minor, .. } => self.volume(minor).backing = None,
            Request::Resize { minor, .. } => {
                let disk = self.volume(minor).backing.clone().unwrap().disk;
                let resource = self.resources.values_mut().next().unwrap();
                (resource.end, resource.agreed) = move_metadata(&disk, resource.end);
            }
            Request::NewPeer { resource, peer, name, options: net } => {
                let peers = &mut self.resources.get_mut(&resource).unwrap().config.peers;
                let (paths, volumes) = (Vec::new(), Vec::new());
                let new = engine_config::PeerConfig { node_id: peer, name, paths, net, volumes };
                peers.push(new);
            }
            Request::NewPath { .. }
            | Request::PeerDeviceOptions { .. }
            | Request::Connect { .. } => {}
            Request::ForgetPeer { peer, .. } => self.forgotten.push(peer.get()),
            Request::SuspendIo { resource, .. } => {
                self.resources.get_mut(&resource).unwrap().suspended = true;
            }
            Request::Thaw { resource } => {
                self.resources.get_mut(&resource).unwrap().suspended = false;
            }
            other => panic!("the agent is not expected to ask {other:?}"),
        }
    }
}

/// What the engine does with metadata when it resizes. Returns where they are then, and the new size.
fn move_metadata(disk: &str, old: u64) -> (u64, u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(disk).unwrap();
    let new = file.metadata().unwrap().len();
    if new != old {
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, old - 4096).unwrap();
        let mut superblock = Superblock::decode(&block).unwrap();
        let layout = Layout::new(Placement::Internal, Bytes(new), &superblock.params()).unwrap();
        (superblock.al_offset, superblock.bm_offset) = (layout.al_offset, layout.bm_offset);
        superblock.md_size = layout.md_size;
        file.write_all_at(&superblock.encode()[..], new - 4096).unwrap();
        file.write_all_at(&[0; 4096], old - 4096).unwrap();
    }
    (new, new)
}

impl Fake {
    /// It was killed, and brings up what it kept, as far as it finds metadata.
    fn restart(&mut self) {
        for resource in self.resources.values_mut() {
            resource.suspended = false;
            for volume in &resource.config.volumes {
                let Some(backing) = &volume.backing else { continue };
                let found = metadata::exists(&backing.disk).unwrap();
                resource.end = if found { fs::metadata(&backing.disk).unwrap().len() } else { 0 };
            }
        }
    }
}

fn status(resource: &Resource) -> ResourceStatus {
    let config = &resource.config;
    let devices = config.volumes.iter().map(|volume| {
        let backing = volume.backing.as_ref().map(|backing| backing.disk.clone());
        let size = backing.as_ref().map_or(0, |_| resource.agreed / 1024);
        let attached = backing.is_some() && resource.end != 0;
        let disk_state = if attached { resource.disk } else { DiskState::Diskless };
        DeviceStatus {
            volume: volume.nr,
            minor: volume.minor,
            disk_state,
            client: false,
            open: Some(resource.primary),
            backing_dev: backing,
            quorum: true,
            size,
            read: 0,
            written: 0,
            al_writes: 0,
            bm_writes: 0,
            sb_writes: None,
            upper_pending: 0,
            lower_pending: 0,
            al_suspended: false,
            blocked: Blocked::default(),
        }
    });
    ResourceStatus {
        name: config.name.clone(),
        node_id: config.node_id,
        role: if resource.primary { vocab::Role::Primary } else { vocab::Role::Secondary },
        suspended: Suspended { user: resource.suspended, ..Suspended::default() },
        force_io_failures: false,
        write_ordering: WriteOrdering::Flush,
        may_promote: true,
        promotion_score: 1,
        devices: devices.collect(),
        connections: Vec::new(),
    }
}

fn serve(stream: UnixStream, fake: &Mutex<Fake>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut stream = stream;
    for line in lines.map_while(Result::ok) {
        let Call { id, request, .. } = Call::decode(line.as_bytes()).unwrap();
        let mut fake = fake.lock().unwrap();
        let refused = matches!(request, Request::Resize { .. }) && fake.grown_elsewhere;
        let answer = fake.answer(request);
        let outcome = match refused {
            true => Outcome::Refused(vocab::ConfigError::ResizeDuringResync.into()),
            false => Outcome::Ok(answer),
        };
        drop(fake);
        if stream.write_all(&encode_line(&Line::Reply(Reply { id, outcome }))).is_err() {
            return;
        }
    }
}

/// The configuration with these peers, whose node ids count up from 1.
fn connected(peers: &[&str]) -> Action {
    let Action::Configure(mut config) = configure() else { panic!("it is one") };
    let end = |last| (std::net::Ipv4Addr::new(10, 0, 0, last).into(), 7000);
    for (peer, id) in peers.iter().zip(1..) {
        let connection = cluster::plan::ConnectionConfig {
            node_id: NodeId::new(id),
            paths: vec![(end(1), end(id + 1))],
            net: BTreeMap::new(),
            peer_device: BTreeMap::new(),
            diskless: false,
        };
        config.connections.insert(NodeName::new(peer).unwrap(), connection);
    }
    Action::Configure(config)
}

/// An engine, a pool of kind FILE_THIN, and an agent that can be started again.
struct Bed {
    directory: tempfile::TempDir,
    fake: Arc<Mutex<Fake>>,
    /// Who decrypts volumes, with programs of the test's own; the engine without them.
    luks: Option<Choice>,
}

fn name() -> ResourceName {
    ResourceName::new("web").unwrap()
}

fn pool() -> PoolName {
    PoolName::new("thin").unwrap()
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("pool")).unwrap();
        let listener = UnixListener::bind(directory.path().join("sock")).unwrap();
        let fake: Arc<Mutex<Fake>> = Arc::default();
        let served = fake.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let served = served.clone();
                std::thread::spawn(move || serve(stream, &served));
            }
        });
        Bed { directory, fake, luks: None }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// The agent as it starts.
    fn start(&self) -> Node {
        let node = Node {
            name: NodeName::new("alpha").unwrap(),
            socket: self.path("sock"),
            store: Store::open(&self.path("agent")).unwrap(),
            pools: Pools::open(&self.path("agent")).unwrap(),
            suspend_for: Duration::from_secs(10),
            shipments: Default::default(),
            files_below: Vec::new(),
            master: Master::default(),
            mapper: match self.luks {
                Some(choice) => Mapper::fake(choice, self.path("mapper"), self.path("bin")),
                None => Mapper::new(Choice::Engine),
            },
            program: None,
        };
        let props = [("StorDriver/StorPoolName".to_owned(), text(&self.path("pool")))];
        let pool = Pool { provider: Provider::FileThin, props: props.into() };
        node.pools.tell(Generation(1), [(super::tests::pool(), pool)].into()).unwrap();
        for name in node.store.names() {
            node.forget_suspension(&name).unwrap();
            node.recover(&name).unwrap();
        }
        node
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("pool")).unwrap();
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn create(size: u64) -> Action {
    let backing = Backing {
        pool: pool(),
        provider: Provider::FileThin,
        size: Bytes(size),
        layers: vec![Layer::Storage],
        passphrase: None,
        passphrase_changes: 0,
        options: BTreeMap::new(),
    };
    Action::CreateVolume { volume: 0, backing }
}

fn create_metadata() -> Action {
    Action::CreateMetadata {
        volume: 0,
        peer_slots: 7,
        node_id: NodeId::new(0),
        day_0: GenUuid(0x1234_5678_9abc_def0),
        begin: Begin::First,
    }
}

fn configure() -> Action {
    let volume = VolumeConfig {
        minor: Some(Minor(1000)),
        pool: Some(pool()),
        size: Bytes(60 * MIB),
        options: BTreeMap::new(),
        props: BTreeMap::new(),
    };
    Action::Configure(ResourceConfig {
        layers: vec![Layer::Drbd, Layer::Storage],
        node_id: NodeId::new(0),
        options: BTreeMap::new(),
        secret: String::new(),
        volumes: [(0, volume)].into(),
        connections: BTreeMap::new(),
        files: BTreeMap::new(),
    })
}

const TOKEN: Generation = Generation(6);

#[test]
fn a_crash_at_any_write_loses_nothing_and_leaves_nothing() {
    crash_at_every_write(false);
}

#[test]
fn nor_does_one_of_the_whole_node() {
    crash_at_every_write(true);
}

fn crash_at_every_write(with_engine: bool) {
    let steps = [
        create(64 * MIB),
        create_metadata(),
        configure(),
        Action::Suspend { token: TOKEN },
        Action::Resume { token: TOKEN },
        Action::GrowVolume { volume: 0, size: Bytes(96 * MIB) },
        Action::GrowDevice { volume: 0, size: Bytes(95 * MIB) },
        Action::Remove(Guard::default()),
    ];
    let mut crashes = 0;
    for at in 0.. {
        let bed = Bed::new();
        let mut node = bed.start();
        *node.store.crash.lock().unwrap() = Some(at);
        let mut crashed = false;
        for (generation, step) in (10..).zip(&steps) {
            for time in ["once", "twice"] {
                let mut result = node.carry_out(&name(), Generation(generation), step);
                if result.is_err() && !crashed {
                    if with_engine {
                        bed.fake.lock().unwrap().restart();
                    }
                    (crashed, node) = (true, bed.start());
                    result = node.carry_out(&name(), Generation(generation), step);
                }
                assert_eq!(result, Ok(()), "{step} {time}, after a crash at write {at}");
            }
            let suspended = |fake: &Fake| fake.resources.values().any(|r| r.suspended);
            let Some(record) = node.store.get(&name()) else { continue };
            match step {
                Action::Suspend { .. } => {
                    // What a crash has ended is not begun again, and never holds I/O up.
                    let held = record.suspension().unwrap().state;
                    let is_held = held == cluster::observed::SuspensionState::Held;
                    let lost = with_engine && crashed;
                    assert!(lost || suspended(&bed.fake.lock().unwrap()) == is_held, "{at}");
                }
                Action::Resume { .. } => assert!(!suspended(&bed.fake.lock().unwrap()), "{at}"),
                Action::GrowVolume { .. } => assert_eq!(record.volumes[&0].size, 96 * MIB, "{at}"),
                Action::GrowDevice { .. } => {
                    let volume = &record.volumes[&0];
                    assert_eq!(volume.growing, None, "{at}");
                    assert!(!node.store.aside(&name(), 0).exists());
                    let there = metadata::has_data(&volume.path);
                    assert_eq!(there, Ok(true), "metadata have moved, {at}");
                    let fake = bed.fake.lock().unwrap();
                    assert_eq!(fake.resources["web"].end, 96 * MIB, "the disk is attached, {at}");
                }
                _ => {}
            }
        }
        assert_eq!(bed.files(), Vec::<String>::new(), "after a crash at write {at}");
        assert!(bed.fake.lock().unwrap().resources.is_empty());
        assert_eq!(bed.start().store.names(), []);
        assert_eq!(node.store.removed()[&name()], Generation(17));
        if !crashed {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 20, "only {crashes} points were tried");
}

/// A volume in use that has grown, and whose engine knows nothing of that yet.
fn grown(bed: &Bed) -> Node {
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().primary = true;
    for size in [80, 96] {
        let grow = Action::GrowVolume { volume: 0, size: Bytes(size * MIB) };
        node.carry_out(&name(), Generation(1), &grow).unwrap();
    }
    let volume = node.store.get(&name()).unwrap().volumes[&0].clone();
    assert!(volume.growing.is_some_and(|growing| growing.ends.len() == 2));
    assert_eq!(metadata::exists(&volume.path), Ok(false), "the engine has them where they were");
    assert_eq!(bed.fake.lock().unwrap().resources["web"].end, 64 * MIB);
    node
}

#[test]
fn an_engine_that_is_started_before_it_has_moved_the_metadata_gets_its_disk_back() {
    let bed = Bed::new();
    let node = grown(&bed);
    let attached = || bed.fake.lock().unwrap().resources["web"].end;
    bed.fake.lock().unwrap().restart();
    assert_eq!(attached(), 0, "it finds no metadata");
    node.recover(&name()).unwrap();
    assert_eq!(attached(), 96 * MIB);
    assert!(!node.store.get(&name()).unwrap().is_growing());
    let resize = Action::GrowDevice { volume: 0, size: Bytes(95 * MIB) };
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().agreed = 64 * MIB;
    node.carry_out(&name(), Generation(1), &resize).unwrap();
    assert_eq!(bed.fake.lock().unwrap().resources["web"].agreed, 96 * MIB);
}

#[test]
fn a_device_that_another_node_has_grown_need_not_be_grown_again() {
    let bed = Bed::new();
    let node = grown(&bed);
    bed.fake.lock().unwrap().grown_elsewhere = true;
    let resize = |size| Action::GrowDevice { volume: 0, size: Bytes(size * MIB) };
    node.carry_out(&name(), Generation(1), &resize(95)).unwrap();
    assert!(!node.store.get(&name()).unwrap().is_growing(), "its metadata are where they belong");
    // One that has not grown is not there.
    let failed = node.carry_out(&name(), Generation(1), &resize(97)).unwrap_err().to_string();
    assert!(failed.contains("No resize while a resync"), "{failed}");
}

#[test]
fn what_was_begun_to_be_moved_is_moved_again_but_never_over_what_is_newer() {
    let bed = Bed::new();
    let node = grown(&bed);
    bed.fake.lock().unwrap().restart();
    // A crash when they were there, and before that was written down.
    *node.store.crash.lock().unwrap() = Some(0);
    node.recover(&name()).unwrap_err();
    *node.store.crash.lock().unwrap() = None;
    let volume = node.store.get(&name()).unwrap().volumes[&0].clone();
    assert!(volume.growing.is_some());
    // Another engine has used them since.
    metadata::begin(&volume.path, NodeId::new(0), GenUuid(0x77), Begin::DayZero).unwrap();
    let newer = fs::read(&volume.path).unwrap();
    let node = bed.start();
    assert!(fs::read(&volume.path).unwrap() == newer);
    assert!(!node.store.get(&name()).unwrap().is_growing());
    assert_eq!(bed.fake.lock().unwrap().resources["web"].end, 96 * MIB, "it is attached");
}

#[test]
fn data_that_have_grown_count_while_the_resource_is_down() {
    let bed = Bed::new();
    let node = grown(&bed);
    bed.fake.lock().unwrap().resources.clear();
    let guard = Guard { at_least: 1, of: vec![NodeName::new("bravo").unwrap()] };
    let failed = node.carry_out(&name(), Generation(1), &Action::Remove(guard)).unwrap_err();
    assert!(failed.cause.contains("data of web stay on node alpha"), "{failed}");
}

#[test]
fn what_is_down_for_a_rollback_stays_down_until_it_is_configured_again() {
    let take_down = Action::TakeDown { token: TOKEN, guard: None };
    let mut crashes = 0;
    for at in 0.. {
        let bed = Bed::new();
        let mut node = bed.start();
        for step in [create(64 * MIB), create_metadata(), configure()] {
            node.carry_out(&name(), Generation(1), &step).unwrap();
        }
        let up = || bed.fake.lock().unwrap().resources.contains_key("web");
        *node.store.crash.lock().unwrap() = Some(at);
        let mut crashed = false;
        for (generation, step) in (10..).zip([
            take_down.clone(),
            Action::Discard { token: TOKEN },
            create(64 * MIB),
            create_metadata(),
            configure(),
        ]) {
            for time in ["once", "twice"] {
                let mut result = node.carry_out(&name(), Generation(generation), &step);
                if result.is_err() && !crashed {
                    (crashed, node) = (true, bed.start());
                    result = node.carry_out(&name(), Generation(generation), &step);
                }
                assert_eq!(result, Ok(()), "{step} {time}, after a crash at write {at}");
            }
            let record = node.store.get(&name()).unwrap();
            match &step {
                Action::Configure(_) => {
                    assert!(up() && record.down.is_none(), "{at}");
                    assert_eq!(record.rollback(), None);
                }
                Action::TakeDown { .. } => {
                    assert_eq!(record.rollback().map(|down| down.changed), Some(false));
                    assert!(!up(), "{at}");
                    // Nothing but a configuration brings it up.
                    let failed = node.step(&name()).adjust().unwrap_err();
                    assert!(failed.cause.contains("kept down"), "{failed}");
                }
                _ => assert!(!up(), "{step}: {at}"),
            }
        }
        if !crashed {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 5, "only {crashes} points were tried");
}

#[test]
fn what_is_deactivated_goes_down_under_its_peers_and_forgets_those_that_leave_meanwhile() {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), connected(&["bravo", "charlie"])] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    let fake = |change: fn(&mut Resource)| {
        change(bed.fake.lock().unwrap().resources.get_mut("web").unwrap());
    };
    let bravo = Guard { at_least: 1, of: vec![NodeName::new("bravo").unwrap()] };
    let guard = Some(bravo);
    let take_down = Action::TakeDown { token: TOKEN, guard };
    let refused = |why: &str| {
        let failed = node.carry_out(&name(), Generation(2), &take_down).unwrap_err();
        assert!(failed.cause.contains(why), "{failed}");
        assert_eq!(node.store.get(&name()).unwrap().down, None, "nothing has begun");
    };
    refused("web stays up on node alpha: 1 other nodes have to be connected");
    fake(|resource| resource.primary = true);
    refused("in use on node alpha");
    fake(|resource| (resource.primary, resource.disk) = (false, DiskState::Inconsistent));
    for _ in 0..2 {
        node.carry_out(&name(), Generation(2), &take_down).unwrap();
        assert!(!bed.fake.lock().unwrap().resources.contains_key("web"));
    }
    // As it is when the agent starts again.
    let node = bed.start();
    assert!(!bed.fake.lock().unwrap().resources.contains_key("web"));
    let volume = Action::RemoveVolume { volume: 1 };
    node.carry_out(&name(), Generation(3), &volume).unwrap();
    node.carry_out(&name(), Generation(4), &connected(&["bravo"])).unwrap();
    assert_eq!(bed.fake.lock().unwrap().forgotten, [2]);
    assert_eq!(node.store.get(&name()).unwrap().down, None);
    assert_eq!(bed.files().len(), 1);
}

#[test]
fn data_go_only_while_the_resource_is_down_for_this_rollback() {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    let snapshot = cluster::name::SnapshotName::new("s1").unwrap();
    let steps = |token| {
        let snapshot = snapshot.clone();
        [Action::Discard { token }, Action::RollBack { token, snapshot }]
    };
    let refused = |token, why: &str| {
        for step in steps(token) {
            let before = node.store.get(&name()).unwrap();
            let failed = node.carry_out(&name(), Generation(1), &step).unwrap_err();
            assert!(failed.cause.contains(why), "{step}: {failed}");
            assert!(node.store.get(&name()).unwrap() == before, "{step}: nothing has begun");
        }
    };
    refused(TOKEN, "is not down");
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().primary = true;
    let take_down = Action::TakeDown { token: TOKEN, guard: None };
    let failed = node.carry_out(&name(), Generation(1), &take_down).unwrap_err();
    assert!(failed.cause.contains("in use on node alpha"), "{failed}");
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().primary = false;
    let kept = bed.fake.lock().unwrap().resources["web"].clone();
    node.carry_out(&name(), Generation(1), &take_down).unwrap();
    refused(Generation(TOKEN.0 + 1), "is not down");
    // An operator has brought it up by hand.
    bed.fake.lock().unwrap().resources.insert("web".into(), kept);
    refused(TOKEN, "is not down");
    bed.fake.lock().unwrap().resources.clear();
    let [_, roll_back] = steps(TOKEN);
    let failed = node.carry_out(&name(), Generation(1), &roll_back).unwrap_err();
    assert!(failed.cause.contains("no snapshot s1"), "{failed}");
    assert_eq!(bed.files().len(), 1);
}

#[test]
fn what_is_in_use_does_not_go() {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().primary = true;
    let before = node.store.get(&name()).unwrap();
    let step = Action::Remove(Guard::default());
    let failed = node.carry_out(&name(), Generation(1), &step).unwrap_err();
    assert!(failed.cause.contains("in use on node alpha"), "{failed}");
    assert!(node.store.get(&name()).unwrap() == before, "nothing has changed");
}

#[test]
fn data_stay_while_too_few_others_have_them() {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    let guard = Guard { at_least: 1, of: vec![NodeName::new("bravo").unwrap()] };
    use DiskState::{Attaching, Consistent, Failed, Negotiating, Outdated, UpToDate};
    // The last is an engine that has forgotten it: the metadata say that there are data.
    let states = [UpToDate, Consistent, Outdated, Attaching, Negotiating, Failed].map(Some);
    for state in states.into_iter().chain([None]) {
        let mut fake = bed.fake.lock().unwrap();
        match state {
            Some(state) => fake.resources.get_mut("web").unwrap().disk = state,
            None => fake.resources.clear(),
        }
        drop(fake);
        for step in [Action::RemoveDisk(guard.clone()), Action::Remove(guard.clone())] {
            let before = node.store.get(&name()).unwrap();
            let failed = node.carry_out(&name(), Generation(1), &step).unwrap_err();
            assert!(failed.cause.contains("data of web stay on node alpha"), "{failed}");
            assert!(node.store.get(&name()).unwrap() == before, "{state:?}: nothing has begun");
        }
    }
    assert_eq!(bed.files().len(), 1);
}

#[test]
fn a_suspension_that_takes_too_long_ends_by_itself() {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    let suspended = || bed.fake.lock().unwrap().resources["web"].suspended;
    node.carry_out(&name(), Generation(1), &Action::Suspend { token: TOKEN }).unwrap();
    assert!(suspended());
    node.expire(&name(), TOKEN).unwrap();
    assert!(!suspended());
    let snapshot = cluster::name::SnapshotName::new("s1").unwrap();
    let take = Action::TakeSnapshot { token: TOKEN, snapshot };
    let failed = node.carry_out(&name(), Generation(1), &take).unwrap_err();
    assert!(failed.cause.contains("not suspended"), "{failed}");
    // Nor is it begun again.
    node.carry_out(&name(), Generation(1), &Action::Suspend { token: TOKEN }).unwrap();
    assert!(!suspended());
    // What somebody else has suspended is left so.
    bed.fake.lock().unwrap().resources.get_mut("web").unwrap().suspended = true;
    let next = Generation(TOKEN.0 + 1);
    node.carry_out(&name(), Generation(1), &Action::Suspend { token: next }).unwrap();
    node.carry_out(&name(), Generation(1), &Action::Resume { token: next }).unwrap();
    assert!(suspended());
}

#[test]
fn a_suspension_that_the_engine_has_ended_or_forgotten_was_not_held() {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata(), configure()] {
        node.carry_out(&name(), Generation(1), &step).unwrap();
    }
    let state = || node.store.get(&name()).unwrap().suspension().unwrap().state;
    let snapshot = cluster::name::SnapshotName::new("s1").unwrap();
    for (token, gone) in [(6, false), (7, true)] {
        let token = Generation(token);
        node.carry_out(&name(), Generation(1), &Action::Suspend { token }).unwrap();
        let kept = bed.fake.lock().unwrap().resources["web"].clone();
        match gone {
            true => drop(bed.fake.lock().unwrap().resources.remove("web")),
            false => bed.fake.lock().unwrap().resources.get_mut("web").unwrap().suspended = false,
        }
        let take = Action::TakeSnapshot { token, snapshot: snapshot.clone() };
        let failed = node.carry_out(&name(), Generation(1), &take).unwrap_err();
        assert!(failed.cause.contains("not suspended"), "{failed}");
        node.carry_out(&name(), Generation(1), &Action::Resume { token }).unwrap();
        assert_eq!(state(), cluster::observed::SuspensionState::Expired);
        let kept = Resource { suspended: false, ..kept };
        bed.fake.lock().unwrap().resources.insert("web".into(), kept);
    }
}

#[test]
fn somebody_elses_metadata_are_not_overwritten() {
    let bed = Bed::new();
    let node = bed.start();
    let path = bed.path("pool").join("web_00000.img");
    fs::File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let request = Request::CreateMd {
        disk: text(&path),
        meta_disk: engine_config::MetaDisk::Internal,
        max_peers: 7,
        force: false,
        luks: false,
    };
    bed.fake.lock().unwrap().answer(request);
    let before = fs::read(&path).unwrap();
    node.carry_out(&name(), Generation(1), &create(64 * MIB)).unwrap();
    let failed = node.carry_out(&name(), Generation(1), &create_metadata()).unwrap_err();
    assert!(failed.cause.contains("did not make"), "{failed}");
    assert!(fs::read(&path).unwrap() == before);
    let record = node.store.get(&name()).unwrap();
    assert_eq!(record.volumes[&0].metadata, Metadata::None);
    assert_eq!(record.volumes.keys().copied().collect::<Vec<_>>(), [VolumeNr(0).0]);
}
