//! Where values are inherited from: LINSTOR's lookup orders (control plane §5), first hit wins.

use std::collections::BTreeMap;

use vocab::VolumeNr;

use super::{Space, is_true};
use crate::model::Model;
use crate::name::{NodeName, ResourceName};
use crate::objects::{Definition, Group, Node, Pool, Props, Resource};

/// Properties from the most specific object to the least.
#[derive(Clone, Debug, Default)]
pub struct Chain<'a>(Vec<&'a Props>);

/// One of two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Either<'a> {
    /// That of the first key.
    First(&'a str),
    /// That of the second key.
    Second(&'a str),
}

impl<'a> Chain<'a> {
    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find_map(|props| props.get(key)).map(String::as_str)
    }

    /// The value of the most specific object that has one of two keys: the first key's if it has both.
    pub fn either(&self, first: &str, second: &str) -> Option<Either<'a>> {
        self.0.iter().find_map(|props| match (props.get(first), props.get(second)) {
            (Some(value), _) => Some(Either::First(value)),
            (None, Some(value)) => Some(Either::Second(value)),
            (None, None) => None,
        })
    }

    /// True if the first value is true.
    pub fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(is_true)
    }

    /// The first value as a number.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key)?.parse().ok()
    }

    /// Every key below `prefix` with its first value, the prefix taken off.
    pub fn below(&self, prefix: &str) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for props in self.0.iter().rev() {
            for (key, value) in props.range(prefix.to_owned()..) {
                let Some(rest) = key.strip_prefix(prefix) else { break };
                found.insert(rest.to_owned(), value.clone());
            }
        }
        found
    }

    /// The options of a section of DRBD's configuration.
    pub fn options(&self, space: &Space) -> BTreeMap<String, String> {
        self.below(space.prefix)
    }

    fn push(&mut self, props: Option<&'a Props>) {
        self.0.extend(props);
    }
}

/// Of the controller: C.
pub fn controller(model: &Model) -> Chain<'_> {
    Chain(vec![&model.controller().props])
}

/// Of a resource group: RG, C. For what is made from it.
pub fn group<'a>(model: &'a Model, group: &'a Group) -> Chain<'a> {
    Chain(vec![&group.props, &model.controller().props])
}

/// Of a node: N, C.
pub fn node<'a>(model: &'a Model, node: &'a Node) -> Chain<'a> {
    Chain(vec![&node.props, &model.controller().props])
}

/// Of a pool: SP, SPD, C.
pub fn pool<'a>(model: &'a Model, pool: &'a Pool) -> Chain<'a> {
    let mut chain = Chain(vec![&pool.props]);
    chain.push(model.pool_definition(&pool.name).map(|definition| &definition.props));
    chain.push(Some(&model.controller().props));
    chain
}

/// Of a resource definition: RD, RG, C. For what happens by itself.
pub fn definition<'a>(model: &'a Model, definition: &'a Definition) -> Chain<'a> {
    let mut chain = Chain(vec![&definition.props]);
    chain.push(model.group(&definition.group).map(|group| &group.props));
    chain.push(Some(&model.controller().props));
    chain
}

/// Of a resource: R, RD, RG, N, C. For DRBD's defaults and resource options.
pub fn resource<'a>(
    model: &'a Model,
    definition: &'a Definition,
    resource: &'a Resource,
) -> Chain<'a> {
    let mut chain = Chain(vec![&resource.props, &definition.props]);
    chain.push(model.group(&definition.group).map(|group| &group.props));
    chain.push(model.node(&resource.node).map(|node| &node.props));
    chain.push(Some(&model.controller().props));
    chain
}

/// Of a volume: V, R, VD, VG, RD, RG, N, C. For options of its disk.
pub fn volume<'a>(
    model: &'a Model,
    definition: &'a Definition,
    resource: &'a Resource,
    number: VolumeNr,
) -> Chain<'a> {
    let group = model.group(&definition.group);
    let mut chain = Chain::default();
    chain.push(resource.volumes.get(&number).map(|volume| &volume.props));
    chain.push(Some(&resource.props));
    chain.push(definition.volumes.get(&number).map(|volume| &volume.props));
    chain.push(group.and_then(|g| g.volume_groups.get(&number)).map(|volume| &volume.props));
    chain.push(Some(&definition.props));
    chain.push(group.map(|group| &group.props));
    chain.push(model.node(&resource.node).map(|node| &node.props));
    chain.push(Some(&model.controller().props));
    chain
}

/// Of a volume towards its storage: V, R, SP, N, VD, RD, VG, RG, C. For what the driver is told.
pub fn storage<'a>(
    model: &'a Model,
    definition: &'a Definition,
    resource: &'a Resource,
    number: VolumeNr,
) -> Chain<'a> {
    let group = model.group(&definition.group);
    let volume = resource.volumes.get(&number);
    let mut chain = Chain::default();
    chain.push(volume.map(|volume| &volume.props));
    chain.push(Some(&resource.props));
    let pool = volume.and_then(|volume| model.pool(&resource.node, &volume.pool));
    chain.push(pool.map(|pool| &pool.props));
    chain.push(model.node(&resource.node).map(|node| &node.props));
    chain.push(definition.volumes.get(&number).map(|volume| &volume.props));
    chain.push(Some(&definition.props));
    chain.push(group.and_then(|g| g.volume_groups.get(&number)).map(|volume| &volume.props));
    chain.push(group.map(|group| &group.props));
    chain.push(Some(&model.controller().props));
    chain
}

/// Of a connection: RC, RD, NC, RG, C. For options of connections and peer devices.
pub fn connection<'a>(
    model: &'a Model,
    name: &ResourceName,
    definition: &'a Definition,
    a: &NodeName,
    b: &NodeName,
) -> Chain<'a> {
    let mut chain = Chain::default();
    chain.push(model.resource_connection(name, a, b));
    chain.push(Some(&definition.props));
    chain.push(model.node_connection(a, b));
    chain.push(model.group(&definition.group).map(|group| &group.props));
    chain.push(Some(&model.controller().props));
    chain
}
