//! Where replicas go (control plane §4): filter the candidates, score them, select.
//!
//! - here: the filter of a request over that of its group, and what is asked for
//! - `candidates`: every pool, with the reason if it is out
//! - `space`: how much of a pool can be promised
//! - `score`: which pool is better
//! - `select`: the best set that keeps the constraints between replicas
//!
//! A [`Placement`] says of every pool that was looked at why it was taken or not.

mod candidates;
mod score;
mod select;
pub mod space;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use vocab::Bytes;

use crate::change::Key;
use crate::edit::unknown;
use crate::layer::Layer;
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::observed::Observed;
use crate::props::{chain, is_true};
use crate::refusal::{Code, Refusal};

pub use candidates::Reason;

/// A pool that was looked at.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// The node.
    pub node: NodeName,
    /// The pool.
    pub pool: PoolName,
    /// Its score, if it could be chosen: the higher the better.
    pub score: f64,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a candidate.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// It was chosen.
    Chosen,
    /// It could be chosen, but others are better or fit better together.
    NotNeeded,
    /// It can not be chosen.
    Out(Reason),
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {} of node {}: ", self.pool, self.node)?;
        match &self.verdict {
            Verdict::Chosen => write!(f, "chosen, score {:.5}", self.score),
            Verdict::NotNeeded => write!(f, "fits, score {:.5}, not chosen", self.score),
            Verdict::Out(reason) => reason.fmt(f),
        }
    }
}

/// Where replicas go, and why.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Placement {
    /// The chosen pools, the best one first.
    pub chosen: Vec<Candidate>,
    /// Every pool that was looked at, by node and name.
    pub candidates: Vec<Candidate>,
}

/// Every node with what became of it when replicas of a resource definition were placed.
#[derive(Clone, PartialEq, Debug)]
pub struct Placed {
    /// The resource definition.
    pub name: ResourceName,
    /// Every pool that was looked at, by node and name.
    pub candidates: Vec<Candidate>,
    /// Nodes that have none.
    pub without_pool: Vec<NodeName>,
}

impl Placed {
    /// With the nodes that no pool was looked at of.
    pub fn new(model: &Model, name: &ResourceName, candidates: Vec<Candidate>) -> Placed {
        let has = |node: &&Node| candidates.iter().any(|candidate| candidate.node == node.name);
        let without_pool = model.nodes().filter(|node| !has(node)).map(|node| node.name.clone());
        Placed { name: name.clone(), without_pool: without_pool.collect(), candidates }
    }
}

/// A request over a base: a field that is given wins as a whole.
pub fn merge(request: &Filter, base: &Filter) -> Filter {
    macro_rules! first {
        ($($field:ident),+) => {
            Filter { $($field: request.$field.clone().or_else(|| base.$field.clone()),)+ }
        };
    }
    first!(
        place_count,
        additional_place_count,
        nodes,
        pools,
        diskless_pools,
        not_with,
        not_with_regex,
        on_same,
        on_different,
        x_on_different,
        layers,
        providers,
        diskless_on_remaining,
        diskless
    )
}

/// Turns lists without anything in them into none.
pub fn clear_empty(filter: &mut Filter) {
    macro_rules! clear {
        ($($field:ident),+) => {
            $(if filter.$field.as_ref().is_some_and(|list| list.is_empty()) {
                filter.$field = None;
            })+
        };
    }
    clear!(
        nodes,
        pools,
        diskless_pools,
        not_with,
        not_with_regex,
        on_same,
        on_different,
        x_on_different,
        layers,
        providers
    );
}

/// Checks that the regular expression of a filter is one.
///
/// # Errors
/// If it is not, or uses what is not supported (look-around, back references).
pub fn check_regex(filter: &Filter) -> Result<(), Refusal> {
    regex(filter).map(drop)
}

fn regex(filter: &Filter) -> Result<Option<regex_lite::Regex>, Refusal> {
    let Some(text) = filter.not_with_regex.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let built = regex_lite::RegexBuilder::new(text).case_insensitive(true).build();
    built.map(Some).map_err(|error| {
        Refusal::new(Code::InvalidRequest, format!("`{text}` is not a regular expression"))
            .cause(error.to_string())
            .correction("look-around and back references are not supported; write it without")
    })
}

/// True if replicas can be in pools of both kinds (control plane §6.4).
pub fn mix(a: Provider, b: Provider, allowed: bool) -> bool {
    use Provider::*;
    let family = |kind| match kind {
        ZfsThin => Zfs,
        FileThin => File,
        other => other,
    };
    let mixable = |kind| matches!(family(kind), Lvm | LvmThin | Zfs);
    family(a) == family(b) || allowed && mixable(a) && mixable(b)
}

/// The kinds of pools that replicas of a resource definition are in.
pub fn kinds_in_use(model: &Model, name: &ResourceName) -> BTreeSet<Provider> {
    let mut kinds = BTreeSet::new();
    for resource in model.resources_of(name).filter(|resource| resource.takes_a_place()) {
        let pools = resource.volumes.values().map(|volume| &volume.pool);
        kinds.extend(pools.filter_map(|pool| model.pool(&resource.node, pool)).map(|p| p.provider));
    }
    kinds.remove(&Provider::Diskless);
    kinds
}

/// True if a replica counts as one that exists already.
fn counts(model: &Model, definition: &Definition, resource: &Resource) -> bool {
    let node = model.node(&resource.node);
    let stays = node.is_some_and(|node| node.flags.is_empty());
    let skipped = chain::resource(model, definition, resource).get("DrbdOptions/SkipDisk");
    resource.takes_a_place()
        && !resource.flags.contains(&ResourceFlag::Evacuate)
        && stays
        && !skipped.is_some_and(is_true)
}

/// What is asked for.
struct Ask<'a> {
    model: &'a Model,
    observed: &'a Observed,
    definition: &'a Definition,
    filter: &'a Filter,
    diskless: bool,
    /// Nodes of replicas that exist and count.
    existing: Vec<&'a NodeName>,
    /// Sum of the sizes of the volumes.
    size: Bytes,
}

/// Chooses pools for what a resource definition lacks. `filter` is the merged one. Nothing is
/// chosen if nothing is missing.
///
/// # Errors
/// If not enough pools fit, with the reason for each, or existing replicas contradict the filter.
pub fn place(
    model: &Model,
    observed: &Observed,
    name: &ResourceName,
    filter: &Filter,
) -> Result<Placement, Refusal> {
    let Some(definition) = model.definition(name) else { return Ok(Placement::default()) };
    place_for(model, observed, definition, filter)
}

/// The same for a resource definition that need not be in the model.
///
/// # Errors
/// As [`place`].
pub fn place_for(
    model: &Model,
    observed: &Observed,
    definition: &Definition,
    filter: &Filter,
) -> Result<Placement, Refusal> {
    let counted = model.resources_of(&definition.name).filter(|r| counts(model, definition, r));
    let existing: Vec<&NodeName> = counted.map(|resource| &resource.node).collect();
    let have = existing.len() as u32;
    let lacking = filter.place_count.unwrap_or(0).saturating_sub(have);
    let count = match filter.additional_place_count {
        // LINSTOR fills up to the place count where that is more than what exists.
        Some(more) if more > 0 => {
            if lacking > 0 {
                lacking
            } else {
                more
            }
        }
        _ => lacking,
    };
    if count == 0 {
        return Ok(Placement::default());
    }
    let size = definition.volumes.values().map(|volume| volume.size.0).sum();
    let ask =
        Ask { model, observed, definition, filter, diskless: false, existing, size: Bytes(size) };
    choose(&ask, count as usize)
}

/// Nodes for diskless resources: as many more as are wanted. The constraints are those of replicas, but
/// for those about where data may be.
///
/// # Errors
/// As [`place`].
pub fn place_diskless(
    model: &Model,
    observed: &Observed,
    definition: &Definition,
    filter: &Filter,
) -> Result<Placement, Refusal> {
    let resources = || model.resources_of(&definition.name);
    let is_one = |r: &&Resource| !r.is_diskful() && !r.is_tie_breaker() && !r.is_deleting();
    let have = resources().filter(is_one).count();
    let lacking = (filter.place_count.unwrap_or(0) as usize).saturating_sub(have);
    let more = filter.additional_place_count.unwrap_or(0) as usize;
    let count = if lacking > 0 { lacking } else { more };
    if count == 0 {
        return Ok(Placement::default());
    }
    let filter = &Filter { pools: None, providers: None, ..filter.clone() };
    let existing = resources().filter(is_one).map(|resource| &resource.node).collect();
    let size = Bytes(0);
    choose(&Ask { model, observed, definition, filter, diskless: true, existing, size }, count)
}

fn choose(ask: &Ask<'_>, count: usize) -> Result<Placement, Refusal> {
    let pattern = regex(ask.filter)?;
    let between = select::Between::new(ask)?;
    let mut candidates = candidates::find(ask, pattern.as_ref());
    select::rule_out(ask, &between, &mut candidates);
    score::score(ask, &mut candidates);
    let Some(chosen) = select::select(ask, &between, &candidates, count) else {
        let key = Key::Definition(ask.definition.name.clone());
        let fitting = candidates.iter().filter(|c| c.verdict == Verdict::NotNeeded).count();
        let cause = match fitting {
            0 => "no storage pool fits".to_owned(),
            some => format!("{some} storage pools fit, but no {count} of them fit together"),
        };
        let lines: Vec<String> = candidates.iter().map(ToString::to_string).collect();
        return Err(Refusal::new(Code::NotEnoughNodes, format!("{key} can not be placed"))
            .cause(format!("{count} more replicas are wanted; {cause}"))
            .correction("add nodes or pools, or lower the place count or the constraints")
            .details(format!("{:?}\n{}", ask.filter, lines.join("\n")))
            .about(key));
    };
    for index in &chosen {
        candidates[*index].verdict = Verdict::Chosen;
    }
    let mut chosen: Vec<Candidate> = chosen.iter().map(|i| candidates[*i].clone()).collect();
    chosen.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(Placement { chosen, candidates })
}

/// The best node for a tie-breaker: the group's constraints hold, and each site has one replica.
pub fn tie_breaker(model: &Model, observed: &Observed, name: &ResourceName) -> Option<NodeName> {
    let definition = model.definition(name)?;
    let mut filter = model.group(&definition.group)?.filter.clone();
    // Those are about where data may be.
    filter.pools = None;
    filter.providers = None;
    filter.nodes = None;
    for sites in filter.x_on_different.iter_mut().flat_map(|map| map.values_mut()) {
        *sites = 1;
    }
    let existing = model.resources_of(name).filter(|r| r.is_replica()).map(|r| &r.node).collect();
    let ask = Ask {
        model,
        observed,
        definition,
        filter: &filter,
        diskless: true,
        existing,
        size: Bytes(0),
    };
    let placement = choose(&ask, 1).ok()?;
    placement.chosen.into_iter().next().map(|chosen| chosen.node)
}

/// Every node with the reason why one more replica of a resource definition would or would not go
/// there.
///
/// # Errors
/// If existing replicas contradict the filter of the group, or there is no such resource definition.
pub fn explain(model: &Model, observed: &Observed, name: &ResourceName) -> Result<Placed, Refusal> {
    let key = Key::Definition(name.clone());
    let Some(definition) = model.definition(name) else {
        return Err(unknown(Code::UnknownDefinition, key));
    };
    let filter = model.group(&definition.group).map(|group| group.filter.clone());
    let filter = &filter.unwrap_or_default();
    let counted = model.resources_of(name).filter(|r| counts(model, definition, r));
    let existing = counted.map(|resource| &resource.node).collect();
    let size = Bytes(definition.volumes.values().map(|volume| volume.size.0).sum());
    let ask = Ask { model, observed, definition, filter, diskless: false, existing, size };
    let mut candidates = candidates::find(&ask, regex(filter)?.as_ref());
    select::rule_out(&ask, &select::Between::new(&ask)?, &mut candidates);
    score::score(&ask, &mut candidates);
    Ok(Placed::new(model, name, candidates))
}

/// True if the definition's stack has DRBD.
fn replicated(definition: &Definition) -> bool {
    definition.layers.contains(&Layer::Drbd)
}
