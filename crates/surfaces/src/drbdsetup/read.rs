//! Commands that show states and identifiers (drbdsetup contract §3).

use std::io;

use codec::admin::{Answer, ConnectionStatus, PeerDeviceStatus, Request, ResourceStatus};
use vocab::{ConfigError, RefusalCode};

use super::Session;
use super::error::Stop;
use crate::cli::{Color, status};

/// Said where nothing is up; callers look for it.
pub(super) const NOTHING: &str = "# No currently configured DRBD found.";

/// What the digits after the identifiers mean, in their order (metadata §7.5).
const FLAGS: [&str; 12] = [
    "the disk is consistent",
    "the disk was UpToDate",
    "a node is or was Primary",
    "this node was a crashed Primary",
    "the activity log was applied: the disk can be attached",
    "the activity log is not kept",
    "this node was Primary when it lost quorum",
    "the peer is or was connected",
    "the peer's disk was Outdated or Inconsistent",
    "a fencing policy is in force",
    "all blocks are to be marked out of sync",
    "the peer had a disk at some time",
];

impl Session<'_> {
    /// The state of the resource that is named first.
    fn state(&mut self) -> Result<ResourceStatus, Stop> {
        let name = self.parsed.resource();
        let found = self.states(Some(name.clone()))?.into_iter().next();
        found.ok_or_else(|| Stop::unknown(&name, ConfigError::UnknownResource))
    }

    /// The connection to the node named second.
    fn connection(&mut self) -> Result<ConnectionStatus, Stop> {
        let node = self.parsed.node(1)?;
        let state = self.state()?;
        let found = state.connections.into_iter().find(|c| c.peer_node_id == node);
        let detail = || format!("{} has no connection to node {node}", state.name);
        found.ok_or_else(|| self.parsed.refusal(ConfigError::InvalidRequest, detail()))
    }

    pub(super) fn role(&mut self) -> Result<(), Stop> {
        let role = self.state()?.role;
        Ok(writeln!(self.out, "{role}")?)
    }

    pub(super) fn peer_role(&mut self) -> Result<(), Stop> {
        let role = self.connection()?.peer_role;
        Ok(writeln!(self.out, "{role}")?)
    }

    pub(super) fn cstate(&mut self) -> Result<(), Stop> {
        let state = self.connection()?.connection_state;
        Ok(writeln!(self.out, "{state}")?)
    }

    /// The own disk's state, then those of the peers.
    pub(super) fn dstate(&mut self) -> Result<(), Stop> {
        let minor = self.parsed.minor(0)?;
        for state in self.states(None)? {
            let Some(device) = state.devices.iter().find(|d| d.minor == minor) else { continue };
            let of_volume = |p: &&PeerDeviceStatus| p.volume == device.volume;
            let peers = state.connections.iter().flat_map(|c| c.peer_devices.iter());
            write!(self.out, "{}", device.disk_state)?;
            for peer in peers.filter(of_volume) {
                write!(self.out, "/{}", peer.peer_disk_state)?;
            }
            return Ok(writeln!(self.out)?);
        }
        Err(Stop::unknown(&self.parsed.object(), ConfigError::MinorInvalid))
    }

    fn identifiers(&mut self) -> Result<String, Stop> {
        let (peer, volume) = (self.parsed.node(1)?, self.parsed.volume(2)?);
        let resource = self.parsed.resource();
        let no_disk = RefusalCode::Config(ConfigError::NoDisk);
        match self.ask(Request::Identifiers { resource, peer, volume }) {
            Ok(Answer::Identifiers(line)) => Ok(line),
            Ok(_) => Err(self.unfitting()),
            Err(Stop::Refused { object, refusal }) if refusal.code == no_disk => {
                let text = Stop::Refused { object, refusal }.to_string();
                Err(Stop::Exit { status: 1, text })
            }
            Err(stop) => Err(stop),
        }
    }

    pub(super) fn get_gi(&mut self) -> Result<(), Stop> {
        let line = self.identifiers()?;
        Ok(writeln!(self.out, "{line}")?)
    }

    /// The line of `get-gi`, and each of its fields with what it means.
    pub(super) fn show_gi(&mut self) -> Result<(), Stop> {
        let line = self.identifiers()?;
        writeln!(self.out, "\n{line}\n")?;
        let meanings = ["current", "bitmap, towards this peer", "history", "history, older"];
        let uuids = meanings.map(|name| format!("data generation: {name}"));
        let flags = FLAGS.map(str::to_owned);
        for (value, meaning) in line.split(':').zip(uuids.into_iter().chain(flags)) {
            writeln!(self.out, "{value:>16}  {meaning}")?;
        }
        Ok(writeln!(self.out)?)
    }

    /// Names under which udev makes links to the device.
    pub(super) fn udev(&mut self) -> Result<(), Stop> {
        let minor = self.parsed.minor(0)?;
        let (config, nr) = self.minor(minor)?;
        writeln!(self.out, "DEVICE=drbd{minor}")?;
        writeln!(self.out, "SYMLINK_BY_RES=drbd/by-res/{}/{nr}", config.name)?;
        let volume = config.volumes.iter().find(|v| v.nr == nr);
        if let Some(backing) = volume.and_then(|v| v.backing.as_ref()) {
            let path = backing.disk.strip_prefix("/dev/").unwrap_or(&backing.disk);
            writeln!(self.out, "SYMLINK_BY_DISK=drbd/by-disk/{path}")?;
        }
        Ok(())
    }

    pub(super) fn status(&mut self) -> Result<(), Stop> {
        let (json, named) = (self.parsed.flag("json"), self.parsed.resource_or_all());
        let states = match self.states(named) {
            Err(stop @ Stop::Refused { .. }) if json => {
                writeln!(self.out, "[ ]")?;
                return Err(stop);
            }
            result => result?,
        };
        if json && states.is_empty() {
            writeln!(self.out, "[ ]")?;
        } else if json {
            serde_json::to_writer_pretty(&mut *self.out, &states).map_err(io::Error::from)?;
            writeln!(self.out)?;
        } else if states.is_empty() {
            writeln!(self.out, "{NOTHING}")?;
        } else {
            let color = match self.parsed.text("color") {
                Some("always") => Color::Always,
                Some("never") => Color::Never,
                _ => Color::Auto,
            };
            let (verbose, statistics) =
                (self.parsed.count("verbose"), self.parsed.flag("statistics"));
            let view = status::View::of_stdout(verbose, statistics, color);
            write!(self.out, "{}", status::render(&states, view))?;
        }
        Ok(())
    }
}
