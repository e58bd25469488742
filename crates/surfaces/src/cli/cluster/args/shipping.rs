//! Commands about remotes and backups.

use clap::{Args, Subcommand};

use super::{NoWait, SwitchCommand};

/// Commands about remotes. The secret key is asked for on a terminal; otherwise it is a line of the standard
/// input.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum RemoteCommand {
    /// List remotes
    List,
    /// Name a bucket in which backups are kept; the master passphrase has to be entered
    Create {
        /// Name of the remote
        name: String,
        /// URL of the store
        #[arg(long, value_name = "URL")]
        endpoint: String,
        /// The bucket
        #[arg(long)]
        bucket: String,
        /// The store's region; stores without any take any
        #[arg(long)]
        region: String,
        /// Name of the key that may use the bucket
        #[arg(long, value_name = "KEY")]
        access_key: String,
        /// The bucket is in the path of addresses, not in the host's name
        #[arg(long)]
        path_style: bool,
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
    },
    /// Forget a remote; what is being shipped is given up, backups stay where they are
    Delete {
        /// The remote
        name: String,
    },
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
    /// Give up what is being uploaded or restored
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
