//! `show`: the configuration in force, which `drbdadm adjust` reads (drbdsetup contract §3.3, §3.4).

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use codec::admin::{ConnectionStatus, DeviceStatus, ResourceStatus};
use codec::config::{MetaDisk, PathConfig, PeerConfig, ResourceConfig, VolumeConfig};
use serde_json::{Map, Value, json};
use vocab::options::{DiskOptions, Kind, OptionSpec, Options};
use vocab::{ConnState, DiskState};

use super::Session;
use super::error::Stop;
use super::help::unit_word;
use super::read::NOTHING;

/// The first drbdadm that wants `_cstate`, and knows the newer options.
const CSTATE_SINCE: u32 = 0x09_2000;

/// What the installed drbdadm understands: an unknown word is a fatal error to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Before 9.32: `_is_standalone`.
    Old,
    /// From 9.32 on: `_cstate`.
    New,
}

impl Dialect {
    /// The dialect of a version such as `9.22.0`; `None` if that is not a version.
    pub fn of(version: &str) -> Option<Dialect> {
        let mut numbers = version.split('.').map(|n| n.parse::<u8>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(Dialect::of_code((u32::from(major) << 16) | (u32::from(minor) << 8)))
    }

    fn of_code(code: u32) -> Dialect {
        if code < CSTATE_SINCE { Dialect::Old } else { Dialect::New }
    }

    /// That of the installed drbdadm: the one beside this program, where its caller may have come
    /// from without a path to it, else the first that is found. The newest if there is none.
    fn installed() -> Dialect {
        let own = std::env::args_os().next().map(PathBuf::from);
        let beside = own.as_deref().and_then(Path::parent).filter(|d| !d.as_os_str().is_empty());
        let beside = beside.map(|directory| directory.join("drbdadm"));
        let others = ["drbdadm", "/usr/sbin/drbdadm", "/sbin/drbdadm"].map(PathBuf::from);
        let code = beside.into_iter().chain(others).find_map(|program| version_code(&program));
        code.map_or(Dialect::New, Dialect::of_code)
    }

    /// Whether this drbdadm knows an option.
    fn knows(self, name: &str) -> bool {
        const LATER: [&str; 10] = [
            "drbd8-api-compatibility",
            "load-balance-paths",
            "tls",
            "tls-keyring",
            "tls-privkey",
            "tls-certificate",
            "rdma-ctrl-rcvbuf-size",
            "rdma-ctrl-sndbuf-size",
            "resync-without-replication",
            "peer-tiebreaker",
        ];
        self == Dialect::New || !LATER.contains(&name)
    }
}

/// The version that a drbdadm says it has; `None` if there is none.
fn version_code(drbdadm: &Path) -> Option<u32> {
    let output = Command::new(drbdadm)
        .arg("--version")
        // Else it looks for the kernel module, in vain.
        .env("DRBD_DRIVER_VERSION_OVERRIDE", "9.2.14")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let code = text.lines().find_map(|l| l.strip_prefix("DRBDADM_VERSION_CODE=0x"))?;
    u32::from_str_radix(code, 16).ok()
}

impl Session<'_> {
    pub(super) fn show(&mut self) -> Result<(), Stop> {
        let configs = self.configs(self.parsed.resource_or_all())?;
        let states = self.states(None)?;
        let state = |config: &ResourceConfig| states.iter().find(|s| s.name == config.name);
        if self.parsed.flag("json") {
            if configs.is_empty() {
                return Ok(writeln!(self.out, "[ ]")?);
            }
            let all: Vec<_> = configs.iter().map(|c| json_of(c, state(c))).collect();
            serde_json::to_writer_pretty(&mut *self.out, &all).map_err(io::Error::from)?;
            return Ok(writeln!(self.out)?);
        }
        if configs.is_empty() && self.parsed.resource_or_all().is_none() {
            return Ok(writeln!(self.out, "{NOTHING}")?);
        }
        let dialect = self.machine.dialect.unwrap_or_else(Dialect::installed);
        let defaults = self.parsed.flag("show-defaults");
        for config in &configs {
            write!(self.out, "{}", text_of(config, state(config), dialect, defaults))?;
        }
        Ok(())
    }
}

/// The resource in drbdadm's grammar, with an empty line after it.
pub(super) fn text_of(
    config: &ResourceConfig,
    state: Option<&ResourceStatus>,
    dialect: Dialect,
    defaults: bool,
) -> String {
    let mut text = Text { out: String::new(), depth: 0, dialect, defaults };
    text.section(&format!("resource {} {{", quoted(&config.name)), |t| {
        t.options("options {", &config.options, "");
        t.section("_this_host {", |t| {
            t.line(&format!("node-id\t\t\t{};", config.node_id));
            for volume in &config.volumes {
                let device = state.and_then(|s| s.devices.iter().find(|d| d.volume == volume.nr));
                t.section(&format!("volume {} {{", volume.nr), |t| t.volume(volume, device));
            }
        });
        for peer in &config.peers {
            let connection =
                state.and_then(|s| s.connections.iter().find(|c| c.peer_node_id == peer.node_id));
            t.section("connection {", |t| t.connection(peer, connection));
        }
    });
    text.out.push('\n');
    text.out
}

/// A text in double quotes, as drbdadm's lexer reads it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The disk that is in use: what was lost is not.
fn backing<'c>(
    volume: &'c VolumeConfig,
    device: Option<&DeviceStatus>,
) -> Option<&'c codec::config::BackingConfig> {
    let lost = device.is_some_and(|d| d.disk_state == DiskState::Diskless);
    volume.backing.as_ref().filter(|_| !lost)
}

struct Text {
    out: String,
    depth: usize,
    dialect: Dialect,
    defaults: bool,
}

impl Text {
    fn line(&mut self, line: &str) {
        self.out.push_str(&"    ".repeat(self.depth));
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn section(&mut self, head: &str, body: impl FnOnce(&mut Text)) {
        self.line(head);
        self.depth += 1;
        body(self);
        self.depth -= 1;
        self.line("}");
    }

    /// The options that are not as by default, in a section of their own; `name` is a connection's.
    fn options<O: Options>(&mut self, head: &str, options: &O, name: &str) {
        let mut lines = Vec::new();
        for (i, spec) in O::TABLE.iter().enumerate() {
            let value = options.print(i);
            let default = value == spec.default;
            if (!default || self.defaults) && self.dialect.knows(spec.name) {
                lines.push(option_line(spec, &value, default));
            }
        }
        if !name.is_empty() {
            lines.push(format!("{:<16}\t{};", "_name", quoted(name)));
        }
        if !lines.is_empty() {
            self.section(head, |t| lines.iter().for_each(|line| t.line(line)));
        }
    }

    fn volume(&mut self, volume: &VolumeConfig, device: Option<&DeviceStatus>) {
        self.line(&format!("device\t\t\tminor {};", volume.minor));
        let Some(backing) = backing(volume, device) else {
            if volume.device_options.diskless {
                self.line("disk\t\t\tnone;");
            }
            return;
        };
        self.line(&format!("disk\t\t\t{};", quoted(&backing.disk)));
        let meta = match &backing.meta_disk {
            MetaDisk::Internal => "internal".to_owned(),
            MetaDisk::External { device, index: None } => quoted(device),
            MetaDisk::External { device, index: Some(i) } => format!("{} [ {i} ]", quoted(device)),
        };
        self.line(&format!("meta-disk\t\t\t{meta};"));
        self.options("disk {", &backing.options, "");
    }

    fn connection(&mut self, peer: &PeerConfig, state: Option<&ConnectionStatus>) {
        self.line(&format!("_peer_node_id {};", peer.node_id));
        for path in &peer.paths {
            self.section("path {", |t| {
                t.line(&format!("_this_host {};", endpoint(path.local)));
                t.line(&format!("_remote_host {};", endpoint(path.remote)));
            });
        }
        let state = state.map_or(ConnState::StandAlone, |c| c.connection_state);
        match self.dialect {
            Dialect::New => self.line(&format!("_cstate {state};")),
            Dialect::Old if state == ConnState::StandAlone => self.line("_is_standalone;"),
            Dialect::Old => {}
        }
        self.options("net {", &peer.net, &peer.name);
        for volume in &peer.volumes {
            let shown = volume.options.show();
            if self.defaults || shown.iter().any(|(name, _)| self.dialect.knows(name)) {
                self.section(&format!("volume {} {{", volume.nr), |t| {
                    t.options("disk {", &volume.options, "");
                });
            }
        }
    }
}

fn option_line(spec: &OptionSpec, value: &str, default: bool) -> String {
    let value = match spec.kind {
        Kind::Text { .. } | Kind::Secret { .. } => quoted(value),
        _ => value.to_owned(),
    };
    let unit = match spec.kind {
        Kind::Number { unit, .. } | Kind::NumberOrWord { unit, .. } => unit_word(unit),
        _ => None,
    };
    let remarks: Vec<_> = unit.into_iter().chain(default.then_some("default")).collect();
    let remarks =
        if remarks.is_empty() { String::new() } else { format!(" # {}", remarks.join(", ")) };
    format!("{:<16}\t{value};{remarks}", spec.name)
}

/// `ipv4 ADDR:PORT` or `ipv6 [ADDR]:PORT`.
fn endpoint(address: SocketAddr) -> String {
    format!("{} {address}", if address.is_ipv4() { "ipv4" } else { "ipv6" })
}

/// The resource with every option.
pub(super) fn json_of(config: &ResourceConfig, state: Option<&ResourceStatus>) -> Value {
    let volumes: Vec<_> = config
        .volumes
        .iter()
        .map(|volume| {
            let device = state.and_then(|s| s.devices.iter().find(|d| d.volume == volume.nr));
            json_volume(volume, device)
        })
        .collect();
    let mut object = Map::new();
    object.insert("resource".into(), json!(config.name));
    object.insert("options".into(), Value::Object(json_options(&config.options)));
    object.insert(
        "_this_host".into(),
        json!({ "node-id": config.node_id.get(), "volumes": volumes }),
    );
    if !config.peers.is_empty() {
        let peers = config.peers.iter().map(|peer| {
            let connections = state.map(|s| &s.connections[..]).unwrap_or_default();
            json_connection(peer, connections.iter().find(|c| c.peer_node_id == peer.node_id))
        });
        object.insert("connections".into(), peers.collect());
    }
    Value::Object(object)
}

fn json_options<O: Options>(options: &O) -> Map<String, Value> {
    let rows = O::TABLE.iter().enumerate().map(|(i, spec)| {
        let value = options.print(i);
        let value = match spec.kind {
            Kind::Bool => Value::Bool(value == "yes"),
            _ => Value::String(value),
        };
        (spec.name.to_owned(), value)
    });
    rows.collect()
}

fn json_volume(volume: &VolumeConfig, device: Option<&DeviceStatus>) -> Value {
    let mut object = Map::new();
    object.insert("volume_nr".into(), json!(volume.nr.0));
    object.insert("device_minor".into(), json!(volume.minor.0));
    let backing = backing(volume, device);
    if let Some(backing) = backing {
        object.insert("backing-disk".into(), json!(backing.disk));
        let (meta, index) = match &backing.meta_disk {
            MetaDisk::Internal => ("internal", None),
            MetaDisk::External { device, index } => (device.as_str(), *index),
        };
        object.insert("meta-disk".into(), json!(meta));
        if let Some(index) = index {
            object.insert("meta-disk-index".into(), json!(index));
        }
    }
    let mut disk = match backing {
        Some(backing) => json_options(&backing.options),
        None => json_options(&DiskOptions::default()),
    };
    disk.extend(json_options(&volume.device_options));
    // The one boolean that the original prints as a word.
    let diskless = if volume.device_options.diskless { "yes" } else { "no" };
    disk.insert("diskless".into(), json!(diskless));
    object.insert("disk".into(), Value::Object(disk));
    Value::Object(object)
}

fn json_connection(peer: &PeerConfig, state: Option<&ConnectionStatus>) -> Value {
    let host = |address: SocketAddr| {
        let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        json!({ "address": address.ip().to_string(), "port": address.port(), "family": family })
    };
    let path = |path: &PathConfig| json!({ "this_host": host(path.local), "remote_host": host(path.remote) });
    let mut net = json_options(&peer.net);
    net.insert("_name".into(), json!(peer.name));
    let volumes: Vec<_> = peer
        .volumes
        .iter()
        .map(|v| json!({ "volume_nr": v.nr.0, "disk": json_options(&v.options) }))
        .collect();
    let state = state.map_or(ConnState::StandAlone, |c| c.connection_state);
    let mut object = Map::new();
    object.insert("paths".into(), peer.paths.iter().map(path).collect());
    if state == ConnState::StandAlone {
        object.insert("_is_standalone".into(), json!(true));
    }
    object.insert("_cstate".into(), json!(state.to_string()));
    object.insert("net".into(), Value::Object(net));
    object.insert("volumes".into(), json!(volumes));
    object.insert("_peer_node_id".into(), json!(peer.node_id.get()));
    Value::Object(object)
}
