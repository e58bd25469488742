//! Every pool of every node, and why it is out (control plane §4.2).

use std::fmt;

use regex_lite::Regex;
use vocab::Bytes;

use super::{Ask, Candidate, Verdict, kinds_in_use, mix, replicated, space};
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::props::{chain, is_true};

/// Why a pool can not be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the text of each says what it means")]
pub enum Reason {
    NodeLeaving(NodeFlag),
    NodeKind(NodeKind),
    NotConnected,
    NodeNotListed,
    NodeNoTarget,
    LayerUnsupported(Layer),
    BesideResource(ResourceName),
    HasReplica,
    HasResource,
    PropertyMissing(String),
    PropertyDiffers { key: String, value: String, wanted: String },
    ValueTaken { key: String, value: String },
    PoolNotListed,
    PoolNoTarget,
    PoolFaulty(String),
    KindNotListed(Provider),
    MetadataFull(u8),
    DoesNotMix(Provider),
    CapacityUnknown,
    NotEnoughSpace { free: Bytes, needed: Bytes },
    ThinMinimum { free: Bytes, minimum: Bytes },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NodeLeaving(flag) => write!(f, "the node has the flag {flag}"),
            Reason::NodeKind(kind) => write!(f, "nodes of type {kind} hold no resources"),
            Reason::NotConnected => write!(f, "the node is not connected"),
            Reason::NodeNotListed => write!(f, "the node is not in the node list"),
            Reason::NodeNoTarget => write!(f, "AutoplaceTarget is false for the node"),
            Reason::LayerUnsupported(layer) => write!(f, "the node has no layer {layer}"),
            Reason::BesideResource(name) => write!(f, "the node has a resource {name}"),
            Reason::HasReplica => write!(f, "the node has a replica"),
            Reason::HasResource => write!(f, "the node has a resource"),
            Reason::PropertyMissing(key) => write!(f, "the node has no property {key}"),
            Reason::PropertyDiffers { key, value, wanted } => {
                write!(f, "the node's {key} is `{value}`, not `{wanted}`")
            }
            Reason::ValueTaken { key, value } => {
                write!(f, "there are enough replicas where {key} is `{value}`")
            }
            Reason::PoolNotListed => write!(f, "the pool is not in the storage pool list"),
            Reason::PoolNoTarget => write!(f, "AutoplaceTarget is false for the pool"),
            Reason::PoolFaulty(error) => write!(f, "the pool is faulty: {error}"),
            Reason::KindNotListed(kind) => write!(f, "its kind {kind} is not in the provider list"),
            Reason::DoesNotMix(kind) => write!(f, "other replicas are in pools of kind {kind}"),
            Reason::MetadataFull(percent) => {
                write!(f, "{percent} % of the pool's metadata are in use")
            }
            Reason::CapacityUnknown => write!(f, "the pool's capacity is not known"),
            Reason::NotEnoughSpace { free, needed } => {
                write!(
                    f,
                    "{} KiB can be promised, {} KiB are needed",
                    free.0 / 1024,
                    needed.0 / 1024
                )
            }
            Reason::ThinMinimum { free, minimum } => write!(
                f,
                "{} KiB can be promised, less than the minimum of {} KiB (MinThinFreeSpace)",
                free.0 / 1024,
                minimum.0 / 1024
            ),
        }
    }
}

/// Every pool that could be asked for, with its verdict.
pub(super) fn find(ask: &Ask<'_>, pattern: Option<&Regex>) -> Vec<Candidate> {
    let mut found = Vec::new();
    let kinds = kinds_in_use(ask.model, &ask.definition.name);
    for node in ask.model.nodes() {
        let out = node_reason(ask, node, pattern);
        for pool in ask.model.pools_of(&node.name) {
            if pool.provider.has_device() == ask.diskless {
                continue;
            }
            let reason = out.clone().or_else(|| pool_reason(ask, pool, &kinds));
            found.push(Candidate {
                node: node.name.clone(),
                pool: pool.name.clone(),
                score: 0.0,
                verdict: reason.map_or(Verdict::NotNeeded, Verdict::Out),
            });
        }
    }
    found
}

fn node_reason(ask: &Ask<'_>, node: &Node, pattern: Option<&Regex>) -> Option<Reason> {
    let filter = ask.filter;
    if let Some(flag) = node.flags.iter().next() {
        return Some(Reason::NodeLeaving(*flag));
    }
    if !node.kind.holds_resources() {
        return Some(Reason::NodeKind(node.kind));
    }
    let state = ask.observed.nodes.get(&node.name).filter(|state| state.connected);
    let Some(state) = state else { return Some(Reason::NotConnected) };
    let listed = filter.nodes.as_ref().filter(|nodes| !nodes.is_empty());
    if listed.is_some_and(|nodes| !nodes.contains(&node.name)) {
        return Some(Reason::NodeNotListed);
    }
    let target = chain::node(ask.model, node).get("AutoplaceTarget");
    if target.is_some_and(|value| !is_true(value)) {
        return Some(Reason::NodeNoTarget);
    }
    let asked = filter.layers.as_ref().filter(|layers| !layers.is_empty());
    let layers = asked.unwrap_or(&ask.definition.layers);
    if let Some(missing) = layers.iter().find(|layer| !state.layers.contains(layer)) {
        return Some(Reason::LayerUnsupported(*missing));
    }
    if let Some(resource) = ask.model.resource(&ask.definition.name, &node.name) {
        let inactive = resource.deactivated.is_some() && !resource.is_diskful();
        // A tie-breaker can become one that is there to be used.
        let taken = ask.diskless && !resource.is_tie_breaker();
        if taken || !replicated(ask.definition) || resource.is_deleting() || inactive {
            return Some(Reason::HasResource);
        }
        // One that was to lose its disk keeps it then, where it is.
        let losing = resource.flags.contains(&ResourceFlag::DiskRemoveRequested);
        if resource.is_diskful() && !losing {
            return Some(Reason::HasReplica);
        }
    }
    beside(ask, node, pattern)
}

/// A resource of the node that the new one must not be beside.
fn beside(ask: &Ask<'_>, node: &Node, pattern: Option<&Regex>) -> Option<Reason> {
    let names = ask.filter.not_with.as_deref().unwrap_or_default();
    if names.is_empty() && pattern.is_none() {
        return None;
    }
    let hit = |name: &&ResourceName| {
        let other = ask.model.resource(name, &node.name);
        **name != ask.definition.name
            && other.is_some_and(|other| !other.is_deleting())
            && (names.contains(name) || pattern.is_some_and(|p| p.is_match(name.as_str())))
    };
    ask.model.resources_on(&node.name).find(hit).cloned().map(Reason::BesideResource)
}

fn pool_reason(
    ask: &Ask<'_>,
    pool: &Pool,
    kinds: &std::collections::BTreeSet<Provider>,
) -> Option<Reason> {
    let filter = ask.filter;
    let list = if ask.diskless { &filter.diskless_pools } else { &filter.pools };
    let list = list.as_ref().filter(|pools| !pools.is_empty());
    if list.is_some_and(|pools| !pools.contains(&pool.name)) {
        return Some(Reason::PoolNotListed);
    }
    if ask.diskless {
        return None;
    }
    let own = ask.model.resource(&ask.definition.name, &pool.node);
    let mut losing = own.filter(|resource| resource.is_diskful()).into_iter();
    if losing.any(|own| own.volumes.values().any(|volume| volume.pool != pool.name)) {
        return Some(Reason::HasReplica);
    }
    if pool.props.get("AutoplaceTarget").is_some_and(|value| !is_true(value)) {
        return Some(Reason::PoolNoTarget);
    }
    let listed = filter.providers.as_ref().filter(|kinds| !kinds.is_empty());
    if listed.is_some_and(|kinds| !kinds.contains(&pool.provider)) {
        return Some(Reason::KindNotListed(pool.provider));
    }
    let allowed =
        chain::definition(ask.model, ask.definition).is_true("AllowMixingStoragePoolDriver");
    if let Some(other) = kinds.iter().find(|other| !mix(**other, pool.provider, allowed)) {
        return Some(Reason::DoesNotMix(*other));
    }
    let Some(state) = ask.observed.pool(&pool.node, &pool.name) else {
        return Some(Reason::CapacityUnknown);
    };
    if let Some(error) = &state.error {
        return Some(Reason::PoolFaulty(error.clone()));
    }
    if let Some(percent) = state.metadata_used.filter(|_| state.is_metadata_full()) {
        return Some(Reason::MetadataFull(percent));
    }
    let Some(free) = space::estimate(ask.model, ask.observed, pool) else {
        return Some(Reason::CapacityUnknown);
    };
    if free < ask.size {
        return Some(Reason::NotEnoughSpace { free, needed: ask.size });
    }
    if pool.provider.is_thin() {
        let minimum = space::thin_minimum(ask.model, ask.definition, pool, state.total);
        if free < minimum {
            return Some(Reason::ThinMinimum { free, minimum });
        }
    }
    None
}
