//! What a command changes: rows put or removed. A store persists these and nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::*;
use crate::objects::*;
use crate::schedule::{Level, Schedule, Series, Switch};
use crate::shipping::Remote;

/// A row of the wanted state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each holds the object of its name")]
pub enum Object {
    Controller(Controller),
    Node(Node),
    PoolDefinition(PoolDefinition),
    Pool(Pool),
    Group(Group),
    Definition(Definition),
    Resource(Resource),
    Snapshot(SnapshotDefinition),
    NodeConnection(NodeName, NodeName, Props),
    ResourceConnection(ResourceName, NodeName, NodeName, Props),
    Store(StoreName, Props),
    File(ExternalFile),
    JoinToken(JoinToken),
    Remote(Remote),
    Schedule(Schedule),
    Switch(Switch),
    Series(Series),
}

/// What identifies a row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each names the object of its name")]
pub enum Key {
    Controller,
    Node(NodeName),
    PoolDefinition(PoolName),
    Pool(NodeName, PoolName),
    Group(GroupName),
    Definition(ResourceName),
    Resource(ResourceName, NodeName),
    Snapshot(ResourceName, SnapshotName),
    /// The smaller name comes first.
    NodeConnection(NodeName, NodeName),
    /// The smaller node name comes first.
    ResourceConnection(ResourceName, NodeName, NodeName),
    Store(StoreName),
    File(FilePath),
    /// By the digest of its secret.
    JoinToken(String),
    Remote(RemoteName),
    Schedule(ScheduleName),
    Switch(Level, RemoteName, ScheduleName),
    Series(ResourceName, RemoteName, ScheduleName),
}

impl Object {
    /// Its key.
    pub fn key(&self) -> Key {
        match self {
            Object::Controller(_) => Key::Controller,
            Object::Node(node) => Key::Node(node.name.clone()),
            Object::PoolDefinition(pool) => Key::PoolDefinition(pool.name.clone()),
            Object::Pool(pool) => Key::Pool(pool.node.clone(), pool.name.clone()),
            Object::Group(group) => Key::Group(group.name.clone()),
            Object::Definition(definition) => Key::Definition(definition.name.clone()),
            Object::Resource(r) => Key::Resource(r.name.clone(), r.node.clone()),
            Object::Snapshot(s) => Key::Snapshot(s.resource.clone(), s.name.clone()),
            Object::NodeConnection(a, b, _) => Key::NodeConnection(a.clone(), b.clone()),
            Object::ResourceConnection(name, a, b, _) => {
                Key::ResourceConnection(name.clone(), a.clone(), b.clone())
            }
            Object::Store(name, _) => Key::Store(name.clone()),
            Object::File(file) => Key::File(file.path.clone()),
            Object::JoinToken(token) => Key::JoinToken(token.digest.clone()),
            Object::Remote(remote) => Key::Remote(remote.name.clone()),
            Object::Schedule(schedule) => Key::Schedule(schedule.name.clone()),
            Object::Switch(s) => Key::Switch(s.level.clone(), s.remote.clone(), s.schedule.clone()),
            Object::Series(series) => {
                let (name, remote, schedule) = series.key();
                Key::Series(name, remote, schedule)
            }
        }
    }
}

impl Key {
    /// The resource definition that the row belongs to.
    pub fn definition(&self) -> Option<&ResourceName> {
        match self {
            Key::Definition(name)
            | Key::Resource(name, _)
            | Key::Snapshot(name, _)
            | Key::ResourceConnection(name, _, _) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Controller => write!(f, "the controller"),
            Key::Node(node) => write!(f, "node {node}"),
            Key::PoolDefinition(pool) => write!(f, "storage pool definition {pool}"),
            Key::Pool(node, pool) => write!(f, "storage pool {pool} of node {node}"),
            Key::Group(group) => write!(f, "resource group {group}"),
            Key::Definition(name) => write!(f, "resource definition {name}"),
            Key::Resource(name, node) => write!(f, "resource {name} of node {node}"),
            Key::Snapshot(name, snapshot) => write!(f, "snapshot {snapshot} of {name}"),
            Key::NodeConnection(a, b) => write!(f, "connection of nodes {a} and {b}"),
            Key::ResourceConnection(name, a, b) => write!(f, "connection of {name} at {a} and {b}"),
            Key::Store(name) => write!(f, "key-value store {name}"),
            Key::File(path) => write!(f, "external file {path}"),
            Key::JoinToken(_) => write!(f, "a token for a node to join"),
            Key::Remote(remote) => write!(f, "remote {remote}"),
            Key::Schedule(schedule) => write!(f, "schedule {schedule}"),
            Key::Switch(level, remote, schedule) => {
                write!(f, "schedule {schedule} with remote {remote} on {level}")
            }
            Key::Series(name, remote, schedule) => {
                write!(f, "backups of {name} in remote {remote} by schedule {schedule}")
            }
        }
    }
}

/// One change of the wanted state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// The row has this value from now on.
    Put(Object),
    /// There is no such row any more.
    Remove(Key),
}

impl Change {
    /// The row that changes.
    pub fn key(&self) -> Key {
        match self {
            Change::Put(object) => object.key(),
            Change::Remove(key) => key.clone(),
        }
    }
}
