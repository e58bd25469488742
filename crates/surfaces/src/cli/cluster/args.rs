//! The command line of the control plane as data. `values`: what its words stand for.

mod schedules;
mod shipping;
mod values;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::super::args::DryRun;
use super::physical::DiskCommand;
use values::{key_value, owner, url, volume_name};

pub use schedules::{Kept, Of, OnFailure, ScheduleCommand, SwitchCommand};
pub use shipping::{BackupCommand, ClusterOptions, RemoteCommand, RestoreTo};
pub use values::{NewNode, Owner, ProviderName, VolumeName, new_node, size};

/// Where a controller is unless something else is said.
pub const DEFAULT_CONTROLLER: &str = "http://127.0.0.1:3370";

/// Who is asked, and as whom.
#[derive(Args, Clone, Debug)]
pub struct Controllers {
    /// Controllers, asked one after the other until one answers: URL or HOST[:PORT]
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',', value_parser = url,
          env = "ASHLAR_CONTROLLERS", default_value = DEFAULT_CONTROLLER)]
    pub controllers: Vec<String>,
    /// File with the token that says who asks [default: the environment's ASHLAR_TOKEN, or none]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the certificate of the authority that vouches for the controllers; https needs it
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// How much of a command is done before it ends.
#[derive(Args, Clone, Copy, Debug)]
pub struct How {
    /// End once the controller's steps are done, without waiting for data to be copied
    #[arg(long)]
    pub no_wait: bool,
    /// Print the steps, what would be copied, and the copies at each step, and do nothing
    #[arg(long, short = 'd', conflicts_with = "no_wait")]
    pub dry_run: bool,
}

/// `--no-wait`, for commands of several calls: what the later ones do can not be foretold.
#[derive(Args, Clone, Copy, Debug)]
pub struct NoWait {
    /// End once the controller's steps are done, without waiting for data to be copied
    #[arg(long)]
    pub no_wait: bool,
}

/// Where replicas may go.
#[derive(Args, Clone, Debug, Default)]
pub struct Placement {
    /// Replicas
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=31))]
    pub place: Option<u32>,
    /// Storage pools to choose from
    #[arg(long, value_name = "POOL", value_delimiter = ',')]
    pub pool: Vec<String>,
    /// Nodes to choose from
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub among: Vec<String>,
    /// Kinds of storage to choose from
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub provider: Vec<ProviderName>,
    /// Only on nodes with the same value of this property, or with this value: KEY or KEY=VALUE
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub same: Vec<String>,
    /// Only on nodes with different values of this property
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub different: Vec<String>,
    /// Not on nodes with a replica of these volumes
    #[arg(long, value_name = "VOLUME", value_delimiter = ',')]
    pub apart_from: Vec<String>,
    /// All other nodes use the volume without a disk
    #[arg(long)]
    pub diskless_on_remaining: bool,
}

impl Placement {
    /// What was given, as the API has it.
    pub fn filter(&self) -> Value {
        let mut filter = Map::new();
        let mut put = |key: &str, value: Value| drop(filter.insert(key.to_owned(), value));
        if let Some(count) = self.place {
            put("place_count", json!(count));
        }
        for (key, list) in [
            ("storage_pool_list", &self.pool),
            ("node_name_list", &self.among),
            ("replicas_on_same", &self.same),
            ("replicas_on_different", &self.different),
            ("not_place_with_rsc", &self.apart_from),
        ] {
            if !list.is_empty() {
                put(key, json!(list));
            }
        }
        if !self.provider.is_empty() {
            let words: Vec<&str> = self.provider.iter().map(|kind| kind.word()).collect();
            put("provider_list", json!(words));
        }
        if self.diskless_on_remaining {
            put("diskless_on_remaining", json!(true));
        }
        Value::Object(filter)
    }
}

/// The commands about objects of the control plane, but for those about nodes. The comments are the
/// help texts.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum Command {
    /// Storage pools of a control plane: where its nodes keep replicas
    #[command(visible_alias = "pool")]
    StoragePool {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Disks of a control plane's nodes that nobody uses, and storage pools that are made of them
    PhysicalStorage {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Resource groups of a control plane: what volumes are made like, and where they may be
    #[command(visible_alias = "group")]
    ResourceGroup {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: GroupCommand,
    },
    /// Volumes of a control plane, and their replicas
    Volume {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Snapshots of a control plane's volumes
    Snapshot {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Where backups of a control plane's volumes are kept: buckets in stores that speak S3
    Remote {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: RemoteCommand,
    },
    /// Backups of a control plane's volumes in remotes
    Backup {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: BackupCommand,
    },
    /// Times at which backups of a control plane's volumes are made: `backup schedule` says of which
    Schedule {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: ScheduleCommand,
    },
    /// The master passphrase of a control plane: with it, the passphrases of encrypted volumes are kept
    Encryption {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: EncryptionCommand,
    },
    /// Properties of a control plane's objects
    Property {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: PropertyCommand,
    },
    /// What went wrong on the nodes of a control plane
    ErrorReport {
        #[command(flatten)]
        at: Controllers,
        #[command(subcommand)]
        command: ReportCommand,
    },
}

/// Commands about nodes; they are created by [`create_nodes`](super::create_nodes).
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum NodeCommand {
    /// List nodes
    List,
    /// Show a node: addresses, pools, replicas
    Info {
        /// The node
        #[arg(value_name = "NODE")]
        name: String,
    },
    /// Empty a node: its replicas are made elsewhere, then removed from it
    ///
    /// What is in use there stays until it is closed. The node takes no new replicas until it is
    /// restored.
    #[command(visible_alias = "evacuate")]
    Drain {
        /// The node
        #[arg(value_name = "NODE")]
        name: String,
        /// Nodes to go to
        #[arg(long, value_name = "NODE", value_delimiter = ',', conflicts_with = "not_to")]
        to: Vec<String>,
        /// Nodes not to go to
        #[arg(long, value_name = "NODE", value_delimiter = ',')]
        not_to: Vec<String>,
        #[command(flatten)]
        how: How,
    },
    /// Take a node back that was drained or evicted
    Restore {
        /// The node
        #[arg(value_name = "NODE")]
        name: String,
        /// Remove the replicas that are still there
        #[arg(long)]
        delete_replicas: bool,
        /// Remove the snapshots that are still there
        #[arg(long)]
        delete_snapshots: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Give a node up that is away: its replicas are made elsewhere
    Evict {
        /// The node
        #[arg(value_name = "NODE")]
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Forget a node that does not come back, with everything on it
    Lost {
        /// The node
        #[arg(value_name = "NODE")]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Delete a node and everything on it; refused where that is in use or the only copy
    Delete {
        /// The node
        #[arg(value_name = "NODE")]
        name: String,
        #[command(flatten)]
        how: How,
    },
}

/// Commands about storage pools.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum PoolCommand {
    /// List storage pools
    List {
        /// Only of these nodes
        #[arg(long, value_name = "NODE", value_delimiter = ',')]
        on: Vec<String>,
    },
    /// Make storage a pool, on all nodes unless some are named
    Create {
        /// Its name, the same on every node
        #[arg(value_name = "POOL")]
        name: String,
        /// The kind of storage
        provider: ProviderName,
        /// Where it is on the node: a folder, GROUP of lvm, GROUP/POOL of lvm-thin, a pool of zfs
        source: String,
        /// Only on these nodes
        #[arg(long, value_name = "NODE", value_delimiter = ',')]
        on: Vec<String>,
    },
    /// Forget a storage pool; refused while volumes are in it
    Delete {
        /// The pool
        #[arg(value_name = "POOL")]
        name: String,
        /// On these nodes
        #[arg(long, value_name = "NODE", value_delimiter = ',', required = true)]
        on: Vec<String>,
    },
}

/// Commands about resource groups.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum GroupCommand {
    /// List resource groups
    List,
    /// Create a resource group
    Create {
        /// Its name
        #[arg(value_name = "GROUP")]
        name: String,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Encrypt the disks of its volumes (LUKS2); the controller needs its master passphrase for it
        #[arg(long)]
        encrypted: bool,
        #[command(flatten)]
        placement: Placement,
    },
    /// Change a resource group; its volumes follow with `adjust`
    Modify {
        /// The group
        #[arg(value_name = "GROUP")]
        name: String,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        #[command(flatten)]
        placement: Placement,
    },
    /// Delete a resource group; refused while it has volumes
    Delete {
        /// The group
        #[arg(value_name = "GROUP")]
        name: String,
    },
    /// Make a volume: place, create and start its replicas
    Spawn {
        /// The group
        #[arg(value_name = "GROUP")]
        name: String,
        /// Name of the volume
        volume: String,
        /// Size, such as 10G; several for as many volumes that are written and replicated together
        #[arg(required = true, value_name = "SIZE", value_parser = size)]
        sizes: Vec<u64>,
        #[command(flatten)]
        placement: Placement,
        /// Only say what is wanted: nothing is placed
        #[arg(long, conflicts_with_all = ["place", "pool", "among", "provider", "same", "different",
                                          "apart_from", "diskless_on_remaining"])]
        definition_only: bool,
        /// Encrypt the disks (LUKS2); the controller needs its master passphrase for it
        #[arg(long)]
        encrypted: bool,
        #[command(flatten)]
        how: How,
    },
    /// Make the replicas that volumes of a group lack
    Adjust {
        /// The group
        #[arg(value_name = "GROUP")]
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Show how large the next volume of a group could be, and where it would go
    Capacity {
        /// The group
        #[arg(value_name = "GROUP")]
        name: String,
        #[command(flatten)]
        placement: Placement,
    },
}

/// Commands about volumes.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum VolumeCommand {
    /// List volumes
    List {
        /// Only these
        #[arg(value_name = "VOLUME")]
        names: Vec<String>,
    },
    /// Show a volume's replicas, and who uses them
    Info {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
    },
    /// Explain what a volume waits for, what is not as it should be, and what to do
    #[command(visible_alias = "explain")]
    Why {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
    },
    /// Make a volume: place, create and start its replicas
    Create {
        /// Its name
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Size, such as 10G; several for as many volumes that are written and replicated together
        #[arg(required = true, value_name = "SIZE", value_parser = size)]
        sizes: Vec<u64>,
        /// The resource group that it belongs to
        #[arg(long, value_name = "GROUP", default_value = "DfltRscGrp")]
        group: String,
        #[command(flatten)]
        placement: Placement,
        /// Only say what is wanted: nothing is placed
        #[arg(long, conflicts_with_all = ["place", "pool", "among", "provider", "same", "different",
                                          "apart_from", "diskless_on_remaining"])]
        definition_only: bool,
        /// Encrypt the disks (LUKS2); the controller needs its master passphrase for it
        #[arg(long)]
        encrypted: bool,
        #[command(flatten)]
        how: How,
    },
    /// Make a volume larger
    Resize {
        /// VOLUME or VOLUME/NUMBER
        #[arg(value_parser = volume_name)]
        volume: VolumeName,
        /// The new size, such as 20G
        #[arg(value_parser = size)]
        size: u64,
        #[command(flatten)]
        how: How,
    },
    /// Delete volumes with all their replicas and data
    Delete {
        /// The volumes
        #[arg(required = true, value_name = "VOLUME")]
        names: Vec<String>,
        #[command(flatten)]
        how: How,
    },
    /// Make replicas until there are as many as wanted, or on named nodes
    Place {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Make a replica on each of these nodes
        #[arg(long, value_name = "NODE", value_delimiter = ',',
              conflicts_with_all = ["place", "among", "provider", "same", "different",
                                    "apart_from", "diskless_on_remaining", "more"])]
        on: Vec<String>,
        /// Make so many more than there are
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=31),
              conflicts_with = "place")]
        more: Option<u32>,
        /// Use the volume on these nodes without a disk
        #[arg(long, requires = "on", conflicts_with = "pool")]
        diskless: bool,
        #[command(flatten)]
        placement: Placement,
        #[command(flatten)]
        how: How,
    },
    /// Remove the replica of a node
    Unplace {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The node
        #[arg(value_name = "NODE")]
        from: String,
        #[command(flatten)]
        how: How,
    },
    /// Give a replica a disk, or take it away: the volume is then used over the network
    ToggleDisk {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The node
        #[arg(value_name = "NODE")]
        on: String,
        /// Take the disk away
        #[arg(long, conflicts_with = "pool")]
        diskless: bool,
        /// The pool of the new disk [default: the best]
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
        #[command(flatten)]
        how: How,
    },
    /// Move a replica from one node to another; the old one goes when the new one is UpToDate
    Migrate {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The node that it leaves
        #[arg(value_name = "FROM")]
        from: String,
        /// The node that it goes to
        #[arg(value_name = "TO")]
        to: String,
        /// The pool there [default: the best]
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
        #[command(flatten)]
        how: How,
    },
    /// Make sure that a node can use the volume, with a disk or without
    MakeAvailable {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The node
        #[arg(value_name = "NODE")]
        on: String,
        /// With a disk
        #[arg(long)]
        diskful: bool,
        #[command(flatten)]
        how: How,
    },
    /// Take a volume down on one node; its disk stays, and gets no writes until it is activated
    Deactivate {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The node
        #[arg(value_name = "NODE")]
        on: String,
        #[command(flatten)]
        how: How,
    },
    /// Bring a volume up again on a node; it gets what it has missed
    Activate {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The node
        #[arg(value_name = "NODE")]
        on: String,
        #[command(flatten)]
        how: How,
    },
    /// Have another passphrase for the disks of an encrypted volume, in use or not
    ///
    /// On a terminal it is asked for; otherwise it is the first line of the standard input. A node that is
    /// away has the old one until it is back; snapshots keep it.
    Passphrase {
        /// VOLUME or VOLUME/NUMBER
        #[arg(value_parser = volume_name)]
        volume: VolumeName,
        #[command(flatten)]
        how: How,
    },
    /// Make the replicas that volumes lack by their groups
    Adjust {
        /// The volumes
        #[arg(required = true, value_name = "VOLUME")]
        names: Vec<String>,
        #[command(flatten)]
        how: How,
    },
}

/// Commands about snapshots.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum SnapshotCommand {
    /// List snapshots
    List {
        /// Only of these volumes
        #[arg(value_name = "VOLUME")]
        names: Vec<String>,
    },
    /// Take a snapshot of a volume, in use or not
    Create {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Name of the snapshot
        snapshot: String,
        /// Other volumes to take at the same moment
        #[arg(long, value_name = "VOLUME", value_delimiter = ',')]
        with: Vec<String>,
    },
    /// Make a new volume of a snapshot
    Restore {
        /// The volume that the snapshot is of
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The snapshot
        snapshot: String,
        /// Name of the new volume
        #[arg(value_name = "NEW")]
        new: String,
        /// The resource group of the new volume [default: that of the old one]
        #[arg(long, value_name = "GROUP")]
        group: Option<String>,
        #[command(flatten)]
        wait: NoWait,
    },
    /// Make a volume what it was when a snapshot was taken; what was written since is lost
    Rollback {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The snapshot
        snapshot: String,
        #[command(flatten)]
        how: How,
    },
    /// Delete a snapshot
    Delete {
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// The snapshot
        snapshot: String,
        #[command(flatten)]
        how: How,
    },
}

/// Commands about the master passphrase. On a terminal it is asked for; otherwise it is a line of the
/// standard input.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum EncryptionCommand {
    /// Show whether there is a master passphrase, and whether the controller has it
    Status,
    /// Choose the master passphrase; keep it, nobody can tell it to you again
    ///
    /// On a terminal it is asked for; otherwise it is the first line of the standard input.
    Create,
    /// Give the controller the master passphrase, after each of its starts
    ///
    /// Without it nothing new is encrypted, and nodes that start do not get the keys of their disks. On a
    /// terminal it is asked for; otherwise it is the first line of the standard input.
    #[command(visible_alias = "enter")]
    Unlock,
    /// Have another master passphrase; volumes stay as they are
    ///
    /// On a terminal both are asked for; otherwise they are two lines of the standard input: the present
    /// one, then the new one.
    #[command(visible_alias = "modify")]
    Change,
}

/// Commands about properties.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum PropertyCommand {
    /// List the properties that are set on an object
    List {
        /// controller, node/NODE, pool/NODE/POOL, group/GROUP, volume/VOLUME[/NUMBER],
        /// replica/VOLUME/NODE[/NUMBER] or snapshot/VOLUME/SNAPSHOT
        #[arg(value_parser = owner)]
        object: Owner,
    },
    /// Set properties of an object; refused where nothing acts on one
    Set {
        /// As for `list`
        #[arg(value_parser = owner)]
        object: Owner,
        /// Such as DrbdOptions/Net/ping-int=5
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_value)]
        properties: Vec<(String, String)>,
    },
    /// Take properties of an object away, so that those above it hold again
    Unset {
        /// As for `list`
        #[arg(value_parser = owner)]
        object: Owner,
        /// Such as DrbdOptions/Net/ping-int
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

/// Commands about error reports.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum ReportCommand {
    /// List error reports, the newest first
    List {
        /// Only of these nodes
        #[arg(long, value_name = "NODE", value_delimiter = ',')]
        on: Vec<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 20,
              value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Show an error report: what, why, and what to do
    Show {
        /// Its id
        id: String,
    },
}

impl Command {
    /// The common options that it acts on, as [`cli::Command::uses`](super::super::Command::uses).
    pub fn uses(&self) -> Vec<&'static str> {
        let lists = match self {
            Command::StoragePool { command, .. } => matches!(command, PoolCommand::List { .. }),
            Command::PhysicalStorage { command, .. } => matches!(command, DiskCommand::List { .. }),
            Command::ResourceGroup { command, .. } => {
                matches!(command, GroupCommand::List | GroupCommand::Capacity { .. })
            }
            Command::Volume { command, .. } => matches!(
                command,
                VolumeCommand::List { .. } | VolumeCommand::Info { .. } | VolumeCommand::Why { .. }
            ),
            Command::Snapshot { command, .. } => matches!(command, SnapshotCommand::List { .. }),
            Command::Remote { command, .. } => matches!(command, RemoteCommand::List),
            Command::Backup { command, .. } => command.lists(),
            Command::Schedule { command, .. } => matches!(command, ScheduleCommand::List),
            Command::Encryption { command, .. } => matches!(command, EncryptionCommand::Status),
            Command::Property { command, .. } => matches!(command, PropertyCommand::List { .. }),
            Command::ErrorReport { command, .. } => matches!(command, ReportCommand::List { .. }),
        };
        used(lists || self.is_dry_run())
    }

    /// True if the command only says what it would do.
    pub(super) fn is_dry_run(&self) -> bool {
        match self {
            Command::ResourceGroup { command, .. } => command.is_dry_run(),
            Command::Volume { command, .. } => command.is_dry_run(),
            Command::Snapshot { command, .. } => command.is_dry_run(),
            Command::StoragePool { .. }
            | Command::PhysicalStorage { .. }
            | Command::Remote { .. }
            | Command::Backup { .. }
            | Command::Schedule { .. }
            | Command::Encryption { .. }
            | Command::Property { .. }
            | Command::ErrorReport { .. } => false,
        }
    }
}

impl GroupCommand {
    fn is_dry_run(&self) -> bool {
        match self {
            GroupCommand::Spawn { how, .. } | GroupCommand::Adjust { how, .. } => how.dry_run,
            _ => false,
        }
    }
}

impl VolumeCommand {
    fn is_dry_run(&self) -> bool {
        match self {
            VolumeCommand::Create { how, .. }
            | VolumeCommand::Resize { how, .. }
            | VolumeCommand::Delete { how, .. }
            | VolumeCommand::Place { how, .. }
            | VolumeCommand::Unplace { how, .. }
            | VolumeCommand::ToggleDisk { how, .. }
            | VolumeCommand::Migrate { how, .. }
            | VolumeCommand::MakeAvailable { how, .. }
            | VolumeCommand::Deactivate { how, .. }
            | VolumeCommand::Activate { how, .. }
            | VolumeCommand::Passphrase { how, .. }
            | VolumeCommand::Adjust { how, .. } => how.dry_run,
            VolumeCommand::List { .. } | VolumeCommand::Info { .. } | VolumeCommand::Why { .. } => {
                false
            }
        }
    }
}

impl SnapshotCommand {
    fn is_dry_run(&self) -> bool {
        match self {
            SnapshotCommand::Rollback { how, .. } | SnapshotCommand::Delete { how, .. } => {
                how.dry_run
            }
            _ => false,
        }
    }
}

impl NodeCommand {
    /// The common options that it acts on.
    pub fn uses(&self) -> Vec<&'static str> {
        let lists = matches!(self, NodeCommand::List | NodeCommand::Info { .. });
        used(lists || self.is_dry_run())
    }

    /// True if the command only says what it would do.
    pub(super) fn is_dry_run(&self) -> bool {
        match self {
            NodeCommand::Drain { how, .. }
            | NodeCommand::Evict { how, .. }
            | NodeCommand::Delete { how, .. } => how.dry_run,
            NodeCommand::Restore { dry_run, .. } | NodeCommand::Lost { dry_run, .. } => {
                dry_run.dry_run
            }
            NodeCommand::List | NodeCommand::Info { .. } => false,
        }
    }
}

fn used(lists: bool) -> Vec<&'static str> {
    let mut uses = vec!["timeout"];
    uses.extend(lists.then_some("json"));
    uses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_what_was_given_and_nothing_else() {
        assert_eq!(Placement::default().filter(), json!({}));
        let given = Placement {
            place: Some(2),
            pool: vec!["ssd".into()],
            provider: vec![ProviderName::LvmThin],
            ..Placement::default()
        };
        let expected =
            json!({"place_count": 2, "storage_pool_list": ["ssd"], "provider_list": ["LVM_THIN"]});
        assert_eq!(given.filter(), expected);
    }
}
