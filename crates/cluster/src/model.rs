//! The wanted state: every object, and what is looked up often beside it.
//!
//! It changes only by [`Model::put`] and [`Model::remove`], which keep the indexes true; commands
//! (`apply`) use them through an `Edit` that can be undone, a store uses them to load rows. The
//! indexes make sure that no command and no plan looks at objects that do not concern it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use vocab::{Bytes, Minor};

use crate::change::{Change, Key, Object};
use crate::name::*;
use crate::objects::*;
use crate::props::{self, SHIPPED};
use crate::refusal::{Code, Refusal};
use crate::schedule::{Level, Schedule, Series, SeriesKey, Switch};
use crate::shipping::Remote;

/// How much of a pool is promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolUse {
    /// Sizes of its volumes.
    pub volumes: Bytes,
    /// Sizes of the volumes of its snapshots.
    pub snapshots: Bytes,
    /// Resources that have a volume there.
    pub resources: u32,
}

/// The wanted state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    controller: Controller,
    nodes: BTreeMap<NodeName, Node>,
    pool_definitions: BTreeMap<PoolName, PoolDefinition>,
    pools: BTreeMap<NodeName, BTreeMap<PoolName, Pool>>,
    groups: BTreeMap<GroupName, Group>,
    definitions: BTreeMap<ResourceName, Definition>,
    resources: BTreeMap<ResourceName, BTreeMap<NodeName, Resource>>,
    snapshots: BTreeMap<ResourceName, BTreeMap<SnapshotName, SnapshotDefinition>>,
    node_connections: BTreeMap<(NodeName, NodeName), Props>,
    resource_connections: BTreeMap<ResourceName, BTreeMap<(NodeName, NodeName), Props>>,
    stores: BTreeMap<StoreName, Props>,
    files: BTreeMap<FilePath, ExternalFile>,
    join_tokens: BTreeMap<String, JoinToken>,
    remotes: BTreeMap<RemoteName, Remote>,
    schedules: BTreeMap<ScheduleName, Schedule>,
    switches: BTreeMap<Level, BTreeMap<(RemoteName, ScheduleName), Switch>>,
    series: BTreeMap<ResourceName, BTreeMap<(RemoteName, ScheduleName), Series>>,

    // Indexes, which follow from the above.
    on_node: BTreeMap<NodeName, BTreeSet<ResourceName>>,
    in_group: BTreeMap<GroupName, BTreeSet<ResourceName>>,
    external_names: BTreeMap<String, ResourceName>,
    minors: BTreeSet<Minor>,
    ports: BTreeMap<NodeName, BTreeSet<u16>>,
    pool_use: BTreeMap<NodeName, BTreeMap<PoolName, PoolUse>>,
    wakes: BTreeMap<Millis, BTreeSet<SeriesKey>>,
    errands: BTreeSet<SeriesKey>,
    /// Snapshots of which another cluster has to be told something.
    calls: BTreeSet<(ResourceName, SnapshotName)>,
}

impl Model {
    /// What a new cluster begins with: the properties, the resource group and the definitions of
    /// storage pools that are always there. `cluster` identifies it, a random number.
    pub fn new(cluster: Uuid) -> Model {
        let mut model = Model::default();
        let shipped = SHIPPED.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut props: Props = shipped.collect();
        props.insert("Cluster/LocalID".to_owned(), cluster.to_string());
        model.put(Object::Controller(Controller { props, ..Controller::default() }));
        for (serial, name) in [(1, PoolName::diskless()), (2, PoolName::default_pool())] {
            let uuid = Uuid(cluster.0.wrapping_add(serial));
            let props = Props::new();
            model.put(Object::PoolDefinition(PoolDefinition { name, uuid, props }));
        }
        model.put(Object::Group(Group {
            name: GroupName::default_group(),
            uuid: Uuid(cluster.0.wrapping_add(3)),
            description: "Default resource group".to_owned(),
            props: Props::new(),
            filter: Filter { place_count: Some(2), ..Filter::default() },
            peer_slots: None,
            volume_groups: BTreeMap::new(),
            generation: Generation(0),
        }));
        model
    }

    /// The state that a store kept, in any order of rows.
    pub fn from_rows(rows: impl IntoIterator<Item = Object>) -> Model {
        let mut model = Model::default();
        for row in rows {
            model.put(row);
        }
        model
    }

    /// Every row.
    pub fn rows(&self) -> impl Iterator<Item = Object> + '_ {
        let controller = std::iter::once(Object::Controller(self.controller.clone()));
        let pools = self.pools.values().flat_map(BTreeMap::values);
        let resources = self.resources.values().flat_map(BTreeMap::values);
        let snapshots = self.snapshots.values().flat_map(BTreeMap::values);
        let links = self.node_connections.iter();
        let paths = self.resource_connections.iter().flat_map(|(name, connections)| {
            connections.iter().map(move |((a, b), props)| (name, a, b, props))
        });
        controller
            .chain(self.nodes.values().cloned().map(Object::Node))
            .chain(self.pool_definitions.values().cloned().map(Object::PoolDefinition))
            .chain(pools.cloned().map(Object::Pool))
            .chain(self.groups.values().cloned().map(Object::Group))
            .chain(self.definitions.values().cloned().map(Object::Definition))
            .chain(resources.cloned().map(Object::Resource))
            .chain(snapshots.cloned().map(Object::Snapshot))
            .chain(
                links.map(|((a, b), props)| {
                    Object::NodeConnection(a.clone(), b.clone(), props.clone())
                }),
            )
            .chain(paths.map(|(name, a, b, props)| {
                Object::ResourceConnection(name.clone(), a.clone(), b.clone(), props.clone())
            }))
            .chain(self.stores.iter().map(|(name, map)| Object::Store(name.clone(), map.clone())))
            .chain(self.files.values().cloned().map(Object::File))
            .chain(self.join_tokens.values().cloned().map(Object::JoinToken))
            .chain(self.remotes.values().cloned().map(Object::Remote))
            .chain(self.schedules.values().cloned().map(Object::Schedule))
            .chain(self.switches().cloned().map(Object::Switch))
            .chain(self.all_series().cloned().map(Object::Series))
    }

    /// Carries out a change, as a store does that follows another controller's.
    pub fn follow(&mut self, change: Change) {
        match change {
            Change::Put(object) => drop(self.put(object)),
            Change::Remove(key) => drop(self.remove(&key)),
        }
    }

    /// Puts a row; returns the one that was there.
    pub fn put(&mut self, object: Object) -> Option<Object> {
        let key = object.key();
        let old = self.remove(&key);
        match object {
            Object::Controller(controller) => self.controller = controller,
            Object::Node(node) => drop(self.nodes.insert(node.name.clone(), node)),
            Object::PoolDefinition(pool) => {
                drop(self.pool_definitions.insert(pool.name.clone(), pool));
            }
            Object::Pool(pool) => {
                let pools = self.pools.entry(pool.node.clone()).or_default();
                pools.insert(pool.name.clone(), pool);
            }
            Object::Group(group) => drop(self.groups.insert(group.name.clone(), group)),
            Object::Definition(definition) => {
                let name = definition.name.clone();
                self.account(&name, false);
                self.in_group.entry(definition.group.clone()).or_default().insert(name.clone());
                if let Some(external) = &definition.external_name {
                    self.external_names.insert(external.clone(), name.clone());
                }
                self.minors.extend(definition.volumes.values().filter_map(|volume| volume.minor));
                self.definitions.insert(name.clone(), definition);
                self.account(&name, true);
            }
            Object::Resource(resource) => {
                let name = resource.name.clone();
                self.account(&name, false);
                self.on_node.entry(resource.node.clone()).or_default().insert(name.clone());
                if let Some(port) = resource.port {
                    self.ports.entry(resource.node.clone()).or_default().insert(port);
                }
                let resources = self.resources.entry(name.clone()).or_default();
                resources.insert(resource.node.clone(), resource);
                self.account(&name, true);
            }
            Object::Snapshot(snapshot) => {
                let name = snapshot.resource.clone();
                let key = (name.clone(), snapshot.name.clone());
                match snapshot.uploads.values().any(|upload| upload.call().is_some()) {
                    true => self.calls.insert(key),
                    false => self.calls.remove(&key),
                };
                self.account(&name, false);
                let snapshots = self.snapshots.entry(name.clone()).or_default();
                snapshots.insert(snapshot.name.clone(), snapshot);
                self.account(&name, true);
            }
            Object::NodeConnection(a, b, props) => {
                self.node_connections.insert(ordered(&a, &b), props);
            }
            Object::ResourceConnection(name, a, b, props) => {
                let connections = self.resource_connections.entry(name).or_default();
                connections.insert(ordered(&a, &b), props);
            }
            Object::Store(name, map) => drop(self.stores.insert(name, map)),
            Object::File(file) => drop(self.files.insert(file.path.clone(), file)),
            Object::JoinToken(token) => {
                drop(self.join_tokens.insert(token.digest.clone(), token));
            }
            Object::Remote(remote) => drop(self.remotes.insert(remote.name.clone(), remote)),
            Object::Schedule(schedule) => {
                drop(self.schedules.insert(schedule.name.clone(), schedule));
            }
            Object::Switch(switch) => {
                let switches = self.switches.entry(switch.level.clone()).or_default();
                switches.insert((switch.remote.clone(), switch.schedule.clone()), switch);
            }
            Object::Series(series) => {
                let key = series.key();
                for time in series.wakes() {
                    self.wakes.entry(time).or_default().insert(key.clone());
                }
                if series.has_errand() {
                    self.errands.insert(key.clone());
                }
                let (name, remote, schedule) = key;
                self.series.entry(name).or_default().insert((remote, schedule), series);
            }
        }
        old
    }

    /// Removes a row and returns it. The controller's own row stays.
    pub fn remove(&mut self, key: &Key) -> Option<Object> {
        match key {
            Key::Controller => Some(Object::Controller(self.controller.clone())),
            Key::Node(name) => self.nodes.remove(name).map(Object::Node),
            Key::PoolDefinition(name) => {
                self.pool_definitions.remove(name).map(Object::PoolDefinition)
            }
            Key::Pool(node, name) => nested(&mut self.pools, node, name).map(Object::Pool),
            Key::Group(name) => self.groups.remove(name).map(Object::Group),
            Key::Definition(name) => {
                self.account(name, false);
                let removed = self.definitions.remove(name);
                if let Some(definition) = &removed {
                    forget(&mut self.in_group, &definition.group, name);
                    if let Some(external) = &definition.external_name {
                        self.external_names.remove(external);
                    }
                    for minor in definition.volumes.values().filter_map(|volume| volume.minor) {
                        self.minors.remove(&minor);
                    }
                }
                self.account(name, true);
                removed.map(Object::Definition)
            }
            Key::Resource(name, node) => {
                self.account(name, false);
                let removed = nested(&mut self.resources, name, node);
                if let Some(resource) = &removed {
                    forget(&mut self.on_node, node, name);
                    if let Some(port) = resource.port {
                        forget(&mut self.ports, node, &port);
                    }
                }
                self.account(name, true);
                removed.map(Object::Resource)
            }
            Key::Snapshot(name, snapshot) => {
                self.calls.remove(&(name.clone(), snapshot.clone()));
                self.account(name, false);
                let removed = nested(&mut self.snapshots, name, snapshot);
                self.account(name, true);
                removed.map(Object::Snapshot)
            }
            Key::NodeConnection(a, b) => {
                let (a, b) = ordered(a, b);
                let removed = self.node_connections.remove(&(a.clone(), b.clone()));
                removed.map(|props| Object::NodeConnection(a, b, props))
            }
            Key::ResourceConnection(name, a, b) => {
                let (a, b) = ordered(a, b);
                let pair = (a.clone(), b.clone());
                let removed = nested(&mut self.resource_connections, name, &pair);
                removed.map(|props| Object::ResourceConnection(name.clone(), a, b, props))
            }
            Key::Store(name) => {
                self.stores.remove(name).map(|map| Object::Store(name.clone(), map))
            }
            Key::File(path) => self.files.remove(path).map(Object::File),
            Key::JoinToken(digest) => self.join_tokens.remove(digest).map(Object::JoinToken),
            Key::Remote(name) => self.remotes.remove(name).map(Object::Remote),
            Key::Schedule(name) => self.schedules.remove(name).map(Object::Schedule),
            Key::Switch(level, remote, schedule) => {
                let pair = (remote.clone(), schedule.clone());
                nested(&mut self.switches, level, &pair).map(Object::Switch)
            }
            Key::Series(name, remote, schedule) => {
                let pair = (remote.clone(), schedule.clone());
                let removed = nested(&mut self.series, name, &pair)?;
                let key = removed.key();
                for time in removed.wakes() {
                    forget(&mut self.wakes, &time, &key);
                }
                self.errands.remove(&key);
                Some(Object::Series(removed))
            }
        }
    }

    /// Adds what the volumes of a resource definition take of their pools, or takes it off again.
    fn account(&mut self, name: &ResourceName, add: bool) {
        let change = |sum: &mut Bytes, size: Bytes| {
            sum.0 = if add { sum.0.saturating_add(size.0) } else { sum.0.saturating_sub(size.0) };
        };
        let definition = self.definitions.get(name);
        let size = |number| {
            let volume = definition.and_then(|definition| definition.volumes.get(number));
            volume.map_or(Bytes(0), |volume| volume.size)
        };
        for resource in self.resources.get(name).into_iter().flat_map(BTreeMap::values) {
            let mut pools = BTreeSet::new();
            let uses = self.pool_use.entry(resource.node.clone()).or_default();
            for (number, volume) in &resource.volumes {
                let entry = uses.entry(volume.pool.clone()).or_default();
                change(&mut entry.volumes, size(number));
                pools.insert(&volume.pool);
            }
            for pool in pools {
                let entry = uses.entry(pool.clone()).or_default();
                entry.resources = if add { entry.resources + 1 } else { entry.resources - 1 };
            }
        }
        for snapshot in self.snapshots.get(name).into_iter().flat_map(BTreeMap::values) {
            for (node, on_node) in &snapshot.nodes {
                let uses = self.pool_use.entry(node.clone()).or_default();
                for (number, pool) in &on_node.pools {
                    let size = snapshot.sizes.get(number).copied().unwrap_or_default();
                    change(&mut uses.entry(pool.clone()).or_default().snapshots, size);
                }
            }
        }
        let resources = self.resources.get(name).into_iter().flat_map(BTreeMap::keys);
        let snapshots = self.snapshots.get(name).into_iter().flat_map(BTreeMap::values);
        for node in resources.chain(snapshots.flat_map(|snapshot| snapshot.nodes.keys())) {
            let Some(uses) = self.pool_use.get_mut(node) else { continue };
            uses.retain(|_, entry| *entry != PoolUse::default());
            if uses.is_empty() {
                self.pool_use.remove(node);
            }
        }
    }
}

/// The two in order, as connections are keyed.
pub fn ordered(a: &NodeName, b: &NodeName) -> (NodeName, NodeName) {
    if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) }
}

/// Removes from an inner map, and the inner map when it is empty.
fn nested<K: Ord + Clone, L: Ord, T>(
    maps: &mut BTreeMap<K, BTreeMap<L, T>>,
    outer: &K,
    inner: &L,
) -> Option<T> {
    let map = maps.get_mut(outer)?;
    let removed = map.remove(inner);
    if map.is_empty() {
        maps.remove(outer);
    }
    removed
}

/// Removes from an inner set, and the set when it is empty.
fn forget<K: Ord, L: Ord>(sets: &mut BTreeMap<K, BTreeSet<L>>, outer: &K, inner: &L) {
    if let Some(set) = sets.get_mut(outer) {
        set.remove(inner);
        if set.is_empty() {
            sets.remove(outer);
        }
    }
}

/// Reading.
impl Model {
    /// What belongs to the controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Generation of the last change.
    pub fn generation(&self) -> Generation {
        self.controller.generation
    }

    /// A node.
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// A storage pool definition.
    pub fn pool_definition(&self, name: &PoolName) -> Option<&PoolDefinition> {
        self.pool_definitions.get(name)
    }

    /// All storage pool definitions.
    pub fn pool_definitions(&self) -> impl Iterator<Item = &PoolDefinition> {
        self.pool_definitions.values()
    }

    /// A pool of a node.
    pub fn pool(&self, node: &NodeName, name: &PoolName) -> Option<&Pool> {
        self.pools.get(node)?.get(name)
    }

    /// The pools of a node.
    pub fn pools_of<'a>(&'a self, node: &NodeName) -> impl Iterator<Item = &'a Pool> + use<'a> {
        self.pools.get(node).into_iter().flat_map(BTreeMap::values)
    }

    /// All pools, by node.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values().flat_map(BTreeMap::values)
    }

    /// How much of a pool is promised.
    pub fn pool_use(&self, node: &NodeName, name: &PoolName) -> PoolUse {
        self.pool_use.get(node).and_then(|uses| uses.get(name)).copied().unwrap_or_default()
    }

    /// A resource group.
    pub fn group(&self, name: &GroupName) -> Option<&Group> {
        self.groups.get(name)
    }

    /// All resource groups.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// The resource definitions of a group.
    pub fn definitions_in<'a>(
        &'a self,
        group: &GroupName,
    ) -> impl Iterator<Item = &'a ResourceName> + use<'a> {
        self.in_group.get(group).into_iter().flatten()
    }

    /// A resource definition.
    pub fn definition(&self, name: &ResourceName) -> Option<&Definition> {
        self.definitions.get(name)
    }

    /// All resource definitions.
    pub fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.values()
    }

    /// The resource definition of an external name.
    pub fn by_external_name(&self, name: &str) -> Option<&ResourceName> {
        self.external_names.get(name)
    }

    /// A resource.
    pub fn resource(&self, name: &ResourceName, node: &NodeName) -> Option<&Resource> {
        self.resources.get(name)?.get(node)
    }

    /// The resources of a resource definition, by node.
    pub fn resources_of<'a>(
        &'a self,
        name: &ResourceName,
    ) -> impl Iterator<Item = &'a Resource> + use<'a> {
        self.resources.get(name).into_iter().flat_map(BTreeMap::values)
    }

    /// The names of the resources on a node.
    pub fn resources_on<'a>(
        &'a self,
        node: &NodeName,
    ) -> impl Iterator<Item = &'a ResourceName> + use<'a> {
        self.on_node.get(node).into_iter().flatten()
    }

    /// A snapshot.
    pub fn snapshot(
        &self,
        name: &ResourceName,
        snap: &SnapshotName,
    ) -> Option<&SnapshotDefinition> {
        self.snapshots.get(name)?.get(snap)
    }

    /// The snapshots of a resource definition.
    pub fn snapshots_of<'a>(
        &'a self,
        name: &ResourceName,
    ) -> impl Iterator<Item = &'a SnapshotDefinition> + use<'a> {
        self.snapshots.get(name).into_iter().flat_map(BTreeMap::values)
    }

    /// All snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &SnapshotDefinition> {
        self.snapshots.values().flat_map(BTreeMap::values)
    }

    /// The properties of the connection of two nodes, in either order.
    pub fn node_connection(&self, a: &NodeName, b: &NodeName) -> Option<&Props> {
        self.node_connections.get(&ordered(a, b))
    }

    /// All connections of nodes that have properties.
    pub fn node_connections(&self) -> impl Iterator<Item = (&(NodeName, NodeName), &Props)> {
        self.node_connections.iter()
    }

    /// The properties of the connection of a resource at two nodes, in either order.
    pub fn resource_connection(
        &self,
        name: &ResourceName,
        a: &NodeName,
        b: &NodeName,
    ) -> Option<&Props> {
        self.resource_connections.get(name)?.get(&ordered(a, b))
    }

    /// The connections of a resource definition that have properties.
    pub fn resource_connections_of<'a>(
        &'a self,
        name: &ResourceName,
    ) -> impl Iterator<Item = (&'a (NodeName, NodeName), &'a Props)> + use<'a> {
        self.resource_connections.get(name).into_iter().flatten()
    }

    /// An instance of the key-value store.
    pub fn store(&self, name: &StoreName) -> Option<&Props> {
        self.stores.get(name)
    }

    /// All instances of the key-value store.
    pub fn stores(&self) -> impl Iterator<Item = (&StoreName, &Props)> {
        self.stores.iter()
    }

    /// An external file.
    pub fn file(&self, path: &FilePath) -> Option<&ExternalFile> {
        self.files.get(path)
    }

    /// All external files.
    pub fn files(&self) -> impl Iterator<Item = &ExternalFile> {
        self.files.values()
    }

    /// The token for a node to join whose secret has this digest.
    pub fn join_token(&self, digest: &str) -> Option<&JoinToken> {
        self.join_tokens.get(digest)
    }

    /// All tokens for nodes to join.
    pub fn join_tokens(&self) -> impl Iterator<Item = &JoinToken> {
        self.join_tokens.values()
    }

    /// A remote.
    pub fn remote(&self, name: &RemoteName) -> Option<&Remote> {
        self.remotes.get(name)
    }

    /// All remotes.
    pub fn remotes(&self) -> impl Iterator<Item = &Remote> {
        self.remotes.values()
    }

    /// A schedule.
    pub fn schedule(&self, name: &ScheduleName) -> Option<&Schedule> {
        self.schedules.get(name)
    }

    /// All schedules.
    pub fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        self.schedules.values()
    }

    /// What a level says of a schedule with a remote.
    pub fn switch(
        &self,
        level: &Level,
        remote: &RemoteName,
        schedule: &ScheduleName,
    ) -> Option<&Switch> {
        self.switches.get(level)?.get(&(remote.clone(), schedule.clone()))
    }

    /// What a level says of schedules.
    pub fn switches_of<'a>(&'a self, level: &Level) -> impl Iterator<Item = &'a Switch> + use<'a> {
        self.switches.get(level).into_iter().flat_map(BTreeMap::values)
    }

    /// What all levels say of schedules.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.switches.values().flat_map(BTreeMap::values)
    }

    /// The backups of a resource definition in a remote by a schedule.
    pub fn series(
        &self,
        name: &ResourceName,
        remote: &RemoteName,
        schedule: &ScheduleName,
    ) -> Option<&Series> {
        self.series.get(name)?.get(&(remote.clone(), schedule.clone()))
    }

    /// The backups of a resource definition by schedules.
    pub fn series_of<'a>(
        &'a self,
        name: &ResourceName,
    ) -> impl Iterator<Item = &'a Series> + use<'a> {
        self.series.get(name).into_iter().flat_map(BTreeMap::values)
    }

    /// All backups by schedules.
    pub fn all_series(&self) -> impl Iterator<Item = &Series> {
        self.series.values().flat_map(BTreeMap::values)
    }

    /// Backups by schedules for which something has to be done in a bucket.
    pub fn with_errands(&self) -> impl Iterator<Item = &Series> {
        let find = |(name, remote, schedule): &SeriesKey| self.series(name, remote, schedule);
        self.errands.iter().filter_map(find)
    }

    /// Snapshots of which another cluster has to be told something.
    pub fn with_calls(&self) -> impl Iterator<Item = &SnapshotDefinition> {
        self.calls.iter().filter_map(|(name, snapshot)| self.snapshot(name, snapshot))
    }

    /// The snapshot that another cluster ships, or has shipped, by the ids of that and of the shipment.
    pub fn received(&self, cluster: &str, shipment: &str) -> Option<&SnapshotDefinition> {
        self.snapshots().find(|snapshot| {
            let receiving = snapshot.download.as_ref().and_then(|d| d.receiving.as_ref());
            receiving.is_some_and(|r| r.cluster == cluster && r.shipment == shipment)
        })
    }

    /// The first time after one when a schedule has to be seen to.
    pub fn next_wake(&self, after: Millis) -> Option<Millis> {
        let later = (Bound::Excluded(after), Bound::Unbounded);
        self.wakes.range(later).next().map(|(time, _)| *time)
    }

    /// True if a DRBD device has this minor.
    pub fn minor_in_use(&self, minor: Minor) -> bool {
        self.minors.contains(&minor)
    }

    /// True if a resource of the node listens on this port.
    pub fn port_in_use(&self, node: &NodeName, port: u16) -> bool {
        self.ports.get(node).is_some_and(|ports| ports.contains(&port))
    }

    /// A minor number for a new volume.
    ///
    /// # Errors
    /// If none is left of the range that the controller's properties name.
    pub fn next_minor(&self) -> Result<Minor, Refusal> {
        let range = self.controller.props.get("MinorNrAutoRange");
        let range = range.map_or("1000-49999", String::as_str);
        let (low, high) = props::range(range)?;
        self.free_minor(low, high).ok_or_else(|| {
            Refusal::new(Code::MinorsExhausted, "no minor number is left")
                .cause(format!("every number of {range} is in use"))
                .correction("set the controller's property MinorNrAutoRange to a larger range")
        })
    }

    /// The smallest free minor of a range.
    fn free_minor(&self, low: u32, high: u32) -> Option<Minor> {
        let used = self.minors.range(Minor(low)..=Minor(high)).map(|minor| minor.0);
        first_gap(low, high, used).map(Minor)
    }

    /// The generation of the last change of anything that a resource definition inherits from, or
    /// that its configuration names: what its nodes have to have confirmed.
    pub fn wanted_generation(&self, name: &ResourceName) -> Generation {
        let Some(definition) = self.definitions.get(name) else { return Generation(0) };
        let group = self.groups.get(&definition.group).map(|group| group.generation);
        let nodes = self.resources.get(name).into_iter().flat_map(BTreeMap::keys);
        let nodes = nodes.filter_map(|node| self.nodes.get(node)).map(|node| node.generation);
        let own = [definition.generation, self.controller.props_generation];
        own.into_iter().chain(group).chain(nodes).max().expect("there are two at least")
    }
}

/// The smallest number of `low..=high` that is not in `used`, which ascends.
fn first_gap(low: u32, high: u32, used: impl Iterator<Item = u32>) -> Option<u32> {
    let mut free = low;
    for number in used {
        if number > free {
            break;
        }
        free = number.checked_add(1)?;
    }
    (free <= high).then_some(free)
}
