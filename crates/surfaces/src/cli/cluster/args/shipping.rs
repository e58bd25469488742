//! Commands about remotes and backups.

use clap::{Args, Subcommand};

use super::{NoWait, SwitchCommand};

/// Commands about remotes. Secrets are asked for on a terminal; otherwise each is a line of the standard
/// input.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum RemoteCommand {
    /// List remotes
    List,
    /// Name a bucket in which backups are kept, or another cluster; for what is secret of it the master
    /// passphrase has to be entered
    Create {
        /// Name of the remote
        name: String,
        #[command(flatten)]
        bucket: NewBucket,
        #[command(flatten)]
        cluster: ClusterOptions,
        /// The cluster ships encrypted volumes to this one: ask for its master passphrase
        #[arg(long, requires = "url")]
        passphrase: bool,
    },
    /// Change what a remote is; what is not given stays
    Modify {
        /// The remote
        name: String,
        /// URL of the store
        #[arg(long, value_name = "URL")]
        endpoint: Option<String>,
        /// The bucket
        #[arg(long)]
        bucket: Option<String>,
        /// The store's region
        #[arg(long)]
        region: Option<String>,
        /// Name of another key; the key itself is asked for
        #[arg(long, value_name = "KEY")]
        access_key: Option<String>,
        /// The bucket is in the path of addresses, or not
        #[arg(long, value_name = "BOOL")]
        path_style: Option<bool>,
        #[command(flatten)]
        cluster: ClusterOptions,
        /// Ask for the master passphrase of the cluster
        #[arg(long, conflicts_with_all = BUCKET)]
        passphrase: bool,
    },
    /// Forget a remote; what is being shipped is given up, backups stay where they are
    Delete {
        /// The remote
        name: String,
    },
}

/// Options that are about buckets.
const BUCKET: [&str; 5] = ["endpoint", "bucket", "region", "access_key", "path_style"];

/// A bucket that becomes a remote.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub struct NewBucket {
    /// URL of the store
    #[arg(long, value_name = "URL", required_unless_present = "url")]
    pub endpoint: Option<String>,
    /// The bucket
    #[arg(long, required_unless_present = "url")]
    pub bucket: Option<String>,
    /// The store's region; stores without any take any
    #[arg(long, required_unless_present = "url")]
    pub region: Option<String>,
    /// Name of the key that may use the bucket
    #[arg(long, value_name = "KEY", required_unless_present = "url")]
    pub access_key: Option<String>,
    /// The bucket is in the path of addresses, not in the host's name
    #[arg(long)]
    pub path_style: bool,
}

/// What is said of another cluster.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub struct ClusterOptions {
    /// URL of another cluster's REST API
    #[arg(long, conflicts_with_all = BUCKET)]
    pub url: Option<String>,
    /// The REST API wants a token: ask for it
    #[arg(long, requires = "url")]
    pub token: bool,
    /// The id of that cluster, its property Cluster/LocalID: what it ships to this one is taken only with it
    #[arg(long, value_name = "ID", conflicts_with_all = BUCKET)]
    pub cluster_id: Option<String>,
}

/// Commands about backups.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum BackupCommand {
    /// List what is in a remote
    List {
        /// The remote
        remote: String,
        /// Only of these volumes
        #[arg(value_name = "VOLUME")]
        names: Vec<String>,
    },
    /// List backups that wait for their turn
    Queue,
    /// Tell what restoring a backup would take
    Info {
        /// The remote
        remote: String,
        /// The backup's id
        #[arg(value_name = "ID")]
        backup: String,
        /// The node that would get it
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
    },
    /// Take a snapshot of a volume, in use or not, and upload it
    Create {
        /// The remote
        remote: String,
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Name of the snapshot, new or there [default: `back_` and the time]
        #[arg(long)]
        snapshot: Option<String>,
        /// The node that uploads it [default: any that can]
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
        /// All of it, and not what has changed since the backup before
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        wait: NoWait,
    },
    /// Make a volume of a backup, on one node; other replicas are placed afterwards
    Restore {
        /// The remote
        remote: String,
        /// The backup's id
        #[arg(value_name = "ID")]
        backup: String,
        /// Name of the volume, which must not have replicas
        #[arg(value_name = "NEW")]
        name: String,
        #[command(flatten)]
        to: RestoreTo,
        #[command(flatten)]
        wait: NoWait,
    },
    /// Take a snapshot of a volume, in use or not, and ship it to another cluster
    Ship {
        /// The remote, which is a cluster
        remote: String,
        /// The volume
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Name of the snapshot, new or there [default: `back_` and the time]
        #[arg(long)]
        snapshot: Option<String>,
        /// The node that ships it [default: any that can]
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
        #[command(flatten)]
        to: Box<ShipTo>,
        /// All of it, and not what has changed since a snapshot that was shipped before
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        wait: NoWait,
    },
    /// Give up what is being uploaded, shipped, received or restored
    Abort {
        /// The remote
        remote: String,
        /// Only of this volume
        #[arg(value_name = "VOLUME")]
        name: Option<String>,
        /// Only of this snapshot
        #[arg(long)]
        snapshot: Option<String>,
    },
    /// Delete backups; snapshots here stay
    Delete {
        /// The remote
        remote: String,
        /// Ids of the backups
        #[arg(required = true, value_name = "ID")]
        backups: Vec<String>,
        /// Also those that build on them
        #[arg(long)]
        cascading: bool,
    },
    /// Say of which volumes backups are made by schedule, and see what becomes of that
    Schedule {
        #[command(subcommand)]
        command: SwitchCommand,
    },
}

/// Where a backup goes.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub struct RestoreTo {
    /// The node
    #[arg(long, value_name = "NODE")]
    pub on: String,
    /// Pools to take in the place of those of the backup, OLD=NEW
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    pub pool: Vec<String>,
    /// The resource group of the volume [default: DfltRscGrp]
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Make nothing but a snapshot of it
    #[arg(long)]
    pub snapshot_only: bool,
    /// Its volumes are encrypted, and another cluster has made it: ask for the master passphrase that that one had
    /// then. Without a terminal it is a line of the standard input
    #[arg(long)]
    pub other_cluster: bool,
}

/// Where a snapshot goes in another cluster.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub struct ShipTo {
    /// Name of the volume there [default: that of here]
    #[arg(long, value_name = "NEW")]
    pub to: Option<String>,
    /// Name of the snapshot there [default: that of here]
    #[arg(long, value_name = "SNAPSHOT")]
    pub to_snapshot: Option<String>,
    /// The node there [default: one with a snapshot that was shipped before, or with most room]
    #[arg(long, value_name = "NODE")]
    pub to_node: Option<String>,
    /// The network interface of that node through which it comes [default: the one its controller uses]
    #[arg(long, value_name = "INTERFACE")]
    pub to_interface: Option<String>,
    /// The pool there [default: one that is called as here]
    #[arg(long, value_name = "POOL")]
    pub to_pool: Option<String>,
    /// Pools there, by what they are called here, OLD=NEW
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    pub pool: Vec<String>,
    /// The resource group of the volume there [default: DfltRscGrp]
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Make nothing but a snapshot of it
    #[arg(long)]
    pub snapshot_only: bool,
}

impl BackupCommand {
    /// True if it lists something.
    pub fn lists(&self) -> bool {
        matches!(
            self,
            BackupCommand::List { .. }
                | BackupCommand::Queue
                | BackupCommand::Info { .. }
                | BackupCommand::Schedule { command: SwitchCommand::List { .. } }
        )
    }
}
