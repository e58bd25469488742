//! Messages of the link as they were sent, kept in `samples/`, one file for each version of the link: each
//! is still understood, and nothing of it is lost when this release says the same. So an older neighbour is
//! understood, and finds all that it reads. With `SAMPLES_WRITE=1` new samples are added to the newest file.
#![allow(clippy::unwrap_used, reason = "these are tests and what they are made of")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use api::link::{FIRST_TOKEN, News, Order, Pool};
use api::wire::{NotUnderstood, PROTOCOL, PROTOCOL_MIN, proto};
use cluster::disks::{DevicePool, Disk};
use cluster::layer::Layer;
use cluster::name::{FilePath, NodeName, PoolName, ResourceName, SnapshotName};
use cluster::objects::{Generation, Millis, Provider};
use cluster::observed::{
    DownForRollback, Mapped, NodeState, PoolState, ReplicaState, SnapshotState, Suspension,
    SuspensionState, VolumeState,
};
use cluster::plan::{
    Action, Backing, Begin, ConnectionConfig, Guard, ResourceConfig, VolumeConfig,
};
use cluster::question::{Question, ReactorCall, ReactorVerb, Reply};
use cluster::shipping::{
    Bucket, Described, DescribedKeys, DescribedVolume, Door, DownloadFrom, DownloadOrder, Listen,
    Peer, Phase, ShipmentState, UploadOrder, UploadTo,
};
use prost::Message;
use proto::{from_agent, to_agent};
use serde::de::DeserializeOwned;
use serde_json::Value;
use vocab::{Bytes, DiskState, GenUuid, LogLevel, Minor, NodeId, VolumeNr};

/// The first version of which there are samples.
const FIRST: u32 = 3;

/// What a message is, and its bytes.
type Sample = (&'static str, Vec<u8>);

fn resource() -> ResourceName {
    ResourceName::new("web").unwrap()
}

fn snapshot() -> SnapshotName {
    SnapshotName::new("monday").unwrap()
}

fn pool() -> PoolName {
    PoolName::new("thin").unwrap()
}

fn path() -> FilePath {
    FilePath::new("/etc/web.conf").unwrap()
}

fn texts() -> BTreeMap<String, String> {
    [("on-io-error".to_owned(), "detach".to_owned())].into()
}

fn backing() -> Backing {
    Backing {
        pool: pool(),
        provider: Provider::LvmThin,
        size: Bytes(1 << 40),
        layers: vec![Layer::Luks, Layer::Storage],
        passphrase: Some("sealed".to_owned()),
        passphrase_changes: 2,
        options: texts(),
    }
}

/// The least that can be said: what is not there must be said as before, too.
fn bare_backing() -> Backing {
    Backing {
        layers: vec![],
        passphrase: None,
        passphrase_changes: 0,
        options: BTreeMap::new(),
        ..backing()
    }
}

fn config() -> ResourceConfig {
    let volume = VolumeConfig {
        minor: Some(Minor(1000)),
        pool: Some(pool()),
        size: Bytes(1 << 30),
        options: texts(),
        props: [("FileSystem/Type".to_owned(), "xfs".to_owned())].into(),
    };
    let ours = ("10.0.0.1".parse().unwrap(), 7000);
    let theirs = ("fd00::2".parse().unwrap(), 7001);
    let connection = ConnectionConfig {
        node_id: NodeId::new(1),
        paths: vec![(ours, theirs)],
        net: texts(),
        peer_device: texts(),
        diskless: true,
    };
    ResourceConfig {
        layers: Layer::ALL.to_vec(),
        node_id: NodeId::new(0),
        options: texts(),
        secret: "shared".into(),
        volumes: [(0, volume)].into(),
        connections: [(NodeName::new("bravo").unwrap(), connection)].into(),
        files: [(path(), b"content".to_vec())].into(),
    }
}

fn bare_config() -> ResourceConfig {
    let volume = VolumeConfig {
        minor: None,
        pool: None,
        size: Bytes(0),
        options: BTreeMap::new(),
        props: BTreeMap::new(),
    };
    let connection = ConnectionConfig {
        node_id: None,
        paths: vec![],
        net: BTreeMap::new(),
        peer_device: BTreeMap::new(),
        diskless: false,
    };
    ResourceConfig {
        layers: vec![],
        node_id: None,
        options: BTreeMap::new(),
        secret: String::new(),
        volumes: [(0, volume)].into(),
        connections: [(NodeName::new("bravo").unwrap(), connection)].into(),
        files: BTreeMap::new(),
    }
}

fn actions() -> Vec<Action> {
    let (token, snapshot) = (Generation(6), snapshot());
    let guard = Guard { at_least: 1, of: vec![NodeName::new("bravo").unwrap()] };
    let down = guard.clone();
    let (node_id, day_0) = (NodeId::new(0), GenUuid(0xfedc_ba98_7654_3210));
    let metadata =
        |begin| Action::CreateMetadata { volume: 0, peer_slots: 7, node_id, day_0, begin };
    vec![
        Action::CreateVolume { volume: 0, backing: backing() },
        Action::RestoreVolume {
            volume: 0,
            backing: backing(),
            from: resource(),
            snapshot: snapshot.clone(),
        },
        Action::AdoptVolume {
            volume: 0,
            backing: backing(),
            size: Bytes(1 << 30),
            metadata: true,
            node_id,
        },
        metadata(Begin::First),
        metadata(Begin::DayZero),
        metadata(Begin::Empty),
        Action::CreateVolume { volume: 0, backing: bare_backing() },
        Action::CreateMetadata {
            volume: 0,
            peer_slots: 0,
            node_id: None,
            day_0: GenUuid(0),
            begin: Begin::Empty,
        },
        Action::Configure(bare_config()),
        Action::Remove(Guard::default()),
        Action::BeginData { volume: 0 },
        Action::GrowVolume { volume: 0, size: Bytes(1 << 31) },
        Action::GrowDevice { volume: 0, size: Bytes(1 << 31) },
        Action::Configure(config()),
        Action::RemoveDisk(guard.clone()),
        Action::RemoveVolume { volume: 0 },
        Action::ChangePassphrase { volume: 0, passphrase: "sealed".to_owned(), changes: 2 },
        Action::Remove(guard),
        Action::Suspend { token },
        Action::TakeSnapshot { token, snapshot: snapshot.clone() },
        Action::Resume { token },
        Action::DeleteSnapshot { snapshot: snapshot.clone() },
        Action::TakeDown { token, guard: None },
        Action::TakeDown { token, guard: Some(down) },
        Action::RollBack { token, snapshot },
        Action::Discard { token },
        Action::Upload(Box::new(upload(
            UploadTo::Bucket(bucket()),
            Some((SnapshotName::new("sunday").unwrap(), "web_back_20261128_000000".to_owned())),
        ))),
        Action::Upload(Box::new(upload(
            UploadTo::Peer(Peer { door: door(), secret: "sealed".to_owned() }),
            None,
        ))),
        Action::Upload(Box::new(UploadOrder {
            described: Described {
                layers: vec![],
                node_id: None,
                peer_slots: 0,
                props: BTreeMap::new(),
                volumes: BTreeMap::new(),
                keys: None,
                ..upload(UploadTo::Bucket(bucket()), None).described
            },
            ..upload(UploadTo::Bucket(bucket()), None)
        })),
        Action::Download(Box::new(download(DownloadFrom::Bucket(bucket())))),
        Action::Download(Box::new(download(listen(Some((
            SnapshotName::new("sunday").unwrap(),
            "u/n1".to_owned(),
        )))))),
        Action::Download(Box::new(download(listen(None)))),
        Action::StopShipping { token },
    ]
}

fn download(from: DownloadFrom) -> DownloadOrder {
    DownloadOrder {
        token: Generation(6),
        snapshot: snapshot(),
        from,
        chain: vec!["web_back_20261128_000000".to_owned(), "web_back_20261129_000000".to_owned()],
        volumes: [(0, (pool(), Provider::FileThin, 1 << 30))].into(),
        drbd: true,
        passphrases: [(0, "sealed".to_owned())].into(),
    }
}

fn listen(base: Option<(SnapshotName, String)>) -> DownloadFrom {
    DownloadFrom::Peer(Listen {
        address: "10.0.0.1".parse().unwrap(),
        ports: (12_000, 12_999),
        secret: "sealed".to_owned(),
        origin: "v/n1".to_owned(),
        base,
    })
}

fn bucket() -> Bucket {
    Bucket {
        endpoint: "https://s3.example.com".to_owned(),
        bucket: "vault".to_owned(),
        region: "eu-1".to_owned(),
        path_style: true,
        access_key: "sealed".to_owned(),
        secret_key: "sealed too".to_owned(),
    }
}

fn door() -> Door {
    let address = "10.0.0.1".parse().unwrap();
    Door { address, port: 12_000, fingerprint: "00ff".to_owned() }
}

fn upload(to: UploadTo, base: Option<(SnapshotName, String)>) -> UploadOrder {
    let volume =
        DescribedVolume { size: Bytes(1 << 30), gross_size: true, props: texts(), pool: pool() };
    UploadOrder {
        token: Generation(6),
        snapshot: snapshot(),
        to,
        backup: "web_back_20261129_000000".to_owned(),
        base,
        described: Described {
            since: Millis(1_700_000_000_000),
            cluster: "c".to_owned(),
            uuid: "u".to_owned(),
            layers: vec![Layer::Drbd, Layer::Storage],
            node_id: NodeId::new(0),
            peer_slots: 7,
            props: texts(),
            volumes: [(VolumeNr(0), volume)].into(),
            keys: Some(DescribedKeys {
                master: "wrapped".to_owned(),
                passphrases: [(VolumeNr(0), "sealed".to_owned())].into(),
            }),
        },
    }
}

fn shipments() -> Vec<ShipmentState> {
    let states = Phase::ALL.iter().map(|phase| ShipmentState {
        token: Generation(6),
        phase: *phase,
        done_percent: 12,
        cause: Some("no such bucket".to_owned()),
        door: Some(door()),
    });
    let bare = ShipmentState {
        token: Generation(0),
        phase: Phase::Shipping,
        done_percent: 0,
        cause: None,
        door: None,
    };
    states.chain([bare]).collect()
}

fn orders() -> Vec<Order> {
    let pool_of = |provider: &Provider| {
        let name = PoolName::new(&format!("pool-{provider}")).unwrap();
        (name, Pool { provider: *provider, props: texts() })
    };
    let pools = Provider::ALL.iter().map(pool_of).collect();
    let bare = Pool { provider: Provider::Zfs, props: BTreeMap::new() };
    let mut all = vec![
        Order::Pools { generation: Generation(3), pools },
        Order::Pools { generation: Generation(0), pools: [(pool(), bare)].into() },
        Order::Master { key: "sealed".into() },
    ];
    let step = |action| Order::Step { resource: resource(), generation: Generation(7), action };
    all.extend(actions().into_iter().map(step));
    let devices = vec!["/dev/sdb".to_owned(), "/dev/sdc".to_owned()];
    let pool = DevicePool { provider: Provider::LvmThin, name: "ssd".to_owned(), devices };
    let bare = DevicePool { provider: Provider::Zfs, name: String::new(), devices: vec![] };
    let questions = [
        Question::Disks {},
        Question::MakePool(pool.clone()),
        Question::MakePool(bare),
        Question::UnmakePool(pool),
        Question::MayPut { path: path() },
        Question::File { path: path(), content: b"content".to_vec() },
        Question::LogLevel {},
        Question::Diagnosis { since: None },
        Question::Diagnosis { since: Some(Millis(1_700_000_000_000)) },
    ];
    let verbs = [
        ReactorVerb::Status,
        ReactorVerb::Evict,
        ReactorVerb::Disable,
        ReactorVerb::Enable,
        ReactorVerb::Restart,
    ];
    let call = |verb| ReactorCall { verb, config: "web".to_owned(), now: true, wait: false };
    let calls = verbs.into_iter().map(call).map(Question::Reactor);
    let levels = LogLevel::ALL.iter().copied().map(Question::SetLogLevel);
    let ask = |question| Order::Ask { token: FIRST_TOKEN + 7, question };
    all.extend(questions.into_iter().chain(calls).chain(levels).map(ask));
    all
}

fn news() -> Vec<News> {
    let pool_state = PoolState {
        free: Bytes(1 << 30),
        total: Bytes(1 << 31),
        snapshots: Bytes(4096),
        metadata_used: Some(81),
        no_snapshots: Some("no reflinks".to_owned()),
        error: Some("gone".to_owned()),
    };
    let volume = |disk| VolumeState {
        backing: Some(Bytes(1 << 30)),
        metadata: true,
        disk: Some(disk),
        size: Bytes(1 << 29),
        done_percent: Some(12.5),
        passphrase_changes: 3,
        mapped: Some(Mapped {
            device: "/dev/mapper/Linstor-Crypt-web_00000".to_owned(),
            backing: "/dev/disks/web_00000".to_owned(),
        }),
    };
    let numbers = (0..).map(VolumeNr);
    let state = ReplicaState {
        generation: Generation(7),
        up: true,
        in_use: Some(Millis(1_700_000_000_000)),
        volumes: numbers.zip(DiskState::ALL.iter().copied().map(volume)).collect(),
        connections: [(NodeName::new("bravo").unwrap(), true)].into(),
        suspension: Some(Suspension { token: Generation(5), state: SuspensionState::Held }),
        snapshots: [(snapshot(), SnapshotState { token: Generation(5) })].into(),
        rollback: Some(DownForRollback { token: Generation(6), changed: true }),
        shipments: shipments(),
    };
    let node = NodeState {
        connected: true,
        since: Millis(1_700_000_000_000),
        layers: Layer::ALL.iter().copied().collect(),
        providers: Provider::ALL.iter().copied().collect(),
        pools: [(pool(), pool_state.clone())].into(),
        ships: true,
        ships_encrypted: true,
        ships_to_clusters: true,
    };
    let suspended = |state| {
        let suspension = Some(Suspension { token: Generation(5), state });
        let state = ReplicaState { suspension, ..ReplicaState::default() };
        News::Replica { resource: resource(), state }
    };
    let bare = ReplicaState {
        volumes: [(VolumeNr(0), VolumeState::default())].into(),
        snapshots: [(snapshot(), SnapshotState::default())].into(),
        rollback: Some(DownForRollback { token: Generation(0), changed: false }),
        ..ReplicaState::default()
    };
    let disk = Disk {
        device: "/dev/sdb".to_owned(),
        size: Bytes(4 << 40),
        rotational: true,
        model: "SPINNER".to_owned(),
        serial: "S1".to_owned(),
        wwn: "0x5000".to_owned(),
    };
    let answer = |reply| News::Answer { token: FIRST_TOKEN + 7, reply };
    vec![
        answer(Reply::Disks { disks: vec![disk, Disk::default()] }),
        answer(Reply::Done {}),
        answer(Reply::MayPut { allowed: true }),
        answer(Reply::File { there: true, same: false }),
        answer(Reply::LogLevel(LogLevel::Debug)),
        answer(Reply::Said { status: -1, output: "out".to_owned(), errors: "err".to_owned() }),
        answer(Reply::Diagnosis { files: texts() }),
        answer(Reply::Refused { cause: "in use".to_owned(), correction: "free it".to_owned() }),
        News::Hello { node, replicas: [(resource(), state.clone())].into() },
        News::Hello { node: NodeState::default(), replicas: BTreeMap::new() },
        News::Pools([(pool(), pool_state)].into()),
        News::Pools([(pool(), PoolState::default())].into()),
        News::Replica { resource: resource(), state },
        News::Replica { resource: resource(), state: bare },
        News::Replica { resource: resource(), state: ReplicaState::default() },
        suspended(SuspensionState::Released),
        suspended(SuspensionState::Expired),
        News::Failed {
            resource: Some(resource()),
            generation: Generation(7),
            order: "create volume 0".to_owned(),
            cause: "no space".to_owned(),
            correction: "enlarge the pool".to_owned(),
        },
        News::Failed {
            resource: None,
            generation: Generation(0),
            order: String::new(),
            cause: String::new(),
            correction: String::new(),
        },
    ]
}

/// What could be said today.
fn today() -> Vec<Sample> {
    let from_agent =
        |message| ("from-agent", proto::FromAgent { message: Some(message) }.encode_to_vec());
    let to_agent =
        |message| ("to-agent", proto::ToAgent { message: Some(message) }.encode_to_vec());
    let join =
        proto::JoinRequest { node: "alpha".to_owned(), secret: vec![1; 4], request: vec![2; 4] };
    let renew = proto::RenewRequest { node: "alpha".to_owned(), request: vec![2; 4] };
    let certificate = proto::Certificate {
        certificate: vec![3; 4],
        authority: vec![4; 4],
        not_after_ms: 1_700_000_000_000,
    };
    let agent = proto::AgentGreeting {
        protocol_min: 1,
        protocol_max: 4,
        node: "alpha".to_owned(),
        release: "0.1.0".to_owned(),
    };
    let controller = proto::ControllerGreeting { protocol: 4, release: "0.1.0".to_owned() };
    let mut samples = vec![
        ("join", join.encode_to_vec()),
        ("renew", renew.encode_to_vec()),
        ("certificate", certificate.encode_to_vec()),
        from_agent(from_agent::Message::Greeting(agent)),
        to_agent(to_agent::Message::Greeting(controller)),
    ];
    samples.extend(news().iter().map(|news| from_agent(from_agent::Message::News(news.into()))));
    samples.extend(orders().iter().map(|order| to_agent(to_agent::Message::Order(order.into()))));
    samples
}

fn file(version: u32) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    folder.join(format!("protocol-{version}.txt"))
}

/// A line for each: what it is, a colon, its bytes; those that are no letter of ASCII are `%` and two
/// hexadecimal digits.
fn write(samples: &[Sample]) -> String {
    let byte = |byte: &u8| match byte {
        b'!'..=b'~' if *byte != b'%' => char::from(*byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    let line = |(kind, bytes): &Sample| {
        format!("{kind}: {}\n", bytes.iter().map(byte).collect::<String>())
    };
    samples.iter().map(line).collect()
}

fn read(text: &str) -> Vec<Sample> {
    let bytes = |text: &str| {
        let mut parts = text.split('%');
        let mut bytes = parts.next().unwrap().as_bytes().to_vec();
        for part in parts {
            bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
            bytes.extend(part[2..].bytes());
        }
        bytes
    };
    let line = |line: &str| {
        let (kind, rest) = line.split_once(": ").unwrap();
        let kinds = ["join", "renew", "certificate", "from-agent", "to-agent"];
        (kinds.into_iter().find(|known| *known == kind).unwrap(), bytes(rest))
    };
    text.lines().map(line).collect()
}

/// The JSON in a message, if it has any, and what this release says once it has read that.
fn bodies((kind, bytes): &Sample) -> Result<Option<(Value, Value)>, NotUnderstood> {
    let json = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap();
    match *kind {
        "from-agent" => match proto::FromAgent::decode(&bytes[..]).unwrap().message.unwrap() {
            from_agent::Message::Greeting(_) => Ok(None),
            from_agent::Message::News(said) => {
                let again = proto::News::from(&News::try_from(&said)?);
                Ok(Some((json(&said.body), json(&again.body))))
            }
        },
        "to-agent" => match proto::ToAgent::decode(&bytes[..]).unwrap().message.unwrap() {
            to_agent::Message::Greeting(_) => Ok(None),
            to_agent::Message::Order(said) => {
                let again = proto::Order::from(&Order::try_from(&said)?);
                let beside = |order: &proto::Order| (order.generation, order.resource.clone());
                assert_eq!(beside(&again), beside(&said));
                Ok(Some((json(&said.body), json(&again.body))))
            }
        },
        _ => Ok(None),
    }
}

/// A message as this release's protobuf knows it: what that does not know is left out.
fn envelope((kind, bytes): &Sample) -> Vec<u8> {
    fn again<T: Message + Default>(bytes: &[u8]) -> Vec<u8> {
        T::decode(bytes).map(|read| read.encode_to_vec()).unwrap_or_default()
    }

    match *kind {
        "join" => again::<proto::JoinRequest>(bytes),
        "renew" => again::<proto::RenewRequest>(bytes),
        "certificate" => again::<proto::Certificate>(bytes),
        "from-agent" => again::<proto::FromAgent>(bytes),
        _ => again::<proto::ToAgent>(bytes),
    }
}

/// What is missing in `new` of what is in `old`, or is another there. Fields may be added.
fn missing(old: &Value, new: &Value, path: &str) -> Vec<String> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => old
            .iter()
            .flat_map(|(key, old)| {
                let path = format!("{path}/{key}");
                new.get(key).map_or(vec![path.clone()], |new| missing(old, new, &path))
            })
            .collect(),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            old.iter().zip(new).flat_map(|(old, new)| missing(old, new, path)).collect()
        }
        _ if old == new => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

/// Why an older neighbour would miss something of a message.
fn fault(sample: &Sample) -> Option<String> {
    if envelope(sample) != sample.1 {
        return Some("protobuf does not know all".to_owned());
    }
    let (old, new) = match bodies(sample) {
        Ok(bodies) => bodies?,
        Err(error) => return Some(error.to_string()),
    };
    let missing = missing(&old, &new, "");
    (!missing.is_empty()).then(|| format!("{} would be missed", missing.join(", ")))
}

/// All kinds of an enum: serde names them to who asks for another.
fn kinds<T: DeserializeOwned>() -> Vec<String> {
    let Err(error) = serde_json::from_str::<T>(r#"{"?":{}}"#) else { panic!("`?` is a kind") };
    let error = error.to_string();
    let (_, kinds) = error.split_once("expected ").expect("it says what it knows");
    kinds.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All kinds of what is said, and the words in it, by direction.
fn all_kinds() -> [(&'static str, Vec<String>); 12] {
    let disk_states = DiskState::ALL.iter().map(|state| state.name().to_owned());
    [
        ("from-agent", kinds::<News>()),
        ("from-agent", kinds::<SuspensionState>()),
        ("from-agent", kinds::<Layer>()),
        ("from-agent", kinds::<Provider>()),
        ("from-agent", disk_states.collect()),
        ("from-agent", kinds::<Reply>()),
        ("to-agent", kinds::<Order>()),
        ("to-agent", kinds::<Question>()),
        ("to-agent", kinds::<Action>()),
        ("to-agent", kinds::<Begin>()),
        ("to-agent", kinds::<Layer>()),
        ("to-agent", kinds::<Provider>()),
    ]
}

/// All keys and texts.
fn words(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            all.insert(key.clone());
            words(value, all);
        }),
        Value::Array(values) => values.iter().for_each(|value| words(value, all)),
        Value::String(text) => all.extend([text.clone()]),
        _ => {}
    }
}

fn writes() -> bool {
    std::env::var_os("SAMPLES_WRITE").is_some()
}

#[test]
fn what_was_ever_said_is_understood_and_can_be_said() {
    if writes() {
        return println!("skipped: samples are being written");
    }
    let mut faults = Vec::new();
    for version in FIRST.max(PROTOCOL_MIN)..=PROTOCOL {
        let file = file(version);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| {
            panic!("{}: {error}; for a new version SAMPLES_WRITE=1 writes it", file.display())
        });
        for sample in read(&text) {
            let Some(fault) = fault(&sample) else { continue };
            faults.push(format!("version {version}: {fault}, of {}", write(&[sample])));
        }
    }
    assert!(faults.is_empty(), "an older neighbour's link breaks:\n{}", faults.concat());
}

#[test]
fn the_newest_samples_have_everything_that_is_said() {
    let file = file(PROTOCOL);
    let mut kept = match std::fs::read_to_string(&file) {
        Ok(text) => read(&text),
        Err(_) if writes() => today(),
        Err(error) => panic!("{}: {error}; SAMPLES_WRITE=1 writes it", file.display()),
    };
    for (direction, kinds) in all_kinds() {
        assert!(!kinds.is_empty());
        let mut known = BTreeSet::new();
        for sample in kept.iter().filter(|(kind, _)| *kind == direction) {
            if let Ok(Some((said, _))) = bodies(sample) {
                words(&said, &mut known);
            }
        }
        let new: Vec<&String> = kinds.iter().filter(|kind| !known.contains(*kind)).collect();
        assert!(
            new.is_empty(),
            "{new:?} is not in the samples {direction} of version {PROTOCOL}: who speaks that \
             refuses it, so it needs a new PROTOCOL and a sample in `today`"
        );
    }
    let new: Vec<Sample> = today().into_iter().filter(|sample| !kept.contains(sample)).collect();
    if writes() {
        kept.extend(new);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, write(&kept)).unwrap();
    } else {
        let new = write(&new);
        assert!(new.is_empty(), "SAMPLES_WRITE=1 adds what was not said before:\n{new}");
    }
}
