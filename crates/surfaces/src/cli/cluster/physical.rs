//! Disks that nobody uses, and storage pools that are made of them.

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;
use vocab::Bytes;

use super::super::each::EachInTurn;
use super::super::error::Error;
use super::Session;
use super::http::{Change, part};
use super::table::{Cell, Row};
use super::view::Disks;

/// Commands about disks.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum DiskCommand {
    /// List disks on which nothing is
    ///
    /// They have 1 GiB or more, no partitions, no signature of a file system or the like, and nobody
    /// has them open. Nodes that are not connected are left out.
    List {
        /// Only of these nodes
        #[arg(long, value_name = "NODE", value_delimiter = ',')]
        on: Vec<String>,
    },
    /// Make disks of a node a volume group, thin pool or ZFS pool, and that a storage pool
    ///
    /// Refused where something is on a disk. If a step fails those before it are undone. An LVM thin
    /// pool NAME is made in a volume group linstor_NAME, as LINSTOR does.
    Create {
        /// The storage pool's name, the same on every node
        #[arg(value_name = "POOL")]
        name: String,
        /// What is made of the disks
        provider: MadeOfDisks,
        /// The disks, /dev/...
        #[arg(value_name = "DEVICE", required = true, value_delimiter = ',')]
        devices: Vec<String>,
        /// On these nodes, each with disks of these names
        #[arg(long, value_name = "NODE", value_delimiter = ',', required = true)]
        on: Vec<String>,
        /// Name of what is made [default: POOL]
        #[arg(long, value_name = "NAME")]
        place: Option<String>,
    },
}

/// What can be made of disks.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MadeOfDisks {
    /// A volume group
    Lvm,
    /// A thin pool in a volume group
    LvmThin,
    /// A ZFS pool, of which volumes reserve their space
    Zfs,
    /// A ZFS pool, of which volumes take space as they are written
    ZfsThin,
}

impl MadeOfDisks {
    /// As the API has it.
    const fn word(self) -> &'static str {
        match self {
            MadeOfDisks::Lvm => "LVM",
            MadeOfDisks::LvmThin => "LVM_THIN",
            MadeOfDisks::Zfs => "ZFS",
            MadeOfDisks::ZfsThin => "ZFS_THIN",
        }
    }
}

pub(super) fn run(session: &mut Session<'_>, command: &DiskCommand) -> Result<(), Error> {
    match command {
        DiskCommand::List { on } => {
            let groups: Vec<Disks> = session.get("disks", "/v1/physical-storage")?;
            let wanted =
                |node: &str| on.is_empty() || on.iter().any(|n| n.eq_ignore_ascii_case(node));
            let mut rows: Vec<DiskRow> = groups
                .iter()
                .flat_map(|group| {
                    let nodes = group.nodes.iter().filter(|(node, _)| wanted(node));
                    nodes.flat_map(move |(node, disks)| {
                        disks.iter().map(move |disk| DiskRow {
                            node,
                            device: &disk.device,
                            size_bytes: group.size,
                            rotational: group.rotational,
                            model: &disk.model,
                            serial: &disk.serial,
                            wwn: &disk.wwn,
                        })
                    })
                })
                .collect();
            rows.sort_by_key(|row| (row.node, row.device));
            session.list(&rows)
        }
        DiskCommand::Create { name, provider, devices, on, place } => {
            session.all(on, |session, node| {
                let body = json!({
                    "provider_kind": provider.word(),
                    "device_paths": devices,
                    "pool_name": place.as_ref().unwrap_or(name),
                    "with_storage_pool": { "name": name },
                });
                let path = format!("/v1/physical-storage/{}", part(node));
                let what = format!("storage pool {name} of node {node}: create");
                session.change(&what, &Change::Post(path, body), None).map(drop)
            })
        }
    }
}

/// A disk in a list.
#[derive(Serialize)]
struct DiskRow<'a> {
    node: &'a str,
    device: &'a str,
    size_bytes: u64,
    rotational: bool,
    model: &'a str,
    serial: &'a str,
    wwn: &'a str,
}

impl Row for DiskRow<'_> {
    const COLUMNS: &'static [&'static str] =
        &["NODE", "DEVICE", "SIZE", "ROTATIONAL", "MODEL", "SERIAL", "WWN"];
    fn cells(&self) -> Vec<Cell> {
        let rotational = if self.rotational { "yes" } else { "no" };
        vec![
            self.node.into(),
            self.device.into(),
            Bytes(self.size_bytes).to_string().into(),
            rotational.into(),
            self.model.into(),
            self.serial.into(),
            self.wwn.into(),
        ]
    }
}
