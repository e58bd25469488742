//! The resource in the engine: what is configured becomes so.
//!
//! What differs is found by the operator's `adjust`. Beyond that: the core removes volumes only without
//! connections, and adds them only beside peers that can take that, so connections are taken down where
//! it has to be, if nobody uses the resource; and a peer that has left gives its bitmap slot back.

use std::path::Path;

use cluster::layer::Layer;
use cluster::objects::Generation;
use cluster::plan::ResourceConfig;
use codec::admin::{Request, ResourceStatus};
use codec::config as engine;
use surfaces::cli::plan::{self, Limits, Running, plan};
use vocab::ConnState;

use super::Step;
use crate::configure;
use crate::engine::BesidePeers;
use crate::failed::Failed;
use crate::files;

impl Step<'_> {
    pub(super) fn configure(
        &self,
        config: &ResourceConfig,
        generation: Generation,
    ) -> Result<(), Failed> {
        configure::check(self.name, config)?;
        self.put_files(config)?;
        self.begin_configuration(config)?;
        self.adjust()?;
        self.back_from_below()?;
        self.update(|record| record.confirmed = generation)
    }

    /// Brings the engine from what it has to what was configured last.
    pub(super) fn adjust(&self) -> Result<(), Failed> {
        let record = self.record()?;
        let Some(config) = &record.config else { return Ok(()) };
        if !config.layers.contains(&Layer::Drbd) {
            return Ok(());
        }
        self.may_be_up(&record)?;
        self.settle_metadata()?;
        let record = self.record()?;
        let wanted = configure::of(&self.node.name, &record, config)?;
        self.unlock_all(&record)?;
        let resource = self.name.as_str();
        let before = self.engine.config(resource)?;
        if let Some(before) = &before {
            self.make_way(&wanted, before)?;
        }
        let running = match before {
            Some(_) => self.engine.config(resource)?.zip(self.status()?),
            None => None,
        };
        let running = running.as_ref().map(|(config, status)| Running { config, status });
        let steps = plan(&wanted, running, Limits::default()).map_err(|why| {
            Failed::new(format!("{resource}: {why}"), "take it down on this node")
        })?;
        for step in steps {
            let gone = match &step.request {
                Request::DelPeer { peer, .. } => Some(*peer),
                _ => None,
            };
            match (&step.request, &before) {
                (Request::NewMinor { .. }, Some(before)) => self.add_volume(&step, before)?,
                _ => _ = self.engine.ask_patiently(&step.what, &step.request)?,
            }
            // A connection that is made anew is no peer that has left.
            if let Some(peer) = gone.filter(|gone| !wanted.peers.iter().any(|p| p.node_id == *gone))
            {
                let (what, resource) = (format!("{resource}: forget node {peer}"), resource.into());
                self.engine.ask_patiently(&what, &Request::ForgetPeer { resource, peer })?;
            }
        }
        Ok(())
    }

    /// Takes connections down that what is wanted can not be done under.
    fn make_way(
        &self,
        wanted: &engine::ResourceConfig,
        running: &engine::ResourceConfig,
    ) -> Result<(), Failed> {
        let resource = self.name.as_str();
        let kept = |old: &engine::VolumeConfig| {
            wanted.volumes.iter().any(|new| (new.nr, new.minor) == (old.nr, old.minor))
        };
        if !running.volumes.iter().all(kept) {
            self.disconnect_all(running)?;
        }
        // A peer that gets a disk needs a bitmap, which a connection is given when it is made.
        for peer in &running.peers {
            let without = |config: &engine::PeerConfig| config.volumes.iter().any(|v| v.diskless);
            let new = wanted.peers.iter().find(|new| new.node_id == peer.node_id);
            if new.is_some_and(|new| !without(new)) && without(peer) {
                let (what, peer) = (format!("{resource}: remove {}", peer.name), peer.node_id);
                let request = Request::DelPeer { resource: resource.into(), peer, force: false };
                self.engine.ask_patiently(&what, &request)?;
            }
        }
        Ok(())
    }

    /// Beside peers, if these can take it.
    fn add_volume(
        &self,
        step: &plan::Step,
        running: &engine::ResourceConfig,
    ) -> Result<(), Failed> {
        let added = self.engine.ask_beside_peers(&step.what, &step.request)?;
        if added == BesidePeers::Refused {
            self.disconnect_all(running)?;
            self.engine.ask_patiently(&step.what, &step.request)?;
        }
        Ok(())
    }

    /// Takes all connections down, to be made again once the volumes are what they are to be.
    fn disconnect_all(&self, running: &engine::ResourceConfig) -> Result<(), Failed> {
        let resource = self.name.as_str();
        let status = self.status()?;
        if status.as_ref().is_some_and(has_connections) {
            self.nobody_uses_it("a change of the volumes")?;
        }
        self.update(|record| record.reconnect = true)?;
        for peer in &running.peers {
            let (what, peer) = (format!("{resource}: disconnect {}", peer.name), peer.node_id);
            let request = Request::Disconnect { resource: resource.into(), peer, force: false };
            self.engine.ask_patiently(&what, &request)?;
        }
        Ok(())
    }

    /// External files, where an operator of this node allows them.
    fn put_files(&self, config: &ResourceConfig) -> Result<(), Failed> {
        for (path, content) in &config.files {
            let path = Path::new(path.as_str());
            if !self.node.may_put(path) {
                return Err(self.node.not_taken(path));
            }
            if std::fs::read(path).is_ok_and(|there| there == *content) {
                continue;
            }
            files::replace(path, content).map_err(|error| {
                let text = format!("{} can not be written: {error}", path.display());
                Failed::new(text, "see to its folder")
            })?;
        }
        Ok(())
    }

    /// Connects what was given up while peers were different from this node. True when everything
    /// is connected, or there is nothing to connect.
    pub(super) fn reconnect(&self) -> Result<bool, Failed> {
        let Some(status) = self.status()? else { return Ok(true) };
        let resource = self.name.to_string();
        let alone =
            |peer: &&codec::admin::ConnectionStatus| peer.connection_state == ConnState::StandAlone;
        for peer in status.connections.iter().filter(alone) {
            let request = Request::Connect {
                resource: resource.clone(),
                peer: peer.peer_node_id,
                discard_my_data: false,
            };
            self.engine.ask_patiently(&format!("{resource}: connect {}", peer.name), &request)?;
        }
        Ok(status.connections.iter().all(|peer| peer.connection_state == ConnState::Connected))
    }
}

fn has_connections(status: &ResourceStatus) -> bool {
    status.connections.iter().any(|peer| peer.connection_state == ConnState::Connected)
}
