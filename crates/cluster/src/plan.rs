//! From what is wanted and what is observed to the steps that lead there.
//!
//! A plan is for one resource definition and leaves nothing open: each step is plain data that an
//! agent carries out, or finds done, without asking back. Steps wait for each other only inside a
//! plan. After every report a new plan is made, from what is true then; a step that was not carried
//! out is simply in it again. Nothing that takes data away is in a plan unless enough other copies
//! are known (`redundancy`); what waits, and for whom, is said instead.

mod config;
mod replica;
mod rollback;
mod shipping;
mod snapshot;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::model::Model;
use crate::name::*;
use crate::objects::Generation;
use crate::observed::Observed;
use crate::redundancy;

pub use config::{ConnectionConfig, ResourceConfig, VolumeConfig};
pub(crate) use shipping::described;
pub use snapshot::together;
pub use step::{Action, Backing, Begin, Guard, Step, StepId, Wait};

/// The steps of one resource definition.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// The generation of the wanted state that it was made from. An agent refuses a step that is
    /// older than what it has carried out for the resource.
    pub generation: Generation,
    /// The steps; a step's id is its place here.
    pub steps: Vec<Step>,
    /// What is wanted and can not be done now, and why.
    pub waits: Vec<Wait>,
    /// Copies of the data that can be relied on before the first step.
    pub copies: usize,
}

impl Plan {
    /// True if everything is as wanted.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.waits.is_empty()
    }

    /// The steps that wait for no other.
    pub fn ready(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.after.is_empty())
    }

    fn push(&mut self, node: &NodeName, action: Action, after: Vec<StepId>) -> StepId {
        let id = StepId(self.steps.len());
        // A step that takes a copy away says how many are left; those before it take none.
        let before = self.steps.last().map_or(self.copies, |step| step.copies_after);
        let takes = usize::from(action.takes_a_copy());
        self.steps.push(Step {
            id,
            node: node.clone(),
            action,
            after,
            copies_before: before,
            copies_after: before.saturating_sub(takes),
        });
        id
    }

    fn wait(&mut self, node: Option<&NodeName>, reason: impl Into<String>) {
        self.waits.push(Wait { node: node.cloned(), reason: reason.into() });
    }
}

/// The plan of a resource definition. One that is gone has an empty plan.
pub fn plan(model: &Model, observed: &Observed, name: &ResourceName) -> Plan {
    let mut plan = Plan {
        generation: model.generation(),
        copies: redundancy::copies(model, observed, name).len(),
        ..Plan::default()
    };
    if let Some(definition) = model.definition(name) {
        let resources = model.resources_of(name).map(|r| (r.node.clone(), r)).collect();
        let ask = Ask { model, observed, definition, resources };
        match definition.rolling_back() {
            Some(running) => rollback::plan(&ask, running, &mut plan),
            None => replica::plan(&ask, &mut plan),
        }
        snapshot::plan(&ask, &mut plan);
        shipping::plan(&ask, &mut plan);
    }
    leftovers(model, observed, name, &mut plan);
    plan
}

/// What a plan is made from.
struct Ask<'a> {
    model: &'a Model,
    observed: &'a Observed,
    definition: &'a crate::objects::Definition,
    resources: BTreeMap<NodeName, &'a crate::objects::Resource>,
}

/// Nodes have what nobody wants: they were lost and are back, or their resource definition is gone.
/// Those are told of, never deleted: what is not known to the model may be somebody's data.
fn leftovers(model: &Model, observed: &Observed, name: &ResourceName, plan: &mut Plan) {
    for (node, replica) in observed.replicas(name) {
        let has = replica.up || replica.volumes.values().any(|volume| volume.backing.is_some());
        if has && observed.is_connected(node) && model.resource(name, node).is_none() {
            plan.wait(
                Some(node),
                format!(
                    "node {node} has volumes of {name} that are not in the model; look at them, \
                     then create the resource there and delete it"
                ),
            );
        }
    }
}

/// The resource definitions that a change of the wanted state concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Affected {
    /// These.
    Some(std::collections::BTreeSet<ResourceName>),
    /// All of them: the controller's properties have changed.
    All,
}

/// Which resource definitions have to be planned again after changes.
pub fn affected(model: &Model, changes: &[crate::change::Change]) -> Affected {
    use crate::change::{Change, Key, Object};
    let mut names = std::collections::BTreeSet::new();
    for change in changes {
        if let Change::Put(Object::Controller(controller)) = change {
            if controller.props_generation == controller.generation {
                return Affected::All;
            }
        }
        match change.key() {
            Key::Node(node) | Key::Pool(node, _) => {
                names.extend(model.resources_on(&node).cloned());
            }
            Key::NodeConnection(a, b) => {
                names.extend(model.resources_on(&a).cloned());
                names.extend(model.resources_on(&b).cloned());
            }
            Key::Group(group) => names.extend(model.definitions_in(&group).cloned()),
            Key::File(path) => {
                let file = model.file(&path);
                names.extend(file.into_iter().flat_map(|file| file.resources.iter().cloned()));
            }
            key => names.extend(key.definition().cloned()),
        }
    }
    Affected::Some(names)
}
