//! `convert-md`: the configuration says which nodes the metadata are about.

use codec::admin::Request;
use vocab::NodeId;

use super::super::args::Objects;
use super::super::each::EachInTurn;
use super::super::error::Error;
use super::Session;

impl Session<'_> {
    pub(super) fn convert_md(
        &mut self,
        objects: &Objects,
        peer: Option<NodeId>,
        max_peers: Option<u8>,
        dry_run: bool,
    ) -> Result<(), Error> {
        let loaded = self.load()?;
        let selections = self.configured(objects, &loaded)?;
        self.all(selections, |s, selection| {
            let resource = selection.resource;
            for volume in &selection.volumes {
                let name = format!("{}/{}", resource.name, volume.nr);
                let refuse =
                    |why: &str| Err(Error::Object { object: name.clone(), why: why.to_owned() });
                let Some(backing) = &volume.backing else {
                    if selection.one_volume {
                        return refuse("it has no disk on this host, so it has no metadata");
                    }
                    continue;
                };
                let diskful: Vec<NodeId> = resource
                    .peers
                    .iter()
                    .filter(|p| p.volumes.iter().any(|v| v.nr == volume.nr && !v.diskless))
                    .map(|p| p.node_id)
                    .collect();
                let peer = match (peer, &diskful[..]) {
                    (Some(peer), _) if peer == resource.node_id => {
                        return refuse("--peer names this node; give the id of the other one");
                    }
                    (Some(peer), _) if resource.peers.iter().all(|p| p.node_id != peer) => {
                        return refuse(
                            "--peer names no node of the resource; see the configuration",
                        );
                    }
                    (Some(peer), _) => peer,
                    (None, [only]) => *only,
                    (None, _) => {
                        return refuse("say with --peer which node it was replicated with");
                    }
                };
                let max_peers = max_peers.unwrap_or(diskful.len().clamp(1, 31) as u8);
                let what = format!(
                    "{name}: convert the metadata of {} to v09 for {max_peers} peer(s), what it \
                     knows is of node {peer}",
                    backing.disk
                );
                if dry_run {
                    s.would(what)?;
                    continue;
                }
                let request = Request::ConvertMd {
                    disk: backing.disk.clone(),
                    meta_disk: backing.meta_disk.clone(),
                    node_id: resource.node_id,
                    peer,
                    max_peers,
                };
                s.simple(&what, request)?;
            }
            Ok(())
        })
    }
}
