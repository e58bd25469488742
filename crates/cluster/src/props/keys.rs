//! The table of properties, and the check of one key and value against it.

use vocab::options::{
    DeviceOptions, DiskOptions, NetOptions, OptionError, Options, PeerDeviceOptions,
    ResourceOptions,
};

use super::range;
use crate::name::{NetIfName, PoolName};
use crate::place::space::parse_threshold;
use crate::refusal::{Code, Refusal};
use crate::shipping::{KEY_SUFFIX, MAX_CONCURRENT, PORTS};

/// What has properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the object of its name")]
pub enum Owner {
    Controller,
    Node,
    PoolDefinition,
    Pool,
    Group,
    VolumeGroup,
    Definition,
    VolumeDefinition,
    Resource,
    Volume,
    Snapshot,
    NodeConnection,
    ResourceConnection,
}

use Owner::*;

/// What a value may be.
#[derive(Clone, Copy)]
pub(super) enum Value {
    /// Any text.
    Text,
    /// `True` or `False`, `yes` or `no`, in any case.
    Bool,
    /// A whole number.
    Number(u64, u64),
    /// A fraction of this interval.
    Fraction(f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Two numbers with a dash.
    Range(u32, u32),
    /// A percentage, or a size.
    Threshold,
    /// The name of a storage pool.
    Pool,
    /// The name of a network interface.
    NetIf,
    /// A whole number from 0 on, or -1 for any number.
    Limit,
    /// Letters, digits, `.`, `_` and `-`, at most so many.
    Suffix(usize),
}

/// A key, or all keys of a namespace if it ends in `/`; what it may be, and where.
pub(super) struct Spec(pub &'static str, pub Value, pub &'static [Owner]);

const RATIO: Value = Value::Fraction(0.0, 1000.0);
const POOLS: &[Owner] = &[Controller, PoolDefinition, Pool];
/// Where what belongs to a resource definition may be set.
const DEFINITIONS: &[Owner] = &[Controller, Group, Definition];
/// Not on volumes: those are made by the time that they can have properties.
const DRIVER: &[Owner] =
    &[Controller, Node, Pool, Group, VolumeGroup, Definition, VolumeDefinition, Resource];
const FILE_SYSTEM: &[Owner] = &[Group, VolumeGroup, Definition, VolumeDefinition, Resource];
/// Where limits may be set. Not on volumes: agents, who would have to set them there, refuse that.
const LIMITS: &[Owner] = &[
    Controller,
    Node,
    PoolDefinition,
    Pool,
    Group,
    VolumeGroup,
    Definition,
    VolumeDefinition,
    Resource,
    Snapshot,
    NodeConnection,
    ResourceConnection,
];
const ALL: &[Owner] = &[
    Controller,
    Node,
    PoolDefinition,
    Pool,
    Group,
    VolumeGroup,
    Definition,
    VolumeDefinition,
    Resource,
    Volume,
    Snapshot,
    NodeConnection,
    ResourceConnection,
];

/// Every call of the REST API needs a token, from this host, too.
pub const TOKENS_REQUIRED: &str = "Auth/TokenAuthenticationEnabled";

pub(super) const TABLE: &[Spec] = &[
    Spec("Aux/", Value::Text, ALL),
    Spec(TOKENS_REQUIRED, Value::Bool, &[Controller]),
    // Numbers.
    Spec("MinorNrAutoRange", Value::Range(0, 1_048_575), &[Controller]),
    Spec("TcpPortAutoRange", Value::Range(1, 65_535), &[Controller, Node]),
    Spec("TcpPortsBlocked", Value::Text, &[Node]),
    Spec("PeerSlotsNewResource", Value::Number(1, 31), DEFINITIONS),
    // Placement.
    Spec("AutoplaceTarget", Value::Bool, &[Controller, Node, Pool]),
    Spec("Autoplacer/Weights/MaxFreeSpace", Value::Fraction(0.0, 1e12), &[Controller]),
    Spec("Autoplacer/Weights/MinReservedSpace", Value::Fraction(0.0, 1e12), &[Controller]),
    Spec("Autoplacer/Weights/MinRscCount", Value::Fraction(0.0, 1e12), &[Controller]),
    Spec("Autoplacer/Weights/MaxThroughput", Value::Fraction(0.0, 1e12), &[Controller]),
    Spec("Autoplacer/MaxThroughput", Value::Number(0, u64::MAX), POOLS),
    Spec(
        "Autoplacer/MinThinFreeSpace",
        Value::Threshold,
        &[Controller, Node, Pool, Group, Definition],
    ),
    Spec("MaxOversubscriptionRatio", RATIO, POOLS),
    Spec("MaxFreeCapacityOversubscriptionRatio", RATIO, POOLS),
    Spec("MaxTotalCapacityOversubscriptionRatio", RATIO, POOLS),
    Spec("AllowMixingStoragePoolDriver", Value::Bool, DEFINITIONS),
    Spec(
        "StorPoolName",
        Value::Pool,
        &[Node, Group, VolumeGroup, Definition, VolumeDefinition, Resource],
    ),
    // What happens by itself.
    Spec("DrbdOptions/auto-add-quorum-tiebreaker", Value::Bool, DEFINITIONS),
    Spec(super::AUTO_QUORUM, Value::Word(&["disabled", "io-error", "suspend-io"]), DEFINITIONS),
    Spec("DrbdOptions/auto-diskful", Value::Number(1, u32::MAX as u64), DEFINITIONS),
    Spec("DrbdOptions/auto-diskful-allow-cleanup", Value::Bool, DEFINITIONS),
    Spec("DrbdOptions/AutoEvictAfterTime", Value::Number(1, u32::MAX as u64), &[Controller, Node]),
    Spec("DrbdOptions/AutoEvictAllowEviction", Value::Bool, &[Controller, Node]),
    Spec("DrbdOptions/AutoEvictMaxDisconnectedNodes", Value::Number(0, 100), &[Controller]),
    Spec("DrbdOptions/AutoEvictMinReplicaCount", Value::Number(1, 32), DEFINITIONS),
    Spec("BalanceResourcesEnabled", Value::Bool, DEFINITIONS),
    Spec("DrbdOptions/SkipDisk", Value::Bool, &[Controller, Node, Group, Definition, Resource]),
    Spec("DrbdOptions/ForceInitialSync", Value::Bool, DEFINITIONS),
    Spec("DrbdOptions/ExactSize", Value::Bool, DEFINITIONS),
    // Handed to agents with the steps that they decide.
    Spec("PrefNic", Value::NetIf, &[Controller, Node, Pool, Group, Definition, Resource]),
    Spec("CurStltConnName", Value::NetIf, &[Node]),
    Spec("Paths/", Value::NetIf, &[NodeConnection, ResourceConnection]),
    Spec("StorDriver/", Value::Text, DRIVER),
    // Backups.
    Spec(MAX_CONCURRENT, Value::Limit, &[Controller, Node]),
    Spec(PORTS, Value::Range(1, 65_535), &[Controller]),
    Spec(KEY_SUFFIX, Value::Suffix(48), DEFINITIONS),
    Spec("FileSystem/Type", Value::Word(&["ext4", "xfs"]), FILE_SYSTEM),
    Spec("FileSystem/MkfsParams", Value::Text, FILE_SYSTEM),
    Spec("FileSystem/User", Value::Text, FILE_SYSTEM),
    Spec("FileSystem/Group", Value::Text, FILE_SYSTEM),
    Spec("sys/fs/blkio_throttle_read", Value::Number(0, u64::MAX), LIMITS),
    Spec("sys/fs/blkio_throttle_write", Value::Number(0, u64::MAX), LIMITS),
    Spec("sys/fs/blkio_throttle_read_iops", Value::Number(0, u64::MAX), LIMITS),
    Spec("sys/fs/blkio_throttle_write_iops", Value::Number(0, u64::MAX), LIMITS),
];

/// LINSTOR's keys that nothing here acts on, each with the reason. The first match counts.
const NOT_HERE: &[(&str, &str)] = &[
    ("Writecache/", "there is no layer WRITECACHE"),
    ("Cache/", "there is no layer CACHE"),
    ("BCache/", "there is no layer BCACHE"),
    ("NVMe/", "there is no layer NVME"),
    ("DrbdProxy/", "there is no DRBD proxy"),
    ("BackupShipping/AllowForceRestore", "backups are restored to new resource definitions only"),
    ("BackupShipping/L2L", "a node waits 300 seconds for what is shipped to it"),
    ("AutoSnapshot/", "snapshots are not made by schedule"),
    ("DrbdOptions/Handlers/", "handlers are not run"),
    ("StorPoolNameDrbdMeta", "metadata are always internal"),
];

/// What a fresh controller begins with.
pub const SHIPPED: &[(&str, &str)] = &[
    ("DrbdOptions/auto-add-quorum-tiebreaker", "True"),
    ("DrbdOptions/auto-diskful-allow-cleanup", "True"),
    ("DrbdOptions/AutoEvictAllowEviction", "True"),
    ("DrbdOptions/Resource/on-no-quorum", "io-error"),
];

/// A section of DRBD's options, and where its properties may be set.
pub struct Space {
    /// The key up to the option's name.
    pub prefix: &'static str,
    pub(super) owners: &'static [Owner],
    check: fn(&str, &str) -> Result<(), OptionError>,
}

fn set<T: Options>(name: &str, value: &str) -> Result<(), OptionError> {
    T::default().set(name, value)
}

const CONNECTIONS: &[Owner] = &[Controller, Group, Definition, NodeConnection, ResourceConnection];

/// The sections.
pub mod spaces {
    use super::*;

    /// Options of connections.
    pub const NET: Space =
        Space { prefix: "DrbdOptions/Net/", owners: CONNECTIONS, check: set::<NetOptions> };
    /// Options of volumes towards peers.
    pub const PEER_DEVICE: Space = Space {
        prefix: "DrbdOptions/PeerDevice/",
        owners: CONNECTIONS,
        check: set::<PeerDeviceOptions>,
    };
    /// Options of resources.
    pub const RESOURCE: Space = Space {
        prefix: "DrbdOptions/Resource/",
        owners: DEFINITIONS,
        check: set::<ResourceOptions>,
    };
    /// Options of disks, and of the devices above them.
    pub const DISK: Space = Space {
        prefix: "DrbdOptions/Disk/",
        owners: &[Controller, Group, VolumeGroup, Definition, VolumeDefinition, Volume],
        check: |name, value| match DeviceOptions::find(name) {
            Some(_) => set::<DeviceOptions>(name, value),
            None => set::<DiskOptions>(name, value),
        },
    };
    /// All of them.
    pub const ALL: [&Space; 4] = [&NET, &PEER_DEVICE, &RESOURCE, &DISK];
}

/// Checks one key and its value on an `owner`.
pub(super) fn check(owner: Owner, key: &str, value: &str) -> Result<(), Refusal> {
    let refuse = |cause: String| {
        Refusal::new(Code::InvalidProperty, format!("the property `{key}` can not be `{value}`"))
            .cause(cause)
            .correction("`Aux/…` is free for values of your own")
    };
    if key.len() > 256 || key.starts_with('/') || key.ends_with('/') || key.contains("//") {
        return Err(refuse("a key is a path of at most 256 bytes, without empty parts".into()));
    }
    if value.chars().any(|c| c == '\0') {
        return Err(refuse("values have no NUL".into()));
    }
    let misplaced = |owners: &[Owner]| {
        let names: Vec<String> = owners.iter().map(|owner| format!("{owner:?}")).collect();
        refuse(format!("it belongs to {}", names.join(", ")))
    };
    if let Some((_, reason)) = NOT_HERE.iter().find(|(prefix, _)| key.starts_with(prefix)) {
        return Err(refuse((*reason).to_owned()));
    }
    for space in spaces::ALL {
        let Some(option) = key.strip_prefix(space.prefix) else { continue };
        if !space.owners.contains(&owner) {
            return Err(misplaced(space.owners));
        }
        return (space.check)(option, value).map_err(|error| refuse(error.to_string()));
    }
    let matches = |spec: &&Spec| match spec.0.ends_with('/') {
        true => key.starts_with(spec.0),
        false => key == spec.0,
    };
    let Some(Spec(_, kind, owners)) = TABLE.iter().find(matches) else {
        return Err(refuse("there is no such property here".into()));
    };
    if !owners.contains(&owner) {
        return Err(misplaced(owners));
    }
    kind.check(value).map_err(refuse)
}

impl Value {
    fn check(self, value: &str) -> Result<(), String> {
        let number = || value.parse::<f64>().ok().filter(|n| n.is_finite());
        let (valid, rule) = match self {
            Value::Text => (true, String::new()),
            Value::Bool => {
                let words = ["true", "false", "yes", "no"];
                let valid = words.iter().any(|word| value.eq_ignore_ascii_case(word));
                (valid, "it is True or False".to_owned())
            }
            Value::Number(min, max) => {
                let valid = value.parse::<u64>().is_ok_and(|n| (min..=max).contains(&n));
                (valid, format!("it is a whole number from {min} to {max}"))
            }
            Value::Fraction(min, max) => {
                let valid = number().is_some_and(|n| (min..=max).contains(&n));
                (valid, format!("it is a number from {min} to {max}"))
            }
            Value::Word(words) => (words.contains(&value), format!("it is one of {words:?}")),
            Value::Range(min, max) => {
                let valid = range(value).is_ok_and(|(low, high)| min <= low && high <= max);
                (valid, format!("it is a range within {min}-{max}"))
            }
            Value::Threshold => {
                let rule = "it is a percentage like 5%, or a size like 50GB; plain numbers are KiB";
                (parse_threshold(value).is_some(), rule.to_owned())
            }
            Value::Pool => {
                return PoolName::new(value).map(drop).map_err(|refusal| refusal.cause.into());
            }
            Value::Limit => {
                let valid = value == "-1" || value.parse::<u32>().is_ok();
                (valid, "it is a whole number, or -1 for any number".to_owned())
            }
            Value::Suffix(most) => {
                let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                let valid = value.len() <= most && value.chars().all(good);
                (valid, format!("it has at most {most} letters, digits, `.`, `_` and `-`"))
            }
            Value::NetIf => {
                return NetIfName::new(value).map(drop).map_err(|refusal| refusal.cause.into());
            }
        };
        if valid { Ok(()) } else { Err(rule) }
    }
}
