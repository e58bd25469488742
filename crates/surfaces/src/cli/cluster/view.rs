//! What the controller says of its objects, in the fields that are used here, and what that comes
//! to. Pure: tested on answers as they come.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::answer::Entry;
use super::wait::Progress;

/// Properties.
pub type Props = BTreeMap<String, String>;

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub flags: Vec<String>,
    pub props: Props,
    pub net_interfaces: Vec<Interface>,
    pub connection_status: String,
    pub storage_providers: Vec<String>,
    pub resource_layers: Vec<String>,
}

/// An address of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub name: String,
    pub address: String,
    pub is_active: bool,
}

/// A storage pool of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub storage_pool_name: String,
    pub node_name: String,
    pub provider_kind: String,
    pub props: Props,
    pub free_capacity: Option<i64>,
    pub total_capacity: Option<i64>,
    pub supports_snapshots: bool,
    pub reports: Vec<Entry>,
}

/// Disks of one size and kind that nobody uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Disks {
    /// Bytes of each.
    pub size: u64,
    pub rotational: bool,
    /// By node.
    pub nodes: BTreeMap<String, Vec<Disk>>,
}

/// A disk.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Disk {
    pub device: String,
    pub model: String,
    pub serial: String,
    pub wwn: String,
}

/// A resource group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Group {
    pub name: String,
    pub description: String,
    pub select_filter: Filter,
}

/// Where a group's replicas may be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Filter {
    pub place_count: Option<u32>,
    pub storage_pool_list: Vec<String>,
    pub node_name_list: Vec<String>,
    pub replicas_on_same: Vec<String>,
    pub replicas_on_different: Vec<String>,
    pub provider_list: Vec<String>,
    /// `null` where nothing is said.
    pub layer_stack: Option<Vec<String>>,
}

/// A resource definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Definition {
    pub name: String,
    pub flags: Vec<String>,
    pub resource_group_name: String,
    pub volume_definitions: Vec<VolumeDefinition>,
}

/// A volume of a resource definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeDefinition {
    pub volume_number: u16,
    pub size_kib: u64,
    pub flags: Vec<String>,
}

/// A resource: what a node has of a resource definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resource {
    pub name: String,
    pub node_name: String,
    pub flags: Vec<String>,
    pub props: Props,
    pub state: Option<ResourceState>,
    pub layer_object: Layer,
    pub volumes: Vec<Volume>,
}

/// What a node's agent reports of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceState {
    pub in_use: bool,
}

/// A layer of a resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Layer {
    pub drbd: Drbd,
}

/// What DRBD says of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Drbd {
    pub connections: BTreeMap<String, Connection>,
}

/// A connection to a peer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Connection {
    pub connected: bool,
}

/// A volume of a resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub volume_number: u16,
    pub storage_pool_name: String,
    pub device_path: String,
    pub allocated_size_kib: u64,
    pub state: VolumeState,
}

/// What is reported of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeState {
    pub disk_state: Option<String>,
    pub replication_states: BTreeMap<String, Replication>,
}

/// How a volume is replicated with a peer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Replication {
    pub replication_state: String,
    pub done_percentage: Option<f64>,
}

/// A snapshot of a resource definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub name: String,
    pub resource_name: String,
    pub nodes: Vec<String>,
    pub flags: Vec<String>,
    pub props: BTreeMap<String, String>,
    pub volume_definitions: Vec<VolumeDefinition>,
    pub snapshots: Vec<NodeSnapshot>,
}

/// The part of a snapshot that is on a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSnapshot {
    pub create_timestamp: Option<u64>,
}

/// An error report.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    pub node_name: String,
    pub error_time: u64,
    pub filename: String,
    pub exception_message: String,
    pub text: String,
}

impl Report {
    /// Its id, which is in the name of its file.
    pub fn id(&self) -> &str {
        let id = self.filename.strip_prefix("ErrorReport-").unwrap_or(&self.filename);
        id.strip_suffix(".log").unwrap_or(id)
    }

    /// Cause and next step, each with its word before it, as far as the controller told its text.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let told = |line| {
            let of = |word: &'static str, said| Some((said, str::strip_prefix(line, word)?.trim()));
            of("why  ", "why: ").or_else(|| of("next ", "next:"))
        };
        self.text.lines().filter_map(told).filter(|(_, text)| !text.is_empty())
    }
}

/// True if one of these flags is set.
pub fn is_any(flags: &[String], wanted: &[&str]) -> bool {
    flags.iter().any(|flag| wanted.contains(&flag.as_str()))
}

impl Node {
    /// True if its agent is connected.
    pub fn is_online(&self) -> bool {
        self.connection_status == "ONLINE"
    }

    /// True if replicas can be on it.
    pub fn holds_replicas(&self) -> bool {
        self.kind.eq_ignore_ascii_case("Satellite") || self.kind.eq_ignore_ascii_case("Combined")
    }

    /// The address that replication uses.
    pub fn address(&self) -> &str {
        let active = self.net_interfaces.iter().find(|interface| interface.is_active);
        active.or(self.net_interfaces.first()).map_or("", |interface| &interface.address)
    }

    /// In a word.
    pub fn state(&self) -> &'static str {
        let has = |flag| is_any(&self.flags, &[flag]);
        match () {
            // Which has DELETE, too.
            () if has("EVICTED") => "evicted",
            () if has("DELETE") => "deleting",
            () if has("EVACUATE") && self.is_online() => "draining",
            () if has("EVACUATE") => "draining, offline",
            () if self.is_online() => "online",
            () => "offline",
        }
    }
}

impl Resource {
    /// True if it keeps data.
    pub fn is_replica(&self) -> bool {
        !is_any(&self.flags, &["DISKLESS", "DRBD_DISKLESS"])
    }

    /// True if it goes.
    pub fn is_leaving(&self) -> bool {
        is_any(&self.flags, &["DELETE", "DRBD_DELETE"])
    }

    /// True if it is kept down on its node.
    pub fn is_inactive(&self) -> bool {
        is_any(&self.flags, &["INACTIVE"]) && !is_any(&self.flags, &["EVICTED"])
    }

    /// True if it is to be down, and is up.
    pub fn is_going_down(&self) -> bool {
        let attached = self.volumes.iter().any(|volume| volume.state.disk_state.is_some());
        self.is_inactive() && self.state.is_some() && attached
    }

    /// True if its disk comes or goes.
    pub fn is_changing(&self) -> bool {
        let changing =
            ["DISK_ADD_REQUESTED", "DISK_ADDING", "DISK_REMOVE_REQUESTED", "DISK_REMOVING"];
        is_any(&self.flags, &changing)
    }

    /// True if it is there for its vote only.
    pub fn is_tie_breaker(&self) -> bool {
        is_any(&self.flags, &["TIE_BREAKER"])
    }

    /// True if somebody has it open.
    pub fn is_in_use(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.in_use)
    }

    /// True if every volume is there and current.
    pub fn is_up_to_date(&self) -> bool {
        !self.volumes.is_empty() && self.volumes.iter().all(Volume::is_up_to_date)
    }

    /// What its agent says of its disk, in words; of several volumes the worst.
    pub fn disk(&self) -> String {
        if self.state.is_none() {
            return "not reported".to_owned();
        }
        if self.is_inactive() {
            return if self.is_going_down() { "going down" } else { "down" }.to_owned();
        }
        let worst = self.volumes.iter().find(|volume| !volume.is_up_to_date());
        let Some(volume) = worst.or(self.volumes.first()) else { return "no volume".to_owned() };
        let state = volume.state.disk_state.as_deref().unwrap_or("not there yet");
        match volume.resync() {
            Some((_, percent)) => format!("{state} {percent:.0} %"),
            None => state.to_owned(),
        }
    }

    /// What it is there for, and what happens to it.
    pub fn part(&self) -> String {
        let part = match (self.is_replica(), self.is_tie_breaker()) {
            (true, _) => "replica",
            (false, true) => "tie-breaker",
            (false, false) => "diskless",
        };
        let changes = [
            ("leaving", self.is_leaving()),
            ("its disk changes", self.is_changing()),
            ("inactive", self.is_inactive()),
            ("to move away", is_any(&self.flags, &["EVACUATE"])),
            ("given up", is_any(&self.flags, &["EVICTED"])),
        ];
        let changes = changes.iter().filter(|(_, is)| *is).map(|(text, _)| *text);
        std::iter::once(part).chain(changes).collect::<Vec<_>>().join(", ")
    }
}

impl Volume {
    /// True if its data are all there and current.
    pub fn is_up_to_date(&self) -> bool {
        matches!(self.state.disk_state.as_deref(), Some("UpToDate" | "Created"))
    }

    /// The resync that runs, with its percentage.
    pub fn resync(&self) -> Option<(&str, f64)> {
        let mut states = self.state.replication_states.values();
        states.find_map(|r| Some((r.replication_state.as_str(), r.done_percentage?)))
    }
}

/// How far resources are from being as they are wanted: every replica UpToDate, nothing coming or
/// going. Those that are inactive are down then. With `none` it is done when there are none at all.
pub fn settled(resources: &[Resource], none: bool) -> Progress {
    if resources.is_empty() {
        return if none { Progress::Done } else { Progress::going("nothing is placed yet", 0.0) };
    }
    let open = |resource: &&Resource| {
        resource.is_leaving()
            || resource.is_changing()
            || resource.is_going_down()
            || resource.is_replica() && !resource.is_inactive() && !resource.is_up_to_date()
    };
    let left: Vec<&Resource> = resources.iter().filter(open).collect();
    if left.is_empty() {
        return Progress::Done;
    }
    let share = |resource: &&Resource| {
        let resyncs = resource.volumes.iter().filter_map(|volume| Some(volume.resync()?.1));
        let percents: Vec<f64> = resyncs.collect();
        percents.iter().sum::<f64>() / percents.len().max(1) as f64 / 100.0
    };
    let done = (resources.len() - left.len()) as f64 + left.iter().map(share).sum::<f64>();
    let first: Vec<String> = left
        .iter()
        .take(3)
        .map(|resource| {
            let Resource { name, node_name, .. } = resource;
            match resource.is_leaving() {
                true => format!("{name} is still on {node_name}"),
                false => format!("{name} on {node_name}: {}", resource.disk()),
            }
        })
        .collect();
    let more = left.len().saturating_sub(3);
    let text = first.join(", ");
    let text = if more > 0 { format!("{text}, and {more} more") } else { text };
    Progress::going(&text, done / resources.len() as f64)
}

/// What a volume's replicas come to, in words.
pub fn health(definition: &Definition, resources: &[&Resource]) -> (String, Health) {
    if is_any(&definition.flags, &["DELETE"]) {
        return ("deleting".to_owned(), Health::Busy);
    }
    let replicas = resources.iter().filter(|r| r.is_replica() && !r.is_leaving());
    let (inactive, replicas): (Vec<&&Resource>, Vec<&&Resource>) =
        replicas.partition(|replica| replica.is_inactive());
    let down: Vec<&str> = inactive.iter().map(|replica| replica.node_name.as_str()).collect();
    let down = down.join(", ");
    if replicas.is_empty() {
        let text =
            if down.is_empty() { "not placed".to_owned() } else { format!("inactive on {down}") };
        return (text, Health::Bad);
    }
    let down = if down.is_empty() { down } else { format!("; inactive on {down}") };
    let good = replicas.iter().filter(|replica| replica.is_up_to_date()).count();
    if good == replicas.len() {
        let resizing = definition.volume_definitions.iter().any(|v| is_any(&v.flags, &["RESIZE"]));
        return match resizing {
            true => ("growing".to_owned(), Health::Busy),
            false => (format!("UpToDate{down}"), Health::Good),
        };
    }
    let others: Vec<String> = replicas
        .iter()
        .filter(|replica| !replica.is_up_to_date())
        .map(|replica| format!("{} {}", replica.node_name, replica.disk()))
        .collect();
    let text = format!("{good} of {} UpToDate; {}{down}", replicas.len(), others.join(", "));
    let busy = replicas.iter().any(|replica| replica.volumes.iter().any(|v| v.resync().is_some()));
    (text, if good > 0 && busy { Health::Busy } else { Health::Bad })
}

/// Whether somebody has to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// All is as wanted.
    Good,
    /// It is getting there by itself.
    Busy,
    /// It is not.
    Bad,
}
