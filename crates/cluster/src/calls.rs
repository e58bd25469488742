//! What is said to other clusters of snapshots that are shipped to them. A controller calls them, and says by a
//! command what came of it; whatever it does not come back from is to be said still.

use std::fmt;

use crate::command::Command;
use crate::model::Model;
use crate::name::*;
use crate::objects::{Generation, SnapshotDefinition};
use crate::observed::Observed;
use crate::plan;
use crate::shipping::{CallWhat, Described, Door, Sending, origin};

/// A call of another cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Call {
    /// The resource definition.
    pub name: ResourceName,
    /// The snapshot.
    pub snapshot: SnapshotName,
    /// The other cluster.
    pub remote: RemoteName,
    /// The shipment.
    pub token: Generation,
    /// What for.
    pub what: CallWhat,
}

impl Call {
    /// The command that says what came of it: where the other cluster waits and what it has to compare with,
    /// or why it does not. Whether it was told to wait no longer makes no difference.
    pub fn done(self, outcome: Result<(Door, Option<String>), String>) -> Command {
        let Call { name, snapshot, remote, token, what } = self;
        match what {
            CallWhat::Ask => Command::NoteDoor { name, snapshot, remote, token, door: outcome },
            CallWhat::Close => Command::NoteClosed { name, snapshot, remote, token },
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { name, snapshot, remote, what, .. } = self;
        match what {
            CallWhat::Ask => write!(f, "ask remote {remote} to take snapshot {snapshot} of {name}"),
            CallWhat::Close => {
                write!(f, "tell remote {remote} not to wait for snapshot {snapshot} of {name}")
            }
        }
    }
}

/// What is told to a cluster that is to get a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct Offer {
    /// What is asked of it.
    pub sending: Sending,
    /// What the snapshot is called here, for people.
    pub label: String,
    /// What it is called towards other clusters.
    pub origin: String,
    /// What it can be compared with, the newest first.
    pub bases: Vec<String>,
    /// What there is to know beside its data.
    pub described: Described,
}

/// What can be said now.
pub fn calls(model: &Model, observed: &Observed) -> Vec<Call> {
    // What is secret of other clusters is under the master key.
    if observed.master.is_none() {
        return Vec::new();
    }
    let of = |found: &SnapshotDefinition| -> Vec<Call> {
        let call = |(remote, upload): (&RemoteName, &crate::shipping::Upload)| {
            Some(Call {
                name: found.resource.clone(),
                snapshot: found.name.clone(),
                remote: remote.clone(),
                token: upload.token,
                what: upload.call()?,
            })
        };
        found.uploads.iter().filter_map(call).collect()
    };
    model.with_calls().flat_map(of).collect()
}

/// What the other cluster is told when it is asked.
pub fn offer(model: &Model, call: &Call) -> Option<Offer> {
    let found = model.snapshot(&call.name, &call.snapshot)?;
    let upload = found.uploads.get(&call.remote).filter(|upload| upload.token == call.token)?;
    let (sending, node) = (upload.sending.as_ref()?, upload.node.as_ref()?);
    let fits = |other: &&SnapshotDefinition| {
        other.name != found.name
            && other.is_successful()
            && (&other.sizes, &other.layers) == (&found.sizes, &found.layers)
            && other.nodes.get(node).is_some_and(|on_node| !on_node.deleting)
    };
    let mut others: Vec<&SnapshotDefinition> =
        model.snapshots_of(&call.name).filter(|_| sending.incremental).filter(fits).collect();
    others.sort_by_key(|other| std::cmp::Reverse(other.token));
    Some(Offer {
        sending: (**sending).clone(),
        label: upload.backup.clone(),
        origin: origin(found, node),
        bases: others.into_iter().map(|other| origin(other, node)).collect(),
        described: plan::described(model, found, node, upload.since)?,
    })
}
