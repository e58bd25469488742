//! How a command line names objects: `R`, `R/V`, `R:peer`, `R:peer/V`, `minor-M`, `all`.

use std::fmt;
use std::str::FromStr;

use codec::config::{PeerConfig, ResourceConfig, VolumeConfig};
use vocab::{Minor, VolumeNr};

use super::error::Error;

/// What a word on the command line names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Object {
    /// Every resource.
    All,
    /// A volume by minor.
    Minor(Minor),
    /// A resource, or one volume, one connection, or one volume of a connection.
    Part {
        /// The resource.
        resource: String,
        /// The peer's name or node id.
        peer: Option<String>,
        /// The volume.
        volume: Option<VolumeNr>,
    },
}

impl FromStr for Object {
    type Err = String;

    fn from_str(text: &str) -> Result<Object, String> {
        if text == "all" {
            return Ok(Object::All);
        }
        if let Some(minor) = text.strip_prefix("minor-").and_then(|m| m.parse().ok()) {
            return Ok(Object::Minor(Minor(minor)));
        }
        let (rest, volume) = match text.rsplit_once('/') {
            None => (text, None),
            Some((rest, nr)) => match nr.parse().ok().filter(|nr| *nr <= VolumeNr::MAX.0) {
                Some(nr) => (rest, Some(VolumeNr(nr))),
                None => return Err(format!("`{nr}` is not a volume number")),
            },
        };
        let (resource, peer) = match rest.split_once(':') {
            None => (rest, None),
            Some((resource, peer)) => (resource, Some(peer.to_owned())),
        };
        if resource.is_empty() || peer.as_deref() == Some("") {
            return Err("give RESOURCE[:PEER][/VOLUME], minor-N or all".to_owned());
        }
        Ok(Object::Part { resource: resource.to_owned(), peer, volume })
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::All => f.write_str("all"),
            Object::Minor(minor) => write!(f, "minor-{minor}"),
            Object::Part { resource, peer, volume } => {
                f.write_str(resource)?;
                if let Some(peer) = peer {
                    write!(f, ":{peer}")?;
                }
                volume.map_or(Ok(()), |nr| write!(f, "/{nr}"))
            }
        }
    }
}

/// The part of a configuration an object names.
#[derive(Clone, Debug)]
pub struct Selection<'a> {
    /// The resource.
    pub resource: &'a ResourceConfig,
    /// The connections: all, or the one named.
    pub peers: Vec<&'a PeerConfig>,
    /// The volumes: all, or the one named.
    pub volumes: Vec<&'a VolumeConfig>,
    /// A peer was named.
    pub one_peer: bool,
    /// A volume was named.
    pub one_volume: bool,
}

impl Object {
    /// What the object names among `resources`. `missing` says what to do about a resource that
    /// is not there.
    ///
    /// # Errors
    /// If it names nothing.
    pub fn select<'a>(
        &self,
        resources: &'a [ResourceConfig],
        missing: &str,
    ) -> Result<Vec<Selection<'a>>, Error> {
        let none = |why: String| Err(Error::Object { object: self.to_string(), why });
        match self {
            Object::All => Ok(resources.iter().map(whole).collect()),
            Object::Minor(minor) => {
                for resource in resources {
                    if let Some(volume) = resource.volumes.iter().find(|v| v.minor == *minor) {
                        let volumes = vec![volume];
                        return Ok(vec![Selection {
                            volumes,
                            one_volume: true,
                            ..whole(resource)
                        }]);
                    }
                }
                none(format!("no volume has this minor; {missing}"))
            }
            Object::Part { resource, peer, volume } => {
                let Some(found) = resources.iter().find(|r| r.name == *resource) else {
                    return none(format!("there is no such resource; {missing}"));
                };
                let mut selection = whole(found);
                if let Some(peer) = peer {
                    selection.one_peer = true;
                    selection.peers.retain(|p| p.name == *peer || p.node_id.to_string() == *peer);
                    if selection.peers.is_empty() {
                        let names: Vec<_> = found.peers.iter().map(|p| p.name.as_str()).collect();
                        return none(format!("no such peer; its peers are {}", names.join(", ")));
                    }
                }
                if let Some(nr) = volume {
                    selection.one_volume = true;
                    selection.volumes.retain(|v| v.nr == *nr);
                    if selection.volumes.is_empty() {
                        let all: Vec<_> = found.volumes.iter().map(|v| v.nr.to_string()).collect();
                        return none(format!("no such volume; its volumes are {}", all.join(", ")));
                    }
                }
                Ok(vec![selection])
            }
        }
    }

    /// The name of the resource, unless the object is `all` or a minor.
    pub fn resource(&self) -> Option<&str> {
        match self {
            Object::Part { resource, .. } => Some(resource),
            Object::All | Object::Minor(_) => None,
        }
    }
}

fn whole(resource: &ResourceConfig) -> Selection<'_> {
    Selection {
        resource,
        peers: resource.peers.iter().collect(),
        volumes: resource.volumes.iter().collect(),
        one_peer: false,
        one_volume: false,
    }
}
