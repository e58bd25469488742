//! The commands as data: the parser, the help and `xml-help` are made from it (drbdsetup contract
//! §2). The groups of options are the tables of `vocab::options`.

use vocab::options::{
    DeviceOptions, DiskOptions, Kind, NetOptions, OptionError, OptionSpec, Options,
    PeerDeviceOptions, ResourceOptions, Unit,
};

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    NewResource,
    ResourceOptions,
    NewMinor,
    DelMinor,
    NewPeer,
    NetOptions,
    DelPeer,
    NewPath,
    DelPath,
    PeerDeviceOptions,
    Connect,
    Disconnect,
    Attach,
    DiskOptions,
    Detach,
    Resize,
    Primary,
    Secondary,
    Down,
    DelResource,
    RenameResource,
    ForgetPeer,
    Invalidate,
    InvalidateRemote,
    PauseSync,
    ResumeSync,
    Verify,
    NewCurrentUuid,
    SuspendIo,
    ResumeIo,
    Outdate,
    CheckResize,
    Role,
    PeerRole,
    Cstate,
    Dstate,
    GetGi,
    ShowGi,
    Udev,
    Status,
    Show,
    Events2,
    Wait { sync: bool },
    Help,
    XmlHelp,
}

/// A positional argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Argument {
    Resource,
    /// A resource or `all`, which is meant if it is left out.
    ResourceOrAll,
    Minor,
    /// A minor, or a resource and a minor, which is how drbdadm gives it.
    MaybeResourceMinor,
    Volume,
    NodeId,
    PeerNodeId,
    LowerDevice,
    MetaDevice,
    MetaIndex,
    LocalAddress,
    RemoteAddress,
    NewName,
    /// The name of a command; may be left out.
    Command,
}

impl Argument {
    /// Its word in usage texts and in `xml-help`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Argument::Resource | Argument::ResourceOrAll => "resource",
            Argument::Minor | Argument::MaybeResourceMinor => "minor",
            Argument::Volume => "volume",
            Argument::NodeId => "node_id",
            Argument::PeerNodeId => "peer_node_id",
            Argument::LowerDevice => "lower_dev",
            Argument::MetaDevice => "meta_data_dev",
            Argument::MetaIndex => "meta_data_index",
            Argument::LocalAddress => "local-addr",
            Argument::RemoteAddress => "remote-addr",
            Argument::NewName => "new_name",
            Argument::Command => "command",
        }
    }
}

/// The options that configure an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    Resource,
    Device,
    /// What can be set when a connection is created.
    NewNet,
    /// What can be changed later.
    Net,
    /// What can be set when a disk is attached.
    NewDisk,
    /// What can be changed later.
    Disk,
    PeerDevice,
}

impl Group {
    /// Its options, in the order of the tables.
    pub(super) fn options(self) -> impl Iterator<Item = &'static OptionSpec> {
        let table = match self {
            Group::Resource => ResourceOptions::TABLE,
            Group::Device => DeviceOptions::TABLE,
            Group::NewNet | Group::Net => NetOptions::TABLE,
            Group::NewDisk | Group::Disk => DiskOptions::TABLE,
            Group::PeerDevice => PeerDeviceOptions::TABLE,
        };
        let fixed: &[&str] = match self {
            Group::Net => &["transport", "load-balance-paths"],
            Group::Disk => &["size"],
            _ => &[],
        };
        table.iter().filter(|spec| !fixed.contains(&spec.name))
    }

    /// Whether the value can be set.
    pub(super) fn check(self, name: &str, value: &str) -> Result<(), OptionError> {
        match self {
            Group::Resource => ResourceOptions::default().set(name, value),
            Group::Device => DeviceOptions::default().set(name, value),
            Group::NewNet | Group::Net => NetOptions::default().set(name, value),
            Group::NewDisk | Group::Disk => DiskOptions::default().set(name, value),
            Group::PeerDevice => PeerDeviceOptions::default().set(name, value),
        }
    }
}

/// An option that configures nothing, of one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) name: &'static str,
    pub(super) short: Option<char>,
    pub(super) kind: Kind,
    /// Value of the bare option; `None` if it needs one.
    pub(super) bare: Option<&'static str>,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) verb: Verb,
    pub(super) arguments: &'static [Argument],
    pub(super) group: Option<Group>,
    pub(super) own: &'static [Own],
    pub(super) summary: &'static str,
}

impl Command {
    /// The command of that name.
    pub(super) fn find(name: &str) -> Option<&'static Command> {
        COMMANDS.iter().find(|command| command.name == name)
    }

    /// It changes options of something that exists.
    pub(super) fn resets(&self) -> bool {
        use Verb::{DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
        matches!(self.verb, ResourceOptions | NetOptions | DiskOptions | PeerDeviceOptions)
    }
}

const fn flag(name: &'static str) -> Own {
    Own { name, short: None, kind: Kind::Bool, bare: Some("yes") }
}

const fn short(letter: char, own: Own) -> Own {
    Own { short: Some(letter), ..own }
}

const fn number(name: &'static str, min: u64, max: u64, unit: Unit) -> Own {
    Own { name, short: None, kind: Kind::Number { min, max, unit }, bare: None }
}

const FORCE: Own = flag("force");
const RESET_BITMAP: Own = flag("reset-bitmap");
const COLOR: Own = Own {
    name: "color",
    short: Some('c'),
    kind: Kind::Choice(&["auto", "always", "never"]),
    bare: Some("always"),
};
/// The name of a connection.
pub(super) const NAME: Own =
    Own { name: "_name", short: None, kind: Kind::Text { max_len: 127 }, bare: None };
/// Where the engine is.
pub(super) const SOCKET: Own =
    Own { name: "socket", short: None, kind: Kind::Text { max_len: 4096 }, bare: None };
/// Begin with the defaults, not with what is in force.
pub(super) const SET_DEFAULTS: Own = flag("set-defaults");

const SECTORS_MAX: u64 = 1 << 41;
const FROM: Own = Own {
    name: "sync-from-peer-node-id",
    short: None,
    kind: Kind::NumberOrWord { min: 0, max: 32, unit: Unit::One, words: &["-1"] },
    bare: None,
};
const WAIT: &[Own] = &[
    short('t', number("wfc-timeout", 0, 300_000, Unit::Seconds)),
    short('d', number("degr-wfc-timeout", 0, 300_000, Unit::Seconds)),
    short('o', number("outdated-wfc-timeout", 0, 300_000, Unit::Seconds)),
    short('w', flag("wait-after-sb")),
];
const RESIZE: &[Own] = &[
    number("size", 0, SECTORS_MAX, Unit::Sectors),
    flag("assume-peer-has-space"),
    flag("assume-clean"),
    number("al-stripes", 1, 1024, Unit::One),
    number("al-stripe-size-kB", 4, 16 << 20, Unit::One),
];
const EVENTS: &[Own] = &[
    short('T', flag("timestamps")),
    short('s', flag("statistics")),
    short('n', flag("now")),
    short('p', flag("poll")),
    short('f', flag("full")),
    short('i', flag("diff")),
    COLOR,
    // The kernel's buffer has no counterpart: the engine drops no news, it merges them.
    number("rcvbuf", 0, u64::MAX, Unit::Bytes),
];
const STATUS: &[Own] =
    &[short('v', flag("verbose")), short('s', flag("statistics")), COLOR, short('j', flag("json"))];
const SHOW: &[Own] = &[short('D', flag("show-defaults")), short('j', flag("json"))];

macro_rules! commands {
    ($($name:literal $verb:expr, [$($argument:ident)*], $group:expr, $own:expr, $summary:literal;)+) => {
        &[$(Command {
            name: $name,
            verb: $verb,
            arguments: &[$(Argument::$argument),*],
            group: $group,
            own: $own,
            summary: $summary,
        }),+]
    };
}

/// Every command.
pub(super) const COMMANDS: &[Command] = commands! {
    "primary" Verb::Primary, [Resource], None, &[FORCE], "Become Primary.";
    "secondary" Verb::Secondary, [Resource], None, &[FORCE], "Become Secondary.";
    "attach" Verb::Attach, [Minor LowerDevice MetaDevice MetaIndex], Some(Group::NewDisk), &[], "Attach a disk to a volume.";
    "disk-options" Verb::DiskOptions, [Minor], Some(Group::Disk), &[], "Change options of an attached disk.";
    "detach" Verb::Detach, [Minor], None, &[FORCE, flag("diskless")], "Detach the disk of a volume.";
    "connect" Verb::Connect, [Resource PeerNodeId], None, &[flag("tentative"), flag("discard-my-data")], "Start connecting to a peer.";
    "new-peer" Verb::NewPeer, [Resource PeerNodeId], Some(Group::NewNet), &[NAME], "Create a connection.";
    "del-peer" Verb::DelPeer, [Resource PeerNodeId], None, &[FORCE], "Remove a connection.";
    "new-path" Verb::NewPath, [Resource PeerNodeId LocalAddress RemoteAddress], None, &[], "Add a path to a connection.";
    "del-path" Verb::DelPath, [Resource PeerNodeId LocalAddress RemoteAddress], None, &[], "Remove a path from a connection.";
    "net-options" Verb::NetOptions, [Resource PeerNodeId], Some(Group::Net), &[NAME], "Change options of a connection.";
    "disconnect" Verb::Disconnect, [Resource PeerNodeId], None, &[FORCE], "End a connection.";
    "resize" Verb::Resize, [Minor], None, RESIZE, "Change the size of a volume.";
    "resource-options" Verb::ResourceOptions, [Resource], Some(Group::Resource), &[], "Change options of a resource.";
    "peer-device-options" Verb::PeerDeviceOptions, [Resource PeerNodeId Volume], Some(Group::PeerDevice), &[], "Change options of a volume towards a peer.";
    "new-current-uuid" Verb::NewCurrentUuid, [Minor], None, &[flag("clear-bitmap"), flag("force-resync")], "Begin a new data generation.";
    "invalidate" Verb::Invalidate, [Minor], None, &[FROM, RESET_BITMAP], "Resync the local disk from a peer.";
    "invalidate-remote" Verb::InvalidateRemote, [Resource PeerNodeId Volume], None, &[RESET_BITMAP], "Resync a peer's disk from the local one.";
    "pause-sync" Verb::PauseSync, [Resource PeerNodeId Volume], None, &[], "Pause a resync.";
    "resume-sync" Verb::ResumeSync, [Resource PeerNodeId Volume], None, &[], "Let a paused resync go on.";
    "suspend-io" Verb::SuspendIo, [Minor], None, &[flag("bdev-freeze")], "Suspend I/O of a resource.";
    "resume-io" Verb::ResumeIo, [Minor], None, &[], "Resume I/O of a resource.";
    "outdate" Verb::Outdate, [MaybeResourceMinor], None, &[], "Mark the local disk Outdated.";
    "verify" Verb::Verify, [Resource PeerNodeId Volume], None, &[number("start", 0, SECTORS_MAX, Unit::Sectors), number("stop", 0, SECTORS_MAX, Unit::Sectors)], "Compare a volume with a peer's.";
    "down" Verb::Down, [ResourceOrAll], None, &[], "Take resources down.";
    "role" Verb::Role, [Resource], None, &[], "Show the role of this node.";
    "peer-role" Verb::PeerRole, [Resource PeerNodeId], None, &[], "Show the role of a peer.";
    "cstate" Verb::Cstate, [Resource PeerNodeId], None, &[], "Show the state of a connection.";
    "dstate" Verb::Dstate, [Minor], None, &[], "Show the states of a volume's disks.";
    "show-gi" Verb::ShowGi, [Resource PeerNodeId Volume], None, &[], "Show generation identifiers and what they mean.";
    "get-gi" Verb::GetGi, [Resource PeerNodeId Volume], None, &[], "Show generation identifiers.";
    "udev" Verb::Udev, [Minor], None, &[], "Show names of a device.";
    "show" Verb::Show, [ResourceOrAll], None, SHOW, "Show the configuration in force.";
    "status" Verb::Status, [ResourceOrAll], None, STATUS, "Show states.";
    "check-resize" Verb::CheckResize, [Minor], None, &[], "Remember where the metadata of a disk is.";
    "events2" Verb::Events2, [ResourceOrAll], None, EVENTS, "Show states, then every change.";
    "wait-connect-volume" Verb::Wait { sync: false }, [Resource PeerNodeId Volume], None, WAIT, "Wait until a volume replicates with a peer.";
    "wait-connect-connection" Verb::Wait { sync: false }, [Resource PeerNodeId], None, WAIT, "Wait until all volumes replicate with a peer.";
    "wait-connect-resource" Verb::Wait { sync: false }, [Resource], None, WAIT, "Wait until all volumes replicate with all peers.";
    "wait-sync-volume" Verb::Wait { sync: true }, [Resource PeerNodeId Volume], None, WAIT, "Wait until no resync of a volume with a peer runs.";
    "wait-sync-connection" Verb::Wait { sync: true }, [Resource PeerNodeId], None, WAIT, "Wait until no resync with a peer runs.";
    "wait-sync-resource" Verb::Wait { sync: true }, [Resource], None, WAIT, "Wait until no resync runs.";
    "new-resource" Verb::NewResource, [Resource NodeId], Some(Group::Resource), &[], "Create a resource.";
    "new-minor" Verb::NewMinor, [Resource Minor Volume], Some(Group::Device), &[], "Create a volume.";
    "del-minor" Verb::DelMinor, [Minor], None, &[], "Remove a volume.";
    "del-resource" Verb::DelResource, [Resource], None, &[], "Remove a resource.";
    "rename-resource" Verb::RenameResource, [Resource NewName], None, &[], "Rename a resource.";
    "forget-peer" Verb::ForgetPeer, [Resource PeerNodeId], None, &[], "Give the bitmap slots of a lost node back.";
    "help" Verb::Help, [Command], None, &[], "Show how a command is used.";
    "xml-help" Verb::XmlHelp, [Command], None, &[], "Describe a command in XML.";
};
